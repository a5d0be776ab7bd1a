"""kill -9 of the Docker Engine under a node: the answer says `node_lost`, and the node is ready when the engine is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.private_engine import PrivateEngine
from tests.faults.test_node_killed import shell, spooled
from tests.node_process import NodeProcess
from tests.waiting import until


@pytest.fixture
def engine(tmp_path: Path, docker_socket: Path) -> Iterator[PrivateEngine]:
    with PrivateEngine(tmp_path) as running:
        yield running


async def not_ready(node: NodeProcess) -> bool:
    return not await node.ready()


@pytest.mark.storm
async def test_the_engine_dies_under_a_job_and_comes_back(
    engine: PrivateEngine, tmp_path: Path, base_image: str
) -> None:
    env = {"FUMEHOOD_DOCKER_SOCKET": str(engine.socket), "FUMEHOOD_ORPHAN_SECONDS": "10"}
    async with NodeProcess(tmp_path, runtime="runc", env=env) as node:
        body = shell(base_image, "echo begun; sleep 300")
        asking = asyncio.create_task(node.post(body))
        await until(lambda: spooled(node) > 0, 60, what="the program has begun")
        engine.kill()
        await until(lambda: not_ready(node), what="the node says that it is not ready")
        refused = await node.run_job(["true"], image=base_image)
        assert refused.status_code == 503
        assert int(refused.headers["Retry-After"]) >= 1
        engine.start()
        response = await asking
        answer = response.json()
        assert (answer["status"], answer["exit_code"], answer["stdout"]) == ("failed", 137, "begun\n")
        assert response.headers["Fumehood-Exit-Reason"] == "node_lost"
        await until(node.ready, what="the node is ready again")
        assert (await node.run_job(["echo", "again"], image=base_image)).json()["stdout"] == "again\n"
        assert (await node.post(body)).json() == answer


@pytest.mark.storm
async def test_engine_and_node_die_together(engine: PrivateEngine, tmp_path: Path, base_image: str) -> None:
    env = {"FUMEHOOD_DOCKER_SOCKET": str(engine.socket), "FUMEHOOD_ORPHAN_SECONDS": "10"}
    async with NodeProcess(tmp_path, runtime="runc", env=env) as node:
        body = shell(base_image, "echo begun; sleep 300")
        asking = asyncio.create_task(node.post(body))
        await until(lambda: spooled(node) > 0, 60, what="the program has begun")
        await node.kill()
        engine.kill()
        await asyncio.gather(asking, return_exceptions=True)
        engine.start()
        await node.start()
        response = await node.post(body)
        assert (response.json()["status"], response.json()["exit_code"]) == ("failed", 137)
        assert response.json()["stdout"] == "begun\n"
        assert response.headers["Fumehood-Exit-Reason"] == "node_lost"


@pytest.mark.storm
async def test_an_engine_that_is_away_at_the_start_is_waited_for(
    engine: PrivateEngine, tmp_path: Path, base_image: str
) -> None:
    engine.kill()
    node = NodeProcess(tmp_path, runtime="runc", env={"FUMEHOOD_DOCKER_SOCKET": str(engine.socket)})
    try:
        node.launch()
        await asyncio.sleep(0)
        assert node.alive
        engine.start()
        await node.await_ready()
        assert (await node.run_job(["echo", "hi"], image=base_image)).json()["stdout"] == "hi\n"
    finally:
        await node.kill()
