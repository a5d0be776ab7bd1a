"""What an idempotency key means: one atomic create decides, and whoever comes again is told the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fumehood.broker.ports import Broker, Bucket
from fumehood.control.callers import DEFAULT_TENANT
from fumehood.errors import ConflictError, KeyConflictError


@dataclass(frozen=True, slots=True)
class Claim:
    run_id: str
    body: str
    """A hash of what was asked for."""

    def encode(self) -> bytes:
        return json.dumps({"run_id": self.run_id, "body": self.body}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Claim:
        return cls(**json.loads(data))


def claim_key(kind: str, key: str, tenant: str) -> str:
    """A tenant's keys are its own, and those of one kind of thing are not those of another."""
    place = hashlib.sha256(f"{kind}\n{key}".encode()).hexdigest()
    return place if tenant == DEFAULT_TENANT else f"{tenant}.{place}"


async def claimed(
    broker: Broker, place: str, body: str, make: Callable[[], Awaitable[str]], drop: Callable[[str], None]
) -> tuple[str, bool]:
    """The run that the key means, and whether it is a new one. `make` gives the id of a new run; `drop` is told of one
    that somebody else was quicker than. `ConflictError` where the key stands for another request."""
    bucket = broker.bucket(Bucket.IDEMPOTENCY)
    entry = await bucket.get(place)
    if entry is None:
        mine = Claim(await make(), body)
        try:
            await bucket.create(place, mine.encode())
        except KeyConflictError:
            drop(mine.run_id)
            entry = await bucket.get(place)
        else:
            return mine.run_id, True
    if entry is None:
        raise ConflictError("this idempotency key ran out just now; use another one")
    found = Claim.decode(entry.value)
    if found.body != body:
        raise ConflictError("this idempotency key was used before, with another body")
    return found.run_id, False
