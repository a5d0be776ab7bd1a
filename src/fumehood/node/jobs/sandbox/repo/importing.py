"""Files that are in no repository yet, on their way into one: as a stream for `git fast-import`, which computes all
hashes itself and writes nothing but objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import BinaryIO, Final, Protocol

from fumehood.node.jobs.sandbox.refused import RefusedError
from fumehood.node.jobs.sandbox.repo.bounds import Bounds
from fumehood.node.jobs.sandbox.repo.tree import MAX_LINK, Kind, check_path
from fumehood.sandbox.spec import KIB

BRANCH: Final = "refs/heads/imported"
PIECE: Final = 256 * KIB
_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=@ ")


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(slots=True)
class Import:
    """The stream, in a file; `finish` it."""

    file: BinaryIO
    bounds: Bounds
    _found: dict[str, tuple[Kind, int]] = field(default_factory=dict)
    """By path: what it is, and the number of its content."""
    _blobs: int = 0

    def add(self, path: str, content: Readable, size: int, *, executable: bool) -> None:
        self._know(path, Kind.EXECUTABLE if executable else Kind.FILE, self._blob(content, size))

    def add_link(self, path: str, target: bytes) -> None:
        if not 0 < len(target) < MAX_LINK:
            raise RefusedError("the repository has a link whose target is too long, or empty")
        self._know(path, Kind.LINK, self._blob(_Bytes(target), len(target)))

    def add_again(self, path: str, earlier: str) -> bool:
        """A hard link to a file that came before; false: there was none."""
        found = self._found.get(earlier)
        if found is None or found[0] is Kind.LINK:
            return False
        self._know(path, *found)
        return True

    def finish(self) -> None:
        write = self.file.write
        write(f"commit {BRANCH}\ncommitter fumehood <> 0 +0000\ndata 0\n\n".encode())
        for path, (kind, number) in self._found.items():
            write(b"M %s :%d %s\n" % (kind.value.encode(), number, _quoted(path)))
        write(b"\ndone\n")
        self.file.flush()

    def _know(self, path: str, kind: Kind, number: int) -> None:
        self.bounds.take_file()
        self._found[check_path(path)] = kind, number

    def _blob(self, content: Readable, size: int) -> int:
        self._blobs += 1
        self.file.write(b"blob\nmark :%d\ndata %d\n" % (self._blobs, size))
        left = size
        while left:
            piece = content.read(min(left, PIECE))
            if not piece:
                raise RefusedError("a file ended before its end: it is cut off, or was changed meanwhile")
            self.bounds.take(len(piece))
            self.file.write(piece)
            left -= len(piece)
        self.file.write(b"\n")
        return self._blobs


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, size: int, /) -> bytes:
        piece, self._data = self._data[:size], self._data[size:]
        return piece


def _quoted(path: str) -> bytes:
    """As git reads a path in such a stream, whatever is in it."""
    data = path.encode("utf-8", "surrogateescape")
    return b'"' + b"".join(b"%c" % byte if byte in _PLAIN else b"\\%03o" % byte for byte in data) + b'"'
