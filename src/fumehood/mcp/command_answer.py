"""How a command stands, as a model is told it: with a status, no more output than fits, and how to read the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from fumehood.mcp.bounds import Excerpt
from fumehood.mcp.tool import Answer, SessionAnswer

Status = Literal["running", "exited", "signaled", "timed_out", "oom", "not_started", "sandbox_lost"]
Stream = Literal["stdout", "stderr"]


class LeftOut(Answer):
    """Bytes of a stream that an answer does not show."""

    stream: Stream
    offset: Annotated[int, Field(description="The first byte that is not shown: read_output goes on from here")]
    bytes: int


class CommandAnswer(SessionAnswer):
    session_kept: Annotated[bool, Field(description="Whether the session is still there")]
    command_id: str
    status: Annotated[Status, Field(description="How it stands; all but running for good")]
    exit_code: Annotated[int | None, Field(description="Where it ended with one")] = None
    signal: Annotated[str | None, Field(description="The name of the one that ended it, where one did")] = None
    detail: Annotated[str, Field(description="Why it did not start, or was lost")] = ""
    stdout: str
    stderr: str
    stdout_bytes: Annotated[int, Field(description="Bytes of the whole stream so far")]
    stderr_bytes: int
    truncated: Annotated[
        bool, Field(description="Whether something was printed that is not shown here, or may have been")
    ]
    left_out: list[LeftOut] = Field(default_factory=list)

    def text(self) -> str:
        session = self.session_line() if self.session_kept else f"session: {self.session} (ended)"
        lines = [f"status: {self._how()}", session, f"command_id: {self.command_id}"]
        so_far = " so far" if self.status == "running" else ""
        if self.stdout_bytes:
            lines += [f"stdout ({self.stdout_bytes} bytes{so_far}):", self.stdout]
        if self.stderr_bytes:
            lines += [f"stderr ({self.stderr_bytes} bytes{so_far}):", self.stderr]
        lines += [
            f"left out: {one.bytes} bytes of {one.stream}; read_output with offset {one.offset} reads them"
            for one in self.left_out
        ]
        return "\n".join(lines)

    def _how(self) -> str:
        if self.status == "exited":
            return f"exited with code {self.exit_code}"
        words = _WORDS[self.status].format(signal=self.signal)
        return f"{self.status}: {words}{f' ({self.detail})' if self.detail else ''}"


_WORDS: Mapping[Status, str] = {
    "running": "command_output waits for more",
    "signaled": "ended by {signal}",
    "timed_out": "it took longer than it was given, and everything in the session was killed",
    "oom": "killed, since the memory of the sandbox was full",
    "not_started": "it could not be started",
    "sandbox_lost": "nothing is known of how it ended, nor of what else it printed",
}


def left_out(stdout: Excerpt, stderr: Excerpt) -> list[LeftOut]:
    named: tuple[tuple[Stream, Excerpt], ...] = (("stdout", stdout), ("stderr", stderr))
    return [
        LeftOut(stream=stream, offset=one.left_out_from, bytes=(one.left_out_to or 0) - one.left_out_from)
        for stream, one in named
        if one.left_out_from is not None
    ]
