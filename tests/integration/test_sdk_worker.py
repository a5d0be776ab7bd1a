"""Workers made with the SDK, in the workers' account of a real broker, under a real decider."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from fumehood import Continue, Pause, SyncTask, Task, TaskFailed
from fumehood.broker.ports import Bucket
from fumehood.errors import ConfigurationError, LeaseLostError
from tests.conformance.broker_bench import OTHER_WORKER, WORKER, NatsServer, fresh
from tests.conftest import TimeBounds
from tests.integration.sdk_world import SdkWorld, one_step, sdk_world, soon
from tests.noise import Watch
from tests.waiting import past, until, wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")
"""One decider for all of them: the next one would wait until the broker has forgotten the last."""

RETRY = {"attempts": 3, "backoff": "50ms", "jitter": 0}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    made = NatsServer(tmp_path_factory.mktemp("nats"), 1)
    made.start()
    yield made
    made.kill()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(server: NatsServer) -> AsyncIterator[SdkWorld]:
    async with sdk_world(server) as made:
        yield made


# --- ends ------------------------------------------------------------------------------------------------------------


async def test_what_a_handler_returns_is_the_output(here: SdkWorld) -> None:
    kind, seen = fresh("kind") + ".with.dots", []
    worker = here.worker()

    @worker.task(kind)
    async def double(task: Task) -> Any:
        seen.append((task.type, task.id, task.step_id, task.attempt, task.iteration, task.checkpoint))
        return {"doubled": 2 * task.input["x"]}

    async with worker:
        run_id = await here.start(one_step(kind), {"x": 21})
        assert await here.output(run_id) == {"a": {"doubled": 42}}
    assert seen == [(kind, f"{run_id}.a", "a", 1, 0, None)]
    await here.nothing_queued(kind)
    lease = await here.lease(run_id)
    assert lease is not None
    assert (lease.worker_id, lease.outcome) == (WORKER.name, "step.completed")


async def test_plain_functions_run_in_threads_at_the_same_time(here: SdkWorld) -> None:
    kind, meeting = fresh("kind"), threading.Barrier(3)
    worker = here.worker(max_tasks=3)

    @worker.task(kind)
    def meet(task: SyncTask) -> str:
        task.save({"at": task.input})
        meeting.wait(120)
        return threading.current_thread().name

    async with worker:
        runs = [await here.start(one_step(kind), n) for n in range(3)]
        outputs = [(await here.output(run_id))["a"] for run_id in runs]
    assert outputs == [f"task-{kind}"] * 3


async def test_an_exception_fails_the_attempt_and_the_policy_tries_again(here: SdkWorld) -> None:
    kind = fresh("kind")
    worker = here.worker()

    @worker.task(kind)
    async def unlucky(task: Task) -> int:
        if task.attempt < 3:
            raise KeyError("nothing there" * 1000)
        return task.attempt

    async with worker:
        run_id = await here.start(one_step(kind, retry=RETRY))
        assert await here.output(run_id) == {"a": 3}
    failures = [event["failure"] for event in await here.journals.events(run_id) if event["type"] == "step.retrying"]
    assert [failure["code"] for failure in failures] == ["KeyError", "KeyError"]
    assert all(failure["message"].startswith("'nothing there") for failure in failures)
    assert all(len(failure["message"]) <= 2048 and "Traceback" not in failure["message"] for failure in failures)


@pytest.mark.parametrize("how", ["raised", "returned"])
async def test_a_failure_that_cannot_be_mended_is_final(here: SdkWorld, how: str) -> None:
    kind, calls = fresh("kind"), []
    worker = here.worker()

    @worker.task(kind)
    async def broken(task: Task) -> TaskFailed:
        calls.append(task.attempt)
        failed = TaskFailed("no_such_model", "there is none", retryable=False)
        if how == "raised":
            raise failed
        return failed

    async with worker:
        end = await here.end(await here.start(one_step(kind, retry=RETRY)))
    assert (end["type"], end["failure"]) == ("run.failed", {"code": "no_such_model", "message": "there is none"})
    assert calls == [1]


@pytest.mark.parametrize("output", [{1, 2}, float("nan"), "\ud800", {"$blob": "sha256:" + "0" * 64, "size": 1}])
async def test_an_output_that_cannot_travel_fails_the_task(here: SdkWorld, output: Any) -> None:
    kind = fresh("kind")
    worker = here.worker()

    @worker.task(kind)
    async def odd(task: Task) -> Any:
        return output

    async with worker:
        end = await here.end(await here.start(one_step(kind, retry=RETRY)))
    assert (end["type"], end["failure"]["code"]) == ("run.failed", "invalid_output")


async def test_an_agent_loop_goes_on_until_it_returns(here: SdkWorld) -> None:
    kind = fresh("kind")
    worker = here.worker()

    @worker.task(kind)
    async def think(task: Task) -> Any:
        said = task.input.get("previous", [])
        if task.iteration == 1:
            raise Continue([*said, "raised"])
        return task.again([*said, "returned"]) if task.iteration < 3 else said

    text = json.dumps({"name": "w", "steps": [{"id": "a", "agent_loop": {"task": kind, "max_iterations": 5}}]})
    async with worker:
        assert await here.output(await here.start(text, {})) == {"a": ["returned", "raised", "returned"]}


@pytest.mark.parametrize("how", ["raised", "returned"])
async def test_a_pause_comes_back_with_its_checkpoint_and_costs_no_attempt(here: SdkWorld, how: str) -> None:
    kind, calls = fresh("kind"), []
    worker = here.worker()

    @worker.task(kind)
    async def patient(task: Task) -> Any:
        calls.append((time.monotonic(), task.attempt, task.checkpoint))
        if task.checkpoint is None:
            if how == "raised":
                raise Pause(0.7, {"page": 3})
            return task.pause(0.7, checkpoint={"page": 3})
        return task.checkpoint

    async with worker:
        run_id = await here.start(one_step(kind))
        assert await here.output(run_id) == {"a": {"page": 3}}
    (first, *one), (second, *two) = calls
    assert (one, two) == ([1, None], [1, {"page": 3}])
    assert second - first >= 0.7
    assert "step.paused" in [event["type"] for event in await here.journals.events(run_id)]
    await here.nothing_queued(kind)
    assert await here.broker.bucket(Bucket.CHECKPOINTS).get(f"{run_id}.a") is None, "the checkpoint outlived its step"


async def test_large_values_go_through_the_blob_store_and_come_out_whole(here: SdkWorld) -> None:
    kind, text = fresh("kind"), "x" * 300_000
    worker = here.worker()

    @worker.task(kind)
    async def grow(task: Task) -> Any:
        return task.input["text"] + "!" if "text" in task.input else {"text": text}

    steps = [
        {"id": "a", "task": kind},
        {"id": "b", "task": kind, "needs": ["a"], "with": {"text": "steps.a.output.text"}},
    ]
    async with worker:
        run_id = await here.start(json.dumps({"name": "w", "steps": steps, "output": "size(steps.b.output)"}), {})
        assert await here.output(run_id) == 300_001
    completed = [event for event in await here.journals.events(run_id) if event["type"] == "step.completed"]
    assert all(event["output"].keys() == {"$blob", "size"} for event in completed)


async def test_a_handler_can_signal_its_run(here: SdkWorld) -> None:
    kind = fresh("kind")
    worker = here.worker()

    @worker.task(kind)
    async def chatty(task: Task) -> None:
        await task.signal("progress", {"done": 1})
        await task.heartbeat()

    async with worker:
        run_id = await here.start(one_step(kind))
        await here.output(run_id)
    heard = [event for event in await here.journals.events(run_id) if event["type"] == "signal.received"]
    assert [(event["name"], event["data"]) for event in heard] == [("progress", {"done": 1})]


# --- room and directory ----------------------------------------------------------------------------------------------


async def test_two_hundred_tasks_are_done_once_each_and_never_more_at_once_than_there_is_room(here: SdkWorld) -> None:
    kind, done, under_way, most = fresh("kind"), Counter[str](), 0, 0
    worker = here.worker(max_tasks=16)

    @worker.task(kind)
    async def busy(task: Task) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await past(0.01)
        done[task.step_id] += 1
        under_way -= 1
        return int(task.input)

    text = json.dumps(
        {"name": "w", "output": "steps.each.output", "steps": [{"id": "each", "map": {"over": "input", "task": kind}}]}
    )
    async with worker:
        assert await here.output(await here.start(text, list(range(200)))) == list(range(200))
    assert set(done.values()) == {1}
    assert 8 < most <= 16


async def test_a_worker_takes_no_more_than_it_has_room_for(here: SdkWorld) -> None:
    kind, go, begun = fresh("kind"), asyncio.Event(), asyncio.Event()
    worker = here.worker(max_tasks=2)

    @worker.task(kind)
    async def slow(task: Task) -> None:
        begun.set()
        await go.wait()

    async with worker:
        runs = [await here.start(one_step(kind)) for _ in range(5)]
        await soon(begun)
        for run_id in runs:
            await here.until(run_id, "step.queued")

        async def leased() -> list[str]:
            return [run_id for run_id in runs if await here.lease(run_id) is not None]

        await until(leased)
        info = await here.broker.connection.api(f"CONSUMER.INFO.TASK_QUEUES.task-{kind}")
        assert info["num_ack_pending"] <= 2
        assert len(await leased()) <= 2
        go.set()
        for run_id in runs:
            await here.output(run_id)


async def test_a_worker_can_be_kept_to_one_run(here: SdkWorld) -> None:
    kind, mine = fresh("kind"), asyncio.Event()
    other = await here.start(one_step(kind))
    await here.until(other, "step.queued")
    wanted = await here.start(one_step(kind))
    worker = here.worker(run_id=wanted)

    @worker.task(kind)
    async def only(task: Task) -> str:
        mine.set()
        return task.run_id

    async with worker:
        assert await here.output(wanted) == {"a": wanted}
        assert await here.lease(other) is None


async def test_a_worker_is_in_the_directory_while_it_serves(here: SdkWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fumehood.sdk.loop.RENEW_SECONDS", 0.1)
    kind = fresh("kind")
    worker, bucket = here.worker(max_tasks=7, metadata={"zone": "b"}), here.broker.bucket(Bucket.WORKERS)

    @worker.task(kind)
    async def idle(task: Task) -> None: ...

    async with worker:
        entry = await bucket.get(WORKER.name)
        assert entry is not None
        said = json.loads(entry.value)
        assert said["metadata"].pop("version")
        assert said == {
            "worker_id": WORKER.name,
            "task_types": [kind],
            "language": "python",
            "transport": "nats",
            "max_tasks": 7,
            "metadata": {"zone": "b"},
        }
        first = entry.revision

        async def renewed() -> bool:
            now = await bucket.get(WORKER.name)
            return now is not None and now.revision > first

        await until(renewed)
    assert await bucket.get(WORKER.name) is None


# --- losing a task ---------------------------------------------------------------------------------------------------


async def test_cancelling_the_run_reaches_a_running_handler_within_seconds(
    here: SdkWorld, time_bounds: TimeBounds
) -> None:
    kind, begun, stopped = fresh("kind"), asyncio.Event(), asyncio.Event()
    worker, seen = here.worker(), []

    @worker.task(kind)
    async def long(task: Task) -> None:
        if begun.is_set():
            return
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(task.cancelled)
            stopped.set()

    async with worker:
        run_id = await here.start(one_step(kind))
        await soon(begun)
        await here.cancel(run_id)
        asked = Watch()
        await soon(stopped)
        time_bounds.check(asked.seconds, 8)
        assert seen == [True]
        await here.output(await here.start(one_step(kind)))  # its place is free again


async def test_a_plain_function_is_told_and_its_result_is_thrown_away(here: SdkWorld) -> None:
    kind, begun, told = fresh("kind"), asyncio.Event(), asyncio.Event()
    worker, loop, raised = here.worker(lease_seconds=1), asyncio.get_running_loop(), []

    @worker.task(kind)
    def long(task: SyncTask) -> str:
        loop.call_soon_threadsafe(begun.set)
        wait_until(lambda: task.cancelled)
        try:
            task.save({"too": "late"})
        except LeaseLostError as error:
            raised.append(error.code)
        loop.call_soon_threadsafe(told.set)
        return "never seen"

    async with worker:
        run_id = await here.start(one_step(kind))
        await soon(begun)
        await here.steal(run_id)
        await soon(told)
    assert raised == ["lease-lost"]
    events = await here.journals.events(run_id)
    assert "step.completed" not in [event["type"] for event in events]
    assert await here.broker.bucket(Bucket.CHECKPOINTS).get(f"{run_id}.a") is None
    lease = await here.lease(run_id)
    assert lease is not None
    assert lease.worker_id == "thief"


async def test_a_handler_that_ends_after_its_lease_was_lost_says_nothing(here: SdkWorld) -> None:
    """Between two looks at the lease: the answer itself finds out."""
    kind, begun, go = fresh("kind"), asyncio.Event(), asyncio.Event()
    worker = here.worker()

    @worker.task(kind)
    async def late(task: Task) -> str:
        begun.set()
        await go.wait()
        return "too late"

    async with worker:
        run_id = await here.start(one_step(kind))
        await soon(begun)
        await here.until(run_id, "step.started")
        heard = await here.listen(run_id)
        await here.steal(run_id)
        go.set()
    await here.broker.histories.publish(run_id, "fence", b'{"type": "fence"}')

    async def fenced() -> bool:
        return "fence" in heard

    await until(fenced)
    assert heard == ["fence"]
    assert "step.completed" not in [event["type"] for event in await here.journals.events(run_id)]


async def test_a_task_that_nobody_ever_answers_ends_its_attempt(here: SdkWorld) -> None:
    """Five workers took it and died, some time ago; the SDK's meets it next, and says so instead of dying too."""
    kind, long_ago = fresh("kind"), time.time_ns() // 1_000_000 - 3_600_000
    run_id = await here.start(one_step(kind))
    for number in range(5):
        dying = here.handouts(default_seconds=1, now_ms=lambda number=number: long_ago + number * 2000)
        (leased,) = await dying.take([kind], max_tasks=1, timeout=60, worker_id=f"dying-{number}")
        await here.broker.tasks.give_back(leased.lease.token)
    worker = here.worker()

    @worker.task(kind)
    async def never(task: Task) -> None:
        raise AssertionError("it was handed out a sixth time")

    async with worker:
        end = await here.end(run_id)
    assert (end["type"], end["failure"]["code"]) == ("run.failed", "lease_expired")


