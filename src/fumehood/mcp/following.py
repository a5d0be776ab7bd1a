"""What a command prints, followed to its end or as long as somebody waits, with only the beginning and the end held."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass

from fumehood.errors import SandboxGoneError
from fumehood.mcp.bounds import HeadTail, last_line, visible
from fumehood.mcp.command_answer import CommandAnswer, left_out
from fumehood.mcp.tool import Call
from fumehood.sdk.aio.following import AsyncFollowing, AsyncKeeping
from fumehood.sdk.aio.transport import part
from fumehood.sdk.values import CommandInfo, CommandStatus, Output

CATCH_UP_SECONDS = 20.0
"""For what was printed before somebody asked."""


@dataclass(frozen=True, slots=True)
class Place:
    """A command, in the API."""

    session: str
    command_id: str

    @property
    def sandbox_path(self) -> str:
        return f"/v1/sandboxes/{part(self.session)}"

    @property
    def path(self) -> str:
        return f"{self.sandbox_path}/commands/{part(self.command_id)}"


class Printed:
    """Both streams of a command, as far as they were followed."""

    def __init__(self, limit: int, stdout: int = 0, stderr: int = 0) -> None:
        self.streams = {"stdout": HeadTail(limit, stdout), "stderr": HeadTail(limit, stderr)}
        self.line = ""

    @property
    def places(self) -> dict[str, int]:
        return {name: stream.position for name, stream in self.streams.items()}

    @property
    def count(self) -> int:
        return sum(self.places.values())

    def take(self, piece: Output) -> None:
        stream = self.streams[piece.stream]
        stream.skip(piece.lost)
        stream.feed(piece.data)
        self.line = last_line(piece.data) or self.line

    def has(self, wanted: CommandInfo) -> bool:
        places = self.places
        return places["stdout"] >= wanted.stdout_bytes and places["stderr"] >= wanted.stderr_bytes


async def to_its_end(call: Call, place: Place, printed: Printed) -> CommandInfo:
    """How it ended. A sandbox that goes meanwhile is an end, too, of which nothing more is known. A command that was
    forgotten is none: its sandbox may be there."""
    try:
        async with call.progress.ticking(lambda: "running"):
            ended = await _followed(call, place, printed, None)
        return ended if ended is not None else await info_of(call, place)
    except SandboxGoneError as error:
        return _lost(place, printed, error.detail)


async def for_a_while(call: Call, place: Place, printed: Printed, seconds: float) -> CommandInfo:
    """How it stands when the time is over, or it; with all that was printed before."""
    seen, ended = await info_of(call, place), None
    try:
        async with call.progress.ticking(lambda: "running"), asyncio.timeout(max(seconds, CATCH_UP_SECONDS)) as clock:
            until = asyncio.get_running_loop().time() + seconds
            ended = await _followed(call, place, printed, _Patience(clock, until, seen))
    except TimeoutError:
        pass
    return ended if ended is not None else await info_of(call, place)


@dataclass(slots=True)
class _Patience:
    """Waits until a moment; but for what was there already, somewhat longer."""

    clock: asyncio.Timeout
    until: float
    seen: CommandInfo

    def is_over(self, printed: Printed) -> bool:
        """Of one that has ended, the end is told behind the last byte, without a wait."""
        if self.seen.has_ended or not printed.has(self.seen):
            return False
        self.clock.reschedule(self.until)
        return asyncio.get_running_loop().time() >= self.until


async def _followed(call: Call, place: Place, printed: Printed, patience: _Patience | None) -> CommandInfo | None:
    if patience is not None and patience.is_over(printed):
        return None
    following = followed_from(call, place, printed.places)
    async with aclosing(following.pieces()) as pieces:
        async for piece in pieces:
            printed.take(piece)
            await call.progress.tell(printed.count, f"{printed.count} bytes: {printed.line}")
            if patience is not None and patience.is_over(printed):
                break
    return following.ended


def followed_from(call: Call, place: Place, places: Mapping[str, int]) -> AsyncFollowing:
    """What is printed behind these bytes of each stream. While it is followed, the session's lease is kept."""
    transport = call.client.transport
    following = AsyncFollowing(transport, place.path, AsyncKeeping(transport, place.sandbox_path))
    following.printing.places.update(places)
    return following


async def info_of(call: Call, place: Place) -> CommandInfo:
    return CommandInfo.of(await call.client.transport.get(place.path))


def _lost(place: Place, printed: Printed, detail: str) -> CommandInfo:
    return CommandInfo(
        id=place.command_id,
        sandbox_id=place.session,
        status=CommandStatus.SANDBOX_LOST,
        exit_code=None,
        signal=None,
        detail=detail,
        command=[],
        terminal=False,
        started_at=None,
        ended_at=None,
        stdout_bytes=printed.places["stdout"],
        stderr_bytes=printed.places["stderr"],
        stdin_bytes=0,
    )


def answer_of(place: Place, info: CommandInfo, printed: Printed, *, session_created: bool = False) -> CommandAnswer:
    """Where the sandbox was lost nobody heard the end of either stream: what was read is never taken for all of it."""
    lost = info.status is CommandStatus.SANDBOX_LOST
    stdout, stderr = printed.streams["stdout"].excerpt(), printed.streams["stderr"].excerpt()
    return CommandAnswer(
        session=place.session,
        session_created=session_created,
        session_kept=not lost,
        command_id=place.command_id,
        status=info.status.value,
        exit_code=info.exit_code,
        signal=info.signal,
        detail=visible(info.detail),
        stdout=stdout.text,
        stderr=stderr.text,
        stdout_bytes=info.stdout_bytes,
        stderr_bytes=info.stderr_bytes,
        truncated=lost or stdout.truncated or stderr.truncated or not printed.has(info),
        left_out=left_out(stdout, stderr),
    )
