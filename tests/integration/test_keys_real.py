"""Keys on a real broker: two servers, one cell, and wires that fall silent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from fumehood.broker.broker import NatsBroker
from fumehood.broker.connection import ConnectionOptions
from fumehood.broker.topology import GIB, Shape
from fumehood.control.bridge import Bridge
from fumehood.control.http.app import create_app
from fumehood.control.key_store import FRESH_SECONDS
from fumehood.control.service import Service
from fumehood.control.telemetry import Telemetry
from fumehood.door.tokens import TokenSource
from fumehood.settings import ServerSettings
from tests.conformance.broker_bench import TIMING, NatsServer
from tests.conftest import TimeBounds
from tests.noise import Watch
from tests.waiting import until

ADMIN = "t0ken-of-the-admin"
SETTINGS = ServerSettings(api_token=ADMIN)
MOMENTS = 2.0
"""Seconds: how long a revocation may take where nothing is wrong. It takes some milliseconds."""


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats", 1)
    server.start()
    yield server
    server.kill()


class Wire:
    """A line to the broker that can fall silent, with all sockets open."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._open = asyncio.Event()
        self._open.set()
        self._pumps: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def laid(self) -> AsyncIterator[int]:
        async with await asyncio.start_server(self._connected, "127.0.0.1", 0) as listener:
            yield listener.sockets[0].getsockname()[1]
            self.mend()
            for pump in self._pumps:
                pump.cancel()

    def cut(self) -> None:
        self._open.clear()

    def mend(self) -> None:
        self._open.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        for pump in (self._pump(reader, back), self._pump(there, writer)):
            task = asyncio.create_task(pump)
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                await self._open.wait()
                target.write(data)
                await target.drain()
        except OSError:
            pass
        finally:
            target.close()


@dataclass
class Server:
    service: Service
    app: Any
    watching: asyncio.Task[None]

    async def ask(self, method: str, path: str, token: str = ADMIN, **more: Any) -> httpx.Response:
        transport = httpx.ASGITransport(app=self.app)
        headers = {"authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://server", headers=headers) as client:
            return await client.request(method, path, **more)

    async def made(self, **wish: Any) -> dict[str, Any]:
        answer = await self.ask("POST", "/v1/keys", json={"name": "k", "scopes": ["workflows:read"], **wish})
        assert answer.status_code == 201, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def status(self, token: str) -> int:
        """Of a question that this server answers without asking anybody, but for the key and the list."""
        return (await self.ask("GET", "/openapi.json", token)).status_code


@asynccontextmanager
async def server(options: ConnectionOptions) -> AsyncIterator[Server]:
    broker = await NatsBroker.open(options, Shape(1, storage=4 * GIB, timing=TIMING))
    service = Service(broker)
    app = create_app(
        service,
        Bridge(broker),
        settings=SETTINGS,
        tokens=TokenSource(SETTINGS.api),
        bridge_tokens=TokenSource(SETTINGS.bridge),
        telemetry=Telemetry(),
    )
    watching = asyncio.create_task(service.key_store.work())
    try:
        yield Server(service, app, watching)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await broker.close()


@asynccontextmanager
async def wired(nats: NatsServer) -> AsyncIterator[tuple[Server, Wire]]:
    """A server whose line to the broker is ours to cut."""
    options = nats.options()
    wire = Wire(int(options.servers[0].rpartition(":")[2]))
    async with wire.laid() as port, server(replace(options, servers=(f"nats://127.0.0.1:{port}",))) as made:
        yield made, wire


async def test_what_one_server_makes_and_revokes_counts_at_the_other(nats: NatsServer, time_bounds: TimeBounds) -> None:
    async with server(nats.options()) as here, server(nats.options()) as there:
        for _ in range(3):
            key = await here.made()
            assert await here.status(key["key"]) == 200

            async def works(token: str = key["key"]) -> bool:
                return await there.status(token) == 200

            await until(works)
            revoked = await here.ask("DELETE", f"/v1/keys/{key['id']}")
            began = Watch()
            assert revoked.status_code == 200
            assert await here.status(key["key"]) == 401, "at once where it was revoked"

            async def refused(token: str = key["key"]) -> bool:
                return await there.status(token) == 401

            await until(refused)
            time_bounds.check(began.seconds, MOMENTS)


async def test_a_server_that_is_cut_off_lets_nobody_in_by_what_it_remembers(nats: NatsServer) -> None:
    async with server(nats.options()) as here, wired(nats) as (there, wire):
        key, other = await here.made(), await here.made()

        async def works() -> bool:
            return {await there.status(key["key"]), await there.status(other["key"])} == {200}

        await until(works)
        wire.cut()
        assert (await here.ask("DELETE", f"/v1/keys/{key['id']}")).status_code == 200
        revoked = time.monotonic()
        answers: list[tuple[float, int]] = []

        async def is_refused() -> bool:
            asked = time.monotonic() - revoked
            answers.append((asked, await there.status(key["key"])))
            return answers[-1][1] == 503

        await until(is_refused, what="it goes on with what it remembers")
        served = [asked for asked, status in answers if status == 200]
        assert all(asked < FRESH_SECONDS for asked in served), answers  # gate: clock the server counts from earlier
        assert {await there.status(key["key"]), await there.status(other["key"])} == {503}
        assert (await there.ask("GET", "/openapi.json")).status_code == 200, "the server's own token needs no broker"
        wire.mend()

        async def is_back() -> bool:
            status = await there.status(key["key"])
            assert status in (401, 503), "never again from what it remembers"
            return status == 401

        await until(is_back)
        await until(lambda: _is(there, other["key"], 200))


async def _is(asked: Server, token: str, status: int) -> bool:
    return await asked.status(token) == status


async def test_a_watch_that_ended_without_a_word_is_noticed(nats: NatsServer, time_bounds: TimeBounds) -> None:
    async with server(nats.options()) as here, server(nats.options()) as there:
        key = await here.made()
        await until(lambda: _is(there, key["key"], 200))
        there.watching.cancel()
        await asyncio.gather(there.watching, return_exceptions=True)
        await here.ask("DELETE", f"/v1/keys/{key['id']}")
        began = Watch()
        await until(lambda: _is(there, key["key"], 401))
        time_bounds.check(began.seconds, FRESH_SECONDS + MOMENTS)


async def test_keys_outlive_the_broker_and_are_not_believed_without_it(nats: NatsServer) -> None:
    async with server(nats.options()) as here:
        kept, gone = await here.made(), await here.made()
        assert (await here.ask("DELETE", f"/v1/keys/{gone['id']}")).status_code == 200
        assert await here.status(kept["key"]) == 200
        nats.kill()
        await until(lambda: _is(here, kept["key"], 503))
        nats.start()

        async def is_back() -> bool:
            assert await here.status(gone["key"]) in (401, 503)
            return await here.status(kept["key"]) == 200

        await until(is_back)
        assert await here.status(gone["key"]) == 401
