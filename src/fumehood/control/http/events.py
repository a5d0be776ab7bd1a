"""Events over HTTP, as Server-Sent Events: of one run, or of all of the caller's tenant."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fumehood.control.event_streams import Selection
from fumehood.control.events import Events
from fumehood.control.http import schema
from fumehood.control.http.callers import caller_of
from fumehood.control.http.following import (
    AFTER,
    AGAIN,
    DRAINING,
    POSITION,
    IsStillAllowed,
    after_in,
    always,
    answer,
    described,
)
from fumehood.control.http.queries import Query
from fumehood.door.keepers import DECIDED, ENTRANT, Doorkeeper
from fumehood.door.schema import REQUEST_ID, problem_response, ref
from fumehood.engine.events import KINDS
from fumehood.errors import InvalidRequestError
from fumehood.wire import event_api
from fumehood.wire.event_api import Position

PATHS = (event_api.RUN_EVENTS_PATH, event_api.EVENTS_PATH)
MODELS: schema.Models = [(event_api.RunEvent, "serialization"), (event_api.StreamEnd, "serialization")]
LONGEST_NAME = 128
LONGEST_TYPES = 1024

_CURSOR = {"type": "string", "pattern": rf"^{event_api.POSITION_PATTERN}(\.{event_api.POSITION_PATTERN})*$"}
_KIND = "|".join(re.escape(kind) for kind in KINDS)
_TYPES = {"type": "string", "pattern": f"^({_KIND})(,({_KIND}))*$", "maxLength": LONGEST_TYPES}

_RUN = schema.guarded(
    {
        200: described(
            "Server-Sent Events, each named by its `type`, oldest first; `end` when the run has ended, after which the "
            "stream closes",
            {"oneOf": [ref("RunEvent"), ref("StreamEnd")]},
        ),
        204: {"description": "The run has ended, and all of it was seen", "headers": REQUEST_ID},
        404: problem_response("not-found"),
        503: DRAINING,
    }
)
_ALL = schema.guarded(
    {
        200: described("Server-Sent Events, each named by its `type`; it never ends by itself", ref("RunEvent")),
        503: DRAINING,
    }
)


def as_the_keeper_says(keeper: Doorkeeper) -> IsStillAllowed:
    """Whether the same request would be let in again, as the same caller."""

    async def look(request: Request) -> bool:
        entrant = await keeper.knows(request.headers.get("authorization"))
        if entrant is None or entrant.who != request.scope.get(ENTRANT):
            return False
        return keeper.allows(entrant.who, request.method, request.scope.get(DECIDED))

    return look


def events_router(events: Events, *, is_still_allowed: IsStillAllowed = always) -> APIRouter:
    """The routes; the streams end with the application."""

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        yield
        events.close()

    router = APIRouter(tags=["events"], lifespan=lifespan)

    @router.get(
        event_api.RUN_EVENTS_PATH,
        summary="Follow a run",
        description="From its beginning, or behind an event that was seen. A run that is retried after its end goes "
        "on: whoever comes back with the last id sees the rest.",
        operation_id="run_events",
        response_class=Response,
        responses=_RUN,
        openapi_extra=schema.extra(
            schema.path("run_id", schema.RUN_PATTERN),
            schema.query("after", AFTER, POSITION),
            schema.in_header(event_api.LAST_EVENT_ID, AGAIN, POSITION),
        ),
    )
    async def of_run(request: Request) -> Response:
        after = after_in(request, Query(request, ("after",)), Position.parse, event_api.LONGEST_POSITION)
        run_id, caller = request.path_params["run_id"], caller_of(request)
        stream = await events.of_run(run_id, caller, after, lambda: is_still_allowed(request))
        return answer(stream)

    @router.get(
        event_api.EVENTS_PATH,
        summary="Follow all runs",
        description="Of the caller's tenant, from now on or behind an event that was seen. What happened to a run that "
        "was archived since is not told any more.",
        operation_id="events",
        response_class=Response,
        responses=_ALL,
        openapi_extra=schema.extra(
            schema.query("after", AFTER, _CURSOR),
            schema.query("workflow", "Only runs of this workflow", {"type": "string", "maxLength": LONGEST_NAME}),
            schema.query("type", "Only events of these types, separated by commas", _TYPES),
            schema.in_header(event_api.LAST_EVENT_ID, AGAIN, _CURSOR),
        ),
    )
    async def of_all(request: Request) -> Response:
        query = Query(request, ("after", "workflow", "type"))
        longest = events.partitions * event_api.LONGEST_POSITION
        after = after_in(request, query, lambda text: event_api.parse_cursor(text, events.partitions), longest)
        selection = Selection(query.text("workflow", LONGEST_NAME), _types(query.text("type", LONGEST_TYPES)))
        stream = await events.of_all(caller_of(request), selection, after, lambda: is_still_allowed(request))
        return answer(stream)

    return router


def _types(text: str | None) -> frozenset[str]:
    """An event that does not exist would be waited for in vain."""
    asked = frozenset(text.split(",")) if text is not None else frozenset[str]()
    if not asked <= KINDS.keys():
        raise InvalidRequestError("type: must be types of events, separated by commas")
    return asked
