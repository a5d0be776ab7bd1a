"""Files of a sandbox, through its warden: the same frames, window and deadline as any command."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace

from fumehood.errors import FileOperationError, InvalidRequestError, SandboxError, SandboxLostError
from fumehood.sandbox.capture import STDOUT, Capture
from fumehood.sandbox.driver import FileInfo, FileKind, Sink
from fumehood.sandbox.spec import End, Outcome, User
from fumehood.sandbox.warden import frames
from fumehood.sandbox.warden.frames import Flag, Kind, WireCommand

Content = bytes | AsyncIterator[bytes]
Runner = Callable[[WireCommand, Sink, Content], Awaitable[Outcome]]
"""Runs one command of the warden under a fresh id and settles it."""

FILE_SECONDS = 60
STREAM_SECONDS = 3600
"""For a file that comes piece by piece, as quickly as whoever sends it. An owner that goes away ends it sooner."""
SWEEP_SECONDS = 10.0
NO_FLAGS = Flag(0)
LISTING_BYTES = 4 * 1024 * 1024
"""Of a folder's entries. It is a sandbox that says them: they are bounded before they are looked at."""
MAX_OFFSET = 2**63 - 1

_KINDS = {1: FileKind.FILE, 2: FileKind.FOLDER, 3: FileKind.LINK, 4: FileKind.OTHER}
_TEMPORARY = re.compile(r"\.fh-[a-z]{12}")


@dataclass(slots=True, weakref_slot=True, eq=False)
class Writes:
    """The writes of one sandbox. A killed one leaves its temporary file behind: it goes when no write is under way."""

    under_way: int = 0
    littered: dict[tuple[str, str], WardenFiles] = field(default_factory=dict)
    """Folders, and a way to clean them."""


class WardenFiles:
    """Implements `driver.Files` over a way to run a warden's command."""

    def __init__(self, run: Runner, *, root: str, user: User, writes: Writes) -> None:
        self._run = run
        self._root = root
        self._user = user
        self._writes = writes

    async def read(self, path: str, *, limit: int) -> bytes:
        """At most `limit` bytes; a longer file is an error rather than a silent half."""
        data = await self._read(path, 0, limit + 1)
        if len(data) > limit:
            raise FileOperationError(f"the file is larger than {limit} bytes", errno=27)
        return data

    async def read_piece(self, path: str, offset: int, length: int) -> tuple[bytes, int]:
        if length < 0 or not 0 <= offset <= MAX_OFFSET:
            raise InvalidRequestError("a piece of a file has an offset and a length, neither of them below 0")
        data = (await self._read(path, offset, max(1, length)))[:length]  # 0 would be all of it
        if 0 < len(data) < length:
            return data, offset + len(data)  # that was its end
        return data, max(offset + len(data) if data else 0, (await self.stat(path)).size)

    async def _read(self, path: str, offset: int, length: int) -> bytes:
        capture = Capture(length)
        await self._do(replace(self._command(Kind.READ, path), offset=offset, length=length), capture)
        return capture.kept(STDOUT)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644, parents: bool = False) -> None:
        await self._write(path, data, replace(self._command(Kind.WRITE, path, _write_flags(parents)), mode=mode))

    async def write_stream(
        self, path: str, pieces: AsyncIterator[bytes], *, mode: int = 0o644, parents: bool = False
    ) -> None:
        command = replace(self._command(Kind.WRITE, path, _write_flags(parents)), mode=mode)
        await self._write(path, pieces, replace(command, timeout_ms=STREAM_SECONDS * 1000))

    async def _write(self, path: str, content: Content, command: WireCommand) -> None:
        self._writes.under_way += 1
        killed = True
        try:
            outcome = await self._run(command, Capture(0), content)
            killed = outcome.end is not End.EXITED
        finally:
            self._writes.under_way -= 1
            if killed:
                self._writes.littered[self._root, path.rpartition("/")[0]] = self
            await self._sweep()
        _check(outcome)

    async def _sweep(self) -> None:
        """As long as a write is under way nobody can tell its temporary file from one that was left behind."""
        while self._writes.littered and not self._writes.under_way:
            (_, folder), files = self._writes.littered.popitem()
            with contextlib.suppress(SandboxError, TimeoutError):  # it is only litter, and may be gone with its sandbox
                async with asyncio.timeout(SWEEP_SECONDS):
                    await files.remove_temporaries(folder)

    async def remove_temporaries(self, folder: str) -> None:
        for entry in await self.list(folder):
            ours = entry.kind is FileKind.FILE and entry.mode & 0o777 == 0o600 and entry.uid == self._user.uid
            if ours and _TEMPORARY.fullmatch(entry.name):
                if self._writes.under_way:
                    return
                await self.remove(f"{folder}/{entry.name}" if folder else entry.name)

    async def list(self, path: str) -> list[FileInfo]:
        capture = Capture(LISTING_BYTES)
        await self._do(self._command(Kind.LIST, path), capture)
        listing = capture.kept(STDOUT)
        if len(listing) >= LISTING_BYTES:
            raise FileOperationError("the folder has more entries than can be listed", errno=errno.E2BIG)
        return await asyncio.to_thread(_entries, listing)

    async def stat(self, path: str) -> FileInfo:
        capture = Capture(LISTING_BYTES)
        await self._do(self._command(Kind.STAT, path), capture)
        return _info(frames.parse_records(capture.kept(STDOUT))[0])

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        flags = Flag.RECURSIVE if recursive else NO_FLAGS
        await self._do(self._command(Kind.REMOVE, path, flags), Capture(0))

    async def mkdir(self, path: str, *, mode: int = 0o755, parents: bool = False) -> None:
        flags = Flag.RECURSIVE if parents else NO_FLAGS
        await self._do(replace(self._command(Kind.MKDIR, path, flags), mode=mode), Capture(0))

    def _command(self, kind: Kind, path: str, flags: Flag = NO_FLAGS) -> WireCommand:
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
        )

    async def _do(self, command: WireCommand, sink: Sink) -> None:
        _check(await self._run(command, sink, b""))


def _check(outcome: Outcome) -> None:
    if outcome.end is End.TIMED_OUT:
        raise FileOperationError("the operation took too long", errno=110)
    code = outcome.exit_code if outcome.end is End.EXITED else outcome.errno
    if code is None:
        raise SandboxLostError("the file operation was killed")
    if code != 0:
        raise FileOperationError(os.strerror(code), errno=code)


def _write_flags(parents: bool) -> Flag:
    return Flag.STDIN | (Flag.RECURSIVE if parents else NO_FLAGS)


def _entries(listing: bytes) -> list[FileInfo]:
    return [_info(record) for record in frames.parse_records(listing)]


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
