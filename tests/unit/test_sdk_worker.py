"""A worker's loop on the in-memory broker, where the weather can be chosen."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fumehood import SyncTask, Task, TaskFailed
from fumehood.broker.handout import Handouts, Leased
from fumehood.broker.lease import Lease
from fumehood.broker.memory import Faults, MemoryBroker, MemoryServer, Verdict
from fumehood.broker.ports import Bucket
from fumehood.errors import BrokerFullError, BrokerUnavailableError
from fumehood.sdk import hold, loop
from fumehood.sdk.calling import Handler
from fumehood.sdk.execution import Office
from fumehood.sdk.loop import Loop, LoopOptions
from fumehood.wire.protocol import TaskPayload
from tests.waiting import until

PATIENCE = 180.0


class Weather(Faults):
    """A list of what becomes of each write, then only sunshine."""

    def __init__(self, verdicts: Sequence[Verdict] = ()) -> None:
        self.verdicts = list(verdicts)
        self.calls: list[str] = []
        self.full = 0
        self.away = False

    async def call(self, operation: str, subject: str) -> Verdict:
        self.calls.append(operation)
        await asyncio.sleep(0)
        if operation == "histories.publish" and self.full:
            self.full -= 1
            raise BrokerFullError("no room")
        if self.away:
            return Verdict.LOST
        writes = operation.rpartition(".")[2] in ("publish", "update", "ack", "put")
        return self.verdicts.pop(0) if writes and self.verdicts and subject != "w" else Verdict.OK


class Bench:
    """A broker, one worker's loop on it, and what it said."""

    def __init__(self, weather: Weather | None = None, *, lease_seconds: int = 300) -> None:
        self.server = MemoryServer()
        self.calm = MemoryBroker(self.server)
        self.weather = weather or Weather()
        broker = MemoryBroker(self.server, faults=self.weather)
        self.office = Office(broker, Handouts(broker, default_seconds=lease_seconds), "w")

    async def publish(self, run_id: str, given: Any = None, kind: str = "k") -> None:
        task = TaskPayload(task_id=f"{run_id}.a", run_id=run_id, step_id="a", input=given)
        await self.calm.tasks.publish(kind, run_id, f"{run_id}.a", task.encode())

    @contextlib.asynccontextmanager
    async def serving(self, handler: Handler, **options: Any) -> AsyncIterator[Loop]:
        made = Loop(self.office, {"k": handler}, LoopOptions(**{"max_tasks": 4, "drain_seconds": 20, **options}))
        task = asyncio.create_task(made.serve())
        try:
            yield made
        finally:
            made.stop()
            await task

    def said(self, run_id: str) -> list[dict[str, Any]]:
        messages = [message for log in self.server.histories for message in log.messages.values()]
        return [json.loads(message.data) for message in messages if message.subject == run_id]

    def answers(self, run_id: str) -> list[dict[str, Any]]:
        return [event for event in self.said(run_id) if event["type"] != "step.started"]

    async def lease(self, run_id: str) -> Lease | None:
        entry = await self.calm.bucket(Bucket.LEASES).get(f"{run_id}.a")
        return Lease.decode(entry) if entry is not None else None

    async def until(self, met: Callable[[], bool]) -> None:
        await until(met)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold, "Backoff", lambda **_: type("Now", (), {"step": lambda self: 0.001})())
    monkeypatch.setattr(loop, "TAKE_AGAIN", 0.001)
    monkeypatch.setattr("fumehood.broker.handout.AGAIN_SECONDS", 0.01)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    weather=st.lists(st.sampled_from([Verdict.OK, Verdict.OK, Verdict.LOST, Verdict.UNANSWERED]), max_size=24),
    tasks=st.integers(1, 6),
)
def test_every_task_is_answered_whatever_the_weather(weather: list[Verdict], tasks: int) -> None:
    async def live() -> None:
        bench, calls = Bench(Weather(weather), lease_seconds=1), Counter[str]()

        async def double(task: Task) -> int:
            calls[task.run_id] += 1
            return 2 * int(task.input)

        runs = {f"r{number}": number for number in range(tasks)}
        for run_id, number in runs.items():
            await bench.publish(run_id, number)
        async with bench.serving(double):
            await bench.until(lambda: all(bench.answers(run_id) for run_id in runs))
        for run_id, number in runs.items():
            answers = bench.answers(run_id)
            assert {(event["type"], event["payload"]) for event in answers} == {("step.completed", 2 * number)}
            assert len({event["lease_id"] for event in answers}) == 1, "two leases answered"
            assert calls[run_id] >= 1

    asyncio.run(live())


