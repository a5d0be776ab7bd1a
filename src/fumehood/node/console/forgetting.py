"""Commands whose results were acknowledged leave the store, also where it does not let them go at first."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from fumehood.errors import LedgerError
from fumehood.node.console.duty_store import DutyStore

AGAIN_SECONDS: Final = 5.0
_log = structlog.get_logger()


class Forgetting:
    """Belongs to one event loop. What is not forgotten before its end is told again by the next process, and
    acknowledged again."""

    def __init__(self, store: DutyStore) -> None:
        self._store = store
        self._left: dict[str, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def add(self, command_id: str) -> None:
        self._left[command_id] = None
        self._begin()

    async def close(self) -> None:
        """What is under way comes to its end; nothing is tried again."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await asyncio.wait({self._task})

    def _begin(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._left:
            command_id = next(iter(self._left))
            try:
                await self._store.forget(command_id)
            except LedgerError as error:
                _log.error("duties.not_forgotten", command_id=command_id, code=error.code, left=len(self._left))
                self._later()
                return
            self._left.pop(command_id, None)

    def _later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._closed:
            self._timer = asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._begin)
