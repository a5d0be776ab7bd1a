"""Three machines configured from one file, as an operator does it."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fumehood.broker.broker import NatsBroker
from fumehood.broker.connection import Connection, ConnectionOptions
from fumehood.broker.topology import GIB, Shape, streams
from fumehood.cli.processes import held_port
from fumehood.errors import BrokerDeniedError, BrokerUnavailableError, TopologyError
from tests.conformance.broker_bench import NatsServer, fresh
from tests.waiting import until

SHAPE = Shape(2, replicas=3, storage=4 * GIB)
NAMES = ("n1", "n2", "n3")
USERS = """
[[users]]
name = "ours"
role = "server"
password_file = "ours"
[[users]]
name = "billing"
role = "worker"
password_file = "billing"
task_types = ["invoice"]
"""
CELL = """
partitions = 2
storage = "4GiB"
store_dir = "/nowhere"
cluster_password_file = "cluster"
"""


def _server(name: str, folder: Path, port: int) -> str:
    return (
        f'[[servers]]\nname = "{name}"\nhost = "127.0.0.1"\nport = {port}\ncluster_port = {held_port()}\n'
        f'store_dir = "{folder / name / "store"}"\n'
    )


def _configure(folder: Path, name: str) -> None:
    out = folder / name / "nats.conf"
    command = [sys.executable, "-m", "fumehood", "broker", "config", "broker.toml", "--server", name, "--out", str(out)]
    subprocess.run(command, cwd=folder, check=True, timeout=240)
    assert out.stat().st_mode & 0o777 == 0o600


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[NatsServer]]:
    for name in ("ours", "billing", "cluster"):
        (tmp_path / name).touch(mode=0o600)
        (tmp_path / name).write_text(secrets.token_urlsafe(32))
    servers = [NatsServer(tmp_path / name, 2) for name in NAMES]
    tables = [_server(name, tmp_path, one._port) for name, one in zip(NAMES, servers, strict=True)]
    (tmp_path / "broker.toml").write_text(CELL + "".join(tables) + USERS)
    try:
        for name, one in zip(NAMES, servers, strict=True):
            _configure(tmp_path, name)
            one.start()
        yield servers
    finally:
        for one in servers:
            one.kill()


async def test_one_file_makes_a_cluster_of_three_that_holds_a_worker_back(
    cluster: list[NatsServer], tmp_path: Path
) -> None:
    addresses = tuple(url for one in cluster for url in one.options().servers)
    options = ConnectionOptions(addresses, user="ours", password=(tmp_path / "ours").read_text())

    async def opened() -> NatsBroker | None:
        try:
            return await NatsBroker.open(options, SHAPE)
        except BrokerUnavailableError:
            return None  # the three have not found each other yet

    ours = await until(opened)
    assert ours is not None
    guest = replace(options, user="billing", password=(tmp_path / "billing").read_text(), inbox_prefix="_INBOX_billing")
    worker = await NatsBroker.open_worker(replace(guest, request_timeout=0.5, retry_seconds=0.1))
    try:
        for spec in streams(SHAPE):
            info = await ours.connection.api(f"STREAM.INFO.{spec.name}")
            holders = {peer["name"] for peer in info["cluster"].get("replicas", ())} | {info["cluster"]["leader"]}
            assert holders == set(NAMES) if spec.essential else len(holders) == 1
        run = fresh()
        with pytest.raises(BrokerDeniedError):
            await worker.journal.append(run, "forged", b"", expected=0)
        await ours.journal.append(run, "real", b"", expected=0)
        assert [entry.record_id for entry in await ours.journal.read(run)] == ["real"]
    finally:
        await worker.close()
        await ours.close()


@contextlib.contextmanager
def single(folder: Path, partitions: int) -> Iterator[NatsServer]:
    server = NatsServer(folder, partitions)
    server.start()
    try:
        yield server
    finally:
        server.kill()


async def test_a_cell_keeps_the_number_of_partitions_that_it_was_made_with(tmp_path: Path) -> None:
    with single(tmp_path / "nats", 1) as server:
        await (await NatsBroker.open(server.options(), Shape(1, storage=4 * GIB))).close()
    with single(tmp_path / "nats", 2) as grown, pytest.raises(TopologyError, match="made with 1 partitions, not 2"):
        await NatsBroker.open(grown.options(), Shape(2, storage=4 * GIB))


async def test_what_the_servers_of_a_cell_agree_on_is_read_from_the_leader(tmp_path: Path) -> None:
    """Any replica answers a direct read, also one that has just joined and has nothing yet."""
    asked: list[str] = []
    with single(tmp_path / "nats", 1) as server:
        watching = await Connection.open(server.options())
        for question in ("DIRECT.GET.KV_cluster.>", "STREAM.MSG.GET.KV_cluster"):
            await watching.subscribe(f"$JS.API.{question}", lambda message: asked.append(message.subject))
        await watching.api("INFO")  # the subscriptions stand
        await (await NatsBroker.open(server.options(), Shape(1, storage=4 * GIB))).close()
        await until(lambda: asked, what="nothing was read")
        await watching.close()
    assert set(asked) == {"$JS.API.STREAM.MSG.GET.KV_cluster"}
