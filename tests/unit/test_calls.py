"""Runs that call each other: started once, stopped for sure, told truthfully, whoever sleeps in between."""

from __future__ import annotations

from typing import Any

import pytest

from fumehood.control import intake
from fumehood.control.callers import ADMIN, DEFAULT_TENANT
from fumehood.control.calls import LEAST_LINK_MS, Calls
from fumehood.control.runs import Start
from fumehood.engine.messages import MessageType
from fumehood.engine.state import RunState, RunStatus
from fumehood.engine.workers import MAX_SIGNALS
from fumehood.errors import ConflictError, NotFoundError
from tests.unit.run_world import RunWorld, steps
from tests.unit.test_orders import World

CHILD = "name: child\ninput_schema: {type: object, properties: {items: {type: array}}}\nsteps:\n  - {id: c, task: c}\n"
PARENT = """
name: w
steps:
  - {id: a, task: t}
  - {id: call, needs: [a], sub_workflow: {workflow: child}, with: {items: steps.a.output}}
"""
CHAIN = """
name: w
continue_as_new: {when: 'true', input: input}
steps:
  - {id: a, sleep: 1ms}
"""


HEARING = """
name: w
steps:
  - {id: a, task: t}
  - {id: hear, needs: [a], wait_signal: {name: tick}}
  - {id: b, task: t}
"""
SLOW_CHAIN = CHAIN.replace("sleep: 1ms", "task: t")


async def called(world: World, output: Any) -> tuple[str, str]:
    """A run that has called another one, and that one."""
    await world.workflows.apply("child", CHILD.encode(), is_json=False, tenant=DEFAULT_TENANT)
    run_id = await world.begin(PARENT)
    await world.completes(run_id, "a", output)
    child = (await world.state(run_id)).steps["call"].child
    assert child is not None
    return run_id, child


async def test_a_child_has_its_parents_tenant_and_tells_its_end() -> None:
    world = World()
    run_id, child = await called(world, [1])
    state = await world.state(child)
    assert (state.meta["parent"]["run_id"], state.input) == (run_id, {"items": [1]})
    await world.completes(child, "c", "done")
    assert (await world.state(run_id)).output == {"call": {"c": "done"}}


async def test_a_large_value_is_held_against_the_schema_of_the_workflow_that_is_called() -> None:
    world = World()
    _, child = await called(world, ["x" * 1000] * 200)
    assert (await world.state(child)).status is RunStatus.RUNNING
    other = World()
    run_id, _ = await called(other, "x" * 200_000)
    state = await other.state(run_id)
    assert state.failure is not None
    assert (state.status, state.failure.code) == (RunStatus.FAILED, "not_started")


async def test_a_start_that_comes_after_its_parent_ended_begins_nothing() -> None:
    world = World()
    run_id, child = await called(world, [1])
    started = await world.state(child)
    await world.orders.cancel(run_id, ADMIN)
    await world.settle()
    assert (await world.state(child)).status is RunStatus.CANCELLED
    late = "run-late"
    body = {"definition": {"name": "child", "steps": [{"id": "c", "task": "c"}]}, "digest": started.digest}
    body["meta"] = {"parent": {"run_id": run_id, "step": "call", "attempt": 1}}
    await world.tasks("c")
    await world.broker.mailboxes.send(late, f"{late}.start", intake.encode(MessageType.START, body))
    await world.settle()
    assert (await world.state(late)).status is RunStatus.CANCELLED
    assert await world.tasks("c") == []


async def test_a_child_that_somebody_took_up_again_is_not_stopped_by_its_parent() -> None:
    world = World()
    run_id, child = await called(world, [1])
    await world.fails(child, "c")
    assert (await world.state(run_id)).status is RunStatus.FAILED
    assert await world.orders.retry(child, ADMIN)
    body = {"reason": "late", "by": "engine", "try": 0}
    await world.broker.mailboxes.send(child, f"{child}.stop.again", intake.encode(MessageType.CANCEL, body))
    await world.settle()
    assert (await world.state(child)).status is RunStatus.RUNNING


async def test_whoever_heals_a_run_stops_those_that_earlier_attempts_called() -> None:
    """Whoever should have done so may have died, and the state has another run in their place by now."""
    run = RunWorld(steps("id: sub, sub_workflow: {workflow: w2}, retry: {attempts: 2}"), pins={"w2": "sha256:0"})
    first = run.child("sub").run_id
    run.child_ended("sub", "failed")
    run.fire()
    second = run.child("sub").run_id
    world = World()
    await Calls(world.broker, world.workflows, now_ms=world.now_ms).stop_all(run.run)
    stopped = [child for child in (first, second) if await world.broker.mailboxes.last(child) is not None]
    assert stopped == [first]
    run.override("sub")
    await Calls(world.broker, world.workflows, now_ms=world.now_ms).stop_all(run.run)
    assert await world.broker.mailboxes.last(second) is not None, "nobody waits for what was decided by hand"


