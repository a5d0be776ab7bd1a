"""Tasks of a type with a limit: none is lost, none goes before its turn, and none uses a turn for nothing."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from fumehood.broker.memory import Faults, MemoryBroker, Verdict
from fumehood.broker.ports import Bucket
from fumehood.control import intake
from fumehood.control.decider import Decider
from fumehood.control.handing_out import RELEASE
from fumehood.control.rates import Rates, parse
from fumehood.control.sweep import Sweeper
from fumehood.control.together import one_by_one, together
from fumehood.engine.messages import MessageType
from fumehood.engine.state import RunStatus
from fumehood.errors import BrokerUnavailableError, PayloadTooLargeError
from tests.unit.decider_world import RUN, DeciderWorld

MANY = "name: w\nsteps:\n- {id: a, map: {over: input, task: t}, with: item}\n"
AND_MORE = "name: w\ndeadline: 1h\nsteps:\n- {id: a, map: {over: input, task: t}, with: item}\n- {id: z, task: other}\n"
ONE = "name: w\nsteps:\n- {id: a, task: t}\n"
WINDOW = 120.0
"""The broker's memory of message ids, in seconds: what comes again within it is not seen twice."""


class Counts(Faults):
    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    async def call(self, operation: str, subject: str) -> Verdict:
        self.calls[operation] += 1
        return Verdict.OK


async def limited(rate: str, burst: int = 1) -> DeciderWorld:
    world = DeciderWorld()
    await limit(world, rate, burst)
    return world


async def limit(world: DeciderWorld, rate: str, burst: int = 1) -> None:
    await Rates(world.broker, now_ms=world.now_ms).set("t", parse(rate, burst))


async def releases(world: DeciderWorld, run_id: str = RUN) -> int:
    return sum(timer.timer_id.startswith(RELEASE) for timer in await world.broker.timers.pending(run_id))


async def used(world: DeciderWorld) -> Any:
    """How far the limit is used."""
    (entry,) = await world.broker.bucket(Bucket.RATES).entries()
    return json.loads(entry.value)["tat_ns"]


async def cancel(world: DeciderWorld, run_id: str = RUN) -> None:
    await world.broker.mailboxes.send(run_id, f"{run_id}.cancel", intake.encode(MessageType.CANCEL, {}))


async def redelivered(world: DeciderWorld, decider: Decider) -> None:
    """A message whose decider died before it had acked it comes to another one."""
    (held,) = await MemoryBroker(world.server).feed.pull(0, max_messages=1, timeout=0.0)
    await held.nak()
    while await decider.turn(0, timeout=0.0):
        pass
    assert decider.counters.rederived == 1


# --- waiting -----------------------------------------------------------------------------------------------


async def test_each_goes_out_when_it_is_its_turn() -> None:
    world = await limited("1/s", 3)
    await world.start(MANY, list(range(10)))
    gone = [len(await world.tasks())]
    for _ in range(8):
        await world.pass_time(1)
        gone.append(len(await world.tasks()))
    assert gone == [3, 1, 1, 1, 1, 1, 1, 1, 0]


async def test_a_run_whose_tasks_have_to_wait_for_days_has_its_deadline_and_its_other_tasks() -> None:
    world = await limited("1/h")
    await world.start(AND_MORE, list(range(1000)))
    assert len(await world.tasks("other")) == 1
    assert len(await world.tasks("t")) == 1
    await world.pass_time(3601)
    assert (await world.state()).status is RunStatus.TIMED_OUT
    assert await world.broker.timers.pending(RUN) == []
    assert world.decider.counters.refused == 0


async def test_thousands_that_wait_go_out_at_the_full_rate_with_two_messages_each() -> None:
    world, counts = await limited("2/s"), Counts()
    world.decider = Decider(MemoryBroker(world.server, faults=counts), now_ms=world.now_ms)
    await world.start(MANY, list(range(2000)))
    gone = len(await world.tasks())
    for _ in range(1000):
        await world.pass_time(1)
        gone += len(await world.tasks())
    assert gone == 2000
    assert counts.calls["timers.set"] <= 2 * 2000


