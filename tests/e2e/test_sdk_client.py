"""The SDK's client as somebody uses it: in a home folder where a real `fumehood dev` runs, without an address or a key.

Also what it does when its server is killed under it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fumehood import (
    AsyncClient,
    CannotVerifyError,
    Client,
    InvalidDefinitionError,
    JobStatus,
    Receipt,
    RunFailedError,
    RunStatus,
    SyncTask,
    Worker,
    Workflow,
    cel,
)
from fumehood.cli.processes import held_port
from tests.conformance.broker_bench import NatsServer
from tests.dev_process import Dev
from tests.server_process import ServerProcess
from tests.waiting import wait_until

PATIENCE = 240.0


@pytest.fixture(scope="module")
def here(dev: Dev) -> Iterator[Dev]:
    """Where the client finds address and key by itself."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("FUMEHOOD_")]:
            patch.delenv(name)
        patch.setenv("HOME", str(dev.home))
        yield dev


@pytest.fixture
def client(here: Dev) -> Iterator[Client]:
    with Client() as made:
        yield made


# --- workflows ---------------------------------------------------------------------------------------------


def order() -> Workflow:
    wf = Workflow("sdk-order", deadline="10m")
    pack = wf.map(
        "pack",
        "sdk.pack",
        over=wf.input.items.filter(lambda one: one != ""),
        with_={"what": wf.item, "label": "box " + cel.string(wf.index + 1), "note": "input.items"},
    )
    weigh = wf.sandbox("weigh", IMAGE, "cat; echo", with_={"boxes": pack.output}, must_succeed=True)
    word = wf.wait_signal("word", "address", needs=[weigh])
    ask = wf.approval("ask", "Send it?", with_={"to": word.output})
    wf.set_output(
        {"boxes": pack.output, "printed": weigh.output.stdout, "to": word.output.city, "by": ask.output.comment}
    )
    return wf


IMAGE = "127.0.0.1:5055/fumehood/base:1"


@pytest.fixture
def worker(here: Dev) -> Iterator[None]:
    """One of the SDK's, in a thread of its own."""
    made = Worker(here.nats_url)

    @made.task("sdk.pack")
    def pack(task: SyncTask) -> Any:
        assert task.input["note"] == "input.items", "a text is a text"
        return f"{task.input['what']} in {task.input['label']}"

    @made.task("sdk.flaky")
    def flaky(task: SyncTask) -> Any:
        if not (here.home / "repaired").exists():
            raise ValueError("it is broken")
        return "fine"

    ready, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def work() -> None:
        async with made:
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(work()))
    thread.start()
    assert ready.wait(PATIENCE)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE)
        loop.close()


@pytest.mark.usefixtures("worker")
def test_a_workflow_made_in_python_runs_to_its_end(client: Client) -> None:
    applied = client.workflows.apply(order())
    assert client.workflows.apply(order().to_yaml()).digest == applied.digest
    run = client.workflows.run("sdk-order", {"items": ["cup", "", "plate"]}, labels={"team": "red"})
    for event in run.events():
        if event.type == "step.listening":
            break
    run.signal("address", {"city": "Ulm"})
    wait_until(lambda: run.refresh().steps["ask"].status == "awaiting_approval")
    run.approve(comment="fine")
    run.wait(timeout=PATIENCE).check()
    boxes = ["cup in box 1", "plate in box 2"]
    printed = run.output["printed"]
    assert json.loads(printed) == {"boxes": boxes}
    assert run.output == {"boxes": boxes, "printed": printed, "to": "Ulm", "by": "fine"}
    assert run.steps["weigh"].status == "completed"
    assert run.receipt("weigh").verify(against={"stdout": run.output["printed"]})
    assert not run.receipt("weigh").verify(against={"stdout": "something else"})
    found = [one.id for one in client.runs.list(workflow="sdk-order", labels={"team": "red"})]
    assert found == [run.id]


@pytest.mark.usefixtures("worker")
async def test_the_asynchronous_client_takes_up_a_run_where_it_failed(here: Dev) -> None:
    wf = Workflow("sdk-flaky")
    step = wf.task("try", "sdk.flaky")
    wf.set_output({"said": step.output})
    async with AsyncClient() as client:
        await client.workflows.apply(wf)
        run = await client.workflows.run(wf)
        assert (await run.wait(timeout=PATIENCE)).status == RunStatus.FAILED
        with pytest.raises(RunFailedError, match="it is broken"):
            run.check()
        (here.home / "repaired").touch()
        await run.retry("it was repaired")
        assert (await run.wait(timeout=PATIENCE)).output == {"said": "fine"}
        wrong = wf.to_dict() | {"dedline": "1m"}
        with pytest.raises(InvalidDefinitionError, match="dedline"):
            await client.workflows.apply(wrong)


# --- images, Python, receipts ------------------------------------------------------------------------------


