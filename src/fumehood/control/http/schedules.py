"""Schedules over HTTP: written, seen, paused, resumed and triggered."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fumehood.control.http import schema
from fumehood.control.http.answers import json_answer
from fumehood.control.http.asked import body_of
from fumehood.control.http.callers import caller_of, note
from fumehood.control.http.queries import Query
from fumehood.control.schedule import Schedule
from fumehood.control.schedules import Plan, Schedules
from fumehood.door.schema import REQUEST_ID, RETRY, Responses, problem_response
from fumehood.wire import schedule_api
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
_SHOWN: Responses = {200: schema.answer("ScheduleView", "The schedule as it is now")}
_GONE: Responses = {204: {"description": "It is gone", "headers": REQUEST_ID}}
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
        **schema.operation(
            "list_schedules",
            "List schedules by name",
            {200: schema.answer("ScheduleList", "Schedules by name")},
            *schema.paged(MOST, longest=schedule_api.LONGEST_NAME),
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
        **schema.operation("get_schedule", "Show a schedule", _SHOWN | _NOT_FOUND, _NAME),
    )
    async def get(request: Request) -> Response:
        Query(request)
        found = await schedules.get(request.path_params["name"], caller_of(request))
        return json_answer(_view(found, schedules.next_at(found)))


def _add_writing(router: APIRouter, schedules: Schedules) -> None:
    @router.put(
        schedule_api.SCHEDULE_PATH,
        **schema.operation(
            "put_schedule",
            "Make a schedule, or make it another",
            {**_SHOWN, 201: schema.answer("ScheduleView", "The schedule, which is new"), **_CONFLICT},
            _NAME,
            body="PutScheduleRequest",
            description="All of it is replaced. With another `cron`, `timezone` or `workflow` it begins anew, now; "
            "otherwise its times go on as they were.",
        ),
    )
    async def put(request: Request) -> Response:
        asked = await body_of(schedule_api.PutScheduleRequest, request)
        made, is_new = await schedules.put(request.path_params["name"], _plan(asked), caller_of(request))
        note(request, workflow=made.workflow, cron=made.cron, timezone=made.timezone)
        return json_answer(_view(made, schedules.next_at(made)), 201 if is_new else 200)

    @router.delete(
        schedule_api.SCHEDULE_PATH,
        **schema.operation(
            "delete_schedule",
            "Delete a schedule",
            _GONE | _NOT_FOUND,
            _NAME,
            description="Runs that it started go on.",
        ),
    )
    async def delete(request: Request) -> Response:
        Query(request)
        await schedules.delete(request.path_params["name"], caller_of(request))
        return Response(status_code=204)


def _add_orders(router: APIRouter, schedules: Schedules) -> None:
    turned = _SHOWN | _NOT_FOUND | _CONFLICT

    @router.post(
        schedule_api.PAUSE_PATH, **schema.operation("pause_schedule", "Let a schedule stand still", turned, _NAME)
    )
    async def pause(request: Request) -> Response:
        Query(request)
        found = await schedules.pause(request.path_params["name"], caller_of(request))
        return json_answer(_view(found, schedules.next_at(found)))

    @router.post(
        schedule_api.RESUME_PATH,
        **schema.operation(
            "resume_schedule",
            "Let a schedule go on",
            turned,
            _NAME,
            description="From now on: times that lay in the pause are left out.",
        ),
    )
    async def resume(request: Request) -> Response:
        Query(request)
        found = await schedules.resume(request.path_params["name"], caller_of(request))
        return json_answer(_view(found, schedules.next_at(found)))

    @router.post(
        schedule_api.TRIGGER_PATH,
        **schema.operation(
            "trigger_schedule",
            "Start what a schedule starts, now",
            _STARTED | _NOT_FOUND,
            _NAME,
            description="One run more, also of a schedule that is paused; its times go on as they were.",
        ),
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