async def test_runs_that_want_far_more_than_the_limit_ask_seldom() -> None:
    """Each task that waits asks at most once in five minutes, however many there are: that is 7 messages in a second
    for 2,000 of them; and the rate is used to the full."""
    world, counts = await limited("1/s"), Counts()
    world.decider = Decider(MemoryBroker(world.server, faults=counts), now_ms=world.now_ms)
    for number in range(5):
        await world.start(MANY, list(range(400)), run_id=f"run-{number}")
    gone, seconds = len(await world.tasks()), 1300
    for _ in range(seconds):
        await world.pass_time(1)
        gone += len(await world.tasks())
    assert gone == seconds + 1
    waited = sum(2000 - number for number in range(seconds))
    assert counts.calls["timers.set"] <= 2 * 2000 + waited / 300


async def test_when_a_limit_is_taken_away_what_waits_for_days_goes_out_within_an_hour() -> None:
    world = await limited("1/h")
    await world.start(MANY, list(range(100)))
    await Rates(world.broker, now_ms=world.now_ms).clear("t")
    await world.pass_time(3601)
    assert len(await world.tasks()) == 100


async def test_what_is_not_wanted_any_more_when_its_turn_comes_does_not_go_out() -> None:
    world = await limited("1/s")
    await world.start(MANY, list(range(3)))
    assert len(await world.tasks()) == 1
    world.clock.advance(1.0)
    await cancel(world)
    await world.settle()
    await world.pass_time(10)
    assert await world.tasks() == []
    assert await releases(world) == 0


# --- late --------------------------------------------------------------------------------------------------


async def test_after_five_minutes_without_deciders_the_rate_is_kept() -> None:
    world = await limited("1/s")
    await world.start(MANY, list(range(600)))
    gone = [len(await world.tasks())]
    await world.pass_time(300)
    gone.append(len(await world.tasks()))
    for _ in range(1000):
        await world.pass_time(1)
        gone.append(len(await world.tasks()))
    assert max(gone) <= 2
    assert sum(gone) == 600


async def test_a_task_that_comes_back_too_late_soon_after_another_wait_is_not_taken_for_the_first() -> None:
    """The broker drops a message whose id it has seen within two minutes."""
    world = await limited("1/s")
    await world.start(MANY, list(range(5)))
    await world.pass_time(10)
    assert [len(await world.tasks()), await releases(world)] == [2, 3]
    for _ in range(3):
        await world.pass_time(1)
    assert len(await world.tasks()) == 3


