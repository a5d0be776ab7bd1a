"""One workflow with every kind of step in it, many times over, while deciders are killed at random.

Deciders are forked processes that end by SIGKILL and nothing else. Whoever starts, signals, approves and repairs does
so through the use cases behind the doors. Every run must end as its number says, with each signal and each approval
taken exactly once, each undoing done, and nothing left behind.

A sweep goes round as on every server: a decider that stood still may ask for a key which another one has left since,
and if it is killed then nobody but the sweep knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fumehood import Task, TaskFailed, Worker
from fumehood.broker.broker import NatsBroker
from fumehood.broker.handout import Handouts
from fumehood.broker.ports import Bucket
from fumehood.control import loading
from fumehood.control.callers import ADMIN, DEFAULT_TENANT
from fumehood.control.orders import Orders
from fumehood.control.runs import Runs, Start
from fumehood.control.sweep import Sweeper
from fumehood.control.workflows import Workflows
from fumehood.engine.state import RunState, RunStatus, StepStatus
from fumehood.errors import BrokerUnavailableError, ConflictError, LeaseLostError
from fumehood.wire.sandbox import SANDBOX_TASK
from tests.conformance.broker_bench import NODE, WORKER, NatsServer
from tests.faults.test_decider_killed import Doomed, Nursery
from tests.integration.engine_world import LOOK, drained, held_leases, queued_tasks, shape
from tests.waiting import PATIENCE, until

SECONDS = 240.0
PARTITIONS = 2
LIFE = (0.3, 1.5)
"""Seconds that a decider lives."""
AT_ONCE = 40
SWEEP_SECONDS = 5.0
"""Between two rounds of the sweep; minutes on a real server."""
CHILD = (
    "name: child\nsteps:\n  - {id: work, task: t, with: {n: input.n}}\n  - {id: rest, needs: [work], sleep: 100ms}\n"
)
ALL = """
name: all
deadline: 10m
max_parallel: 4
concurrency: {key: "'k' + string(int(input.n) % 5)", limit: 4}
on_failure: {task: tell, with: {n: input.n, why: failure.code}}
continue_as_new: {when: input.again, input: {n: input.n, again: false}}
steps:
  - id: fetch
    task: flaky
    with: {n: input.n}
    retry: {attempts: 3, backoff: 50ms}
    compensate: {task: undo, with: {n: input.n}}
  - {id: nap, sleep: 100ms}
  - {id: loop, needs: [fetch], agent_loop: {task: loop, max_iterations: 5}}
  - {id: each, needs: [fetch], map: {over: "[1, 2, 3]", task: t, concurrency: 2}, with: {n: input.n, item: item}}
  - {id: hear, needs: [nap], wait_signal: {name: go, timeout: 5m}}
  - {id: ok, needs: [nap], approval: {message: "Go on?", timeout: 5m}}
  - {id: call, needs: [loop], sub_workflow: {workflow: child}, with: {n: input.n}}
  - {id: soft, needs: [each], task: hopeless, on_failure: continue}
  - id: maybe
    needs: [soft]
    when: steps.soft.error.code == 'never'
    task: t
    with: {n: input.n}
    concurrency: {key: "'only'", limit: 3}
  - {id: box, needs: [ok, hear], sandbox: {image: "registry.example/x", command: [y]}}
  - {id: last, needs: [call, maybe, box], task: last, with: {n: input.n}}
output: {heard: steps.hear.output, by: steps.ok.output.by, child: steps.call.output.rest, each: steps.each.output}
"""
UNDONE = "    compensate: {task: undo, with: {n: input.n}}\n"
KEPT = ALL.replace("name: all", "name: kept").replace(UNDONE, "")
"""Where nothing is undone, a run can be taken up again."""


class Kind:
    """What becomes of a run, by its number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.refused = number % 10 == 3
        self.repaired = number % 10 == 5
        self.workflow = "kept" if self.repaired else "all"
        self.continued = number % 10 == 7


