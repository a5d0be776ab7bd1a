"""Ending a command with grace: SIGTERM to everything in its sandbox, time to obey, then SIGKILL.

How it ended is told by the `run` that waits for it, elsewhere in this process. What a command was allowed to leave
behind (`sweep=False`), and what outlives the SIGTERM, is left to whoever destroys the sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal

from fumehood.errors import (
    DeadlineExceededError,
    EngineStatusError,
    EngineUnavailableError,
    SandboxLostError,
    SandboxNotFoundError,
)
from fumehood.sandbox.driver import Driver, Handle, Phase

AGAIN_SECONDS = 0.5
"""Between tries: of a signal that could not be sent, and of a SIGKILL that has not ended everything."""

KILL_SECONDS = 5.0
"""How long a command has to end by SIGKILL; then the engine ends its sandbox."""

_OUT_OF_REACH = (DeadlineExceededError, EngineStatusError, EngineUnavailableError, SandboxLostError)


async def stop_command(driver: Driver, handle: Handle, command_id: int, *, grace_seconds: float) -> bool:
    """End a command; returns when it has ended, at the latest `KILL_SECONDS` after its grace by the sandbox's own end.

    True: it was signalled before its end was known. A program that obeys by exiting does so with a code of its own
    choice, and its outcome alone does not tell. False: it was over already, and nothing was done.

    Raises what stands in the way of `Driver.kill`, the last resort; then another call may do.
    """
    stop = _Stop(driver, handle, command_id)
    with contextlib.suppress(SandboxNotFoundError):  # gone, and its command with it
        if not await stop.ask(grace_seconds) and not await stop.insist():
            stop.signalled = True
            await driver.kill(handle)
    return stop.signalled


class _Stop:
    """One attempt to end one command; each step tells whether the command has ended."""

    def __init__(self, driver: Driver, handle: Handle, command_id: int) -> None:
        self._driver, self._handle, self._command_id = driver, handle, command_id
        self.signalled = False

    async def ask(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._reached(Phase.SENT)  # a signal that overtook its command would reach nobody
                if await self._ended_within(0):
                    return True
                await self._signal(signal.SIGTERM)
                await self._reached(Phase.ENDED)
        except TimeoutError:
            return False
        return True

    async def insist(self) -> bool:
        """Again and again: the command may be sent only now, and somebody may be forking."""
        try:
            async with asyncio.timeout(KILL_SECONDS):
                while not await self._ended_within(0):
                    await self._signal(signal.SIGKILL)
                    await self._ended_within(AGAIN_SECONDS)
        except TimeoutError:
            return False
        return True

    async def _signal(self, number: signal.Signals) -> None:
        """Try until it is sent, through broken connections and a restarted engine, or until there is no need."""
        while True:
            try:
                await self._driver.signal(self._handle, self._command_id, number, everything=True)
            except _OUT_OF_REACH:
                if await self._ended_within(AGAIN_SECONDS):
                    return
            else:
                self.signalled = True
                return

    async def _ended_within(self, seconds: float) -> bool:
        """With 0: is its end known by now? `reached` does not wait for what has happened already."""
        try:
            async with asyncio.timeout(seconds):
                await self._reached(Phase.ENDED)
        except TimeoutError:
            return False
        return True

    async def _reached(self, phase: Phase) -> None:
        await self._driver.reached(self._handle, self._command_id, phase)
