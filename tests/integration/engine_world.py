"""Deciders, bare workers and the real broker together, and ways to look at what they do.

The workers are those of the bare contract: they take a task off the queue, publish on history and ack; what they say
to which task, and what people tell a run, stands in `engine_cases.py` and `engine_people_cases.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import traceback
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fumehood.broker import lease
from fumehood.broker.broker import NatsBroker
from fumehood.broker.ports import Bucket, Entry, TaskDelivery
from fumehood.broker.topology import DECIDERS, GIB, TASK_STREAM, Shape, Timing, history_stream, run_stream
from fumehood.control import intake
from fumehood.control.callers import DEFAULT_TENANT
from fumehood.control.decider import Decider
from fumehood.control.workflows import Workflows
from fumehood.engine import definition
from fumehood.engine.messages import MessageType
from fumehood.errors import BrokerUnavailableError, KeyConflictError
from fumehood.wire.protocol import TaskPayload
from fumehood.wire.sandbox import SANDBOX_TASK
from tests.conformance.broker_bench import TIMING, NatsServer
from tests.integration.engine_cases import ENDS, TASK_TYPES, Act, Action, Case, Event, Handed, Order, Say, Until
from tests.waiting import PATIENCE, past, until

LEASES = (Bucket.LEASES, Bucket.NODE_LEASES)
LOOK = 0.1
"""Seconds between two looks at something that nobody announces."""


def shape(partitions: int, timing: Timing = TIMING) -> Shape:
    return Shape(partitions, storage=4 * GIB, timing=timing)


# --- starting, cancelling, reading -----------------------------------------------------------------------------------


def run_in(broker: NatsBroker, partition: int) -> str:
    """A new run id of this partition."""
    while True:
        run_id = f"run-{uuid.uuid4().hex[:12]}"
        if broker.partition_of(run_id) == partition:
            return run_id


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def start(broker: NatsBroker, run_id: str, text: str, given: Any, calls: Sequence[str] = ()) -> None:
    """Begin a run, which may call other workflows."""
    read = definition.parse(text)
    called = [definition.parse(other) for other in calls]
    workflows = Workflows(broker, now_ms=now_ms)
    for other in called:
        await workflows.apply(other.name, other.canonical(), is_json=True, tenant=DEFAULT_TENANT)
    meta = {"by": "test", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    body = {"definition": json.loads(read.canonical()), "digest": read.digest, "input": given, "meta": meta}
    if called:
        body["pins"] = {other.name: other.digest for other in called}
    await broker.mailboxes.send(run_id, f"{run_id}.start", intake.encode(MessageType.START, body))


async def cancel(broker: NatsBroker, run_id: str) -> None:
    body = intake.encode(MessageType.CANCEL, {"reason": "no longer needed", "by": "test"})
    await broker.mailboxes.send(run_id, f"{run_id}.cancel", body)


async def give(broker: NatsBroker, run_id: str, order: Order) -> None:
    """Tell a run something, as the use cases behind the doors do."""
    body = {**order.body, "by": "somebody", "tenant": DEFAULT_TENANT, "try": 0}
    await broker.mailboxes.send(run_id, order.id_for(run_id), intake.encode(order.kind, body))


def ended(events: list[Event]) -> bool:
    return any(event["type"] in ENDS for event in events)


class Journals:
    """Journals as they grow. A plain subscription says that somebody tries to append; what is in the journal is read
    from it. So a hundred runs can be followed without a hundred loops that ask all the time."""

    def __init__(self, broker: NatsBroker) -> None:
        self._broker = broker
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)

    async def open(self) -> None:
        await self._broker.connection.subscribe("journal.>", self._hint)

    def _hint(self, message: Any) -> None:
        for bell in self._waiting.get(message.subject.rpartition(".")[2], ()):
            bell.set()

    async def events(self, run_id: str) -> list[Event]:
        return [event for entry in await self._broker.journal.read(run_id) for event in await self._events_of(entry)]

    async def _events_of(self, entry: Entry) -> list[Event]:
        """A record that is too long for a message lies elsewhere."""
        document = json.loads(entry.data)
        if "record" in document:
            document = json.loads(await self._broker.blobs().get(document["record"]["$blob"], limit=2**28))
        found: list[Event] = document["events"]
        return found

    async def until(
        self, run_id: str, met: Callable[[list[Event]], bool] = ended, *, seconds: float = PATIENCE
    ) -> list[Event]:
        """The events of a run as soon as they are what is waited for."""
        bell, end = asyncio.Event(), time.monotonic() + seconds
        events: list[Event] = []
        read = 0
        self._waiting[run_id].add(bell)
        try:
            while True:
                for entry in await self._patiently(run_id, read):
                    events += await self._events_of(entry)
                    read = entry.seq
                if met(events):
                    return events
                if time.monotonic() > end:
                    raise AssertionError(f"{run_id} stands at {Counter(event['type'] for event in events)}")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await bell.wait()
                        await past(0.005)  # the hint is quicker than the record
                bell.clear()
        finally:
            self._waiting[run_id].discard(bell)
            if not self._waiting[run_id]:
                del self._waiting[run_id]

    async def relatives(self, events: list[Event]) -> dict[str, list[Event]]:
        """The runs that follow from one which has these events, and from those in turn, as soon as they have ended."""
        found: dict[str, list[Event]] = {}
        for run_id in _following(events):
            found[run_id] = await self.until(run_id)
            found |= await self.relatives(found[run_id])
        return found

    async def _patiently(self, run_id: str, after: int) -> list[Entry]:
        try:
            return await self._broker.journal.read(run_id, after=after)
        except BrokerUnavailableError:
            return []


def _following(events: list[Event]) -> list[str]:
    called = [event["run_id"] for event in events if event["type"] == "step.calling"]
    return called + [event["continued_as"] for event in events if event.get("continued_as")]


async def is_drained(broker: NatsBroker, partition: int) -> bool:
    """Whether every message to this partition's deciders is done with."""
    for stream in (run_stream(partition), history_stream(partition)):
        info = await _asked(broker, f"CONSUMER.INFO.{stream}.{DECIDERS}")
        if info["num_pending"] or info["num_ack_pending"]:
            return False
    return True


