"""What can be said of a command whose worker went away, here and now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fumehood.control.console.presence import Entry, Presence
from fumehood.control.console.record import Fate, Record, fate, is_overdue

SENTENCES: Final = {
    Fate.LOST: "its worker went away and did not come back; nothing of it runs any more",
    Fate.REPLACED: "its worker came back without it: it may be submitted again",
}


class Judge:
    def __init__(self, presence: Presence, *, now_ms: Callable[[], int]) -> None:
        self._presence = presence
        self._now_ms = now_ms

    async def fate(self, record: Record) -> Fate:
        """By the table, which is at hand; and before anything bad is said, by what the broker's leader knows."""
        if not self._presence.whole:
            return Fate.WAIT
        if self._said(record, self._presence.of(record.worker)) is Fate.WAIT:
            return Fate.WAIT
        return self._said(record, await self._presence.fresh(record.worker))

    def _said(self, record: Record, worker: Entry | None) -> Fate:
        away = self._presence.away_seconds(record.worker)
        return fate(record.command_id, record.epoch, worker, away, overdue=is_overdue(record, self._now_ms()))
