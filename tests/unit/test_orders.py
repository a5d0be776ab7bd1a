"""Orders: taken once, never lost, told truthfully, and only from those who may give them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fumehood.control.callers import ADMIN, DEFAULT_TENANT, Caller, Scope
from fumehood.control.orders import Orders
from fumehood.control.runs import Runs, Start
from fumehood.control.workflows import Workflows
from fumehood.engine.fold import COMPLETE, SKIP
from fumehood.engine.state import RunState, RunStatus, StepStatus
from fumehood.errors import ConflictError, ForbiddenError, InvalidRequestError, InvalidTokenError, NotFoundError
from fumehood.wire.protocol import EventType
from tests.unit.decider_world import DeciderWorld

ALICE = Caller(DEFAULT_TENANT, "k1/alice", frozenset({Scope.RUNS_APPROVE}))
BOB = Caller(DEFAULT_TENANT, "k2/bob", frozenset({Scope.RUNS_APPROVE}))
STRANGER = Caller("other", "k3/eve", frozenset({Scope.ALL}))
APPROVAL = "name: w\nsteps:\n  - {id: ok, approval: {message: 'Go?', timeout: 1h}}\n  - {id: b, needs: [ok], task: t}\n"
NAMED = "name: w\nsteps:\n  - {id: ok, approval: {approvers: [alice]}}\n"
SIGNAL = "name: w\nsteps:\n  - {id: hear, wait_signal: {name: go}}\n"
TASKS = "name: w\nsteps:\n  - {id: a, task: t}\n  - {id: b, needs: [a], task: t}\n"


class World(DeciderWorld):
    """Whoever gives an order waits for its effect; here the decider works while they do."""

    def __init__(self) -> None:
        super().__init__()
        self.workflows = Workflows(self.broker, now_ms=self.now_ms)
        self.runs = Runs(self.broker, self.workflows, now_ms=self.now_ms)
        self.orders = Orders(self.broker, self.runs, now_ms=self.now_ms, sleep=self._while_waiting)
        self.idle = False

    async def _while_waiting(self, seconds: float) -> None:
        if not self.idle:
            await self.settle()
        await asyncio.sleep(0)

    async def begin(self, text: str, given: Any = None) -> str:
        await self.workflows.apply("w", text.encode(), is_json=False, tenant=DEFAULT_TENANT)
        run_id, _ = await self.runs.start(Start("w", given), ADMIN)
        await self.settle()
        return run_id

    async def fails(self, run_id: str, step: str) -> None:
        await self.say(EventType.FAILED, step, "broken", run_id=run_id)

    async def completes(self, run_id: str, step: str, output: Any = None) -> None:
        attempt = (await self.state(run_id)).steps[step].attempt
        await self.say(EventType.COMPLETED, step, output, run_id=run_id, attempt=attempt)


@pytest.fixture
def world() -> World:
    return World()


async def test_an_approval_is_recorded_with_who_gave_it(world: World) -> None:
    run_id = await world.begin(APPROVAL)
    assert await world.orders.approve(run_id, "ok", ALICE, approved=True, comment="fine")
    step = (await world.state(run_id)).steps["ok"]
    assert (step.output["approved"], step.output["by"], step.output["comment"]) == (True, "k1/alice", "fine")
    assert [task["step_id"] for task in await world.tasks()] == ["b"]


async def test_a_refusal_fails_the_run_and_says_who(world: World) -> None:
    run_id = await world.begin(APPROVAL)
    assert await world.orders.approve(run_id, "ok", BOB, approved=False, comment="not on a Friday")
    state = await world.state(run_id)
    assert state.status is RunStatus.FAILED
    assert state.failure is not None
    assert (state.failure.code, state.failure.message) == ("rejected", "k2/bob said no: not on a Friday")


async def test_of_two_who_decide_at_once_the_second_is_told(world: World) -> None:
    run_id = await world.begin(APPROVAL)
    both = await asyncio.gather(
        world.orders.approve(run_id, "ok", ALICE, approved=True),
        world.orders.approve(run_id, "ok", BOB, approved=False),
        return_exceptions=True,
    )
    assert [one for one in both if one is True] == [True]
    assert [type(one) for one in both if one is not True] == [ConflictError]


async def test_only_those_who_are_asked_may_decide(world: World) -> None:
    run_id = await world.begin(NAMED)
    with pytest.raises(ForbiddenError):
        await world.orders.approve(run_id, "ok", BOB, approved=True)
    with pytest.raises(ForbiddenError):
        await world.orders.mint(run_id, "ok", ALICE, who="bob", seconds=60)
    with pytest.raises(ForbiddenError):
        await world.orders.mint(run_id, "ok", BOB, who="alice", seconds=60)
    assert await world.orders.approve(run_id, "ok", ALICE, approved=True)


async def test_a_token_decides_once_and_is_recorded_with_who_made_it(world: World) -> None:
    run_id = await world.begin(APPROVAL)
    token, _ = await world.orders.mint(run_id, "ok", ALICE, who="carol@example.org", seconds=60)
    assert await world.orders.approve_with(token, approved=True) == (run_id, True)
    (given,) = [
        event
        for _, record in (await world.runs.history(run_id, ADMIN, after=0, limit=100))[0]
        for event in json.loads(record.encode())["events"]
        if event["type"] == "approval.given"
    ]
    assert (given["by"], given["via"]) == ("carol@example.org", "k1/alice")
    with pytest.raises(ConflictError):
        await world.orders.approve_with(token, approved=True)


async def test_a_token_ends_and_is_for_one_visit_only(world: World) -> None:
    run_id = await world.begin(APPROVAL)
    old, _ = await world.orders.mint(run_id, "ok", ALICE, who="carol", seconds=7200)
    short, _ = await world.orders.mint(run_id, "ok", ALICE, who="carol", seconds=1)
    await world.pass_time(3601)
    with pytest.raises(InvalidTokenError):
        await world.orders.approve_with(short, approved=True)
    assert (await world.state(run_id)).failure is not None, "the approval's own time is over"
    assert await world.orders.retry(run_id, ADMIN)
    assert (await world.state(run_id)).steps["ok"].status is StepStatus.AWAITING_APPROVAL
    with pytest.raises(ConflictError, match="earlier time"):
        await world.orders.approve_with(old, approved=True)


async def test_a_signal_is_told_once_for_its_id(world: World) -> None:
    run_id = await world.begin(SIGNAL)
    assert await world.orders.signal(run_id, ADMIN, "other", 1, "one")
    assert await world.orders.signal(run_id, ADMIN, "other", 1, "one")
    assert [signal.name for signal in (await world.state(run_id)).signals] == ["other"]
    assert await world.orders.signal(run_id, ADMIN, "go", {"n": 2}, "two")
    state = await world.state(run_id)
    assert (state.status, state.steps["hear"].output) == (RunStatus.SUCCEEDED, {"n": 2})
    assert await world.orders.signal(run_id, ADMIN, "go", {"n": 2}, "two"), "the same one again is no conflict"
    with pytest.raises(ConflictError):
        await world.orders.signal(run_id, ADMIN, "go", {"n": 3})


async def test_a_signal_to_a_run_that_nobody_has_looked_at_waits_for_it(world: World) -> None:
    await world.workflows.apply("w", SIGNAL.encode(), is_json=False, tenant=DEFAULT_TENANT)
    run_id, _ = await world.runs.start(Start("w"), ADMIN)
    world.idle = True
    assert not await world.orders.signal(run_id, ADMIN, "go", 1), "accepted, and not yet taken"
    await world.settle()
    assert (await world.state(run_id)).status is RunStatus.SUCCEEDED


async def test_a_retry_goes_on_where_the_run_failed(world: World) -> None:
    run_id = await world.begin(TASKS)
    await world.completes(run_id, "a", 1)
    await world.fails(run_id, "b")
    assert (await world.state(run_id)).status is RunStatus.FAILED
    await world.tasks()
    assert await world.orders.retry(run_id, ADMIN, reason="mended")
    assert [(task["step_id"], task["attempt"]) for task in await world.tasks()] == [("b", 2)]
    with pytest.raises(ConflictError, match="under way"):
        await world.orders.retry(run_id, ADMIN)
    await world.completes(run_id, "b", 2)
    state = await world.state(run_id)
    assert (state.status, state.tries) == (RunStatus.SUCCEEDED, 1)
    with pytest.raises(ConflictError, match="succeeded"):
        await world.orders.retry(run_id, ADMIN)


@pytest.mark.parametrize(("action", "status"), [(SKIP, StepStatus.SKIPPED), (COMPLETE, StepStatus.COMPLETED)])
async def test_a_step_that_a_run_failed_over_is_decided_by_hand(world: World, action: str, status: StepStatus) -> None:
    run_id = await world.begin(TASKS)
    await world.fails(run_id, "a")
    assert await world.orders.override(run_id, "a", BOB, action=action, reason="known", output=5)
    state = await world.state(run_id)
    assert (state.status, state.steps["a"].status) == (RunStatus.RUNNING, status)
    assert state.steps["a"].override is not None
    assert state.steps["a"].override.by == "k2/bob"
    with pytest.raises(ConflictError):
        await world.orders.override(run_id, "a", BOB, action=action, reason="again")


async def test_cancel_ends_a_run_also_after_a_retry(world: World) -> None:
    run_id = await world.begin(TASKS)
    await world.orders.cancel(run_id, ADMIN, reason="enough")
    await world.settle()
    assert (await world.state(run_id)).status is RunStatus.CANCELLED
    assert await world.orders.retry(run_id, ADMIN)
    await world.orders.cancel(run_id, ADMIN, reason="really")
    await world.settle()
    assert (await world.state(run_id)).status is RunStatus.CANCELLED


async def test_another_tenants_run_is_nobodys(world: World) -> None:
    run_id = await world.begin(APPROVAL)
    orders = world.orders
    for call in (
        orders.cancel(run_id, STRANGER),
        orders.retry(run_id, STRANGER),
        orders.signal(run_id, STRANGER, "go", 1),
        orders.approve(run_id, "ok", STRANGER, approved=True),
        orders.mint(run_id, "ok", STRANGER, who="eve", seconds=60),
        orders.override(run_id, "ok", STRANGER, action=SKIP, reason="mine"),
    ):
        with pytest.raises(NotFoundError, match="no such run"):
            await call
    assert isinstance(await world.runs.get(run_id, ADMIN), RunState)


async def test_what_nobody_may_say_is_refused(world: World) -> None:
    run_id = await world.begin(SIGNAL)
    with pytest.raises(InvalidRequestError):
        await world.orders.signal(run_id, ADMIN, "no blanks", 1)
    with pytest.raises(InvalidRequestError):
        await world.orders.signal(run_id, ADMIN, "go", {"$blob": "sha256:00"})
    with pytest.raises(InvalidRequestError):
        await world.orders.signal(run_id, ADMIN, "go", "x" * (1024 * 1024))
    with pytest.raises(NotFoundError):
        await world.orders.override(run_id, "nothing", ADMIN, action=SKIP, reason="why not")
    with pytest.raises(ConflictError, match="nobody is asked"):
        await world.orders.approve(run_id, "hear", ADMIN, approved=True)