async def _asked(broker: NatsBroker, call: str, body: dict[str, Any] | None = None) -> Any:
    return await broker.connection.retrying(lambda: broker.connection.api(call, body))


async def drained(broker: NatsBroker, partition: int) -> None:
    """Until that is so. Looked for now and then only: hundreds of runs may be waited for at the same time."""
    await until(lambda: is_drained(broker, partition), what="messages are left without an answer", every=LOOK)


async def queued_tasks(broker: NatsBroker, run_id: str) -> dict[str, int]:
    """The run's tasks that are still in the queue, by subject."""
    found: dict[str, int] = {}
    for filtered in (f"task.*.{run_id}", f"task.*.*.{run_id}"):
        info = await _asked(broker, f"STREAM.INFO.{TASK_STREAM}", {"subjects_filter": filtered})
        found |= info["state"].get("subjects") or {}
    return found


async def queue_is_empty(broker: NatsBroker, run_id: str) -> None:
    """Until none of the run's tasks is there. Who answered acks a moment later; what nobody answered was taken off
    before the end's message was acked."""
    left: dict[str, int] = {}

    async def is_empty() -> bool:
        nonlocal left
        left = await queued_tasks(broker, run_id)
        return not left

    await until(is_empty, what=lambda: f"left in the queue: {left}", every=LOOK)


async def held_leases(broker: NatsBroker, run_id: str) -> list[str]:
    """Steps of the run that some worker still holds."""
    entries = [entry for name in LEASES for entry in await broker.bucket(name).entries(run_id)]
    found = [lease.Lease.decode(entry) for entry in entries]
    return [one.step_id for one in found if one is not None and one.held]


# --- workers ---------------------------------------------------------------------------------------------------------


