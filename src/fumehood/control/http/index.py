"""Lists of runs, dead letters and the index over HTTP."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fumehood.control.http import schema
from fumehood.control.http.answers import json_answer
from fumehood.control.http.asked import body_if_any
from fumehood.control.http.callers import caller_of
from fumehood.control.http.queries import Query
from fumehood.control.index import Index, IndexState, RunPage, Source, Stage
from fumehood.control.index_query import RunFilter
from fumehood.control.index_rows import RunRow
from fumehood.control.index_store import Statistics
from fumehood.door.schema import RETRY, Responses, problem_response
from fumehood.engine.state import RunStatus
from fumehood.errors import InvalidRequestError
from fumehood.wire import index_api
from fumehood.wire.index_api import StatisticsWindow
from fumehood.wire.run_api import Failure, RunPhase
from fumehood.wire.times import moment

PATHS = (
    index_api.RUNS_PATH,
    index_api.DEAD_LETTERS_PATH,
    index_api.STATISTICS_PATH,
    index_api.INDEX_PATH,
    index_api.REBUILD_PATH,
)
MODELS: schema.Models = [
    (index_api.RunList, "serialization"),
    (index_api.RunStatistics, "serialization"),
    (index_api.IndexView, "serialization"),
    (index_api.RebuildRequest, "validation"),
]
MOST = 200
MOST_LABELS = 16
"""As many as a run may have."""
LONGEST_NAME = 128
LONGEST_LABEL = 64 + 1 + 256
LONGEST_CURSOR = 256
_STATUSES = [status.value for status in RunStatus]

_WINDOWS = {  # the length of an interval in seconds, and how many there are
    StatisticsWindow.HOUR: (60, 60),
    StatisticsWindow.DAY: (1_800, 48),
    StatisticsWindow.WEEK: (10_800, 56),
    StatisticsWindow.MONTH: (43_200, 60),
}

_FILTERS = ("workflow", "status", "started_after", "started_before", "parent", "schedule", "limit", "cursor")
_NAME = {"type": "string", "minLength": 1, "maxLength": LONGEST_NAME}
_MOMENT = {"type": "string", "format": "date-time"}
_LABELS = {
    "type": "array",
    "items": {"type": "string", "pattern": "^[^=]+=", "maxLength": LONGEST_LABEL},
    "maxItems": MOST_LABELS,
}
_QUERY = (
    schema.query("workflow", "Only runs of this workflow", _NAME),
    schema.query("status", "Only runs that stand so", {"type": "string", "enum": _STATUSES}),
    schema.query("label", "Only runs with this label, as `key=value`; may be repeated, then with all of them", _LABELS),
    schema.query("started_after", "Only runs that started at this moment or later", _MOMENT),
    schema.query("started_before", "Only runs that started earlier than this", _MOMENT),
    schema.query("parent", "Only runs that this run called", _NAME),
    schema.query("schedule", "Only runs that this schedule started", _NAME),
    schema.query("limit", "At most so many", {"type": "integer", "minimum": 1, "maximum": MOST, "default": 50}),
    schema.query("cursor", "`next` of the page before", {"type": "string", "maxLength": LONGEST_CURSOR}),
)
_UNAVAILABLE = problem_response("index-unavailable", "broker-unavailable", "broker-full", extra_headers=RETRY)
_LIST: Responses = {200: schema.answer("RunList", "Runs, newest first"), 503: _UNAVAILABLE}
_STATISTICS: Responses = {200: schema.answer("RunStatistics", "What became of them"), 503: _UNAVAILABLE}
_WINDOW = schema.query(
    "window",
    "How far back: `hour`, `day`, `week` or `month`",
    {"type": "string", "enum": [one.value for one in StatisticsWindow], "default": "day"},
)
_STATE: Responses = {200: schema.answer("IndexView", "Where the index stands"), 503: _UNAVAILABLE}
_REBUILD: Responses = {
    202: schema.answer("IndexView", "It is being made anew"),
    409: problem_response("conflict"),
    503: _UNAVAILABLE,
}


def index_router(index: Index) -> APIRouter:
    router = APIRouter(tags=["runs"])

    async def listed(request: Request, *, dead: bool) -> Response:
        query = Query(request, _FILTERS, repeated=("label",))
        cursor, limit = query.text("cursor", LONGEST_CURSOR), query.number("limit", 50, 1, MOST)
        page = await index.runs(caller_of(request).tenant, _filter(query, dead=dead), cursor=cursor, limit=limit)
        return json_answer(_list(page))

    @router.get(
        index_api.RUNS_PATH,
        **schema.operation(
            "list_runs",
            "List runs",
            _LIST,
            *_QUERY,
            description="Newest first. A run is in the list moments after it was first looked at, not while it is "
            "queued.",
        ),
    )
    async def runs(request: Request) -> Response:
        return await listed(request, dead=False)

    @router.get(
        index_api.DEAD_LETTERS_PATH,
        **schema.operation(
            "list_dead_letters",
            "List runs that failed or timed out",
            _LIST,
            *_QUERY,
            description="Newest first, each with why and where. A run that is taken up again leaves the list.",
        ),
    )
    async def dead_letters(request: Request) -> Response:
        return await listed(request, dead=True)

    @router.get(
        index_api.STATISTICS_PATH,
        **schema.operation(
            "get_run_statistics",
            "Show how many runs there were, which workflows take longest and which steps fail",
            _STATISTICS,
            _WINDOW,
        ),
    )
    async def statistics(request: Request) -> Response:
        window = Query(request, ("window",)).choice("window", list(StatisticsWindow)) or StatisticsWindow.DAY
        seconds, intervals = _WINDOWS[StatisticsWindow(window)]
        found = await index.statistics(caller_of(request).tenant, seconds * 1000, intervals)
        return json_answer(_statistics(found, seconds))

    @router.get(
        index_api.INDEX_PATH,
        **schema.operation("get_index", "Show where this server's index of runs stands", _STATE),
    )
    async def state(request: Request) -> Response:
        Query(request)
        return json_answer(_view(await index.state()))

    @router.post(
        index_api.REBUILD_PATH,
        **schema.operation(
            "rebuild_index",
            "Make this server's index of runs anew",
            _REBUILD,
            body="RebuildRequest",
            required=False,
            description="From nothing, while the present one goes on serving; nothing is lost by it.",
        ),
    )
    async def rebuild(request: Request) -> Response:
        asked = await body_if_any(index_api.RebuildRequest, request)
        index.rebuild(Source(asked.source.value))
        return json_answer(_view(await index.state()), 202)

    return router


# --- what was asked ----------------------------------------------------------------------------------------


def _filter(query: Query, *, dead: bool) -> RunFilter:
    return RunFilter(
        workflow=_name(query, "workflow"),
        status=query.choice("status", _STATUSES),
        labels=_labels(query.texts("label", LONGEST_LABEL, MOST_LABELS)),
        started_after=query.moment("started_after"),
        started_before=query.moment("started_before"),
        parent=_name(query, "parent"),
        schedule=_name(query, "schedule"),
        dead=dead,
    )


def _name(query: Query, name: str) -> str | None:
    text = query.text(name, LONGEST_NAME)
    if text == "":
        raise InvalidRequestError(f"{name}: must not be empty")
    return text


def _labels(given: list[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in given:
        key, separator, value = text.partition("=")
        if not key or not separator:
            raise InvalidRequestError("label: must be key=value")
        if labels.setdefault(key, value) != value:
            raise InvalidRequestError("label: the same key is there with two values")
    return labels


# --- what is answered --------------------------------------------------------------------------------------


def _list(page: RunPage) -> index_api.RunList:
    return index_api.RunList(runs=[_summary(row) for row in page.runs], next=page.next)


def _statistics(found: Statistics, seconds: int) -> index_api.RunStatistics:
    counts: dict[int, dict[RunPhase, int]] = {}
    for row in found.intervals:
        counts.setdefault(row["interval"], {})[RunPhase(row["status"])] = row["runs"]
    return index_api.RunStatistics(
        since=moment(found.since),
        interval_seconds=seconds,
        intervals=[
            index_api.RunInterval(at=moment(found.since + place * seconds * 1000), counts=known)
            for place, known in counts.items()
        ],
        slowest=[
            index_api.SlowWorkflow(
                workflow=row["workflow"],
                runs=row["runs"],
                mean_seconds=max(0, row["mean_ms"]) / 1000,
                longest_seconds=max(0, row["longest_ms"]) / 1000,
            )
            for row in found.slowest
        ],
        failing=[
            index_api.FailingStep(workflow=row["workflow"], step=row["step"], runs=row["runs"], newest=row["newest"])
            for row in found.failing
        ],
    )


def _summary(row: RunRow) -> index_api.RunSummary:
    known: dict[str, Any] = {"error": None, "parent": None}
    if row.error_code is not None:
        known["error"] = Failure(code=row.error_code, message=row.error_message or "")
    if row.parent_run is not None:
        known["parent"] = index_api.RunParent(run_id=row.parent_run, step=row.parent_step or "")
    return index_api.RunSummary(
        run_id=row.run_id,
        workflow=row.workflow,
        definition=row.definition,
        status=RunPhase(row.status),
        started_at=moment(row.started_at),
        ended_at=moment(row.ended_at) if row.ended_at is not None else None,
        labels=dict(row.labels),
        started_by=row.by or None,
        failed_step=row.failed_step,
        tries=row.tries,
        schedule=row.schedule,
        continued_as=row.continued_as,
        archived=row.archived,
        **known,
    )


def _view(state: IndexState) -> index_api.IndexView:
    return index_api.IndexView(
        state=index_api.IndexStage(state.stage.value),
        caught_up=state.stage is not Stage.BUILDING,
        runs=state.runs,
        age_seconds=round(state.age_seconds, 3) if state.age_seconds is not None else None,
        built_at=moment(state.built_at) if state.built_at is not None else None,
        unreadable=state.unreadable,
    )
