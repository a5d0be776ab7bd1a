"""Files of a session: not more operations at once than its supervisor takes beside the commands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fumehood.sandbox.driver import FileInfo, Files


class BoundedFiles:
    """Implements `Files` over another one."""

    def __init__(self, files: Files, room: asyncio.Semaphore) -> None:
        self._files = files
        self._room = room

    async def read(self, path: str, *, limit: int) -> bytes:
        async with self._room:
            return await self._files.read(path, limit=limit)

    async def read_piece(self, path: str, offset: int, length: int) -> tuple[bytes, int]:
        async with self._room:
            return await self._files.read_piece(path, offset, length)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644, parents: bool = False) -> None:
        async with self._room:
            await self._files.write(path, data, mode=mode, parents=parents)

    async def write_stream(
        self, path: str, pieces: AsyncIterator[bytes], *, mode: int = 0o644, parents: bool = False
    ) -> None:
        async with self._room:
            await self._files.write_stream(path, pieces, mode=mode, parents=parents)

    async def list(self, path: str) -> list[FileInfo]:
        async with self._room:
            return await self._files.list(path)

    async def stat(self, path: str) -> FileInfo:
        async with self._room:
            return await self._files.stat(path)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        async with self._room:
            await self._files.remove(path, recursive=recursive)

    async def mkdir(self, path: str, *, mode: int = 0o755, parents: bool = False) -> None:
        async with self._room:
            await self._files.mkdir(path, mode=mode, parents=parents)
