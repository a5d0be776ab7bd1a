"""The contract's commands that run programs: pythonExec and terminalExec. Echo is here, too.

Each may be asked for the same command again, as it is after this process died: what a command began bears its id, so it
is found and joined, and the answer tells the whole of it. Nothing is decided by what a program wrote.

A handler that is cancelled (its command was, or its time is over) comes back when nothing of the command is left, and
with it goes the session that it ran in.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from fumehood.errors import CommandFailedError, LedgerError, SandboxError
from fumehood.node.console.duty import Answer, Handler, is_let_go, witness
from fumehood.node.console.endings import in_any_case
from fumehood.node.console.leases import LeaseRule
from fumehood.node.console.making import Making
from fumehood.node.console.telling import OUTPUT_GONE, Ended, ended_of
from fumehood.sandbox.pool import waiting
from fumehood.sandbox.sessions.sessions import Sessions
from fumehood.sandbox.sessions.values import ProcessFacts, ProcessWish, SessionFacts, SessionName, SessionWish
from fumehood.sandbox.spec import MIB, End, Limits
from fumehood.wire.console.codes import Capability, Reason
from fumehood.wire.console.console_pb2 import Dispatch
from fumehood.wire.console.payloads import (
    PythonExec,
    PythonExecResult,
    TerminalExec,
    TerminalExecResult,
    read,
    written,
)

FLOOR: Final = Limits(
    memory_bytes=256 * MIB, cpu_millis=1000, pids=128, file_bytes=128 * MIB, workspace_bytes=128 * MIB
)
"""`--memory 256m --cpus 1.0 --pids-limit 128`. Files may take half of the memory: a full workspace is then an error of
the program that fills it, and not the end of everything."""

SHELL: Final = ("sh", "-c")
PYTHON: Final = ("python", "-c")
UNSPEAKABLE: Final = "."
"""Begins the names of sessions that no caller has: theirs have no dot (`SESSION_PATTERN`)."""

ONCE_LEASE_MS: Final = 24 * 3_600_000
"""Of a sandbox that goes with its one command, however long that takes."""
WAIT_SECONDS: Final = 20.0
"""One wait for a command's end; then it is asked for again."""
AGAIN_SECONDS: Final = 1.0
"""Between tries to remove a session."""
DEAD_WITH_ALL: Final = frozenset({End.TIMED_OUT, End.SANDBOX_LOST})
"""Ends of a command that its session does not outlive: it is told when that is gone."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator decides about commands."""

    python_image: str = "python:slim"
    terminal_image: str = "python:slim"
    lease: LeaseRule = field(default_factory=LeaseRule)
    output_limit: int = 1024 * 1024
    """Bytes of each stream in a result, and of a file that is read."""
    most_sessions: int = 64


def labels_of(capability: Capability) -> Mapping[str, str]:
    """Of a container, as the contract names them."""
    return {
        "onlyboxes.managed": "true",
        "onlyboxes.capability": capability.value,
        "onlyboxes.runtime": "worker-docker",
    }


async def echo(dispatch: Dispatch) -> Answer:
    """Byte for byte: it is not even looked at."""
    return Answer(dispatch.payload_json)