@pytest.mark.parametrize("outage", [1, 5, 40])
async def test_an_answer_is_repeated_until_it_is_heard(outage: int, caplog: pytest.LogCaptureFixture) -> None:
    bench, begun = Bench(), asyncio.Event()

    async def handler(task: Task) -> str:
        bench.weather.verdicts = [Verdict.LOST] * outage
        begun.set()
        return "heard"

    await bench.publish("r1")
    async with bench.serving(handler):
        await bench.until(lambda: bool(bench.answers("r1")))
    assert [event["payload"] for event in bench.answers("r1")] == ["heard"]
    assert "answer_not_heard" in caplog.messages or outage == 1


async def test_a_worker_that_must_go_does_not_wait_for_a_broker_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "STOP_SECONDS", 0.05)
    bench, begun = Bench(), asyncio.Event()

    async def handler(task: Task) -> str:
        bench.weather.verdicts = [Verdict.LOST] * 1_000_000
        begun.set()
        return "never heard"

    await bench.publish("r1")
    made = Loop(bench.office, {"k": handler}, LoopOptions(max_tasks=1, drain_seconds=0.05))
    serving = asyncio.create_task(made.serve())
    await begun.wait()
    made.stop()
    async with asyncio.timeout(PATIENCE):
        await serving
    assert asyncio.all_tasks() == {asyncio.current_task()}, "something goes on"
    assert bench.answers("r1") == []


async def test_a_worker_whose_connection_was_ended_for_good_ends_too() -> None:
    bench, begun = Bench(), asyncio.Event()
    office = replace(bench.office, is_cut_off=lambda: True)

    async def handler(task: Task) -> None:
        begun.set()
        await asyncio.Event().wait()

    await bench.publish("r1")
    serving = asyncio.create_task(Loop(office, {"k": handler}, LoopOptions(4, drain_seconds=600)).serve())
    await begun.wait()
    bench.weather.away = True
    await bench.publish("r2")  # wakes it
    with pytest.raises(BrokerUnavailableError):
        async with asyncio.timeout(PATIENCE):
            await serving


async def test_a_broken_checkpoint_or_lease_of_one_task_does_not_end_the_worker() -> None:
    bench = Bench()
    for run_id in ("r1", "r2"):
        await bench.publish(run_id)
    (first,) = await bench.calm.tasks.pull(["k"], max_tasks=1, timeout=0)
    await bench.calm.bucket(Bucket.CHECKPOINTS).put("r1.a", b"[" * 100_000)
    await bench.calm.tasks.give_back(first.token)
    await bench.calm.bucket(Bucket.LEASES).put("r2.a", b"[" * 60_000)
    async with bench.serving(lambda task: task.run_id):
        await bench.until(lambda: bool(bench.answers("r1") and bench.answers("r2")))
    assert [event["payload"] for run_id in ("r1", "r2") for event in bench.answers(run_id)] == ["r1", "r2"]


