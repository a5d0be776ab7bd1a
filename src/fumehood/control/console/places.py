"""Where a session is, or is about to be made, and what becomes of that when somebody says something about it. Pure.

A place without a lease is a *claim*: somebody is about to make the session there. Several may hold one, each under a
token of its own; all of them go to the same worker. Only who holds it alone moves it to another one. So a name leads
to one worker at any time, however many make it at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydantic import ConfigDict, Field

from fumehood.wire.base import WireModel
from fumehood.wire.sandbox import NetworkProfile

CLAIM_SECONDS: Final = 300
"""That a claim counts if nothing is heard of it: two minutes of waiting for room, and three to fetch an image and make
a sandbox of it."""
UNSURE_SECONDS: Final = 15
"""That one still counts after an end that may have left a session behind: the worker's next heartbeat says which."""
MOST_CLAIMS: Final = 32
"""That make one session at the same time."""
LONGEST_LEASE_MS: Final = 24 * 3_600_000
NEAR_MS: Final = 1000
"""A lease that moved by less is not written again."""
LONGEST_IMAGE: Final = 1024
LONGEST_TEXT: Final = 256


class Place(WireModel):
    """Where a session is, and what is known of it."""

    model_config = ConfigDict(extra="ignore", strict=False, frozen=True)

    worker: str
    lease_expires_ms: int = 0
    """0: it is about to be made there."""
    created_ms: int = 0
    image: str = ""
    image_digest: str = ""
    network: str = ""
    runtime: str = ""
    claims: dict[str, int] = Field(default_factory=dict)
    """Who is about to make it, by token, and until when (in milliseconds) that counts."""

    @property
    def is_claim(self) -> bool:
        return self.lease_expires_ms == 0


@dataclass(frozen=True, slots=True)
class Found:
    """A place as it is stored."""

    place: Place
    revision: int


@dataclass(frozen=True, slots=True)
class Kept:
    """A session of a tenant, and its place."""

    tenant: str
    session_id: str
    place: Place


def bounded(said: Place, now_ms: int) -> Place:
    """What is believed of what a worker says of a session."""
    return said.model_copy(
        update={
            "lease_expires_ms": min(max(said.lease_expires_ms, 1), now_ms + LONGEST_LEASE_MS),
            "created_ms": min(max(said.created_ms, 0), now_ms),
            "image": said.image[:LONGEST_IMAGE],
            "image_digest": said.image_digest[:LONGEST_TEXT],
            "network": _network(said.network),
            "runtime": said.runtime[:LONGEST_TEXT],
            "claims": {},
        }
    )


def _network(said: str) -> str:
    """One that we do not know keeps nothing out, as far as we know."""
    return said if not said or said in set(NetworkProfile) else NetworkProfile.FULL


def agreed(known: Place | None, said: Place) -> Place:
    """What stands, after a worker has said where a session is. A lease never gets shorter by an old word, and nobody
    takes over a name that leads to another worker."""
    if known is None:
        return said
    if known.worker != said.worker:
        return known
    newest = {name: value for name, value in said.model_dump().items() if value}
    newest["lease_expires_ms"] = max(known.lease_expires_ms, said.lease_expires_ms)
    newest["claims"] = {}
    place = known.model_copy(update=newest)
    is_near = not known.is_claim and place.lease_expires_ms - known.lease_expires_ms < NEAR_MS
    if is_near and place.model_copy(update={"lease_expires_ms": known.lease_expires_ms}) == known:
        return known
    return place


def claimed(known: Place | None, worker: str, token: str, now_ms: int) -> Place | None:
    """What stands, after somebody wants to make a session at a worker: that, or where it is, or where others make it.
    None: too many do."""
    if known is not None and not known.is_claim:
        return known
    claims = known.claims if known is not None else {}
    others = {one: until for one, until in claims.items() if one != token and until > now_ms}
    if len(others) >= MOST_CLAIMS:
        return None
    until = claims.get(token, 0)
    if until < now_ms + CLAIM_SECONDS * 500:
        until = now_ms + CLAIM_SECONDS * 1000
    at = known.worker if known is not None and others else worker
    return Place(worker=at, claims=others | {token: until})


def unclaimed(known: Place, token: str, now_ms: int, *, sure: bool) -> Place | None:
    """What stands, after somebody has given up; None: nothing. `sure`: no session came of it."""
    claims = {one: until for one, until in known.claims.items() if one != token and until > now_ms}
    if not sure:
        claims[token] = min(known.claims[token], now_ms + UNSURE_SECONDS * 1000)
    return known.model_copy(update={"claims": claims}) if claims else None


def is_same(seen: Place, now: Place) -> bool:
    """Whether it is the session that was seen: not one that was made since, under its name."""
    return seen.worker == now.worker and not now.is_claim and 0 < seen.created_ms == now.created_ms
