"""What is done to a command beside running it: input, the size of its terminal, the start of its clock.

Each of these has a deadline, goes through as many attachments as it takes until then, and has happened for certain
when it returns: the warden said so.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fumehood.errors import (
    DeadlineExceededError,
    EngineStatusError,
    EngineUnavailableError,
    InvalidRequestError,
    SandboxLostError,
    SandboxNotFoundError,
)
from fumehood.sandbox.warden.client import WardenClient
from fumehood.sandbox.warden.transport import NotRunningError, TransportClosedError

STEER_SECONDS = 30.0
"""Beyond what a call itself waits for."""
RETRY_SECONDS = 0.05
MAX_SIZE = 65_535

Answer = TypeVar("Answer")


class Steering:
    def __init__(self, client: Callable[[], Awaitable[WardenClient]]) -> None:
        self._client = client
        self._locks: weakref.WeakValueDictionary[int, asyncio.Lock] = weakref.WeakValueDictionary()

    async def feed(self, command_id: int, offset: int, data: bytes, seconds: float) -> int:
        if offset < 0:
            raise InvalidRequestError("the offset of input is not below 0")
        until = asyncio.get_running_loop().time() + seconds

        async def act(client: WardenClient) -> int:
            left = until - asyncio.get_running_loop().time()
            return await client.feed(command_id, offset, data, seconds=max(0.0, left))

        return await self._steer(command_id, act, seconds)

    async def end_input(self, command_id: int) -> None:
        await self._steer(command_id, lambda client: client.end_input(command_id))

    async def stdin_received(self, command_id: int) -> int:
        return await self._steer(command_id, lambda client: client.stdin_received(command_id))

    async def resize(self, command_id: int, rows: int, columns: int) -> None:
        if not (0 < rows <= MAX_SIZE and 0 < columns <= MAX_SIZE):
            raise InvalidRequestError(f"a terminal has 1 to {MAX_SIZE} rows and columns")
        await self._steer(command_id, lambda client: client.resize(command_id, rows, columns))

    async def begin(self, command_id: int, timeout_ms: int) -> bool:
        return await self._steer(command_id, lambda client: client.begin(command_id, timeout_ms))

    async def _steer(
        self, command_id: int, act: Callable[[WardenClient], Awaitable[Answer]], seconds: float = 0.0
    ) -> Answer:
        """One at a time for each command: what was tried again must not overtake what came before it."""
        watch = asyncio.timeout(seconds + STEER_SECONDS)
        try:
            async with watch, self._locks.setdefault(command_id, asyncio.Lock()):
                return await self._insist(act)
        except TimeoutError:
            if not watch.expired():
                raise
            raise DeadlineExceededError("the sandbox did not answer in time") from None

    async def _insist(self, act: Callable[[WardenClient], Awaitable[Answer]]) -> Answer:
        while True:
            try:
                return await act(await self._client())
            except NotRunningError as error:
                raise SandboxLostError() from error
            except (TransportClosedError, EngineUnavailableError, DeadlineExceededError):
                await asyncio.sleep(RETRY_SECONDS)
            except EngineStatusError as error:
                if error.status == 404:
                    raise SandboxNotFoundError("the engine knows no such sandbox") from error
                await asyncio.sleep(RETRY_SECONDS)