@dataclass
class Workers:
    """Bare workers for many runs at once, each of which has its script."""

    broker: NatsBroker
    journals: Journals
    after: Callable[[TaskPayload, Say], Awaitable[None]] | None = None
    """What to wait for after something was said, for tests that need one message to be one decision."""
    cases: dict[str, Case] = field(default_factory=dict)
    seen: defaultdict[str, Counter[Handed]] = field(default_factory=lambda: defaultdict(Counter))
    """Every hand-out of each run and of those that follow from it, counted."""
    _begun: dict[str, str] = field(default_factory=dict)

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[Workers]:
        serving = asyncio.create_task(self._serve())
        try:
            yield self
            if serving.done():
                serving.result()
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    async def _serve(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    for task in await self._pull():
                        group.create_task(self._do(task))
        except ExceptionGroup:
            traceback.print_exc()  # now: without workers the test would only run into its timeout
            raise

    async def _pull(self) -> list[TaskDelivery]:
        try:
            return await self.broker.tasks.pull(TASK_TYPES, max_tasks=64, timeout=5.0)
        except BrokerUnavailableError:
            return []

    async def _do(self, delivery: TaskDelivery) -> None:
        task = TaskPayload.model_validate_json(delivery.data)
        handed = (task.step_id, task.attempt, task.iteration, task.resumption or 0)
        begun = await self._followed(task.run_id)
        self.seen[begun][handed] += 1
        case = self.cases.get(begun)
        for action in case.script.get(handed, ()) if case is not None else ():
            if action is Act.KEEP:
                return
            await self._act(action, delivery, task, begun)
        with contextlib.suppress(BrokerUnavailableError):
            await self.broker.tasks.ack(delivery.token)

    async def _followed(self, run_id: str) -> str:
        """The run that the test began, and that this one is or follows from."""
        if run_id not in self.cases and run_id not in self._begun:
            events = await self.journals.until(run_id, lambda events: len(events) > 0)
            meta = events[0]["meta"]
            before = meta["parent"]["run_id"] if "parent" in meta else meta.get("continued_from")
            self._begun[run_id] = await self._followed(before) if before is not None else run_id
        return self._begun.get(run_id, run_id)

    async def _act(self, action: Action, delivery: TaskDelivery, task: TaskPayload, run: str) -> None:
        if isinstance(action, Say):
            await self._say(task, action)
        elif isinstance(action, Until):
            await self.journals.until(run, lambda events: action.met(events) or ended(events))
        elif isinstance(action, Order):
            await give(self.broker, run, action)
        elif action is Act.LEASE:
            await self._lease(delivery, task)
        else:
            await cancel(self.broker, run)

    async def _lease(self, delivery: TaskDelivery, task: TaskPayload) -> None:
        """Held for as long as nobody ends it. A task that comes again finds it, and leaves it."""
        given = {"lease_id": uuid.uuid4().hex, "worker_id": "bare", "now_ms": now_ms(), "seconds": 3600}
        held = lease.granted(None, task, delivery, **given)
        with contextlib.suppress(KeyConflictError):
            bucket = Bucket.NODE_LEASES if delivery.task_type == SANDBOX_TASK else Bucket.LEASES
            await self.broker.bucket(bucket).create(held.key, held.encode(), ttl=held.ttl)

    async def _say(self, task: TaskPayload, action: Say) -> None:
        event = action.about(task)
        await self.broker.histories.publish(task.run_id, event.event_id, event.encode())
        if self.after is not None:
            await self.after(task, action)


async def speak(broker: NatsBroker, journals: Journals, run_id: str, case: Case) -> None:
    """What people tell a run, each when its time has come."""
    for order in case.people:
        await journals.until(run_id, order.at.met)
        await give(broker, run_id, order)


# --- all of it -------------------------------------------------------------------------------------------------------


@dataclass
class World:
    """A broker of its own, and deciders that are all at work at the same time, each over a connection of its own."""

    server: NatsServer
    broker: NatsBroker
    """The test's own connection."""
    journals: Journals
    workers: Workers
    deciders: list[Decider]
    connections: list[NatsBroker]
    """Of the deciders."""
    group: asyncio.TaskGroup

    async def begin(self, text: str, given: Any = None, run_id: str | None = None, calls: Sequence[str] = ()) -> str:
        run_id = run_id or f"run-{uuid.uuid4().hex[:12]}"
        await start(self.broker, run_id, text, given, calls)
        return run_id

    async def play(self, case: Case) -> str:
        """Begin a case's workflow; the workers know what to say, and people what to tell it."""
        run_id = f"run-{uuid.uuid4().hex[:12]}"
        self.workers.cases[run_id] = case
        await self.begin(case.text, case.given_to(run_id), run_id, case.calls)
        self.group.create_task(speak(self.broker, self.journals, run_id, case))
        return run_id

    async def over(self, run_id: str) -> tuple[list[Event], dict[str, list[Event]]]:
        """The events of a case's run, and of those that follow from it, once all have ended."""
        events = await self.journals.until(run_id, self.workers.cases[run_id].is_over)
        return events, await self.journals.relatives(events)

    async def read(self, run_id: str) -> list[Entry]:
        """The journal as it lies in the broker."""
        return await self.broker.journal.read(run_id)

    async def take(self, task_type: str, count: int = 1) -> list[TaskDelivery]:
        """Exactly so many tasks, for a test that is its own worker."""
        found: list[TaskDelivery] = []

        async def enough() -> bool:
            room = min(256, count - len(found))
            found.extend(await self.broker.tasks.pull([task_type], max_tasks=room, timeout=1.0) if room else [])
            return len(found) >= count

        await until(enough, what=lambda: f"only {len(found)} of {count} tasks came", every=0)
        return found

    async def say(self, task: TaskPayload, what: Say, **changes: Any) -> None:
        event = what.about(task).model_copy(update=changes)
        await self.broker.histories.publish(task.run_id, event.event_id, event.encode())

    async def settled(self) -> None:
        """Until every message to every partition is done with."""

        for number in range(self.broker.partitions):
            await drained(self.broker, number)

    def ignored(self) -> Counter[str]:
        """What the deciders ignored, by reason."""
        return sum((Counter(decider.counters.ignored) for decider in self.deciders), Counter())

    def conflicts(self) -> int:
        """Appends that lost against another decider's."""
        return sum(decider.counters.conflicts for decider in self.deciders)


@contextlib.asynccontextmanager
async def world(
    directory: Path, partitions: int, *, deciders: int = 2, at_work: bool = True, timing: Timing = TIMING
) -> AsyncIterator[World]:
    """To be used within the test itself: a decider that ends with an error ends the test."""
    server = NatsServer(directory / "nats", partitions)
    server.start()
    opened: list[NatsBroker] = []
    try:
        for _ in range(deciders + 1):
            opened.append(await NatsBroker.open(server.options(retry_seconds=60.0), shape(partitions, timing)))
        broker, *connections = opened
        made = [Decider(connection, now_ms=now_ms) for connection in connections]
        journals = Journals(broker)
        await journals.open()
        async with asyncio.TaskGroup() as group:
            served = range(partitions if at_work else 0)
            work = [group.create_task(decider.work(number)) for decider in made for number in served]
            yield World(server, broker, journals, Workers(broker, journals), made, connections, group)
            for task in work:
                task.cancel()
    finally:
        for one in opened:
            await one.close()
        server.kill()
