"""Reading a stream by subject.

Two ways, with different promises. *Direct* reads are quick and come in batches, but any replica may answer, and one
that lags does not know the newest messages. Reads from the *leader* come one by one and are right. `read_all` takes
the batch and asks the leader for its last message at the same time; what the batch lacks is fetched from the leader. A
decider that took a stale "there is no journal" for the truth would throw a worker's answer away, and no
compare-and-set would notice, because it would not write.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from nats.aio.msg import Msg

from fumehood.broker.connection import ApiRefusalError, Connection, deny, header, status
from fumehood.errors import BrokerError, BrokerUnavailableError

BATCH = 512
"""Messages for one question; with `BATCH_BYTES`, what a reader's memory is bounded by."""
BATCH_BYTES = 8 * 1024 * 1024

_NO_MESSAGE = 10037
_FOUND_NOTHING, _END_OF_BATCH = 404, 204


@dataclass(frozen=True, slots=True)
class Record:
    """A stored message."""

    seq: int
    subject: str
    headers: Mapping[str, str]
    data: bytes
    stamp: str
    """When it was stored, RFC 3339."""


async def from_leader(connection: Connection, stream: str, query: Mapping[str, Any]) -> Record | None:
    """One message, as the leader knows it: `{"last_by_subj": …}` or `{"seq": n, "next_by_subj": …}`."""

    async def ask() -> Record | None:
        try:
            answer = await connection.api(f"STREAM.MSG.GET.{stream}", query)
        except ApiRefusalError as refusal:
            if refusal.number == _NO_MESSAGE:
                return None
            raise
        found = answer["message"]
        return Record(
            found["seq"],
            found["subject"],
            _parsed(base64.b64decode(found.get("hdrs", ""))),
            base64.b64decode(found.get("data", "")),
            found.get("time", ""),
        )

    return await connection.retrying(ask)


async def direct_last(connection: Connection, stream: str, subject: str) -> Record | None:
    """The last message of one subject from any replica. The subject is part of the question's own, so that
    permissions can tell what may be read."""

    async def ask() -> Record | None:
        answer = await connection.request(f"$JS.API.DIRECT.GET.{stream}.{subject}")
        return None if status(answer) == _FOUND_NOTHING else _record(answer)

    return await connection.retrying(ask)


async def direct_all(
    connection: Connection, stream: str, subject: str, *, after: int = 0, limit: int | None = None
) -> list[Record]:
    """All messages on a subject (wildcards allowed), or the first `limit` of them, in order, from any replica."""
    found: list[Record] = []
    while True:
        start, left = found[-1].seq if found else after, BATCH if limit is None else limit - len(found)
        batch, more = await direct_page(connection, stream, subject, after=start, limit=left)
        found += batch
        if not more or len(found) == limit:
            return found


async def direct_page(
    connection: Connection, stream: str, subject: str, *, after: int, limit: int = BATCH, max_bytes: int = BATCH_BYTES
) -> tuple[list[Record], bool]:
    """The first messages on a subject past a number, from any replica, and whether there are more. A replica that lags
    knows less of the end and leaves nothing out before it."""
    query = {"seq": after + 1, "next_by_subj": subject, "batch": min(limit, BATCH), "max_bytes": max_bytes}
    return await connection.retrying(lambda: _batch(connection, stream, query))


async def _batch(connection: Connection, stream: str, query: Mapping[str, Any]) -> tuple[list[Record], bool]:
    """One batch, and whether there is more."""
    found: list[Record] = []
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    inbox, end = await connection.listen(_collector(found, ended))
    subject = f"$JS.API.DIRECT.GET.{stream}"
    try:
        with connection.on_denial(subject, partial(deny, ended)):
            await connection.publish(subject, json.dumps(query).encode(), reply=inbox)
            async with asyncio.timeout(connection.options.request_timeout):
                pending = await ended
    except TimeoutError:
        raise BrokerUnavailableError("a read was not answered in time") from None
    finally:
        end()
    return found, pending > 0


def _collector(found: list[Record], ended: asyncio.Future[int]) -> Callable[[Msg], None]:
    def take(message: Msg) -> None:
        code = status(message)
        if not code:
            found.append(_record(message))
        elif not ended.done() and code in (_FOUND_NOTHING, _END_OF_BATCH):
            ended.set_result(int(header(message, "Nats-Num-Pending") or 0) if code == _END_OF_BATCH else 0)
        elif not ended.done():
            ended.set_exception(BrokerUnavailableError(f"a read was refused with status {code}"))

    return take


def _record(message: Msg) -> Record:
    headers = {str(name): value for name, value in (message.headers or {}).items()}
    try:
        return Record(
            int(headers["Nats-Sequence"]),
            headers["Nats-Subject"],
            headers,
            message.data,
            headers.get("Nats-Time-Stamp", ""),
        )
    except (KeyError, ValueError):
        raise BrokerError("the answer to a read is not a message") from None


async def read_all(
    connection: Connection, stream: str, subject: str, *, after: int = 0, limit: int | None = None, replicated: bool
) -> list[Record]:
    """All messages on one subject (no wildcards), or the first `limit` of them, as the leader knows them."""
    if not replicated:
        return await direct_all(connection, stream, subject, after=after, limit=limit)
    found, last = await asyncio.gather(
        direct_all(connection, stream, subject, after=after, limit=limit),
        from_leader(connection, stream, {"last_by_subj": subject}),
    )
    while last is not None and len(found) != limit and (found[-1].seq if found else after) < last.seq:
        query = {"seq": (found[-1].seq if found else after) + 1, "next_by_subj": subject}
        missing = await from_leader(connection, stream, query)
        if missing is None:
            break
        found.append(missing)
    return found


def _parsed(block: bytes) -> dict[str, str]:
    """The header block of a stored message."""
    lines = block.decode("utf-8", "replace").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {name: value.strip() for name, _, value in pairs}
