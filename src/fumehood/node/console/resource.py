"""terminalResource: whether there is a file in a session, what it is, and what is in it."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping

from fumehood.errors import CommandFailedError, FileOperationError
from fumehood.node.console import mime, paths
from fumehood.node.console.capabilities import Rules
from fumehood.node.console.duty import Answer, Handler, is_let_go, witness
from fumehood.node.console.endings import in_any_case
from fumehood.sandbox.driver import FileInfo, FileKind, Files
from fumehood.sandbox.sessions.sessions import Sessions
from fumehood.sandbox.sessions.values import SessionName
from fumehood.wire.console.codes import Capability, Reason
from fumehood.wire.console.console_pb2 import Dispatch
from fumehood.wire.console.payloads import ResourceAction, TerminalResource, TerminalResourceResult, read, written


class Resources:
    """It changes nothing, the session's lease included."""

    def __init__(self, sessions: Sessions, rules: Rules) -> None:
        self._sessions = sessions
        self._limit = rules.output_limit

    def handlers(self) -> Mapping[str, Handler]:
        return {Capability.TERMINAL_RESOURCE.value: self.terminal_resource}

    async def terminal_resource(self, dispatch: Dispatch) -> Answer:
        asked = read(TerminalResource, dispatch.payload_json)
        name = SessionName(dispatch.owner, asked.session_id)
        with self._sessions.exclusive(name, dispatch.command_id):
            witness().session = self._sessions.get(name)
            looking = asyncio.create_task(self._look(self._sessions.files(name), asked))
            try:
                result = await asyncio.shield(looking)
            except asyncio.CancelledError:
                if is_let_go():
                    looking.cancel()
                await in_any_case(_over(looking))
                raise
        return Answer(written(result))

    async def _look(self, files: Files, asked: TerminalResource) -> TerminalResourceResult:
        path = paths.beneath_root(asked.file_path)
        try:
            info = await files.stat(path)
            _check(info, asked.file_path)
            if asked.action is ResourceAction.READ:
                data = await self._content(files, path, info)
                return _result(asked, mime.by_name(path) or _by_content(data, len(data)), len(data), data)
            return _result(asked, mime.by_name(path) or await _look_into(files, path, info), info.size)
        except FileOperationError as error:
            raise paths.failure(error, asked.file_path) from None

    async def _content(self, files: Files, path: str, info: FileInfo) -> bytes:
        if info.size > self._limit:
            raise CommandFailedError(
                Reason.FILE_TOO_LARGE, f"the file has {info.size} bytes, and at most {self._limit} can be read"
            )
        return await files.read(path, limit=self._limit)


def _check(info: FileInfo, path: str) -> None:
    """What is read may be there for ever, as with a pipe, or lead elsewhere, as with a link: files only."""
    if info.kind is FileKind.FOLDER:
        raise CommandFailedError(Reason.PATH_IS_DIRECTORY, f"{paths.shown(path)} is a folder")
    if info.kind is FileKind.LINK:
        raise CommandFailedError(Reason.FILE_NOT_FOUND, f"{paths.shown(path)} is a link, and none is followed")
    if info.kind is not FileKind.FILE:
        raise CommandFailedError(Reason.FILE_ERROR, f"{paths.shown(path)} is neither a file nor a folder")


async def _look_into(files: Files, path: str, info: FileInfo) -> str:
    head, size = await files.read_piece(path, 0, mime.LOOK_BYTES)
    return _by_content(head, max(size, info.size))


def _by_content(data: bytes, size: int) -> str:
    head = data[: mime.LOOK_BYTES]
    return mime.by_content(head, whole=len(head) >= size)


def _result(asked: TerminalResource, kind: str, size: int, data: bytes | None = None) -> TerminalResourceResult:
    return TerminalResourceResult(
        session_id=asked.session_id,
        file_path=asked.file_path,
        mime_type=kind,
        size_bytes=size,
        blob=None if data is None else base64.b64encode(data).decode("ascii"),
    )


async def _over(looking: asyncio.Task[TerminalResourceResult]) -> None:
    """An operation on a file has a deadline of its own. What came of it, nobody wants to know any more."""
    await asyncio.gather(looking, return_exceptions=True)
