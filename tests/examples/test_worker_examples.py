"""The workers of examples/, each in a process of its own, for runs of a real engine."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fumehood.broker.access import User
from fumehood.broker.ports import Bucket
from tests.conformance.broker_bench import TRUSTED, WORKER, NatsServer
from tests.examples.markdown import ROOT
from tests.integration.sdk_world import SdkWorld, one_step, sdk_world
from tests.waiting import PATIENCE, until

Spawn = Callable[..., "subprocess.Popen[bytes]"]


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


@pytest.fixture
def spawn(here: SdkWorld, tmp_path: Path) -> Iterator[Spawn]:
    """Start an example as a user, and see it end well when it is told to go."""
    started: list[subprocess.Popen[bytes]] = []

    def make(name: str, user: User, *options: str) -> subprocess.Popen[bytes]:
        password = tmp_path / "password"
        password.write_text(f"{user.password}\n")
        command = [sys.executable, f"examples/{name}", "--password-file", str(password), *options]
        started.append(subprocess.Popen(command, cwd=ROOT, env={"PATH": os.environ["PATH"]}))
        return started[-1]

    yield make
    for process in started:
        process.terminate()
    for process in started:
        assert process.wait(PATIENCE) == 0


@pytest.mark.example
async def test_the_sdks_worker_completes_fails_loops_and_saves(here: SdkWorld, spawn: Spawn) -> None:
    (address,) = here.server.options().servers
    spawn("worker.py", WORKER, "--url", address.replace("://", f"://{WORKER.name}@"))
    loop = json.dumps({"name": "w", "steps": [{"id": "a", "agent_loop": {"task": "guess", "max_iterations": 20}}]})
    words = await here.start(one_step("digest"), {"words": ["a", "b"]})
    greeted, nobody = await here.start(one_step("greet"), {"name": "Ada"}), await here.start(one_step("greet"), {})
    guessed = await here.start(loop, {"secret": 700})
    assert await here.output(greeted) == {"a": {"greeting": "Hello, Ada!"}}
    assert (await here.end(nobody))["failure"] == {"code": "no_name", "message": "whom shall I greet?"}
    assert (await here.output(guessed))["a"]["found"] == 700
    digests = (await here.output(words))["a"]["digests"]
    assert [digest[:8] for digest in digests] == ["ca978112", "3e23e816"]


async def started(here: SdkWorld, kind: str, durable: str) -> None:
    async def made() -> bool:
        listed = await here.broker.connection.api("CONSUMER.NAMES.TASK_QUEUES")
        return durable in listed["consumers"]

    await until(made)


@pytest.mark.example
async def test_a_worker_of_plain_nats_completes_fails_pauses_and_saves(here: SdkWorld, spawn: Spawn) -> None:
    """With a consumer of its own making, which is there before the engine knows of the task type."""
    (address,) = here.server.options().servers
    spawn(
        "bare_nats_worker.py", TRUSTED, "--url", address, "--user", TRUSTED.name, "--task-type", "tally",
        "--durable", "my-own",
    )  # fmt: skip
    await started(here, "tally", "my-own")
    retry = {"attempts": 3, "backoff": "150ms", "jitter": 0}
    plain = await here.start(one_step("tally"), {"count": 2})
    failing = await here.start(one_step("tally", retry=retry), {"fail_until": 3})
    hopeless = await here.start(one_step("tally", retry=retry), {"fail_until": 9})
    pausing = await here.start(one_step("tally"), {"count": 5, "pause_ms": 300})
    assert await here.output(plain) == {"a": {"counted": [1, 2]}}
    assert await here.output(failing) == {"a": {"counted": [1]}}
    end = await here.end(hopeless)
    assert (end["type"], end["failure"]["code"]) == ("run.failed", "RuntimeError")
    assert await here.output(pausing) == {"a": {"counted": [1, 2, 3, 4, 5]}}
    attempts = {event["attempt"] for event in await here.journals.events(pausing) if event["type"] == "step.queued"}
    assert attempts == {1}, "a pause consumed an attempt"
    assert await here.broker.bucket(Bucket.CHECKPOINTS).get(f"{pausing}.a") is None
    assert await here.broker.tasks.consumer("tally") == "my-own"
    await here.nothing_queued("tally")


@pytest.mark.example
async def test_a_worker_of_plain_nats_goes_on_from_another_ones_checkpoint(here: SdkWorld, spawn: Spawn) -> None:
    """It goes away while its task is paused, and the next one has the rest to do."""
    (address,) = here.server.options().servers
    options = ("--url", address, "--user", TRUSTED.name, "--task-type", "handed-over")
    first = spawn("bare_nats_worker.py", TRUSTED, *options)
    run_id = await here.start(one_step("handed-over"), {"count": 3, "pause_ms": 1500})

    async def saved() -> Any:
        entry = await here.broker.bucket(Bucket.CHECKPOINTS).get(f"{run_id}.a")
        return entry is not None and json.loads(entry.value) == [1, 2]

    await until(saved)
    assert await here.broker.bucket(Bucket.WORKERS).get(TRUSTED.name) is not None
    first.terminate()
    await asyncio.to_thread(first.wait, PATIENCE)
    spawn("bare_nats_worker.py", TRUSTED, *options)
    assert await here.output(run_id) == {"a": {"counted": [1, 2, 3]}}


def test_the_bare_worker_imports_nothing_of_ours() -> None:
    text = (ROOT / "examples/bare_nats_worker.py").read_text(encoding="utf-8")
    assert "import nats" in text
    assert "fumehood" not in text
