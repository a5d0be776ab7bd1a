"""What a run prints, as Server-Sent Events: what a stream says, and the ids by which a client goes on.

An id is `attempt.stdout.stderr`: which attempt, and how many bytes of each stream were seen. So any server goes on from
any other's, whether the bytes come from where they appeared or from what was kept of them. An event's text ends where
a character does: what is not whole yet waits for its rest, and bytes that are no text become U+FFFD.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from fumehood.errors import InvalidRequestError
from fumehood.wire.base import ABSENT_NOT_NULL, UtcTime, WireModel
from fumehood.wire.event_api import Message
from fumehood.wire.logs import LogStream

POSITION_PATTERN = r"[0-9]{1,7}\.[0-9]{1,16}\.[0-9]{1,16}"
LONGEST_POSITION = 41
_POSITION = re.compile(POSITION_PATTERN)


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Up to where a run's output was seen."""

    attempt: int = 0
    """0: nothing was."""
    stdout: int = 0
    stderr: int = 0

    def __str__(self) -> str:
        return f"{self.attempt}.{self.stdout}.{self.stderr}"

    @classmethod
    def parse(cls, text: str) -> LogPosition:
        if _POSITION.fullmatch(text) is None:
            raise InvalidRequestError("this is not the id of an event of a run's output")
        attempt, stdout, stderr = map(int, text.split("."))
        return cls(attempt, stdout, stderr)

    def of(self, stream: LogStream) -> int:
        return self.stdout if stream is LogStream.STDOUT else self.stderr

    def moved(self, stream: LogStream, to: int) -> LogPosition:
        return replace(self, stdout=to) if stream is LogStream.STDOUT else replace(self, stderr=to)


class LogsStarted(WireModel):
    """The data of `start`: an attempt's command was sent."""

    attempt: Annotated[int, Field(ge=1, description="Which attempt, from 1")]
    started_at: Annotated[UtcTime | None, ABSENT_NOT_NULL, Field(description="When")] = None
    node: Annotated[str, Field(description="Who runs it")] = ""


class LogsText(WireModel):
    """The data of `stdout` and `stderr`: the next piece of that stream."""

    offset: Annotated[int, Field(ge=0, description="Bytes of the stream before it")]
    text: Annotated[str, Field(description="Whole characters; bytes that are not UTF-8 are U+FFFD")]


class LogsCut(WireModel):
    """The data of `cut`: something of a stream is not told."""

    stream: Annotated[LogStream, Field(strict=False, description="Of which")]
    offset: Annotated[int, Field(ge=0, description="Bytes of the stream before what is missing")]
    resumes_at: Annotated[
        int | None,
        Field(description="Bytes before what comes next; null while that is not known: then its tail comes at the end"),
    ] = None


class LogsEnd(WireModel):
    """The data of `end`: the run has ended, and everything was told."""

    attempt: Annotated[int, Field(ge=0, description="The last one; 0: there was none")]
    stdout: Annotated[int, Field(ge=0, description="Bytes of the stream that are known of")] = 0
    stderr: Annotated[int, Field(ge=0, description="The same of the other")] = 0


EVENTS: dict[str, type[WireModel]] = {
    "start": LogsStarted,
    "stdout": LogsText,
    "stderr": LogsText,
    "cut": LogsCut,
    "end": LogsEnd,
}


def message(event: str, data: WireModel, position: LogPosition | None = None) -> Message:
    """One line of JSON, in ASCII: many a client takes more for a line's end than the two characters that are."""
    said = json.dumps(data.model_dump(mode="json"), separators=(",", ":"))
    return Message(said.encode(), event, None if position is None else str(position))
