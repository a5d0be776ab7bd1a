"""Concurrency keys: who holds one, and who waits for it, first come, first served.

A lock is one small value, changed by compare-and-set, and exists only while somebody holds it. It is a projection of
what the runs themselves know: whoever asks twice is answered as the first time, whoever leaves twice has left, and what
a crash left behind is found by `dead` and `sweep`. A run that waits learns of its turn by a message, which whoever made
room sends; where it is lost, the run finds out with `where`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

import structlog

from fumehood.broker.ports import Broker, Bucket
from fumehood.broker.topology import BUCKET_SPECS
from fumehood.control.contended import Contended
from fumehood.errors import BrokerUnavailableError, FumehoodError

MOST_WAITING = 1000
"""In one line: whoever comes later is told that it is full, and the lock stays a value that is quickly rewritten."""
_LARGEST = BUCKET_SPECS[Bucket.LOCKS].max_value
_log = structlog.get_logger()


class Who(NamedTuple):
    """A run, or a part of it."""

    run_id: str
    gate: str = ""
    """Which of the run's gates it asks for; no name: the whole run's."""


class Answer(StrEnum):
    GRANTED = "granted"
    WAITING = "waiting"
    REFUSED = "refused"
    """It is held, and the asker does not want to wait."""
    FULL = "full"
    """It is held, and too many wait already."""


IsOver = Callable[[Who], Awaitable[bool]]
"""Whether this one will surely never need its place again, and nobody will leave it."""
Grant = Callable[[Who], Awaitable[None]]


def name_of(tenant: str, workflow: str, key: str) -> str:
    """What a lock is called: safe as a key, whatever is in the parts, and another one for other parts."""
    return hashlib.sha256(json.dumps([tenant, workflow, key]).encode()).hexdigest()


# --- the lock itself ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lock:
    holders: tuple[Who, ...] = ()
    waiting: tuple[Who, ...] = ()
    limit: int = 1
    """What the last request said, for whoever tidies up and has no definition at hand."""

    def where(self, who: Who) -> Answer | None:
        if who in self.holders:
            return Answer.GRANTED
        return Answer.WAITING if who in self.waiting else None

    def encode(self) -> bytes | None:
        """None where nobody is there: such a lock is not kept."""
        if not self.holders and not self.waiting:
            return None
        said = {"holders": self.holders, "waiting": self.waiting, "limit": self.limit}
        return json.dumps(said, separators=(",", ":")).encode()

    @staticmethod
    def decode(data: bytes | None) -> Lock:
        if data is None:
            return Lock()
        said = json.loads(data)
        return Lock(
            tuple(Who(*one) for one in said["holders"]), tuple(Who(*one) for one in said["waiting"]), said["limit"]
        )


def ask(lock: Lock, who: Who, limit: int, queue: bool) -> tuple[Lock, Answer]:
    """Take a place, or stand in line. The line goes first: where a new definition makes more room than the old one had,
    those who wait have it before whoever comes now."""
    where = lock.where(who)
    if where is Answer.GRANTED:
        return lock, Answer.GRANTED
    line = lock.waiting if where is Answer.WAITING else (*lock.waiting, who)
    if line[0] == who and len(lock.holders) < limit:
        return Lock((*lock.holders, who), line[1:], limit), Answer.GRANTED
    if where is Answer.WAITING:
        return lock, Answer.WAITING
    if not queue:
        return lock, Answer.REFUSED
    if len(line) > MOST_WAITING:
        return lock, Answer.FULL
    return Lock(lock.holders, line, limit), Answer.WAITING


def leave(lock: Lock, who: Who, limit: int) -> tuple[Lock, tuple[Who, ...]]:
    """Give up a place or the wait for one; who holds one in its stead."""
    return without(replace(lock, limit=limit), {who})


def without(lock: Lock, gone: Collection[Who]) -> tuple[Lock, tuple[Who, ...]]:
    """Some leave, and the first in line move up while there is room."""
    holders = tuple(who for who in lock.holders if who not in gone)
    waiting = tuple(who for who in lock.waiting if who not in gone)
    room = max(0, lock.limit - len(holders))
    return Lock(holders + waiting[:room], waiting[room:], lock.limit), waiting[:room]


# --- over a broker -----------------------------------------------------------------------------------------


class Locks:
    """All of them. Every call may be repeated after a `BrokerUnavailableError`, which does not tell what was stored."""

    def __init__(self, broker: Broker, contended: Contended | None = None) -> None:
        self._bucket = broker.bucket(Bucket.LOCKS)
        self._contended = contended if contended is not None else Contended(self._bucket)

    async def ask(self, name: str, who: Who, limit: int, *, queue: bool) -> Answer:
        def decide(before: bytes | None) -> tuple[bytes | None, Answer]:
            lock, answer = ask(Lock.decode(before), who, limit, queue)
            after = lock.encode()
            return (before, Answer.FULL) if after is not None and len(after) > _LARGEST else (after, answer)

        return await self._contended.change(name, decide)

    async def leave(self, name: str, who: Who, limit: int) -> tuple[Who, ...]:
        """Whom to tell that it is their turn. Where somebody had left already, that is everybody who holds the lock:
        those that an earlier call let in may not have been told, because it was cut off."""

        def decide(before: bytes | None) -> tuple[bytes | None, tuple[Who, ...]]:
            lock = Lock.decode(before)
            after, granted = leave(lock, who, limit)
            return after.encode(), granted if lock.where(who) is not None else after.holders

        return await self._contended.change(name, decide)

    async def where(self, name: str, who: Who) -> Answer | None:
        """Whether somebody holds it or waits for it, or neither."""
        return (await self._read(name)).where(who)

    async def dead(self, name: str, is_over: IsOver) -> tuple[Who, ...]:
        """Take out holders that will never leave by themselves; who is let in by that, and is to be told. Of those who
        wait, only the ones that would be let in are looked at, so that this costs little however long the line is."""
        known = await self._read(name)
        gone: set[Who] = set()
        sound: set[Who] = set()
        while unknown := set(without(known, gone)[0].holders) - sound:
            gone |= (over := {who for who in sorted(unknown) if await _is_surely_over(who, is_over)})
            sound |= unknown - over
        return await self._take_out(name, gone)

    async def sweep(self, is_over: IsOver, grant: Grant) -> int:
        """All locks once: take out the dead, in line or not, and tell those that are let in; how many those were."""
        granted = 0
        for name in await self._bucket.keys():
            try:
                known = await self._read(name)
                gone = {who for who in (*known.holders, *known.waiting) if await _is_surely_over(who, is_over)}
                for who in await self._take_out(name, gone):
                    await grant(who)
                    granted += 1
            except FumehoodError as error:  # one lock must not keep the sweep from all others
                _log.warning("locks.sweep_failed", lock=name, code=error.code, detail=error.detail)
            except Exception:  # noqa: BLE001 - nor must one that cannot be read
                _log.exception("locks.sweep_failed", lock=name)
        return granted

    async def _take_out(self, name: str, gone: Collection[Who]) -> tuple[Who, ...]:
        def decide(before: bytes | None) -> tuple[bytes | None, tuple[Who, ...]]:
            lock, granted = without(Lock.decode(before), gone)
            return lock.encode(), granted

        return await self._contended.change(name, decide) if gone else ()

    async def _read(self, name: str) -> Lock:
        entry = await self._bucket.get(name)
        return Lock.decode(entry.value if entry is not None else None)


async def _is_surely_over(who: Who, is_over: IsOver) -> bool:
    """One that cannot be read (a newer version's, or damaged) keeps its place, and keeps nobody from looking at the
    others."""
    try:
        return await is_over(who)
    except BrokerUnavailableError:
        raise
    except Exception:  # noqa: BLE001 - see above
        _log.warning("locks.unreadable", run_id=who.run_id, exc_info=True)
        return False
