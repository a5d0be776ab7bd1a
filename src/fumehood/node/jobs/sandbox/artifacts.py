"""Artifacts: the files beneath the mount that a job's globs name, hashed by us as they are read out of the sandbox."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Final

from fumehood.errors import FileOperationError, JobFailedError
from fumehood.jobs.types.sandbox_run import Artifact
from fumehood.node.console import mime
from fumehood.node.jobs.sandbox.globs import Globs, State
from fumehood.node.jobs.sandbox.options import SandboxJobOptions
from fumehood.node.jobs.sandbox.refused import RefusedError, shown
from fumehood.node.jobs.sandbox.repo.tree import MAX_DEPTH, MAX_PATH
from fumehood.sandbox.driver import FileKind, Files
from fumehood.sandbox.spec import MIB

PIECE: Final = MIB
MOST_FOLDERS: Final = 10_000
AT_ONCE: Final = 4
"""Entries of a folder that are compared before others have their turn."""
MOST_PATHS: Final = MIB
"""Of all paths together, as JSON: they are all in the answer."""


class Artifacts:
    """Of one job. Links are neither followed nor taken: what they lead to has a name of its own, or is none."""

    def __init__(self, files: Files, globs: Globs, options: SandboxJobOptions) -> None:
        self._files = files
        self._globs = globs
        self._options = options
        self._folders = 0
        self._files_found = 0
        self._paths_bytes = 0
        self._bytes = 0

    async def found(self) -> list[Artifact]:
        """By path."""
        if not self._globs:
            return []
        seconds = self._options.artifact_seconds
        watch = asyncio.timeout(seconds)
        try:
            async with watch:
                paths = await self._paths("", self._globs.start(), 0)
                return [await self._artifact(path) for path in sorted(paths)]
        except TimeoutError:
            if not watch.expired():
                raise
            raise JobFailedError(
                "artifacts_unread", f"the artifacts could not be read within {seconds:g} seconds", again=True
            ) from None
        except FileOperationError as error:
            raise RefusedError(f"the artifacts could not be read: {error.detail}") from error

    async def _paths(self, folder: str, state: State, depth: int) -> list[str]:
        self._folders += 1
        if self._folders > MOST_FOLDERS or depth > MAX_DEPTH:
            raise RefusedError("the artifacts' globs lead through more folders than are looked through")
        found: list[str] = []
        for number, info in enumerate(await self._files.list(folder)):
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
            path = f"{folder}/{info.name}" if folder else info.name
            if info.kind is FileKind.FILE and self._globs.takes(state, info.name):
                self._count(path)
                found.append(path)
            elif info.kind is FileKind.FOLDER and (below := self._globs.enter(state, info.name)):
                found += await self._paths(path, below, depth + 1)
        return found

    def _count(self, path: str) -> None:
        try:
            size = len(path.encode())
        except UnicodeEncodeError:
            raise RefusedError(f"an artifact has a name that is not UTF-8: {shown(path)}") from None
        if size > MAX_PATH:
            raise RefusedError(f"an artifact has a path that is too long: {shown(path)}")
        self._paths_bytes += len(json.dumps(path))
        self._files_found += 1
        if self._files_found > (most := self._options.artifact_count):
            raise RefusedError(f"there are more than {most} artifacts, the most that a job may have")
        if self._paths_bytes > MOST_PATHS:
            raise RefusedError("the artifacts' names are longer, all together, than an answer may be")

    async def _artifact(self, path: str) -> Artifact:
        hashed, offset, kind = hashlib.sha256(), 0, mime.by_name(path)
        while True:
            piece, size = await self._files.read_piece(path, offset, PIECE)
            if offset == 0:
                kind = kind or mime.by_content(piece[: mime.LOOK_BYTES], whole=len(piece) <= mime.LOOK_BYTES)
            hashed.update(piece)
            offset += len(piece)
            self._bytes += len(piece)
            if self._bytes > self._options.artifact_bytes:
                raise RefusedError(f"the artifacts have more than {self._options.artifact_bytes} bytes all together")
            if not piece or offset >= size:
                return Artifact(path=path, sha256=hashed.hexdigest(), size_bytes=offset, mime_type=kind)
