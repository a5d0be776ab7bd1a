"""Archives that strangers made: read header by header, and only what a tree of git can hold.

Our own reader of the few forms that there are, because it must never hold more than a header: Python's takes the size
of an extended header for granted, and keeps it in memory.
"""

from __future__ import annotations

import posixpath
import tarfile
import zlib
from collections.abc import Mapping
from typing import BinaryIO, Final, Protocol

from fumehood.node.jobs.sandbox.refused import RefusedError, shown
from fumehood.node.jobs.sandbox.repo.bounds import Bounds
from fumehood.node.jobs.sandbox.repo.importing import Import
from fumehood.sandbox.spec import KIB

BLOCK: Final = tarfile.BLOCKSIZE
MAX_HEADER: Final = 64 * KIB
"""Of a name, or of all that an extended header says."""
MAX_HEADERS: Final = 4
"""Of these for one member."""
GZIP: Final = b"\x1f\x8b"
MAX_PARTS: Final = 1024
"""Of one file, each with a header of its own: most have one."""
PIECE: Final = 64 * KIB
_GZIP_BITS: Final = zlib.MAX_WBITS | 16
_LONG_NAME, _LONG_LINK, _EXTENDED, _GLOBAL = b"L", b"K", b"x", b"g"
_FOLDER, _LINK, _HARD_LINK = b"5", b"2", b"1"
_FILES: Final = frozenset({b"0", b"\0", b"7"})
_SPARSE: Final = "GNU.sparse."


class _Source(Protocol):
    def read(self, size: int, /) -> bytes: ...


def is_archive(head: bytes) -> bool:
    """By its first block."""
    return head.startswith(GZIP) or head[257:262] == b"ustar"


def import_archive(file: BinaryIO, into: Import) -> None:
    """All of it, or `RefusedError`."""
    packed = file.read(2) == GZIP
    file.seek(0)
    source = _Counted(_Unpacked(file, into.bounds) if packed else file, into.bounds)
    try:
        while (member := _member(source)) is not None:
            _take(member, source, into)
    except (EOFError, OSError, zlib.error, ValueError, tarfile.TarError) as error:
        raise RefusedError("the archive is damaged, or is none") from error


class _Unpacked:
    """Of gzip. Python's own reader goes through any number of empty parts, and a name of any length in their headers,
    before it comes back: nobody could stop it meanwhile."""

    def __init__(self, file: BinaryIO, bounds: Bounds) -> None:
        self._file = file
        self._bounds = bounds
        self._part = zlib.decompressobj(_GZIP_BITS)
        self._parts = 1
        self._held = b""

    def read(self, size: int, /) -> bytes:
        """Something, but at the end."""
        while True:
            self._bounds.take(0)
            if self._part.eof and not self._has_next():
                return b""
            packed = self._held or self._file.read(PIECE)
            data = self._part.decompress(packed, max(1, size))
            self._held = self._part.unused_data if self._part.eof else self._part.unconsumed_tail
            if data:
                return data
            if not packed and not self._part.eof:
                raise EOFError

    def _has_next(self) -> bool:
        self._held = self._held or self._file.read(PIECE)
        if not self._held:
            return False
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise RefusedError(f"the archive is packed in more than {MAX_PARTS} parts")
        self._part = zlib.decompressobj(_GZIP_BITS)
        return True


class _Counted:
    """Counts what is unpacked, headers and padding included: a few bytes can become any number of them."""

    def __init__(self, source: _Source, bounds: Bounds) -> None:
        self._source = source
        self._left = bounds.most_bytes + (bounds.most_files + 1) * 8 * BLOCK

    def read(self, size: int, /) -> bytes:
        data = self._source.read(min(size, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise RefusedError("the archive unpacks to more than a repository may have here")
        return data

    def exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.read(size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def skip_padding(self, size: int) -> None:
        self.exactly(-size % BLOCK)


def _member(source: _Counted) -> tarfile.TarInfo | None:
    """The next one, with what the headers before it say about it; `None` at the end."""
    said: dict[str, str] = {}
    for _ in range(MAX_HEADERS + 1):
        block = source.exactly(BLOCK)
        if not any(block):
            return None
        member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        if member.size < 0:
            raise RefusedError("the archive has a member of a size below nothing")
        if member.type not in (_LONG_NAME, _LONG_LINK, _EXTENDED, _GLOBAL):
            return _completed(member, said)
        said |= _header(member, source)
    raise RefusedError("the archive has a member with too many headers")


def _header(member: tarfile.TarInfo, source: _Counted) -> Mapping[str, str]:
    if member.size > MAX_HEADER:
        raise RefusedError("the archive has a header that is too long")
    data = source.exactly(member.size)
    source.skip_padding(member.size)
    if member.type == _EXTENDED:
        return _records(data)
    if member.type == _GLOBAL:
        return {}  # a comment: `git archive` writes its commit there
    name = "path" if member.type == _LONG_NAME else "linkpath"
    return {name: data.rstrip(b"\0").decode("utf-8", "surrogateescape")}


def _records(data: bytes) -> dict[str, str]:
    """`LENGTH NAME=VALUE\\n`, where the length is of all of it."""
    found: dict[str, str] = {}
    while data:
        length = int(data.partition(b" ")[0])
        record = data[:length]
        name, equals, value = record.partition(b" ")[2].partition(b"=")
        if not equals or not 0 < length <= len(data) or not record.endswith(b"\n"):
            raise RefusedError("the archive has a header that cannot be read")
        found[name.decode("utf-8", "surrogateescape")] = value[:-1].decode("utf-8", "surrogateescape")
        data = data[length:]
    return found


def _completed(member: tarfile.TarInfo, said: Mapping[str, str]) -> tarfile.TarInfo:
    if any(name.startswith(_SPARSE) for name in said):
        raise RefusedError("the archive has a sparse file: make it without them")
    member.name = said.get("path", member.name)
    member.linkname = said.get("linkpath", member.linkname)
    if "size" in said:
        member.size = int(said["size"])
        if member.size < 0:
            raise RefusedError("the archive has a member of a size below nothing")
    return member


def _take(member: tarfile.TarInfo, source: _Counted, into: Import) -> None:
    path = _path(member.name)
    if member.type in _FILES and not member.name.endswith("/"):
        into.add(path, source, member.size, executable=bool(member.mode & 0o100))
        source.skip_padding(member.size)
    elif member.type == _LINK:
        into.add_link(path, _target(path, member.linkname))
    elif member.type == _HARD_LINK:
        if not into.add_again(path, _path(member.linkname)):
            raise RefusedError(f"{shown(path)} is a hard link to something that is not in the archive before it")
    elif member.type == _FOLDER or member.name.endswith("/"):
        into.bounds.take(0)  # git has no folders, but for the files in them
    else:
        raise RefusedError(f"{shown(path)} is neither a file nor a folder nor a link")


def _path(name: str) -> str:
    """Beneath the archive's top. `./a` is `a`; `..` and a slash at the beginning are refused, and not guessed at."""
    if name.startswith("/") or ".." in name.split("/"):
        raise RefusedError(f"the archive has a member that leads out of it: {shown(name)}")
    return posixpath.normpath(name)


def _target(path: str, target: str) -> bytes:
    led = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    if target.startswith("/") or led == ".." or led.startswith("../"):
        raise RefusedError(f"the archive has a link that leads out of it: {shown(path)}")
    return target.encode("utf-8", "surrogateescape")
