"""What commands print, and their end: seen as they stand, read page by page, stopped."""

from __future__ import annotations

import asyncio
import base64
from contextlib import aclosing
from typing import Annotated

from pydantic import Field

from fumehood.errors import WaitTimeoutError
from fumehood.mcp import limits
from fumehood.mcp.bounds import LEAST_BYTES, MOST_BYTES, shown, whole_characters
from fumehood.mcp.command_answer import CommandAnswer, Stream
from fumehood.mcp.following import CATCH_UP_SECONDS, Place, Printed, answer_of, followed_from, for_a_while, info_of
from fumehood.mcp.sessions import found
from fumehood.mcp.tool import Answer, Arguments, Call, Tool

STOP_SECONDS = 5.0
FARTHEST = 10**18 - 1


class CommandOutput(Arguments):
    session: limits.SessionName
    command_id: limits.CommandId
    wait_seconds: limits.Wait = 0
    stdout_from: Annotated[
        int, Field(ge=0, description="Show stdout from this byte on: the stdout_bytes seen last")
    ] = 0
    stderr_from: Annotated[int, Field(ge=0, description="The same of stderr")] = 0
    output_bytes: limits.OutputBytes = limits.DEFAULT_OUTPUT


async def command_output(call: Call, asked: CommandOutput) -> CommandAnswer:
    await found(call, asked.session, limits.LEASE_SECONDS)
    place = Place(asked.session, asked.command_id)
    printed = Printed(asked.output_bytes, asked.stdout_from, asked.stderr_from)
    info = await for_a_while(call, place, printed, asked.wait_seconds)
    return answer_of(place, info, printed)


class ReadOutput(Arguments):
    session: limits.SessionName
    command_id: limits.CommandId
    stream: Stream = "stdout"
    offset: Annotated[int, Field(ge=0, le=FARTHEST, description="The first byte to read")] = 0
    limit: Annotated[int, Field(ge=LEAST_BYTES, le=MOST_BYTES, description="Bytes to read")] = limits.DEFAULT_OUTPUT
    encoding: Annotated[
        limits.Encoding, Field(description="base64 gives the bytes as they are; utf-8 text that can be read safely")
    ] = "utf-8"


class OutputPage(Answer):
    session: str
    command_id: str
    stream: Stream
    status: Annotated[str, Field(description="How the command stands")]
    offset: Annotated[
        int, Field(description="Where this begins: later than asked for where bytes are not kept any more")
    ]
    next_offset: Annotated[int, Field(description="Where the next page begins")]
    total_bytes: Annotated[int, Field(description="Bytes of the stream so far")]
    more: Annotated[bool, Field(description="Whether there is more behind it now")]
    lost_bytes: Annotated[int, Field(description="Bytes before it that were asked for and are not kept any more")] = 0
    encoding: limits.Encoding
    exact: Annotated[bool, Field(description="Whether content is exactly the bytes; else base64 gives them")]
    content: str

    def text(self) -> str:
        lost = f", {self.lost_bytes} bytes before it are not kept any more" if self.lost_bytes else ""
        go_on = f"; read_output with offset {self.next_offset} goes on" if self.more else ""
        head = f"{self.stream}, bytes {self.offset} to {self.next_offset} of {self.total_bytes}{lost}{go_on}"
        return f"{head} (command {self.status})\n{self.content}"


async def read_output(call: Call, asked: ReadOutput) -> OutputPage:
    place = Place(asked.session, asked.command_id)
    info = await info_of(call, place)
    total = info.stdout_bytes if asked.stream == "stdout" else info.stderr_bytes
    offset, data = await _page(call, place, asked, total)
    if asked.encoding == "utf-8" and offset + len(data) < total:
        data = whole_characters(data)
    content = shown(data) if asked.encoding == "utf-8" else base64.b64encode(data).decode()
    return OutputPage(
        session=asked.session,
        command_id=asked.command_id,
        stream=asked.stream,
        status=info.status.value,
        offset=offset,
        next_offset=offset + len(data),
        total_bytes=total,
        more=offset + len(data) < total,
        lost_bytes=offset - asked.offset,
        encoding=asked.encoding,
        exact=asked.encoding == "base64" or content.encode() == data,
        content=content,
    )


async def _page(call: Call, place: Place, asked: ReadOutput, total: int) -> tuple[int, bytes]:
    """Where it begins, and its bytes up to the next gap. Nothing is waited for that was not printed yet."""
    if asked.offset >= total:
        return asked.offset, b""
    following = followed_from(call, place, {"stdout": FARTHEST, "stderr": FARTHEST, asked.stream: asked.offset})
    data, begin = bytearray(), asked.offset
    try:
        async with asyncio.timeout(CATCH_UP_SECONDS), aclosing(following.pieces()) as pieces:
            async for piece in pieces:
                if not data:
                    begin = piece.offset
                elif piece.lost:
                    break
                data += piece.data
                if len(data) >= asked.limit or begin + len(data) >= total:
                    break
    except TimeoutError:
        raise WaitTimeoutError("the output could not be read in time") from None
    return begin, bytes(data[: min(asked.limit, max(total - begin, 0))])


class StopCommand(Arguments):
    session: limits.SessionName
    command_id: limits.CommandId


class Stopped(Answer):
    session: str
    command_id: str
    status: Annotated[str, Field(description="How it stands now")]

    def text(self) -> str:
        return f"status: {self.status}\nsession: {self.session}\ncommand_id: {self.command_id}"


async def stop_command(call: Call, asked: StopCommand) -> Stopped:
    sandbox = await found(call, asked.session)
    place = Place(asked.session, asked.command_id)
    await info_of(call, place)  # one that is not known is told as that
    await sandbox.commands.kill(asked.command_id)
    info = await for_a_while(call, place, Printed(LEAST_BYTES, FARTHEST, FARTHEST), STOP_SECONDS)
    return Stopped(session=asked.session, command_id=asked.command_id, status=info.status.value)


TOOLS = (
    Tool(
        "command_output",
        "See how a command stands",
        "Tell the status of a command and the beginning and end of what it printed; waits for its end up to "
        "wait_seconds. Call it again to go on waiting; stdout_from and stderr_from leave out what was seen before.",
        CommandOutput,
        CommandAnswer,
        command_output,
        read_only=True,
        idempotent=True,
    ),
    Tool(
        "read_output",
        "Read more of a command's output",
        "Read a range of bytes of what a command printed, for output that was too long for an answer.",
        ReadOutput,
        OutputPage,
        read_output,
        read_only=True,
        idempotent=True,
    ),
    Tool(
        "stop_command",
        "Stop a command",
        "Kill a command that runs in a session.",
        StopCommand,
        Stopped,
        stop_command,
        destructive=True,
        idempotent=True,
    ),
)
