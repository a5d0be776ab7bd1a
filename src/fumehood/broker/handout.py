"""Handing tasks out and taking answers: what the HTTP bridge, the SDK's worker and the node have in common.

A task is leased before anybody sees it and answered under its lease. An answer is three writes in an order that a crash
may cut anywhere: the event on the run's history (from here on it counts), the lease marked as answered (nobody begins
it again), the ack (the queue forgets it). What is left undone is found by whoever meets the task next.

A sandbox's task bears a proof, which goes back with every event: without it nothing that is said about a sandbox
counts, since anybody may write to a history. It is never stored with the lease.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from fumehood.broker import distinct, names, values
from fumehood.broker import lease as leases
from fumehood.broker.lease import REVOKED, Lease, Verdict, granted, judge
from fumehood.broker.ports import Broker, Bucket, KeyValue, KvEntry, TaskDelivery
from fumehood.broker.shield import shielded
from fumehood.errors import (
    BrokerError,
    BrokerUnavailableError,
    InvalidRequestError,
    KeyConflictError,
    LeaseLostError,
    NotFoundError,
)
from fumehood.wire import strict_json
from fumehood.wire.protocol import LONGEST_PAUSE_MS, EventType, StepEvent, TaskPayload
from fumehood.wire.sealed import is_sealed
from fumehood.wire.times import rfc3339

_log = logging.getLogger(__name__)

LARGEST_SIGNAL = 1024 * 1024
LARGEST_CHECKPOINT = 1024 * 1024
TRIES = 5
"""How often a lost compare-and-set is tried again: each loss means that somebody else moved on."""
AGAIN_SECONDS = 1.0
"""When a task that could not be leased, or is another run's, is offered again."""
LONGEST_LATER = 60.0
_TAKEN_BACK = "the task was taken back: its run was cancelled, or its time ran out"
_ANSWERED = "the task has been answered"


@dataclass(frozen=True, slots=True)
class Leased:
    """A task in a worker's hands, and its hold on it."""

    task: TaskPayload
    lease: Lease
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Taker:
    """Who takes tasks, and how."""

    worker_id: str
    run_id: str | None
    lease_seconds: int | None