def test_an_image_is_run_followed_and_proven(client: Client, here: Dev, tmp_path: Path) -> None:
    run = client.runs.start_image(IMAGE, "echo one; sleep 0.3; echo two; echo oops >&2; exit 3", memory_mib=128)
    told = list(run.follow())
    assert "".join(piece.text for piece in told if piece.stream == "stdout") == "one\ntwo\n"
    run.wait(timeout=PATIENCE)
    assert (run.status, run.exit_code, run.reason) == (RunStatus.FAILED, 3, "exit")
    assert (run.logs().stdout, run.logs().stderr) == ("one\ntwo\n", "oops\n")
    found = run.receipt().verify(against={"stdout": "one\ntwo\n", "stderr": b"oops\n"})
    assert found
    assert found.worker == "node"
    assert not run.receipt().verify(against="one\n")
    run.receipt().save(tmp_path / "r.json")
    words = [sys.executable, "-m", "fumehood", "verify", str(tmp_path / "r.json")]
    done = subprocess.run(words, env=here.env, capture_output=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr


def test_a_receipt_that_was_changed_is_refused(client: Client, tmp_path: Path) -> None:
    run = client.runs.start_image(IMAGE, ["true"]).wait(timeout=PATIENCE)
    run.receipt().save(tmp_path / "r.json")
    envelope = json.loads((tmp_path / "r.json").read_text())
    said = json.loads(base64.b64decode(envelope["payload"]))
    said["predicate"]["outcome"]["exit_code"] = 1
    envelope["payload"] = base64.b64encode(json.dumps(said).encode()).decode()
    (tmp_path / "forged.json").write_text(json.dumps(envelope))
    found = Receipt.load(tmp_path / "forged.json").verify()
    assert not found
    assert found.reason == "signature_invalid"
    assert Receipt.load(tmp_path / "r.json").verify()


def test_without_a_root_nothing_passes(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = client.runs.start_image(IMAGE, ["true"]).wait(timeout=PATIENCE)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(CannotVerifyError, match="no root is pinned"):
        run.receipt().verify()


def test_some_python_is_run_and_what_it_printed_is_what_was_signed(client: Client) -> None:
    result = client.python.run("import sys; print(6 * 7); print('oops', file=sys.stderr)", check=True)
    assert (result.stdout, result.stderr, result.exit_code, result.ok) == ("42\n", "oops\n", 0, True)
    assert result.receipt.verify()
    assert result.receipt.verify(against={"stdout": "42\n"})
    assert client.receipts.of_command(result.command_id).verify()
    failed = client.python.run("raise SystemExit(3)")
    assert (failed.ok, failed.exit_code, failed.status) == (False, 3, "succeeded")
    killed = client.python.run("import os; os.kill(os.getpid(), 9)")
    assert killed.exit_code == 137
    assert killed.receipt.verify()
    assert not replace(killed, exit_code=9).receipt.verify()
    late = client.python.run("import time; time.sleep(60)", timeout=0.5)
    assert (late.ok, late.exit_code) == (False, None)
    assert late.error is not None


# --- jobs --------------------------------------------------------------------------------------------------


async def test_a_job_of_three_providers_has_a_verdict_that_can_be_checked(here: Dev, base_image: str) -> None:
    payload = {"sandbox": {"image_digest": base_image.partition("@")[2]}, "commands": [{"cmd": "echo hello"}]}
    async with AsyncClient() as client:
        assert "oa.sandbox_run.v1" in [one.name for one in await client.jobs.types()]
        job = await client.jobs.submit("oa.sandbox_run.v1", payload, redundancy=3)
        assert job.status in (JobStatus.QUEUED, JobStatus.RUNNING)
        (await job.wait(timeout=300)).check()
        assert job.verdict is not None
        assert (job.verdict.outcome, job.verdict.agreed, job.verdict.redundancy) == ("majority", 3, 3)
        assert len({one.worker for one in job.candidates}) == 3
        assert job.result is not None
        assert job.result["runs"][0]["exit_code"] == 0
        assert len(job.receipts) == 3
        for receipt in job.receipts:
            assert await receipt.verify()
        assert await job.verify()
        again = await client.jobs.get(job.id)
        assert again.result == job.result
        forged = json.loads(json.dumps(job.said))
        forged["result"]["runs"][0]["exit_code"] = 1
        again._said = forged
        assert not await again.verify(), "the result is not what was signed"


# --- a server that is killed -------------------------------------------------------------------------------


def test_who_waits_does_not_notice_that_the_server_was_killed(tmp_path: Path) -> None:
    nats = NatsServer(tmp_path / "nats", 1)
    nats.start()
    wf = Workflow("patient")
    word = wf.wait_signal("word", "go")
    wf.set_output({"said": word.output})
    try:
        with ServerProcess(tmp_path, nats, port=held_port()) as server, Client(server.url, key=server.token) as client:
            client.workflows.apply(wf)
            run = client.workflows.run("patient")
            ended: list[Any] = []
            there = threading.Barrier(3, timeout=PATIENCE)

            async def both() -> None:
                """One of the other flavour waits, too."""
                async with AsyncClient(server.url, key=server.token) as other:
                    found = await other.runs.get(run.id)
                    await asyncio.to_thread(there.wait)
                    ended.append((await found.wait(timeout=PATIENCE)).output)

            def wait() -> None:
                with Client(server.url, key=server.token) as other:
                    found = other.runs.get(run.id)
                    there.wait()
                    ended.append(found.wait(timeout=PATIENCE).output)

            threads = [threading.Thread(target=wait), threading.Thread(target=lambda: asyncio.run(both()))]
            for thread in threads:
                thread.start()
            there.wait()
            wait_until(lambda: "word" in run.refresh().steps and run.steps["word"].status == "listening")
            server.kill()
            server.launch()
            server.wait()
            assert ended == []
            run.signal("go", "now")
            for thread in threads:
                thread.join(PATIENCE)
            assert ended == [{"said": "now"}] * 2
    finally:
        nats.kill()
