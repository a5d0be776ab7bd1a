"""A client of the SDK and a whole server over the in-memory broker, with a worker that does what a test tells it to."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from fumehood import AsyncClient
from fumehood.broker.handout import Handouts, Leased
from fumehood.sdk.aio.transport import AsyncTransport
from fumehood.sdk.connection import Connection
from fumehood.verify.dsse import to_file
from fumehood.verify.keylist import published
from tests.contract.runner_harness import Node
from tests.contract.server_api_harness import ADMIN, SETTINGS, Api
from tests.unit.receipt_world import ROOT, key_list, listed


@dataclass
class ClientWorld:
    api: Api
    client: AsyncClient

    def __post_init__(self) -> None:
        self.node = Node(self.api)
        self.handouts = Handouts(self.api.service.broker)

    async def take(self, kind: str) -> Leased:
        (found,) = await self.handouts.take([kind], max_tasks=1, timeout=60, worker_id="w1", lease_seconds=30)
        return found

    async def complete(self, kind: str, output: Any = None) -> None:
        await self.handouts.complete((await self.take(kind)).lease, output)

    async def fail(self, kind: str, code: str = "broken") -> None:
        error = {"code": code, "message": f"it is {code}", "retryable": False}
        await self.handouts.fail((await self.take(kind)).lease, error)


@contextlib.asynccontextmanager
async def client_world(*, deciding: bool = True, **settings: Any) -> AsyncIterator[ClientWorld]:
    api = Api(replace(SETTINGS, **settings))
    http: httpx.AsyncClient = api.client(ADMIN)
    transport = AsyncTransport(Connection("http://server", ADMIN, direct=True), http=http)
    async with AsyncClient(transport=transport) as client:
        world = ClientWorld(api, client)
        if not deciding:
            yield world
            return
        async with api.deciding():
            yield world


def pinned_home(folder: Path, monkeypatch: pytest.MonkeyPatch, *workers: str) -> Path:
    """A home folder where the tests' root is pinned, and its list has these workers."""
    monkeypatch.setenv("HOME", str(folder))
    for name in ("FUMEHOOD_RECEIPT_ROOT", "FUMEHOOD_RECEIPT_KEYS_FILE"):
        monkeypatch.delenv(name, raising=False)
    config = folder / ".config" / "fumehood"
    config.mkdir(parents=True)
    (config / "receipt-root").write_text(ROOT.public_key.hex() + "\n")
    keys = key_list(*(listed(worker) for worker in workers))
    (config / "receipt-keys.json").write_bytes(to_file(published(keys, ROOT)))
    return config
