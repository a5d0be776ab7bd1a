"""The pull loop: messages of one consumer, continuously, with little work for each.

The client's own `fetch` costs several times the CPU, and one that was in flight when a server restarted waits its
whole timeout for nothing. Here one question is always open; the server answers it with messages and, when there are
none, with heartbeats. Two missed heartbeats, a reconnection or an end of the question (all delivered, expired,
refused) put the next one. An older question that is still known to the server may deliver too, so the bound on what
waits here is twice the batch.

What was on its way when a connection broke is gone. A consumer whose messages are acked delivers it again; one without
acks does not, but it numbers its deliveries and tells the last number with each heartbeat: `missed` hears of a gap.

Pinned consumers: the server names one client by a pin that comes with each message and must be repeated in each
question; status 423 says that it is another's turn.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from fumehood.broker.connection import Backoff, Connection, header, nanoseconds, status
from fumehood.broker.topology import MAX_PAYLOAD
from fumehood.errors import BrokerError

EXPIRES = 5.0
"""Seconds that a question stands. Short, so that a server that forgot it costs little, and so does one that goes on
answering a connection that is half open."""
HEARTBEAT = 0.5
"""Seconds between the server's signs of life while nothing comes."""
PATIENCE = 3 * HEARTBEAT
"""Seconds of silence after which the question is put again: two missed heartbeats and some noise."""

BYTES_AHEAD = 32 * 1024 * 1024
"""Bytes that may wait in one buffer: a batch of the largest messages would be a gigabyte.
`test_large_messages_do_not_fill_memory`"""

_HEARTBEAT, _UNPINNED = 100, 423
_MISSING = (404, 409, 503)
"""No messages, consumer gone or too many questions, nobody there: look whether the consumer exists, then again."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """A message of a consumer, and what its reply subject tells."""

    message: Msg
    deliveries: int
    seq: int
    delivery: int
    """Its number among all messages that the consumer sent, to any client."""
    at: float
    """When it came in, on this process's monotonic clock."""


def pulled(message: Msg) -> Pulled | None:
    """None for what is not a delivery. `$JS.ACK.[domain.account.]stream.consumer.count.seq.…`"""
    tokens = message.reply.split(".")
    if len(tokens) < 9 or tokens[:2] != ["$JS", "ACK"]:
        return None
    shift = 0 if len(tokens) == 9 else 2
    try:
        count, seq, delivery = (int(token) for token in tokens[4 + shift : 7 + shift])
    except ValueError:
        return None
    return Pulled(message, count, seq, delivery, time.monotonic())


def _last_delivery(message: Msg) -> int | None:
    """What a heartbeat says that was sent before it."""
    text = header(message, "Nats-Last-Consumer") or ""
    return int(text) if text.isdecimal() else None


def _is_full(message: Msg) -> bool:
    """The question ended because its bytes are used up, not because something is wrong."""
    text = (header(message, "Description") or "").lower()
    return "maxbytes" in text or "batch completed" in text


