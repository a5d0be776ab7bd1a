"""What outsiders cannot do, against a real server with the generated configuration."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace

import pytest

from fumehood.broker.broker import NatsBroker
from fumehood.broker.connection import Connection
from fumehood.broker.ports import Bucket
from fumehood.broker.pulling import BYTES_AHEAD
from fumehood.broker.topology import GIB, Shape
from fumehood.errors import BrokerDeniedError, BrokerError, BrokerFullError, BrokerUnavailableError, ConfigurationError
from tests.conformance.broker_bench import (
    BRIDGE,
    OTHER_WORKER,
    TIMING,
    TRUSTED,
    WORKER,
    NatsServer,
    counted,
    fresh,
    receive,
)
from tests.conftest import TimeBounds
from tests.waiting import PATIENCE, past, until

PARTITIONS = 4
SHAPE = Shape(PARTITIONS, storage=4 * GIB, timing=TIMING)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    made = NatsServer(tmp_path_factory.mktemp("nats"), PARTITIONS)
    made.start()
    yield made
    made.kill()


@pytest.fixture
async def ours(server: NatsServer) -> AsyncIterator[NatsBroker]:
    broker = await NatsBroker.open(server.options(), SHAPE)
    yield broker
    await broker.close()


@pytest.fixture
async def worker(server: NatsServer, ours: NatsBroker) -> AsyncIterator[NatsBroker]:
    broker = await NatsBroker.open_worker(server.options(WORKER))
    yield broker
    await broker.close()


async def stored_subjects(ours: NatsBroker, stream: str) -> dict[str, int]:
    info = await ours.connection.api(f"STREAM.INFO.{stream}", {"subjects_filter": ">"})
    return dict(info["state"].get("subjects") or {})


async def test_a_worker_does_its_work(ours: NatsBroker, worker: NatsBroker) -> None:
    """Everything that the wire protocol and our own workers need."""
    kind, run = fresh("kind"), fresh()
    await ours.tasks.publish(kind, run, "t", b"work")
    (task,) = await worker.tasks.pull([kind], max_tasks=1, timeout=60)
    await worker.tasks.extend(task.token)
    await worker.histories.publish(run, f"{run}.a.step.completed", b"{}")
    await worker.tasks.ack(task.token)
    await worker.bucket(Bucket.WORKERS).put(WORKER.name, b"{}")
    await worker.bucket(Bucket.CHECKPOINTS).put(f"{run}.a", b"state")
    assert (await worker.bucket(Bucket.CHECKPOINTS).get(f"{run}.a")) is not None
    lease = await worker.bucket(Bucket.LEASES).create(f"{run}.a.1.0", b"mine", ttl=15)
    await worker.bucket(Bucket.LEASES).update(f"{run}.a.1.0", b"mine", revision=lease)
    ref = await worker.blobs().put(b"x" * 300_000)
    assert len(await worker.blobs().get(ref, limit=300_000)) == 300_000
    assert [delivery.message_id for delivery in await receive(ours, run)] == [f"{run}.a.step.completed"]
    assert await ours.bucket(Bucket.WORKERS).get(WORKER.name) is not None


async def test_a_type_nobody_published_to_is_empty_for_a_worker(ours: NatsBroker, worker: NatsBroker) -> None:
    kind = fresh("kind")
    waiting = asyncio.create_task(worker.tasks.pull([kind], max_tasks=1, timeout=60))
    await asyncio.sleep(0)
    await ours.tasks.publish(kind, fresh(), "t", b"")
    assert [task.message_id for task in await waiting] == ["t"]


async def test_a_waiting_worker_is_woken_at_once(ours: NatsBroker, worker: NatsBroker, time_bounds: TimeBounds) -> None:
    """Not polled every quarter of a second. The best of five counts: a pause of ours would be in all of them."""
    kind, hops = fresh("kind"), []
    consumer = await ours.tasks.consumer(kind)

    async def waits() -> bool:
        return bool((await ours.connection.api(f"CONSUMER.INFO.TASK_QUEUES.{consumer}"))["num_waiting"])

    for number in range(5):
        waiting = asyncio.create_task(worker.tasks.pull([kind], max_tasks=4, timeout=20))
        await until(waits)
        began = time.monotonic()
        await ours.tasks.publish(kind, fresh(), f"t{number}", b"")
        (task,) = await waiting
        hops.append(time.monotonic() - began)
        await worker.tasks.ack(task.token)
    time_bounds.check(min(hops), 0.2)


FORBIDDEN: dict[str, Callable[[NatsBroker, str], Awaitable[object]]] = {
    "a decision": lambda worker, run: worker.journal.append(run, "forged", b"", expected=0),
    "a command": lambda worker, run: worker.mailboxes.send(run, "cancel", b""),
    "a timer": lambda worker, run: worker.timers.set(run, "t", 0, "fired", b""),
    "a task": lambda worker, run: worker.connection.store(f"task.any.{run}", b""),
    "another worker's registration": lambda worker, run: worker.bucket(Bucket.WORKERS).put("worker-2", b"{}"),
    "a definition": lambda worker, run: worker.bucket(Bucket.DEFINITIONS).put(run, b"{}"),
    "another tenant's blob": lambda worker, run: worker.blobs("other").put(b"content"),
    "an unmapped decision": lambda worker, run: worker.connection.store(f"journal.{run}", b""),
    "a stream's end": lambda worker, run: worker.connection.api("STREAM.DELETE.RUN_0"),
    "a purge": lambda worker, run: worker.connection.api("STREAM.PURGE.TASK_QUEUES", {}),
    "a consumer": lambda worker, run: worker.connection.api(
        f"CONSUMER.CREATE.TASK_QUEUES.{run}.task.x.*",
        {"stream_name": "TASK_QUEUES", "config": {"name": run, "deliver_subject": f"journal.0.{run}"}},
    ),
    "a decider's ack": lambda worker, run: worker.connection.request("$JS.ACK.RUN_0.deciders.1.1.1.1.1", b"+ACK"),
}


@pytest.mark.parametrize("what", FORBIDDEN)
async def test_a_worker_cannot_publish(ours: NatsBroker, worker: NatsBroker, what: str) -> None:
    run = fresh()
    # the server maps this subject and then denies another one, so that the request itself only times out
    error = BrokerUnavailableError if what == "an unmapped decision" else BrokerDeniedError
    with pytest.raises(error):
        await FORBIDDEN[what](worker, run)
    assert worker.connection.errors["denied"] >= 1
    assert await ours.journal.read(run) == []
    for p in range(PARTITIONS):
        assert not [subject for subject in await stored_subjects(ours, f"RUN_{p}") if run in subject]


async def test_a_worker_takes_only_its_own_types(server: NatsServer, ours: NatsBroker) -> None:
    limited = await NatsBroker.open_worker(server.options(OTHER_WORKER))
    run = fresh()
    for kind in ("only", "others"):
        await ours.tasks.publish(kind, run, f"{kind}-{run}", b"")
    assert [task.task_type for task in await limited.tasks.pull(["only"], max_tasks=1, timeout=60)] == ["only"]
    with pytest.raises(BrokerDeniedError, match="of type others"):
        await limited.tasks.pull(["others"], max_tasks=1, timeout=PATIENCE)
    await ours.tasks.publish("only", run, f"again-{run}", b"")
    await counted(ours, "only")
    both = await limited.tasks.pull(["others", "only"], max_tasks=2, timeout=PATIENCE)
    assert [task.task_type for task in both] == ["only"]
    await limited.close()


async def test_a_worker_cannot_listen_to_others(server: NatsServer, worker: NatsBroker) -> None:
    heard: list[object] = []
    for subject in ("_INBOX.>", "_INBOX_worker-2.>", "journal.>", "history.>", "task.>", ">"):
        await worker.connection.subscribe(subject, heard.append)

    async def all_denied() -> bool:
        return sum(worker.connection.errors.values()) >= 6

    await until(all_denied)


async def test_a_worker_cannot_have_answers_delivered_into_the_journal(ours: NatsBroker, worker: NatsBroker) -> None:
    """Reply subjects are checked by nobody: only the wall between the accounts keeps them out."""
    run, kind, connection = fresh(), fresh("kind"), worker.connection
    await ours.tasks.publish(kind, run, "t", b"task")
    await connection.store(f"$KV.checkpoints.{run}.a", b"forged", {"Fumehood-Id": "forged"})
    questions = {
        f"$JS.API.DIRECT.GET.KV_checkpoints.$KV.checkpoints.{run}.a": b"",
        f"$JS.API.CONSUMER.MSG.NEXT.TASK_QUEUES.{await ours.tasks.consumer(kind)}": b"1",
        f"history.{run}": b"{}",
    }
    for p in range(PARTITIONS):
        for subject in (f"journal.{p}.{run}", f"inbox.{p}.{run}", f"journal.{run}"):
            for question, body in questions.items():
                await connection.publish(question, body, reply=subject)
    await worker.histories.publish(run, "fence", b"")
    await ours.journal.append(run, "fence", b"", expected=0)
    for p in range(PARTITIONS):
        found = {name for name in await stored_subjects(ours, f"RUN_{p}") if run in name or name.startswith("task")}
        assert found <= {f"journal.{ours.partition_of(run)}.{run}"}
    assert [entry.record_id for entry in await ours.journal.read(run)] == ["fence"]


async def test_what_a_trusted_worker_has_delivered_into_a_journal_is_no_record(
    server: NatsServer, ours: NatsBroker
) -> None:
    """In the engine's own account nothing keeps an answer from a journal's subject; but a worker cannot seal."""
    trusted = await NatsBroker.open_worker(server.options(TRUSTED))
    run = fresh()
    p = ours.partition_of(run)
    made = {"Fumehood-Id": f"{run}.0.forged", "Fumehood-Seal": "0" * 64}
    await trusted.connection.store(f"$KV.checkpoints.{run}.a", b"forged", made)
    question = f"$JS.API.DIRECT.GET.KV_checkpoints.$KV.checkpoints.{run}.a"
    await trusted.connection.publish(question, b"", reply=f"journal.{p}.{run}")

    async def is_there() -> bool:
        return f"journal.{p}.{run}" in await stored_subjects(ours, f"RUN_{p}")

    await until(is_there)
    assert await ours.journal.read(run) == []
    assert await ours.journal.last(run) is None
    await ours.journal.append(run, "genuine", b"{}", expected=0)
    assert [entry.record_id for entry in await ours.journal.read(run)] == ["genuine"]
    await trusted.close()


async def test_a_worker_cannot_read_the_cells_secret(worker: NatsBroker, server: NatsServer) -> None:
    trusted = await NatsBroker.open_worker(server.options(TRUSTED, retry_seconds=1.0))
    for outsider in (worker, trusted):
        with pytest.raises(BrokerDeniedError):
            await outsider.bucket(Bucket.CLUSTER).get("secret")
    await trusted.close()


async def test_a_consumer_for_one_run_does_not_keep_the_type_from_everybody(ours: NatsBroker) -> None:
    kind, run = fresh("kind"), fresh()
    config = {"name": f"own-{kind}", "durable_name": f"own-{kind}", "ack_policy": "explicit"}
    config["filter_subject"] = f"task.{kind}.run-abc"
    body = {"stream_name": "TASK_QUEUES", "config": config}
    await ours.connection.api(f"CONSUMER.DURABLE.CREATE.TASK_QUEUES.own-{kind}", body)
    await ours.tasks.publish(kind, run, "t", b"task")
    assert [task.data for task in await ours.tasks.pull([kind], max_tasks=1, timeout=60)] == [b"task"]


async def test_a_type_that_has_no_tasks_yet_costs_the_others_none(ours: NatsBroker, worker: NatsBroker) -> None:
    """A worker may serve more types than there is work for. The answer to a question that was asked again for their
    sake, in the moment of leaving, went to nobody: every fifth task was gone for five minutes."""
    kind, run = fresh("kind"), fresh()
    await ours.tasks.consumer(kind)
    taken: set[str] = set()

    async def work() -> None:
        while len(taken) < 50:
            for task in await worker.tasks.pull([kind, fresh("none"), fresh("none")], max_tasks=2, timeout=5):
                taken.add(task.message_id)
                await worker.tasks.ack(task.token)

    working = asyncio.create_task(work())
    for number in range(50):
        await ours.tasks.publish(kind, run, f"t{number}", b"")
        await past(0.011 * (number % 9))  # what matters is in which moment of a wait it comes
    async with asyncio.timeout(30):
        await working


async def test_asking_for_invented_types_makes_nothing(ours: NatsBroker) -> None:
    before = len(await ours.tasks._list())
    assert await ours.tasks.pull([fresh("kind") for _ in range(20)], max_tasks=1, timeout=0.1) == []
    assert len(await ours.tasks._list()) == before


@pytest.mark.parametrize(
    "headers",
    [
        {"Nats-Schedule": "@at 2020-01-01T00:00:00Z", "Nats-Schedule-Target": "inbox.0.victim"},
        {"Nats-Rollup": "all"},
        {"Nats-Rollup": "sub"},
        {"Nats-TTL": "1s"},
        {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1"},
    ],
    ids=lambda headers: next(iter(headers)),
)
async def test_headers_give_a_worker_no_powers(ours: NatsBroker, worker: NatsBroker, headers: dict[str, str]) -> None:
    """Permissions see subjects only; the streams that workers write to bear no header that acts."""
    run = fresh()
    with pytest.raises(BrokerError):
        await worker.connection.store(f"history.{run}", b"", headers)


@pytest.mark.parametrize("bucket", ["workers", "checkpoints", "leases"])
async def test_a_worker_cannot_empty_a_bucket(ours: NatsBroker, worker: NatsBroker, bucket: str) -> None:
    key = {"workers": WORKER.name, "checkpoints": "a.b", "leases": "a.b.1.0"}[bucket]
    await ours.connection.store(f"$KV.{bucket}.other.key", b"theirs")
    with pytest.raises(BrokerError):
        await worker.connection.store(f"$KV.{bucket}.{key}", b"", {"Nats-Rollup": "all"})
    assert f"$KV.{bucket}.other.key" in await stored_subjects(ours, f"KV_{bucket}")


async def test_history_in_the_wrong_partition_is_acked_away(ours: NatsBroker, worker: NatsBroker) -> None:
    """A worker can name a partition itself; that only hurts its own message."""
    run = fresh()
    wrong = (ours.partition_of(run) + 1) % PARTITIONS
    await worker.connection.store(f"history.{wrong}.{run}", b"")
    await worker.connection.store(f"history.{wrong}.bad%run", b"")

    async def dropped() -> bool:
        for delivery in await ours.feed.pull(wrong, max_messages=64, timeout=0.2):
            assert delivery.run_id not in (run, "bad%run")
            await delivery.ack()
        return ours.feed.counts["foreign"] >= 2

    await until(dropped)


async def test_what_is_foreign_in_a_journal_is_passed_over(ours: NatsBroker) -> None:
    run = fresh()
    subject = f"journal.{ours.partition_of(run)}.{run}"
    await ours.connection.store(subject, b"no record of ours")
    first = await ours.journal.append(run, "a", b"1", expected=0)
    await ours.connection.store(subject, b"nor this")
    assert await ours.journal.append(run, "b", b"2", expected=first) > first
    assert [entry.record_id for entry in await ours.journal.read(run)] == ["a", "b"]


@pytest.fixture
async def bridge(server: NatsServer, ours: NatsBroker) -> AsyncIterator[NatsBroker]:
    options = server.options(BRIDGE)
    broker = NatsBroker(await Connection.open(options), SHAPE)
    yield broker
    await broker.close()


async def test_a_bridge_speaks_for_workers(ours: NatsBroker, bridge: NatsBroker) -> None:
    """All of what a bridge does is tried in `tests/integration/test_bridge_real.py`."""
    run, kind = fresh(), fresh("kind")
    await ours.tasks.publish(kind, run, "t", b"")
    (task,) = await bridge.tasks.pull([kind], max_tasks=1, timeout=60)
    await bridge.bucket(Bucket.WORKERS).put("http-worker", b"{}")
    await bridge.histories.publish(run, "e", b"")
    await bridge.tasks.ack(task.token)
    assert not bridge.connection.errors


NOT_A_BRIDGES: dict[str, Callable[[NatsBroker, str], Awaitable[object]]] = {
    "a decision": FORBIDDEN["a decision"],
    "an order": FORBIDDEN["a command"],
    "a timer": FORBIDDEN["a timer"],
    "a task": FORBIDDEN["a task"],
    "a stream's end": FORBIDDEN["a stream's end"],
    "a purge": FORBIDDEN["a purge"],
    "a consumer": FORBIDDEN["a consumer"],
    "a decider's ack": FORBIDDEN["a decider's ack"],
    "a line of the audit log": lambda bridge, run: bridge.audit.add(run, b""),
    "the cell's secret": lambda bridge, run: bridge.unlock(),
    "another's inbox": lambda bridge, run: bridge.connection.request(f"_INBOX.{run}"),
    **{
        f"the bucket {bucket}": lambda bridge, run, bucket=bucket: bridge.bucket(bucket).put(run, b"{}")  # type: ignore[misc]
        for bucket in Bucket
        if bucket not in (Bucket.WORKERS, Bucket.LEASES, Bucket.CHECKPOINTS)
    },
    **{
        f"what is in {bucket}": lambda bridge, run, bucket=bucket: bridge.bucket(bucket).get(run)  # type: ignore[misc]
        for bucket in (Bucket.KEYS, Bucket.CLUSTER)
    },
}


@pytest.mark.parametrize("what", NOT_A_BRIDGES)
async def test_a_bridge_may_not_have(ours: NatsBroker, bridge: NatsBroker, what: str) -> None:
    run = fresh()
    with pytest.raises(BrokerDeniedError):
        await NOT_A_BRIDGES[what](bridge, run)
    for stream in (*(f"RUN_{p}" for p in range(PARTITIONS)), *(f"KV_{bucket}" for bucket in Bucket)):
        assert not [subject for subject in await stored_subjects(ours, stream) if run in subject]


async def test_a_bridge_does_not_hear_what_servers_are_answered(ours: NatsBroker, bridge: NatsBroker) -> None:
    heard: list[object] = []
    for subject in ("_INBOX.>", "journal.>", ">"):
        await bridge.connection.subscribe(subject, heard.append)

    async def all_denied() -> bool:
        return sum(bridge.connection.errors.values()) >= 3

    await until(all_denied)
    await ours.bucket(Bucket.CLUSTER).get("secret")
    assert heard == []


async def test_a_bare_workers_own_consumer_is_used(server: NatsServer, ours: NatsBroker) -> None:
    """One made with the type's filter but another name: a work queue allows no second."""
    bare, kind, run = await Connection.open(server.options(TRUSTED)), fresh("kind"), fresh()
    config = {"name": "my-own", "durable_name": "my-own", "ack_policy": "explicit", "filter_subject": f"task.{kind}.*"}
    body = {"stream_name": "TASK_QUEUES", "config": config, "action": "create"}
    await bare.api(f"CONSUMER.CREATE.TASK_QUEUES.my-own.task.{kind}.*", body)
    await ours.tasks.publish(kind, run, "t", b"")
    assert await ours.tasks.consumer(kind) == "my-own"
    (task,) = await ours.tasks.pull([kind], max_tasks=1, timeout=60)
    await ours.tasks.ack(task.token)
    await bare.close()


