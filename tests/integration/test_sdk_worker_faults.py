"""Workers that are killed, told to go, cut off, or not let in; and the trace that goes through all of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fumehood import Task, Worker
from fumehood.broker.ports import Bucket
from fumehood.cli.processes import held_port
from fumehood.control import intake
from fumehood.engine import definition
from fumehood.engine.messages import MessageType
from fumehood.errors import BrokerUnavailableError, ConfigurationError
from tests.conformance.broker_bench import WORKER, NatsServer, fresh
from tests.conftest import TimeBounds
from tests.integration.sdk_world import SdkWorld, one_step, sdk_world, soon
from tests.noise import Watch
from tests.waiting import PATIENCE, until

PROGRAM = Path(__file__).with_name("sdk_worker_process.py")
ROOT = PROGRAM.parents[2]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    made = NatsServer(tmp_path_factory.mktemp("nats"), 1)
    made.start()
    yield made
    made.kill()


@pytest.fixture
async def here(server: NatsServer) -> AsyncIterator[SdkWorld]:
    async with sdk_world(server) as made:
        yield made


class Notes:
    """What worker processes wrote down."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

    async def begun(self, pid: int) -> None:
        await self.wait(lambda lines: f"begun {pid}" in lines)

    async def wait(self, met: Callable[[list[str]], bool]) -> None:
        async def look() -> bool:
            return met(self.lines())

        await until(look)

    def go(self) -> None:
        self.path.with_suffix(".go").touch()


Spawn = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


@pytest.fixture
def spawn(here: SdkWorld, notes: Notes) -> Iterator[Spawn]:
    started: list[subprocess.Popen[bytes]] = []

    def make(kind: str, **options: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(PROGRAM), here.url(), kind, str(notes.path), json.dumps(options)]
        started.append(subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}))
        return started[-1]

    yield make
    for process in started:
        process.kill()
        process.wait()


async def ended(process: subprocess.Popen[bytes]) -> int:
    return await asyncio.to_thread(process.wait, PATIENCE)


async def test_what_a_killed_worker_had_is_done_by_another_after_the_lease(
    here: SdkWorld, spawn: Spawn, notes: Notes
) -> None:
    kind = fresh("kind")
    first = spawn(kind, lease_seconds=2)
    run_id = await here.start(one_step(kind))
    await notes.begun(first.pid)
    first.kill()
    await ended(first)
    notes.go()
    second = spawn(kind, lease_seconds=2)
    assert await here.output(run_id) == {"a": {"pid": second.pid, "attempt": 1}}
    assert notes.lines() == [f"begun {first.pid}", f"begun {second.pid}"]
    lease = await here.lease(run_id)
    assert lease is not None
    assert lease.count == 2


async def test_sigterm_lets_a_handler_end_and_a_second_one_does_not_wait(
    here: SdkWorld, spawn: Spawn, notes: Notes
) -> None:
    kind = fresh("kind")
    hasty = spawn(kind, drain_seconds=600)
    run_id = await here.start(one_step(kind))
    await notes.begun(hasty.pid)
    hasty.terminate()

    async def taking_ended() -> bool:
        info = await here.broker.connection.api(f"CONSUMER.INFO.TASK_QUEUES.task-{kind}")
        return not info["num_waiting"]

    await until(taking_ended)
    assert hasty.poll() is None
    hasty.send_signal(signal.SIGINT)
    assert await ended(hasty) == 0
    assert notes.lines() == [f"begun {hasty.pid}", f"left {hasty.pid}"]

    patient = spawn(kind, drain_seconds=600)
    await notes.begun(patient.pid)  # at once, as it was given back
    patient.terminate()
    notes.go()
    assert await ended(patient) == 0
    assert await here.output(run_id) == {"a": {"pid": patient.pid, "attempt": 1}}
    assert await here.broker.bucket(Bucket.WORKERS).get(WORKER.name) is None


