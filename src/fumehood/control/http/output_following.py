"""What commands and the commands in sandboxes have in common: waiting for their end, and following what they print."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from fumehood.control.console.output_streams import OutputStreams, Source
from fumehood.control.http import schema
from fumehood.control.http.callers import caller_of
from fumehood.control.http.console_problems import UNAVAILABLE
from fumehood.control.http.following import IsStillAllowed, answer, described
from fumehood.control.http.queries import Query
from fumehood.door.schema import REQUEST_ID, Responses, header, ref
from fumehood.errors import InvalidRequestError
from fumehood.wire import command_api, event_api
from fumehood.wire.command_api import OutputPosition

FARTHEST = 10**18 - 1
WAIT = schema.query(
    "wait_ms",
    "How long the answer may wait for the end",
    {"type": "integer", "minimum": 0, "maximum": command_api.LONGEST_WAIT_MS, "default": 0},
)
_LOCATION = {"Location": header("Where to ask how it stands", {"type": "string"}, required=True)}
_POSITION = {
    "type": "string",
    "pattern": f"^{command_api.POSITION_PATTERN}$",
    "maxLength": command_api.LONGEST_POSITION,
    "examples": ["2048.0"],
}
_OFFSET = {"type": "integer", "minimum": 0, "maximum": FARTHEST, "default": 0}
FOLLOWING = (
    schema.query("stdout", "How many bytes of it were seen; the header `Last-Event-ID` wins over it", _OFFSET),
    schema.query("stderr", "The same of the other stream", _OFFSET),
    schema.in_header(
        event_api.LAST_EVENT_ID, "The id of the last event that was seen: the stream goes on behind it", _POSITION
    ),
)


def followed(end: str) -> Responses:
    """The answers of a stream of output; `end` is the model of its last event."""
    return {
        200: described(
            "Server-Sent Events: `output` as it appears, and `end` when all of it was told, after which the stream "
            "closes. An id is how many bytes of each stream were told",
            {"oneOf": [ref("OutputEvent"), ref(end)]},
        ),
        204: {"description": "All of it was seen, its end included", "headers": REQUEST_ID},
        503: UNAVAILABLE,
    }


def accepted(model: str) -> dict[str, Any]:
    """202, with where to ask again."""
    return {**schema.answer(model, "It has not ended yet"), "headers": {**REQUEST_ID, **_LOCATION}}


def seen_in(request: Request) -> OutputPosition:
    """The header is newer: a client that was sent here with offsets comes back with both."""
    query = Query(request, ("stdout", "stderr"))
    asked = OutputPosition(query.number("stdout", 0, 0, FARTHEST), query.number("stderr", 0, 0, FARTHEST))
    given = request.headers.getlist(event_api.LAST_EVENT_ID)
    if len(given) > 1:
        raise InvalidRequestError(f"the header {event_api.LAST_EVENT_ID} is there twice")
    return OutputPosition.parse(given[0]) if given else asked


@dataclass(frozen=True, slots=True)
class Followers:
    """Those who follow output, each as long as he may."""

    streams: OutputStreams
    is_still_allowed: IsStillAllowed

    async def answer(self, request: Request, source: Source, position: OutputPosition) -> Response:
        tenant = caller_of(request).tenant
        return answer(await self.streams.open(tenant, source, position, lambda: self.is_still_allowed(request)))
