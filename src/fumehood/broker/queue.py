"""The task queue: one work-queue stream, one durable consumer for each task type.

A pull has two phases. First every type is asked, at once, for what it has *now*, by shares, so that a busy type cannot
starve a quiet one and nothing is fetched that the caller has no room for: what is handed back counts as a delivery, and
deliveries are how poison is found. Only when all are empty, one message of each is waited for; the first to come ends
the wait. Where another question is still open, interest is withdrawn before the answer goes out (the server then keeps
what nobody listens for), and what had come on top is given back. The same happens when the caller is cancelled.

A question is never carried over to another connection: a worker asks from an account of its own, and the server goes on
answering the old question over a route that no longer exists as long as something listens under its inbox. The task
would be gone until the queue's patience ends (`test_a_task_reaches_a_worker_that_has_reconnected`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import secrets
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from fumehood.broker import names
from fumehood.broker.connection import ApiRefusalError, Connection, header, nanoseconds, status, user_headers
from fumehood.broker.ports import Published, TaskDelivery
from fumehood.broker.pulling import EXPIRES, HEARTBEAT, PATIENCE, Pulled, pulled
from fumehood.broker.reading import direct_all
from fumehood.broker.runs import MESSAGE_ID, forget
from fumehood.broker.sealed import ID
from fumehood.broker.topology import TASK_STREAM, Shape, ensure_consumer, task_consumer
from fumehood.errors import BrokerDeniedError, BrokerError, BrokerUnavailableError, InvalidRequestError

_log = logging.getLogger(__name__)
_TOKEN = re.compile(
    rf"\$JS\.ACK\.(?:[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.)?{TASK_STREAM}\.[^.*>\s]+(?:\.\d+){{5}}(?:\.\w+)?"
)
_NOT_UNIQUE = 10100
"""Another consumer has this filter already."""
_HEARTBEAT = 100
_LOST = (409, 503)
"""Consumer gone or too many questions, nobody there: ask again, after a pause."""
_RETRY = 0.25
"""Seconds between two looks for a consumer that is not there yet."""
_LOOK = 5.0
"""Seconds between two looks at all consumers."""
_TOO_LATE = 0.05
"""Seconds before a poll ends in which nothing is asked any more: the answer would come when nobody waits for it."""
_NOW = 1.0
"""Seconds that an answer to "what do you have now" may take before it is given up."""


class NatsTaskQueue:
    """With `makes_consumers` off (workers), a type that nobody published to yet is simply empty."""

    def __init__(self, connection: Connection, shape: Shape, *, makes_consumers: bool = True) -> None:
        self._connection = connection
        self._shape = shape
        self._makes_consumers = makes_consumers
        self._consumers: dict[str, str] = {}
        self._turn = secrets.randbelow(1024)
        self._look_again = 0.0
        self.counts: Counter[str] = Counter()
        """`surplus`: messages that were given back because two types had one at the same moment."""

    # --- writing ---------------------------------------------------------------------------------------

    async def publish(
        self, task_type: str, run_id: str, message_id: str, data: bytes, *, headers: Mapping[str, str] | None = None
    ) -> Published:
        names.message_id(message_id)
        subject = names.task_subject(task_type, run_id)
        await self._prepare(task_type)
        sent = {**user_headers(headers), ID: message_id, MESSAGE_ID: f"{task_type}/{run_id}/{message_id}"}
        stored = await self._connection.retrying(lambda: self._connection.store(subject, data, sent))
        return Published(stored.seq, stored.duplicate)

    async def _prepare(self, kind: str) -> None:
        """Without a consumer nobody could take it. Where none can be made it is stored all the same, and waits."""
        try:
            await self.consumer(kind)
        except ApiRefusalError as refusal:
            self.counts["no_consumer"] += 1
            _log.warning("no_consumer", extra={"task_type": kind, "code": refusal.number})

    async def consumer(self, kind: str) -> str:
        """The name of the type's consumer, made if it is missing; one of somebody else's making is used."""
        if kind not in self._consumers:
            config = task_consumer(kind, self._shape.timing)
            if self._makes_consumers:
                self._consumers[kind] = await self._connection.retrying(lambda: self._ensure(config))
            else:
                self._consumers[kind] = config["name"]
        return self._consumers[kind]

    async def _ensure(self, config: Mapping[str, Any]) -> str:
        try:
            await ensure_consumer(self._connection, TASK_STREAM, config)
            return str(config["name"])
        except ApiRefusalError as refusal:
            if refusal.number != _NOT_UNIQUE:
                raise
        return await self._settle(config)

    async def _settle(self, config: Mapping[str, Any]) -> str:
        """Others have made consumers where ours should be. One with our filter is used. One that overlaps it (for a
        single run, or for all types) would keep the whole type from everybody, for ever, and has to go."""
        wanted = config["filter_subject"]
        for found in await self._list():
            filters = _filters(found)
            if filters == [wanted]:
                return str(found["name"])
            if any(_overlap(one, wanted) for one in filters):
                self.counts["removed_consumer"] += 1
                _log.warning("removed_consumer", extra={"consumer": found["name"], "filter": filters[0]})
                await self._connection.api(f"CONSUMER.DELETE.{TASK_STREAM}.{found['name']}")
        await ensure_consumer(self._connection, TASK_STREAM, config)
        return str(config["name"])

    async def _known(self, kinds: Sequence[str]) -> dict[str, str]:
        """Whom to ask for each type. Taking makes no consumer: a type that nobody published to yet has nothing, and
        whoever asks for invented ones must not fill the broker with them."""
        if self._makes_consumers and any(kind not in self._consumers for kind in kinds):
            await self._look_around()
        return {kind: self._consumers.get(kind) or names.consumer_of(kind) for kind in kinds}

    async def _look_around(self) -> None:
        """Which consumers there are, by what they filter: somebody else's may have any name. Not all the time."""
        now = time.monotonic()
        if now < self._look_again:
            return
        self._look_again = now + _LOOK
        for found in await self._connection.retrying(self._list):
            for kind in _kinds(found):
                self._consumers.setdefault(kind, str(found["name"]))

    async def _list(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while True:
            page = await self._connection.api(f"CONSUMER.LIST.{TASK_STREAM}", {"offset": len(found)})
            found += page["consumers"] or []
            if not page["consumers"] or len(found) >= page["total"]:
                return found

    async def pending(self, run_id: str, task_types: Collection[str]) -> set[str]:
        found: set[str] = set()
        for kind in sorted(task_types):
            records = await direct_all(self._connection, TASK_STREAM, names.task_subject(kind, run_id))
            found |= {record.headers.get(ID, "") for record in records}
        return found

    async def waiting(self) -> Mapping[str, int]:
        listed = await self._connection.retrying(self._list)
        found = {kind: int(one["num_pending"]) for one in listed for kind in _kinds(one)}
        return {kind: count for kind, count in found.items() if count}

    async def purge_run(self, run_id: str, task_types: Collection[str] | None = None) -> None:
        run_id = names.token(run_id, "a run id")
        if task_types is not None:
            filters = {names.task_filter(kind) for kind in task_types}
        else:
            listed = await self._connection.retrying(self._list)
            filters = {names.task_filter(kind) for kind in self._consumers}
            filters |= {str(one["config"].get("filter_subject", "")) for one in listed}
        for subject in sorted(filters):
            if subject.endswith(".*"):
                await forget(self._connection, TASK_STREAM, f"{subject[:-1]}{run_id}")

    # --- answering -------------------------------------------------------------------------------------

    async def ack(self, token: str) -> None:
        reply = _reply(token)
        await self._connection.retrying(lambda: self._connection.request(reply, b"+ACK"))

    async def extend(self, token: str) -> None:
        await self._connection.publish(_reply(token), b"+WPI")

    async def give_back(self, token: str, delay: float = 0.0) -> None:
        body = b'-NAK {"delay": %d}' % nanoseconds(delay) if delay > 0 else b"-NAK"
        await self._connection.publish(_reply(token), body)

    # --- taking ----------------------------------------------------------------------------------------

    async def pull(self, task_types: Sequence[str], *, max_tasks: int, timeout: float) -> list[TaskDelivery]:
        kinds = list(dict.fromkeys(names.task_type(kind) for kind in task_types))
        if not kinds or max_tasks < 1:
            raise InvalidRequestError("a pull names at least one task type and asks for at least one task")
        until = time.monotonic() + timeout
        while True:
            found = await self._pull_once(kinds, max_tasks, max(0.0, until - time.monotonic()))
            if found or (found is not None and self._connection.connected):
                return found
            if not await self._connection.connected_within(max(0.0, until - time.monotonic())):
                raise BrokerUnavailableError("the broker does not answer")  # which is not the same as nothing to do

    async def _pull_once(self, kinds: list[str], max_tasks: int, timeout: float) -> list[TaskDelivery] | None:
        """None if the connection broke before anything came."""
        consumers = await self._known(kinds)
        self._turn += 1
        start = self._turn % len(kinds)
        poll = _Poll(self._connection, consumers, (*kinds[start:], *kinds[:start]))
        try:
            await poll.open()
            found = await poll.run(max_tasks, timeout)
            for kind in poll.missing:
                self._consumers.pop(kind, None)
        except BaseException:
            await asyncio.shield(poll.give_up())
            raise
        surplus = found[max_tasks:]
        self.counts["surplus"] += len(surplus)
        try:
            for one in surplus:
                await self.give_back(one.message.reply)
        except BaseException:
            await asyncio.shield(poll.give_up())
            raise
        return None if poll.interrupted and not found else [_delivery(one) for one in found[:max_tasks]]


def _reply(token: str) -> str:
    """A token comes back from leases and clients: it must be an ack of a task and nothing else."""
    if _TOKEN.fullmatch(token) is None:
        raise InvalidRequestError("not a token of a task's delivery")
    return token


def _delivery(one: Pulled) -> TaskDelivery:
    message = one.message
    kind, _, run_id = message.subject.removeprefix("task.").rpartition(".")
    message_id = header(message, ID) or header(message, MESSAGE_ID) or ""
    headers = user_headers(message.headers)
    return TaskDelivery(kind, run_id, message_id, message.data, headers, message.reply, one.deliveries, one.seq)


def _filters(consumer: Mapping[str, Any]) -> list[str]:
    config = consumer["config"]
    return list(config.get("filter_subjects") or [config.get("filter_subject") or ">"])


def _kinds(consumer: Mapping[str, Any]) -> list[str]:
    """The types that it serves whole."""
    kinds = [(one, one.removeprefix("task.").removesuffix(".*")) for one in _filters(consumer)]
    return [kind for one, kind in kinds if one == f"task.{kind}.*"]


def _overlap(one: str, other: str) -> bool:
    """Whether some subject fits both."""
    left, right = one.split("."), other.split(".")
    for a, b in zip(left, right, strict=False):
        if ">" in (a, b):
            return True
        if a != b and "*" not in (a, b):
            return False
    return len(left) == len(right)


def _next_subject(consumer: str) -> str:
    return f"$JS.API.CONSUMER.MSG.NEXT.{TASK_STREAM}.{consumer}"


class _Poll:
    """One pull: its own inbox, whose interest ends with it."""

    def __init__(self, connection: Connection, consumers: Mapping[str, str], order: Iterable[str]) -> None:
        self._connection = connection
        self._consumers = consumers
        self._order = tuple(order)
        self._inbox = connection.new_inbox()
        self._subscription: Subscription | None = None
        self._closing: asyncio.Task[None] | None = None
        self._found: list[Pulled] = []
        self._ended: set[str] = set()
        """Questions that the server has answered to the end, by number."""
        self._got: Counter[str] = Counter()
        """Messages of each type."""
        self._asked: dict[str, tuple[str, int]] = {}
        """Each question's type, and how many messages of it there are when the question is answered."""
        self._stale: set[str] = set()
        """Questions that will not be answered any more, as far as we can tell."""
        self._news = asyncio.Event()
        self._again = False
        self.interrupted = False
        """The connection broke; what was asked is not answered any more."""
        self._denied: str | None = None
        """A type that this connection may not take: to its caller it would look like one that never has any tasks."""
        self.missing: set[str] = set()
        """Types whose consumer did not answer."""

    async def open(self) -> None:
        self._subscription = await self._connection.subscribe(f"{self._inbox}.*", self._receive, lost=self._interrupt)

    async def run(self, max_tasks: int, timeout: float) -> list[Pulled]:
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        with contextlib.ExitStack() as stack:
            for kind, consumer in self._consumers.items():
                stack.enter_context(self._connection.on_denial(_next_subject(consumer), partial(self._deny, kind)))
            await self._sweep(max_tasks)
            while not self._has_ended() and (left := until - loop.time()) > 0:
                await self._wait(left)
        if self._denied is not None and not self._found and not self.interrupted:
            raise BrokerDeniedError(f"this connection may not take tasks of type {self._denied}")
        await self._close()
        return self._found

    async def give_up(self) -> None:
        """Hand back everything."""
        await self._close()
        for one in self._found:
            with contextlib.suppress(BrokerError):  # the queue offers it again by itself, later
                await self._connection.publish(one.message.reply, b"-NAK")

    async def _close(self) -> None:
        """Withdraw interest, once. A caller that is cancelled meanwhile can wait for the same end again."""
        if self._closing is None and self._subscription is not None:
            drain = any(map(self._is_open, self._asked))
            self._closing = asyncio.create_task(self._connection.unsubscribe(self._subscription, drain=drain))
        if self._closing is not None:
            await asyncio.shield(self._closing)

    def _deny(self, kind: str) -> None:
        """The server does not answer questions of this type. Other types are taken all the same."""
        self._denied = kind
        self._ended.update(number for number, (asked, _) in self._asked.items() if asked == kind)
        self._news.set()

    def _interrupt(self) -> None:
        self.interrupted = True
        self._news.set()

    def _receive(self, message: Msg) -> None:
        code = status(message)
        if code and code != _HEARTBEAT:
            number = message.subject.rpartition(".")[2]
            self._ended.add(number)
            if code == 503:
                self.missing.add(self._asked[number][0])
            self._again = self._again or code in _LOST
        elif not code and (one := pulled(message)) is not None:
            self._found.append(one)
            self._got[message.subject.removeprefix("task.").rpartition(".")[0]] += 1
        self._news.set()

    async def _ask(self, kind: str, question: Mapping[str, Any]) -> str:
        number = str(len(self._asked) + 1)
        self._asked[number] = (kind, self._got[kind] + question["batch"])
        subject = _next_subject(self._consumers[kind])
        await self._connection.publish(subject, json.dumps(question).encode(), reply=f"{self._inbox}.{number}")
        return number

    def _is_open(self, number: str) -> bool:
        kind, answered = self._asked[number]
        return number not in self._ended and self._got[kind] < answered

    async def _sweep(self, room: int) -> None:
        """Take what is there now, by shares, until there is no room or nothing more."""
        line = deque(self._order)
        while room > 0 and line and not self.interrupted:
            asked = [line.popleft() for _ in range(min(room, len(line)))]
            share = room // len(asked)
            before = Counter(self._got)
            await self._ask_now(asked, share)
            room -= sum((self._got - before).values())
            line.extend(kind for kind in asked if self._got[kind] - before[kind] >= share)

    async def _ask_now(self, kinds: Sequence[str], share: int) -> None:
        question = {"batch": share, "no_wait": True}
        numbers = [await self._ask(kind, question) for kind in kinds]
        try:
            async with asyncio.timeout(_NOW):
                while any(map(self._is_open, numbers)) and not self.interrupted:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            if not self._connection.connected:
                raise BrokerUnavailableError("the broker does not answer") from None

    async def _wait(self, seconds: float) -> None:
        """Wait for the first message of any type; asks again after silence, a reconnection or a refusal. Only where no
        question is open: the answer to one that is asked in the moment of leaving goes to nobody, and its task is gone
        until the queue's patience ends (a worker that also serves a type without tasks lost every fifth one so)."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        if self._again:
            self._again = False
            await self._news_within(min(seconds, _RETRY))
        if self._has_ended():
            return
        if (left := until - loop.time()) < _TOO_LATE:
            await self._news_within(left)
            return
        await self._ask_all(until - loop.time())
        while not self._has_ended() and not self._again and self._unasked() == [] and (left := until - loop.time()) > 0:
            if not await self._news_within(min(left, PATIENCE)):
                self._stale.update(self._asked)  # silence: whoever was asked may not be there any more
                return

    def _has_ended(self) -> bool:
        return bool(self._found) or self.interrupted or self._denied is not None

    def _unasked(self) -> list[str]:
        """Types of which no question is open."""
        asked = {self._asked[number][0] for number in self._asked.keys() - self._stale if self._is_open(number)}
        return [kind for kind in self._order if kind not in asked]

    async def _news_within(self, seconds: float) -> bool:
        self._news.clear()
        if self._found or self.interrupted:
            return True
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    async def _ask_all(self, seconds: float) -> None:
        seconds = min(max(seconds, 0.01), EXPIRES)
        heartbeat = {"idle_heartbeat": nanoseconds(HEARTBEAT)} if seconds > 2 * HEARTBEAT else {}
        question = {"batch": 1, "expires": nanoseconds(seconds), **heartbeat}
        for kind in self._unasked():
            await self._ask(kind, question)
