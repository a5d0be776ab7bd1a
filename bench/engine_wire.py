"""The quickest honest way to speak JetStream from Python: the plain client, one inbox for all answers, nothing else.

This is what the engine is measured against, so it must not be slow: no task for each request, no timeout object for
each request (one sweep a second fails what is overdue), no parsing beyond what is needed. It is also what the worker of
both sides is made of. `fumehood.broker` is not used here, so that whatever it costs is counted as ours.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

OVERDUE = 2.0
"""Seconds after which a request counts as lost, where servers die."""
PATIENT = 30.0
"""The same where they do not."""
BATCH = 512
EXPIRES = 5.0
HEARTBEAT = 0.5
SILENCE = 3 * HEARTBEAT
_NANO = 1_000_000_000

Handler = Callable[[Msg], Awaitable[None]]


class LostError(Exception):
    """No answer, or one that says no: ask again."""


@dataclass(frozen=True, slots=True)
class Login:
    """Where and as whom; travels to child processes on their standard input."""

    servers: tuple[str, ...]
    user: str
    password: str
    inbox_prefix: str

    @classmethod
    def read(cls, document: dict[str, Any]) -> Login:
        return cls(tuple(document["servers"]), document["user"], document["password"], document["inbox_prefix"])


class Wire:
    def __init__(self, client: Client, overdue: float) -> None:
        self._client = client
        self._overdue = overdue
        self._prefix = client.new_inbox()
        self._numbers = itertools.count()
        self._waiting: dict[str, tuple[asyncio.Future[Msg], float]] = {}
        self._sweeper: asyncio.Task[None] | None = None
        self.reconnected: list[Callable[[], None]] = []
        self.lost = 0
        """Requests that nobody answered."""

    @classmethod
    async def open(cls, login: Login, *, overdue: float = OVERDUE) -> Wire:
        client = Client()
        wire: Wire | None = None

        async def back() -> None:
            for tell in wire.reconnected if wire is not None else ():
                tell()

        await client.connect(
            servers=list(login.servers),
            user=login.user,
            password=login.password,
            inbox_prefix=login.inbox_prefix,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.2,  # type: ignore[arg-type]  # seconds, for the client's own sleep
            connect_timeout=2,
            ping_interval=2,
            max_outstanding_pings=2,
            error_cb=_nothing,
            reconnected_cb=back,
        )
        wire = cls(client, overdue)
        await client.subscribe(f"{wire._prefix}.*", cb=wire._answer)
        wire._sweeper = asyncio.create_task(wire._sweep())
        return wire

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._client.close()

    def new_inbox(self) -> str:
        return self._client.new_inbox()

    async def subscribe(self, subject: str, handler: Handler) -> None:
        await self._client.subscribe(subject, cb=handler, pending_msgs_limit=-1, pending_bytes_limit=-1)

    async def publish(
        self, subject: str, data: bytes, *, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        try:
            await self._client.publish(subject, data, reply=reply, headers=headers)
        except nats.errors.Error as error:
            raise LostError(str(error)) from error

    async def request(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> Msg:
        number = str(next(self._numbers))
        future: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future, time.monotonic()
        await self.publish(subject, data, reply=f"{self._prefix}.{number}", headers=headers)
        return await future

    async def store(self, subject: str, data: bytes, headers: dict[str, str]) -> int:
        """Into a stream; its sequence there."""
        answer = json.loads((await self.request(subject, data, headers)).data or b"{}")
        if "seq" not in answer:
            raise LostError(str(answer))
        seq: int = answer["seq"]
        return seq

    async def persist(self, subject: str, data: bytes, headers: dict[str, str]) -> int:
        """Until it is stored. For what bears an id."""
        while True:
            try:
                return await self.store(subject, data, headers)
            except LostError:
                self.lost += 1
                await asyncio.sleep(0.1)

    async def _answer(self, message: Msg) -> None:
        waiting = self._waiting.pop(message.subject.rpartition(".")[2], None)
        if waiting is not None and not waiting[0].done():
            waiting[0].set_result(message)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            oldest = time.monotonic() - self._overdue
            for number, (future, since) in tuple(self._waiting.items()):
                if since > oldest:
                    break
                del self._waiting[number]
                if not future.done():
                    future.set_exception(LostError("no answer"))


async def _nothing(_error: Exception) -> None:
    """Lost connections show as lost requests."""


class Pull:
    """Messages of one consumer: a question is always open, and the next is put before the last one is used up."""

    def __init__(self, wire: Wire, stream: str, consumer: str, handler: Handler, *, group: str | None = None) -> None:
        self._wire = wire
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._handler = handler
        self._group = group
        self._pin: str | None = None
        self._inbox = wire.new_inbox()
        self._open = 0
        self._heard = 0.0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._wire.subscribe(self._inbox, self._receive)
        self._wire.reconnected.append(self._forget)
        self._task = asyncio.create_task(self._watch())

    def _forget(self) -> None:
        self._open, self._heard = 0, 0.0

    async def _watch(self) -> None:
        """Ask again where the server forgot the question, or said no."""
        while True:
            if self._open <= 0 or time.monotonic() - self._heard > SILENCE:
                self._open = 0
                try:
                    await self._ask()
                except LostError:
                    self._open = 0
            await asyncio.sleep(0.1)

    async def _ask(self) -> None:
        question: dict[str, Any] = {
            "batch": BATCH - self._open,
            "expires": int(EXPIRES * _NANO),
            "idle_heartbeat": int(HEARTBEAT * _NANO),
        }
        if self._group is not None:
            question["group"] = self._group
        if self._pin is not None:
            question["id"] = self._pin
        self._open, self._heard = BATCH, time.monotonic()
        await self._wire.publish(self._subject, json.dumps(question).encode(), reply=self._inbox)

    async def _receive(self, message: Msg) -> None:
        self._heard = time.monotonic()
        headers = message.headers
        if not message.reply:
            self._told(headers or {})
            return
        if headers is not None and "Nats-Pin-Id" in headers:
            self._pin = headers["Nats-Pin-Id"]
        self._open -= 1
        if self._open <= BATCH // 2:
            await self._ask()
        await self._handler(message)

    def _told(self, headers: dict[str, str]) -> None:
        status = headers.get("Status")
        if status == "423":
            self._pin = None
        if status not in (None, "100"):
            unanswered = headers.get("Nats-Pending-Messages")
            self._open = self._open - int(unanswered) if unanswered is not None else 0
