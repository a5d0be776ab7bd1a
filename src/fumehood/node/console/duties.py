"""What this worker was told to do, from the dispatch to the acknowledgement of its result.

Commands are held until their result was acknowledged, through as many streams as that takes, and all but echo through
the death of this process: stored before anything of them happens, their result stored before anybody is told. Session
calls are not: who asked asks again, so a call's result goes to the stream that asked last, or nowhere.

A slot is taken when a dispatch arrives and free when nothing of it runs any more, and not sooner: a session call's not
before its result is being written, so that a console that does not read cannot fill this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from fumehood.errors import CommandFailedError, LedgerError
from fumehood.node.console.duty import Answer, Duty, Handler, Why, failed, is_let_go
from fumehood.node.console.duty_store import DutyStore, StoredDuty
from fumehood.node.console.forgetting import Forgetting
from fumehood.node.console.outbox import Outbox
from fumehood.node.console.places import ONLY_WAIT, Places, is_call
from fumehood.wire.console.codes import MAX_INFLIGHT, MAX_SESSION_CALLS, Capability, Reason
from fumehood.wire.console.console_pb2 import Dispatch, Result
from fumehood.wire.console.sessions import Method

__all__ = ["Answer", "Duties", "Handler", "Sign", "is_let_go"]

Sign = Callable[[Duty, Result], bytes]
"""The receipt of a command's end, which is stored and told with it; empty: none."""

MOST_HELD: Final = 1024
"""Commands that were not acknowledged. A console that acknowledges nothing gets nothing more done."""
MOST_HELD_BYTES: Final = 256 * 1024 * 1024
REMEMBERED: Final = 4096
"""Commands that were acknowledged last: if one of them comes again, it is not done again."""
BEGIN: Final = frozenset({Method.CREATE.value, Method.START.value})
"""Calls that a worker which is about to leave does not take. The others serve what it still has."""
CLOSE_SECONDS: Final = 5.0
"""For what is being ended, unless whoever closes says otherwise: well below the time that a sandbox lives without an
owner."""
ABANDON_SECONDS: Final = 2.0
"""For what was abandoned to notice that."""
_log = structlog.get_logger()


def no_receipt(_: Duty, __: Result) -> bytes:
    return b""


@dataclass(slots=True, eq=False)
class _Command:
    duty: Duty | None
    """None once it has ended."""
    stored: bool
    size: int
    result: Result | None = None
    """Where it is not in the store."""


@dataclass(slots=True, eq=False)
class _Call:
    duty: Duty
    outbox: Outbox
    """Of the stream that asked last."""