# --- stopping --------------------------------------------------------------------------------------------------------


async def test_stopping_waits_for_handlers(here: SdkWorld) -> None:
    kind, begun, go = fresh("kind"), asyncio.Event(), asyncio.Event()
    worker = here.worker()

    @worker.task(kind)
    async def slow(task: Task) -> str:
        begun.set()
        await go.wait()
        return "done"

    serving = asyncio.create_task(worker.serve())
    run_id = await here.start(one_step(kind))
    await soon(begun)
    worker.stop()
    late = await here.start(one_step(kind))
    await here.until(late, "step.queued")
    assert not serving.done()
    go.set()
    await serving
    assert await here.output(run_id) == {"a": "done"}
    assert await here.lease(late) is None, "it took a task while it was leaving"


@pytest.mark.parametrize("how", ["time is up", "a second stop", "cancelled"])
async def test_what_does_not_end_is_given_back_with_its_checkpoint(here: SdkWorld, how: str) -> None:
    kind, begun = fresh("kind"), asyncio.Event()
    worker = here.worker(drain_seconds=0.1 if how == "time is up" else 600)

    @worker.task(kind)
    async def stubborn(task: Task) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await task.save({"page": 7})
            raise

    serving = asyncio.create_task(worker.serve())
    run_id = await here.start(one_step(kind))
    await soon(begun)
    if how == "cancelled":
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
    else:
        worker.stop()
        if how == "a second stop":
            worker.stop()
        await serving
    assert await here.broker.bucket(Bucket.WORKERS).get(WORKER.name) is None

    other = here.worker()

    @other.task(kind)
    async def finish(task: Task) -> Any:
        return [task.attempt, task.checkpoint]

    async with other:  # at once: nobody waits for a lease of 5 minutes
        assert await here.output(run_id) == {"a": [1, {"page": 7}]}


