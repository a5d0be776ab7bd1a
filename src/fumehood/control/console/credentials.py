"""Who may dial in as a worker: made here, shown once, and believed until revoked.

Only the public half of a worker's key is stored. A hello counts once in the whole cell: its nonce is written to a
bucket before the worker is let in, and the first to write it wins. A broker that cannot be asked lets nobody in.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fumehood.broker.ports import Broker, Bucket, KvChange, KvEntry
from fumehood.control.callers import Caller
from fumehood.errors import (
    BrokerError,
    BrokerUnavailableError,
    ConflictError,
    InvalidRequestError,
    KeyConflictError,
    NotFoundError,
)
from fumehood.wire.console.console_pb2 import Declaration, Hello
from fumehood.wire.console.hello import (
    KEY_BYTES,
    WINDOW_MS,
    check_shape,
    new_secret,
    public_key_of,
    refusal,
    verify_hello,
)

MOST_WORKERS = 10_000
NONCE_SECONDS = 3 * WINDOW_MS // 1000
"""A hello counts from a minute before to a minute after its time, and the clocks of two servers may differ by another
one: for so long a second use of it must be known."""
ASK_SECONDS = 5.0
"""For one question to the broker while a worker waits at the door."""
LOOK_SECONDS = 5.0
"""Between two looks whether those who were let in still may be: a watch can fall silent without a word."""
SETTLED_SECONDS = 60.0
"""After which whoever was let in is known to the console, or gone."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class WorkerCredential:
    """A worker that may dial in, as it is stored."""

    worker_id: str
    public_key: bytes
    labels: Mapping[str, str]
    """What the operator says of it; the worker itself cannot say otherwise."""
    created_at: int
    by: str

    def encode(self) -> bytes:
        said = {
            "public_key": self.public_key.hex(),
            "labels": dict(self.labels),
            "created_at": self.created_at,
            "by": self.by,
        }
        return json.dumps(said).encode()


@dataclass(slots=True)
class _Admitted:
    revision: int
    """Of the credentials that it was let in with."""
    since: float


