"""Task types over the server's own API: how much waits, and how quickly it may go out."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fumehood.wire.base import ABSENT_NOT_NULL, WHOLE, WireModel

TASK_TYPES_PATH = "/v1/task-types"
LIMIT_PATH = "/v1/task-types/{task_type}/limit"

RATE_FORM = r"^([1-9][0-9]{0,2}/s|[1-9][0-9]{0,3}/m|[1-9][0-9]{0,5}/h)$"
"""Less than one for each millisecond, which is as fine as timers are: more is no limit that this system would meet."""
RATE_WORDS = "a count and a unit, like 10/s, 100/m or 1000/h, and at most 999/s, 9999/m or 999999/h"
LARGEST_BURST = 10_000

Rate = Annotated[str, Field(max_length=16, json_schema_extra={"pattern": RATE_FORM})]


class SetLimitRequest(WireModel):
    """How quickly tasks of a type may go out."""

    rate: Annotated[Rate, Field(description=f"{RATE_WORDS.capitalize()}; they go out evenly")]
    burst: Annotated[
        int, Field(ge=1, le=LARGEST_BURST), WHOLE, Field(description="So many may go out at once after a pause")
    ] = 1


class TaskTypeLimit(WireModel):
    """A limit that counts, for all servers and runs together."""

    rate: Annotated[Rate, Field(description="As it was set")]
    burst: Annotated[int, Field(ge=1, description="So many may go out at once after a pause")]


class TaskTypeView(WireModel):
    """A type of tasks."""

    task_type: Annotated[str, Field(description="Its name")]
    waiting: Annotated[int, Field(ge=0, description="Tasks that no worker has taken yet")]
    limit: Annotated[TaskTypeLimit | None, ABSENT_NOT_NULL, Field(description="Absent where it has none")] = None


class TaskTypeList(WireModel):
    """Types of tasks that have a limit, or tasks that wait."""

    task_types: Annotated[list[TaskTypeView], Field(description="Sorted by name")]
    next: Annotated[str | None, Field(description="`after` for the next page; null where this is the last")] = None