async def test_a_broker_that_goes_away_in_the_middle_loses_nothing(here: SdkWorld, server: NatsServer) -> None:
    kind, begun, go, returned = fresh("kind"), asyncio.Event(), asyncio.Event(), asyncio.Event()
    worker, calls = here.worker(max_tasks=2), []

    @worker.task(kind)
    async def slow(task: Task) -> str:
        calls.append(task.run_id)
        begun.set()
        await go.wait()
        returned.set()
        return "heard"

    async with worker:
        run_id = await here.start(one_step(kind))
        await soon(begun)
        await here.until(run_id, "step.started")
        server.kill()
        go.set()
        await soon(returned)  # and its answer meets nobody
        server.start()
        assert await here.output(run_id) == {"a": "heard"}
        later = await here.start(one_step(kind))
        assert await here.output(later) == {"a": "heard"}
    assert calls == [run_id, later]


async def test_one_trace_goes_through_the_engine_and_the_worker(server: NatsServer) -> None:
    spans, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    kind, trace_id, said = fresh("kind"), "0af7651916cd43dd8448eb211c80319c", []
    async with sdk_world(server, provider.get_tracer("engine")) as here:
        worker = here.worker(tracer_provider=provider)

        @worker.task(kind)
        async def traced(task: Task) -> str | None:
            return task.traceparent

        run_id = fresh()
        await here.broker.connection.subscribe(
            f"history.*.{run_id}", lambda message: said.append(json.loads(message.data))
        )
        read = definition.parse(one_step(kind))
        body = {
            "definition": json.loads(read.canonical()),
            "digest": read.digest,
            "meta": {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"},
        }
        async with worker:
            await here.broker.mailboxes.send(run_id, f"{run_id}.start", intake.encode(MessageType.START, body))
            given = (await here.output(run_id))["a"]
    (span,) = [span for span in spans.get_finished_spans() if span.name == f"task {kind}"]
    assert span.context is not None
    assert span.parent is not None
    assert f"{span.context.trace_id:032x}" == trace_id
    assert given.split("-")[1:3] == [trace_id, f"{span.parent.span_id:016x}"]
    assert dict(span.attributes or {}) == {
        "run_id": run_id,
        "step_id": "a",
        "attempt": 1,
        "iteration": 0,
        "worker": WORKER.name,
    }
    (completed,) = [event for event in said if event["type"] == "step.completed"]
    assert completed["traceparent"].split("-")[1:3] == [trace_id, f"{span.context.span_id:016x}"]
    provider.shutdown()


async def test_wrong_credentials_are_one_clear_error_without_them(here: SdkWorld) -> None:
    worker = Worker(here.url().replace(str(WORKER.password), "hunter2"))
    worker._connection = replace(worker._connection, connect_timeout=1.5)

    @worker.task("any")
    async def idle(task: Task) -> None: ...

    with pytest.raises(ConfigurationError, match="refused our credentials") as raised:
        await worker.serve()
    assert "hunter2" not in f"{raised.value!r} {worker._connection!r}"


async def test_a_broker_that_is_not_there_is_an_error_at_the_start(time_bounds: TimeBounds) -> None:
    worker = Worker(f"nats://127.0.0.1:{held_port()}")
    worker._connection = replace(worker._connection, connect_timeout=1.0)

    @worker.task("any")
    async def idle(task: Task) -> None: ...

    began = Watch()
    (address,) = worker._connection.servers
    with pytest.raises(BrokerUnavailableError, match=rf"{address}: the broker .*\n.*`fumehood dev` prints its own"):
        async with worker:
            pass
    time_bounds.check(began.seconds, PATIENCE)


def test_a_broker_that_is_not_ours_is_named_in_one_sentence(tmp_path: Path) -> None:
    """It is a NATS server, and lets this user in, but nobody has made anything there."""
    stranger = NatsServer(tmp_path, 1)
    stranger.start()
    try:
        (address,) = stranger.options().servers
        worker = Worker(address.replace("://", f"://{WORKER.name}:{WORKER.password}@"))
        worker._connection = replace(worker._connection, retry_seconds=0.5)

        @worker.task("any")
        async def idle(task: Task) -> None: ...

        with pytest.raises(BrokerUnavailableError, match=rf"{address} is no Fumehood broker.*\n.*finds it") as raised:
            worker.run()
        assert str(WORKER.password) not in str(raised.value)
        assert raised.value.__cause__ is None, "a page of frames says no more than this"
    finally:
        stranger.kill()