async def test_wrong_credentials_are_a_configuration_error(server: NatsServer) -> None:
    wrong = replace(server.options(WORKER, connect_timeout=2.0), password="wrong")
    with pytest.raises(ConfigurationError):
        await Connection.open(wrong)


# --- topology ----------------------------------------------------------------------------------------------


async def test_making_it_twice_makes_it_once(server: NatsServer, ours: NatsBroker) -> None:
    again = await NatsBroker.open(server.options(), SHAPE)
    assert (again.report.created, again.report.drift) == ((), ())
    await again.close()


async def test_another_number_of_partitions_is_refused(server: NatsServer, ours: NatsBroker) -> None:
    with pytest.raises(ConfigurationError):
        await NatsBroker.open(server.options(), Shape(2, storage=4 * GIB, timing=TIMING))


async def test_drift_is_reported_and_left_alone(server: NatsServer, ours: NatsBroker) -> None:
    config = (await ours.connection.api("STREAM.INFO.KV_definitions"))["config"]
    await ours.connection.api("STREAM.UPDATE.KV_definitions", {**config, "max_age": 600_000_000_000})
    try:
        again = await NatsBroker.open(server.options(), SHAPE)
        assert [(one.stream, one.setting, one.found) for one in again.report.drift] == [
            ("KV_definitions", "max_age", 600_000_000_000)
        ]
        await again.close()
    finally:
        await ours.connection.api("STREAM.UPDATE.KV_definitions", config)