class PullLoop:
    """Fills a buffer that others empty. `start`, then `take`; `close` gives back what nobody took."""

    def __init__(
        self,
        connection: Connection,
        stream: str,
        consumer: str,
        *,
        batch: int,
        news: asyncio.Event,
        group: str | None = None,
        repair: Callable[[], Awaitable[None]] | None = None,
        missed: Callable[[], None] | None = None,
    ) -> None:
        """`missed` is called when something was sent that never came in; only where nobody else has this consumer."""
        self._connection = connection
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._batch, self._group, self._repair = batch, group, repair
        self._news = news
        self._missed = missed
        self._delivered = 0
        """The number of the last message that came in."""
        self.buffer: deque[Pulled] = deque()
        self.bytes = 0
        self.pin: str | None = None
        self._inbox = connection.new_inbox()
        self._numbers = itertools.count(1)
        self._number = 0
        self._open = 0
        """Messages that the current question may still bring."""
        self._heard = 0.0
        self._wake = asyncio.Event()
        self._missing = False
        self._subscription: Subscription | None = None
        self._task: asyncio.Task[None] | None = None
        self._forget: Callable[[], None] = lambda: None

    async def start(self) -> None:
        self._subscription = await self._connection.subscribe(f"{self._inbox}.*", self._receive)
        self._forget = self._connection.on_reconnect(self._reconnected)
        self._task = asyncio.create_task(self._run())

    async def close(self, *, give_back: bool = True) -> None:
        self._forget()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._subscription is not None:
            await self._connection.unsubscribe(self._subscription)
        while give_back and self.buffer:
            await self._connection.publish(self.buffer.popleft().message.reply, b"-NAK")

    def take(self, count: int, *, younger_than: float) -> list[Pulled]:
        """What waits. What waited too long is not handed out: the server has given it to somebody else by now."""
        oldest = time.monotonic() - younger_than
        found: list[Pulled] = []
        while self.buffer and len(found) < count:
            one = self.buffer.popleft()
            self.bytes -= len(one.message.data)
            if one.at >= oldest:
                found.append(one)
        self._wake.set()
        return found

    # --- inside ----------------------------------------------------------------------------------------

    def _reconnected(self) -> None:
        self._open = 0
        self._wake.set()

    def _receive(self, message: Msg) -> None:
        self._heard = time.monotonic()
        code = status(message)
        if code:
            self._told(message, code)
            return
        one = pulled(message)
        if one is None:
            return
        self._open -= 1
        self._expect(one.delivery - 1)
        self._delivered = one.delivery
        self.pin = header(message, "Nats-Pin-Id") or self.pin
        self.buffer.append(one)
        self.bytes += len(message.data)
        self._news.set()
        if self._open <= 0:
            self._wake.set()

    def _expect(self, delivered: int | None) -> None:
        """The server counts on us having come so far. Messages and heartbeats take one way, in order."""
        if self._missed is not None and delivered is not None and delivered != self._delivered:
            self._missed()

    def _told(self, message: Msg, code: int) -> None:
        if code == _HEARTBEAT:
            self._expect(_last_delivery(message))
            return
        if not message.subject.endswith(f".{self._number}"):
            return
        if code == _UNPINNED:
            self.pin = None
        self._missing = code in _MISSING and not _is_full(message)
        self._open = 0
        self._wake.set()

    async def _run(self) -> None:
        backoff = Backoff()
        while True:
            try:
                await self._turn()
                backoff = Backoff() if not self._missing else backoff
                if self._missing:
                    await self._mend()
                    await asyncio.sleep(backoff.step())
            except BrokerError:
                await asyncio.sleep(backoff.step())

    async def _turn(self) -> None:
        """Ask if there is room, then wait until there is a reason to ask again."""
        self._wake.clear()
        room = self._batch - len(self.buffer) if self.bytes + MAX_PAYLOAD <= BYTES_AHEAD else 0
        silent = time.monotonic() - self._heard > PATIENCE
        if room > 0 and (self._open <= 0 or silent):
            await self._ask(room)
        try:
            async with asyncio.timeout(PATIENCE):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _ask(self, room: int) -> None:
        self._number = next(self._numbers)
        self._open, self._heard, self._missing = room, time.monotonic(), False
        question: dict[str, Any] = {
            "batch": room,
            "max_bytes": BYTES_AHEAD - self.bytes,
            "expires": nanoseconds(EXPIRES),
            "idle_heartbeat": nanoseconds(HEARTBEAT),
        }
        if self._group is not None:
            question["group"] = self._group
        if self.pin is not None:
            question["id"] = self.pin
        await self._connection.publish(
            self._subject, json.dumps(question).encode(), reply=f"{self._inbox}.{self._number}"
        )

    async def _mend(self) -> None:
        self._missing = False
        if self._repair is not None:
            await self._repair()