async def test_a_chain_has_a_pause_between_its_links_and_a_cancel_finds_the_last() -> None:
    world = World()
    await world.workflows.apply("w", CHAIN.encode(), is_json=False, tenant=DEFAULT_TENANT)
    first, _ = await world.runs.start(Start("w"), ADMIN)
    await world.settle()
    began = world.now_ms()
    for _ in range(3):
        await world.pass_time(LEAST_LINK_MS / 1000)
    last: RunState | None = await world.state(first)
    links = 0
    while last is not None and last.continued_as is not None:
        links += 1
        found = await world.runs.get(last.continued_as, ADMIN)
        last = found if isinstance(found, RunState) else None
    assert links <= (world.now_ms() - began) / LEAST_LINK_MS + 1
    assert last is not None
    await world.orders.cancel(first, ADMIN, reason="enough")
    await world.settle()
    assert (await world.state(last.run_id)).status is RunStatus.CANCELLED


async def ended_link(world: World) -> RunState:
    """The first run of a chain, which has ended; the next one waits for its time."""
    first = await world.begin(SLOW_CHAIN)
    await world.completes(first, "a")
    state = await world.state(first)
    assert state.continued_as is not None
    with pytest.raises(NotFoundError):
        await world.runs.get(state.continued_as, ADMIN)
    return state


async def is_cancelled(world: World, run_id: str) -> None:
    await world.pass_time(30)
    state = await world.state(run_id)
    assert (state.status, state.continued_as) == (RunStatus.CANCELLED, None)


async def test_a_cancel_between_two_links_reaches_the_next() -> None:
    """The last one has ended, and the next one is not there yet."""
    world = World()
    state = await ended_link(world)
    assert await world.orders.cancel(state.run_id, ADMIN, reason="enough")
    await is_cancelled(world, str(state.continued_as))


async def test_a_link_that_is_gone_is_not_waited_for() -> None:
    """It was archived, and its traces with it: nobody is told anything."""
    world = World()
    state = await ended_link(world)
    await world.broker.timers.cancel(str(state.continued_as), "start")
    await world.pass_time(3600)
    with pytest.raises(NotFoundError):
        await world.orders.cancel(state.run_id, ADMIN)


@pytest.mark.parametrize("pause", [0.0, 2 * LEAST_LINK_MS / 1000])
async def test_a_cancel_that_comes_just_behind_the_end_of_a_link_is_passed_on(pause: float) -> None:
    """It was given while the run was under way, and is taken when it has ended: before the next one begins, and after.
    Twice, as after the death of a decider."""
    world = World()
    state = await ended_link(world)
    await world.pass_time(pause)
    said = {"reason": "enough", "by": "admin", "tenant": DEFAULT_TENANT, "try": 0}
    for number in range(2):
        body = intake.encode(MessageType.CANCEL, said)
        await world.broker.mailboxes.send(state.run_id, f"{state.run_id}.cancel.{number}", body)
        await world.settle()
    await is_cancelled(world, str(state.continued_as))


async def test_an_order_that_only_a_newer_version_knows_is_kept_for_it() -> None:
    world = World()
    run_id = await world.begin("name: w\nsteps:\n  - {id: a, task: t}\n")
    await world.broker.mailboxes.send(run_id, f"{run_id}.new", b'{"type":"something.new"}')
    await world.completes(run_id, "a", 1)
    assert (await world.state(run_id)).status is RunStatus.SUCCEEDED, "everything else is taken"
    assert world.decider.counters.unknown > 0
    await world.pass_time(70)
    again = world.decider.counters.unknown
    await world.pass_time(130)
    assert world.decider.counters.unknown > again, "it comes again, for whoever knows it"


async def test_a_signal_for_which_there_is_no_room_is_refused() -> None:
    world = World()
    run_id = await world.begin("name: w\nsteps:\n  - {id: a, task: t}\n")
    for number in range(MAX_SIGNALS):
        body = {"name": "tick", "by": "me", "try": 0}
        data = intake.encode(MessageType.SIGNAL, body)
        await world.broker.mailboxes.send(run_id, f"{run_id}.signal.{number}", data)
    await world.settle()
    with pytest.raises(ConflictError, match="too many"):
        await world.orders.signal(run_id, ADMIN, "tick", 1)


async def test_a_signal_that_was_refused_is_heard_when_it_is_sent_again_under_its_id() -> None:
    """There was no room for it, and now there is. Sent once more, it is known."""
    world = World()
    run_id = await world.begin(HEARING)
    data = intake.encode(MessageType.SIGNAL, {"name": "tick", "by": "me", "try": 0})
    for number in range(MAX_SIGNALS):
        await world.broker.mailboxes.send(run_id, f"{run_id}.signal.{number}", data)
    await world.broker.mailboxes.send(run_id, f"{run_id}.signal.mine", data)
    await world.settle()
    assert f"{run_id}.signal.mine" in (await world.state(run_id)).refused
    await world.completes(run_id, "a")  # what follows takes one of them
    before = len((await world.state(run_id)).signals)
    for _ in range(3):
        assert await world.orders.signal(run_id, ADMIN, "tick", 1, "mine")
    assert len((await world.state(run_id)).signals) == before + 1