async def test_a_plain_function_that_never_looks_does_not_keep_the_worker(
    here: SdkWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fumehood.sdk.loop.STOP_SECONDS", 0.1)
    kind, begun, end, loop = fresh("kind"), asyncio.Event(), threading.Event(), asyncio.get_running_loop()
    worker = here.worker()

    @worker.task(kind)
    def deaf(task: SyncTask) -> None:
        loop.call_soon_threadsafe(begun.set)
        end.wait(120)

    serving = asyncio.create_task(worker.serve())
    run_id = await here.start(one_step(kind))
    await soon(begun)
    worker.stop(now=True)
    await serving
    lease = await here.lease(run_id)
    end.set()
    assert lease is not None
    assert (lease.held, lease.expires_ms, lease.count) == (True, 0, 0)


# --- permissions -----------------------------------------------------------------------------------------------------


async def test_a_worker_under_another_name_than_its_users_is_told_so(here: SdkWorld) -> None:
    worker = here.worker(name="somebody-else", inbox_prefix=WORKER.inbox_prefix)

    @worker.task("any")
    async def idle(task: Task) -> None: ...

    with pytest.raises(ConfigurationError, match="a worker has its user's name"):
        await worker.serve()


async def test_a_user_that_may_take_one_type_serves_that_type(here: SdkWorld) -> None:
    worker = here.worker(OTHER_WORKER)

    @worker.task("only")
    async def allowed(task: Task) -> str:
        return "yes"

    async with worker:
        assert await here.output(await here.start(one_step("only"))) == {"a": "yes"}
