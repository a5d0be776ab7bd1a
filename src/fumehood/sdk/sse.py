"""Server-Sent Events out of the bytes they come in. An event that is not whole when the bytes end did not come."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fumehood.errors import UnexpectedAnswerError

LARGEST_EVENT = 8 * 1024 * 1024
"""Bytes: far above what a journal takes in one record."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event of a stream. `data` is what its JSON says; None for one that only says that the other side is alive."""

    id: str
    event: str
    data: Any


class EventReader:
    """Bytes in, events out."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._fields: dict[str, list[str]] = {}
        self._size = 0

    def feed(self, data: bytes) -> Iterator[ServerEvent]:
        """The events that are whole now. Split at newlines only: JSON may hold other characters that Python takes for
        the end of a line."""
        self._rest += data
        self._size += len(data)
        *lines, rest = bytes(self._rest).split(b"\n") if b"\n" in data else [bytes(self._rest)]
        self._rest = bytearray(rest)
        for line in lines:
            if found := self._line(line.removesuffix(b"\r").decode("utf-8", "replace")):
                yield found
        if self._size > LARGEST_EVENT:
            raise UnexpectedAnswerError("the server sent an event that has no end").advise()

    def _line(self, line: str) -> ServerEvent | None:
        if line:
            name, _, value = line.partition(":")
            self._fields.setdefault(name, []).append(value.removeprefix(" "))
            return None
        fields, self._fields, self._size = self._fields, {}, 0
        text = "\n".join(fields.get("data", ()))
        return ServerEvent(fields.get("id", [""])[-1], fields.get("event", [""])[-1], _parsed(text) if text else None)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise UnexpectedAnswerError("the server sent an event that cannot be understood").advise() from None
