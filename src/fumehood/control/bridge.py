"""The bridge: tasks for workers that speak HTTP and nothing else.

Any number of bridges may serve the same workers. What a task's state is lies in its lease, who is connected lies in the
directory, so that a worker may poll at one bridge, lose it, and answer at another; nothing here would be missed. All
that a bridge remembers is which tasks it handed out (`bridge_keeper.py`) and which streams it holds
(`bridge_workers.py`), and either only makes things quicker.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import structlog

from fumehood.broker import lease as leases
from fumehood.broker import names, values
from fumehood.broker.handout import Handouts, Leased
from fumehood.broker.lease import Lease
from fumehood.broker.ports import Broker
from fumehood.broker.shield import shielded
from fumehood.control.bridge_keeper import Keeper
from fumehood.control.bridge_workers import Connection, Workers
from fumehood.errors import (
    BlobCorruptError,
    BlobNotFoundError,
    BrokerError,
    DrainingError,
    ForbiddenError,
    NotFoundError,
    OverloadedError,
    PayloadTooLargeError,
)
from fumehood.wire import blobref
from fumehood.wire.bridge import (
    ConnectRequest,
    PollRequest,
    Resolve,
    ResolveCheckpoint,
    ResolveComplete,
    ResolveContinue,
    ResolveFail,
    ResolveHeartbeat,
    ResolvePause,
    ResolveResponse,
    ResolveSignal,
)
from fumehood.wire.protocol import TaskPayload
from fumehood.wire.sealed import is_sealed

ANONYMOUS = "bridge"
"""Who has a task whose poll named no worker."""
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class BridgeOptions:
    """Tests shorten the times; a server does not."""

    heartbeat_seconds: float = 25.0
    """Between two heartbeats of a stream: the wire protocol's figure."""
    lease_seconds: int = leases.DEFAULT_SECONDS
    """Of tasks whose step has no `timeout`."""
    extend_seconds: float = 100.0
    """A third of the queue's own patience: two extensions may get lost."""
    most_polls: int = 2048
    """Long polls at once. Each is a question to the broker for each of its types, of which it takes 4,096."""
    most_streams: int = 10_000
    stream_seconds: float | None = None
    """After how long a stream ends by itself, for balancers that want connections to move on. None: never."""
    largest_input: int = 16 * MIB
    """Bytes of one input, references resolved. Beyond it a worker has to speak NATS and fetch them itself."""
    largest_answer: int = 32 * MIB
    """Bytes of the large inputs in one answer: what is beyond is given back and comes with the next poll."""


