"""kill -9 of the node at the moments that matter: no job is lost, run twice, or answered with an untruth."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.faults.engine_proxy import EngineProxy
from tests.node_process import NodeProcess, job_body, programs_with
from tests.receipt_check import checked, sha256
from tests.waiting import until

CREATE = r"POST /v1\.41/containers/create\?name=fumehood-(?!probe)"
START = r"POST /v1\.41/containers/[0-9a-f]+/start"
REMOVE = r"DELETE /v1\.41/containers/"

UNIQUE = "head -c 16 /dev/urandom | od -An -v -tx1 | tr -d ' \\n'; echo"
"""Each execution prints another line: an answer that comes twice the same was not run twice."""

SLOWLY = "i=0; while [ $i -lt 400 ]; do printf 'line %05d of the output, padded to be long enough\\n' $i; i=$((i+1)); "
SLOWLY += "if [ $((i % 20)) = 0 ]; then sleep 1.2; fi; done"
SLOWLY_SAID = "".join(f"line {number:05d} of the output, padded to be long enough\n" for number in range(400))


@pytest.fixture(params=["runc", pytest.param("runsc", marks=pytest.mark.gvisor)])
def runtime(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def proxy(docker_socket: Path, tmp_path: Path) -> AsyncIterator[EngineProxy]:
    async with EngineProxy(tmp_path / "engine.sock", docker_socket).serving() as serving:
        yield serving


@pytest.fixture
async def node(runtime: str, proxy: EngineProxy, tmp_path: Path) -> AsyncIterator[NodeProcess]:
    async with NodeProcess(tmp_path, runtime=runtime, env={"FUMEHOOD_DOCKER_SOCKET": str(proxy.socket)}) as running:
        yield running


async def send(node: NodeProcess, body: dict[str, Any]) -> None:
    """Ask, and do not mind that the node dies under the request."""
    with contextlib.suppress(httpx.HTTPError):
        await node.post(body)


async def answered(node: NodeProcess, body: dict[str, Any]) -> dict[str, Any]:
    response = await node.post(body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def check_afterwards(node: NodeProcess, body: dict[str, Any], first: dict[str, Any]) -> None:
    """The same answer for ever, and nothing left behind."""
    assert await answered(node, body) == first
    await node.nothing_left(timeout=10)


def shell(image: str, script: str, **options: Any) -> dict[str, Any]:
    return job_body(["sh", "-c", script], image=image, **options)


async def kill_at(node: NodeProcess, proxy: EngineProxy, body: dict[str, Any], pattern: str, when: str) -> None:
    trap = proxy.trap(pattern, when, lambda: node.signal(signal.SIGKILL))
    asking = asyncio.create_task(send(node, body))
    await asyncio.wait_for(trap.fired.wait(), 120)
    await node.wait()
    await asking


@pytest.mark.storm
@pytest.mark.parametrize(
    ("pattern", "when"),
    [(CREATE, "before"), (CREATE, "after"), (START, "before"), (START, "after")],
    ids=["before-create", "after-create", "before-start", "after-start"],
)
async def test_killed_before_the_command_was_sent(
    node: NodeProcess, proxy: EngineProxy, base_image: str, pattern: str, when: str
) -> None:
    body = shell(base_image, UNIQUE)
    await kill_at(node, proxy, body, pattern, when)
    await node.start()
    answer = await answered(node, body)
    assert (answer["status"], answer["exit_code"]) == ("completed", 0)
    assert is_unique(answer["stdout"].strip())
    await check_afterwards(node, body, answer)


@pytest.mark.storm
async def test_killed_again_and_again_while_the_program_writes(node: NodeProcess, base_image: str) -> None:
    body = shell(base_image, SLOWLY)
    asking = asyncio.create_task(send(node, body))
    for _ in range(3):
        await more_spooled(node)
        await node.kill()
        await node.start()
    await asking
    answer = await answered(node, body)
    assert answer["stdout"] == SLOWLY_SAID, "a byte was lost or doubled"
    assert (answer["status"], answer["exit_code"], answer["stderr"]) == ("completed", 0, "")
    await check_afterwards(node, body, answer)
    assert sum(line["event"] == "job.finished" for line in node.logs()) == 1


def is_unique(text: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{32}", text) is not None


async def more_spooled(node: NodeProcess) -> None:
    before = spooled(node)
    await until(lambda: spooled(node) > before, what="the program goes on writing")


def spooled(node: NodeProcess) -> int:
    """Bytes of output that the node has safe."""
    files = [file for folder in node.spool() for file in folder.iterdir() if file.name in ("1", "2")]
    return sum(file.stat().st_size for file in files)


@pytest.mark.storm
async def test_killed_while_the_program_floods(node: NodeProcess, python_image: str) -> None:
    """More than the warden's window is under way: the program blocks while nobody reads, and goes on afterwards."""
    program = "import sys\nfor n in range(300): sys.stdout.write(f'{n:07d}\\n' * 8192)"
    body = job_body(["python3", "-c", program], image=python_image)
    asking = asyncio.create_task(send(node, body))
    await until(lambda: spooled(node) > 0, what="the program's output is spooled")
    await node.kill()
    await node.start()
    await asking
    answer = await answered(node, body)
    whole = "".join(f"{number:07d}\n" * 8192 for number in range(5))
    assert answer["stdout"] == whole[:262_144]
    assert answer["truncated"] == {"stdout": True, "stderr": False}
    assert (answer["status"], answer["exit_code"]) == ("completed", 0)
    await check_afterwards(node, body, answer)