async def test_the_server_and_we_agree_on_every_runs_partition(ours: NatsBroker, worker: NatsBroker) -> None:
    for run in (*(fresh() for _ in range(40)), "a", "-", "_", "x" * 128):
        await ours.histories.publish(run, "e", b"")
        subject = f"history.{ours.partition_of(run)}.{run}"
        assert subject in await stored_subjects(ours, f"HISTORY_{ours.partition_of(run)}")


async def test_a_full_stream_refuses_instead_of_forgetting(ours: NatsBroker) -> None:
    """The same configuration as `HISTORY_p`, with a smaller bound."""
    config = (await ours.connection.api("STREAM.INFO.HISTORY_0"))["config"]
    small = {**config, "name": "SMALL", "subjects": ["small.*"], "max_bytes": 4096}
    await ours.connection.api("STREAM.CREATE.SMALL", small)
    await ours.connection.store("small.x", b"x" * 2048)
    with pytest.raises(BrokerFullError):
        await ours.connection.store("small.x", b"x" * 2048)
    state = (await ours.connection.api("STREAM.INFO.SMALL"))["state"]
    assert (state["messages"], state["first_seq"]) == (1, 1)
    await ours.connection.api("STREAM.DELETE.SMALL")


async def test_large_messages_do_not_fill_memory(ours: NatsBroker) -> None:
    """Many of the largest ones wait, and a slow decider takes them one by one."""
    run, size = fresh(), 1_500_000
    p = ours.partition_of(run)
    for number in range(40):
        await ours.mailboxes.send(run, f"m{number}", bytes(size))
    seen: set[str] = set()

    async def all_seen() -> bool:
        for delivery in await ours.feed.pull(p, max_messages=1, timeout=1.0):
            seen.update({delivery.message_id} if delivery.run_id == run else ())
            await delivery.ack()
        loops = (await ours.feed._partitions[p]).loops.values()
        assert all(loop.bytes <= BYTES_AHEAD for loop in loops)
        return len(seen) == 40

    await until(all_seen)
    loops = (await ours.feed._partitions[p]).loops.values()
    assert [loop.bytes for loop in loops if not loop.buffer] == [0] * sum(not loop.buffer for loop in loops)


async def test_json_of_partitions_is_stored(ours: NatsBroker) -> None:
    entry = await ours.bucket(Bucket.CLUSTER).get("partitions")
    assert entry is not None
    assert json.loads(entry.value) == {"partitions": PARTITIONS}
