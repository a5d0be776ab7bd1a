"""The commands of all sessions, from their acceptance to their stored end.

The order of writes is what makes a command survive this process: its row, with the number by which the sandbox's
supervisor will know it, is stored before it is sent, and its outcome before anybody is told. So the next process joins
every command without an outcome under its number: one that was never sent is sent then, and none is sent twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace

from fumehood.errors import (
    CommandFailedError,
    CommandRefusedError,
    FumehoodError,
    LedgerError,
    SandboxError,
    SandboxLostError,
    SandboxNotFoundError,
    WardenProtocolError,
)
from fumehood.sandbox.driver import Driver, Phase
from fumehood.sandbox.pauses import pause_seconds
from fumehood.sandbox.sessions.known import Known
from fumehood.sandbox.sessions.process import Process, command_of, lost, refused
from fumehood.sandbox.sessions.records import Ending, ProcessRecord, Sign, digest_of, no_receipt, shown
from fumehood.sandbox.sessions.session import Session
from fumehood.sandbox.sessions.store import SessionStore
from fumehood.sandbox.sessions.values import ProcessWish, SessionName, SessionOptions
from fumehood.sandbox.spec import End, Outcome
from fumehood.wire.console.codes import Reason

PROTOCOL_ATTEMPTS = 3

Lost = Callable[[Session, str], None]


class Commands:
    def __init__(
        self, driver: Driver, store: SessionStore, options: SessionOptions, on_lost: Lost, sign: Sign = no_receipt
    ) -> None:
        self._driver = driver
        self._sign = sign
        self._store = store
        self._options = options
        self._on_lost = on_lost
        self._stopping = False
        self.all = Known(store, options)

    def get(self, command_id: str) -> Process:
        process = self.all.find(command_id)
        if process is None:
            raise CommandFailedError(Reason.COMMAND_NOT_FOUND, f"there is no command {command_id} (any more)")
        process.touch()
        return process

    # --- beginning -----------------------------------------------------------------------------------------

    def known(self, name: SessionName, wish: ProcessWish) -> Process | None:
        """The command if it was begun before. The same name for something else is refused."""
        process = self.all.find(wish.command_id)
        if process is None:
            return None
        if process.record.name != name or process.record.sha256 != digest_of(wish):
            raise CommandFailedError(
                Reason.INVALID_PAYLOAD, f"the command_id {wish.command_id} was used before for another command"
            )
        process.touch()
        return process

    async def start(self, session: Session, wish: ProcessWish) -> Process:
        """Begin a command, or find it."""
        _check(wish)
        async with session.sending:
            process = self.known(session.name, wish)
            if process is None:
                process = await self._add(session, wish)
                await self._send(session, process)
        return process

    async def _add(self, session: Session, wish: ProcessWish) -> Process:
        _, handle = session.known()
        if len(session.running) >= self._options.most_running:
            raise CommandFailedError(
                Reason.NO_CAPACITY, f"{self._options.most_running} commands run in this session: wait for one to end"
            )
        await self.all.make_room()
        record = ProcessRecord(
            command_id=wish.command_id,
            name=session.name,
            sandbox_id=session.sandbox_id,
            number=await self._driver.next_id(handle),
            sha256=digest_of(wish),
            argv=shown(wish.argv),
            terminal=wish.terminal is not None,
            stdin=wish.stdin,
            exclusive=session.holder == wish.command_id,
            started_ms=self._options.clock(),
            wish=wish,
        )
        return self._keep(session, replace(record, serial=await self._store.add_process(record)))

    def _keep(self, session: Session | None, record: ProcessRecord) -> Process:
        process = Process.of(record, self._store.spool, self._options.output_limit)
        self.all.add(process, session)
        return process

    async def _send(self, session: Session, process: Process) -> None:
        """Returns when the next one can be sent."""
        if session.gone or session.handle is None or (session.leaving and not process.joined):
            await self._bury(session, process)
            return
        if session.leaving:
            return  # an earlier life may have sent it: see `gone`
        handle = session.handle
        process.task = asyncio.create_task(self._drive(session, process), name=f"command-{process.record.command_id}")
        sent = asyncio.create_task(self._driver.reached(handle, process.record.number, Phase.SENT))
        try:
            await asyncio.wait({sent, process.task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not sent.cancel():
                sent.exception()  # a sandbox that is gone: the command's own task tells

    # --- coming back ---------------------------------------------------------------------------------------

    async def join(self, session: Session, records: Iterable[ProcessRecord]) -> None:
        """Go on with the commands of a session that an earlier life of this process left."""
        _, handle = session.known()
        processes = [self._keep(session, record) for record in sorted(records, key=lambda record: record.number)]
        running = [process for process in processes if process.running]
        await self._driver.disown(handle, [process.record.number for process in running])
        for process in running:
            process.joined = True
            process.output.expect_reader()
            await self._send(session, process)
            if process.record.stdin:
                with contextlib.suppress(SandboxError):
                    process.stdin_bytes = await self._driver.stdin_received(handle, process.record.number)

    def hold(self, session: Session, records: Iterable[ProcessRecord]) -> None:
        """Commands of a session that goes: those without an end have it when nothing of the session is left."""
        for record in records:
            self._keep(session, record)

    async def bury(self, records: Iterable[ProcessRecord], detail: str) -> None:
        """The session of these commands is gone: those without an end have it now."""
        for record in records:
            process = self._keep(None, record)
            if process.running:
                await self._end(None, process, lost(record.started_ms), detail)

    async def _bury(self, session: Session, process: Process) -> None:
        """A command that nobody waits for at its session, which is gone."""
        await self._end(session, process, lost(process.record.started_ms), session.farewell)
        self.all.session_gone([process])

    # --- running -------------------------------------------------------------------------------------------

    async def _drive(self, session: Session, process: Process) -> None:
        detail = ""
        try:
            outcome, detail = await self._until_known(session, process)
            if outcome.end is End.SANDBOX_LOST:  # as far as we know: it is told when that is certain
                self._on_lost(session, detail)
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not session.gone:
                raise  # this process stops: the command goes on and waits for the next one
            outcome, detail = lost(process.record.started_ms), detail or session.farewell
        process.decided = True
        await self._end(session, process, outcome, detail)
        if session.handle is not None and not session.gone:
            with contextlib.suppress(SandboxError):  # then it is disowned when the connection is made anew
                await self._driver.settle(session.handle, process.record.number)

    async def _until_known(self, session: Session, process: Process) -> tuple[Outcome, str]:
        """How it ended. What stands in the way is tried again: only the sandbox's own end ends this."""
        for attempt in itertools.count():
            try:
                return await self._run(session, process), ""
            except (SandboxLostError, SandboxNotFoundError) as error:
                return lost(process.record.started_ms), session.farewell if session.leaving else error.detail
            except CommandRefusedError as error:
                if attempt == 0 and not process.joined:  # nothing of it was sent before
                    return refused(errno.EAGAIN), error.detail
                return lost(process.record.started_ms), error.detail
            except Exception as error:  # noqa: BLE001 - whatever it is, the sandbox still knows how it ended
                passing = isinstance(error, SandboxError | OSError) and not isinstance(error, WardenProtocolError)
                if not passing and attempt >= PROTOCOL_ATTEMPTS:
                    detail = error.detail if isinstance(error, FumehoodError) else type(error).__name__
                    return lost(process.record.started_ms), detail
            await asyncio.sleep(pause_seconds(attempt))
        raise AssertionError("unreachable")

    async def _run(self, session: Session, process: Process) -> Outcome:
        record, wish = process.record, process.record.wish
        if session.handle is None or wish is None:
            raise SandboxNotFoundError("the session has no sandbox")
        command = command_of(wish, dict(session.wish.env), sweep=session.wish.once)
        return await self._driver.run(session.handle, command, process.output, command_id=record.number)

    async def _end(self, session: Session | None, process: Process, outcome: Outcome, detail: str) -> None:
        """An end that is not stored is not told. The store may be out of reach for a while: a full disk."""
        record = process.ended_with(outcome, detail)
        signed = self._sign(Ending(record, process.record.wish, session.record if session is not None else None))
        record = replace(record, receipt=signed)
        for attempt in itertools.count():
            try:
                await self._store.end_process(record)
            except LedgerError:
                if self._stopping:
                    raise  # the next process finds that it is over
                await asyncio.sleep(pause_seconds(attempt))
            else:
                break
        process.record = record
        process.touch()
        process.output.end()
        process.over.set()
        self.all.ended(process)

    async def signalled(self, processes: Iterable[Process]) -> None:
        """Somebody wants these to end. It is only for their detail: no reason to let them live."""
        marked = [process for process in processes if process.running and not process.signalled]
        for process in marked:
            process.signalled = True
        if marked:
            with contextlib.suppress(LedgerError):
                await self._store.mark_signalled([process.record.serial for process in marked])

    # --- the end of a session ------------------------------------------------------------------------------

    async def gone(self, session: Session) -> None:
        """Nothing of this session runs any more: its commands have ended, and are told so."""
        session.gone = True
        tasks = [process.task for process in session.processes.values() if process.task and not process.task.done()]
        for process in session.running.values():
            if process.task is not None and not process.decided:
                process.task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for process in list(session.running.values()):  # never sent, or not by this process
            await self._bury(session, process)
        self.all.session_gone(session.processes.values())

    def stop(self) -> list[asyncio.Task[None]]:
        """Let go of all commands. They go on."""
        self._stopping = True
        tasks = [process.task for process in self.all.all() if process.task and not process.task.done()]
        for task in tasks:
            task.cancel()
        return tasks


def _check(wish: ProcessWish) -> None:
    words = (*wish.argv, *wish.env, *wish.env.values(), wish.cwd)
    if not wish.argv or any("\0" in word or not _is_text(word) for word in words):
        raise CommandFailedError(
            Reason.INVALID_PAYLOAD, "a command has at least one word, and all of them are Unicode text without NUL"
        )


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True
