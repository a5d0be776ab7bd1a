"""Where API keys and what tenants may use are stored, and when what a server remembers of them may be believed.

Every server watches the bucket and decides from memory, so that a revocation counts everywhere as soon as the watch
tells it. A watch can fall silent without a word. So every change is followed by a write of `change`, and a server uses
what it remembers only while it has proof that it remembers enough: within the last second the broker's leader named the
newest `change`, and the watch, which tells changes in order, has told that one. Otherwise each key is read from the
leader; a broker that cannot be asked is an error, never a reason to believe an old memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeVar, cast

import structlog

from fumehood.broker.ports import Broker, Bucket, ChangeKind, KvChange, KvEntry
from fumehood.control.callers import Caller, Scope
from fumehood.errors import BrokerUnavailableError

FRESH_SECONDS = 1.0
"""How long one answer of the leader's proves that the watch is alive: the longest that a revocation could take."""
ASK_SECONDS = 3.0
"""For one question to the leader: shorter than a caller's patience, longer than a healthy broker needs."""
TOLD_SECONDS = 2.0
"""How long a change waits to be told by this server's own watch, so that who made it finds it made."""
PAUSE_SECONDS = 1.0

_KEY, _TENANT, _CHANGE = "key", "tenant", "change"
_SCOPES = frozenset(Scope)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Key:
    """A key as it is stored."""

    id: str
    """Sorts by when it was made."""
    name: str
    tenant: str
    scopes: frozenset[Scope]
    hash: bytes = field(repr=False)
    """SHA-256 of its secret, which has 256 random bits: a plain hash is as good as a slow one."""
    created_at: int
    by: str
    expires_at: int | None = None
    """Milliseconds since the epoch, as `created_at`; None: until it is revoked."""

    @property
    def caller(self) -> Caller:
        return Caller(self.tenant, f"{self.id}/{self.name}", self.scopes, self.expires_at)

    def encode(self) -> bytes:
        said: dict[str, object] = {
            "name": self.name,
            "tenant": self.tenant,
            "scopes": sorted(self.scopes),
            "hash": self.hash.hex(),
            "created_at": self.created_at,
            "by": self.by,
        }
        return json.dumps(said | ({"expires_at": self.expires_at} if self.expires_at is not None else {})).encode()


@dataclass(frozen=True, slots=True)
class Tenant:
    name: str
    max_runs: int | None = None
    """Runs in flight at once; None: as many as there are."""


