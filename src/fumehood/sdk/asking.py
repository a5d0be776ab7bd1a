"""What both flavours of the transport agree on: how long to wait, what to ask again, how a request is written."""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
"""A server answers within milliseconds, or is in trouble; half a minute outlasts an election of the broker's."""
SILENCE_SECONDS = 60.0
"""A stream says something, if only that it is alive, several times in a minute. One that does not has died unseen."""
TIMEOUT = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
STREAM_TIMEOUT = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS, read=SILENCE_SECONDS)
LIMITS = httpx.Limits(max_connections=1000, max_keepalive_connections=20)
"""Whoever follows many commands has as many connections."""

TRIES = 4
"""Of a question."""
BACK_OFF_SECONDS = 1.0
"""Between two tries, where the server does not say how long."""
LONGEST_WAIT_SECONDS = 10.0
"""Between two tries of a question: what the server asks for, but no longer than somebody waits for an answer."""
GIVE_UP_SECONDS = 300.0
"""Of somebody who follows something: a server that is restarted or moved is back by then."""
SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 5.0

IDEMPOTENCY_HEADER = "idempotency-key"
BYTES = "application/octet-stream"
EVENTS = "text/event-stream"

Query = Mapping[str, str | int | bool | list[str] | None]
"""What stands behind the question mark; what is None is left out."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A request, apart from where it goes."""

    method: str
    path: str
    query: Query | None = None
    body: Any = None
    media_type: str | None = None
    idempotency_key: str | None = None
    seconds: float | None = None
    """How long the answer may take, where that is longer than others."""
    last_event_id: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        given = {
            "content-type": self.media_type,
            IDEMPOTENCY_HEADER: self.idempotency_key,
            "last-event-id": self.last_event_id,
        }
        return {name: value for name, value in given.items() if value is not None}

    @property
    def params(self) -> dict[str, str | int | bool | list[str]]:
        return {name: value for name, value in (self.query or {}).items() if value is not None}

    @property
    def timeout(self) -> httpx.Timeout:
        return TIMEOUT if self.seconds is None else httpx.Timeout(self.seconds, connect=CONNECT_SECONDS)


def is_over(until: float | None) -> bool:
    return until is not None and time.monotonic() >= until


def left(until: float | None) -> float:
    """Seconds that may pass without a word: no more than a stream is ever silent, and none below those that a system
    can measure."""
    return SILENCE_SECONDS if until is None else max(0.001, min(SILENCE_SECONDS, until - time.monotonic()))


def part(name: str) -> str:
    """A name as a part of a path, whatever it is. Dots alone would be taken for folders on the way."""
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


def trust(url: str) -> ssl.SSLContext | bool:
    """Certificates are checked. Where none will come nobody is trusted, since reading whom to trust takes longer than
    most calls."""
    return True if url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@dataclass(slots=True)
class Patience:
    """With a server that does not answer whoever follows something. Pure: `next_pause` says how long to sleep."""

    seconds: float = GIVE_UP_SECONDS
    _since: float | None = None
    _pause: float = SHORTEST_PAUSE_SECONDS

    def went_well(self) -> None:
        self._since, self._pause = None, SHORTEST_PAUSE_SECONDS

    def next_pause(self, now: float, asked: float = 0.0) -> float | None:
        """None: it has lasted too long."""
        self._since = now if self._since is None else self._since
        if now - self._since > self.seconds:
            return None
        pause, self._pause = self._pause, min(self._pause * 2, LONGEST_PAUSE_SECONDS)
        return min(max(pause, asked), LONGEST_PAUSE_SECONDS)
