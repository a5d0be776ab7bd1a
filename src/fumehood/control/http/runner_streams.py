"""What happens to a run of a single image, as Server-Sent Events: the Runner API beyond the contract."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

import structlog
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fumehood.control.callers import Caller
from fumehood.control.events import Events
from fumehood.control.http import schema
from fumehood.control.http.callers import caller_of
from fumehood.control.http.following import (
    AFTER,
    AGAIN,
    DRAINING,
    POSITION,
    IsStillAllowed,
    Told,
    after_in,
    always,
    answer,
    described,
)
from fumehood.control.http.queries import Query
from fumehood.control.runner import Runner
from fumehood.door.schema import REQUEST_ID, Responses, problem_response, ref
from fumehood.errors import FumehoodError
from fumehood.wire import event_api, runner_api
from fumehood.wire.event_api import Message, Position
from fumehood.wire.runner_api import RunStreamEnd

PATHS = (runner_api.EVENTS_PATH,)
MODELS: schema.Models = [(RunStreamEnd, "serialization")]

_RUN = schema.path("run_id", schema.RUN_PATTERN)
_ENDED: Responses = {
    204: {"description": "The run has ended, and all of it was seen", "headers": REQUEST_ID},
    404: problem_response("not-found"),
    503: DRAINING,
}
_EVENTS: Responses = {
    200: described(
        "Server-Sent Events, each named by its `type`, oldest first: those of the run's history, as at "
        "`/v1/runs/{run_id}/events`. `end` when the run has ended, after which the stream closes",
        {"oneOf": [ref("RunEvent"), ref("RunStreamEnd")]},
    ),
    **_ENDED,
}


def runner_streams_router(runner: Runner, events: Events, *, is_still_allowed: IsStillAllowed = always) -> APIRouter:
    router = APIRouter(tags=["runner"])

    @router.get(
        runner_api.EVENTS_PATH,
        **schema.operation(
            "followRun",
            "Follow a run",
            _EVENTS,
            _RUN,
            schema.query("after", AFTER, POSITION),
            schema.in_header(event_api.LAST_EVENT_ID, AGAIN, POSITION),
            description="From its beginning, or behind an event that was seen.",
        ),
    )
    async def of_run(request: Request) -> Response:
        after = after_in(request, Query(request, ("after",)), Position.parse, event_api.LONGEST_POSITION)
        run_id, caller = request.path_params["run_id"], caller_of(request)
        await runner.find(run_id, caller)
        stream = await events.of_run(run_id, caller, after, lambda: is_still_allowed(request))
        return answer(_InOurWords(stream, runner, run_id, caller) if stream is not None else None)

    return router


@dataclass(frozen=True, slots=True)
class _InOurWords:
    """A run's events; how it ended is said as the other answers of this API say it."""

    stream: Told
    runner: Runner
    run_id: str
    caller: Caller

    async def messages(self) -> AsyncGenerator[Message, None]:
        async with aclosing(self.stream.messages()) as messages:
            async for message in messages:
                if message.event != "end":
                    yield message
                elif (end := await self._end()) is not None:
                    yield end

    async def _end(self) -> Message | None:
        """None where it cannot be read just now, or goes on after all: whoever comes back is told then."""
        try:
            found = await self.runner.get(self.run_id, self.caller)
        except FumehoodError as error:
            structlog.get_logger().warning("events.ended", code=error.code, detail=error.detail)
            return None
        said = RunStreamEnd(run_id=self.run_id, status=found.status)
        return Message(said.model_dump_json().encode(), "end") if found.status.ended else None

    async def close(self) -> None:
        await self.stream.close()