class Bridge:
    """One process's bridge. Its work in the background begins with its first caller; `close` ends it."""

    def __init__(self, broker: Broker, options: BridgeOptions | None = None) -> None:
        self._options = options or BridgeOptions()
        self._blobs = broker.blobs()
        self.handouts = Handouts(broker, default_seconds=self._options.lease_seconds)
        self.keeper = Keeper(broker.tasks, extend_seconds=self._options.extend_seconds)
        self.workers = Workers(
            broker,
            heartbeat_seconds=self._options.heartbeat_seconds,
            stream_seconds=self._options.stream_seconds,
            most=self._options.most_streams,
        )
        self._polls = 0
        self._takes: set[asyncio.Task[list[Leased]]] = set()
        self._closing = asyncio.Event()

    @property
    def polls(self) -> int:
        """How many wait here."""
        return self._polls

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let everybody go: polls end empty, streams end. What was handed out stays so."""
        self._closing.set()
        for take in self._takes:
            take.cancel()
        await self.workers.close()
        await self.keeper.close()

    # --- workers -------------------------------------------------------------------------------------------

    async def connect(self, request: ConnectRequest) -> Connection:
        """A stream for this worker; an older one of the same name ends."""
        self._check_open()
        _check_not_nodes(request.task_types)
        return await self.workers.connect(request)

    async def drain(self, worker_id: str) -> None:
        """End a worker's stream, wherever it is, and give it no more tasks until it connects again."""
        if not names.is_token(worker_id):
            raise NotFoundError("no such worker")
        await self.workers.drain(worker_id)

    # --- handing out ---------------------------------------------------------------------------------------

    async def poll(self, request: PollRequest) -> list[Leased]:
        """What there is, once there is something; empty when the time is over. Cancelled, it gives all of it back."""
        self._check_open()
        _check_not_nodes(request.task_types)
        if self._polls >= self._options.most_polls:
            raise OverloadedError("too many polls wait here", retry_after_seconds=1)
        self._polls += 1
        try:
            return await self._poll(request)
        finally:
            self._polls -= 1

    async def _poll(self, request: PollRequest) -> list[Leased]:
        if await self.workers.is_drained(request.worker_id):
            await self._sit_out(request.timeout_ms / 1000)
            return []
        found = await self._guarded(await self._take(request), request.worker_id)
        for one in found:
            self.keeper.hold(one.lease)
        return found

    async def give_back(self, tasks: Sequence[Leased]) -> None:
        """For tasks that could not be delivered: somebody else may have them at once."""
        for one in tasks:
            self.keeper.forget(one.lease)
            try:
                await self.handouts.release(one.lease)
            except BrokerError:
                continue  # it comes back by itself when its lease is over

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise DrainingError("this bridge is going away", retry_after_seconds=1)

    async def _sit_out(self, seconds: float) -> None:
        """An empty answer at once would make the worker ask again at once."""
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return

    async def _take(self, request: PollRequest) -> list[Leased]:
        take = asyncio.create_task(
            self.handouts.take(
                request.task_types,
                max_tasks=request.max_tasks,
                timeout=request.timeout_ms / 1000,
                worker_id=request.worker_id or ANONYMOUS,
                run_id=request.run_id,
            )
        )
        self._takes.add(take)
        try:
            await asyncio.wait({take})
        except asyncio.CancelledError:
            await shielded(self._abandon(take))
            raise
        finally:
            self._takes.discard(take)
        return [] if take.cancelled() else take.result()

    async def _abandon(self, take: asyncio.Task[list[Leased]]) -> None:
        """It may have come to its end in the very moment."""
        take.cancel()
        await asyncio.wait({take})
        if not take.cancelled() and take.exception() is None:
            await self.give_back(take.result())

    async def _guarded(self, taken: list[Leased], worker_id: str | None) -> list[Leased]:
        """Make tasks ready, and let none of them be lost if that goes wrong or the caller goes away."""
        waiting = deque(taken)
        ready: list[Leased] = []
        try:
            await self._make_ready(waiting, ready)
            if ready and await self.workers.is_drained(worker_id):
                waiting.extend(ready)
                ready = []
        except BaseException:
            await shielded(self.give_back([*ready, *waiting]))
            raise
        await shielded(self.give_back(waiting))
        return ready

    async def _make_ready(self, waiting: deque[Leased], ready: list[Leased]) -> None:
        """Bare workers know no blobs: put the content in its place. What is left in `waiting` has no room here."""
        room = self._options.largest_answer
        while waiting:
            made: Leased | None = waiting[0]
            if blobref.refs(waiting[0].task.input):
                made = await self._inlined(waiting[0])
                room -= len(blobref.encode(made.task.input)) if made is not None else 0
                if room < 0 and ready:
                    return
            waiting.popleft()
            if made is not None:
                ready.append(_traced(made))

    async def _inlined(self, one: Leased) -> Leased | None:
        """The task with its whole input. One that cannot be had ends here: no other bridge could do better."""
        try:
            whole = await values.inline(one.task.input, self._blobs, limit=self._options.largest_input)
        except PayloadTooLargeError:
            limit = self._options.largest_input
            await self._refuse(one.lease, "input_too_large", f"over HTTP an input has at most {limit} bytes")
            return None
        except (BlobNotFoundError, BlobCorruptError):
            await self._refuse(one.lease, "input_lost", "a part of the input is not in the blob store", retryable=True)
            return None
        return replace(one, task=one.task.model_copy(update={"input": whole}))

    async def _refuse(self, lease: Lease, code: str, message: str, *, retryable: bool = False) -> None:
        await self.handouts.fail(lease, {"code": code, "message": message, "retryable": retryable})

    # --- answers -------------------------------------------------------------------------------------------

    async def resolve(self, task_id: str, answer: Resolve, *, traceparent: str | None = None) -> ResolveResponse:
        """`NotFoundError` without a lease, `LeaseLostError` when another one is current."""
        lease = await self.handouts.find(task_id, answer.lease_id)
        held = await self._answer(lease, answer, traceparent)
        structlog.get_logger().info(
            "bridge.resolved",
            task_id=lease.task_id,
            action=answer.action,
            attempt=lease.attempt,
            worker_id=lease.worker_id,
            fenced=answer.lease_id is not None,
        )
        if held is None:
            self.keeper.forget(lease)
            return ResolveResponse()
        self.keeper.hold(held)
        extended = isinstance(answer, ResolveHeartbeat | ResolveCheckpoint)
        return ResolveResponse(expires_in_ms=held.seconds * 1000 if extended else None)

    async def _answer(self, lease: Lease, answer: Resolve, traceparent: str | None) -> Lease | None:
        """The lease, where the task goes on under it."""
        said: dict[str, Any] = {"fenced": answer.lease_id is not None}
        match answer:
            case ResolveHeartbeat():
                return await self.handouts.heartbeat(lease)
            case ResolveCheckpoint():
                return await self.handouts.checkpoint(lease, answer.data)
            case ResolveSignal():
                await self.handouts.signal(lease, answer.name, answer.data, **said)
                return lease
            case ResolvePause():
                await self.handouts.pause(lease, answer.duration_ms, answer.checkpoint, traceparent=traceparent, **said)
            case ResolveComplete():
                await self.handouts.complete(lease, answer.output, traceparent=traceparent, **said)
            case ResolveContinue():
                await self.handouts.proceed(lease, answer.output, traceparent=traceparent, **said)
            case ResolveFail():
                await self.handouts.fail(lease, answer.stored(), traceparent=traceparent, **said)
        return None

    async def checkpoint(self, task_id: str) -> Any:
        """What was left for whoever takes the task up again."""
        run_id, _, step_id = task_id.partition(".")
        if not (names.is_token(run_id) and names.is_token(step_id)):
            raise NotFoundError("no such task")
        found = await self.handouts.read_checkpoint(run_id, step_id)
        if found is None or await self.handouts.is_completed(run_id, step_id):
            raise NotFoundError("this task has no checkpoint")
        return found


def _check_not_nodes(task_types: Sequence[str]) -> None:
    """Whoever has a node's task could answer it without having run anything."""
    sealed = [kind for kind in task_types if is_sealed(kind)]
    if sealed:
        raise ForbiddenError(f"tasks of type {sealed[0]} are taken and answered by nodes and providers only")


def _traced(one: Leased) -> Leased:
    """The trace travels in the payload too: a worker over HTTP sees no headers of the broker's."""
    if one.task.traceparent is not None or "traceparent" not in one.headers:
        return one
    task: TaskPayload = one.task.model_copy(update={"traceparent": one.headers["traceparent"]})
    return replace(one, task=task)
