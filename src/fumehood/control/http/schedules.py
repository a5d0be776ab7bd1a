"""Schedules over HTTP: written, seen, paused, resumed and triggered."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fumehood.control.http import schema
from fumehood.control.http.answers import json_answer
from fumehood.control.http.callers import caller_of, note
from fumehood.control.http.queries import Query
from fumehood.control.schedule import Schedule
from fumehood.control.schedules import Plan, Schedules
from fumehood.door.bodies import JSON, check_media_type
from fumehood.door.schema import REQUEST_ID, RETRY, Responses, problem_response, ref
from fumehood.wire import schedule_api, strict_json
from fumehood.wire.base import validate
from fumehood.wire.run_api import StartRunResponse
from fumehood.wire.times import moment

PATHS = (
    schedule_api.SCHEDULES_PATH,
    schedule_api.SCHEDULE_PATH,
    schedule_api.PAUSE_PATH,
    schedule_api.RESUME_PATH,
    schedule_api.TRIGGER_PATH,
)
MODELS: schema.Models = [
    (schedule_api.PutScheduleRequest, "validation"),
    (schedule_api.ScheduleView, "serialization"),
    (schedule_api.ScheduleList, "serialization"),
]
MOST = 100

_NAME = schema.path("name", schedule_api.NAME_PATTERN, schedule_api.LONGEST_NAME)
_SHOWN = schema.answer("ScheduleView", "The schedule as it is now")
_NOT_FOUND: Responses = {404: problem_response("not-found")}
_CONFLICT: Responses = {409: problem_response("conflict")}
_STARTED: Responses = {
    201: schema.answer("StartRunResponse", "The run is accepted, and will be run"),
    429: problem_response("quota-exceeded", extra_headers=RETRY),
    503: problem_response("index-unavailable", "broker-unavailable", "broker-full", extra_headers=RETRY),
}


def schedules_router(schedules: Schedules) -> APIRouter:
    router = APIRouter(tags=["schedules"])
    _add_reading(router, schedules)
    _add_writing(router, schedules)
    _add_orders(router, schedules)
    return router


def _add_reading(router: APIRouter, schedules: Schedules) -> None:
    @router.get(
        schedule_api.SCHEDULES_PATH,
        summary="List schedules by name",
        operation_id="list_schedules",
        response_class=Response,
        responses=schema.guarded({200: schema.answer("ScheduleList", "Schedules by name")}),
        openapi_extra=schema.extra(
            schema.query(
                "after", "Only names behind this one", {"type": "string", "maxLength": schedule_api.LONGEST_NAME}
            ),
            schema.query("limit", "At most so many", {"type": "integer", "minimum": 1, "maximum": MOST}),
        ),
    )
    async def listed(request: Request) -> Response:
        query = Query(request, ("after", "limit"))
        found, following = await schedules.list(
            caller_of(request),
            after=query.text("after", schedule_api.LONGEST_NAME) or "",
            limit=query.number("limit", 100, 1, MOST),
        )
        page = [_view(one, schedules.next_at(one)) for one in found]
        return json_answer(schedule_api.ScheduleList(schedules=page, next=following))

    @router.get(
        schedule_api.SCHEDULE_PATH,
        summary="Show a schedule",
        operation_id="get_schedule",
        response_class=Response,
        responses=schema.guarded({200: _SHOWN, **_NOT_FOUND}),
        openapi_extra=schema.extra(_NAME),
    )
    async def get(request: Request) -> Response:
        Query(request)
        found = await schedules.get(request.path_params["name"], caller_of(request))
        return json_answer(_view(found, schedules.next_at(found)))


def _add_writing(router: APIRouter, schedules: Schedules) -> None:
    @router.put(
        schedule_api.SCHEDULE_PATH,
        summary="Make a schedule, or make it another",
        description="All of it is replaced. With another `cron`, `timezone` or `workflow` it begins anew, now; "
        "otherwise its times go on as they were.",
        operation_id="put_schedule",
        response_class=Response,
        responses=schema.guarded(
            {200: _SHOWN, 201: schema.answer("ScheduleView", "The schedule, which is new"), **_CONFLICT}, body=True
        ),
        openapi_extra=schema.extra(_NAME, body={JSON: ref("PutScheduleRequest")}),
    )
    async def put(request: Request) -> Response:
        check_media_type(request)
        Query(request)
        asked = validate(schedule_api.PutScheduleRequest, strict_json.loads(await request.body()))
        made, is_new = await schedules.put(request.path_params["name"], _plan(asked), caller_of(request))
        note(request, workflow=made.workflow, cron=made.cron, timezone=made.timezone)
        return json_answer(_view(made, schedules.next_at(made)), 201 if is_new else 200)

    @router.delete(
        schedule_api.SCHEDULE_PATH,
        summary="Delete a schedule",
        description="Runs that it started go on.",
        operation_id="delete_schedule",
        status_code=204,
        response_class=Response,
        responses=schema.guarded({204: {"description": "It is gone", "headers": REQUEST_ID}, **_NOT_FOUND}),
        openapi_extra=schema.extra(_NAME),
    )
    async def delete(request: Request) -> Response:
        Query(request)
        await schedules.delete(request.path_params["name"], caller_of(request))
        return Response(status_code=204)


def _add_orders(router: APIRouter, schedules: Schedules) -> None:
    @router.post(
        schedule_api.PAUSE_PATH,
        summary="Let a schedule stand still",
        operation_id="pause_schedule",
        response_class=Response,
        responses=schema.guarded({200: _SHOWN, **_NOT_FOUND, **_CONFLICT}),
        openapi_extra=schema.extra(_NAME),
    )
    async def pause(request: Request) -> Response:
        Query(request)
        found = await schedules.pause(request.path_params["name"], caller_of(request))
        return json_answer(_view(found, schedules.next_at(found)))

    @router.post(
        schedule_api.RESUME_PATH,
        summary="Let a schedule go on",
        description="From now on: times that lay in the pause are left out.",
        operation_id="resume_schedule",
        response_class=Response,
        responses=schema.guarded({200: _SHOWN, **_NOT_FOUND, **_CONFLICT}),
        openapi_extra=schema.extra(_NAME),
    )
    async def resume(request: Request) -> Response:
        Query(request)
        found = await schedules.resume(request.path_params["name"], caller_of(request))
        return json_answer(_view(found, schedules.next_at(found)))

    @router.post(
        schedule_api.TRIGGER_PATH,
        summary="Start what a schedule starts, now",
        description="One run more, also of a schedule that is paused; its times go on as they were.",
        operation_id="trigger_schedule",
        status_code=201,
        response_class=Response,
        responses=schema.guarded({**_STARTED, **_NOT_FOUND}),
        openapi_extra=schema.extra(_NAME),
    )
    async def trigger(request: Request) -> Response:
        Query(request)
        run_id = await schedules.trigger(request.path_params["name"], caller_of(request))
        note(request, run_id=run_id)
        return json_answer(StartRunResponse(run_id=run_id), 201)


def _plan(asked: schedule_api.PutScheduleRequest) -> Plan:
    return Plan(
        workflow=asked.workflow,
        cron=asked.cron,
        timezone=asked.timezone,
        input=asked.input,
        labels=asked.labels,
        catch_up=asked.catch_up,
        catch_up_limit=asked.catch_up_limit,
        paused=asked.paused,
    )


def _view(schedule: Schedule, next_at: int | None) -> schedule_api.ScheduleView:
    last, error = schedule.last, schedule.last_error
    return schedule_api.ScheduleView(
        name=schedule.name,
        workflow=schedule.workflow,
        cron=schedule.cron,
        timezone=schedule.timezone,
        input=schedule.input,
        labels=dict(schedule.labels),
        catch_up=schedule.catch_up,
        catch_up_limit=schedule.catch_up_limit,
        paused=schedule.paused,
        created_at=moment(schedule.created_at),
        changed_by=schedule.by,
        next_at=moment(next_at) if next_at is not None else None,
        last=schedule_api.ScheduleFired(at=moment(last.at), run_id=last.run_id) if last is not None else None,
        last_error=schedule_api.ScheduleRefused(at=moment(error.at), code=error.code, message=error.message)
        if error is not None
        else None,
    )
