"""Events of runs as Server-Sent Events: what a stream says, and the ids by which a client goes on where it stopped.

An id names what was seen. Of one run that is a record of its history and an event within it (`123-2`); of all runs it
is that for each part of the cell, joined by dots, where a number alone is a record seen whole (`123-2.55.80`). Only
what was seen stands in it, never who sees it, so that any server goes on from any other's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field

from fumehood.errors import InvalidRequestError
from fumehood.wire.base import UtcTime, WireModel
from fumehood.wire.run_api import RunPhase

RUN_EVENTS_PATH = "/v1/runs/{run_id}/events"
EVENTS_PATH = "/v1/events"
LAST_EVENT_ID = "Last-Event-ID"

RETRY_MS = 1000
"""What a client that reconnects by itself is asked to wait."""
POSITION_PATTERN = r"[0-9]{1,16}(?:-[0-9]{1,7})?"
"""A history's numbers, and the events of one record: more than the broker will ever count, and than a record holds."""
LONGEST_POSITION = 24
_POSITION = re.compile(POSITION_PATTERN)


@dataclass(frozen=True, slots=True)
class Position:
    """Up to where a history was seen."""

    seq: int = 0
    index: int | None = None
    """The last event of the record that was seen, from 0; None: all of them."""

    def __str__(self) -> str:
        return str(self.seq) if self.index is None else f"{self.seq}-{self.index}"

    @classmethod
    def parse(cls, text: str) -> Position:
        if _POSITION.fullmatch(text) is None:
            raise InvalidRequestError("this is not the id of an event")
        seq, _, index = text.partition("-")
        return cls(int(seq), int(index) if index else None)

    @property
    def before(self) -> int:
        """Behind which record to read on: that of which something may not have been seen is read again."""
        return self.seq if self.index is None else max(0, self.seq - 1)

    def has_seen(self, seq: int, index: int) -> bool:
        return seq < self.seq or (seq == self.seq and (self.index is None or index <= self.index))


def parse_cursor(text: str, partitions: int) -> list[Position]:
    """The id of an event of all runs."""
    parts = text.split(".", partitions)
    if len(parts) != partitions:
        raise InvalidRequestError("this is not the id of an event of this cell's runs")
    return [Position.parse(part) for part in parts]


def cursor(positions: Sequence[Position]) -> str:
    return ".".join(map(str, positions))


class RunEvent(WireModel):
    """The data of one event."""

    model_config = ConfigDict(extra="allow")

    seq: Annotated[int, Field(ge=1, description="The record of the run's history that it stands in")]
    at: Annotated[UtcTime, Field(description="When it was decided")]
    run_id: Annotated[str, Field(description="The run")]
    type: Annotated[
        str,
        Field(
            description="What happened, also the event's own name. The other fields are those of the history; the run "
            "that a `step.calling` started is `child_run_id` here"
        ),
    ]


class StreamEnd(WireModel):
    """The data of the event `end`: the run has ended, and everything was told."""

    run_id: Annotated[str, Field(description="The run")]
    status: Annotated[RunPhase, Field(strict=False, description="How it ended")]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a stream."""

    data: bytes = b""
    event: str | None = None
    id: str | None = None

    def encode(self) -> bytes:
        """Without data it is a sign of life that no client shows, and which moves the id that it will come back with.
        JSON has no line break, so that one line of data is enough."""
        said = [b": still here"] if not self.data else []
        said += [f"id: {self.id}".encode()] if self.id is not None else []
        said += [f"event: {self.event}".encode()] if self.event is not None else []
        said += [b"data: " + self.data] if self.data else []
        return b"\n".join(said) + b"\n\n"


GREETING = f"retry: {RETRY_MS}\n\n".encode()
"""Comes first, at once: the client knows that the stream is open, and how to come back to it."""


def end(run_id: str, status: RunPhase) -> Message:
    return Message(StreamEnd(run_id=run_id, status=status).model_dump_json().encode(), "end")


def event_data(seq: int, at: str, run_id: str, fields: dict[str, object]) -> bytes:
    """One line of JSON for one event of a history; in ASCII, since many a client takes more for a line's end than the
    two characters that are."""
    told = {"child_run_id" if name == "run_id" else name: value for name, value in fields.items()}
    said = {"seq": seq, "at": at, "run_id": run_id, **told}
    return json.dumps(said, separators=(",", ":"), allow_nan=False).encode()
