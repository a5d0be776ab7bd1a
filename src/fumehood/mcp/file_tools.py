"""Files of a session: read in parts, written whole, listed."""

from __future__ import annotations

import base64
from typing import Annotated

from pydantic import Field

from fumehood.errors import InvalidRequestError
from fumehood.mcp import limits
from fumehood.mcp.bounds import LEAST_BYTES, MOST_BYTES, and_more, shown, visible, whole_characters
from fumehood.mcp.sessions import found, found_or_made
from fumehood.mcp.tool import Answer, Arguments, Call, SessionAnswer, Tool
from fumehood.sdk.aio.transport import part

MOST_CONTENT = 1024 * 1024
"""Characters of a file that is written at once."""
FARTHEST = 64 * 1024 * 1024
"""What lies before it is read, too: a model that wants more than that wants another tool."""
MOST_FILES = 500


class ReadFile(Arguments):
    session: limits.SessionName
    path: limits.Path
    offset: Annotated[int, Field(ge=0, le=FARTHEST, description="The first byte to read")] = 0
    limit: Annotated[int, Field(ge=LEAST_BYTES, le=MOST_BYTES, description="Bytes to read")] = limits.DEFAULT_OUTPUT
    encoding: Annotated[
        limits.Encoding, Field(description="base64 gives the bytes as they are; utf-8 text that can be read safely")
    ] = "utf-8"


class FilePage(Answer):
    session: str
    path: str
    offset: int
    next_offset: Annotated[int, Field(description="Where the next page begins")]
    size_bytes: Annotated[int, Field(description="Of the whole file")]
    more: Annotated[bool, Field(description="Whether there is more behind it")]
    encoding: limits.Encoding
    exact: Annotated[bool, Field(description="Whether content is exactly the bytes; else base64 gives them")]
    content: str

    def text(self) -> str:
        go_on = f"; read_file with offset {self.next_offset} goes on" if self.more else ""
        head = f"{visible(self.path)}, bytes {self.offset} to {self.next_offset} of {self.size_bytes}{go_on}"
        return f"{head}\n{self.content}"


async def read_file(call: Call, asked: ReadFile) -> FilePage:
    size, data = await _read(call, asked)
    end = asked.offset + len(data)
    if asked.encoding == "utf-8" and end < size:
        data = whole_characters(data)
    content = shown(data) if asked.encoding == "utf-8" else base64.b64encode(data).decode()
    return FilePage(
        session=asked.session,
        path=asked.path,
        offset=asked.offset,
        next_offset=asked.offset + len(data),
        size_bytes=size,
        more=asked.offset + len(data) < size,
        encoding=asked.encoding,
        exact=asked.encoding == "base64" or content.encode() == data,
        content=content,
    )


async def _read(call: Call, asked: ReadFile) -> tuple[int, bytes]:
    """How long the file is, and a part of it. Little more of it is fetched than lies before the part's end. Files of
    the kernel (`/proc`, `/sys`) have a content of another size than they say: then it is what has come."""
    sandbox = await found(call, asked.session, limits.LEASE_SECONDS)
    size = (await sandbox.files.stat(asked.path)).size_bytes
    if asked.offset >= size > 0:
        return size, b""
    wanted, at, data = asked.offset + asked.limit, 0, bytearray()
    path = f"/v1/sandboxes/{part(asked.session)}/files/content"
    async with call.client.transport.download(path, {"path": asked.path}) as pieces:
        async for piece in pieces:
            data += piece[max(asked.offset - at, 0) : max(wanted - at, 0)]
            at += len(piece)
            if at > wanted or at == wanted == size:
                return max(size, at), bytes(data)
    return at, bytes(data)


class WriteFile(Arguments):
    path: limits.Path
    content: Annotated[str, Field(max_length=MOST_CONTENT, description="All of the file")]
    session: limits.NewSessionName = None
    encoding: Annotated[limits.Encoding, Field(description="base64 for bytes that are no text")] = "utf-8"
    executable: Annotated[bool, Field(description="Whether it can be run as a program")] = False
    image: limits.Image = None
    network: limits.Network = None


class Written(SessionAnswer):
    path: str
    size_bytes: int

    def text(self) -> str:
        return f"written: {visible(self.path)}, {self.size_bytes} bytes\n{self.session_line()}"


async def write_file(call: Call, asked: WriteFile) -> Written:
    data = _bytes(asked)
    async with found_or_made(call, asked.session, asked.image, asked.network) as sandbox:
        await sandbox.files.write(asked.path, data, mode=0o755 if asked.executable else 0o644)
    return Written(session=sandbox.id, session_created=sandbox.created, path=asked.path, size_bytes=len(data))


def _bytes(asked: WriteFile) -> bytes:
    try:
        if asked.encoding == "base64":
            return base64.b64decode(asked.content, validate=True)
        return asked.content.encode()
    except ValueError:
        raise InvalidRequestError(f"content: is not {asked.encoding}") from None


class ListFiles(Arguments):
    session: limits.SessionName
    path: limits.Path = "/workspace"
    limit: Annotated[int, Field(ge=1, le=MOST_FILES, description="At most so many")] = 200


class Listed(Answer):
    name: str
    kind: Annotated[str, Field(description="file, folder, link or other")]
    size_bytes: int
    modified_at: str | None


class Folder(Answer):
    session: str
    path: str
    files: list[Listed]
    total: Annotated[int, Field(description="Entries of the folder")]
    unnamed: Annotated[int, Field(description="Those of them whose names are not UTF-8, which are not listed")] = 0
    truncated: bool

    def text(self) -> str:
        lines = [f"{visible(self.path)}: {self.total} entries"]
        lines += [f"{one.kind:6}  {one.size_bytes:>10}  {one.name}" for one in self.files]
        lines += [and_more(len(self.files), MOST_FILES)] if self.truncated else []
        lines += [f"… and {self.unnamed} whose names are not UTF-8"] if self.unnamed else []
        return "\n".join(lines)


async def list_files(call: Call, asked: ListFiles) -> Folder:
    sandbox = await found(call, asked.session, limits.LEASE_SECONDS)
    files = await sandbox.files.list(asked.path)
    return Folder(
        session=asked.session,
        path=asked.path,
        files=[
            Listed(
                name=visible(one.name).replace("\n", "\\n"),
                kind=str(one.kind),
                size_bytes=one.size_bytes,
                modified_at=None if one.modified_at is None else one.modified_at.isoformat(),
            )
            for one in files[: asked.limit]
        ],
        total=len(files) + files.unnamed,
        unnamed=files.unnamed,
        truncated=len(files) > asked.limit,
    )


TOOLS = (
    Tool(
        "read_file",
        "Read a file",
        "Read a file of a session, or a part of it: from `offset`, up to `limit` bytes.",
        ReadFile,
        FilePage,
        read_file,
        read_only=True,
        idempotent=True,
    ),
    Tool(
        "write_file",
        "Write a file",
        "Write a whole file into a session, with the folders above it. What was there under that name is replaced.",
        WriteFile,
        Written,
        write_file,
        destructive=True,
        idempotent=True,
    ),
    Tool(
        "list_files",
        "List a folder",
        "List what is in a folder of a session.",
        ListFiles,
        Folder,
        list_files,
        read_only=True,
        idempotent=True,
    ),
)
