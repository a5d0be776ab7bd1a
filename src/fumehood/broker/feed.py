"""What deciders wait for: inbox and history of a partition, through two pinned consumers.

Two, because what workers write and what servers write are in different streams (see `topology.py`). The pins may come
to rest with two different deciders; that costs a cold cache now and then, and nothing else.

Messages are fetched ahead, so that a decider finds many of one run at once. What lies here longer than most of the ack
wait is dropped unseen, since the server hands it to somebody else by then.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from functools import partial

from fumehood.broker import names
from fumehood.broker.connection import Connection, header, nanoseconds, user_headers
from fumehood.broker.ports import Delivery, MessageKind
from fumehood.broker.pulling import Pulled, PullLoop
from fumehood.broker.runs import MESSAGE_ID
from fumehood.broker.sealed import ID
from fumehood.broker.topology import DECIDERS, Shape, ensure_consumer, feed_consumer, history_stream, run_stream

AHEAD = 512
"""Messages fetched ahead of each stream of a partition; a sixteenth of what may be unanswered."""
FRESH = 0.7
"""Part of the ack wait after which a message that nobody took is left to its redelivery."""


class _Settlement:
    def __init__(self, connection: Connection, reply: str) -> None:
        self._connection = connection
        self._reply = reply

    async def ack(self) -> None:
        """Not confirmed: a lost one means a redelivery, which the journal knows."""
        await self._connection.publish(self._reply, b"+ACK")

    async def nak(self, delay: float) -> None:
        body = b'-NAK {"delay": %d}' % nanoseconds(delay) if delay > 0 else b"-NAK"
        await self._connection.publish(self._reply, body)

    async def extend(self) -> None:
        await self._connection.publish(self._reply, b"+WPI")


class _Partition:
    """The two loops of one partition."""

    def __init__(self, connection: Connection, shape: Shape, partition: int) -> None:
        self.news = asyncio.Event()
        self.loops: dict[MessageKind, PullLoop] = {}
        streams = {MessageKind.INBOX: run_stream(partition), MessageKind.HISTORY: history_stream(partition)}
        for kind, stream in streams.items():
            config = feed_consumer(f"{kind}.{partition}.*", shape.timing)
            self.loops[kind] = PullLoop(
                connection,
                stream,
                DECIDERS,
                batch=AHEAD,
                news=self.news,
                group=DECIDERS,
                repair=partial(_repair, connection, stream, config),
            )

    async def start(self) -> None:
        for loop in self.loops.values():
            await loop.start()

    async def close(self) -> None:
        for loop in self.loops.values():
            await loop.close()


async def _repair(connection: Connection, stream: str, config: Mapping[str, object]) -> None:
    """Somebody deleted the consumer: make it again; what was not acked comes again."""
    await ensure_consumer(connection, stream, config)


class NatsFeed:
    def __init__(self, connection: Connection, shape: Shape) -> None:
        self._connection = connection
        self._shape = shape
        self._fresh = FRESH * shape.timing.feed_ack_wait
        self._partitions: dict[int, asyncio.Task[_Partition]] = {}
        self.counts: Counter[str] = Counter()
        """`foreign`: messages that nobody of ours can have written, acked away."""

    @property
    def patience(self) -> float:
        return self._shape.timing.feed_ack_wait

    async def pull(self, partition: int, *, max_messages: int, timeout: float) -> list[Delivery]:
        until = asyncio.get_running_loop().time() + timeout
        source = await self._source(partition)
        while True:
            source.news.clear()
            found = await self._take(source, partition, max_messages)
            left = until - asyncio.get_running_loop().time()
            if found or left <= 0:
                return found
            try:
                async with asyncio.timeout(left):
                    await source.news.wait()
            except TimeoutError:
                continue

    async def _source(self, partition: int) -> _Partition:
        if partition not in self._partitions:
            self._partitions[partition] = asyncio.create_task(self._begin(partition))
        task = self._partitions[partition]
        try:
            return await asyncio.shield(task)
        except BaseException:
            if task.done() and not task.cancelled() and task.exception() is not None:
                self._partitions.pop(partition, None)
            raise

    async def _begin(self, partition: int) -> _Partition:
        source = _Partition(self._connection, self._shape, partition)
        await source.start()
        return source

    async def _take(self, source: _Partition, partition: int, count: int) -> list[Delivery]:
        found: list[Delivery] = []
        for kind, loop in source.loops.items():
            for one in loop.take(count - len(found), younger_than=self._fresh):
                delivery = self._delivery(kind, partition, one)
                if delivery is None:
                    self.counts["foreign"] += 1
                    await _Settlement(self._connection, one.message.reply).ack()
                else:
                    found.append(delivery)
        return found

    def _delivery(self, kind: MessageKind, partition: int, one: Pulled) -> Delivery | None:
        """None for what cannot be: a run id that is none, or of another partition; a command without our id."""
        message, run_id = one.message, one.message.subject.rpartition(".")[2]
        if not names.is_token(run_id) or names.partition_of(run_id, self._shape.partitions) != partition:
            return None
        ours = header(message, ID)
        if kind is MessageKind.INBOX and (ours is None or header(message, "Nats-Stream") is not None):
            return None
        message_id = ours or header(message, MESSAGE_ID) or f"history.{one.seq}"
        return Delivery(
            run_id,
            kind,
            message_id,
            one.seq,
            message.data,
            user_headers(message.headers),
            one.deliveries,
            _Settlement(self._connection, message.reply),
        )

    async def release(self, partition: int) -> None:
        task = self._partitions.pop(partition, None)
        if task is not None:
            await (await task).close()

    async def close(self) -> None:
        for partition in tuple(self._partitions):
            await self.release(partition)
