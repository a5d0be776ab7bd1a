"""A worker whose sandboxes are in memory: it says what a real one says, and does nothing to this machine.

Commands are words that it understands itself, separated by `;`: `echo x`, `err x`, `print N` (bytes), `exit N`, `cat`
(stdin to stdout), `wait` (until the test lets it go on) and `sleep` (until a signal).
"""

from __future__ import annotations

import asyncio
import json
import os
import posixpath
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fumehood.control.callers import ADMIN
from fumehood.control.console.assembly import ConsoleDesk
from fumehood.control.console.ports import Held, OutletClosedError
from fumehood.errors import CommandFailedError
from fumehood.wire.console import sessions as wire
from fumehood.wire.console.codes import Capability, Reason
from fumehood.wire.console.console_pb2 import Capability as Declared
from fumehood.wire.console.console_pb2 import ConsoleFrame, Declaration, Dispatch, Error, Result, WorkerFrame
from fumehood.wire.console.hello import sign_hello
from fumehood.wire.console.sessions import CallModel, CommandStatus, Method
from tests.waiting import past

WINDOW = 64 * 1024
"""Bytes of input that a command takes before it has read any."""
BEGAN_MS = 1_771_243_200_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class Process:
    command_id: str
    session_id: str
    argv: tuple[str, ...]
    terminal: bool
    stdin: bytearray = field(default_factory=bytearray)
    read: int = 0
    eof: bool = True
    printed: dict[int, bytearray] = field(default_factory=lambda: {1: bytearray(), 2: bytearray()})
    order: list[tuple[int, int, int]] = field(default_factory=list)
    forgotten: int = 0
    """Bytes of stdout that were not kept."""
    size: tuple[int, int] = (0, 0)
    status: CommandStatus = CommandStatus.RUNNING
    exit_code: int | None = None
    signal: int | None = None
    may_go_on: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    def print(self, stream: int, data: bytes) -> None:
        self.order.append((stream, len(self.printed[stream]), len(data)))
        self.printed[stream] += data
        self.change()

    def change(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    async def until(self, holds: Callable[[], bool], seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not holds():
                    await self.changed.wait()

    def end(self, status: CommandStatus, *, code: int | None = None, signal: int | None = None) -> None:
        if self.status is CommandStatus.RUNNING:
            self.status, self.exit_code, self.signal = status, code, signal
            self.change()

    def view(self) -> wire.CommandView:
        return wire.CommandView(
            command_id=self.command_id,
            session_id=self.session_id,
            status=self.status,
            exit_code=self.exit_code,
            signal=self.signal,
            started_unix_ms=BEGAN_MS,
            ended_unix_ms=None if self.status is CommandStatus.RUNNING else BEGAN_MS + 1500,
            stdout_bytes=len(self.printed[1]),
            stderr_bytes=len(self.printed[2]),
            stdin_bytes=len(self.stdin),
            argv=self.argv,
            terminal=self.terminal,
        )

    def pieces(self, asked: wire.AskOutput) -> tuple[list[wire.OutputPiece], bytes]:
        seen, found, data = {1: max(asked.stdout, self.forgotten), 2: asked.stderr}, [], b""
        for stream, offset, length in self.order:
            begin = max(offset, seen[stream])
            some = bytes(self.printed[stream][begin : offset + length])[: asked.limit - len(data)]
            if some and begin < offset + length:
                found.append(wire.OutputPiece(stream=stream, offset=begin, length=len(some)))
                data += some
        return found, data

    async def work(self, words: str) -> None:
        for step in words.split(";"):
            name, _, rest = step.strip().partition(" ")
            match name:
                case "echo" | "err":
                    self.print(1 if name == "echo" else 2, f"{rest}\n".encode())
                case "print":
                    self.print(1, b"x" * int(rest))
                case "cat":
                    await self._cat()
                case "wait":
                    await self.may_go_on.wait()
                case "sleep":
                    await asyncio.Event().wait()
                case "exit":
                    self.end(CommandStatus.EXITED, code=int(rest))
                    return
        self.end(CommandStatus.EXITED, code=0)

    async def _cat(self) -> None:
        while True:
            await self.until(lambda: len(self.stdin) > self.read or self.eof, 60)
            some = bytes(self.stdin[self.read :])
            self.read += len(some)
            if some:
                self.print(1, some)
            elif self.eof:
                return


@dataclass
class Session:
    session_id: str
    wish: wire.CreateSession
    lease_ms: int
    files: dict[str, bytes | None] = field(default_factory=lambda: {"/": None, "/workspace": None})
    """None: a folder."""
    modes: dict[str, int] = field(default_factory=dict)
    uploads: dict[str, bytearray] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)

    def view(self) -> wire.SessionView:
        running = [one for one in self.processes.values() if one.status is CommandStatus.RUNNING]
        return wire.SessionView(
            session_id=self.session_id,
            image=self.wish.image or "python:slim",
            image_digest="sha256:" + "1" * 64,
            created_unix_ms=BEGAN_MS,
            lease_expires_unix_ms=self.lease_ms,
            network=self.wish.network,
            runtime="runc",
            running_commands=len(running),
            made_by=self.wish.made_by,
        )

    def info(self, path: str) -> wire.FileView:
        content = self.files[path]
        return wire.FileView(
            name=posixpath.basename(path) or "/",
            kind="folder" if content is None else "file",
            size_bytes=_stat_size(path, content),
            mode=self.modes.get(path, 0o755 if content is None else 0o644),
            uid=65532,
            gid=65532,
            modified_unix_ms=BEGAN_MS,
        )


def _stat_size(path: str, content: bytes | None) -> int:
    """The kernel's own files have a size of 0 or of a page, whatever can be read from them."""
    if path.startswith("/sys/"):
        return 4096
    return 0 if content is None or path.startswith("/proc/") else len(content)


def failed(reason: Reason, words: str = "as the worker says") -> CommandFailedError:
    return CommandFailedError(reason, words)


@dataclass
class MemoryWorker:
    """Implements `Outlet`."""

    worker_id: str = "w1"
    sessions: dict[tuple[str, str], Session] = field(default_factory=dict)
    commands: dict[str, Process] = field(default_factory=dict)
    """Of the contract's capabilities, which name no session here."""
    failing: Reason | None = None
    """What every call is answered with."""
    calls: list[str] = field(default_factory=list)
    largest: int = 0
    """Bytes that came with one call."""
    receipt: bytes = b""
    """What it says that it signed, with every result."""
    refuses_input: bool = False
    has_ended: bool = False
    """Its sandboxes have, and it has not seen that yet."""
    answers_create: asyncio.Event | None = None
    """Until it is set, sandboxes are made, and nobody is told."""
    held: Held | None = None
    closed: bool = False
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def connect(self, desk: ConsoleDesk, capabilities: dict[str, int] | None = None) -> None:
        _, secret = await desk.credentials.create(self.worker_id, {}, ADMIN)
        most = dict.fromkeys(Capability, 4) if capabilities is None else capabilities
        declared = Declaration(
            capabilities=[Declared(name=name, max_inflight=number) for name, number in most.items()],
            max_session_calls=256,
        )
        hello = sign_hello(self.worker_id, secret, declared.SerializeToString(), now_ms(), os.urandom(16))
        self.held = await desk.console.welcome(hello, self)

    async def leave(self) -> None:
        self.closed = True
        for task in [*self._tasks.values()]:
            task.cancel()
        if self.held is not None:
            await self.held.gone()

    # --- the stream ----------------------------------------------------------------------------------------

    def send(self, frame: ConsoleFrame) -> None:
        if self.closed:
            raise OutletClosedError
        if frame.WhichOneof("frame") == "dispatch":
            dispatch = frame.dispatch
            self.calls.append(dispatch.capability)
            self.largest = max(self.largest, len(dispatch.data))
            task = asyncio.create_task(self._serve(dispatch))
            self._tasks[dispatch.command_id] = task
            task.add_done_callback(lambda _: self._tasks.pop(dispatch.command_id, None))
        elif frame.WhichOneof("frame") == "cancel" and frame.cancel.command_id in self.commands:
            self.commands[frame.cancel.command_id].end(CommandStatus.TIMED_OUT, signal=9)

    def close(self, code: str, detail: str) -> None:
        self.closed = True

    async def _serve(self, dispatch: Dispatch) -> None:
        result = Result(command_id=dispatch.command_id, receipt=self.receipt)
        try:
            if self.failing is not None:
                raise failed(self.failing)
            result.payload_json, result.data = await self._done(dispatch)
        except CommandFailedError as error:
            result.error.CopyFrom(Error(code=error.reason, message=error.detail))
        assert self.held is not None
        await self.held.take(WorkerFrame(result=result))

    async def _done(self, dispatch: Dispatch) -> tuple[bytes, bytes]:
        if dispatch.capability == Capability.ECHO:
            return dispatch.payload_json, b""
        if not dispatch.capability.startswith("session."):
            return await self._command(dispatch)
        method, kind = _METHODS[Method(dispatch.capability)]
        asked = kind.model_validate_json(dispatch.payload_json)
        found = await getattr(self, method)(dispatch.owner, asked, dispatch.data)
        answer, data = found if isinstance(found, tuple) else (found, b"")
        return answer.model_dump_json().encode(), data

    async def _command(self, dispatch: Dispatch) -> tuple[bytes, bytes]:
        said = json.loads(dispatch.payload_json)
        if not isinstance(said, dict):
            raise failed(Reason.INVALID_PAYLOAD, "the payload must be an object")
        process = Process(dispatch.command_id, str(said.get("session_id", "")), ("sh",), terminal=False)
        self.commands[dispatch.command_id] = process
        words = str(said.get("command") or said.get("code") or "")
        process.task = asyncio.create_task(process.work(words))
        await process.until(lambda: process.status is not CommandStatus.RUNNING, dispatch.timeout_ms / 1000 or 60)
        if process.status is not CommandStatus.EXITED:
            process.end(CommandStatus.TIMED_OUT, signal=9)
            process.task.cancel()
            raise failed(Reason.DEADLINE_EXCEEDED, "it took too long")
        out, err = (bytes(process.printed[stream]).decode() for stream in (1, 2))
        return json.dumps({"output": out, "stderr": err, "exit_code": process.exit_code}).encode(), b""

    # --- session calls -------------------------------------------------------------------------------------

    def _session(self, owner: str, session_id: str) -> Session:
        if (owner, session_id) not in self.sessions:
            raise failed(Reason.SESSION_NOT_FOUND)
        return self.sessions[owner, session_id]

    def _process(self, owner: str, asked: Any) -> Process:
        known = self.commands if asked.session_id is None else self._session(owner, asked.session_id).processes
        if asked.command_id not in known:
            raise failed(Reason.COMMAND_NOT_FOUND)
        return known[asked.command_id]

    async def create(self, owner: str, asked: wire.CreateSession, _: bytes) -> wire.SessionView:
        seconds = asked.lease_ttl_sec or 60
        if not 60 <= seconds <= 1800:
            raise failed(Reason.INVALID_PAYLOAD, "lease_ttl_sec: must be 60 to 1800")
        made = Session(asked.session_id, asked, now_ms() + 1000 * seconds)
        session = self.sessions.setdefault((owner, asked.session_id), made)
        if session.wish.image != asked.image:
            raise failed(Reason.INVALID_PAYLOAD, "of another image")
        if self.answers_create is not None:
            await self.answers_create.wait()
        return session.view()

    async def show(self, owner: str, asked: wire.SessionRef, _: bytes) -> wire.SessionView:
        return self._session(owner, asked.session_id).view()

    async def extend(self, owner: str, asked: wire.ExtendSession, _: bytes) -> wire.SessionView:
        session = self._session(owner, asked.session_id)
        session.lease_ms = max(session.lease_ms, now_ms() + 1000 * asked.lease_ttl_sec)
        return session.view()

    async def remove(self, owner: str, asked: wire.RemoveSession, _: bytes) -> wire.Done:
        session = self._session(owner, asked.session_id)
        if asked.made_by not in (None, session.wish.made_by):
            raise failed(Reason.SESSION_NOT_FOUND)
        for process in session.processes.values():
            process.end(CommandStatus.SANDBOX_LOST)
        del self.sessions[owner, asked.session_id]
        return wire.Done()

    async def start(self, owner: str, asked: wire.StartCommand, _: bytes) -> tuple[wire.CommandView, bytes]:
        session = self._session(owner, asked.session_id)
        if asked.command_id not in session.processes:
            words = asked.shell if asked.shell is not None else " ".join(asked.argv or ())
            argv = ("sh", "-c", words) if asked.shell is not None else asked.argv or ()
            process = Process(asked.command_id, asked.session_id, argv, terminal=asked.terminal is not None)
            process.eof = not asked.stdin
            if asked.terminal is not None:
                process.size = (asked.terminal.rows, asked.terminal.columns)
            session.processes[asked.command_id] = process
            process.task = asyncio.create_task(self._timed(process, words, asked.timeout_ms))
        process = session.processes[asked.command_id]
        await process.until(lambda: process.status is not CommandStatus.RUNNING, asked.wait_ms / 1000)
        printed = b"".join(map(bytes, process.printed.values())) if asked.wait_ms else b""
        is_told = process.status is not CommandStatus.RUNNING and len(printed) <= wire.START_OUTPUT_BYTES
        return process.view(), printed if is_told and not process.forgotten else b""

    async def _timed(self, process: Process, words: str, timeout_ms: int) -> None:
        try:
            async with asyncio.timeout(timeout_ms / 1000 if timeout_ms else None):
                await process.work(words)
        except TimeoutError:
            process.end(CommandStatus.TIMED_OUT, signal=9)

    async def command(self, owner: str, asked: wire.AskCommand, _: bytes) -> wire.CommandView:
        process = self._process(owner, asked)
        await process.until(lambda: process.status is not CommandStatus.RUNNING, asked.wait_ms / 1000)
        return process.view()

    async def list_commands(self, owner: str, asked: wire.SessionRef, _: bytes) -> wire.CommandViews:
        processes = self._session(owner, asked.session_id).processes.values()
        return wire.CommandViews(commands=tuple(one.view() for one in processes))

    async def output(self, owner: str, asked: wire.AskOutput, _: bytes) -> tuple[wire.Output, bytes]:
        process = self._process(owner, asked)
        await process.until(
            lambda: bool(process.pieces(asked)[0]) or process.status is not CommandStatus.RUNNING, asked.wait_ms / 1000
        )
        pieces, data = process.pieces(asked)
        is_over = process.status is not CommandStatus.RUNNING and not pieces
        return wire.Output(pieces=tuple(pieces), ended=process.view() if is_over else None), data

    async def input(self, owner: str, asked: wire.SendInput, data: bytes) -> wire.InputTaken:
        process = self._process(owner, asked)
        if self.refuses_input:
            raise failed(Reason.EXECUTION_FAILED, "the input cannot be stored")
        new = data[len(process.stdin) - asked.offset :]
        room = WINDOW - (len(process.stdin) - process.read)
        process.stdin += new[:room]
        process.eof = asked.eof and len(new) <= room
        process.change()
        if len(new) > room:
            await past(0.01)  # as one that waits for room
        return wire.InputTaken(stdin_bytes=len(process.stdin))

    async def resize(self, owner: str, asked: wire.ResizeTerminal, _: bytes) -> wire.Done:
        self._process(owner, asked).size = (asked.rows, asked.columns)
        return wire.Done()

    async def signal(self, owner: str, asked: wire.SendSignal, _: bytes) -> wire.Done:
        self._process(owner, asked).end(CommandStatus.SIGNALED, signal=asked.signal)
        return wire.Done()

    # --- files ---------------------------------------------------------------------------------------------

    def _file(self, owner: str, asked: wire.FileRef) -> tuple[Session, str]:
        session, path = self._session(owner, asked.session_id), posixpath.join("/workspace", asked.path)
        path = posixpath.normpath(path)
        if path not in session.files:
            raise failed(Reason.FILE_NOT_FOUND)
        return session, path

    async def read_file(self, owner: str, asked: wire.ReadFile, _: bytes) -> tuple[wire.FilePiece, bytes]:
        session, path = self._file(owner, asked)
        content = session.files[path]
        if content is None:
            raise failed(Reason.PATH_IS_DIRECTORY)
        kind = "text/html" if path.endswith(".html") else "application/octet-stream"
        piece = wire.FilePiece(offset=asked.offset, size_bytes=len(content), mime_type=kind)
        return piece, content[asked.offset : asked.offset + asked.limit]

    async def write_file(self, owner: str, asked: wire.WriteFile, data: bytes) -> wire.Written:
        session = self._session(owner, asked.session_id)
        path = posixpath.normpath(posixpath.join("/workspace", asked.path))
        if session.files.get(path, b"") is None:
            raise failed(Reason.PATH_IS_DIRECTORY)
        if not asked.parents and posixpath.dirname(path) not in session.files:
            raise failed(Reason.FILE_NOT_FOUND)
        upload = session.uploads.setdefault(asked.upload_id, bytearray())
        upload[asked.offset :] = data
        if asked.last:
            session.files[path] = bytes(session.uploads.pop(asked.upload_id))
            session.modes[path] = asked.mode
        return wire.Written(received=asked.offset + len(data))

    async def list_files(self, owner: str, asked: wire.FileRef, _: bytes) -> wire.FileViews:
        session, path = self._file(owner, asked)
        inside = [one for one in session.files if posixpath.dirname(one) == path and one != path]
        return wire.FileViews(files=tuple(session.info(one) for one in inside))

    async def stat_file(self, owner: str, asked: wire.FileRef, _: bytes) -> wire.FileView:
        if self.has_ended:
            raise failed(Reason.EXECUTION_FAILED, "the sandbox has ended")
        session, path = self._file(owner, asked)
        return session.info(path)

    async def remove_file(self, owner: str, asked: wire.RemoveFile, _: bytes) -> wire.Done:
        session, path = self._file(owner, asked)
        below = [one for one in session.files if one.startswith(f"{path}/")]
        if below and not asked.recursive:
            raise failed(Reason.FILE_ERROR, "the folder is not empty")
        for one in (path, *below):
            del session.files[one]
        return wire.Done()

    async def make_folder(self, owner: str, asked: wire.MakeFolder, _: bytes) -> wire.Done:
        path = posixpath.normpath(posixpath.join("/workspace", asked.path))
        session = self._session(owner, asked.session_id)
        session.files[path], session.modes[path] = None, asked.mode
        return wire.Done()


_METHODS: dict[Method, tuple[str, type[CallModel]]] = {
    Method.CREATE: ("create", wire.CreateSession),
    Method.SHOW: ("show", wire.SessionRef),
    Method.EXTEND: ("extend", wire.ExtendSession),
    Method.REMOVE: ("remove", wire.RemoveSession),
    Method.START: ("start", wire.StartCommand),
    Method.COMMAND: ("command", wire.AskCommand),
    Method.COMMANDS: ("list_commands", wire.SessionRef),
    Method.OUTPUT: ("output", wire.AskOutput),
    Method.INPUT: ("input", wire.SendInput),
    Method.RESIZE: ("resize", wire.ResizeTerminal),
    Method.SIGNAL: ("signal", wire.SendSignal),
    Method.READ_FILE: ("read_file", wire.ReadFile),
    Method.WRITE_FILE: ("write_file", wire.WriteFile),
    Method.LIST_FILES: ("list_files", wire.FileRef),
    Method.STAT_FILE: ("stat_file", wire.FileRef),
    Method.REMOVE_FILE: ("remove_file", wire.RemoveFile),
    Method.MAKE_FOLDER: ("make_folder", wire.MakeFolder),
}
