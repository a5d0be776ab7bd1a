"""A full disk under the node: it says so, takes nothing it could not answer for, and never makes an answer up."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.test_node_killed import shell, spooled
from tests.node_process import NodeProcess
from tests.waiting import until


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=0700", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    return filler


async def not_ready(node: NodeProcess) -> bool:
    return not await node.ready()


def interrupted(node: NodeProcess) -> bool:
    return any(line["event"] in ("job.interrupted", "job.not_stored") for line in node.logs())


async def test_a_disk_that_fills_up_under_a_job(small_disk: Path, docker_socket: Path, base_image: str) -> None:
    async with NodeProcess(small_disk, runtime="runc") as node:
        body = shell(base_image, "echo begun; sleep 3; head -c 200000 /dev/zero; exit 5")
        asking = asyncio.create_task(node.post(body))
        await until(lambda: spooled(node) > 0, what="the program has begun")
        filler = fill(small_disk)
        await until(lambda: not_ready(node), what="the node says that it is not ready")
        await until(lambda: interrupted(node), what="the output could not be stored")
        assert not asking.done(), "a result that cannot be stored is not given"
        filler.unlink()
        answer = (await asking).json()
        assert (answer["status"], answer["exit_code"]) == ("failed", 5), "the warden still knew"
        assert answer["stdout"] == "begun\n" + "\0" * 200_000
        await until(node.ready, 60, what="the node is ready again")
        assert (await node.post(body)).json() == answer
        assert (await node.run_job(["echo", "fine"], image=base_image)).json()["stdout"] == "fine\n"
        await node.nothing_left()
