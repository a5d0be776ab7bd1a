"""The decider: takes what waits for a run, decides once, appends, does what follows, and only then acks.

Any number of deciders may work on the same runs. What keeps them apart is the journal's compare-and-set, nothing else:
whoever loses reads again and decides again. What heals a crash is that nothing is acked before its effects are done:
the messages come again, decide to nothing, and whatever should be out by then is put out again.

Within one decider a run is worked on by one lane at a time, and lanes do not wait for each other: while one run's
record is on its way to the broker, others are decided.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import structlog
from opentelemetry.trace import NoOpTracer, Tracer

from fumehood.broker import values
from fumehood.broker.handout import Handouts
from fumehood.broker.ports import Broker, Delivery
from fumehood.control import intake, loading, records
from fumehood.control.calls import ENGINE
from fumehood.control.effects import Performer, newest_unwanted
from fumehood.control.lanes import Lanes
from fumehood.control.proofs import Proofs
from fumehood.control.tracing import deciding
from fumehood.engine.content import ContentNeededError, Unavailable
from fumehood.engine.decide import Decision, abandon, decide
from fumehood.engine.events import UnknownFormatError
from fumehood.engine.fold import fold
from fumehood.engine.messages import ORDERS, Ignored, Message, MessageType
from fumehood.engine.state import Failure, RunState, RunStatus, step_of
from fumehood.errors import (
    BlobCorruptError,
    BlobNotFoundError,
    BrokerError,
    BrokerUnavailableError,
    JournalConflictError,
    PayloadTooLargeError,
)
from fumehood.wire import blobref, strict_json

BATCH = 256
PULL_SECONDS = 2.0
CACHED_RUNS = 4096
CACHED_BYTES = 64 * 1024 * 1024
"""Of the records that cached states were made from; as objects they take some times that."""
TRIES = 50
"""Against other deciders of the same run: each lost try is somebody else's decision."""
HOPELESS = 12
"""Deliveries after which a run that we cannot decide is given up: about a minute of trying."""
EARLY = 10_000
"""Deliveries for which an order to a run that has not begun yet is kept, a minute apart: about a week."""
EARLY_STOPS = 30
"""The same for what the engine itself tells a run that it had called."""
YOUNG_MS = 300_000
"""How old a run's id may be for its start to be surely the first: nothing is archived so early."""
AT_ONCE = 64
"""Runs decided at the same time: enough to keep the broker busy, few enough to keep memory flat."""
DECISION_BYTES = 2 * 1024 * 1024
"""What one decision takes in. A burst of large answers becomes several records, none of which is too large."""

EXPRESSION_BYTES = 8 * 1024 * 1024
"""What all expressions of one decision may have fetched: reading it holds up all other runs for some 100 ms."""
_TOO_MUCH = f"the values have more than the {EXPRESSION_BYTES} bytes that the expressions of a decision may look at"

ASIDE_SECONDS = 5.0
"""Longer than the broker takes to prefer somebody else."""
BETWEEN_ASIDES_MS = 60_000
RETRY_SECONDS = 1.0
LONGEST_RETRY = 60.0

_NOT_WANTED = frozenset(
    {
        Ignored.RUN_ENDED,
        Ignored.OTHER_ATTEMPT,
        Ignored.OTHER_ITERATION,
        Ignored.OTHER_RESUMPTION,
        Ignored.NOT_HANDED_OUT,
    }
)
_MADE = re.compile(r"(?:run-)?([0-9a-f]{12})[0-9a-f]{20}$")
_log = structlog.get_logger()


@dataclass(slots=True)
class Counters:
    """What a decider did; read by metrics and by tests."""

    decisions: int = 0
    conflicts: int = 0
    ignored: dict[str, int] = field(default_factory=dict)
    rederived: int = 0
    refused: int = 0
    """Messages given back because the broker failed."""
    failed: int = 0
    """Decisions that met a fault of ours: their messages come again, later and later."""
    unknown: int = 0
    """Runs left to a newer version of us, which wrote what we cannot read."""
    ended: dict[str, int] = field(default_factory=dict)
    """Runs that ended here, by how."""

    def end(self, status: RunStatus) -> None:
        self.ended[status.value] = self.ended.get(status.value, 0) + 1

    def ignore(self, reason: str) -> None:
        self.ignored[reason] = self.ignored.get(reason, 0) + 1