class Duties:
    """Belongs to one event loop. `recover` first, then `begin` for each stream; frames of the newest one only."""

    def __init__(
        self,
        store: DutyStore,
        handlers: Mapping[str, Handler],
        *,
        max_inflight: int = MAX_INFLIGHT,
        max_session_calls: int = MAX_SESSION_CALLS,
        sign: Sign = no_receipt,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._sign = sign
        self._clock = clock
        self._handlers = dict(handlers)
        self._places = Places(max_inflight, max_session_calls)
        self._commands: dict[str, _Command] = {}
        self._calls: dict[str, _Call] = {}
        self._acknowledged: dict[str, None] = {}
        self._forgetting = Forgetting(store)
        self._bytes = 0
        self._tasks: dict[asyncio.Task[None], Duty | None] = {}
        self._none_held = asyncio.Event()
        self._none_held.set()
        self._outbox = self._closed_outbox()
        self.draining = False
        self._closed = False

    # --- how it stands -------------------------------------------------------------------------------------

    def holding(self) -> list[str]:
        """Commands that this worker goes on with, or whose results were not acknowledged."""
        return list(self._commands)

    def inflight(self, capability: str) -> int:
        """Slots that are taken; all session calls share theirs."""
        return self._places.taken(capability)

    async def idle(self) -> None:
        """Until nothing runs, but for calls that only wait."""
        while running := [task for task, duty in self._tasks.items() if duty is None or not _only_waits(duty)]:
            await asyncio.wait(running)

    async def told(self) -> None:
        """Until every result was acknowledged."""
        await self._none_held.wait()

    # --- a stream ------------------------------------------------------------------------------------------

    def begin(self) -> Outbox:
        """A new stream. It is told every result that was not acknowledged; what an older one is still to be told is
        forgotten, and calls of it that only wait end."""
        self.pause()
        self._outbox = Outbox(self._kept_result)
        for command_id, command in self._commands.items():
            if command.duty is None:
                self._outbox.tell(command_id)
        return self._outbox

    def pause(self) -> None:
        """There is no stream: nobody waits for calls."""
        self._outbox.close()
        for command_id, call in list(self._calls.items()):
            if _only_waits(call.duty):
                del self._calls[command_id]
                call.duty.end(Why.CANCELLED)

    def take(self, dispatch: Dispatch) -> None:
        """Do it, once: the same command again is answered by what came, or will come, of the first one."""
        if self._closed or self._is_known(dispatch):
            return
        refusal = self._refusal(dispatch)
        if refusal is not None:
            self._outbox.tell(failed(dispatch.command_id, *refusal))
            return
        self._places.occupy(dispatch)
        seconds = dispatch.timeout_ms / 1000 if dispatch.timeout_ms else None
        duty = Duty(dispatch, self._handlers[dispatch.capability], seconds)
        if is_call(dispatch):
            call = _Call(duty, self._outbox)
            self._calls[dispatch.command_id] = call
            self._spawn(self._do_call(call), duty)
        else:
            command = self._hold(dispatch.command_id, duty, dispatch.ByteSize())
            self._spawn(self._do(command, duty), duty)

    def cancel(self, command_id: str) -> None:
        """End it. Nothing happens when it has ended, or never was."""
        if (call := self._calls.get(command_id)) is not None:
            call.duty.end(Why.CANCELLED)
        elif (command := self._commands.get(command_id)) is not None and command.duty is not None:
            command.duty.end(Why.CANCELLED)
            if command.stored:
                self._spawn(self._remember_cancel(command_id))

    def acknowledged(self, command_id: str) -> None:
        """The console has its result, and will not ask again."""
        command = self._commands.get(command_id)
        if command is None or command.duty is not None:
            return
        self._drop(command_id, command)
        self._acknowledged[command_id] = None
        if len(self._acknowledged) > REMEMBERED:
            del self._acknowledged[next(iter(self._acknowledged))]
        if command.stored:
            self._forgetting.add(command_id)

    # --- beginning and leaving -----------------------------------------------------------------------------

    async def recover(self) -> int:
        """Take up what an earlier process left: how many commands go on. Before the first stream."""
        count = 0
        for stored in await self._store.all():
            count += self._take_up(stored)
        return count

    def drain(self) -> None:
        """Take nothing more."""
        self.draining = True

    async def end_all(self) -> None:
        """Drain, and end everything: when it returns, nothing of it runs, and the results wait to be told."""
        self.drain()
        for duty in self._tasks.values():
            if duty is not None:
                duty.end(Why.LEAVING)
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    async def close(self, seconds: float = CLOSE_SECONDS) -> int:
        """Let go of what runs, for the next process to take up. What is being ended is ended first, within `seconds`;
        then it is left, too. Returns how many of these there are: what they began may still run."""
        self._closed = True
        self._outbox.close()
        for duty in self._tasks.values():
            if duty is not None:
                duty.let_go()
        await self._all_over(seconds)
        left = [duty for duty in self._tasks.values() if duty is not None]
        for duty in left:
            duty.abandon()
        await self._all_over(ABANDON_SECONDS)
        await self._forgetting.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            _log.error("duties.stuck", commands=len(self._tasks))
        return len(left)

    async def _all_over(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._tasks:
                    await asyncio.wait(list(self._tasks))

    # --- taking --------------------------------------------------------------------------------------------

    def _is_known(self, dispatch: Dispatch) -> bool:
        command_id = dispatch.command_id
        if (call := self._calls.get(command_id)) is not None:
            call.outbox = self._outbox
            return True
        if (command := self._commands.get(command_id)) is not None:
            if command.duty is None:
                self._outbox.tell(command_id)
            return True
        if command_id in self._acknowledged:
            _log.warning("duties.asked_again", command_id=command_id)
            again = "it was asked again after its result was acknowledged: give another one another name"
            self._outbox.tell(failed(command_id, Reason.EXECUTION_FAILED, again))
            return True
        return False

    def _refusal(self, dispatch: Dispatch) -> tuple[Reason, str] | None:
        name = dispatch.capability
        if name not in self._handlers:
            return Reason.UNSUPPORTED_CAPABILITY, f"this worker cannot do {name[:100]!r}"
        if self.draining and (not is_call(dispatch) or name in BEGIN):
            return Reason.NO_CAPACITY, "this worker is about to leave, and takes nothing more"
        if not is_call(dispatch) and (len(self._commands) >= MOST_HELD or self._bytes >= MOST_HELD_BYTES):
            return Reason.NO_CAPACITY, "this worker has more results that nobody acknowledged than it keeps"
        full = self._places.refusal(dispatch)
        return None if full is None else (Reason.NO_CAPACITY, full)

    def _drop(self, command_id: str, command: _Command) -> None:
        del self._commands[command_id]
        self._bytes -= command.size
        if not self._commands:
            self._none_held.set()

    def _hold(self, command_id: str, duty: Duty | None, size: int, *, stored: bool = False) -> _Command:
        command = _Command(duty, stored, size)
        self._commands[command_id] = command
        self._bytes += size
        self._none_held.clear()
        return command

    def _take_up(self, stored: StoredDuty) -> bool:
        dispatch = stored.dispatch
        if dispatch is None:
            self._hold(stored.command_id, None, stored.size, stored=True)
            return False
        handler = self._handlers.get(dispatch.capability, _unsupported)
        why = Why.CANCELLED if stored.cancelled else None
        duty = Duty(dispatch, handler, _seconds_left(stored, dispatch, self._clock()), why=why, again=True)
        self._places.occupy(dispatch)
        self._spawn(self._do(self._hold(stored.command_id, duty, stored.size, stored=True), duty), duty)
        return True

    # --- doing ---------------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None], duty: Duty | None = None) -> None:
        task = asyncio.create_task(work)
        self._tasks[task] = duty
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("duties.broken", exc_info=error)

    async def _do_call(self, call: _Call) -> None:
        result = await call.duty.run()
        dispatch = call.duty.dispatch
        if self._calls.get(dispatch.command_id) is call:
            del self._calls[dispatch.command_id]
        if result is None:
            self._places.free(dispatch)
        else:
            call.outbox.tell(result, taken=lambda: self._places.free(dispatch))

    async def _do(self, command: _Command, duty: Duty) -> None:
        result = await self._store_dispatch(command, duty)
        if result is None:
            result = await duty.run()
        if result is not None and result.error.code == Reason.NO_CAPACITY and await self._let_go(command, duty):
            self._outbox.tell(result)
            return
        if result is not None:
            result.receipt = self._sign(duty, result)
            await self._keep(command, result)
        self._places.free(duty.dispatch)
        if result is not None:
            command.duty = None
            self._outbox.tell(duty.dispatch.command_id)

    async def _store_dispatch(self, command: _Command, duty: Duty) -> Result | None:
        """None when it can be done, or what comes of it instead."""
        dispatch = duty.dispatch
        if command.stored or dispatch.capability == Capability.ECHO:
            return None
        now_ms = int(self._clock() * 1000)
        try:
            await self._store.accept(dispatch, now_ms, now_ms + dispatch.timeout_ms if dispatch.timeout_ms else None)
            command.stored = True
            if duty.why is not None:
                await self._store.cancel(dispatch.command_id)
        except LedgerError as error:
            _log.error("duties.not_stored", command_id=dispatch.command_id, code=error.code)
            return failed(dispatch.command_id, Reason.EXECUTION_FAILED, error.detail)
        return None

    async def _let_go(self, command: _Command, duty: Duty) -> bool:
        """One that found no room here did nothing: it is refused, like others, and may come again."""
        command_id = duty.dispatch.command_id
        if command.stored:
            try:
                await self._store.forget(command_id)
            except LedgerError:
                return False
        self._drop(command_id, command)
        self._places.free(duty.dispatch)
        return True

    async def _keep(self, command: _Command, result: Result) -> None:
        """In the store, or here where it cannot be: told in any case, because nobody else knows it."""
        self._bytes += result.ByteSize() - command.size
        command.size = result.ByteSize()
        if command.stored:
            try:
                await self._store.finish(result)
            except LedgerError as error:
                _log.error("duties.result_not_stored", command_id=result.command_id, code=error.code)
            else:
                return
        command.result = result

    # --- the store -----------------------------------------------------------------------------------------

    def _closed_outbox(self) -> Outbox:
        outbox = Outbox(self._kept_result)
        outbox.close()
        return outbox

    async def _kept_result(self, command_id: str) -> Result | None:
        command = self._commands.get(command_id)
        if command is None:
            return None
        if command.result is not None:
            return command.result
        return await self._store.result(command_id)

    async def _remember_cancel(self, command_id: str) -> None:
        try:
            await self._store.cancel(command_id)
        except LedgerError as error:
            _log.error("duties.cancel_not_stored", command_id=command_id, code=error.code)


def _only_waits(duty: Duty) -> bool:
    return duty.dispatch.capability in ONLY_WAIT


def _seconds_left(stored: StoredDuty, dispatch: Dispatch, now: float) -> float | None:
    """By the clock on the wall, but never more than it had: that clock may have been set back."""
    if stored.deadline_ms is None:
        return None
    return min(stored.deadline_ms / 1000 - now, dispatch.timeout_ms / 1000)


async def _unsupported(dispatch: Dispatch) -> Answer:
    """For a command that an earlier version of this program took."""
    raise CommandFailedError(Reason.UNSUPPORTED_CAPABILITY, f"this worker cannot do {dispatch.capability[:100]!r}")