@pytest.mark.storm
async def test_killed_before_the_program_exited_and_back_after(node: NodeProcess, base_image: str) -> None:
    body = shell(base_image, f"echo begun; sleep 2; {UNIQUE}; exit 7")
    asking = asyncio.create_task(send(node, body))
    await until(lambda: spooled(node) > 0, what="the program has begun")
    await node.kill()
    await asking
    await until(lambda: programs_with(f"CYNODE_JOB_ID={body['job_id']}") == [], what="the program has exited")
    await node.start()
    answer = await answered(node, body)
    assert (answer["status"], answer["exit_code"]) == ("failed", 7)
    assert answer["stdout"].startswith("begun\n")
    assert is_unique(answer["stdout"].splitlines()[1])
    await check_afterwards(node, body, answer)


async def test_killed_between_the_stored_result_and_the_removal(
    node: NodeProcess, proxy: EngineProxy, base_image: str
) -> None:
    """Also its receipt is the one that was stored then, whoever asks and however often."""
    body = shell(base_image, UNIQUE)
    await kill_at(node, proxy, body, REMOVE, "before")
    stored = stored_receipt(node, body["job_id"])
    await node.start()
    answer = await answered(node, body)
    assert (answer["status"], answer["exit_code"]) == ("completed", 0)
    for _ in range(2):
        assert (await node.get(f"/v1/worker/jobs/{body['job_id']}/receipt")).text == stored
    found = checked(json.loads(stored), node.state_dir, node.node_id)
    assert found.digest_of("stdout") == found.digest_of("stdout.returned") == sha256(answer["stdout"].encode())
    await check_afterwards(node, body, answer)


def stored_receipt(node: NodeProcess, job_id: str) -> str:
    """Of a node that is dead."""
    with contextlib.closing(sqlite3.connect(node.state_dir / "ledger.sqlite3")) as ledger:
        (found,) = ledger.execute("SELECT receipt FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
    return str(found)


async def test_killed_after_a_timeout_and_before_its_answer(
    node: NodeProcess, proxy: EngineProxy, base_image: str
) -> None:
    """On a timeout the sandbox goes before the result is stored: the next node asks the warden, who still knows."""
    body = shell(base_image, "echo begun; sleep 60", timeout_seconds=1)
    await kill_at(node, proxy, body, REMOVE, "before")
    await node.start()
    answer = await answered(node, body)
    assert (answer["status"], answer["stdout"]) == ("timeout", "begun\n")
    assert "exit_code" not in answer
    await check_afterwards(node, body, answer)


@pytest.mark.storm
async def test_a_node_that_never_comes_back_leaves_nothing_running(
    runtime: str, docker_socket: Path, tmp_path: Path, base_image: str
) -> None:
    """The warden ends the sandbox by itself; the container that remains is removed by the next node, not run again."""
    async with NodeProcess(tmp_path, runtime=runtime, env={"FUMEHOOD_ORPHAN_SECONDS": "3"}) as node:
        body = shell(base_image, "echo begun; sleep 300")
        asking = asyncio.create_task(send(node, body))
        await until(lambda: spooled(node) > 0, what="the program has begun")
        await node.kill()
        await asking

        async def ended() -> bool:
            return all(container["State"] == "exited" for container in await node.containers())

        await until(ended, what="the sandbox ended without an owner")
        await node.start()
        response = await node.post(body)
        answer = response.json()
        assert (answer["status"], answer["exit_code"], answer["stdout"]) == ("failed", 137, "begun\n")
        assert response.headers["Fumehood-Exit-Reason"] == "node_lost"
        await check_afterwards(node, body, answer)


@pytest.mark.storm
async def test_two_nodes_on_one_engine_leave_each_other_alone(
    docker_socket: Path, tmp_path: Path, base_image: str
) -> None:
    async with NodeProcess(tmp_path) as one, NodeProcess(tmp_path) as other:
        asking = asyncio.create_task(one.run_job(["sh", "-c", f"sleep 8; {UNIQUE}"], image=base_image))
        await until(one.containers, what="the first node's job runs")
        await other.restart()
        assert (await other.run_job(["true"], image=base_image)).json()["status"] == "completed"
        assert (await asking).json()["status"] == "completed"
        await one.nothing_left()
        await other.nothing_left()


@pytest.mark.storm
async def test_a_drain_that_runs_out_hands_its_job_to_the_next_node(
    runtime: str, docker_socket: Path, tmp_path: Path, base_image: str
) -> None:
    """The way of an upgrade: SIGTERM ends the node in time, and no sandbox with it."""
    async with NodeProcess(tmp_path, runtime=runtime, env={"FUMEHOOD_DRAIN_SECONDS": "1"}) as node:
        body = shell(base_image, f"echo begun; sleep 10; {UNIQUE}")
        asking = asyncio.create_task(send(node, body))
        await until(lambda: spooled(node) > 0, what="the program has begun")
        assert await node.stop(timeout=15) == 0
        await asking
        assert len(await node.containers()) == 1
        await node.start()
        answer = await answered(node, body)
        assert (answer["status"], len(answer["stdout"])) == ("completed", len("begun\n") + 33)
        await check_afterwards(node, body, answer)
