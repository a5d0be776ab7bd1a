"""The files of a fake sandbox: a tree of names in memory."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator

from fumehood.errors import FileOperationError, InvalidRequestError
from fumehood.sandbox.driver import FileInfo, FileKind
from fumehood.sandbox.fake_machine import Box
from fumehood.sandbox.spec import SANDBOX_USER
from fumehood.sandbox.warden import ids


class FakeFiles:
    """What lies beneath one root of a sandbox's tree; `None` is a folder."""

    def __init__(self, box: Box, root: str) -> None:
        self._box = box
        self._tree = box.files
        self._root = tuple(part for part in root.split("/") if part)

    async def read(self, path: str, *, limit: int) -> bytes:
        data = self._content(path)
        if len(data) > limit:
            raise _error(errno.EFBIG)
        return data

    async def read_piece(self, path: str, offset: int, length: int) -> tuple[bytes, int]:
        if offset < 0 or length < 0:
            raise InvalidRequestError("a piece of a file has an offset and a length, neither of them below 0")
        data = self._content(path)
        return data[offset : offset + length], len(data)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644, parents: bool = False) -> None:
        key = self._key(path)
        self._parent(key, parents)
        if self._tree.get(key, data) is None:
            raise _error(errno.EISDIR)
        self._tree[key] = data
        self._box.modes[key] = mode

    async def write_stream(
        self, path: str, pieces: AsyncIterator[bytes], *, mode: int = 0o644, parents: bool = False
    ) -> None:
        self._parent(self._key(path), parents)
        data = b"".join([piece async for piece in pieces])
        await self.write(path, data, mode=mode, parents=parents)

    async def list(self, path: str) -> list[FileInfo]:
        key = self._existing(path)
        if self._tree[key] is not None:
            raise _error(errno.ENOTDIR)
        return [self._info(child) for child in self._tree if child and child[:-1] == key]

    async def stat(self, path: str) -> FileInfo:
        return self._info(self._existing(path))

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        key = self._existing(path)
        beneath = [other for other in self._tree if other[: len(key)] == key]
        if len(beneath) > 1 and not recursive:
            raise _error(errno.ENOTEMPTY)
        for other in beneath:
            del self._tree[other]

    async def mkdir(self, path: str, *, mode: int = 0o755, parents: bool = False) -> None:
        key = self._key(path)
        if key in self._tree and not parents:
            raise _error(errno.EEXIST)
        self._parent(key, parents)
        self._tree[key] = None
        self._box.modes[key] = mode

    def _content(self, path: str) -> bytes:
        data = self._tree[self._existing(path)]
        if data is None:
            raise _error(errno.EISDIR)
        return data

    def _existing(self, path: str) -> tuple[str, ...]:
        key = self._key(path)
        if key not in self._tree:
            raise _error(errno.ENOENT)
        return key

    def _parent(self, key: tuple[str, ...], make: bool) -> None:
        for depth in range(1, len(key)):
            if key[:depth] not in self._tree:
                if not make:
                    raise _error(errno.ENOENT)
                self._tree[key[:depth]] = None

    def _info(self, key: tuple[str, ...]) -> FileInfo:
        data = self._tree[key]
        kind = FileKind.FOLDER if data is None else FileKind.FILE
        mode = self._box.modes.get(key, 0o755)
        name = key[-1] if key != self._root else "."
        return FileInfo(name, kind, mode, SANDBOX_USER.uid, SANDBOX_USER.gid, len(data or b""), 0)

    def _key(self, path: str) -> tuple[str, ...]:
        """Every operation begins with this, and is a command of the supervisor's with an id of its own."""
        self._box.highest = ids.our_id(self._box.highest)
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if path.startswith("/") or ".." in parts or "\0" in path:
            raise _error(errno.EINVAL)
        return (*self._root, *parts)


def _error(number: int) -> FileOperationError:
    return FileOperationError(os.strerror(number), errno=number)
