"""Session calls: what a server asks of the sessions on this machine, and what they answer.

Whoever asks has a name (the dispatch's owner), and sees only what bears it: the sessions of another, and the commands
in them, are not found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from fumehood.errors import CommandFailedError, FumehoodError
from fumehood.node.console.capabilities import FLOOR, SHELL, Rules, labels_of
from fumehood.node.console.duty import Answer, Handler
from fumehood.node.console.making import Making
from fumehood.node.console.telling import detail_of
from fumehood.sandbox.sessions.sessions import Sessions
from fumehood.sandbox.sessions.values import ProcessFacts, ProcessWish, SessionFacts, SessionName, SessionWish
from fumehood.sandbox.spec import MIB, Limits
from fumehood.wire.console import sessions as wire
from fumehood.wire.console.codes import Capability, Reason
from fumehood.wire.console.console_pb2 import Dispatch
from fumehood.wire.console.payloads import read, written
from fumehood.wire.console.sessions import START_OUTPUT_BYTES, CommandStatus, Method

MOST_WAITING_STARTS: Final = 16
"""Starts that wait for the end of their commands. Each holds one of the worker's 256 places for calls; one more is
answered at once."""


class SessionCalls:
    """All but those about files."""

    def __init__(self, sessions: Sessions, rules: Rules, making: Making | None = None) -> None:
        self._sessions = sessions
        self._rules = rules
        self._making = making or Making(sessions, rules.most_sessions)
        self._waiting_starts = 0

    def handlers(self) -> Mapping[str, Handler]:
        return {
            Method.CREATE.value: self.create,
            Method.SHOW.value: self.show,
            Method.EXTEND.value: self.extend,
            Method.REMOVE.value: self.remove,
            Method.START.value: self.start,
            Method.COMMAND.value: self.command,
            Method.COMMANDS.value: self.commands,
            Method.OUTPUT.value: self.output,
            Method.INPUT.value: self.input,
            Method.RESIZE.value: self.resize,
            Method.SIGNAL.value: self.signal,
        }

    # --- sessions ------------------------------------------------------------------------------------------

    async def create(self, dispatch: Dispatch) -> Answer:
        asked = read(wire.CreateSession, dispatch.payload_json)
        lease_ms = self._rules.lease.milliseconds(asked.lease_ttl_sec)
        wish = SessionWish(
            name=SessionName(dispatch.owner, asked.session_id),
            image=asked.image or self._rules.terminal_image,
            lease_ms=lease_ms,
            network=asked.network,
            limits=limits_of(asked.memory_mib, asked.cpu_millis),
            env=asked.env,
            labels=labels_of(Capability.TERMINAL_EXEC),
            made_by=asked.made_by,
        )
        made = await self._making.create(wish)
        pairs = {
            "image": (made.image, wish.image),
            "network": (made.network, wish.network),
            "size": (made.limits, wish.limits),
            "environment": (made.env, wish.env),
        }
        other = [name for name, (has, wants) in pairs.items() if has != wants]
        if other:
            raise CommandFailedError(
                Reason.INVALID_PAYLOAD,
                f"there is a session {asked.session_id} already, with another {' and '.join(other)}: "
                "choose another name, or end it first",
            )
        return _session(await self._sessions.extend(wish.name, lease_ms))

    async def show(self, dispatch: Dispatch) -> Answer:
        asked = read(wire.SessionRef, dispatch.payload_json)
        return _session(self._sessions.get(SessionName(dispatch.owner, asked.session_id)))

    async def extend(self, dispatch: Dispatch) -> Answer:
        asked = read(wire.ExtendSession, dispatch.payload_json)
        lease_ms = self._rules.lease.milliseconds(asked.lease_ttl_sec)
        return _session(await self._sessions.extend(SessionName(dispatch.owner, asked.session_id), lease_ms))

    async def remove(self, dispatch: Dispatch) -> Answer:
        asked = read(wire.RemoveSession, dispatch.payload_json)
        name = SessionName(dispatch.owner, asked.session_id)
        if asked.made_by is not None and self._sessions.made_by(name) != asked.made_by:
            raise CommandFailedError(Reason.SESSION_NOT_FOUND, f"this request made no session {asked.session_id}")
        await self._sessions.remove(name)
        return _done()

    # --- commands ------------------------------------------------------------------------------------------

    async def start(self, dispatch: Dispatch) -> Answer:
        asked = read(wire.StartCommand, dispatch.payload_json)
        name = SessionName(dispatch.owner, asked.session_id)
        wish = ProcessWish(
            command_id=asked.command_id,
            argv=_argv(asked),
            env=asked.env,
            cwd=asked.cwd,
            timeout_ms=asked.timeout_ms,
            terminal=(asked.terminal.rows, asked.terminal.columns) if asked.terminal else None,
            stdin=asked.stdin,
        )
        facts = await self._sessions.start(name, wish)
        if asked.wait_ms and facts.outcome is None and self._waiting_starts < MOST_WAITING_STARTS:
            self._waiting_starts += 1
            try:
                facts = await self._sessions.ended(asked.command_id, asked.wait_ms / 1000)
            finally:
                self._waiting_starts -= 1
        output = await self._whole_output(facts) if asked.wait_ms else b""
        return Answer(written(command_view(facts)), output)

    async def _whole_output(self, facts: ProcessFacts) -> bytes:
        """Of an ended command: stdout and then stderr, or nothing where that is too long or cannot be read. Nothing may
        fail here, or the start would pass for one that was refused."""
        total = facts.stdout_bytes + facts.stderr_bytes
        if facts.outcome is None or not 0 < total <= START_OUTPUT_BYTES:
            return b""
        try:
            pieces, _ = await self._sessions.output(facts.command_id, 0, 0, START_OUTPUT_BYTES)
        except (FumehoodError, OSError):
            return b""
        found = b"".join(piece.data for piece in sorted(pieces, key=lambda piece: (piece.stream, piece.offset)))
        return found if len(found) == total else b""

    async def command(self, dispatch: Dispatch) -> Answer:
        asked = read(wire.AskCommand, dispatch.payload_json)
        facts = self._command(dispatch, asked.command_id, asked.session_id)
        if asked.wait_ms and facts.outcome is None:
            facts = await self._sessions.ended(asked.command_id, asked.wait_ms / 1000)
        return Answer(written(command_view(facts)), receipt=facts.receipt.encode())

    async def commands(self, dispatch: Dispatch) -> Answer:
        asked = read(wire.SessionRef, dispatch.payload_json)
        found = self._sessions.processes(SessionName(dispatch.owner, asked.session_id))
        return Answer(written(wire.CommandViews(commands=tuple(map(command_view, found)))))

    async def output(self, dispatch: Dispatch) -> Answer:
        asked = read(wire.AskOutput, dispatch.payload_json)
        self._command(dispatch, asked.command_id, asked.session_id)
        pieces, ended = await self._sessions.output(
            asked.command_id, asked.stdout, asked.stderr, asked.limit, asked.wait_ms / 1000
        )
        view = wire.Output(
            pieces=tuple(
                wire.OutputPiece(stream=piece.stream, offset=piece.offset, length=len(piece.data)) for piece in pieces
            ),
            ended=command_view(ended) if ended is not None else None,
        )
        return Answer(written(view), b"".join(piece.data for piece in pieces))

    async def input(self, dispatch: Dispatch) -> Answer:
        asked = read(wire.SendInput, dispatch.payload_json)
        self._command(dispatch, asked.command_id, asked.session_id)
        taken = await self._sessions.send_input(asked.command_id, asked.offset, dispatch.data, asked.eof)
        return Answer(written(wire.InputTaken(stdin_bytes=taken)))

    async def resize(self, dispatch: Dispatch) -> Answer:
        asked = read(wire.ResizeTerminal, dispatch.payload_json)
        self._command(dispatch, asked.command_id, asked.session_id)
        await self._sessions.resize(asked.command_id, asked.rows, asked.columns)
        return _done()

    async def signal(self, dispatch: Dispatch) -> Answer:
        asked = read(wire.SendSignal, dispatch.payload_json)
        self._command(dispatch, asked.command_id, asked.session_id)
        await self._sessions.signal(asked.command_id, asked.signal, asked.everything)
        return _done()

    def _command(self, dispatch: Dispatch, command_id: str, session_id: str | None) -> ProcessFacts:
        """One of the asker's own; another's is not there."""
        facts = self._sessions.process(command_id)
        if facts.name.owner != dispatch.owner or session_id not in (None, facts.name.session_id):
            raise CommandFailedError(Reason.COMMAND_NOT_FOUND, f"there is no command {command_id}")
        return facts


def limits_of(memory_mib: int | None, cpu_millis: int | None) -> Limits:
    """What is not asked for is the contract's floor; files may take half of the memory."""
    limits = FLOOR
    if memory_mib is not None:
        half = memory_mib * MIB // 2
        limits = replace(limits, memory_bytes=memory_mib * MIB, workspace_bytes=half, file_bytes=half)
    return limits if cpu_millis is None else replace(limits, cpu_millis=cpu_millis)


