"""Files of a sandbox, through its warden: the same frames, window and deadline as any command."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

from fumehood.errors import FileOperationError, SandboxLostError
from fumehood.sandbox.capture import STDOUT, Capture
from fumehood.sandbox.driver import FileInfo, FileKind, Sink
from fumehood.sandbox.spec import End, Outcome, User
from fumehood.sandbox.warden import frames
from fumehood.sandbox.warden.frames import Flag, Kind, WireCommand

Runner = Callable[[WireCommand, Sink, bytes], Awaitable[Outcome]]
"""Runs one command of the warden under a fresh id and settles it."""

FILE_SECONDS = 60
NO_FLAGS = Flag(0)
LISTING_BYTES = 32 * 1024 * 1024

_KINDS = {1: FileKind.FILE, 2: FileKind.FOLDER, 3: FileKind.LINK, 4: FileKind.OTHER}


class WardenFiles:
    """Implements `driver.Files` over a way to run a warden's command."""

    def __init__(self, run: Runner, *, root: str, user: User) -> None:
        self._run = run
        self._root = root
        self._user = user

    async def read(self, path: str, *, limit: int) -> bytes:
        """At most `limit` bytes; a longer file is an error rather than a silent half."""
        capture = Capture(limit + 1)
        await self._do(self._command(Kind.READ, path, length=limit + 1), capture)
        data = capture.kept(STDOUT)
        if len(data) > limit:
            raise FileOperationError(f"the file is larger than {limit} bytes", errno=27)
        return data

    async def write(self, path: str, data: bytes, *, mode: int = 0o644, parents: bool = False) -> None:
        flags = Flag.STDIN | (Flag.RECURSIVE if parents else NO_FLAGS)
        await self._do(self._command(Kind.WRITE, path, flags, mode=mode), Capture(0), data)

    async def list(self, path: str) -> list[FileInfo]:
        capture = Capture(LISTING_BYTES)
        await self._do(self._command(Kind.LIST, path), capture)
        return [_info(record) for record in frames.parse_records(capture.kept(STDOUT))]

    async def stat(self, path: str) -> FileInfo:
        capture = Capture(LISTING_BYTES)
        await self._do(self._command(Kind.STAT, path), capture)
        return _info(frames.parse_records(capture.kept(STDOUT))[0])

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        flags = Flag.RECURSIVE if recursive else NO_FLAGS
        await self._do(self._command(Kind.REMOVE, path, flags), Capture(0))

    async def mkdir(self, path: str, *, mode: int = 0o755, parents: bool = False) -> None:
        flags = Flag.RECURSIVE if parents else NO_FLAGS
        await self._do(self._command(Kind.MKDIR, path, flags, mode=mode), Capture(0))

    def _command(self, kind: Kind, path: str, flags: Flag = NO_FLAGS, *, mode: int = 0, length: int = 0) -> WireCommand:
        if "\0" in path:
            raise FileOperationError("a path with a NUL byte", errno=22)
        return WireCommand(
            kind=kind,
            flags=flags,
            uid=self._user.uid,
            gid=self._user.gid,
            directory=self._root.encode(),
            argv=[path.encode("utf-8", "surrogateescape")],
            timeout_ms=FILE_SECONDS * 1000,
            mode=mode,
            length=length,
        )

    async def _do(self, command: WireCommand, sink: Sink, data: bytes = b"") -> None:
        outcome = await self._run(command, sink, data)
        if outcome.end is End.TIMED_OUT:
            raise FileOperationError("the operation took too long", errno=110)
        code = outcome.exit_code if outcome.end is End.EXITED else outcome.errno
        if code is None:
            raise SandboxLostError("the file operation was killed")
        if code != 0:
            raise FileOperationError(os.strerror(code), errno=code)


def _info(record: frames.FileRecord) -> FileInfo:
    return FileInfo(
        name=record.name.decode("utf-8", "surrogateescape"),
        kind=_KINDS.get(record.kind, FileKind.OTHER),
        mode=record.mode,
        uid=record.uid,
        gid=record.gid,
        size=record.size,
        modified_ms=record.modified_ms,
    )