class Programs:
    """pythonExec and terminalExec, over the sessions of this machine."""

    def __init__(self, sessions: Sessions, rules: Rules, making: Making | None = None) -> None:
        self._sessions = sessions
        self._rules = rules
        self._making = making or Making(sessions, rules.most_sessions)

    def handlers(self) -> Mapping[str, Handler]:
        return {
            Capability.ECHO.value: echo,
            Capability.PYTHON_EXEC.value: self.python_exec,
            Capability.TERMINAL_EXEC.value: self.terminal_exec,
        }

    # --- pythonExec ----------------------------------------------------------------------------------------

    async def python_exec(self, dispatch: Dispatch) -> Answer:
        """In a sandbox of its own. Nothing runs in it any more when the answer comes. Where the command was cancelled,
        or its time was over, it is gone by then, and else soon after."""
        asked = read(PythonExec, dispatch.payload_json)
        name = self._own_session(dispatch)
        wish = _program(dispatch, (*PYTHON, asked.code))
        process = self._sessions.begun(name, wish)
        async with self._gone_else(name, dispatch.command_id):
            witness().session = self._there(name)
            if process is None:
                witness().session = await self._sessions.create(self._once(dispatch, name))
                process = await self._sessions.start(name, wish)
            while process.outcome is None:
                process = await self._sessions.ended(dispatch.command_id, WAIT_SECONDS)
            ended = await self._ended(process)
            if process.outcome.end in DEAD_WITH_ALL:
                await self._remove(name, dispatch.command_id)
            else:
                self._sessions.let_go(dispatch.command_id)
        result = PythonExecResult(
            output=ended.stdout,
            stderr=ended.stderr,
            exit_code=ended.exit_code,
            output_truncated=ended.stdout_truncated,
            stderr_truncated=ended.stderr_truncated,
        )
        return Answer(written(result))

    def _own_session(self, dispatch: Dispatch) -> SessionName:
        """A name that no caller can say: whoever came in beside the code could print what its receipt then covers. What
        the version before began has one that was not so."""
        process = self._process(dispatch.command_id)
        guessable = SessionName(dispatch.owner, f"python-{dispatch.command_id}")
        if process is not None and process.name == guessable:
            return guessable
        return SessionName(dispatch.owner, f"{UNSPEAKABLE}python-{dispatch.command_id}")

    def _once(self, dispatch: Dispatch, name: SessionName) -> SessionWish:
        return SessionWish(
            name=name,
            image=self._rules.python_image,
            lease_ms=ONCE_LEASE_MS,
            limits=FLOOR,
            labels=labels_of(Capability.PYTHON_EXEC),
            once=True,
            waiting=waiting.PYTHON,
            made_by=dispatch.command_id,
        )

    @contextlib.asynccontextmanager
    async def _gone_else(self, name: SessionName, command_id: str) -> AsyncIterator[None]:
        """Remove a session where its command comes to no answer, unless the next process is to go on with it."""
        try:
            yield
        except asyncio.CancelledError:
            if not is_let_go():
                await self._remove(name, command_id)
            raise
        except BaseException:
            await self._remove(name, command_id)
            raise

    # --- terminalExec --------------------------------------------------------------------------------------

    async def terminal_exec(self, dispatch: Dispatch) -> Answer:
        """While it runs its session is used, and so the lease does not run out under it."""
        asked = read(TerminalExec, dispatch.payload_json)
        lease_ms = self._rules.lease.milliseconds(asked.lease_ttl_sec)
        name = SessionName(dispatch.owner, asked.session_id or f"terminal-{dispatch.command_id}")
        wish = _program(dispatch, (*SHELL, asked.command))
        begun = self._sessions.begun(name, wish)
        session = self._there(name) if begun else await self._found_or_made(dispatch, asked, name, lease_ms)
        async with self._held(dispatch, begun, name):
            session = await self._extended(name, lease_ms) or session
            witness().session = session
            process = begun or await self._sessions.start(name, wish)
            while process.outcome is None:
                process = await self._sessions.ended(dispatch.command_id, _pause(lease_ms))
                session = await self._extended(name, lease_ms) or session
            if process.outcome.end in DEAD_WITH_ALL:
                await self._remove(name, dispatch.command_id)
        ended = await self._ended(process)
        result = TerminalExecResult(
            session_id=name.session_id,
            created=session.made_by == dispatch.command_id if session else asked.session_id is None,
            stdout=ended.stdout,
            stderr=ended.stderr,
            exit_code=ended.exit_code,
            stdout_truncated=ended.stdout_truncated,
            stderr_truncated=ended.stderr_truncated,
            lease_expires_unix_ms=session.lease_expires_ms if session else process.started_ms + lease_ms,
        )
        return Answer(written(result))

    async def _found_or_made(
        self, dispatch: Dispatch, asked: TerminalExec, name: SessionName, lease_ms: int
    ) -> SessionFacts:
        if asked.session_id is not None and not asked.create_if_missing:
            return self._sessions.get(name)
        wish = SessionWish(
            name=name,
            image=self._rules.terminal_image,
            lease_ms=lease_ms,
            limits=FLOOR,
            labels=labels_of(Capability.TERMINAL_EXEC),
            made_by=dispatch.command_id,
        )
        try:
            return await self._making.create(wish)
        except asyncio.CancelledError:
            if not is_let_go() and self._sessions.made_by(name) == dispatch.command_id:
                await self._remove(name, dispatch.command_id)
            raise

    @contextlib.asynccontextmanager
    async def _held(self, dispatch: Dispatch, begun: ProcessFacts | None, name: SessionName) -> AsyncIterator[None]:
        """The session is this command's until that has ended. Where the command is cancelled, or its end cannot be
        waited for, the session goes with it: nothing is told of what may still run."""
        with contextlib.ExitStack() as held:
            try:
                self._hold(held, dispatch, begun, name)
                yield
            except asyncio.CancelledError:
                if not is_let_go():
                    await self._remove(name, dispatch.command_id)
                raise
            except BaseException:
                if self._runs(dispatch.command_id):
                    await self._remove(name, dispatch.command_id)
                raise

    def _hold(
        self, held: contextlib.ExitStack, dispatch: Dispatch, begun: ProcessFacts | None, name: SessionName
    ) -> None:
        if begun is not None and begun.outcome is not None:
            return
        try:
            held.enter_context(self._sessions.exclusive(name, dispatch.command_id))
        except CommandFailedError as error:
            if begun is None or error.reason != Reason.SESSION_NOT_FOUND:
                raise  # else the session is being removed, and the command's end comes with that

    async def _extended(self, name: SessionName, lease_ms: int) -> SessionFacts | None:
        """None: it is gone, its time is over, or this could not be stored. Who waits for a command tries again."""
        try:
            return await self._sessions.extend(name, lease_ms)
        except LedgerError as error:
            _log.warning("session.not_extended", session_id=name.session_id, code=error.code)
            return None
        except CommandFailedError as error:
            if error.reason != Reason.SESSION_NOT_FOUND:
                raise
            return None

    # --- both ----------------------------------------------------------------------------------------------

    def _there(self, name: SessionName) -> SessionFacts | None:
        try:
            return self._sessions.get(name)
        except CommandFailedError:
            return None

    def _process(self, command_id: str) -> ProcessFacts | None:
        try:
            return self._sessions.process(command_id)
        except CommandFailedError:
            return None

    def _runs(self, command_id: str) -> bool:
        process = self._process(command_id)
        return process is not None and process.outcome is None

    async def _ended(self, process: ProcessFacts) -> Ended:
        try:
            captured = await self._sessions.captured(process.command_id)
        except CommandFailedError:
            raise CommandFailedError(Reason.EXECUTION_FAILED, OUTPUT_GONE) from None
        ended = ended_of(process, captured, self._rules.output_limit)
        witness().texts = (ended.stdout, ended.stderr)
        return ended

    async def _remove(self, name: SessionName, command_id: str) -> None:
        """However long it takes: a command that may still run keeps its slot."""
        await in_any_case(self._removed(name, command_id))

    async def _removed(self, name: SessionName, command_id: str) -> None:
        """The session that the command ran in, not another one that has its name by now."""
        while True:
            try:
                if self._process(command_id) is not None:
                    return await self._sessions.remove_with(command_id)
                return await self._sessions.remove(name)
            except SandboxError as error:
                _log.warning("session.not_removed", session_id=name.session_id, code=error.code)
                await asyncio.sleep(AGAIN_SECONDS)


def _program(dispatch: Dispatch, argv: tuple[str, ...]) -> ProcessWish:
    return ProcessWish(dispatch.command_id, argv, timeout_ms=dispatch.timeout_ms)


def _pause(lease_ms: int) -> float:
    """Until a lease is renewed: well before it ends."""
    return min(WAIT_SECONDS, lease_ms / 3000)