def command_view(facts: ProcessFacts) -> wire.CommandView:
    outcome = facts.outcome
    return wire.CommandView(
        command_id=facts.command_id,
        session_id=facts.name.session_id,
        status=CommandStatus.RUNNING if outcome is None else CommandStatus(outcome.end.value),
        exit_code=outcome.exit_code if outcome else None,
        signal=outcome.signal if outcome else None,
        detail=detail_of(facts),
        started_unix_ms=facts.started_ms,
        ended_unix_ms=int(outcome.ended_at.timestamp() * 1000) if outcome else None,
        stdout_bytes=facts.stdout_bytes,
        stderr_bytes=facts.stderr_bytes,
        stdin_bytes=facts.stdin_bytes,
        argv=facts.argv,
        terminal=facts.terminal,
    )


def _session(facts: SessionFacts) -> Answer:
    view = wire.SessionView(
        session_id=facts.name.session_id,
        image=facts.image,
        image_digest=facts.image_digest,
        created_unix_ms=facts.created_ms,
        lease_expires_unix_ms=facts.lease_expires_ms,
        network=facts.network,
        runtime=facts.runtime,
        running_commands=facts.running,
        made_by=facts.made_by,
    )
    return Answer(written(view))


def _argv(asked: wire.StartCommand) -> tuple[str, ...]:
    if (asked.argv is None) == (asked.shell is None):
        raise CommandFailedError(Reason.INVALID_PAYLOAD, "give a program (argv), or words for the shell (shell)")
    if asked.shell is not None:
        return (*SHELL, asked.shell)
    if not asked.argv:
        raise CommandFailedError(Reason.INVALID_PAYLOAD, "argv: must not be empty")
    return asked.argv


def _done() -> Answer:
    return Answer(written(wire.Done()))
