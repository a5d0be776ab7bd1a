"""Rate limits of task types: each task is given the moment at which it may go out.

A limit is one key, which holds it together with how far it is used: the *theoretical arrival time* of the generic cell
rate algorithm, that is, when the next task would be due if all went out evenly. One compare-and-set reserves any number
of slots, and tasks wait for theirs with the broker's timers, so that no process keeps a queue. A slot that is reserved
twice, after a crash, is a slot not used; none is ever given to two.

Slots are never given back, so only the next few minutes are given out: whoever comes too late for those asks again.
What is cancelled leaves no more than these minutes unused, and a limit that is changed begins anew, with no more than
these minutes of the old one beside it.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fumehood.broker import names
from fumehood.broker.ports import Broker, Bucket
from fumehood.control.contended import Contended
from fumehood.errors import InvalidRequestError, NotFoundError
from fumehood.wire.task_type_api import LARGEST_BURST, RATE_FORM, RATE_WORDS

HORIZON_MS = 600_000
"""How far ahead slots are given out."""
SOONEST_MS = HORIZON_MS // 2
"""Before which nobody has to ask again, however many wait. No slot goes by unasked for because of it: what could not be
given out is more than twice as far away."""
LATEST_MS = 3_600_000
"""After which everybody asks again: so late those who wait notice that a limit was raised or taken away."""
LEAST_PATIENCE_MS = 1000
"""How late a task may at least be for its slot: timers and deciders take moments."""
FRESH_MS = 1000
"""How old this process's knowledge of which types have a limit may be: so long a new one may go unseen."""

_PER_MS = {"s": 1000, "m": 60_000, "h": 3_600_000}
_LIMIT = "limit"
_DOT = "=2E"
"""In place of the dots of a task type, so that one is one token of a key; `=` is in no task type."""


