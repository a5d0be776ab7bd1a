"""The directory of workers over the server's own API."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fumehood.wire.base import WireModel

WORKERS_PATH = "/v1/workers"


class WorkerView(WireModel):
    """A worker that was there within the last minute, in its own words."""

    worker_id: Annotated[str, Field(description="Its name")]
    task_types: Annotated[
        list[str], Field(description="What it takes: types of tasks, or capabilities of one that dialled in")
    ]
    max_tasks: Annotated[int, Field(ge=1, description="How many tasks it takes at once")]
    language: Annotated[str, Field(description="What it is written in; empty where it does not say")]
    transport: Annotated[str, Field(description="`bridge` for one that came over HTTP, `grpc` for one that dialled in")]
    metadata: Annotated[dict[str, str], Field(description="Whatever else it says about itself")]


class WorkerList(WireModel):
    """Workers by name."""

    workers: Annotated[list[WorkerView], Field(description="Sorted by name")]
    waiting: Annotated[
        dict[str, Annotated[int, Field(ge=0)]],
        Field(description="By the types of tasks that these workers take: tasks that nobody has taken yet"),
    ]
    next: Annotated[str | None, Field(description="`after` for the next page; null where this is the last")] = None