class KeyStore:
    def __init__(self, broker: Broker, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._bucket = broker.bucket(Bucket.KEYS)
        self._memory = _Memory()
        self._leader = _Leader(self._revision, clock)

    # --- one of them, as quickly as is safe ----------------------------------------------------------------

    async def key(self, key_id: str) -> Key | None:
        return self._memory.keys.get(key_id) if await self._is_fresh() else await self.stored(key_id)

    async def stored(self, key_id: str) -> Key | None:
        """As the leader knows it."""
        return _key(await _within(self._bucket.get(f"{_KEY}.{key_id}")))

    async def tenant(self, name: str) -> Tenant:
        """What a tenant may use; one that nobody said anything about may use everything."""
        if await self._is_fresh():
            return self._memory.tenants.get(name, Tenant(name))
        entry = await _within(self._bucket.get(f"{_TENANT}.{name}"))
        return _tenant(entry) if entry is not None else Tenant(name)

    async def _is_fresh(self) -> bool:
        """Whether this server's memory holds all that had been answered to anybody a second ago."""
        return self._memory.caught_up and await self._leader.newest() <= self._memory.change

    async def _revision(self) -> int:
        entry = await self._bucket.get(_CHANGE)
        return entry.revision if entry is not None else 0

    # --- all of them ---------------------------------------------------------------------------------------

    async def keys(self) -> list[Key]:
        found = (_key(entry) for entry in await self._bucket.entries(_KEY))
        return sorted((key for key in found if key is not None), key=lambda key: key.id)

    async def tenants(self) -> list[Tenant]:
        return [_tenant(entry) for entry in await self._bucket.entries(_TENANT)]

    # --- changes -------------------------------------------------------------------------------------------

    async def add(self, key: Key) -> None:
        await self._bucket.create(f"{_KEY}.{key.id}", key.encode())
        await self.changed()

    async def remove(self, *key_ids: str) -> None:
        for key_id in key_ids:
            await self._bucket.delete(f"{_KEY}.{key_id}")
        await self.changed()

    async def set_tenant(self, tenant: Tenant) -> None:
        await self._bucket.put(f"{_TENANT}.{tenant.name}", json.dumps({"max_runs": tenant.max_runs}).encode())
        await self.changed()

    async def changed(self) -> None:
        """Tell all servers that there is something new, and wait for this one's watch to have told it."""
        revision = await self._bucket.put(_CHANGE, b"{}")
        self._leader.told(revision)
        await self._memory.wait_for(revision)

    # --- watching ------------------------------------------------------------------------------------------

    async def work(self) -> None:
        """Keep what is remembered up to date, until cancelled."""
        log = structlog.get_logger()
        while True:
            self._memory.forget()
            try:
                async with aclosing(cast("AsyncGenerator[KvChange, None]", self._bucket.watch())) as changes:
                    async for change in changes:
                        self._memory.take(change)  # without a pause in it: no check comes between two changes
            except Exception:
                log.exception("keys.watch_failed")
            await asyncio.sleep(PAUSE_SECONDS)


class _Memory:
    """What the watch has told."""

    def __init__(self) -> None:
        self.keys: dict[str, Key] = {}
        self.tenants: dict[str, Tenant] = {}
        self.change = 0
        """The newest revision of `change`: all that lies before it has been told."""
        self.caught_up = False
        self._news = asyncio.Event()

    def forget(self) -> None:
        self.keys, self.tenants, self.change, self.caught_up = {}, {}, 0, False

    def take(self, change: KvChange) -> None:
        kind, _, name = change.key.partition(".")
        entry = KvEntry(change.key, change.value, change.revision) if change.kind is ChangeKind.PUT else None
        if change.kind is ChangeKind.CAUGHT_UP:
            self.caught_up = True
        elif kind == _CHANGE:
            self.change = change.revision
        elif kind == _KEY:
            _put(self.keys, name, _key(entry))
        elif kind == _TENANT:
            _put(self.tenants, name, _tenant(entry) if entry is not None else None)
        self._news.set()

    async def wait_for(self, revision: int) -> None:
        """Until that is told, or has not been for so long that nobody should wait any more."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TOLD_SECONDS):
                while self.caught_up and self.change < revision:
                    self._news.clear()
                    await self._news.wait()


class _Leader:
    """The newest `change` as the broker's leader knows it, asked once for all who want to know within a second."""

    def __init__(self, ask: Callable[[], Awaitable[int]], clock: Callable[[], float]) -> None:
        self._ask_leader = ask
        self._clock = clock
        self._asking: asyncio.Task[int] | None = None
        self._last: tuple[float, int] | None = None

    async def newest(self) -> int:
        if self._last is not None and self._clock() - self._last[0] < FRESH_SECONDS:
            return self._last[1]
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
            self._asking.add_done_callback(_looked_at)
        return await asyncio.shield(self._asking)

    async def _ask(self) -> int:
        began = self._clock()
        try:
            revision = await _within(self._ask_leader())
            self._last = (began, max(revision, self._last[1] if self._last is not None else 0))
            return self._last[1]
        finally:
            self._asking = None

    def told(self, revision: int) -> None:
        """It is at least this one."""
        began, known = self._last if self._last is not None else (-FRESH_SECONDS, 0)
        self._last = (began, max(known, revision))


def _looked_at(task: asyncio.Task[int]) -> None:
    """An error that nobody waits for any more is no news: the next one who asks meets it."""
    if not task.cancelled():
        task.exception()


async def _within(question: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(ASK_SECONDS):
            return await question
    except TimeoutError:
        raise BrokerUnavailableError("keys cannot be looked up now") from None


# --- what is stored ----------------------------------------------------------------------------------------


def _key(entry: KvEntry | None) -> Key | None:
    """What cannot be read is no key; a scope that this version does not know allows nothing."""
    if entry is None:
        return None
    try:
        said = json.loads(entry.value)
        return Key(
            id=entry.key.removeprefix(f"{_KEY}."),
            name=str(said["name"]),
            tenant=str(said["tenant"]),
            scopes=frozenset(Scope(scope) for scope in said["scopes"] if scope in _SCOPES),
            hash=bytes.fromhex(said["hash"]),
            created_at=int(said["created_at"]),
            by=str(said["by"]),
            expires_at=int(said["expires_at"]) if said.get("expires_at") is not None else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _tenant(entry: KvEntry) -> Tenant:
    return Tenant(entry.key.removeprefix(f"{_TENANT}."), json.loads(entry.value).get("max_runs"))


def _put(found: dict[str, T], name: str, value: T | None) -> None:
    if value is None:
        found.pop(name, None)
    else:
        found[name] = value
