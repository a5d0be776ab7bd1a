"""Calls about files in a session: read, write, list, stat, remove, make a folder."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Final

from fumehood.errors import CommandFailedError, FileOperationError
from fumehood.node.console import mime, paths
from fumehood.node.console.duty import Answer, Handler
from fumehood.node.console.uploads import UploadName, Uploads
from fumehood.sandbox.driver import FileInfo, Files
from fumehood.sandbox.sessions.sessions import Sessions
from fumehood.sandbox.sessions.values import SessionName
from fumehood.wire.console import sessions as wire
from fumehood.wire.console.codes import Reason
from fumehood.wire.console.console_pb2 import Dispatch
from fumehood.wire.console.payloads import read, written
from fumehood.wire.console.sessions import Method

MOST_LISTED: Final = 10_000
"""Entries of a folder in one answer."""


class FileCalls:
    """Each may be made again by whoever got no answer."""

    def __init__(self, sessions: Sessions, uploads: Uploads) -> None:
        self._sessions = sessions
        self._uploads = uploads

    def handlers(self) -> Mapping[str, Handler]:
        return {
            Method.READ_FILE.value: self.read_file,
            Method.WRITE_FILE.value: self.write_file,
            Method.LIST_FILES.value: self.list_files,
            Method.STAT_FILE.value: self.stat_file,
            Method.REMOVE_FILE.value: self.remove_file,
            Method.MAKE_FOLDER.value: self.make_folder,
        }

    async def read_file(self, dispatch: Dispatch) -> Answer:
        asked = read(wire.ReadFile, dispatch.payload_json)
        with self._at(dispatch, asked) as (files, path):
            data, size = await files.read_piece(path, asked.offset, asked.limit)
        kind = mime.by_name(path)
        if kind is None:
            head = data[: mime.LOOK_BYTES]
            kind = mime.by_content(head, whole=len(head) == size) if asked.offset == 0 else mime.BYTES
        return Answer(written(wire.FilePiece(offset=asked.offset, size_bytes=size, mime_type=kind)), data)

    async def write_file(self, dispatch: Dispatch) -> Answer:
        asked = read(wire.WriteFile, dispatch.payload_json)
        with self._at(dispatch, asked) as (files, path):

            async def deliver(pieces: AsyncIterator[bytes]) -> None:
                await files.write_stream(path, pieces, mode=asked.mode, parents=asked.parents)

            name = UploadName(_session(dispatch, asked), asked.upload_id, path)
            received = await self._uploads.take(name, asked.offset, dispatch.data, deliver if asked.last else None)
        return Answer(written(wire.Written(received=received)))

    async def list_files(self, dispatch: Dispatch) -> Answer:
        asked = read(wire.FileRef, dispatch.payload_json)
        with self._at(dispatch, asked) as (files, path):
            found = await files.list(path)
        if len(found) > MOST_LISTED:
            raise CommandFailedError(
                Reason.FILE_ERROR,
                f"{paths.shown(asked.path)} has {len(found)} entries, and at most {MOST_LISTED} are listed: "
                "list them with a command",
            )
        return Answer(await asyncio.to_thread(_listed, found))

    async def stat_file(self, dispatch: Dispatch) -> Answer:
        asked = read(wire.FileRef, dispatch.payload_json)
        with self._at(dispatch, asked) as (files, path):
            return Answer(written(_view(await files.stat(path))))

    async def remove_file(self, dispatch: Dispatch) -> Answer:
        asked = read(wire.RemoveFile, dispatch.payload_json)
        with self._at(dispatch, asked) as (files, path):
            await files.remove(path, recursive=asked.recursive)
        return Answer(written(wire.Done()))

    async def make_folder(self, dispatch: Dispatch) -> Answer:
        asked = read(wire.MakeFolder, dispatch.payload_json)
        with self._at(dispatch, asked) as (files, path):
            await files.mkdir(path, mode=asked.mode, parents=asked.parents)
        return Answer(written(wire.Done()))

    @contextlib.contextmanager
    def _at(self, dispatch: Dispatch, asked: wire.FileRef) -> Iterator[tuple[Files, str]]:
        """The session's files, and the path as they take it."""
        files = self._sessions.files(_session(dispatch, asked))
        try:
            yield files, paths.beneath_root(asked.path)
        except FileOperationError as error:
            raise paths.failure(error, asked.path) from None


def _session(dispatch: Dispatch, asked: wire.FileRef) -> SessionName:
    return SessionName(dispatch.owner, asked.session_id)


def _listed(found: list[FileInfo]) -> bytes:
    """Names are bytes, and what is no UTF-8 has no form here by which anybody could ask for it: it is only counted."""
    named = [info for info in found if _is_text(info.name)]
    return written(wire.FileViews(files=tuple(map(_view, named)), unnamed=len(found) - len(named)))


def _is_text(name: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _view(info: FileInfo) -> wire.FileView:
    return wire.FileView(
        name=info.name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
        kind=info.kind.value,
        size_bytes=info.size,
        mode=info.mode,
        uid=info.uid,
        gid=info.gid,
        modified_unix_ms=info.modified_ms,
    )
