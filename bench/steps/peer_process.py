"""`python peer_process.py ROLE`, in the peers' own environment: one process of a peer.

The first line of standard input is a JSON document with what it needs; it answers `ready`. Each further line asks for
so many runs, so many at once, and is answered by their times in seconds when all of them have ended. A run is a chain
of as many steps as the document says, and what its last step gave is compared. Nothing of Fumehood is imported here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

Run = Callable[[], Awaitable[dict[str, Any]]]
Close = Callable[[], Awaitable[None]]
STEP, ANSWERS = "step", "answers"


async def dbos(document: dict[str, Any]) -> tuple[Run, Close]:
    """Workflow and steps are coroutines of one process, as its documentation advises for many at once."""
    from dbos import DBOS  # type: ignore[import-not-found]

    steps, result, text = document["steps"], document["result"], document["text"]
    DBOS(
        config={
            "name": "bench",
            "system_database_url": document["url"],
            "sys_db_pool_size": document["connections"],
            "max_executor_threads": document["connections"],
            "executor_id": document["executor"],
            "application_version": "1",
            "log_level": "ERROR",
        }
    )

    @DBOS.step()  # type: ignore[untyped-decorator]
    async def step(_number: int, _text: str) -> dict[str, Any]:
        done: dict[str, Any] = result
        return done

    @DBOS.workflow()  # type: ignore[untyped-decorator]
    async def chain(given: str) -> dict[str, Any]:
        done: dict[str, Any] = {}
        for number in range(steps):
            done = {f"s{number}": await step(number, given)}
        return done

    DBOS.launch()

    async def run() -> dict[str, Any]:
        done: dict[str, Any] = await chain(text)
        return done

    async def close() -> None:
        await asyncio.to_thread(DBOS.destroy)

    return run, close


def _taskiq(document: dict[str, Any]) -> tuple[Any, Any]:
    """Its broker, and the one task that the chain is made of: it sends the next one before it is acknowledged."""
    from taskiq_nats import PullBasedJetStreamBroker  # type: ignore[import-not-found]

    steps, result = document["steps"], document["result"]
    broker = PullBasedJetStreamBroker(
        servers=[document["url"]], pull_consume_batch=document["batch"], pull_consume_timeout=document["wait"]
    )

    @broker.task(task_name=STEP)  # type: ignore[untyped-decorator]
    async def step(run: int, number: int, text: str) -> None:
        if number + 1 < steps:
            await step.kiq(run, number + 1, text)
        else:
            await broker.client.publish(ANSWERS, json.dumps([run, {f"s{number}": result}]).encode())

    return broker, step


async def taskiq_worker(document: dict[str, Any]) -> tuple[Run, Close]:
    from taskiq.api import run_receiver_task  # type: ignore[import-not-found]

    broker, _ = _taskiq(document)
    broker.is_worker_process = True
    await broker.startup()
    receiving = asyncio.create_task(run_receiver_task(broker, max_async_tasks=document["at_once"]))

    async def run() -> dict[str, Any]:
        raise NotImplementedError("a worker is not asked")

    async def close() -> None:
        receiving.cancel()
        await asyncio.wait({receiving})
        await broker.shutdown()

    return run, close


async def taskiq(document: dict[str, Any]) -> tuple[Run, Close]:
    """Who starts the runs and hears of their ends: a plain message, which costs less than its stored results."""
    broker, step = _taskiq(document)
    await broker.startup()
    waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
    numbers = iter(range(sys.maxsize))

    async def answered(message: Any) -> None:
        number, found = json.loads(message.data)
        future = waiting.pop(number, None)
        if future is not None:
            future.set_result(found)

    await broker.client.subscribe(ANSWERS, cb=answered)

    async def run() -> dict[str, Any]:
        number = next(numbers)
        waiting[number] = asyncio.get_running_loop().create_future()
        future = waiting[number]
        await step.kiq(number, 0, document["text"])
        return await future

    return run, broker.shutdown


ROLES = {"dbos": dbos, "taskiq": taskiq, "taskiq-worker": taskiq_worker}


async def many(run: Run, runs: int, at_once: int, answer: dict[str, Any]) -> list[float]:
    """How long each of them took."""
    left, times = iter(range(runs)), []

    async def one_by_one() -> None:
        for _ in left:
            began = time.perf_counter()
            found = await run()
            times.append(time.perf_counter() - began)
            if found != answer:
                raise ValueError(f"a wrong answer: {found!r}")

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(one_by_one())
    return times


async def serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a peer prints is no answer
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    document = json.loads(await reader.readline())
    answer = {f"s{document['steps'] - 1}": document["result"]}
    run, close = await ROLES[sys.argv[1]](document)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    try:
        while line := await reader.readline():
            asked = json.loads(line)
            times = await many(run, asked["runs"], asked["at_once"], answer)
            print(json.dumps({"times": times}), file=answers, flush=True)
    finally:
        await close()


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    uvloop.run(serve())
