"""Files in sandboxes over HTTP: read and written piece by piece, so that nobody holds all of one."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass

import structlog
from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from fumehood.control.callers import Caller
from fumehood.control.console.ports_http import SandboxesPort
from fumehood.control.http import sandbox_views, schema
from fumehood.control.http.answers import json_answer
from fumehood.control.http.callers import caller_of, note
from fumehood.control.http.console_problems import FROM_A_WORKER, MODEL, SANDBOX, session_id_of, told
from fumehood.control.http.queries import Query
from fumehood.control.http.streams import EventStream
from fumehood.door.app import PlainRoute
from fumehood.door.bodies import check_media_type
from fumehood.door.middleware import BodyLimits
from fumehood.door.schema import REQUEST_ID, Responses, header, problem_response
from fumehood.errors import CommandFailedError, FumehoodError, InvalidRequestError
from fumehood.wire import sandbox_api
from fumehood.wire.console import sessions as wire
from fumehood.wire.console.codes import PIECE_BYTES, Reason

PATHS = (
    sandbox_api.FILES_PATH,
    sandbox_api.CONTENT_PATH,
    sandbox_api.LIST_PATH,
    sandbox_api.STAT_PATH,
    sandbox_api.FOLDERS_PATH,
)
MODELS: schema.Models = [
    (sandbox_api.FileList, "serialization"),
    (sandbox_api.FileInfo, "serialization"),
    (sandbox_api.FileWritten, "serialization"),
]
LONG_BODIES: Mapping[tuple[str, str], BodyLimits] = {
    ("PUT", sandbox_api.CONTENT_PATH): BodyLimits(
        sandbox_api.MAX_FILE_BYTES, seconds=3600.0, stall_seconds=60.0, streamed=True
    )
}
"""The only bodies that nobody holds as a whole, and so may be long."""
OCTETS = "application/octet-stream"

_MIME = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,64}/[A-Za-z0-9!#$&^_.+-]{1,64}(; charset=[A-Za-z0-9_-]{1,32})?")
_PATH = schema.query(
    "path",
    "From the sandbox's root, or beneath `/workspace`",
    {"type": "string", "minLength": 1, "maxLength": sandbox_api.LONGEST_PATH, "pattern": r"^[^\x00]+$"},
    required=True,
)
_MODE = {"type": "string", "pattern": "^0?[0-7]{3}$"}
_PARENTS = schema.query("parents", "Make the folders above it, too", {"type": "boolean", "default": True})
_MISSING: Responses = {404: told("session-not-found", "file-not-found")}
_DONE: Responses = {204: {"description": "It was done", "headers": REQUEST_ID}, **FROM_A_WORKER, **_MISSING}
_CONTENT: Responses = {
    200: {
        "description": "The file, with its type as far as its name tells it",
        "headers": {
            **REQUEST_ID,
            "Content-Length": header("Of the whole file", {"type": "integer", "minimum": 0}, required=True),
        },
        "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}},
    },
    **FROM_A_WORKER,
    **_MISSING,
    413: told("file-too-large"),
}
_LIST: Responses = {200: schema.answer("FileList", "What is in the folder"), **FROM_A_WORKER, **_MISSING}
_STAT: Responses = {200: schema.answer("FileInfo", "What it is"), **FROM_A_WORKER, **_MISSING}
_WRITTEN: Responses = {
    200: schema.answer("FileWritten", "The file is there, all of it at once"),
    **FROM_A_WORKER,
    **_MISSING,
    413: problem_response("payload-too-large", "file-too-large", model=MODEL),
}


def sandbox_files_router(sandboxes: SandboxesPort) -> APIRouter:
    router = APIRouter(tags=["sandboxes"], route_class=PlainRoute)
    _contents(router, sandboxes)
    _looking(router, sandboxes)
    _changing(router, sandboxes)
    return router


def _path(query: Query) -> str:
    path = query.text("path", sandbox_api.LONGEST_PATH)
    if not path:
        raise InvalidRequestError("path: is missing")
    if "\0" in path:
        raise InvalidRequestError("path: must not contain the character NUL")
    return path


def _mode(query: Query, default: int) -> int:
    text = query.text("mode", 8)
    if text is None:
        return default
    if re.fullmatch(str(_MODE["pattern"]), text) is None:
        raise InvalidRequestError("mode: must be three octal digits, like 644")
    return int(text, 8)


# --- contents ----------------------------------------------------------------------------------------------


def _contents(router: APIRouter, sandboxes: SandboxesPort) -> None:
    @router.get(
        sandbox_api.CONTENT_PATH, **schema.operation("read_sandbox_file", "Read a file", _CONTENT, SANDBOX, _PATH)
    )
    async def read(request: Request) -> Response:
        query = Query(request, ("path",))
        asked = wire.ReadFile(session_id=session_id_of(request), path=_path(query))
        reading = _Reading(sandboxes, caller_of(request), asked)
        piece, data = await reading.piece(0)
        return Download(reading.rest(piece.size_bytes, data), piece)

    @router.put(
        sandbox_api.CONTENT_PATH,
        **schema.raw_operation(
            "write_sandbox_file",
            "Write a file",
            _WRITTEN,
            SANDBOX,
            _PATH,
            schema.query("mode", "Who may do what with it, in octal digits", {**_MODE, "default": "0644"}),
            _PARENTS,
            media_type=OCTETS,
            description=f"At most {sandbox_api.MAX_FILE_BYTES} bytes. Until the last has come, nothing changes.",
        ),
    )
    async def write(request: Request) -> Response:
        check_media_type(request, (OCTETS,))
        query = Query(request, ("path", "mode", "parents"))
        first = wire.WriteFile(
            session_id=session_id_of(request),
            path=_path(query),
            upload_id=f"up-{secrets.token_hex(16)}",
            offset=0,
            last=False,
            mode=_mode(query, 0o644),
            parents=query.flag("parents", default=True),
        )
        note(request, path=first.path)
        size = await _written(sandboxes, caller_of(request), first, request.stream())
        return json_answer(sandbox_api.FileWritten(path=first.path, size_bytes=size))


async def _written(sandboxes: SandboxesPort, caller: Caller, first: wire.WriteFile, body: AsyncIterator[bytes]) -> int:
    """How long it is. Whoever sends is read from when the worker has taken what came before."""
    offset, held = 0, bytearray()
    async for chunk in body:
        held += chunk
        while len(held) > PIECE_BYTES:  # the last piece is held back: only then is it known to be the last
            piece = bytes(held[:PIECE_BYTES])
            await sandboxes.write_file(caller, first.model_copy(update={"offset": offset}), piece)
            offset += len(piece)
            del held[:PIECE_BYTES]
    await sandboxes.write_file(caller, first.model_copy(update={"offset": offset, "last": True}), bytes(held))
    return offset + len(held)


@dataclass(frozen=True, slots=True)
class _Reading:
    """A file that is read from its beginning to the end that it had at first."""

    sandboxes: SandboxesPort
    caller: Caller
    asked: wire.ReadFile

    async def piece(self, offset: int) -> tuple[wire.FilePiece, bytes]:
        return await self.sandboxes.read_file(self.caller, self.asked.model_copy(update={"offset": offset}))

    async def rest(self, size: int, data: bytes) -> AsyncGenerator[bytes, None]:
        """From its first piece on. What was announced is what is sent: of a file that became shorter, or cannot be read
        any more, the connection ends before its length is reached."""
        offset = 0
        try:
            while offset < size:
                data = data[: size - offset]
                if not data:
                    raise CommandFailedError(Reason.FILE_ERROR, "the file became shorter while it was read")
                offset += len(data)
                yield data
                if offset < size:
                    _, data = await self.piece(offset)
        except FumehoodError as error:
            structlog.get_logger().warning("file.cut_short", code=error.code, detail=error.detail)
            raise ClientDisconnect from None


class Download(EventStream):
    """A file's bytes. They are a stranger's: no browser is to take them for a page of ours."""

    media_type = OCTETS

    def __init__(self, pieces: AsyncGenerator[bytes, None], piece: wire.FilePiece) -> None:
        super().__init__(pieces, _nothing)
        kind = piece.mime_type if _MIME.fullmatch(piece.mime_type) else OCTETS
        self.init_headers(
            {
                "content-type": kind,
                "content-length": str(piece.size_bytes),
                "content-disposition": "attachment",
                "content-security-policy": "sandbox",
                "x-content-type-options": "nosniff",
                "cache-control": "no-store",
            }
        )


async def _nothing() -> None:
    return None


# --- the rest ----------------------------------------------------------------------------------------------


def _looking(router: APIRouter, sandboxes: SandboxesPort) -> None:
    @router.get(sandbox_api.LIST_PATH, **schema.operation("list_sandbox_files", "List a folder", _LIST, SANDBOX, _PATH))
    async def listed(request: Request) -> Response:
        ref = wire.FileRef(session_id=session_id_of(request), path=_path(Query(request, ("path",))))
        found = await sandboxes.list_files(caller_of(request), ref)
        shown = sorted((sandbox_views.file(view) for view in found.files), key=lambda one: one.name)
        return json_answer(sandbox_api.FileList(files=shown, unnamed=found.unnamed))

    @router.get(
        sandbox_api.STAT_PATH, **schema.operation("stat_sandbox_file", "Show what a path is", _STAT, SANDBOX, _PATH)
    )
    async def stat(request: Request) -> Response:
        ref = wire.FileRef(session_id=session_id_of(request), path=_path(Query(request, ("path",))))
        return json_answer(sandbox_views.file(await sandboxes.stat_file(caller_of(request), ref)))


def _changing(router: APIRouter, sandboxes: SandboxesPort) -> None:
    @router.delete(
        sandbox_api.FILES_PATH,
        **schema.operation(
            "remove_sandbox_file",
            "Remove a file or a folder",
            _DONE,
            SANDBOX,
            _PATH,
            schema.query("recursive", "A folder with all that is in it", {"type": "boolean", "default": False}),
        ),
    )
    async def remove(request: Request) -> Response:
        query = Query(request, ("path", "recursive"))
        asked = wire.RemoveFile(session_id=session_id_of(request), path=_path(query), recursive=query.flag("recursive"))
        note(request, path=asked.path)
        await sandboxes.remove_file(caller_of(request), asked)
        return Response(status_code=204)

    @router.post(
        sandbox_api.FOLDERS_PATH,
        **schema.operation(
            "make_sandbox_folder",
            "Make a folder",
            _DONE,
            SANDBOX,
            _PATH,
            schema.query("mode", "Who may do what with it, in octal digits", {**_MODE, "default": "0755"}),
            _PARENTS,
        ),
    )
    async def make(request: Request) -> Response:
        query = Query(request, ("path", "mode", "parents"))
        asked = wire.MakeFolder(
            session_id=session_id_of(request),
            path=_path(query),
            mode=_mode(query, 0o755),
            parents=query.flag("parents", default=True),
        )
        note(request, path=asked.path)
        await sandboxes.make_folder(caller_of(request), asked)
        return Response(status_code=204)