@dataclass(slots=True)
class _Known:
    """A run as this process saw it last. May be out of date: the journal says so when it matters."""

    state: RunState | None
    seq: int
    weight: int
    """About how many bytes it holds."""
    sound: bool = False
    """This process did all that follows from it, or has made sure that it was done."""


class Decider:
    def __init__(
        self,
        broker: Broker,
        *,
        now_ms: Callable[[], int],
        tracer: Tracer | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        pull_seconds: float = PULL_SECONDS,
    ) -> None:
        self._broker = broker
        self._pull_seconds = pull_seconds
        self._now_ms = now_ms
        self._sleep = sleep
        self._tracer = tracer if tracer is not None else NoOpTracer()
        self._handouts = Handouts(broker, now_ms=now_ms)
        self._performer = Performer(broker, self._handouts, now_ms=now_ms)
        self._proofs = Proofs(broker)
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._weight = 0
        self._aside: set[int] = set()
        """Partitions that somebody newer should have for a while."""
        self._stepped_aside: dict[int, int] = {}
        self._room = asyncio.Semaphore(AT_ONCE)
        self.counters = Counters()

    # --- the loop ------------------------------------------------------------------------------------------

    async def work(self, partition: int) -> None:
        """Serve one partition until cancelled. A broker that is away is waited for."""
        lanes = Lanes(self.handle, patience=self._broker.feed.patience, sleep=self._sleep)
        try:
            while True:
                if partition in self._aside:
                    await self._step_aside(partition)
                await lanes.add(await lanes.beside(self._pull(partition)))
        finally:
            await lanes.close()
            await _quietly(self._broker.feed.release(partition))

    def _leave_to_newer(self, run_id: str, error: UnknownFormatError) -> None:
        """Now and then only: where nobody newer is there, all other runs of the partition are ours."""
        self.counters.unknown += 1
        _log.warning("decide.unknown_format", run_id=run_id, detail=str(error))
        partition, now = self._broker.partition_of(run_id), self._now_ms()
        if now - self._stepped_aside.get(partition, 0) > BETWEEN_ASIDES_MS:
            self._stepped_aside[partition] = now
            self._aside.add(partition)

    async def _step_aside(self, partition: int) -> None:
        """Let another decider be preferred for a while: one of a newer version, if there is any."""
        await _quietly(self._broker.feed.release(partition))
        await self._sleep(ASIDE_SECONDS)
        self._aside.discard(partition)

    async def _pull(self, partition: int) -> list[Delivery]:
        try:
            return await self._broker.feed.pull(partition, max_messages=BATCH, timeout=self._pull_seconds)
        except BrokerError:
            await self._sleep(RETRY_SECONDS)
            return []

    async def turn(self, partition: int, *, timeout: float = PULL_SECONDS) -> int:
        """One pull and all that follows from it; how many messages there were."""
        waiting = await self._broker.feed.pull(partition, max_messages=BATCH, timeout=timeout)
        lanes = Lanes(self.handle, patience=self._broker.feed.patience, sleep=self._sleep)
        try:
            await lanes.add(waiting)
            await lanes.drained()
        finally:
            await lanes.close()
        return len(waiting)

    async def handle(self, run_id: str, deliveries: Sequence[Delivery]) -> None:
        """All waiting messages of one run. Whatever goes wrong gives them back: they come again."""
        for part in _parts(deliveries):
            async with self._room:
                await self._handle(run_id, part)

    async def _handle(self, run_id: str, deliveries: Sequence[Delivery]) -> None:
        try:
            early = await self._decide(run_id, deliveries)
        except BrokerError as error:
            self.counters.refused += 1
            self._forget(run_id)
            if not error.retryable:  # a broker that is away is counted; one that says no is somebody's to look at
                _log.warning("decide.refused", run_id=run_id, code=error.code, detail=error.detail)
            await self._give_back(deliveries)
            return
        except UnknownFormatError as error:  # beside a newer version of us: it is that one's run
            self._forget(run_id)
            self._leave_to_newer(run_id, error)
            await self._give_back(deliveries)
            return
        except Exception:  # noqa: BLE001 - one run that we cannot decide must not end all others
            self.counters.failed += 1
            self._forget(run_id)
            _log.exception("decide.failed", run_id=run_id)
            if not await self._abandon(run_id, deliveries):
                await self._give_back(deliveries)
                return
            early = frozenset()
        await self._give_back([delivery for delivery in deliveries if delivery.identity in early])
        for delivery in deliveries:
            if delivery.identity not in early:
                await _quietly(delivery.ack())

    async def _abandon(self, run_id: str, deliveries: Sequence[Delivery]) -> bool:
        """A run that we failed at again and again ends, and says so. One that cannot even be read is left alone: a
        newer version of us may be able to."""
        if all(delivery.deliveries < HOPELESS for delivery in deliveries):
            return False
        try:
            known = await self._reload(run_id)
            failure = Failure("internal", "the engine failed on this run; the server's log tells more")
            messages, _ = await self._read(run_id, deliveries)
            decision = abandon(run_id, known.state, messages, self._now_ms(), failure)
            if decision.record is not None:
                await self._store(run_id, known, *await self._kept(run_id, known.state, decision))
        except Exception:  # noqa: BLE001 - as above
            _log.exception("abandon.failed", run_id=run_id)
            return False
        return True

    async def _give_back(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            pause = min(RETRY_SECONDS * delivery.deliveries, LONGEST_RETRY)
            await _quietly(delivery.nak(pause))

    # --- one decision --------------------------------------------------------------------------------------

    async def _decide(self, run_id: str, deliveries: Sequence[Delivery]) -> frozenset[str]:
        """Everything; which messages came too early, and should come again."""
        messages, unknown = await self._read(run_id, deliveries)
        messages += await self._unwanted(run_id, messages)
        fresh = _is_new(deliveries, messages) and _is_young(run_id, self._now_ms())
        known = await self._load(run_id, fresh=fresh)
        for _ in range(TRIES):
            decided = await self._try(run_id, known, messages)
            if decided is not None:
                break
            known = await self._reload(run_id)
        else:
            raise BrokerUnavailableError("the run moves faster than it can be read")
        for _, reason in decided.ignored:
            self.counters.ignore(reason)
        ignored = dict(decided.ignored)
        await self._call_back(run_id, decided.state, messages, ignored)
        await self._pass_on(decided.state, messages, ignored)
        await self._performer.release(run_id, decided.state, messages)
        await self._heal(run_id, decided.state, deliveries)
        return _early(deliveries, messages, ignored) | unknown

    async def _unwanted(self, run_id: str, messages: Sequence[Message]) -> list[Message]:
        """A run that was called by one which does not wait for it any more ends as it begins."""
        start = messages[0] if messages and messages[0].type is MessageType.START else None
        if start is None or await self._performer.calls.is_wanted(run_id, start):
            return []
        body = {"reason": "the run that called it does not wait for it any more", "by": ENGINE, "try": 0}
        return [Message(f"{run_id}.unwanted", MessageType.CANCEL, body)]

    async def _try(self, run_id: str, known: _Known, messages: Sequence[Message]) -> Decision | None:
        """Decide, append and follow up; `None` where the run has moved on meanwhile."""
        decision, data = await self._decision(run_id, known.state, messages)
        if decision.record is None:
            return decision if await self._is_current(run_id, known) else None
        try:
            await self._store(run_id, known, decision, data)
        except JournalConflictError:
            self.counters.conflicts += 1
            return None
        return decision

    async def _store(self, run_id: str, known: _Known, decision: Decision, data: bytes) -> None:
        """Append, remember, and do what follows."""
        record_id = records.name(run_id, known.seq, data)
        seq = await self._broker.journal.append(run_id, record_id, data, expected=known.seq)
        self.counters.decisions += 1
        made = _Known(decision.state, seq, known.weight + len(data), known.sound)
        self._remember(run_id, made)
        assert decision.state is not None
        if decision.state.status.ended:
            self.counters.end(decision.state.status)
        with deciding(self._tracer, decision.state) as traceparent:
            await self._performer.follow(run_id, known.state, decision.state, traceparent)
        if loading.is_due(known.state, decision.state):
            await _quietly(loading.save(self._broker, decision.state, seq, record_id))

    async def _call_back(
        self, run_id: str, state: RunState | None, messages: Sequence[Message], ignored: dict[str, Ignored]
    ) -> None:
        """Who begins with what is not wanted any more took its task just when that was decided: it is told now."""
        for message in messages:
            if message.type is MessageType.STEP_STARTED and ignored.get(message.id) in _NOT_WANTED:
                step = state.steps.get(message.step) if state is not None else None
                age = newest_unwanted(step) if step is not None else None
                if age is not None and state is not None:  # never what is out now, whatever the message says
                    task_type = step_of(state, message.step).task_type or ""
                    await self._handouts.revoke(run_id, message.step, age, task_type=task_type)

    async def _pass_on(self, state: RunState | None, messages: Sequence[Message], ignored: dict[str, Ignored]) -> None:
        """Somebody asks a run to end that goes on as another one since."""
        if state is None or state.continued_as is None:
            return
        for message in messages:
            theirs = message.type is MessageType.CANCEL and message.body.get("by") != ENGINE
            if theirs and ignored.get(message.id) is Ignored.RUN_ENDED:
                await self._performer.calls.pass_on(state, message)

    async def _read(self, run_id: str, deliveries: Sequence[Delivery]) -> tuple[list[Message], frozenset[str]]:
        """What they say, and which of them only a newer version of us understands. Values too large for a state are put
        aside before anything is decided."""
        messages, unknown = [], set()
        for delivery in deliveries:
            try:
                message = intake.read(delivery, self._proofs.hold)
            except UnknownFormatError as error:
                self._leave_to_newer(run_id, error)
                unknown.add(delivery.identity)
                continue
            if message is None:
                self.counters.ignore("not_a_message")
            elif len(delivery.data) > blobref.INLINE_BYTES:
                messages.append(await self._put_aside(message))
            else:
                messages.append(message)
        return sorted(messages, key=lambda message: message.type is not MessageType.START), frozenset(unknown)

    async def _put_aside(self, message: Message) -> Message:
        try:
            large = {name: message.body[name] for name in ("input", "output", "data") if name in message.body}
            kept: dict[str, Any] = {
                name: await values.outline(value, self._broker.blobs()) for name, value in large.items()
            }
        except (ValueError, RecursionError):  # what cannot be written is found out when it is to be recorded
            return message
        return replace(message, body={**message.body, **kept})

    async def _decision(
        self, run_id: str, state: RunState | None, messages: Sequence[Message]
    ) -> tuple[Decision, bytes]:
        """A decision whose record can be stored, with the state that folding it gives, and its bytes."""
        try:
            return await self._kept(run_id, state, await self._pure(run_id, state, messages))
        except records.UnwritableError:
            self.counters.ignore("unwritable")
            messages = intake.cleaned(messages)
            return await self._kept(run_id, state, await self._pure(run_id, state, messages))
        except PayloadTooLargeError as error:
            failure = Failure("too_large", error.detail)
            return await self._kept(run_id, state, abandon(run_id, state, messages, self._now_ms(), failure))

    async def _pure(self, run_id: str, state: RunState | None, messages: Sequence[Message]) -> Decision:
        contents: dict[str, Any] = {}
        left = EXPRESSION_BYTES
        while True:
            try:
                return decide(run_id, state, messages, self._now_ms(), contents)
            except ContentNeededError as needed:
                sizes = await self._sizes(needed.refs, left)
                left -= sum(sizes.values())
                contents |= {ref: await self._content(ref, sizes.get(ref)) for ref in needed.refs}

    async def _kept(self, run_id: str, state: RunState | None, decision: Decision) -> tuple[Decision, bytes]:
        if decision.record is None:
            return decision, b""
        record, data = await records.keep(decision.record, self._broker.blobs())
        if record is not decision.record:
            decision = Decision(record, fold(run_id, [record], state), decision.ignored)
        return decision, data

    async def _sizes(self, refs: Sequence[str], left: int) -> dict[str, int]:
        """What is to be fetched: all of it, or nothing where that would be too much."""
        sizes: dict[str, int] = {}
        for ref in refs:
            sizes[ref] = await self._broker.blobs().size(ref) or 0
            if sum(sizes.values()) > left:
                return {}
        return sizes

    async def _content(self, ref: str, size: int | None) -> Any:
        if size is None:
            return Unavailable(_TOO_MUCH)
        try:
            content = values.decode(await self._broker.blobs().get(ref, limit=size))
        except PayloadTooLargeError:
            return Unavailable(_TOO_MUCH)
        except (BlobNotFoundError, BlobCorruptError):
            return Unavailable("the value's content is not there")
        if not strict_json.is_flat(content):
            return Unavailable(
                f"the value has more than the {strict_json.DEEPEST} levels that an expression may look at"
            )
        return content

    async def _is_current(self, run_id: str, known: _Known) -> bool:
        """A decision to do nothing is not checked by any append: a message must not be dropped because of a cached
        state that another decider has moved past."""
        last = await self._broker.journal.last(run_id)
        return (last.seq if last is not None else 0) == known.seq

    async def _heal(self, run_id: str, state: RunState | None, deliveries: Sequence[Delivery]) -> None:
        """A message that comes a second time: whoever had it first may have died, or failed, before its effects were
        done. New messages beside it make no difference (the simulation's seed 59). Once for each run and process: a
        map's thousands of messages may all come again."""
        known = self._known.get(run_id)
        sound = known is not None and known.sound
        if state is None or sound or all(delivery.deliveries == 1 for delivery in deliveries):
            return
        self.counters.rederived += 1
        with deciding(self._tracer, state) as traceparent:
            await self._performer.restore(run_id, state, traceparent)
        if known is not None:
            known.sound = True

    # --- what is known -------------------------------------------------------------------------------------

    async def _load(self, run_id: str, *, fresh: bool = False) -> _Known:
        known = self._known.get(run_id)
        if known is not None:
            self._known.move_to_end(run_id)
            return known
        if fresh:  # if not, the append will say so
            return _Known(None, 0, 0, sound=True)
        return await self._reload(run_id)

    async def _reload(self, run_id: str) -> _Known:
        self._forget(run_id)
        found = await loading.read(self._broker, run_id)
        known = _Known(found.state, found.seq, found.weight)
        self._remember(run_id, known)
        return known

    def _remember(self, run_id: str, known: _Known) -> None:
        before = self._known.pop(run_id, None)
        self._weight -= before.weight if before is not None else 0
        if known.state is None or known.state.status.ended:
            return
        self._known[run_id] = known
        self._weight += known.weight
        while len(self._known) > CACHED_RUNS or (self._weight > CACHED_BYTES and len(self._known) > 1):
            _, oldest = self._known.popitem(last=False)
            self._weight -= oldest.weight

    def _forget(self, run_id: str) -> None:
        self._remember(run_id, _Known(None, 0, 0))


def _parts(deliveries: Sequence[Delivery]) -> Iterator[Sequence[Delivery]]:
    """As few as the bound on one decision allows."""
    part: list[Delivery] = []
    size = 0
    for delivery in deliveries:
        if part and size + len(delivery.data) > DECISION_BYTES:
            yield part
            part, size = [], 0
        part.append(delivery)
        size += len(delivery.data)
    if part:
        yield part


def _early(deliveries: Sequence[Delivery], messages: Sequence[Message], ignored: dict[str, Ignored]) -> frozenset[str]:
    """An order may overtake the start that it is meant for, where whoever had the start died. A run that another one
    stops may never have been started; and where it is, it asks first."""
    counts = {delivery.identity: delivery.deliveries for delivery in deliveries}
    orders = {
        message.id
        for message in messages
        if message.type in ORDERS
        and counts.get(message.id, EARLY) < (EARLY_STOPS if message.body.get("by") == ENGINE else EARLY)
    }
    return frozenset(name for name, why in ignored.items() if why is Ignored.NO_RUN and name in orders)


def _is_new(deliveries: Sequence[Delivery], messages: Sequence[Message]) -> bool:
    """A run that nobody can have decided anything about: its start, for the first time."""
    started = bool(messages) and messages[0].type is MessageType.START
    return started and all(delivery.deliveries == 1 for delivery in deliveries)


def _is_young(run_id: str, now_ms: int) -> bool:
    """By the time in the ids that servers make. A start that somebody held for long may be of a run that was archived
    since, and has no journal any more."""
    made = _MADE.match(run_id)
    return made is None or abs(now_ms - int(made[1], 16)) < YOUNG_MS


async def _quietly(call: Coroutine[Any, Any, None]) -> None:
    """What is lost here is done again: an ack that is lost only means that the message comes once more."""
    try:
        await call
    except (BrokerError, PayloadTooLargeError):
        return
