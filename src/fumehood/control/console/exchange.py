"""Between servers: calls to whoever holds a worker's stream, and their answers.

Messages go at most once. Whoever waits for an answer says the call again until it was heard (`Asked.taken`), and who
holds the stream sends a command out once, however often it is told.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import structlog
from google.protobuf.message import DecodeError

from fumehood.broker import names
from fumehood.broker.ports import Broker
from fumehood.errors import BrokerError, PayloadTooLargeError
from fumehood.wire.console.console_pb2 import Dispatch, Result
from fumehood.wire.console.relay_pb2 import Call, CancelCommand, DrainWorker, Freed, Relay, Reply, Stored

MESSAGE_BYTES = 1024 * 1024
"""Of what travels in a message. A larger result lies in the broker's store, and its name travels."""
MOST_WAITING = 10_000
"""Messages that wait to be sent. Beyond, they are lost, as any may be."""
MOST_RESULT = 48 * 1024 * 1024
TAKEN_SECONDS = 0.1
"""After which another server is told that its call went out, if its answer did not come sooner."""
ALL = "all"
_ADDRESS = "console"


class Holder(Protocol):
    """What this server does for others, with the streams that it holds."""

    def called(self, call: Call) -> str | None:
        """Send it out, or the code of why not."""
        ...

    def stored(self, command_id: str) -> None: ...

    def cancelled(self, command_id: str) -> None: ...

    def drained(self, worker_id: str) -> None: ...