@dataclass
class Cell:
    """A broker, those who ask, and those who work."""

    server: NatsServer
    broker: NatsBroker
    orders: Orders
    runs: Runs
    done: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Tasks that workers completed, by type and number."""

    async def state(self, run_id: str) -> RunState:
        async def look() -> RunState | None:
            with contextlib.suppress(BrokerUnavailableError):
                return (await loading.load(self.broker, run_id))[0]
            return None

        found = await until(look, SECONDS)
        assert found is not None
        return found

    async def when(self, run_id: str, met: Callable[[RunState], bool]) -> RunState:
        async def look() -> RunState | None:
            state = await self.state(run_id)
            return state if met(state) else None

        found = await until(look, SECONDS)
        assert found is not None
        return found


@contextlib.asynccontextmanager
async def cell(directory: Path) -> AsyncIterator[Cell]:
    server = NatsServer(directory / "nats", PARTITIONS)
    server.start()
    broker = await NatsBroker.open(server.options(), shape(PARTITIONS))
    workflows = Workflows(broker, now_ms=now_ms)
    for name, text in (("child", CHILD), ("all", ALL), ("kept", KEPT)):
        await workflows.apply(name, text.encode(), is_json=False, tenant=DEFAULT_TENANT)
    runs = Runs(broker, workflows, now_ms=now_ms)
    try:
        yield Cell(server, broker, Orders(broker, runs, now_ms=now_ms), runs)
    finally:
        await broker.close()
        server.kill()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class Hands:
    """What the worker does; what it completed is counted when it answers."""

    done: Counter[tuple[str, int]]

    def did(self, task: Task) -> int:
        number = int(task.input["n"])
        self.done[task.type, number] += 1
        return number

    async def plain(self, task: Task) -> Any:
        self.did(task)
        return task.input.get("item")

    async def flaky(self, task: Task) -> Any:
        if task.attempt == 1 and int(task.input["n"]) % 2:
            raise TaskFailed("weather", "not yet")
        return self.did(task)

    async def loop(self, task: Task) -> Any:
        if task.iteration < 2:
            raise task.again({})
        return self.did(task)

    async def hopeless(self, task: Task) -> Any:
        raise TaskFailed("never", "not once", retryable=False)

    async def last(self, task: Task) -> Any:
        if Kind(int(task.input["n"])).repaired and task.attempt == 1:
            raise TaskFailed("odd", "somebody should look at this", retryable=False)
        return self.did(task)


def worker_for(here: Cell) -> Worker:
    (address,) = here.server.options().servers
    worker = Worker(address.replace("://", f"://{WORKER.name}:{WORKER.password}@"), max_tasks=32)
    hands = Hands(here.done)
    for kind in ("t", "undo", "tell"):
        worker.task(kind)(hands.plain)
    for kind in ("flaky", "loop", "hopeless", "last"):
        worker.task(kind)(getattr(hands, kind))
    return worker


async def serve_as_node(here: Cell) -> None:
    """Takes the sandboxes: no worker may. A broker that does not answer for a while is asked again."""
    node = await NatsBroker.open_worker(here.server.options(NODE))
    handouts = Handouts(node)
    try:
        while True:
            with contextlib.suppress(BrokerUnavailableError):
                for one in await handouts.take([SANDBOX_TASK], max_tasks=32, timeout=5, worker_id=NODE.name):
                    with contextlib.suppress(LeaseLostError):
                        await handouts.complete(one.lease, {"exit_code": 0})
    finally:
        await node.close()


@contextlib.asynccontextmanager
async def dying(here: Cell, directory: Path, draw: random.Random) -> AsyncIterator[list[int]]:
    """Two deciders for each partition, none of which lives long; how many died."""
    deaths = [0]

    async def line(partition: int) -> None:
        while True:
            one: Doomed = nursery.fork("nobody", partition)
            await asyncio.sleep(draw.uniform(*LIFE))
            await one.kill()
            deaths[0] += 1

    async with Nursery.open(here.server, directory / "errors") as nursery:
        lines = [asyncio.create_task(line(partition)) for partition in range(PARTITIONS) for _ in range(2)]
        try:
            yield deaths
            for one in lines:
                if one.done():
                    one.result()
        finally:
            for one in lines:
                one.cancel()
            await asyncio.gather(*lines, return_exceptions=True)


async def carried_through(here: Cell, kind: Kind) -> str:
    """One run, with all that people have to do with it."""
    given = {"n": kind.number, "again": kind.continued}
    run_id: str
    run_id, _ = await persistently(lambda: here.runs.start(Start(kind.workflow, given, f"n-{kind.number}"), ADMIN))
    signal = f"s-{kind.number}"
    for _ in range(2):  # told twice, as by a caller that did not hear the answer
        await persistently(lambda: here.orders.signal(run_id, ADMIN, "go", {"n": kind.number}, signal))
    await here.when(run_id, lambda state: state.steps["ok"].status is StepStatus.AWAITING_APPROVAL)
    await asyncio.gather(*(approved(here, run_id, kind) for _ in range(2)))
    if kind.repaired:
        await here.when(run_id, lambda state: state.status is RunStatus.FAILED)
        await persistently(lambda: here.orders.retry(run_id, ADMIN, reason="looked at it"))
        await here.when(run_id, lambda state: state.tries == 1 and state.status.ended)
    state = await here.when(run_id, lambda state: state.status.ended and state.tries == int(kind.repaired))
    if state.continued_as is not None:  # nobody tells that one anything: it would wait, and keep its key
        await here.when(state.continued_as, lambda state: state.steps["ok"].status is StepStatus.AWAITING_APPROVAL)
        await persistently(lambda: here.orders.cancel(run_id, ADMIN))
        await here.when(state.continued_as, lambda state: state.status is RunStatus.CANCELLED)
    return run_id


async def approved(here: Cell, run_id: str, kind: Kind) -> None:
    with contextlib.suppress(ConflictError):  # the other one was quicker
        await persistently(lambda: here.orders.approve(run_id, "ok", ADMIN, approved=not kind.refused))


async def persistently(call: Callable[[], Awaitable[Any]]) -> Any:
    async def tried() -> tuple[Any] | None:
        with contextlib.suppress(BrokerUnavailableError):
            return (await call(),)
        return None

    found = await until(tried, SECONDS)
    assert found is not None
    return found[0]


def judge(here: Cell, kind: Kind, state: RunState) -> list[str]:
    """What is wrong with how a run ended."""
    wrong = []
    taken = [signal.taken_by for signal in state.signals]
    if len(taken) != 1:
        wrong.append(f"one signal was told, and {len(taken)} were heard")
    wanted = RunStatus.FAILED if kind.refused else RunStatus.SUCCEEDED
    if state.status is not wanted:
        wrong.append(f"it ended as {state.status}: {state.failure}")
    errands = {name: step.status for name, step in state.steps.items() if name.endswith(("--undo", "--on-failure"))}
    if kind.refused:
        undone = state.steps["fetch"].status is StepStatus.COMPLETED
        expected = {"--on-failure": StepStatus.COMPLETED} | ({"fetch--undo": StepStatus.COMPLETED} if undone else {})
        if errands != expected:
            wrong.append(f"what was undone is {errands}")
    else:
        output = {"heard": {"n": kind.number}, "by": "admin", "child": None, "each": [1, 2, 3]}
        if state.output != output or taken != ["hear"]:
            wrong.append(f"it gave {state.output}, and the signal went to {taken}")
    return wrong


async def left_behind(here: Cell, run_id: str) -> list[str]:
    """Not timers: one that a decider sets again while another one ends the run fires later, for nobody. Whoever
    answered for a task acks it a moment later, so that it is looked for again."""
    end = time.monotonic() + PATIENCE
    while True:
        tasks, leases = await queued_tasks(here.broker, run_id), await held_leases(here.broker, run_id)
        found = {"tasks": list(tasks), "leases": leases}
        if not any(found.values()) or time.monotonic() > end:
            return [f"{run_id} left {what} behind: {which}" for what, which in found.items() if which]
        await asyncio.sleep(LOOK)


async def left_locks(here: Cell) -> list[str]:
    """Concurrency keys that somebody still holds after the sweep went round when all deciders were dead."""
    bucket, end = here.broker.bucket(Bucket.LOCKS), time.monotonic() + PATIENCE
    while True:
        found = await bucket.keys()
        if not found or time.monotonic() > end:
            return found
        await asyncio.sleep(LOOK)


async def campaign(directory: Path, count: int, record_property: Callable[[str, object], None]) -> None:
    draw = random.Random(4)
    async with cell(directory) as here:
        serving = [asyncio.create_task(worker_for(here).serve()), asyncio.create_task(serve_as_node(here))]
        serving.append(asyncio.create_task(Sweeper(here.broker, now_ms=now_ms, every=SWEEP_SECONDS).work()))
        room = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> str:
            async with room:
                return await carried_through(here, Kind(number))

        began = time.monotonic()
        async with dying(here, directory, draw) as deaths:
            run_ids = await asyncio.gather(*(one(number) for number in range(count)))
            states = [await here.state(run_id) for run_id in run_ids]
            following = [state.continued_as for state in states if state.continued_as is not None]
            for partition in range(PARTITIONS):
                await drained(here.broker, partition)
        children = [step.child for state in states for step in state.steps.values() if step.child is not None]
        left = [what for run_id in (*run_ids, *following, *children) for what in await left_behind(here, run_id)]
        locks = await left_locks(here)
        for one_of_them in serving:
            one_of_them.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        wrong = left + [
            f"{number}: {what}" for number, state in enumerate(states) for what in judge(here, Kind(number), state)
        ]
        figures = {"runs": count, "continued": len(following), "deaths": deaths[0]}
        figures["seconds"] = round(time.monotonic() - began)
        for name, value in figures.items():
            record_property(name, value)
        print(f"\nevery kind: {figures}")
        assert not wrong
        assert locks == [], "a concurrency key is still held"
        assert deaths[0] > count / 4, "hardly anybody died"


@pytest.mark.storm
async def test_every_kind_survives(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    await campaign(tmp_path, 20, record_property)


@pytest.mark.record
@pytest.mark.timeout(900)
async def test_every_kind_survives_two_hundred_times(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    await campaign(tmp_path, 200, record_property)
