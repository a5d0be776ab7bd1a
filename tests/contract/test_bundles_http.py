"""`POST /v1/bundles`: what is stored, whose it is, and what is refused."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator

import pytest

from fumehood.broker.memory import MemoryBroker
from fumehood.broker.names import NODES_TENANT
from fumehood.control.bundles import AT_ONCE, OF_A_TENANT, Bundles
from fumehood.control.callers import ADMIN, Scope
from fumehood.control.http import bundles as door
from fumehood.control.keys import NewKey
from fumehood.errors import OverloadedError, PayloadTooLargeError
from fumehood.wire.bundle_api import BUNDLES_PATH, MAX_BUNDLE_BYTES
from tests.contract.server_api_harness import Api

DATA = b"# v2 git bundle\n" + bytes(range(256)) * 5000
SOURCE = f"bundle:sha256:{hashlib.sha256(DATA).hexdigest()}"
OCTETS = {"content-type": "application/octet-stream"}


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for one in data:
        yield one


async def test_a_bundle_is_named_by_its_hash() -> None:
    """Providers find all of it where they look; the same one again is the same one."""
    api = Api()
    async with api.client() as client:
        for _ in range(2):
            answer = await client.post(BUNDLES_PATH, content=DATA, headers=OCTETS)
            assert (answer.status_code, answer.json()) == (201, {"source": SOURCE, "size": len(DATA)})
    stored = (
        await MemoryBroker(api.memory).blobs(NODES_TENANT).get(SOURCE.removeprefix("bundle:"), limit=MAX_BUNDLE_BYTES)
    )
    assert stored == DATA


async def test_a_bundle_is_its_tenants_alone() -> None:
    """Whoever knows a hash has not uploaded it."""
    api = Api()
    scopes = frozenset({Scope.RUNS_WRITE})
    _, token = await api.service.keys.create(NewKey("k", scopes, "acme"), ADMIN)
    async with api.client(token) as client:
        assert (await client.post(BUNDLES_PATH, content=DATA, headers=OCTETS)).status_code == 201
    owned = api.service.bundles.owned
    assert await owned("acme", SOURCE)
    assert not await owned("globex", SOURCE)
    assert not await owned("default", SOURCE)
    assert not await owned("acme", f"bundle:sha256:{'0' * 64}")


@pytest.mark.parametrize(
    "source", ["", "bundle:", SOURCE + "0", SOURCE.upper(), "/etc", "https://git.test/x", SOURCE[7:]]
)
async def test_what_is_no_bundle_is_nobodys(source: str) -> None:
    bundles = Bundles(MemoryBroker())
    await bundles.take("acme", pieces(DATA))
    assert not await bundles.owned("acme", source)


@pytest.mark.parametrize(
    ("data", "kind", "status"),
    [(b"", "application/octet-stream", 400), (DATA, "application/json", 415), (DATA, "text/plain", 415)],
)
async def test_what_is_refused(data: bytes, kind: str, status: int) -> None:
    async with Api().client() as client:
        answer = await client.post(BUNDLES_PATH, content=data, headers={"content-type": kind})
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"


async def test_a_bundle_is_counted_while_it_comes() -> None:
    """Its end is not waited for, nothing of it is stored, and the door has the same bound."""
    broker, came = MemoryBroker(), 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal came
        while True:
            came += 1
            yield bytes(1000)

    with pytest.raises(PayloadTooLargeError):
        await Bundles(broker, most_bytes=10_000).take("acme", endless())
    assert came == 11
    limits = door.LONG_BODIES["POST", BUNDLES_PATH]
    assert (limits.limit, limits.streamed) == (MAX_BUNDLE_BYTES, True)


async def test_not_too_many_at_once() -> None:
    """Whoever comes then is told to come again, and room is there when one has gone, however it went. No tenant takes
    all of it."""
    bundles, going = Bundles(MemoryBroker()), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"x"
        await going.wait()

    tasks = [asyncio.create_task(bundles.take("acme", slow())) for _ in range(OF_A_TENANT)]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError):
        await bundles.take("acme", pieces(DATA))
    left = AT_ONCE - OF_A_TENANT
    tasks += [asyncio.create_task(bundles.take(f"tenant-{number}", slow())) for number in range(left)]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError):
        await bundles.take("globex", pieces(DATA))
    tasks[0].cancel()
    await asyncio.gather(tasks[0], return_exceptions=True)
    assert (await bundles.take("acme", pieces(DATA))).source == SOURCE
    going.set()
    await asyncio.gather(*tasks[1:])
