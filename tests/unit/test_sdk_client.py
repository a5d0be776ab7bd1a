"""The SDK's client against a whole server in this process: workflows, runs, and what runs are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from fumehood import (
    ConflictError,
    InvalidDefinitionError,
    InvalidRequestError,
    LogPiece,
    NotFoundError,
    Retry,
    RunFailedError,
    RunLogs,
    RunStatus,
    StepStatus,
    UnauthenticatedError,
    UnexpectedAnswerError,
    WaitTimeoutError,
    Workflow,
)
from fumehood.sdk.aio.client import AsyncClient
from fumehood.sdk.aio.runs import AsyncRun
from fumehood.sdk.aio.transport import AsyncTransport
from fumehood.sdk.connection import Connection
from fumehood.wire.sandbox import SANDBOX_TASK, RunEnd
from tests.contract.runner_harness import IMAGE, report
from tests.contract.server_api_harness import Api
from tests.unit.sdk_client_world import ClientWorld, client_world
from tests.waiting import until


@pytest_asyncio.fixture
async def there() -> AsyncIterator[ClientWorld]:
    async with asyncio.timeout(120), client_world() as made:
        yield made


def small(name: str = "w", kind: str = "t") -> Workflow:
    wf = Workflow(name)
    step = wf.task("a", kind, with_={"doubled": wf.input.n * 2, "why": "input.n"})
    wf.set_output({"said": step.output})
    return wf


# --- workflows ---------------------------------------------------------------------------------------------


async def test_a_workflow_is_applied_however_it_was_written(there: ClientWorld) -> None:
    workflows, wf = there.client.workflows, small()
    first = await workflows.apply(wf)
    assert (first.name, first.version, first.definition) == ("w", 1, None)
    for same in (wf.to_dict(), wf.to_yaml()):
        again = await workflows.apply(same)
        assert (again.digest, again.version) == (first.digest, 1)
    found = await workflows.get("w")
    assert found.digest == first.digest
    assert found.definition is not None
    assert found.definition["steps"][0]["with"] == {"doubled": "input.n * 2", "why": "'input.n'"}
    changed = await workflows.apply(small(kind="other"))
    assert changed.version == 2
    old = await workflows.get("w", digest=first.digest)
    assert (old.digest, old.version) == (first.digest, None)


async def test_workflows_are_listed_in_pages_without_an_end(
    there: ClientWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fumehood.sdk.aio.workflows.PAGE", 2)
    for number in range(5):
        await there.client.workflows.apply(small(f"w{number}"))
    assert [one.name async for one in there.client.workflows.list()] == [f"w{number}" for number in range(5)]
    assert [one.name async for one in there.client.workflows.list(limit=3)] == ["w0", "w1", "w2"]
    assert [one async for one in there.client.workflows.list(limit=0)] == []


async def test_what_is_wrong_with_a_workflow_is_said_line_by_line(there: ClientWorld) -> None:
    wrong = "name: w\nsteps:\n  - {id: a, task: t, timout: 5m}\n  - {id: b, sleep: soon}\n"
    with pytest.raises(InvalidDefinitionError) as error:
        await there.client.workflows.apply(wrong)
    assert [line.split(":")[0] for line in error.value.problems] == ["line 3", "line 4"]
    assert error.value.remedy in str(error.value)
    for text, why in (("a: [", "line 2"), ("steps: []", "has a name"), ("- a", "has a name")):
        with pytest.raises(InvalidDefinitionError, match=why):
            await there.client.workflows.apply(text)
    with pytest.raises(NotFoundError):
        await there.client.workflows.get("w")


# --- runs --------------------------------------------------------------------------------------------------


async def test_a_run_is_waited_for_to_its_end(there: ClientWorld) -> None:
    await there.client.workflows.apply(small())
    run = await there.client.workflows.run("w", {"n": 21}, labels={"team": "red"})
    assert (run.status, run.has_ended, run.output) == (RunStatus.QUEUED, False, None)
    waiting = asyncio.create_task(run.wait(timeout=120))
    task = await there.take("t")
    assert task.task.input == {"doubled": 42, "why": "input.n"}
    await there.handouts.complete(task.lease, {"fine": True})
    assert await waiting is run
    assert run.check() is run
    assert (run.status, run.ok, run.output) == ("succeeded", True, {"said": {"fine": True}})
    assert (run.workflow, run.input, run.labels) == ("w", {"n": 21}, {"team": "red"})
    assert run.started_at is not None
    assert run.ended_at is not None
    step = run.steps["a"]
    assert (step.id, step.status, step.attempt, step.output) == ("a", StepStatus.COMPLETED, 1, {"fine": True})
    assert await run.step_output("a") == {"fine": True}
    again = await there.client.runs.get(run.id)
    assert (await again.wait(timeout=120)).output == run.output
    with pytest.raises(InvalidRequestError, match="it has a"):
        await run.step_output("b")
    assert repr(run) == f"<AsyncRun {run.id} succeeded>"


async def test_an_answer_about_another_run_is_none(there: ClientWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    await there.client.workflows.apply({"name": "w", "steps": [{"id": "a", "task": "t"}]})
    run, other = await there.client.workflows.run("w"), await there.client.workflows.run("w")
    monkeypatch.setattr(run, "_path", f"/v1/runs/{other.id}")
    with pytest.raises(UnexpectedAnswerError, match="told of another"):
        await run.refresh()
    assert run.id != other.id


async def test_a_run_that_failed_is_no_error_until_it_is_asked(there: ClientWorld) -> None:
    await there.client.workflows.apply(small())
    run = await there.client.workflows.run("w", {"n": 1})
    await there.fail("t", "out_of_stock")
    await run.wait(timeout=120)
    assert (run.status, run.ok, run.failed_step) == (RunStatus.FAILED, False, "a")
    assert run.error is not None
    assert (run.error.code, run.error.message) == ("out_of_stock", "it is out_of_stock")
    with pytest.raises(RunFailedError, match="is failed over a: it is out_of_stock") as error:
        run.check()
    assert (error.value.reason, error.value.run) == ("out_of_stock", run)
    assert await run.retry("it is back")
    assert not (await run.refresh()).has_ended
    await there.complete("t", 1)
    assert (await run.wait(timeout=120)).check().output == {"said": 1}


async def test_the_output_of_a_failed_sandbox_step_is_at_hand(there: ClientWorld) -> None:
    step = {"id": "box", "sandbox": {"image": IMAGE, "must_succeed": True}}
    await there.client.workflows.apply({"name": "w", "steps": [step]})
    run = await there.client.workflows.run("w")
    leased = await there.take(SANDBOX_TASK)
    await there.node.print(leased, b"", b"no module named x\n")
    said = report(RunEnd.FAILED, exit_code=1, stderr_tail="no module named x\n")
    await there.node.fail(leased, "exit", said)
    with pytest.raises(RunFailedError, match=r"`run.logs\('box'\)` has what it printed"):
        (await run.wait(timeout=120)).check()
    error = run.steps["box"].error
    assert error is not None
    assert error.stderr_tail == "no module named x\n"
    assert await run.logs("box", tail=1) == RunLogs("", "no module named x\n", truncated=False)
    assert [piece async for piece in run.follow("box")] == [LogPiece("stderr", "no module named x\n", 1)]
    with pytest.raises(NotFoundError, match="no such step"):
        await run.logs("typo")


async def test_a_wait_that_is_too_short_leaves_the_run_as_it_is(there: ClientWorld) -> None:
    await there.client.workflows.apply(small())
    run = await there.client.workflows.run("w", {"n": 1})
    for seconds in (0, 0.3):
        with pytest.raises(WaitTimeoutError, match=r"has not ended within .* it is (running|queued)") as error:
            await run.wait(timeout=seconds)
        assert isinstance(error.value, TimeoutError)
        assert not run.has_ended
    await there.complete("t", 1)
    assert (await run.wait(timeout=120)).ok


async def test_events_are_told_in_order_and_from_any_place(there: ClientWorld) -> None:
    await there.client.workflows.apply(small())
    run = await there.client.workflows.run("w", {"n": 1})
    await there.complete("t", 1)
    told = [event async for event in run.events()]
    assert [event.type for event in told][-1] == "run.succeeded"
    assert "step.completed" in [event.type for event in told if event.step == "a"]
    rest = [event.id async for event in run.events(after=told[1].id)]
    assert rest == [event.id for event in told[2:]]
    assert [event async for event in run.events(after=told[-1].id)] == []


async def test_the_same_key_is_the_same_run(there: ClientWorld) -> None:
    await there.client.workflows.apply(small())
    first = await there.client.workflows.run("w", {"n": 1}, idempotency_key="k")
    second = await there.client.workflows.run(small(), {"n": 1}, idempotency_key="k")
    other = await there.client.workflows.run("w", {"n": 1})
    assert first.id == second.id != other.id
    with pytest.raises(ConflictError):
        await there.client.workflows.run("w", {"n": 2}, idempotency_key="k")
    with pytest.raises(NotFoundError):
        await there.client.workflows.run("nobody")


async def test_a_large_output_is_fetched_and_held_to_its_hash(there: ClientWorld) -> None:
    wf = Workflow("w")
    big, small_one = wf.task("big", "big"), wf.task("small", "small")
    wf.set_output({"big": big.output, "small": small_one.output})
    await there.client.workflows.apply(wf)
    run = await there.client.workflows.run("w")
    text = "x" * (5 * 1024 * 1024)
    await there.complete("big", {"text": text})
    await there.complete("small", 1)
    await run.wait(timeout=120)
    assert run.output == {"big": {"text": text}, "small": 1}
    await run.refresh()
    assert "$blob" in run.steps["big"].output, "too large for one answer"
    assert await run.step_output("big") == {"text": text}


# --- telling runs things -----------------------------------------------------------------------------------


async def asked(run: AsyncRun) -> None:
    """As soon as somebody is asked."""

    async def is_asked() -> bool:
        step = (await run.refresh()).steps.get("ask")
        return step is not None and step.status == StepStatus.AWAITING_APPROVAL

    await until(is_asked)


async def test_signals_and_approvals(there: ClientWorld) -> None:
    wf = Workflow("w")
    word = wf.wait_signal("word", "go")
    ask = wf.approval("ask", "Really?", needs=[word])
    wf.set_output({"word": word.output, "by": ask.output.comment})
    await there.client.workflows.apply(wf)
    run = await there.client.workflows.run("w")
    with pytest.raises(InvalidRequestError, match="no step"):
        await run.approve()
    await run.signal("go", {"now": True}, signal_id="s1")
    await run.signal("go", {"now": False}, signal_id="s1")
    await asked(run)
    await run.approve(comment="fine")
    assert (await run.wait(timeout=120)).output == {"word": {"now": True}, "by": "fine"}


async def test_a_no_and_an_order_to_end(there: ClientWorld) -> None:
    wf = Workflow("w")
    wf.approval("ask")
    await there.client.workflows.apply(wf)
    run = await there.client.workflows.run("w")
    await asked(run)
    await run.reject("ask", "no")
    assert (await run.wait(timeout=120)).status == RunStatus.FAILED
    other = await there.client.workflows.run("w")
    await other.cancel("not needed")
    assert (await other.wait(timeout=120)).status == RunStatus.CANCELLED
    with pytest.raises(RunFailedError, match="is cancelled"):
        other.check()


async def begun(run: AsyncRun) -> bool:
    return bool((await run.refresh()).steps)


async def test_repairs_by_hand(there: ClientWorld) -> None:
    wf = Workflow("w")
    one = wf.task("one", "nobody-does-this", retry=Retry(attempts=1))
    two = wf.task("two", "nor-this")
    wf.set_output({"one": one.status, "two": two.output})
    await there.client.workflows.apply(wf)
    run = await there.client.workflows.run("w")
    await until(lambda: begun(run))
    await run.skip("one", "not needed")
    await run.complete("two", "done by hand", {"n": 1})
    assert (await run.wait(timeout=120)).output == {"one": "skipped", "two": {"n": 1}}
    assert run.steps["one"].status == StepStatus.SKIPPED


# --- as whom -----------------------------------------------------------------------------------------------


async def test_a_wrong_key_is_told_as_that() -> None:
    api = Api()
    transport = AsyncTransport(Connection("http://server", "wrong", direct=True), http=api.client("wrong"))
    async with AsyncClient(transport=transport) as client:
        with pytest.raises(UnauthenticatedError, match="rejected this key") as error:
            await client.runs.get("run-1")
        assert "wrong" not in repr(client)
        assert error.value.remedy


async def test_a_client_can_be_used_without_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    client = AsyncClient("http://127.0.0.1:1", key="a-key")
    assert client.url == "http://127.0.0.1:1"
    assert "a-key" not in repr(client) + repr(client.transport)
    await client.aclose()
