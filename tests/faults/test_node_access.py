"""What a node may do at the broker, and what nobody else may: against a server with the generated configuration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from fumehood.broker.broker import NatsBroker
from fumehood.broker.connection import Connection
from fumehood.broker.handout import Handouts
from fumehood.broker.names import DEFAULT_TENANT, NODES_TENANT
from fumehood.broker.ports import Broker, Bucket, LogKind, LogName, LogPlace, LogRecord
from fumehood.broker.topology import GIB, Shape
from fumehood.errors import BrokerDeniedError, BrokerError
from fumehood.wire.protocol import TaskPayload
from fumehood.wire.sandbox import SANDBOX_TASK
from tests.conformance.broker_bench import BRIDGE, NODE, OTHER_NODE, TIMING, TRUSTED, WORKER, NatsServer, fresh, receive
from tests.waiting import PATIENCE, until

PARTITIONS = 4
SHAPE = Shape(PARTITIONS, storage=4 * GIB, timing=TIMING)
EMPTY = "sha256:" + "0" * 64
START = LogRecord(LogKind.START, LogPlace(), b"{}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    made = NatsServer(tmp_path_factory.mktemp("nats"), PARTITIONS)
    made.start()
    yield made
    made.kill()


@pytest.fixture
async def ours(server: NatsServer) -> AsyncIterator[NatsBroker]:
    broker = await NatsBroker.open(server.options(), SHAPE)
    await broker.tasks.consumer(SANDBOX_TASK)
    yield broker
    await broker.close()


@pytest.fixture
async def node(server: NatsServer, ours: NatsBroker) -> AsyncIterator[NatsBroker]:
    broker = await NatsBroker.open_worker(server.options(NODE))
    yield broker
    await broker.close()


OTHERS = ["worker", *(pytest.param(name, marks=pytest.mark.variant) for name in ("trusted", "bridge"))]


@pytest.fixture(params=OTHERS)
async def other(
    request: pytest.FixtureRequest, server: NatsServer, ours: NatsBroker
) -> AsyncIterator[tuple[str, NatsBroker]]:
    """Everybody who is neither a server nor a node."""
    if request.param == "bridge":
        broker = NatsBroker(await Connection.open(server.options(BRIDGE)), SHAPE)
    else:
        user = WORKER if request.param == "worker" else TRUSTED
        broker = await NatsBroker.open_worker(server.options(user))
    yield request.param, broker
    await broker.close()


def task(run: str) -> bytes:
    return TaskPayload(task_id=f"{run}.run", run_id=run, step_id="run", input={}).encode()


async def test_a_node_does_its_work(ours: NatsBroker, node: NatsBroker) -> None:
    """The whole way of a task, and once more with one that somebody had before."""
    run = fresh()
    handouts = Handouts(node)
    for attempt in ("first", "second"):
        await ours.tasks.publish(SANDBOX_TASK, run + attempt, "t", task(run + attempt))
        (leased,) = await handouts.take([SANDBOX_TASK], max_tasks=1, timeout=60, worker_id=NODE.name)
        if attempt == "second":
            await handouts.release(leased.lease)
            (leased,) = await handouts.take([SANDBOX_TASK], max_tasks=1, timeout=60, worker_id=NODE.name)
        lease = await handouts.heartbeat(leased.lease)
        for tenant in (DEFAULT_TENANT, NODES_TENANT):
            ref = await node.blobs(tenant).put(b"x" * 300_000)
            assert len(await ours.blobs(tenant).get(ref, limit=300_000)) == 300_000
            assert len(await node.blobs(tenant).get(ref, limit=300_000)) == 300_000
        await node.logs.append(LogName(run, "run", 1), START)
        await node.bucket(Bucket.WORKERS).put(NODE.name, b"{}")
        await handouts.complete(lease, {"exit_code": 0})
        said = await receive(ours, run + attempt, 2 if attempt == "first" else 3)
        assert said[-1].message_id.startswith(f"{run}{attempt}.run.step.completed")
    assert not node.connection.errors


NOT_A_NODES: dict[str, Callable[[NatsBroker, str], Awaitable[object]]] = {
    "a decision": lambda node, run: node.journal.append(run, "forged", b"", expected=0),
    "an order": lambda node, run: node.mailboxes.send(run, "cancel", b""),
    "a timer": lambda node, run: node.timers.set(run, "t", 0, "fired", b""),
    "a task": lambda node, run: node.connection.store(f"task.any.{run}", b""),
    "a task of its own kind": lambda node, run: node.connection.store(f"task.{SANDBOX_TASK}.{run}", b""),
    "a task of another kind": lambda node, run: node.tasks.pull(["other"], max_tasks=1, timeout=PATIENCE),
    "an ack of another kind": lambda node, run: node.connection.request(
        "$JS.ACK.TASK_QUEUES.task-other.1.1.1.1.1", b"+ACK"
    ),
    "another node's registration": lambda node, run: node.bucket(Bucket.WORKERS).put(OTHER_NODE.name, b"{}"),
    "a checkpoint": lambda node, run: node.bucket(Bucket.CHECKPOINTS).put(f"{run}.a", b""),
    "a line of the audit log": lambda node, run: node.audit.add(run, b""),
    "what is in the audit log": lambda node, run: node.audit.tail(after=0, limit=1),
    "a journal": lambda node, run: node.journal.read(run),
    "the cell's secret": lambda node, run: node.unlock(),
    "a stream's end": lambda node, run: node.connection.api("STREAM.DELETE.LOGS"),
    "a purge": lambda node, run: node.connection.api("STREAM.PURGE.LOGS", {}),
    "a consumer": lambda node, run: node.connection.api(
        f"CONSUMER.CREATE.LOGS.{run}.log.>",
        {"stream_name": "LOGS", "config": {"name": run, "deliver_subject": f"journal.0.{run}"}},
    ),
    **{
        f"the bucket {bucket}": lambda node, run, bucket=bucket: node.bucket(bucket).put(run, b"{}")  # type: ignore[misc]
        for bucket in Bucket
        if bucket not in (Bucket.WORKERS, Bucket.NODE_LEASES)
    },
    **{
        f"what is in {bucket}": lambda node, run, bucket=bucket: node.bucket(bucket).get(f"{run}.a")  # type: ignore[misc]
        for bucket in Bucket
        if bucket is not Bucket.NODE_LEASES
    },
    "another tenant's blob": lambda node, run: node.blobs("other").put(b"content"),
    "what is in another tenant's blob": lambda node, run: node.blobs("other").size(EMPTY),
}


@pytest.mark.parametrize("what", NOT_A_NODES)
async def test_a_node_may_not_have(ours: NatsBroker, node: NatsBroker, what: str) -> None:
    run = fresh()
    with pytest.raises(BrokerDeniedError):
        await NOT_A_NODES[what](node, run)
    assert node.connection.errors, "the denial was not counted"
    for stream in (*(f"RUN_{p}" for p in range(PARTITIONS)), "AUDIT", *(f"KV_{bucket}" for bucket in Bucket)):
        info = await ours.connection.api(f"STREAM.INFO.{stream}", {"subjects_filter": ">"})
        assert not [subject for subject in info["state"].get("subjects") or {} if run in subject]


async def test_a_node_cannot_have_answers_delivered_into_the_journal(ours: NatsBroker, node: NatsBroker) -> None:
    run, connection = fresh(), node.connection
    await ours.tasks.publish(SANDBOX_TASK, run, "t", b"task")
    await node.logs.append(LogName(run, "run", 1), START)
    questions = {
        f"$JS.API.DIRECT.GET.LOGS.log.{run}.run.1": b"",
        "$JS.API.DIRECT.GET.LOGS": f'{{"seq":1,"next_by_subj":"log.{run}.run.1","batch":1}}'.encode(),
        "$JS.API.CONSUMER.MSG.NEXT.TASK_QUEUES.task-fumehood=2Esandbox": b"1",
        f"history.{run}": b"{}",
    }
    for p in range(PARTITIONS):
        for subject in (f"journal.{p}.{run}", f"inbox.{p}.{run}", f"journal.{run}"):
            for question, body in questions.items():
                await connection.publish(question, body, reply=subject)
    await node.histories.publish(run, "fence", b"")
    await ours.journal.append(run, "fence", b"", expected=0)
    for p in range(PARTITIONS):
        info = await ours.connection.api(f"STREAM.INFO.RUN_{p}", {"subjects_filter": ">"})
        found = {subject for subject in info["state"].get("subjects") or {} if run in subject}
        assert found <= {f"journal.{ours.partition_of(run)}.{run}"}
    await ours.tasks.purge_run(run)


async def test_a_node_cannot_listen_to_others(node: NatsBroker) -> None:
    heard: list[object] = []
    for subject in ("_INBOX.>", "_INBOX_node-2.>", "log.>", "history.>", ">"):
        await node.connection.subscribe(subject, heard.append)

    async def all_denied() -> bool:
        return sum(node.connection.errors.values()) >= 5

    await until(all_denied)
    assert heard == []


async def test_nobody_else_takes_what_nodes_take(ours: NatsBroker, other: tuple[str, NatsBroker]) -> None:
    """Nor makes a consumer of their own for it, nor answers one that a node has."""
    who, broker = other
    run = fresh()
    await ours.tasks.publish(SANDBOX_TASK, run, "t", b"")
    with pytest.raises(BrokerDeniedError):
        await broker.tasks.pull([SANDBOX_TASK], max_tasks=1, timeout=PATIENCE)
    (task,) = await ours.tasks.pull([SANDBOX_TASK], max_tasks=1, timeout=60)
    with pytest.raises(BrokerDeniedError):
        await broker.tasks.ack(task.token)
    with pytest.raises(BrokerDeniedError):
        await broker.connection.api(f"CONSUMER.CREATE.TASK_QUEUES.{run}.task.{SANDBOX_TASK}.*", {})
    await ours.tasks.ack(task.token)
    assert who


NOBODY_ELSES: dict[str, Callable[[Broker, LogName], Awaitable[object]]] = {
    "writes": lambda broker, name: broker.logs.append(name, START),
    "reads": lambda broker, name: broker.logs.read(name),
    "looks at the newest of": lambda broker, name: broker.logs.last(name),
    "looks for": lambda broker, name: broker.logs.attempt(name.run_id, name.step_id),
}


@pytest.mark.parametrize("what", NOBODY_ELSES)
async def test_nobody_else_has_output(ours: NatsBroker, other: tuple[str, NatsBroker], what: str) -> None:
    name = LogName(fresh(), "run", 1)
    await ours.logs.append(name, START)
    with pytest.raises(BrokerError):
        await NOBODY_ELSES[what](other[1], name if what != "writes" else LogName(name.run_id, "run", 2))
    assert other[1].connection.errors
    assert await ours.logs.attempt(name.run_id, "run") == 1


# --- what only nodes know --------------------------------------------------------------------------------------------

DIRECT = "$JS.API.DIRECT.GET"
SECRETS = (
    f"{DIRECT}.KV_{Bucket.NODE_LEASES}.$KV.{Bucket.NODE_LEASES}.{{}}.run",
    f"{DIRECT}.KV_{Bucket.NODE_LEASES}.$KV.{Bucket.NODE_LEASES}.>",
    f"{DIRECT}.KV_{Bucket.NODE_LEASES}.$KV.{Bucket.NODE_LEASES}.*.*",
    f"{DIRECT}.KV_{Bucket.NODE_LEASES}",
    f"{DIRECT}.TASK_QUEUES.task.{SANDBOX_TASK}.{{}}",
    f"{DIRECT}.TASK_QUEUES.task.{SANDBOX_TASK}.*",
    f"{DIRECT}.TASK_QUEUES.>",
    f"{DIRECT}.TASK_QUEUES",
    "$JS.API.STREAM.MSG.GET.TASK_QUEUES",
    f"$JS.API.STREAM.MSG.GET.KV_{Bucket.NODE_LEASES}",
    "$JS.API.CONSUMER.MSG.NEXT.TASK_QUEUES.task-fumehood=2Esandbox",
    "$JS.API.CONSUMER.MSG.NEXT.TASK_QUEUES.*",
    "$JS.API.CONSUMER.MSG.NEXT.TASK_QUEUES.>",
    "$JS.API.CONSUMER.MSG.NEXT.*.*",
    f"{DIRECT}.KEPT.kept.{NODES_TENANT}.>",
    f"{DIRECT}.KEPT.kept.{NODES_TENANT}.*.*",
    f"{DIRECT}.BLOBS.blob.*.*.*",
    f"{DIRECT}.BLOBS.>",
    f"{DIRECT}.BLOBS",
    *(f"$JS.API.DIRECT.GET.{stream}.>" for stream in ("HISTORY_0", "RUN_0")),
    *(f"$JS.API.STREAM.MSG.GET.{stream}" for stream in ("HISTORY_0", "RUN_0")),
)
"""Questions for a sandbox's task, its lease and what it printed. The broker takes a wildcard in a question for one."""
ANY = b'{"last_by_subj": ">"}'


