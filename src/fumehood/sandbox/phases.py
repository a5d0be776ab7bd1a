"""Which commands of one sandbox were sent and have ended, for those who wait for that beside `run`."""

from __future__ import annotations

import asyncio

from fumehood.sandbox.driver import Phase


class Phases:
    """Nothing is forgotten while the sandbox is ours: an end that was missed would be waited for in vain."""

    def __init__(self) -> None:
        self._events: dict[tuple[int, Phase], asyncio.Event] = {}
        self._over = False

    def sent(self, command_id: int) -> None:
        self._event(command_id, Phase.SENT).set()

    def ended(self, command_id: int) -> None:
        self._event(command_id, Phase.SENT).set()
        self._event(command_id, Phase.ENDED).set()

    def end_all(self) -> None:
        """The sandbox is gone, and with it whatever ran, or was still to run, in it."""
        self._over = True
        for event in self._events.values():
            event.set()

    async def reached(self, command_id: int, phase: Phase) -> None:
        await self._event(command_id, phase).wait()

    def _event(self, command_id: int, phase: Phase) -> asyncio.Event:
        event = self._events.setdefault((command_id, phase), asyncio.Event())
        if self._over:
            event.set()
        return event