class Handouts:
    """One process's side of the task queue. Holds nothing that matters: any other process can answer for it."""

    def __init__(
        self,
        broker: Broker,
        *,
        default_seconds: int = leases.DEFAULT_SECONDS,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._broker = broker
        self._workers_leases = broker.bucket(Bucket.LEASES)
        self._nodes_leases = broker.bucket(Bucket.NODE_LEASES)
        self._checkpoints = broker.bucket(Bucket.CHECKPOINTS)
        self._default_seconds = default_seconds
        self._now_ms = now_ms
        self.counts: Counter[str] = Counter()
        """`granted`, `dropped`, `later`, `poison`, `foreign`, `unreadable`, `broken`, `unfenced`, `lost`, `late`,
        `revoked`, `distinct`."""

    # --- handing out ---------------------------------------------------------------------------------------

    async def take(
        self,
        task_types: Sequence[str],
        *,
        max_tasks: int,
        timeout: float,
        worker_id: str,
        run_id: str | None = None,
        lease_seconds: int | None = None,
    ) -> list[Leased]:
        """Up to `max_tasks` that nobody else has; empty after `timeout` seconds. A caller that is cancelled gives
        everything back. With `run_id`, tasks of other runs are put back: costly where there are many of them.
        `lease_seconds`: how often this worker will be heard of, whatever time a task has."""
        names.token(worker_id, "a worker's id")
        taker = _Taker(worker_id, run_id, lease_seconds)
        until = self._now_ms() + int(timeout * 1000)
        while True:
            left = max(0.0, (until - self._now_ms()) / 1000)
            found = await self._broker.tasks.pull(task_types, max_tasks=max_tasks, timeout=left)
            taken = await self._offer_all(found, taker)
            if taken or self._now_ms() >= until:
                return taken

    async def _offer_all(self, deliveries: Sequence[TaskDelivery], taker: _Taker) -> list[Leased]:
        offers = [asyncio.ensure_future(self._offer(delivery, taker)) for delivery in deliveries]
        # Shielded: an offer that is cancelled between the write of a lease and its answer would leave the task leased
        # to nobody. Each goes to its end, and what it granted is given back.
        try:
            offered = await asyncio.shield(asyncio.gather(*offers, return_exceptions=True))
        except asyncio.CancelledError:
            await shielded(self._take_back(offers))
            raise
        taken = [one for one in offered if isinstance(one, Leased)]
        failed = [error for error in offered if isinstance(error, BaseException)]
        if failed and not taken:
            raise failed[0]
        return taken

    async def _take_back(self, offers: Sequence[asyncio.Future[Leased | None]]) -> None:
        """The caller has gone: whatever is granted, or becomes so, is offered to others at once."""
        for offer in await asyncio.gather(*offers, return_exceptions=True):
            if isinstance(offer, Leased):
                await _quietly(self.release(offer.lease))

    async def _offer(self, delivery: TaskDelivery, taker: _Taker) -> Leased | None:
        """One task. It is a stranger's in part (its lease and its checkpoint are anybody's to write): whatever it does
        to us, the others are handed out."""
        try:
            return await self._offered(delivery, taker)
        except BrokerError:
            await _quietly(self._broker.tasks.give_back(delivery.token, AGAIN_SECONDS))
            raise
        except Exception:  # noqa: BLE001 - one bad task must not end a worker
            self.counts["broken"] += 1
            _log.exception("offer_broken", extra={"task_type": delivery.task_type, "run_id": delivery.run_id})
            await _quietly(self._broker.tasks.give_back(delivery.token, AGAIN_SECONDS))
            return None

    async def _offered(self, delivery: TaskDelivery, taker: _Taker) -> Leased | None:
        task = _read(delivery)
        if task is None:
            await self._end_unread(delivery, taker.worker_id)
            return None
        if taker.run_id not in (None, task.run_id):
            await self._broker.tasks.give_back(delivery.token, AGAIN_SECONDS)
            return None
        return await self._lease(delivery, task, taker)

    async def _end_unread(self, delivery: TaskDelivery, worker_id: str) -> None:
        """What is no task goes. If it says whose it is, that run waits for an answer, and nobody could give another."""
        event = _unreadable(delivery, worker_id, rfc3339(self._now_ms()))
        if event is not None:
            await self._broker.histories.publish(event.run_id, event.event_id, event.encode())
        self.counts["foreign" if event is None else "unreadable"] += 1
        await self._broker.tasks.ack(delivery.token)

    async def _lease(self, delivery: TaskDelivery, task: TaskPayload, taker: _Taker) -> Leased | None:
        for _ in range(TRIES):
            entry = await self._leases(delivery.task_type).get(leases.key(task.run_id, task.step_id))
            current = _decoded(entry, delivery.task_type)
            verdict = judge(current, task, delivery.seq, self._now_ms())
            if verdict is not Verdict.GRANT:
                await self._refuse(verdict, delivery, task, current)
                return None
            if not await self._has_place(delivery, task, taker):
                return None
            wanted = granted(
                current,
                task,
                delivery,
                lease_id=secrets.token_hex(16),
                worker_id=taker.worker_id,
                now_ms=self._now_ms(),
                seconds=taker.lease_seconds or leases.seconds_of(task, self._default_seconds),
            )
            checkpoint = await self._left_behind(wanted, delivery)
            known = wanted.checkpointed or checkpoint is not None
            # Behind whatever is there, even if it is no lease: any worker may write to this bucket.
            revision = entry.revision if entry is not None else 0
            try:
                held = await self._write(replace(wanted, revision=revision, checkpointed=known))
            except KeyConflictError:
                continue
            self.counts["granted"] += 1
            return await self._hand_over(held, task, delivery, checkpoint)
        await self._broker.tasks.give_back(delivery.token, AGAIN_SECONDS)
        return None

    async def _has_place(self, delivery: TaskDelivery, task: TaskPayload, taker: _Taker) -> bool:
        """Whether this worker may have it beside what else it has of the run; if not, it is offered to others."""
        if task.distinct is None:
            return True
        bucket = self._leases(delivery.task_type)
        if await distinct.take_place(bucket, task, taker.worker_id, self._now_ms()):
            return True
        self.counts["distinct"] += 1
        await self._broker.tasks.give_back(delivery.token, distinct.again_seconds(delivery.deliveries))
        return False

    async def _refuse(self, verdict: Verdict, delivery: TaskDelivery, task: TaskPayload, current: Lease | None) -> None:
        if verdict is Verdict.LATER and current is not None:
            self.counts["later"] += 1
            left = (current.expires_ms - self._now_ms()) / 1000
            await self._broker.tasks.give_back(delivery.token, min(max(left, 0.05), LONGEST_LATER))
            return
        if verdict is Verdict.POISON and current is not None:
            self.counts["poison"] += 1
            error = {"code": "lease_expired", "message": f"taken {current.count} times and never answered"}
            mine = replace(current, token=delivery.token, proof=task.proof)
            await self._say(mine, EventType.FAILED, {"error": error})
            await self._finish(mine, EventType.FAILED)
            return
        self.counts["dropped"] += 1
        await self._broker.tasks.ack(delivery.token)

    async def _left_behind(self, wanted: Lease, delivery: TaskDelivery) -> Any:
        """The checkpoint. Not looked for where there can be none: of a sandbox, which leaves none (and workers could
        write one), or of a task that nobody had before; but a worker without leases may have paused it, and a lease is
        forgotten after a while."""
        if is_sealed(delivery.task_type):
            return None
        if delivery.deliveries == 1 and wanted.count == 1 and wanted.age <= (1, 0, 0):
            return None
        return await self.read_checkpoint(wanted.run_id, wanted.step_id)

    async def _hand_over(self, held: Lease, task: TaskPayload, delivery: TaskDelivery, checkpoint: Any) -> Leased:
        """Tell the run that its task began, and give the worker what an earlier one left."""
        try:
            await self._say(held, EventType.STARTED, None)
        except Exception:  # nobody has it: without this it would stay leased until its time is over
            await _quietly(self._put_back(held))
            raise
        given = task.model_copy(update={"lease_id": held.lease_id, "checkpoint": checkpoint})
        return Leased(given, held, delivery.headers)

    async def release(self, lease: Lease) -> None:
        """Untouched: somebody else may have it at once, and it counts as never taken."""
        try:
            await self._put_back(lease)
        except LeaseLostError:
            return
        await self._broker.tasks.give_back(lease.token)

    async def _put_back(self, lease: Lease) -> None:
        await self._change(lease, lambda current: replace(current, expires_ms=0, count=current.count - 1))

    async def revoke(self, run_id: str, step_id: str, age: tuple[int, int, int], *, task_type: str) -> None:
        """The engine takes a task of this age, or an older one, away from whoever has it: its answers are refused."""
        for _ in range(TRIES):
            current = await self._current(run_id, step_id, task_type)
            if current is None or current.age > age or not current.held:
                return
            try:
                await self._write(current.revoked())
            except KeyConflictError:
                continue
            self.counts["revoked"] += 1
            return

    def _leases(self, task_type: str) -> KeyValue:
        return self._nodes_leases if is_sealed(task_type) else self._workers_leases

    async def _current(self, run_id: str, step_id: str, task_type: str = "") -> Lease | None:
        """Of a worker, unless the type says otherwise."""
        return _decoded(await self._leases(task_type).get(leases.key(run_id, step_id)), task_type)

    async def is_cared_for(self, run_id: str, step_id: str, age: tuple[int, int, int], *, task_type: str) -> bool:
        """Whether somebody has the task and still has time, or has answered it."""
        current = await self._current(run_id, step_id, task_type)
        if current is None or current.age != age:
            return False
        return current.outcome not in (None, REVOKED) or (current.held and self._now_ms() < current.expires_ms)

    async def is_completed(self, run_id: str, step_id: str) -> bool:
        """Whether the last answer ended the step: the engine may not have come to tidy up yet."""
        current = await self._current(run_id, step_id)
        return current is not None and current.outcome == EventType.COMPLETED

    # --- answers -------------------------------------------------------------------------------------------

    async def find(self, task_id: str, lease_id: str | None = None) -> Lease:
        """The current lease of a worker's task, not of a node's. `NotFoundError` if there is none, `LeaseLostError` if
        another one was named."""
        run_id, _, step_id = task_id.partition(".")
        if not (names.is_token(run_id) and names.is_token(step_id)):
            raise NotFoundError("no such task")
        lease = await self._current(run_id, step_id)
        if lease is None:
            raise NotFoundError("nobody holds this task")
        if lease_id is not None and not secrets.compare_digest(lease_id.encode(), lease.lease_id.encode()):
            self.counts["lost"] += 1
            raise LeaseLostError("the task was handed out again since; this lease is no longer valid")
        if lease_id is None and not lease.held:
            raise NotFoundError(_why_over(lease))
        if lease_id is None:
            self.counts["unfenced"] += 1
        return lease

    async def complete(self, lease: Lease, output: Any, *, fenced: bool = True, traceparent: str | None = None) -> None:
        """The task is done."""
        if self._is_repetition(lease, EventType.COMPLETED):
            return
        kept = await values.outline(output, self._broker.blobs())
        await self._say(lease, EventType.COMPLETED, kept, fenced=fenced, traceparent=traceparent)
        await self._finish(lease, EventType.COMPLETED)

    async def fail(self, lease: Lease, error: Any, *, fenced: bool = True, traceparent: str | None = None) -> None:
        """The attempt failed: a text, or an object with `code`, `message` and `retryable`."""
        if self._is_repetition(lease, EventType.FAILED):
            return
        await self._say(lease, EventType.FAILED, {"error": error}, fenced=fenced, traceparent=traceparent)
        await self._finish(lease, EventType.FAILED)

    async def give_up(self, lease: Lease, error: Mapping[str, Any]) -> bool:
        """Answer for a holder that fell silent, whose time is over; False if the lease is not as the caller saw it
        last. It is taken from the holder first: should that one be heard of after all, it knows before we speak."""
        try:
            seized = await self._write(replace(lease, lease_id=secrets.token_hex(16), worker_id="", begun_ms=0))
        except KeyConflictError:
            return False
        await self._say(seized, EventType.FAILED, {"error": dict(error)})
        await self._finish(seized, EventType.FAILED)
        return True

    async def is_revoked(self, lease: Lease) -> bool:
        """Whether the engine took a task back; else others have answered it, or have it."""
        current = await self._current(lease.run_id, lease.step_id, lease.task_type)
        return current is not None and current.age == lease.age and current.outcome == REVOKED

    async def proceed(self, lease: Lease, said: Any, *, fenced: bool = True, traceparent: str | None = None) -> None:
        """The agent loop wants another iteration."""
        if self._is_repetition(lease, EventType.CONTINUE):
            return
        kept = await values.outline(said, self._broker.blobs())
        await self._say(lease, EventType.CONTINUE, kept, fenced=fenced, traceparent=traceparent)
        await self._finish(lease, EventType.CONTINUE)

    async def pause(
        self,
        lease: Lease,
        duration_ms: int,
        checkpoint: Any = None,
        *,
        fenced: bool = True,
        traceparent: str | None = None,
    ) -> None:
        """The same attempt again after a while, with what is left here. The engine keeps the time."""
        if not 0 < duration_ms <= LONGEST_PAUSE_MS:
            raise InvalidRequestError(f"a pause has 1 to {LONGEST_PAUSE_MS} ms")
        if self._is_repetition(lease, EventType.PAUSED):
            return
        if checkpoint is not None:
            lease = await self.checkpoint(lease, checkpoint)
        said = {"duration_ms": duration_ms}
        await self._say(lease, EventType.PAUSED, said, fenced=fenced, traceparent=traceparent)
        await self._finish(lease, EventType.PAUSED)

    async def signal(self, lease: Lease, name: str, data: Any, *, fenced: bool = True) -> None:
        """Tell the run something while the task goes on."""
        names.token(name, "a signal's name")
        body = {"name": name, "data": data, "id": secrets.token_hex(16)}
        if len(_compact(data)) > LARGEST_SIGNAL:
            raise InvalidRequestError(f"a signal has at most {LARGEST_SIGNAL} bytes")
        self._must_hold(lease)
        await self._say(lease, EventType.SIGNAL, body, fenced=fenced, event_id=body["id"])

    async def heartbeat(self, lease: Lease) -> Lease:
        """More time. `LeaseLostError` when the task is not this worker's any more."""
        held = await self._change(lease, lambda current: current.extended(self._now_ms()))
        await _quietly(self._broker.tasks.extend(held.token))
        return held

    async def checkpoint(self, lease: Lease, data: Any) -> Lease:
        """Keep something for whoever takes the task up again; more time as well."""
        value = _checkpoint(data)
        extended = await self._change(lease, lambda now: replace(now.extended(self._now_ms()), checkpointed=True))
        await self._checkpoints.put(extended.key, value)
        await _quietly(self._broker.tasks.extend(extended.token))
        return extended

    async def read_checkpoint(self, run_id: str, step_id: str) -> Any:
        """What was left; `None` if nothing, or nothing that can be read and said again: any worker may write there."""
        entry = await self._checkpoints.get(leases.key(run_id, step_id))
        try:
            found = json.loads(entry.value) if entry is not None else None
            _compact(found)
        except (ValueError, RecursionError):
            return None
        return found if strict_json.is_flat(found) else None

    # --- the writes ----------------------------------------------------------------------------------------

    def _must_hold(self, lease: Lease) -> None:
        if not lease.held:
            raise LeaseLostError(_why_over(lease))

    def _is_repetition(self, lease: Lease, outcome: EventType) -> bool:
        """The same answer under the same lease again: its sender did not hear that it was taken."""
        if lease.outcome == outcome:
            return True
        self._must_hold(lease)
        return False

    async def _write(self, lease: Lease) -> Lease:
        """Compare-and-set behind the revision that the lease was read with; 0 creates."""
        bucket = self._leases(lease.task_type)
        try:
            if lease.revision == 0:
                revision = await bucket.create(lease.key, lease.encode(), ttl=lease.ttl)
            else:
                revision = await bucket.update(lease.key, lease.encode(), revision=lease.revision, ttl=lease.ttl)
        except BrokerUnavailableError:
            found = await self._current(lease.run_id, lease.step_id, lease.task_type)
            if found is None or replace(found, revision=0) != replace(lease, revision=0):
                raise
            revision = found.revision
        return replace(lease, revision=revision)

    async def _change(self, lease: Lease, how: Callable[[Lease], Lease]) -> Lease:
        """Change a lease that is still ours, whatever else was written to it since. Of that, only what holders write is
        taken over: a token that a stranger put there is not one to answer with."""
        self._must_hold(lease)
        current: Lease | None = lease
        for _ in range(TRIES):
            if current is None or current.lease_id != lease.lease_id or not current.held or not current.expires_ms:
                self.counts["lost"] += 1
                raise LeaseLostError("the task is not this worker's any more: it was cancelled, or handed out again")
            try:
                return await self._write(how(_kept(lease, current)))
            except KeyConflictError:
                current = await self._current(lease.run_id, lease.step_id, lease.task_type)
        raise BrokerUnavailableError("the lease is being changed by others all the time")

    async def _finish(self, lease: Lease, outcome: EventType) -> None:
        """The event is stored: from here on the answer counts, and what follows only tidies up."""
        try:
            await self._change(lease, lambda current: replace(current, outcome=outcome.value))
        except LeaseLostError:
            self.counts["late"] += 1
        with suppress(InvalidRequestError):  # no token at all: the task comes again, and goes then
            await self._broker.tasks.ack(lease.token)

    async def _say(
        self,
        lease: Lease,
        kind: EventType,
        payload: Any,
        *,
        fenced: bool = True,
        event_id: str | None = None,
        traceparent: str | None = None,
    ) -> None:
        event = StepEvent(
            type=kind,
            run_id=lease.run_id,
            step_id=lease.step_id,
            attempt=lease.attempt,
            iteration=lease.iteration,
            resumption=lease.resumption,
            timestamp=rfc3339(self._now_ms()),
            payload=payload,
            worker_id=lease.worker_id,
            lease_id=lease.lease_id if fenced else None,
            fenced=None if fenced else False,
            checkpointed=True if kind is EventType.COMPLETED and lease.checkpointed else None,
            proof=lease.proof,
            traceparent=traceparent,
        )
        sent = event.event_id if event_id is None else f"{event.event_id}.{event_id}"
        headers = {"traceparent": event.traceparent} if event.traceparent is not None else None
        await self._broker.histories.publish(lease.run_id, sent, event.encode(), headers=headers)


def _read(delivery: TaskDelivery) -> TaskPayload | None:
    try:
        task = TaskPayload.model_validate_json(delivery.data)
    except (ValidationError, RecursionError):
        return None
    return task if task.run_id == delivery.run_id else None


def _unreadable(delivery: TaskDelivery, worker_id: str, timestamp: str) -> StepEvent | None:
    """The answer to a task that cannot be read, if it can still be told which one it is."""
    error = {"code": "unreadable_task", "message": "the task cannot be read by its workers", "retryable": False}
    try:
        raw = json.loads(delivery.data)
        event = StepEvent(
            type=EventType.FAILED,
            run_id=raw["run_id"],
            step_id=raw["step_id"],
            attempt=raw.get("attempt", 1),
            iteration=raw.get("iteration", 0),
            resumption=raw.get("resumption") or 0,
            timestamp=timestamp,
            payload={"error": error},
            worker_id=worker_id,
            proof=raw.get("proof"),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return event if event.run_id == delivery.run_id else None


def _kept(mine: Lease, current: Lease) -> Lease:
    """Our lease, where others changed the stored one meanwhile."""
    checkpointed = mine.checkpointed or current.checkpointed
    expires_ms = max(mine.expires_ms, current.expires_ms)
    return replace(mine, revision=current.revision, checkpointed=checkpointed, expires_ms=expires_ms)


def _why_over(lease: Lease) -> str:
    return _TAKEN_BACK if lease.outcome == REVOKED else _ANSWERED


def _decoded(entry: KvEntry | None, task_type: str) -> Lease | None:
    """A lease that says to be of the other kind does not belong where it was found."""
    lease = Lease.decode(entry) if entry is not None else None
    return lease if lease is not None and is_sealed(lease.task_type) == is_sealed(task_type) else None


def _compact(value: Any) -> bytes:
    """As it travels: what is measured is what is sent."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _checkpoint(data: Any) -> bytes:
    """Nothing is kept that `read_checkpoint` would not give back."""
    try:
        value = _compact(data)
    except RecursionError:
        raise InvalidRequestError("the checkpoint is nested too deeply") from None
    if len(value) > LARGEST_CHECKPOINT:
        raise InvalidRequestError(f"a checkpoint has at most {LARGEST_CHECKPOINT} bytes")
    if not strict_json.is_flat(data):
        raise InvalidRequestError("the checkpoint is nested too deeply")
    return value


async def _quietly(call: Coroutine[Any, Any, None]) -> None:
    """What is lost here comes right by itself: the queue hands the task out again, and the lease decides."""
    try:
        await call
    except (BrokerError, InvalidRequestError):
        return