async def test_an_error_that_nobody_expected_while_taking_is_told_and_does_not_end_the_worker(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench()
    take, broken = bench.office.handouts.take, [RecursionError("deep"), OverflowError("large")]

    async def taking(*given: Any, **more: Any) -> list[Leased]:
        if broken:
            raise broken.pop()
        return await take(*given, **more)

    monkeypatch.setattr(bench.office.handouts, "take", taking)
    await bench.publish("r1")
    async with bench.serving(lambda task: "done") as worker:
        await bench.until(lambda: bool(bench.answers("r1")))
    assert (worker.counts["take_broken"], caplog.messages.count("take_broken")) == (2, 2)


async def test_a_pause_continues_the_handlers_trace() -> None:
    bench = Bench()
    trace = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
    task = TaskPayload(task_id="r1.a", run_id="r1", step_id="a", traceparent=trace)
    await bench.calm.tasks.publish("k", "r1", "r1.a", task.encode())
    async with bench.serving(lambda task: task.pause(5)):
        await bench.until(lambda: bool(bench.answers("r1")))
    (event,) = bench.answers("r1")
    assert (event["type"], event["traceparent"][:35]) == ("step.paused", trace[:35])


async def test_a_broker_that_is_full_is_waited_for() -> None:
    bench = Bench()

    async def handler(task: Task) -> str:
        bench.weather.full = 3
        return "heard"

    await bench.publish("r1")
    async with bench.serving(handler):
        await bench.until(lambda: bool(bench.answers("r1")))
    assert [event["type"] for event in bench.answers("r1")] == ["step.completed"]


async def test_an_output_above_all_bounds_fails_the_task_instead_of_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fumehood.broker.values.LARGEST", 200_000)
    bench = Bench()

    async def handler(task: Task) -> str:
        return "x" * 300_000

    await bench.publish("r1")
    async with bench.serving(handler):
        await bench.until(lambda: bool(bench.answers("r1")))
    (event,) = bench.answers("r1")
    assert (event["type"], event["payload"]["error"]["code"]) == ("step.failed", "payload-too-large")


async def test_an_input_whose_content_is_gone_fails_the_task_without_a_call() -> None:
    bench = Bench()
    calls: list[SyncTask] = []
    await bench.publish("r1", {"$blob": "sha256:" + "0" * 64, "size": 5})
    async with bench.serving(calls.append):
        await bench.until(lambda: bool(bench.answers("r1")))
    (event,) = bench.answers("r1")
    error = event["payload"]["error"]
    assert (event["type"], error["code"], calls) == ("step.failed", "blob-not-found", [])
    assert error["retryable"], "the replica that was asked may only be late"


class RudeError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("a" * 5000), {"code": "ValueError", "message": "a" * 2048}),
        (RudeError(), {"code": "RudeError", "message": ""}),
        (ValueError("\ud800"), {"code": "ValueError", "message": "?"}),
        (TaskFailed("c" * 500, retryable=True), {"code": "c" * 128, "message": "", "retryable": True}),
        (TaskFailed("", "m"), {"code": "failed", "message": "m"}),
        (asyncio.CancelledError(), {"code": "CancelledError", "message": ""}),
    ],
    ids=["long", "rude", "surrogate", "code", "no code", "cancelled itself"],
)
async def test_what_is_told_of_an_error_is_bounded(
    error: BaseException, told: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The log holds the error as it is; parallel test runs cannot pass half a character on in their reports.
    monkeypatch.setattr(logging.getLogger("fumehood.worker"), "disabled", True)
    bench = Bench()

    async def handler(task: Task) -> None:
        raise error

    await bench.publish("r1")
    async with bench.serving(handler):
        await bench.until(lambda: bool(bench.answers("r1")))
    assert [event["payload"]["error"] for event in bench.answers("r1")] == [told]


async def test_one_line_is_written_for_each_task(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fumehood.worker")
    bench = Bench()

    async def handler(task: Task) -> None:
        if task.input:
            raise ValueError("shown to whoever runs the worker")

    await bench.publish("r1", 0)
    await bench.publish("r2", 1)
    async with bench.serving(handler):
        await bench.until(lambda: bool(bench.answers("r1") and bench.answers("r2")))
    lines = {record.__dict__["run_id"]: record for record in caplog.records if record.message == "task_ended"}
    assert {run_id: line.__dict__["outcome"] for run_id, line in lines.items()} == {"r1": "completed", "r2": "failed"}
    assert [lines["r1"].exc_info, lines["r2"].exc_info and lines["r2"].exc_info[0]] == [None, ValueError]
    assert {"worker_started", "worker_stopped"} <= set(caplog.messages)


async def test_a_lost_lease_frees_the_place_of_a_coroutine_that_does_not_want_to_stop() -> None:
    """It is told; its place is free when it has ended, not before; what it returns is nobody's."""
    bench, begun, end = Bench(lease_seconds=1), asyncio.Event(), asyncio.Event()

    async def stubborn(task: Task) -> str:
        begun.set()
        while not end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await end.wait()
        return str(task.cancelled)

    await bench.publish("r1")
    async with bench.serving(stubborn, max_tasks=1) as worker:
        await begun.wait()
        await bench.calm.bucket(Bucket.LEASES).delete("r1.a")
        (execution,) = worker._executions.values()
        try:
            await bench.until(lambda: execution.cancelled)
            assert len(worker._executions) == 1
        finally:
            end.set()
        await bench.until(lambda: not worker._executions)
    assert bench.answers("r1") == []


async def test_what_was_leased_while_the_worker_was_being_stopped_is_given_back() -> None:
    bench, calls = Bench(), []

    async def handler(task: Task) -> None:
        calls.append(task)

    for number in range(8):
        await bench.publish(f"r{number}")
    for patience in range(12):
        made = Loop(bench.office, {"k": handler}, LoopOptions(max_tasks=1, drain_seconds=5))
        serving = asyncio.create_task(made.serve())
        for _ in range(patience):
            await asyncio.sleep(0)
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
    held = [lease for number in range(8) if (lease := await bench.lease(f"r{number}")) and lease.held]
    assert [lease for lease in held if lease.expires_ms] == [], "leased to a worker that is gone"


async def test_a_plain_function_that_raises_in_its_thread_fails_its_task() -> None:
    bench = Bench()

    def handler(task: SyncTask) -> None:
        raise SystemExit("from a thread")

    await bench.publish("r1")
    async with bench.serving(handler):
        await bench.until(lambda: bool(bench.answers("r1")))
    assert [event["payload"]["error"]["code"] for event in bench.answers("r1")] == ["SystemExit"]
