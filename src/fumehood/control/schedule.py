"""One schedule: what it starts when, and how far it has come.

`done_until` is the whole of its progress: every time up to it was fired, or left out on purpose. What is due follows
from it, from the expression and from the clock, so that any server comes to the same answer; and the id of the run
follows from the time that it is for, so that two servers that fire the same time start one run.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fumehood.broker.ports import KvEntry
from fumehood.engine import cron
from fumehood.engine.zones import zone
from fumehood.wire import blobref
from fumehood.wire.schedule_api import CAUGHT_UP, CatchUp

MISSED_AFTER_MS = 60_000
"""A time that is further back was missed: no server was there. Longer than a restart of the only server takes, and
than a slow minute of the broker's; shorter than anybody would call an outage."""

_ON_TIME = 2 + MISSED_AFTER_MS // 60_000
"""No more times than that lie within it: there is one a minute, and one where a clock leaps."""


@dataclass(frozen=True, slots=True)
class Fired:
    """The newest time that was fired, and the run."""

    at: int
    run_id: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The newest time that could not be fired, and why."""

    at: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be done about a schedule now."""

    times: tuple[int, ...] = ()
    """To be fired, oldest first."""
    until: int = 0
    """The times up to here were missed, and none of them is to be fired but those above."""
    left_out: bool = False
    """There are such times."""

    def __bool__(self) -> bool:
        return bool(self.times) or self.left_out


_IN_KEY = ("tenant", "name")


@dataclass(frozen=True, slots=True)
class Schedule:
    tenant: str
    name: str
    workflow: str
    cron: str
    timezone: str
    created_at: int
    by: str
    """Who wrote it last."""
    generation: str
    """Another one for each meaning of the name, so that no time of a new meaning is taken for one of the old."""
    done_until: int
    input: Any = None
    labels: Mapping[str, str] = field(default_factory=dict)
    catch_up: CatchUp = CatchUp.NONE
    catch_up_limit: int = CAUGHT_UP
    paused: bool = False
    last: Fired | None = None
    last_error: Refused | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    """What a newer version wrote into it: ours to keep."""

    @property
    def key(self) -> str:
        return f"{self.tenant}.{self.name}"

    def encode(self) -> bytes:
        said = dataclasses.asdict(self)
        return blobref.encode(said.pop("more") | {name: said[name] for name in said if name not in _IN_KEY})

    @classmethod
    def decode(cls, entry: KvEntry) -> Schedule:
        tenant, _, name = entry.key.rpartition(".")
        document = json.loads(entry.value)
        known = {one.name for one in dataclasses.fields(cls)}
        said = {key: document.pop(key) for key in list(document) if key in known}
        said["catch_up"] = CatchUp(said["catch_up"])
        said["last"] = Fired(**said["last"]) if said.get("last") else None
        said["last_error"] = Refused(**said["last_error"]) if said.get("last_error") else None
        return cls(tenant=tenant, name=name, **said, more=document)

    def next_after(self, instant_ms: int) -> int | None:
        """The first time behind an instant, whether the schedule is paused or not."""
        return cron.parse(self.cron).next_after(instant_ms, zone(self.timezone))

    def wakes_at(self) -> int | None:
        """When there will be something to do about it."""
        return None if self.paused else self.next_after(self.done_until)

    def due(self, now_ms: int) -> Due:
        if self.paused or self.done_until >= now_ms:
            return Due()
        expression, where = cron.parse(self.cron), zone(self.timezone)
        border = max(self.done_until, now_ms - MISSED_AFTER_MS)
        on_time = expression.between(border, now_ms, where, _ON_TIME)
        wanted = {CatchUp.NONE: 0, CatchUp.LAST: 1, CatchUp.ALL: self.catch_up_limit}[self.catch_up]
        missed = expression.newest(self.done_until, border, where, wanted + 1)
        caught_up = missed[-wanted:] if wanted else []
        return Due((*caught_up, *on_time), border, left_out=len(missed) > wanted)

    def run_id(self, at_ms: int) -> str:
        """Sorts by time as all ids of runs do; the generation in it is random, so that nobody can guess one."""
        said = f"{self.tenant}\n{self.name}\n{self.generation}\n{at_ms}"
        return f"run-{at_ms:012x}{hashlib.sha256(said.encode()).hexdigest()[:20]}"
