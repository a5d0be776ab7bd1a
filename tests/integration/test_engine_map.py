"""Maps: two thousand answers at once, large ones, and a bound on how many items are out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from fumehood.broker import values
from fumehood.broker.ports import Delivery, TaskDelivery
from fumehood.broker.topology import Timing
from fumehood.control.decider import Decider
from fumehood.wire.protocol import EventType, TaskPayload
from tests.conformance.broker_bench import receive
from tests.integration.engine_cases import DOUBLED, Case, Say
from tests.integration.engine_world import World, queue_is_empty, world
from tests.waiting import past

ITEMS = 2000
GROWTH = 96 * 1024 * 1024
"""Bytes that this process, with two deciders and all workers in it, may grow by. A state of 2,000 items has about 2 MB,
and there is one for each decider and a few on their way."""
WHOLE = """
name: burst
output: steps.each.output
steps:
- {id: each, map: {over: input, task: t}, with: {x: item}}
"""


class Memory:
    """How much this process has grown, at most; looked at while it works, since what is freed does not show later."""

    def __init__(self) -> None:
        self._first = self._most = self._now()

    @staticmethod
    def _now() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    @property
    def grown(self) -> int:
        return self._most - self._first

    @classmethod
    @contextlib.asynccontextmanager
    async def watched(cls) -> AsyncIterator[Memory]:
        made = cls()
        watching = asyncio.create_task(made._watch())
        try:
            yield made
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            self._most = max(self._most, self._now())
            await past(0.01)


async def answer_all_at_once(here: World, tasks: list[TaskDelivery], said: Say) -> None:
    given = [TaskPayload.model_validate_json(task.data) for task in tasks]
    await asyncio.gather(*(here.say(task, said) for task in given))
    await asyncio.gather(*(here.broker.tasks.ack(task.token) for task in tasks))


@pytest.mark.parametrize("partitions", [1, pytest.param(4, marks=pytest.mark.record)])
async def test_two_thousand_workers_that_answer_at_once_start_no_storm(
    tmp_path: Path,
    partitions: int,
    capsys: pytest.CaptureFixture[str],
    record_property: Callable[[str, object], None],
) -> None:
    async with world(tmp_path, partitions) as here, Memory.watched() as memory:
        began = time.monotonic()
        run_id = await here.begin(WHOLE, list(range(ITEMS)))
        tasks = await here.take("t", ITEMS)
        handed_out = time.monotonic()
        await answer_all_at_once(here, tasks, DOUBLED)
        events = await here.journals.until(run_id)
        ended = time.monotonic()
        await here.settled()
        decisions = sum(decider.counters.decisions for decider in here.deciders)
        refusals = sum(connection.journal.counts["conflict"] for connection in here.connections)
        figures = {
            "seconds to hand out": round(handed_out - began, 2),
            "seconds to take in": round(ended - handed_out, 2),
            "decisions": decisions,
            "conflicts": here.conflicts(),
            "refused appends": refusals,
            "grown by MiB": memory.grown // 2**20,
        }
    with capsys.disabled():
        print(f"\n{ITEMS} items, {partitions} partitions: {figures}")
    for name, value in figures.items():
        record_property(name, value)
    assert events[-1]["type"] == "run.succeeded"
    assert sum(event["type"] == "step.completed" for event in events) == ITEMS + 1
    assert events[-1]["output"] == [{"doubled": 2 * number} for number in range(ITEMS)]
    assert refusals <= 10, "deciders fight over the journal"
    assert decisions <= ITEMS / 4, "answers that wait together are not taken together"
    assert memory.grown <= GROWTH


async def test_a_map_that_is_bounded_never_has_more_items_out(tmp_path: Path) -> None:
    bound, count = 7, 60
    text = f"""
    name: bounded
    output: steps.each.output
    steps:
    - {{id: each, map: {{over: input, task: t, concurrency: {bound}}}, with: {{x: item}}}}
    """
    script = {(f"each--{number}", 1, 0, 0): (DOUBLED,) for number in range(count)}
    output = [{"doubled": 2 * number} for number in range(count)]
    completed = frozenset({"each", *(f"each--{number}" for number in range(count))})
    case = Case("bounded", text, list(range(count)), script, "run.succeeded", output, completed=completed)
    async with world(tmp_path, 1) as here, here.workers.at_work():
        run_id = await here.play(case)
        events = await here.journals.until(run_id)
        assert case.problems(events, here.workers.seen[run_id]) == []
    out = most = 0
    for event in events:
        out += {"step.queued": 1, "step.completed": -1}.get(event["type"], 0)
        most = max(most, out)
    assert most == bound


async def test_items_that_are_large_together_still_come_back_in_order(tmp_path: Path) -> None:
    """Two hundred answers of 100 KiB: in one record they would be ten times what a message may have. One decider,
    with the waits of production: on a slow machine 20 MB are not taken in before a test's short waits are over, and
    then everything comes again, for two deciders that read the whole run each time."""
    count, size = 200, 100 * 1024
    said = Say(EventType.COMPLETED, lambda task: {"x": task.input["x"], "text": "é" * (size // 2)})
    async with world(tmp_path, 1, deciders=1, timing=Timing()) as here:
        run_id = await here.begin(
            """
            name: large
            output: steps.each.output
            steps:
            - {id: each, map: {over: input, task: t}, with: {x: item}}
            """,
            list(range(count)),
        )
        await answer_all_at_once(here, await here.take("t", count), said)
        events = await here.journals.until(run_id)
        output = await values.inline(events[-1]["output"], here.broker.blobs(), limit=2**28)
        assert [one["x"] for one in output] == list(range(count))
        await here.settled()
        await queue_is_empty(here.broker, run_id)


async def test_two_deciders_that_fight_over_one_run_count_everything_once(tmp_path: Path) -> None:
    """The broker prefers one of them, so that this hardly ever happens by itself: here each gets half of the answers, a
    few at a time, and both write at the same moments."""
    count, few = 64, 4
    async with world(tmp_path, 1, deciders=2, at_work=False) as here:
        run_id = await here.begin(WHOLE, list(range(count)))
        first, second = here.deciders
        await first.handle(run_id, await receive(here.broker, run_id, ack=False))
        tasks = await here.take("t", count)
        await answer_all_at_once(here, tasks, DOUBLED)
        answers = await receive(here.broker, run_id, count, ack=False)

        async def take_in(decider: Decider, mine: list[Delivery]) -> None:
            for start in range(0, len(mine), few):
                await decider.handle(run_id, mine[start : start + few])

        await asyncio.gather(take_in(first, answers[::2]), take_in(second, answers[1::2]))
        events = await here.journals.until(run_id)
        decisions = sum(decider.counters.decisions for decider in here.deciders)
    assert events[-1]["output"] == [{"doubled": 2 * number} for number in range(count)]
    assert sum(event["type"] == "step.completed" for event in events) == count + 1
    assert decisions == 1 + count // few
    assert 0 < here.conflicts() <= decisions, "each lost append is another one's success"
