"""What the suites with real parts share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conformance.broker_bench import NatsServer
from tests.conftest import unavailable
from tests.integration.cosign_world import Cosign, Repository
from tests.server_process import ServerProcess, make_cell


@pytest.fixture(scope="session")
def cosign(services: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Cosign:
    """The real binary, and keys that all tests share: what is signed is in a repository of each test's own."""
    binary = services.get("FUMEHOOD_TEST_COSIGN")
    if not binary:
        unavailable("no cosign: run scripts/services up")
    return Cosign(Path(binary), tmp_path_factory.mktemp("cosign"))


@pytest.fixture(scope="session")
def servers_nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """The broker of `servers`."""
    nats = NatsServer(tmp_path_factory.mktemp("nats"), 2)
    nats.start()
    try:
        asyncio.run(make_cell(nats))
        yield nats
    finally:
        nats.kill()


@pytest.fixture(scope="session")
def both_servers(
    servers_nats: NatsServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    folder = tmp_path_factory.mktemp("servers")
    one, other = (ServerProcess(folder, servers_nats, name=name) for name in ("one", "other"))
    yield one, other
    one.kill()
    other.kill()


@pytest.fixture
def servers(both_servers: tuple[ServerProcess, ServerProcess]) -> tuple[ServerProcess, ServerProcess]:
    """Two on one broker, which all tests share. One that the last test killed or stopped is started again."""
    dead = [server for server in both_servers if not server.alive]
    for server in dead:
        server.launch()
    for server in dead:
        server.wait()
    return both_servers


@pytest.fixture
def repository(registry: str) -> Iterator[Repository]:
    """A repository of the open registry that no other test uses."""
    with httpx.Client(base_url=f"http://{registry}", trust_env=False) as client:
        yield Repository(client, registry)
