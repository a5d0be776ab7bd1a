"""How many of which kind should lie in stock. The time comes from outside.

Of each kind that was asked for of late as many as came together at its busiest moment: those asked for in the time
that making two takes. What there is room for goes first to one of each kind, the last asked for first, and then to
those that want more.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from fumehood.sandbox.pauses import pause_seconds
from fumehood.sandbox.pool.values import Key, PoolOptions
from fumehood.sandbox.spec import MIB, SandboxSpec

REMEMBERED = 256
"""Requests of one kind, and kinds, that are remembered."""
MAKING_SECONDS = 0.5
"""How long one takes to make, before one was made."""
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0

_log = structlog.get_logger()


@dataclass(slots=True)
class Kind:
    """What is known of one key."""

    spec: SandboxSpec
    """The last one that was asked for: others are made after it."""
    asked: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    making_seconds: float = MAKING_SECONDS
    failures: int = 0
    not_before: float = 0.0
    fit: bool | None = None
    """Whether what is to wait in it does what it is told; `None`: nobody has tried."""

    @property
    def last(self) -> float:
        return self.asked[-1] if self.asked else -math.inf

    def wanted(self, since: float) -> int:
        """However many there is room for."""
        moments = [moment for moment in self.asked if moment >= since]
        most, first = 1, 0
        for number, moment in enumerate(moments, 1):
            while moments[first] <= moment - 2 * self.making_seconds:
                first += 1
            most = max(most, number - first)
        return most


class Demand:
    def __init__(self, options: PoolOptions) -> None:
        self._options = options
        self._kinds: dict[Key, Kind] = {}

    def asked(self, key: Key, spec: SandboxSpec, now: float) -> None:
        if key not in self._kinds and key.idle_bytes > self._options.memory_bytes:
            needed, allowed = key.idle_bytes // MIB, self._options.memory_bytes // MIB
            _log.warning("pool.no_room", image=key.image, needed_mib=needed, allowed_mib=allowed)
        kind = self._kinds.setdefault(key, Kind(spec))
        kind.spec = spec
        kind.asked.append(now)
        if len(self._kinds) > REMEMBERED:
            del self._kinds[min(self._kinds, key=lambda known: self._kinds[known].last)]

    def made(self, key: Key, seconds: float) -> None:
        kind = self._kinds.get(key)
        if kind is not None:
            kind.making_seconds += 0.3 * (seconds - kind.making_seconds)
            kind.failures = 0

    def failed(self, key: Key, now: float) -> None:
        """It is tried again after a while, and after a longer one each time."""
        kind = self._kinds.get(key)
        if kind is not None:
            kind.not_before = now + pause_seconds(kind.failures, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
            kind.failures += 1

    def tried(self, key: Key, *, fit: bool) -> None:
        """What waits in sandboxes of this kind was tried: the image is one and the same, and so it holds for all."""
        kind = self._kinds.get(key)
        if kind is not None:
            kind.fit = fit

    def is_fit(self, key: Key) -> bool:
        kind = self._kinds.get(key)
        return kind is not None and kind.fit is True

    def spec_of(self, key: Key) -> SandboxSpec | None:
        kind = self._kinds.get(key)
        return None if kind is None else kind.spec

    def may_be_made(self, key: Key, now: float) -> bool:
        kind = self._kinds.get(key)
        return kind is not None and kind.fit is not False and now >= kind.not_before

    def targets(self, now: float) -> dict[Key, int]:
        """How many of each kind should lie in stock. Kinds that nobody asks for any more are forgotten."""
        since = now - self._options.keep_seconds
        for key in [key for key, kind in self._kinds.items() if kind.last < since]:
            del self._kinds[key]
        by_need = sorted(self._kinds, key=lambda key: self._kinds[key].last, reverse=True)
        wanted = {key: kind.wanted(since) for key in by_need if (kind := self._kinds[key]).fit is not False}
        return _shared_out(wanted, self._options)


def _shared_out(wanted: Mapping[Key, int], options: PoolOptions) -> dict[Key, int]:
    """Round by round, so that no kind has a second one before each that fits has its first."""
    found = dict.fromkeys(wanted, 0)
    left, memory = options.most, options.memory_bytes
    growing = list(wanted)
    while growing and left > 0:
        for key in list(growing):
            if left > 0 and key.idle_bytes <= memory and found[key] < wanted[key]:
                found[key] += 1
                left -= 1
                memory -= key.idle_bytes
            else:
                growing.remove(key)
    return found