@dataclass(frozen=True, slots=True)
class Limit:
    """`count` tasks in each `per_ms` milliseconds, evenly, but for `burst` of them at once after a pause."""

    count: int
    per_ms: int
    burst: int = 1

    @property
    def interval_ns(self) -> int:
        """Between two tasks. Rounded up: never above the rate."""
        return -(-self.per_ms * 1_000_000 // self.count)

    @property
    def patience_ms(self) -> int:
        """How late a task may be for its slot: what is late together goes out together, so by so much at most."""
        return max(LEAST_PATIENCE_MS, -(-self.interval_ns // 1_000_000))

    @property
    def rate(self) -> str:
        """As people write it."""
        unit = next(unit for unit, per_ms in _PER_MS.items() if per_ms == self.per_ms)
        return f"{self.count}/{unit}"


def parse(rate: str, burst: int = 1) -> Limit:
    """`10/s`, `100/m`, `1000/h`."""
    if re.fullmatch(RATE_FORM, rate) is None:
        raise InvalidRequestError(f"rate: must be {RATE_WORDS}")
    if not 1 <= burst <= LARGEST_BURST:
        raise InvalidRequestError(f"burst: must be from 1 to {LARGEST_BURST}")
    count, _, unit = rate.partition("/")
    return Limit(int(count), _PER_MS[unit], burst)


@dataclass(frozen=True, slots=True)
class Slot:
    """A moment of a task's own; or, where it has none yet, the moment to ask again."""

    at_ms: int
    patience_ms: int = 0
    """How long after that it may still be used; 0: it is none."""

    @property
    def taken(self) -> bool:
        return self.patience_ms > 0


def reserve(limit: Limit, tat_ns: int, now_ms: int, count: int) -> tuple[int, list[Slot]]:
    """The next `count` slots, in order, none before now; and the arrival time that follows from those that are taken.
    It does not matter whose clock `now` is: in any stretch of w milliseconds there are at most burst + w * rate + 1
    slots, the last one because slots are whole milliseconds."""
    interval, now_ns = limit.interval_ns, now_ms * 1_000_000
    first = max(tat_ns, now_ns)
    early = (limit.burst - 1) * interval
    moments = [max(now_ms, -((early - first - number * interval) // 1_000_000)) for number in range(count)]
    taken = bisect_right(moments, now_ms + HORIZON_MS)
    slots = [Slot(at, limit.patience_ms) for at in moments[:taken]]
    slots += [Slot(_ask_again(at, now_ms)) for at in moments[taken:]]
    return first + taken * interval if taken else tat_ns, slots


def _ask_again(at_ms: int, now_ms: int) -> int:
    return min(max(at_ms - HORIZON_MS, now_ms + SOONEST_MS), now_ms + LATEST_MS)


class Rates:
    def __init__(self, broker: Broker, *, now_ms: Callable[[], int], contended: Contended | None = None) -> None:
        self._bucket = broker.bucket(Bucket.RATES)
        self._contended = contended if contended is not None else Contended(self._bucket)
        self._now_ms = now_ms
        self._limited: frozenset[str] = frozenset()
        self._looked_ms: int | None = None
        self._looking = asyncio.Lock()

    async def is_limited(self, task_type: str) -> bool:
        """As far as this process knows. Asked anew once in a while, by one for all."""
        if not self._is_fresh():
            async with self._looking:
                if not self._is_fresh():
                    self._limited = frozenset(_task_type(key) for key in await self._bucket.keys(_LIMIT))
                    self._looked_ms = self._now_ms()
        return task_type in self._limited

    def _is_fresh(self) -> bool:
        return self._looked_ms is not None and 0 <= self._now_ms() - self._looked_ms < FRESH_MS

    async def reserve(self, task_type: str, count: int = 1) -> Sequence[Slot] | None:
        """When each of so many tasks may go out, or has to ask again; None: no limit."""
        if not await self.is_limited(task_type):
            return None

        def decide(before: bytes | None) -> tuple[bytes | None, Sequence[Slot] | None]:
            if before is None:
                return None, None
            limit, tat_ns = _decode(before)
            after, slots = reserve(limit, tat_ns, self._now_ms(), count)
            return _encode(limit, after) if any(slot.taken for slot in slots) else before, slots

        return await self._contended.change(_key(task_type), decide)

    async def set(self, task_type: str, limit: Limit) -> None:
        """Counts everywhere within about a second."""

        def decide(before: bytes | None) -> tuple[bytes | None, None]:
            unchanged = before is not None and _decode(before)[0] == limit
            return before if unchanged else _encode(limit, 0), None

        await self._contended.change(_key(task_type), decide)
        self._looked_ms = None

    async def clear(self, task_type: str) -> None:
        def decide(before: bytes | None) -> tuple[bytes | None, bool]:
            return None, before is not None

        if not await self._contended.change(_key(task_type), decide):
            raise NotFoundError("this task type has no limit")

    async def list(self) -> Sequence[tuple[str, Limit]]:
        """By task type."""
        return sorted((_task_type(entry.key), _decode(entry.value)[0]) for entry in await self._bucket.entries(_LIMIT))


def _key(task_type: str) -> str:
    return f"{_LIMIT}.{names.task_type(task_type).replace('.', _DOT)}"


def _task_type(key: str) -> str:
    return key.removeprefix(f"{_LIMIT}.").replace(_DOT, ".")


def _encode(limit: Limit, tat_ns: int) -> bytes:
    """With something of its own: two who reserve at the same moment would write the same, and one of them, whose answer
    is lost, would take the other's for its own."""
    said = {"count": limit.count, "per_ms": limit.per_ms, "burst": limit.burst, "tat_ns": tat_ns}
    return json.dumps({**said, "written": secrets.token_hex(8)}).encode()


def _decode(data: bytes) -> tuple[Limit, int]:
    said = json.loads(data)
    return Limit(said["count"], said["per_ms"], said["burst"]), said["tat_ns"]