class Credentials:
    """`work` must run beside it, so that revocations are noticed."""

    def __init__(self, broker: Broker, *, now_ms: Callable[[], int]) -> None:
        self._known = broker.bucket(Bucket.CREDENTIALS)
        self._nonces = broker.bucket(Bucket.CONSOLE)
        self._now_ms = now_ms
        self._nobody = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
        """A key that nobody has: what an unknown worker's hello is compared with, so that it is the same work."""
        self._admitted: dict[str, _Admitted] = {}
        self._listeners: list[Callable[[str], None]] = []

    # --- made and revoked ----------------------------------------------------------------------------------

    async def create(self, worker_id: str, labels: Mapping[str, str], caller: Caller) -> tuple[WorkerCredential, str]:
        """A new worker, and the one time that its secret is seen."""
        if _NAME.fullmatch(worker_id) is None:
            raise InvalidRequestError("a worker's name has 1 to 64 letters, digits, `-` and `_`")
        if len(await self._known.keys()) >= MOST_WORKERS:
            raise ConflictError("there are too many workers already: revoke some of them first")
        secret = new_secret()
        made = WorkerCredential(worker_id, public_key_of(worker_id, secret), dict(labels), self._now_ms(), caller.name)
        try:
            await self._known.create(worker_id, made.encode())
        except KeyConflictError:
            raise ConflictError(f"there is a worker {worker_id} already: revoke it first, or choose another") from None
        return made, secret

    async def list(self, *, after: str = "", limit: int) -> tuple[Sequence[WorkerCredential], str | None]:
        """By name, from behind `after`; and where to go on."""
        read = (_credential(entry) for entry in await self._known.entries())
        found = sorted((one for one in read if one and one.worker_id > after), key=lambda one: one.worker_id)
        return found[:limit], found[limit - 1].worker_id if len(found) > limit else None

    async def revoke(self, worker_id: str) -> WorkerCredential:
        """From now on it is not let in; and where it is connected, that ends within moments."""
        found = await self._known.get(worker_id) if _NAME.fullmatch(worker_id) is not None else None
        credential = _credential(found)
        if found is None or credential is None:
            raise NotFoundError("there is no such worker")
        await self._known.delete(worker_id)
        self._tell(worker_id)
        return credential

    # --- let in --------------------------------------------------------------------------------------------

    async def verify(self, hello: Hello) -> Declaration:
        """What a worker declares, with the operator's labels. `UnauthenticatedError` says nothing about why. A worker
        that nobody knows costs what a wrong signature costs."""
        check_shape(hello)
        entry = await self._stored(hello.worker_id)
        known = _credential(entry)
        declaration = verify_hello(hello, known.public_key if known is not None else self._nobody, self._now_ms())
        if known is None or entry is None:
            raise refusal()
        await self._use_up(hello)
        self._admitted[hello.worker_id] = _Admitted(entry.revision, asyncio.get_running_loop().time())
        declaration.labels.update(known.labels)
        return declaration

    async def _stored(self, worker_id: str) -> KvEntry | None:
        try:
            async with asyncio.timeout(ASK_SECONDS):
                return await self._known.get(worker_id)
        except TimeoutError:
            raise BrokerUnavailableError("workers cannot be looked up now") from None

    async def _use_up(self, hello: Hello) -> None:
        """The value is of our own, so that a lost answer never makes somebody else's entry look like this one."""
        key = f"nonce.{hello.worker_id}.{hello.nonce.hex()}"
        try:
            async with asyncio.timeout(ASK_SECONDS):
                await self._nonces.create(key, secrets.token_bytes(16), ttl=NONCE_SECONDS)
        except KeyConflictError:
            raise refusal() from None
        except TimeoutError:
            raise BrokerUnavailableError("hellos cannot be taken now") from None

    # --- thrown out ----------------------------------------------------------------------------------------

    def on_revoked(self, heard: Callable[[str], None]) -> None:
        """`heard` is called with the id of each worker that was let in here and may not be in any more; more than once
        for some."""
        self._listeners.append(heard)

    async def work(self) -> None:
        """Notice revocations, until cancelled: at once by a watch, and in any case by looking."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow())
            group.create_task(self._look())

    async def _follow(self) -> None:
        while True:
            changes = cast("AsyncGenerator[KvChange, None]", self._known.watch())
            try:
                async with aclosing(changes):
                    async for change in changes:
                        self._take(change)
            except BrokerError as error:
                structlog.get_logger().warning("credentials.watch_interrupted", code=error.code)
            await asyncio.sleep(1.0)

    def _take(self, change: KvChange) -> None:
        """The name of a revoked worker may be another one's by now: what is older than that is no news."""
        admitted = self._admitted.get(change.key)
        if admitted is not None and (change.revision > admitted.revision or not change.revision):
            self._tell(change.key)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            with contextlib.suppress(BrokerError):  # nothing is known: those who are in stay in
                await self.look()

    async def look(self) -> None:
        """Compare those who were let in with what is stored. The list may lag behind; a single question does not."""
        listed = {entry.key: entry.revision for entry in await self._known.entries()} if self._admitted else {}
        for worker_id, admitted in tuple(self._admitted.items()):
            if listed.get(worker_id) == admitted.revision:
                continue
            entry = await self._stored(worker_id)
            if (entry is None or entry.revision != admitted.revision) and self._admitted.get(worker_id) is admitted:
                self._tell(worker_id)
                self._forget(worker_id, admitted)

    def _forget(self, worker_id: str, admitted: _Admitted) -> None:
        if admitted.since < asyncio.get_running_loop().time() - SETTLED_SECONDS:
            del self._admitted[worker_id]

    def _tell(self, worker_id: str) -> None:
        for heard in self._listeners:
            heard(worker_id)


def _credential(entry: KvEntry | None) -> WorkerCredential | None:
    """What cannot be read lets nobody in."""
    if entry is None:
        return None
    try:
        said = json.loads(entry.value)
        key = bytes.fromhex(said["public_key"])
        labels = {str(name): str(value) for name, value in said["labels"].items()}
        found = WorkerCredential(entry.key, key, labels, int(said["created_at"]), str(said["by"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if len(key) == KEY_BYTES else None