@pytest.mark.parametrize("ahead_ms", [1500, 20_000, 700_000])
async def test_where_clocks_differ_everything_still_goes_out(ahead_ms: int) -> None:
    """By the decider's clock each timer is late: after some tries it may be."""
    world = DeciderWorld()
    await limit(world, "1/s")
    world.decider = Decider(MemoryBroker(world.server), now_ms=lambda: world.now_ms() + ahead_ms)
    await world.start(MANY, list(range(200)))
    gone = len(await world.tasks())
    for _ in range(4 * 3600 // 10):
        await world.pass_time(10)
        gone += len(await world.tasks())
    assert gone == 200


# --- again -------------------------------------------------------------------------------------------------


async def test_a_redelivery_uses_no_turn_for_what_is_worked_on_queued_or_waiting() -> None:
    world = await limited("60/m", 20)
    await world.start(MANY, list(range(40)))
    held = await world.handouts.take(["t"], max_tasks=10, timeout=0.0, worker_id="w")
    assert len(held) == 10
    before = await used(world), await releases(world), await world.broker.tasks.pending(RUN, {"t"})
    assert before[1] == 20
    await world.broker.histories.publish(RUN, "again", b"{}")
    await redelivered(world, world.another())
    assert (await used(world), await releases(world), await world.broker.tasks.pending(RUN, {"t"})) == before


async def test_a_redelivery_brings_back_what_nobody_has_at_the_rate() -> None:
    world = await limited("1/s", 5)
    await world.start(MANY, list(range(5)))
    assert len(await world.tasks()) == 5, "taken off the queue, and nobody has them"
    await world.pass_time(WINDOW + 1)
    await world.broker.histories.publish(RUN, "again", b"{}")
    await limit(world, "1/s", 2)
    await redelivered(world, world.another())
    assert [len(await world.tasks()), await releases(world)] == [2, 3]


async def test_what_the_sweep_puts_back_keeps_the_rate() -> None:
    world = await limited("1/s")
    await world.start(MANY, list(range(4)))
    for _ in range(4):
        await world.pass_time(1)
    assert len(await world.tasks()) == 4
    await world.pass_time(301)
    assert await Sweeper(MemoryBroker(world.server), now_ms=world.now_ms).sweep() == 4
    gone = [len(await world.tasks())]
    for _ in range(3):
        await world.pass_time(1)
        gone.append(len(await world.tasks()))
    assert gone == [1, 1, 1, 1]


async def test_a_late_repetition_for_what_is_worked_on_uses_no_turn() -> None:
    world = await limited("1/s")
    await world.start(ONE)
    assert len(await world.handouts.take(["t"], max_tasks=1, timeout=0.0, worker_id="w")) == 1
    before = await used(world)
    body = {"kind": RELEASE, "step": "a", "age": [1, 0, 0], "until": 1, "late": 0}
    await world.broker.mailboxes.send(RUN, f"{RUN}.timer", intake.encode(MessageType.TIMER, body))
    await world.settle()
    assert (await used(world), await releases(world)) == (before, 0)


# --- what others leave -------------------------------------------------------------------------------------


async def test_a_cancelled_backlog_keeps_others_waiting_for_minutes_and_not_for_days() -> None:
    world = await limited("1/m")
    for number in range(4):
        run_id = f"backlog-{number}"
        await world.start(MANY, list(range(3000)), run_id=run_id)
        await cancel(world, run_id)
        await world.settle()
    await world.tasks()
    await world.start(ONE)
    for _ in range(20):
        await world.pass_time(60)
    assert [task["run_id"] for task in await world.tasks()] == [RUN]


# --- failures beside each other ----------------------------------------------------------------------------


async def test_while_no_turn_can_be_had_the_run_has_its_deadline_all_the_same() -> None:
    class NoRates(Faults):
        async def call(self, operation: str, subject: str) -> Verdict:
            return Verdict.LOST if operation.startswith("rates.") else Verdict.OK

    world = await limited("1/s")
    world.decider = Decider(MemoryBroker(world.server, faults=NoRates()), now_ms=world.now_ms)
    await world.start(AND_MORE, [1])
    assert [timer.timer_id for timer in await world.broker.timers.pending(RUN)] == ["deadline"]
    await world.pass_time(3601)
    assert (await world.state()).status is RunStatus.TIMED_OUT


async def test_one_that_fails_keeps_no_other_from_being_done() -> None:
    done: list[int] = []

    async def call(number: int) -> None:
        if number == 3:
            raise PayloadTooLargeError("three")
        done.append(number)

    with pytest.raises(PayloadTooLargeError, match="three"):
        await together([call(number) for number in range(200)])
    assert sorted(done) == [number for number in range(200) if number != 3]


async def test_a_broker_that_is_away_is_not_asked_for_each() -> None:
    asked = 0

    async def call() -> None:
        nonlocal asked
        asked += 1
        raise BrokerUnavailableError("away")

    with pytest.raises(BrokerUnavailableError):
        await together([call() for _ in range(1000)])
    assert asked <= 64


async def test_parts_are_done_in_order_whatever_became_of_those_before() -> None:
    done: list[str] = []

    async def part(name: str) -> None:
        done.append(name)
        raise BrokerUnavailableError(name)

    with pytest.raises(BrokerUnavailableError, match="first"):
        await one_by_one([lambda: part("first"), lambda: part("second")])
    assert done == ["first", "second"]
