"""What all streams of Server-Sent Events have in common: how one is asked to go on, how it is told and described."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from fumehood.control.http.queries import Query
from fumehood.control.http.streams import SSE, EventStream
from fumehood.door.schema import REQUEST_ID, RETRY, problem_response
from fumehood.errors import InvalidRequestError
from fumehood.wire import event_api
from fumehood.wire.event_api import Message

T = TypeVar("T")

IsStillAllowed = Callable[[Request], Awaitable[bool]]
"""Whether what a request was let in with still counts; asked every second."""

AFTER = "Only what comes behind the event with this id; the header `Last-Event-ID` wins over it"
AGAIN = "The id of the last event that was seen: the stream goes on behind it"
POSITION = {"type": "string", "pattern": f"^{event_api.POSITION_PATTERN}$", "maxLength": event_api.LONGEST_POSITION}
DRAINING = problem_response("broker-unavailable", "broker-full", "overloaded", "draining", extra_headers=RETRY)


class Told(Protocol):
    """A stream that somebody reads."""

    def messages(self) -> AsyncGenerator[Message, None]: ...

    async def close(self) -> None: ...


async def always(_: Request) -> bool:
    return True


def described(description: str, data: dict[str, Any]) -> dict[str, Any]:
    """Each event of the stream, as its client sees it."""
    text = {"type": "string", "contentMediaType": "application/json", "contentSchema": data}
    fields = {"id": {"type": "string"}, "event": {"type": "string"}, "data": text}
    event = {"type": "object", "properties": fields, "required": ["event", "data"]}
    return {"description": description, "headers": REQUEST_ID, "content": {SSE: {"schema": event}}}


def after_in(request: Request, query: Query, read: Callable[[str], T], longest: int) -> T | None:
    """The header is newer: a client that was sent here with `after` comes back with both."""
    given = request.headers.getlist(event_api.LAST_EVENT_ID)
    if len(given) > 1:
        raise InvalidRequestError(f"the header {event_api.LAST_EVENT_ID} is there twice")
    if given and len(given[0]) > longest:
        raise InvalidRequestError(f"{event_api.LAST_EVENT_ID}: must have at most {longest} characters")
    asked = query.text("after", longest)
    found = [read(text) for text in (*given, asked) if text is not None]
    return found[0] if found else None


def answer(stream: Told | None) -> Response:
    """None: it has ended, and all of it was seen."""
    return Response(status_code=204) if stream is None else EventStream(_encoded(stream), stream.close)


async def _encoded(stream: Told) -> AsyncGenerator[bytes, None]:
    yield event_api.GREETING
    async with aclosing(stream.messages()) as messages:
        async for message in messages:
            yield message.encode()
