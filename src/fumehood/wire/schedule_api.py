"""Schedules: which workflow is started when, and how far that has come.

Field names are the contract; a later version adds fields and never changes what one means.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from fumehood.wire.base import ABSENT_NOT_NULL, NOT_NULL, WHOLE, UtcTime, WireModel
from fumehood.wire.run_api import Labels

SCHEDULES_PATH = "/v1/schedules"
SCHEDULE_PATH = "/v1/schedules/{name}"
PAUSE_PATH = "/v1/schedules/{name}:pause"
RESUME_PATH = "/v1/schedules/{name}:resume"
TRIGGER_PATH = "/v1/schedules/{name}:trigger"

NAME_PATTERN = r"^[A-Za-z0-9_](-?[A-Za-z0-9_])*$"
LONGEST_NAME = 128
LONGEST_CRON = 256
LONGEST_ZONE = 64
CAUGHT_UP = 10
MOST_CAUGHT_UP = 100
"""Runs that the end of an outage starts at once, for one schedule."""


class CatchUp(StrEnum):
    """What becomes of times that were missed because no server was there."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


class PutScheduleRequest(WireModel):
    """What a schedule shall be, all of it: what is left out becomes the default."""

    workflow: Annotated[str, Field(min_length=1, max_length=LONGEST_NAME, description="The workflow to start")]
    cron: Annotated[
        str,
        Field(
            min_length=1,
            max_length=LONGEST_CRON,
            description="Minute, hour, day of month, month and day of week, as cron writes them; or `@hourly`, "
            "`@daily`, `@weekly`, `@monthly`, `@yearly`",
        ),
    ]
    timezone: Annotated[
        str, Field(min_length=1, max_length=LONGEST_ZONE, description="Where the clock hangs: `Europe/Berlin`")
    ] = "UTC"
    input: Annotated[Any, Field(description="Of every run: at most 16 KiB of JSON")] = None
    labels: Labels = Field(default_factory=dict)
    catch_up: Annotated[
        CatchUp,
        Field(
            strict=False,
            description="Of the times that were missed, more than a minute ago, because no server was there: start "
            "none of them, the last one, or all",
        ),
    ] = CatchUp.NONE
    catch_up_limit: Annotated[
        int, Field(ge=1, le=MOST_CAUGHT_UP, description="How many `all` are at most: the newest, oldest first"), WHOLE
    ] = CAUGHT_UP
    paused: Annotated[
        bool | None,
        NOT_NULL,
        ABSENT_NOT_NULL,
        Field(description="Whether it stands still; absent: as it did, and a new one does not"),
    ] = None


class ScheduleFired(WireModel):
    """A time that became a run."""

    at: Annotated[UtcTime, Field(description="The time that the run is for")]
    run_id: Annotated[str, Field(description="The run")]


class ScheduleRefused(WireModel):
    """A time that could not become a run."""

    at: Annotated[UtcTime, Field(description="The time that there is no run for")]
    code: Annotated[str, Field(description="For programs: the problem's")]
    message: Annotated[str, Field(description="For people")]


class ScheduleView(WireModel):
    """A schedule as it is now."""

    name: Annotated[str, Field(description="Its name")]
    workflow: Annotated[str, Field(description="The workflow that it starts")]
    cron: Annotated[str, Field(description="When, as it was written")]
    timezone: Annotated[str, Field(description="Where the clock hangs")]
    input: Annotated[Any, Field(description="Of every run")] = None
    labels: Annotated[dict[str, str], Field(description="Of every run")]
    catch_up: Annotated[CatchUp, Field(strict=False, description="What becomes of times that were missed")]
    catch_up_limit: Annotated[int, Field(description="How many `all` are at most")]
    paused: Annotated[bool, Field(description="Whether it stands still")]
    created_at: Annotated[UtcTime, Field(description="When it was made")]
    changed_by: Annotated[str, Field(description="Who wrote it, paused it or resumed it last")]
    next_at: Annotated[UtcTime | None, Field(description="When it fires next; null while it is paused")] = None
    last: Annotated[ScheduleFired | None, Field(description="The newest time that became a run")] = None
    last_error: Annotated[
        ScheduleRefused | None, Field(description="Why the newest time became none; null where it did")
    ] = None


class ScheduleList(WireModel):
    """Schedules by name."""

    schedules: Annotated[list[ScheduleView], Field(description="Sorted by name")]
    next: Annotated[str | None, Field(description="`after` for the next page; null where this is the last")] = None
