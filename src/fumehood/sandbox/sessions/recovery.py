"""Coming back: what an earlier life of this process left, taken over or cleared away."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections import defaultdict

from fumehood.errors import (
    DeadlineExceededError,
    EngineUnavailableError,
    SandboxError,
    SandboxLostError,
    SandboxNotFoundError,
)
from fumehood.sandbox.driver import Driver, Handle
from fumehood.sandbox.pauses import pause_seconds
from fumehood.sandbox.sessions.labels import name_of
from fumehood.sandbox.sessions.lives import Lives
from fumehood.sandbox.sessions.records import ProcessRecord, SessionRecord, SessionState
from fumehood.sandbox.sessions.store import SessionStore

PATIENCE_SECONDS = 30.0
"""For an engine that does not answer. By then a sandbox without an owner has ended."""

LOST = "the session was gone when the worker came back"
REMOVED = "the session was removed"


class Recovery:
    def __init__(self, driver: Driver, store: SessionStore, lives: Lives) -> None:
        self._driver = driver
        self._store = store
        self._lives = lives
        self._until = asyncio.get_running_loop().time() + PATIENCE_SECONDS

    async def run(self) -> None:
        """Take over all that is ours, and find sessions' sandboxes that nobody here remembers."""
        records = await self._store.sessions()
        commands: dict[str, list[ProcessRecord]] = defaultdict(list)
        for record in await self._store.processes():
            commands[record.sandbox_id].append(record)
        handles = await self._handles()
        serials = {str(record.serial) for of_one in commands.values() for record in of_one}
        await asyncio.gather(
            *(
                self._session(record, handles.pop(record.sandbox_id, None), commands.pop(record.sandbox_id, []))
                for record in records
            )
        )
        for orphaned in commands.values():
            await self._lives.commands.bury(orphaned, LOST)
        await asyncio.to_thread(self._sweep_spool, serials)
        self._lives.strays.update(handles)

    async def _handles(self) -> dict[str, Handle]:
        for attempt in itertools.count():
            try:
                found = await self._driver.list({})
            except (EngineUnavailableError, DeadlineExceededError):
                if self._late():
                    raise
                await asyncio.sleep(pause_seconds(attempt))
            else:
                return {handle.sandbox_id: handle for handle in found if name_of(handle) is not None}
        raise AssertionError("unreachable")

    async def _session(self, record: SessionRecord, handle: Handle | None, commands: list[ProcessRecord]) -> None:
        there = record.state is SessionState.THERE
        if handle is not None and there and await self._attached(handle):
            session = self._lives.recovered(record, handle)
            try:
                await self._lives.commands.join(session, commands)
            except SandboxError as error:
                self._lives.lost(session, error.detail)
            return
        farewell = LOST if there else record.farewell or REMOVED
        if handle is not None:  # what it began may still run
            self._lives.commands.hold(self._lives.doom(record, handle, farewell), commands)
            return
        await self._lives.commands.bury(commands, farewell)
        await self._store.drop_session(record.sandbox_id)

    async def _attached(self, handle: Handle) -> bool:
        """Whether the sandbox lives. An engine that is slow or away gets its time."""
        for attempt in itertools.count():
            try:
                await self._driver.attach(handle)
            except (SandboxLostError, SandboxNotFoundError):
                return False
            except SandboxError:
                if self._late():
                    return False
                await asyncio.sleep(pause_seconds(attempt))
            else:
                return True
        raise AssertionError("unreachable")

    def _late(self) -> bool:
        return asyncio.get_running_loop().time() > self._until

    def _sweep_spool(self, known: set[str]) -> None:
        if self._store.spool.is_dir():
            for folder in self._store.spool.iterdir():
                if folder.name not in known:
                    shutil.rmtree(folder, ignore_errors=True)
