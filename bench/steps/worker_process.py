"""`python -m bench.steps.worker_process worker`: a worker as people write one, with the Python library."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import uvloop

from bench.child import Answer, serve
from bench.engine_work import OUTPUT, TASK_TYPE
from fumehood import Task, Worker


async def worker(document: dict[str, Any]) -> Answer:
    where = urlsplit(document["servers"][0]).netloc
    made = Worker(
        f"nats://{document['user']}:{document['password']}@{where}",
        inbox_prefix=document["inbox_prefix"],
        max_tasks=document["at_once"],
    )

    @made.task(TASK_TYPE)
    async def step(_: Task) -> dict[str, str]:
        return OUTPUT

    await made.__aenter__()  # it serves until the process ends
    return lambda: {"worker": made.name}


if __name__ == "__main__":
    uvloop.run(serve({"worker": worker}))
