"""One dispatch on its way to its result.

A command that is ended (its time is over, somebody cancelled it, the worker leaves) gets its result only after its
handler has cleaned up. That is also why a handler that finds a command again after a restart is begun even when the
command is to end at once: only it knows what there is to be cleaned up.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import structlog

from fumehood.errors import (
    CommandFailedError,
    DigestResolutionError,
    FumehoodError,
    ImageDeniedError,
    ImageNotFoundError,
    ImagePullError,
    InvalidReferenceError,
    PolicyDeniedError,
)
from fumehood.sandbox.sessions.values import SessionFacts
from fumehood.wire.console.codes import MAX_FRAME_BYTES, Reason
from fumehood.wire.console.console_pb2 import Dispatch, Error, Result

LARGEST_RESULT = MAX_FRAME_BYTES - 64 * 1024
"""What is left of a frame for all that is around a result."""
LONGEST_MESSAGE = 4096
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a handler returns."""

    payload_json: bytes
    data: bytes = b""
    receipt: bytes = b""
    """Of the command that a session call asks about."""


@dataclass(slots=True)
class Witness:
    """What a handler saw, for the receipt of its command, however that ends."""

    session: SessionFacts | None = None
    texts: tuple[str, str] | None = None
    """Of stdout and stderr, as the answer has them."""


Handler: TypeAlias = Callable[[Dispatch], Awaitable[Answer]]
"""Does a command, or a session call. It raises `CommandFailedError` with the reason that is told.

It is cancelled to end the command, at its first await at the earliest, and returns or raises only when everything that
it began is gone, unless `is_let_go()`. The same dispatch may come again after the death of this process: the handler
then finds what it began, and goes on with that.
"""


class Why(Enum):
    """What ended a command before it ended by itself."""

    DEADLINE = (Reason.DEADLINE_EXCEEDED, "it did not end in time, and was ended")
    CANCELLED = (Reason.DEADLINE_EXCEEDED, "it was cancelled")
    LEAVING = (Reason.WORKER_LOST, "its worker was stopped, and ended what it had")

    @property
    def failure(self) -> tuple[Reason, str]:
        return self.value


class Duty:
    """One dispatch. Belongs to one event loop."""

    def __init__(
        self,
        dispatch: Dispatch,
        handler: Handler,
        seconds: float | None,
        *,
        why: Why | None = None,
        again: bool = False,
    ) -> None:
        """`seconds` are left for it from now on. `again`: an earlier process may have begun it."""
        self.dispatch = dispatch
        self.why = why
        self._handler = handler
        self._again = again
        self._let_go = False
        self.witness = Witness()
        self.began = dt.datetime.now(dt.UTC)
        self.abandoned = False
        """Nobody waits any more, not even for its cleanup: the next process goes on with that."""
        self._handling: asyncio.Task[Answer] | None = None
        loop = asyncio.get_running_loop()
        self._timer = None if seconds is None else loop.call_later(max(seconds, 0.0), self.end, Why.DEADLINE)

    def end(self, why: Why) -> None:
        """What it began shall go. The first reason counts."""
        if self.why is None and not self._let_go:
            self.why = why
            if self._handling is not None:
                self._handling.cancel()

    def let_go(self) -> None:
        """Stop waiting for it; what it began runs on. One that is being ended goes to its end."""
        if self.why is None and not self._let_go:
            self._let_go = True
            if self._handling is not None:
                self._handling.cancel()

    def abandon(self) -> None:
        """Let go of one that is being ended, too. It has no result: the next process takes it up, and ends it."""
        self.abandoned = True
        if self._handling is not None:
            self._handling.cancel()

    async def run(self) -> Result | None:
        """To its end; None when it was let go, or abandoned."""
        try:
            if self._let_go:
                return None
            if self.why is not None and not self._again:
                return failed(self.dispatch.command_id, *self.why.failure)
            return self._result(await self._handled())
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def _handled(self) -> asyncio.Task[Answer]:
        handling = asyncio.create_task(self._handle(), name=f"duty-{self.dispatch.command_id}")
        await asyncio.sleep(0)  # a task that is cancelled before it began does nothing, not even its cleanup
        self._handling = handling
        if self.why is not None or self._let_go:
            handling.cancel()
        await asyncio.wait({handling})
        return handling

    async def _handle(self) -> Answer:
        _current.set(self)
        return await self._handler(self.dispatch)

    def _result(self, handled: asyncio.Task[Answer]) -> Result | None:
        """One that was ended failed because of that, whatever its handler says it failed at."""
        command_id = self.dispatch.command_id
        if not handled.cancelled() and handled.exception() is None:
            return succeeded(command_id, handled.result())
        if self.abandoned or (self.why is None and handled.cancelled()):
            return None
        reason, detail = self._failure(None if handled.cancelled() else handled.exception())
        return failed(command_id, *(self.why.failure if self.why is not None else (reason, detail)))

    def _failure(self, error: BaseException | None) -> tuple[str, str]:
        match error:
            case CommandFailedError():
                return error.reason, error.detail
            case InvalidReferenceError():
                return Reason.INVALID_PAYLOAD, f"image: {error.detail}"
            case FumehoodError():
                return _reason(error), error.detail
            case BaseException():
                _log.error(
                    "duty.broken",
                    command_id=self.dispatch.command_id,
                    capability=self.dispatch.capability,
                    exc_info=error,
                )
        return Reason.EXECUTION_FAILED, "the worker failed at it; its log says why"


def _reason(error: FumehoodError) -> Reason:
    match error:
        case DigestResolutionError() | ImageNotFoundError() | ImagePullError():
            return Reason.IMAGE_UNAVAILABLE
        case ImageDeniedError() | PolicyDeniedError():
            return Reason.POLICY_DENIED
    return Reason.EXECUTION_FAILED


_current: ContextVar[Duty | None] = ContextVar("duty", default=None)


def is_let_go() -> bool:
    """For a handler that is cancelled: whether this process only hands over, and what the command began runs on for the
    next one."""
    duty = _current.get()
    return duty is not None and duty.why is None


def is_abandoned() -> bool:
    """For a cleanup that is cancelled: whether it, too, is left to the next process."""
    duty = _current.get()
    return duty is not None and duty.abandoned


def witness() -> Witness:
    """For a handler: what it writes into this is signed with the result."""
    duty = _current.get()
    return duty.witness if duty is not None else Witness()


def succeeded(command_id: str, answer: Answer) -> Result:
    result = Result(command_id=command_id, payload_json=answer.payload_json, data=answer.data, receipt=answer.receipt)
    if (size := result.ByteSize()) > LARGEST_RESULT:
        return failed(command_id, Reason.EXECUTION_FAILED, f"its result of {size} bytes is too large to be told")
    return result


def failed(command_id: str, reason: str, message: str) -> Result:
    return Result(command_id=command_id, error=Error(code=str(reason), message=message[:LONGEST_MESSAGE]))
