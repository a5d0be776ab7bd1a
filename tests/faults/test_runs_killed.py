"""kill -9 around a run of the Runner API: of its server, decider, broker and node. It ends, once, and truly."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.faults.engine_proxy import EngineProxy
from tests.node_process import NodeProcess, programs_with
from tests.receipt_check import checked, sha256
from tests.runs_process import LEASE_SECONDS, ORPHAN_SECONDS, Cell
from tests.waiting import until

LINES = 40
SLOWLY = f"i=0; while [ $i -lt {LINES} ]; do echo line $i; echo error $i >&2; i=$((i+1)); sleep 0.25; done"
SAID = "".join(f"line {number}\n" for number in range(LINES))
TOLD = "".join(f"error {number}\n" for number in range(LINES))
CREATE = r"POST /v1\.41/containers/create\?name=run-"
START = r"POST /v1\.41/containers/[0-9a-f]+/start"
REMOVE = r"DELETE /v1\.41/containers/"


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    with Cell(tmp_path) as running:
        yield running


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Cell]:
    with Cell(tmp_path, servers=2, nodes=2) as running:
        yield running


async def some_output(cell: Cell, run_id: str) -> None:
    async def is_there() -> bool:
        return "line 3" in (await cell.logs(run_id))["stdout"]

    await cell.until(run_id, "running")
    await until(is_there, what="the program prints")


async def check_whole(cell: Cell, run_id: str, *, server: int = 0) -> None:
    """It ran once, from its beginning to its end, and every byte is there once."""
    run = await cell.until(run_id, server=server)
    assert (run["status"], run["exit_code"], run["reason"], run["attempt"]) == ("succeeded", 0, "exit", 1)
    kept = await cell.logs(run_id, server=server)
    assert (kept["stdout"], kept["stderr"], kept["truncated"]) == (SAID, TOLD, False)


async def test_a_server_that_is_killed_takes_no_run_with_it_and_its_readers_miss_nothing(
    cell: Cell, base_image: str
) -> None:
    run_id = await cell.create(base_image, "sh", "-c", SLOWLY)
    await some_output(cell, run_id)
    seen = {"stdout": "", "stderr": ""}
    last: str | None = None

    async def read() -> bool:
        """True when the stream came to its end."""
        nonlocal last
        async for event in cell.stream(run_id, after=last):
            last = event.id or last
            if event.name in seen:
                seen[event.name] += event.data["text"]
            if event.name == "end":
                return True
        return False

    for _ in range(3):
        reading = asyncio.create_task(read())
        before = len(seen["stdout"])
        await until(partial(_is_longer, seen, before))
        cell.servers[0].kill()
        with contextlib.suppress(httpx.HTTPError):
            await reading
        cell.servers[0].launch()
        await asyncio.to_thread(cell.servers[0].wait)
    assert await read()
    assert seen == {"stdout": SAID, "stderr": TOLD}
    await check_whole(cell, run_id)
    await cell.clean()


def _is_longer(seen: dict[str, str], before: int) -> bool:
    return len(seen["stdout"]) > before


@pytest.mark.storm
async def test_another_decider_takes_over(pair: Cell, base_image: str) -> None:
    run_id = await pair.create(base_image, "sh", "-c", SLOWLY)
    await some_output(pair, run_id)
    pair.servers[0].kill()
    await check_whole(pair, run_id, server=1)


async def test_a_broker_that_is_killed_and_comes_back_has_lost_nothing(cell: Cell, base_image: str) -> None:
    running = await cell.create(base_image, "sh", "-c", SLOWLY)
    await some_output(cell, running)
    for _ in range(2):
        cell.nats.kill()
        cell.nats.start()
    waiting = await _created(cell, base_image)
    await check_whole(cell, running)
    run = await cell.until(waiting)
    assert (run["status"], run["exit_code"]) == ("succeeded", 0)
    await cell.clean()


async def _created(cell: Cell, image: str) -> str:
    """Through a server whose broker has just come back."""

    async def created() -> str | None:
        with contextlib.suppress(AssertionError, httpx.HTTPError):
            return await cell.create(image, "true")
        return None

    return await until(created, every=0.3)


async def test_a_node_that_is_killed_and_comes_back_goes_on_where_it_was(tmp_path: Path, base_image: str) -> None:
    with Cell(tmp_path, env={"FUMEHOOD_ORPHAN_SECONDS": "30"}) as cell:
        (node,) = cell.nodes
        run_id = await cell.create(base_image, "sh", "-c", SLOWLY)
        await some_output(cell, run_id)
        for _ in range(2):
            await node.restart()
        await check_whole(cell, run_id)
        assert sum(line["event"] == "job.finished" for line in node.logs()) == 1
        assert sum(line["event"] == "task.recovered" for line in node.logs()) >= 1
        await cell.clean()


@pytest.mark.storm
async def test_a_node_that_never_comes_back_is_lost_and_said_to_be(cell: Cell, base_image: str) -> None:
    (node,) = cell.nodes
    run_id = await cell.create(base_image, "sleep", "600")
    await cell.until(run_id, "running")
    await node.kill()
    killed = time.monotonic()
    await until(lambda: _none_running(node), ORPHAN_SECONDS + 15, what="the sandbox ends by itself")
    alone = time.monotonic() - killed
    run = await cell.until(run_id, timeout=LEASE_SECONDS + 30)
    assert (run["status"], run["reason"], run["exit_code"]) == ("failed", "node_lost", None)
    assert alone < time.monotonic() - killed, "it was called lost only when nothing of it ran any more"


async def _none_running(node: NodeProcess) -> bool:
    return not [one for one in await node.containers() if one["State"] == "running"]


@pytest.mark.storm
async def test_where_it_may_be_tried_again_another_node_runs_it(pair: Cell, base_image: str) -> None:
    run_id = await pair.create(base_image, "sh", "-c", "echo begun; sleep 8; echo done", max_attempts=2)
    await pair.until(run_id, "running")
    first, other = pair.nodes
    if not await first.containers():
        first, other = other, first
    await first.kill()
    run = await pair.until(run_id, timeout=LEASE_SECONDS + 90)
    assert (run["status"], run["attempt"], run["exit_code"]) == ("succeeded", 2, 0)
    assert (await pair.logs(run_id))["stdout"] == "begun\ndone\n"
    assert sum(line["event"] == "job.finished" for line in other.logs()) == 1


@pytest.mark.storm
async def test_a_node_that_stood_still_for_too_long_does_not_answer_for_what_was_given_up(
    cell: Cell, base_image: str
) -> None:
    (node,) = cell.nodes
    run_id = await cell.create(base_image, "sleep", "600")
    await cell.until(run_id, "running")
    node.signal(signal.SIGSTOP)
    try:
        run = await cell.until(run_id, timeout=LEASE_SECONDS + 30)
    finally:
        node.signal(signal.SIGCONT)
    assert (run["status"], run["reason"]) == ("failed", "node_lost")
    await cell.clean()
    assert await cell.get(run_id) == run
    assert (await cell.until(await cell.create(base_image, "true")))["status"] == "succeeded"


@pytest.mark.storm
async def test_what_is_stopped_ends_and_what_has_not_begun_never_runs(cell: Cell, base_image: str) -> None:
    (node,) = cell.nodes
    obeys = "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.1; done"
    run_id = await cell.create(base_image, "sh", "-c", obeys)
    await cell.until(run_id, "running")
    await cell.stop(run_id)
    run = await cell.until(run_id)
    assert (run["status"], run["reason"]) == ("stopped", "stopped")
    await cell.clean()
    await cell.stop(run_id)
    await node.kill()
    never = await cell.create(base_image, "true")
    await cell.stop(never)
    assert (await cell.until(never))["status"] == "stopped"
    await node.start()
    assert (await cell.until(await cell.create(base_image, "true")))["status"] == "succeeded"
    assert never not in "".join(str(line) for line in node.logs())


@pytest.mark.storm
async def test_what_does_not_obey_is_not_called_stopped_before_it_is_dead(cell: Cell, base_image: str) -> None:
    """Its container goes a moment later: nothing but its supervisor is left in there."""
    run_id = await cell.create(base_image, "sh", "-c", "trap '' TERM; while :; do sleep 0.2; done")
    await cell.until(run_id, "running")
    assert programs_with(f"FUMEHOOD_RUN_ID={run_id}")
    await cell.stop(run_id)
    asked = time.monotonic()
    run = await cell.until(run_id)
    assert not programs_with(f"FUMEHOOD_RUN_ID={run_id}")
    assert (run["status"], run["reason"]) == ("stopped", "stopped")
    assert time.monotonic() - asked > 9, "it had ten seconds"
    assert run["finished_at"] > run["started_at"]


@pytest.mark.storm
async def test_stopping_what_has_ended_changes_nothing(cell: Cell, base_image: str) -> None:
    run_id = await cell.create(base_image, "true")
    run = await cell.until(run_id)
    await cell.stop(run_id)
    assert await cell.get(run_id) == run


# --- at the moments that matter ----------------------------------------------------------------------------


@pytest.fixture
async def proxy(docker_socket: Path, tmp_path: Path) -> AsyncIterator[EngineProxy]:
    async with EngineProxy(tmp_path / "engine.sock", docker_socket).serving() as serving:
        yield serving


@pytest.mark.storm
@pytest.mark.parametrize(
    ("pattern", "when"),
    [
        pytest.param(CREATE, "before", id="before-create"),
        pytest.param(CREATE, "after", id="after-create"),
        pytest.param(START, "before", id="before-start"),
        pytest.param(START, "after", id="after-start"),
        pytest.param(REMOVE, "before", id="before-removal"),
    ],
)
async def test_a_node_killed_at_this_moment_and_started_again_runs_it_once(
    proxy: EngineProxy, tmp_path: Path, base_image: str, pattern: str, when: str
) -> None:
    with Cell(tmp_path / "cell", nodes=0) as cell:
        async with cell.node(0, {"FUMEHOOD_DOCKER_SOCKET": str(proxy.socket)}) as node:
            cell.nodes.append(node)
            trap = proxy.trap(pattern, when, lambda: node.signal(signal.SIGKILL))
            unique = "head -c 16 /dev/urandom | od -An -v -tx1 | tr -d ' \\n'; echo"
            run_id = await cell.create(base_image, "sh", "-c", unique)
            await asyncio.wait_for(trap.fired.wait(), 120)
            await node.wait()
            stored = stored_receipt(node)
            await node.start()
            run = await cell.until(run_id)
            assert (run["status"], run["attempt"]) == ("succeeded", 1)
            printed = (await cell.logs(run_id))["stdout"]
            assert re.fullmatch(r"[0-9a-f]{32}\n", printed)
            receipt = await cell.receipt(run_id)
            assert checked(receipt, node.state_dir, node.signs_as).digest_of("stdout") == sha256(printed.encode())
            assert (pattern == REMOVE) == (stored is not None), "the end was stored before the removal"
            assert stored in (None, receipt), "what was signed once is not signed again"
            await cell.clean()


def stored_receipt(node: NodeProcess) -> dict[str, Any] | None:
    """In the only end that a dead node has written down."""
    with contextlib.closing(sqlite3.connect(node.state_dir / "ledger.sqlite3")) as ledger:
        found = ledger.execute("SELECT response FROM jobs WHERE state = 'done'").fetchone()
    return None if found is None else dict(json.loads(found[0])["receipt"])
