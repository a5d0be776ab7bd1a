"""What a provider may do at the broker, and what nobody else may: against a server with the generated configuration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from fumehood.broker.broker import NatsBroker
from fumehood.broker.connection import Connection
from fumehood.broker.handout import Handouts
from fumehood.broker.names import DEFAULT_TENANT, NODES_TENANT
from fumehood.broker.ports import Bucket, LogKind, LogName, LogPlace, LogRecord
from fumehood.broker.topology import GIB, Shape
from fumehood.errors import BrokerDeniedError
from fumehood.wire.protocol import TaskPayload
from fumehood.wire.sandbox import SANDBOX_TASK
from fumehood.wire.sealed import ADJUDICATE_TASK, job_task
from tests.conformance.broker_bench import (
    BRIDGE,
    NODE,
    PROVIDERS,
    TIMING,
    TRUSTED,
    WORKER,
    NatsServer,
    fresh,
    receive,
)
from tests.waiting import PATIENCE

SHAPE = Shape(1, storage=4 * GIB, timing=TIMING)
JOB = job_task("oa.sandbox_run.v1")
MINE, OTHER = PROVIDERS[:2]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    made = NatsServer(tmp_path_factory.mktemp("nats"), 1)
    made.start()
    yield made
    made.kill()


@pytest.fixture
async def ours(server: NatsServer) -> AsyncIterator[NatsBroker]:
    broker = await NatsBroker.open(server.options(), SHAPE)
    for kind in (JOB, SANDBOX_TASK, ADJUDICATE_TASK):
        await broker.tasks.consumer(kind)
    yield broker
    await broker.close()


@pytest.fixture
async def provider(server: NatsServer, ours: NatsBroker) -> AsyncIterator[NatsBroker]:
    broker = await NatsBroker.open_worker(server.options(MINE))
    yield broker
    await broker.close()


def task(run: str, distinct: str | None = None) -> bytes:
    return TaskPayload(task_id=f"{run}.a", run_id=run, step_id="a", input={}, distinct=distinct).encode()


async def test_a_provider_does_its_work(ours: NatsBroker, provider: NatsBroker) -> None:
    """The whole way of an execution, with a place among others, and what it reads and says beside."""
    run = fresh()
    handouts = Handouts(provider)
    await ours.tasks.publish(JOB, run, "t", task(run, distinct="many"))
    (leased,) = await handouts.take([JOB], max_tasks=1, timeout=60, worker_id=MINE.name, lease_seconds=15)
    lease = await handouts.heartbeat(leased.lease)
    ref = await provider.blobs(DEFAULT_TENANT).put(b"x" * 300_000)
    assert len(await provider.blobs(DEFAULT_TENANT).get(ref, limit=300_000)) == 300_000
    uploaded = await ours.blobs(NODES_TENANT).put(b"bundle")
    assert await provider.blobs(NODES_TENANT).get(uploaded, limit=100) == b"bundle"
    await ours.bucket(Bucket.PROVIDERS).put(MINE.name, b'{"set_aside": {}}')
    entry = await provider.bucket(Bucket.PROVIDERS).get(MINE.name)
    assert entry is not None
    await provider.bucket(Bucket.WORKERS).put(MINE.name, b"{}")
    await handouts.complete(lease, {"response": {}})
    said = await receive(ours, run, 2)
    assert said[-1].message_id == f"{run}.a.step.completed"
    assert not provider.connection.errors


NOT_A_PROVIDERS: dict[str, Callable[[NatsBroker, str], Awaitable[object]]] = {
    "a decision": lambda broker, run: broker.journal.append(run, "forged", b"", expected=0),
    "an order": lambda broker, run: broker.mailboxes.send(run, "cancel", b""),
    "a sandbox": lambda broker, run: broker.tasks.pull([SANDBOX_TASK], max_tasks=1, timeout=PATIENCE),
    "a verdict": lambda broker, run: broker.tasks.pull([ADJUDICATE_TASK], max_tasks=1, timeout=PATIENCE),
    "another's registration": lambda broker, run: broker.bucket(Bucket.WORKERS).put(OTHER.name, b"{}"),
    "how another stands": lambda broker, run: broker.bucket(Bucket.PROVIDERS).get(OTHER.name),
    "how it stands itself": lambda broker, run: broker.bucket(Bucket.PROVIDERS).put(MINE.name, b"{}"),
    "the list of keys": lambda broker, run: broker.bucket(Bucket.RECEIPT_KEYS).put("published", b"{}"),
    "what a sandbox prints": lambda broker, run: broker.logs.append(
        LogName(run, "a", 1), LogRecord(LogKind.START, LogPlace(), b"{}")
    ),
    "what others upload": lambda broker, run: broker.blobs(NODES_TENANT).put(b"content"),
    "the cell's secret": lambda broker, run: broker.unlock(),
}


@pytest.mark.parametrize("what", NOT_A_PROVIDERS)
async def test_a_provider_may_not_have(provider: NatsBroker, what: str) -> None:
    with pytest.raises(BrokerDeniedError):
        await NOT_A_PROVIDERS[what](provider, fresh())
    assert provider.connection.errors, "the denial was not counted"


@pytest.mark.parametrize("who", ["worker", "trusted", "bridge", "node"])
async def test_nobody_else_takes_what_providers_take(server: NatsServer, ours: NatsBroker, who: str) -> None:
    user = {"worker": WORKER, "trusted": TRUSTED, "bridge": BRIDGE, "node": NODE}[who]
    if who == "bridge":
        broker = NatsBroker(await Connection.open(server.options(user)), SHAPE)
    else:
        broker = await NatsBroker.open_worker(server.options(user))
    try:
        for kind in (JOB, ADJUDICATE_TASK):
            run = fresh()
            await ours.tasks.publish(kind, run, "t", task(run))
            with pytest.raises(BrokerDeniedError):
                await broker.tasks.pull([kind], max_tasks=1, timeout=PATIENCE)
            (found,) = await ours.tasks.pull([kind], max_tasks=1, timeout=60)
            with pytest.raises(BrokerDeniedError):
                await broker.tasks.ack(found.token)
            await ours.tasks.ack(found.token)
    finally:
        await broker.close()