@dataclass(slots=True, eq=False)
class Asked:
    """A call of this server's that is under way."""

    dispatch: Dispatch
    record: bytes = b""
    """What whoever holds the stream stores about it, if this server cannot."""
    attempt: int = 0
    """How often it was said."""
    said: Counter[str] = field(default_factory=Counter)
    """The same, for each stream."""
    worker_id: str = ""
    """Who it was last sent to: nobody else can answer it."""
    epoch: str = ""
    """Of the stream that it was last sent to: what is said about another one is old."""
    taken: bool = False
    """It went out over the stream."""
    holder: str = ""
    """Who brought its end, and wants to know that it is stored."""
    refused: str = ""
    answer: asyncio.Future[Result | str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Its result, or the name under which that lies."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when anything of this changed, or something that it depends on."""


class Exchange:
    def __init__(self, broker: Broker, server: str) -> None:
        self.server = server
        self.holder: Holder | None = None
        self.freed: list[Callable[[Freed], None]] = []
        """Called with what has room again."""
        self.cancelling: list[Callable[[str], None]] = []
        """Called with each command that somebody wants ended."""
        self._broker = broker
        self._asked: dict[str, Asked] = {}
        self._out: deque[tuple[str, bytes]] = deque(maxlen=MOST_WAITING)
        self._more = asyncio.Event()
        self._confirming: dict[str, asyncio.TimerHandle] = {}
        self._log = structlog.get_logger(server=server)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Listen, and send, while the block lasts."""
        switchboard = self._broker.switchboard
        sending = asyncio.create_task(self._send())
        try:
            async with (
                switchboard.listen(f"{_ADDRESS}.{self.server}", self._heard),
                switchboard.listen(f"{_ADDRESS}.{ALL}", self._heard),
            ):
                yield
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    # --- asking --------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def asking(self, dispatch: Dispatch) -> Iterator[Asked]:
        """While it lasts, answers to this command are heard."""
        if dispatch.ByteSize() > MESSAGE_BYTES:
            raise PayloadTooLargeError(f"a command has at most {MESSAGE_BYTES} bytes: put what is larger into a file")
        asked = Asked(dispatch)
        self._asked[dispatch.command_id] = asked
        try:
            yield asked
        finally:
            del self._asked[dispatch.command_id]

    async def call(self, to: str, worker_id: str, epoch: str, asked: Asked) -> None:
        """Say it, or say it again. What was refused before does not count any more: a refusal is of one saying, and
        after a later one it may be out all the same."""
        asked.worker_id, asked.epoch, asked.taken = worker_id, epoch, False
        asked.refused = ""
        asked.attempt += 1
        asked.said[epoch] += 1
        call = Call(origin=self.server, worker_id=worker_id, epoch=epoch, dispatch=asked.dispatch)
        call.attempt, call.record = asked.attempt, asked.record
        if to == self.server:
            self._called(call)
        else:
            await self._send_one(f"{_ADDRESS}.{to}", Relay(call=call).SerializeToString())

    def tell_stored(self, to: str, command_id: str) -> None:
        if to == self.server:
            if self.holder is not None:
                self.holder.stored(command_id)
        elif to:
            self._post(to, Relay(stored=Stored(command_id=command_id)))

    def cancel(self, command_id: str) -> None:
        """Whoever has it, this server included."""
        self._cancelled(command_id)
        self._post(ALL, Relay(cancel=CancelCommand(command_id=command_id)))

    def drain(self, worker_id: str) -> None:
        self._post(ALL, Relay(drain=DrainWorker(worker_id=worker_id)))

    def poke(self) -> None:
        """Something changed that calls may depend on."""
        for asked in self._asked.values():
            asked.news.set()

    async def result(self, ref: str) -> Result:
        """One that was too large for a message."""
        data = await self._broker.blobs(names.NODES_TENANT).get(ref, limit=MOST_RESULT)
        return Result.FromString(data)

    # --- answering -----------------------------------------------------------------------------------------

    def reply(self, to: str, reply: Reply) -> None:
        if to == self.server:
            self._answered(reply)
        else:
            self._post(to or ALL, Relay(reply=reply))

    def unconfirm(self, command_id: str) -> None:
        """Whoever asked hears something else."""
        confirming = self._confirming.pop(command_id, None)
        if confirming is not None:
            confirming.cancel()

    async def tell_result(self, to: str, worker_id: str, result: Result) -> None:
        """To whoever asked; to all, where that is unknown."""
        self.unconfirm(result.command_id)
        reply = Reply(command_id=result.command_id, holder=self.server, worker_id=worker_id)
        if to == self.server:
            reply.result.CopyFrom(result)
            self._answered(reply)
            return
        if result.ByteSize() > MESSAGE_BYTES:
            reply.result_ref = await self._broker.blobs(names.NODES_TENANT).put(result.SerializeToString())
        else:
            reply.result.CopyFrom(result)
        await self._send_one(f"{_ADDRESS}.{to or ALL}", Relay(reply=reply).SerializeToString())

    def tell_freed(self, worker_id: str, capability: str) -> None:
        self._post(ALL, Relay(freed=Freed(worker_id=worker_id, capability=capability)))

    # --- messages ------------------------------------------------------------------------------------------

    def _post(self, to: str, relay: Relay) -> None:
        self._out.append((f"{_ADDRESS}.{to}", relay.SerializeToString()))
        self._more.set()

    async def _send(self) -> None:
        while True:
            await self._more.wait()
            self._more.clear()
            while self._out:
                await self._send_one(*self._out.popleft())

    async def _send_one(self, address: str, data: bytes) -> None:
        try:
            await self._broker.switchboard.send(address, data)
        except BrokerError as error:
            self._log.warning("console.not_sent", code=error.code)

    def _heard(self, data: bytes) -> None:
        try:
            relay = Relay.FromString(data)
        except DecodeError:
            self._log.warning("console.unreadable", size=len(data))
            return
        match relay.WhichOneof("message"):
            case "call":
                self._called(relay.call)
            case "reply":
                self._answered(relay.reply)
            case "freed":
                for heard in self.freed:
                    heard(relay.freed)
            case "stored" if self.holder is not None:
                self.holder.stored(relay.stored.command_id)
            case "cancel":
                self._cancelled(relay.cancel.command_id)
            case "drain" if self.holder is not None:
                self.holder.drained(relay.drain.worker_id)
            case _:
                pass  # of a later version

    def _cancelled(self, command_id: str) -> None:
        for heard in self.cancelling:
            heard(command_id)
        if self.holder is not None:
            self.holder.cancelled(command_id)

    def _called(self, call: Call) -> None:
        refused = self.holder.called(call) if self.holder is not None else "worker_lost"
        reply = Reply(command_id=call.dispatch.command_id, holder=self.server, epoch=call.epoch)
        reply.attempt = call.attempt
        if refused is not None:
            reply.refused = refused
            self.reply(call.origin, reply)
            return
        reply.taken = True
        if call.origin == self.server:
            self._answered(reply)
        elif call.dispatch.command_id not in self._confirming:
            later = asyncio.get_running_loop().call_later(TAKEN_SECONDS, self._confirm, call.origin, reply)
            self._confirming[call.dispatch.command_id] = later

    def _confirm(self, origin: str, reply: Reply) -> None:
        del self._confirming[reply.command_id]
        self.reply(origin, reply)

    def _answered(self, reply: Reply) -> None:
        asked = self._asked.get(reply.command_id)
        if asked is None:
            return
        match reply.WhichOneof("answer"):
            case "taken" if reply.epoch == asked.epoch:
                asked.taken = True
            case "refused" if reply.epoch == asked.epoch and reply.attempt in (0, asked.attempt):
                asked.refused = reply.refused
            case "refused" if reply.epoch == asked.epoch and asked.taken:
                asked.taken = False  # an earlier saying was refused by the worker itself; of the last one nobody knows
            case "result" | "result_ref" as kind if reply.worker_id == asked.worker_id and not asked.answer.done():
                asked.taken, asked.holder = True, reply.holder
                asked.answer.set_result(reply.result if kind == "result" else reply.result_ref)
            case _:
                return
        asked.news.set()
