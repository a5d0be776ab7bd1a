"""The decider: takes what waits for a run, decides once, appends, does what follows, and only then acks.

Any number of deciders may work on the same runs. What keeps them apart is the journal's compare-and-set, nothing else:
whoever loses reads again and decides again. What heals a crash is that nothing is acked before its effects are done:
the messages come again, decide to nothing, and whatever should be out by then is put out again. All effects have ids
derived from the state, so that doing them twice is doing them once.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fumehood.broker.ports import Broker, Bucket, Delivery
from fumehood.control import intake
from fumehood.engine.decide import Decision, decide
from fumehood.engine.desired import Effects, Task, Timer, effects
from fumehood.engine.events import Record
from fumehood.engine.fold import fold
from fumehood.engine.messages import MessageType
from fumehood.engine.state import RunState
from fumehood.errors import BrokerError, JournalConflictError
from fumehood.wire.protocol import TaskPayload

BATCH = 256
PULL_SECONDS = 2.0
CACHED_RUNS = 4096
AT_ONCE = 64
"""Runs decided at the same time: enough to keep the broker busy, few enough to keep memory flat."""

RETRY_SECONDS = 1.0


@dataclass(slots=True)
class Counters:
    """What a decider did; read by metrics and by tests."""

    decisions: int = 0
    conflicts: int = 0
    ignored: dict[str, int] = field(default_factory=dict)
    rederived: int = 0
    refused: int = 0

    def ignore(self, reason: str) -> None:
        self.ignored[reason] = self.ignored.get(reason, 0) + 1


@dataclass(slots=True)
class _Known:
    """A run as this process saw it last. May be out of date: the journal says so when it matters."""

    state: RunState | None
    seq: int


class Decider:
    def __init__(self, broker: Broker, *, now_ms: Callable[[], int]) -> None:
        self._broker = broker
        self._now_ms = now_ms
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self.counters = Counters()

    # --- the loop ------------------------------------------------------------------------------------------

    async def work(self, partition: int) -> None:
        """Serve one partition until cancelled."""
        try:
            while True:
                await self.turn(partition)
        finally:
            await self._broker.feed.release(partition)

    async def turn(self, partition: int, *, timeout: float = PULL_SECONDS) -> int:
        """One pull and all that follows from it; how many messages there were."""
        waiting = await self._broker.feed.pull(partition, max_messages=BATCH, timeout=timeout)
        runs: dict[str, list[Delivery]] = {}
        for delivery in waiting:
            runs.setdefault(delivery.run_id, []).append(delivery)
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(run_id: str, deliveries: list[Delivery]) -> None:
            async with limit:
                await self.handle(run_id, deliveries)

        await asyncio.gather(*(one(run_id, deliveries) for run_id, deliveries in runs.items()))
        return len(waiting)

    async def handle(self, run_id: str, deliveries: Sequence[Delivery]) -> None:
        """All waiting messages of one run. A broker that fails gives them back: they come again."""
        try:
            await self._decide(run_id, deliveries)
        except BrokerError:
            self.counters.refused += 1
            self._known.pop(run_id, None)
            await self._give_back(deliveries)
            return
        for delivery in deliveries:
            await _quietly(delivery.ack())

    async def _give_back(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            await _quietly(delivery.nak(RETRY_SECONDS))

    # --- one decision --------------------------------------------------------------------------------------

    async def _decide(self, run_id: str, deliveries: Sequence[Delivery]) -> None:
        messages = [message for message in map(intake.read, deliveries) if message is not None]
        for _ in range(len(deliveries) - len(messages)):
            self.counters.ignore("not_a_message")
        while True:
            known = await self._load(run_id)
            decision = decide(run_id, known.state, messages, self._now_ms())
            if decision.record is None:
                if not await self._is_current(run_id, known):
                    continue
                self._count_ignored(decision)
                await self._heal(run_id, known.state, deliveries)
                return
            try:
                seq = await self._append(run_id, known, decision.record)
            except JournalConflictError:
                self.counters.conflicts += 1
                self._known.pop(run_id, None)
                continue
            self.counters.decisions += 1
            self._count_ignored(decision)
            self._remember(run_id, _Known(decision.state, seq))
            await self.perform(run_id, effects(known.state, decision.state), decision.state)
            await self._heal(run_id, decision.state, deliveries)
            return

    async def _append(self, run_id: str, known: _Known, record: Record) -> int:
        data = record.encode()
        record_id = f"{run_id}.{known.seq}.{hashlib.sha256(data).hexdigest()[:16]}"
        return await self._broker.journal.append(run_id, record_id, data, expected=known.seq)

    async def _is_current(self, run_id: str, known: _Known) -> bool:
        """A decision to do nothing is not checked by any append: a message must not be dropped because of a cached
        state that another decider has moved past."""
        last = await self._broker.journal.last(run_id)
        if (last.seq if last is not None else 0) == known.seq:
            return True
        self._known.pop(run_id, None)
        return False

    async def _heal(self, run_id: str, state: RunState | None, deliveries: Sequence[Delivery]) -> None:
        """A message that comes a second time: whoever had it first may have died, or failed, before its effects were
        done. New messages beside it make no difference (the simulation's seed 59)."""
        if any(delivery.deliveries > 1 for delivery in deliveries):
            self.counters.rederived += 1
            await self.perform(run_id, effects(None, state), state)

    def _count_ignored(self, decision: Decision) -> None:
        for _, reason in decision.ignored:
            self.counters.ignore(reason)

    async def _load(self, run_id: str) -> _Known:
        known = self._known.get(run_id)
        if known is not None:
            self._known.move_to_end(run_id)
        else:
            entries = await self._broker.journal.read(run_id)
            state = fold(run_id, (Record.decode(entry.data) for entry in entries))
            known = _Known(state, entries[-1].seq if entries else 0)
            self._remember(run_id, known)
        return known

    def _remember(self, run_id: str, known: _Known) -> None:
        if known.state is not None and known.state.status.ended:
            self._known.pop(run_id, None)
            return
        self._known[run_id] = known
        self._known.move_to_end(run_id)
        while len(self._known) > CACHED_RUNS:
            self._known.popitem(last=False)

    # --- effects -------------------------------------------------------------------------------------------

    async def perform(self, run_id: str, todo: Effects, state: RunState | None) -> None:
        for timer in todo.set:
            await self._set(run_id, timer)
        for task in todo.publish:
            await self._publish(run_id, task)
        for timer in todo.cancel:
            await self._broker.timers.cancel(run_id, timer.id)
        for task in todo.revoke:
            await self._broker.bucket(Bucket.LEASES).delete(lease_key(run_id, task))
        if state is not None and state.status.ended:
            await self._broker.tasks.purge_run(
                run_id, {step.task_type for step in state.definition.steps if step.task_type}
            )

    async def _set(self, run_id: str, timer: Timer) -> None:
        message_id = f"{run_id}.timer.{timer.id}"
        body = intake.encode(MessageType.TIMER, dict(timer.body))
        await self._broker.timers.set(run_id, timer.id, timer.at, message_id, body)

    async def _publish(self, run_id: str, task: Task) -> None:
        payload = TaskPayload(
            task_id=f"{run_id}.{task.step}",
            run_id=run_id,
            step_id=task.step,
            iteration=task.iteration,
            attempt=task.attempt,
            input=task.input,
            sandbox=dict(task.sandbox) if task.sandbox is not None else None,
        )
        await self._broker.tasks.publish(task.type, run_id, f"{run_id}.{task.key}", payload.encode())


def lease_key(run_id: str, task: Task) -> str:
    """One lease for one attempt and iteration of a step."""
    return f"{run_id}.{task.step}.{task.attempt}.{task.iteration}"


async def _quietly(settling: object) -> None:
    """An ack that is lost only means that the message comes again."""
    try:
        await settling  # type: ignore[misc]
    except BrokerError:
        return