@pytest.mark.parametrize("question", SECRETS)
async def test_nobody_else_learns_of_a_sandbox(
    ours: NatsBroker, node: NatsBroker, other: tuple[str, NatsBroker], question: str
) -> None:
    _, broker = other
    run, waiting = fresh(), fresh()
    await ours.tasks.publish(SANDBOX_TASK, run, "t", task(run))
    (leased,) = await Handouts(node).take([SANDBOX_TASK], max_tasks=1, timeout=60, worker_id=NODE.name)
    assert leased.task.run_id == run
    await ours.tasks.publish(SANDBOX_TASK, waiting, "t", task(waiting))
    await node.blobs(NODES_TENANT).put(run.encode())
    for body in (b"", ANY):
        with pytest.raises(BrokerError):
            await broker.connection.request(question.format(run), body, timeout=0.5)
    await ours.tasks.purge_run(run)
    await ours.tasks.purge_run(waiting)


async def test_a_wildcard_shows_a_worker_the_leases_of_workers_and_no_others(
    server: NatsServer, ours: NatsBroker, node: NatsBroker
) -> None:
    """Permissions cannot keep a worker from asking for all leases at once: so those of sandboxes lie elsewhere."""
    worker = await NatsBroker.open_worker(server.options(WORKER))
    run, kind = fresh(), fresh("type")
    await ours.tasks.publish(kind, run, "t", task(run))
    await Handouts(worker).take([kind], max_tasks=1, timeout=60, worker_id=WORKER.name)
    of_node = fresh()
    await ours.tasks.publish(SANDBOX_TASK, of_node, "t", task(of_node))
    await Handouts(node).take([SANDBOX_TASK], max_tasks=1, timeout=60, worker_id=NODE.name)
    for wildcard in (">", "*.*", "*.run"):
        question = f"{DIRECT}.KV_{Bucket.LEASES}.$KV.{Bucket.LEASES}.{wildcard}"
        shown = (await worker.connection.request(question, b"")).data
        assert run.encode() in shown, "if this fails, wildcards are refused now: say so in decision 0010"
        assert of_node.encode() not in shown
    await ours.tasks.purge_run(of_node)
    await worker.close()


async def test_nobody_else_changes_the_lease_of_a_sandbox(
    ours: NatsBroker, node: NatsBroker, other: tuple[str, NatsBroker]
) -> None:
    """A node ends its sandbox when its lease is another's."""
    _, broker = other
    run, handouts = fresh(), Handouts(node)
    await ours.tasks.publish(SANDBOX_TASK, run, "t", task(run))
    (leased,) = await handouts.take([SANDBOX_TASK], max_tasks=1, timeout=60, worker_id=NODE.name)
    for bucket in (Bucket.NODE_LEASES, Bucket.LEASES):
        try:
            await broker.bucket(bucket).put(leased.lease.key, leased.lease.revoked().encode())
        except BrokerError:
            assert bucket is Bucket.NODE_LEASES
        else:
            assert bucket is Bucket.LEASES
    held = await handouts.heartbeat(leased.lease)
    assert held.held
    await handouts.complete(held, {"exit_code": 0})
    said = await receive(ours, run, 2)
    assert said[-1].message_id.startswith(f"{run}.run.step.completed")
