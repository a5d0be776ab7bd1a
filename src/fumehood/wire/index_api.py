"""Lists of runs, and the index that they come from.

Field names are the contract; a later version adds fields and never changes what one means.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from fumehood.wire.base import ABSENT_NOT_NULL, UtcTime, WireModel
from fumehood.wire.run_api import Failure, RunPhase

RUNS_PATH = "/v1/runs"
DEAD_LETTERS_PATH = "/v1/dead-letters"
STATISTICS_PATH = "/v1/run-statistics"
INDEX_PATH = "/v1/index"
REBUILD_PATH = "/v1/index:rebuild"


class RunParent(WireModel):
    """The step that a run works for."""

    run_id: Annotated[str, Field(description="The run that called it")]
    step: Annotated[str, Field(description="The step of that run")]


class RunSummary(WireModel):
    """A run in a list. `GET /v1/runs/{run_id}` shows all of it."""

    run_id: Annotated[str, Field(description="The run's name")]
    workflow: Annotated[str, Field(description="The workflow's name")]
    definition: Annotated[str, Field(description="The definition that the run is pinned to, by its digest")]
    status: Annotated[RunPhase, Field(strict=False, description="Where it stands; never `queued`")]
    started_at: Annotated[UtcTime, Field(description="When it was first looked at: lists are sorted by this")]
    ended_at: Annotated[UtcTime | None, Field(description="When it ended")] = None
    labels: Annotated[dict[str, str], Field(description="What whoever started it wrote on it")]
    started_by: Annotated[str | None, ABSENT_NOT_NULL, Field(description="Who asked for it")] = None
    error: Annotated[Failure | None, Field(description="Why it failed")] = None
    failed_step: Annotated[str | None, Field(description="The step that it failed at, where it was one")] = None
    tries: Annotated[int, Field(ge=0, description="How often it was taken up again after it had ended")] = 0
    parent: Annotated[RunParent | None, ABSENT_NOT_NULL, Field(description="Who called it, where a run did")] = None
    schedule: Annotated[str | None, ABSENT_NOT_NULL, Field(description="The schedule that started it")] = None
    continued_as: Annotated[str | None, ABSENT_NOT_NULL, Field(description="The run that goes on after it")] = None
    archived: Annotated[bool, Field(description="Whether it can only be read any more")] = False


class RunList(WireModel):
    """A part of a list of runs, newest first."""

    runs: Annotated[list[RunSummary], Field(description="By `started_at`, newest first")]
    next: Annotated[str | None, Field(description="`cursor` for the next page; null where this is the last")] = None


class StatisticsWindow(StrEnum):
    """How far back statistics of runs go."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"


class RunInterval(WireModel):
    """The runs that started in an interval."""

    at: Annotated[UtcTime, Field(description="When it began")]
    counts: Annotated[
        dict[RunPhase, Annotated[int, Field(ge=1)]],
        Field(description="Of these runs, by the status that they have now; a status that none has is left out"),
    ]


class SlowWorkflow(WireModel):
    """How long runs of a workflow took, from their start to their end."""

    workflow: Annotated[str, Field(description="The workflow's name")]
    runs: Annotated[int, Field(ge=1, description="How many have ended")]
    mean_seconds: Annotated[float, Field(ge=0, description="How long one of them took on average")]
    longest_seconds: Annotated[float, Field(ge=0, description="How long the longest took")]


class FailingStep(WireModel):
    """A step that runs failed at."""

    workflow: Annotated[str, Field(description="The workflow's name")]
    step: Annotated[str, Field(description="The step")]
    runs: Annotated[int, Field(ge=1, description="How many runs failed at it")]
    newest: Annotated[str, Field(description="The one of them that started last")]


class RunStatistics(WireModel):
    """The runs that started within a window of time."""

    since: Annotated[UtcTime, Field(description="When the window began, at the start of an interval")]
    interval_seconds: Annotated[int, Field(ge=1, description="How long each interval is")]
    intervals: Annotated[list[RunInterval], Field(description="Oldest first; those without runs are left out")]
    slowest: Annotated[list[SlowWorkflow], Field(description="The workflows with the longest mean, longest first")]
    failing: Annotated[list[FailingStep], Field(description="The steps that most runs failed at, most first")]


class IndexStage(StrEnum):
    """Where a server's index stands."""

    BUILDING = "building"
    READY = "ready"
    REBUILDING = "rebuilding"


class IndexView(WireModel):
    """The index of the server that answers: each has its own."""

    state: Annotated[
        IndexStage,
        Field(
            strict=False,
            description="`building`: lists are not answered yet; `rebuilding`: this one serves while another is made",
        ),
    ]
    caught_up: Annotated[bool, Field(description="Whether it knows every run that there was when it was begun")]
    runs: Annotated[int, Field(ge=0, description="How many runs it knows, of all tenants")]
    age_seconds: Annotated[
        float | None,
        Field(ge=0, description="What happened longer ago than this is in the lists; null while there are none"),
    ] = None
    built_at: Annotated[UtcTime | None, Field(description="When it was complete")] = None
    unreadable: Annotated[int, Field(ge=0, description="Runs whose line cannot be read: see `from` of a rebuild")] = 0


class RebuildSource(StrEnum):
    """What an index is made from."""

    SUMMARIES = "summaries"
    JOURNALS = "journals"


class RebuildRequest(WireModel):
    """An index to be made anew."""

    source: Annotated[
        RebuildSource,
        Field(
            alias="from",
            strict=False,
            description="`summaries`: from the line that is kept for each run; `journals`: these lines are first "
            "written anew from the runs' own histories, where they were lost or damaged. That takes minutes, and does "
            "not bring back archived runs",
        ),
    ] = RebuildSource.SUMMARIES
