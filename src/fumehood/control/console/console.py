"""The console of one server: workers that dial in here, and what others want from them.

Nothing here is worth keeping. When this server dies, its workers go to another one, bring along the commands that they
have, and name their sessions; what was asked goes on there.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field

import structlog

from fumehood.broker import names
from fumehood.control.console.credentials import Credentials
from fumehood.control.console.directory import SessionDirectory
from fumehood.control.console.exchange import Exchange
from fumehood.control.console.finish import Finisher
from fumehood.control.console.places import Kept, Place
from fumehood.control.console.ports import Outlet
from fumehood.control.console.presence import ELSEWHERE, REPLACED, Entry, Presence
from fumehood.control.console.streams import InFlight, Stream
from fumehood.errors import BrokerError, ConflictError, DrainingError, FumehoodError, InvalidRequestError
from fumehood.wire.console.codes import MAX_SESSION_CALLS, MOST_SESSIONS, SESSION_CALL, Reason
from fumehood.wire.console.console_pb2 import Declaration, HeldSession, Hello, HelloAck, Result, WorkerFrame
from fumehood.wire.console.relay_pb2 import Call, Reply

HEARTBEAT_MS = 5_000
MOST_CAPABILITIES = 32
MOST_INFLIGHT = 1024
MOST_HOLDING = 512
LONGEST_LABEL = 256
_WHY = {
    REPLACED: "another connection of this worker took over",
    ELSEWHERE: "this server cannot reach the broker: another one may",
}
UNCLAIMED_SECONDS = 10.0
"""For whoever asked to store a command's end, before this server does."""


@dataclass(slots=True)
class ConsoleParts:
    """What the console is made of."""

    credentials: Credentials
    presence: Presence
    exchange: Exchange
    directory: SessionDirectory
    finisher: Finisher
    now_ms: Callable[[], int]


@dataclass(slots=True)
class Console:
    """Implements `Welcomer`, and `Holder` for other servers."""

    parts: ConsoleParts
    streams: dict[str, Stream] = field(default_factory=dict)
    draining: bool = False
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.parts.exchange.holder = self
        self.parts.presence.listen(lambda _: self.parts.exchange.poke())
        self.parts.credentials.on_revoked(self._revoked)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Hear and be heard, while the block lasts."""
        presence = self.parts.presence
        work = (presence.watch, presence.keep, self.parts.directory.watch, self._store_unclaimed)
        loops = [asyncio.create_task(_for_ever(one)) for one in work]
        try:
            async with self.parts.exchange.open():
                yield
        finally:
            tasks = [*loops, *self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def drain(self) -> None:
        """Send all workers away: they come back to another server, with what they have."""
        self.draining = True
        for stream in self.streams.values():
            stream.outlet.close("draining", "this server is shutting down")

    # --- workers -------------------------------------------------------------------------------------------

    async def welcome(self, hello: Hello, outlet: Outlet) -> Welcomed:
        if self.draining:
            raise DrainingError("this server is shutting down", retry_after_seconds=1)
        declared = await self.parts.credentials.verify(hello)
        entry = self._entry(hello, declared)
        stream = Stream(entry, outlet, self.parts.exchange.reply, self.parts.exchange.server)
        welcomed = Welcomed(self, stream, await self._ack(entry.worker_id, declared))
        try:
            await self.parts.presence.claim(entry, lambda why: self._must_go(stream, why))
        except ConflictError as error:
            raise DrainingError(error.detail, retry_after_seconds=1) from error
        except BaseException:
            self._spawn(self.left(stream))  # its entry may have been written all the same
            raise
        former = self.streams.get(entry.worker_id)
        self.streams[entry.worker_id] = stream
        if former is not None:
            self._must_go(former, REPLACED)
        _log().info("worker.connected", worker_id=entry.worker_id, epoch=entry.epoch, holding=len(entry.holding))
        return welcomed

    def _entry(self, hello: Hello, declared: Declaration) -> Entry:
        _check(declared)
        return Entry(
            worker_id=hello.worker_id,
            epoch=secrets.token_hex(8),
            server=self.parts.exchange.server,
            capabilities={one.name: one.max_inflight for one in declared.capabilities},
            session_calls=min(declared.max_session_calls, MAX_SESSION_CALLS),
            holding=list(declared.holding),
            labels=dict(declared.labels),
            software=declared.software[:LONGEST_LABEL],
            hello_ms=hello.timestamp_unix_ms,
        )

    async def _ack(self, worker_id: str, declared: Declaration) -> HelloAck:
        """With the sessions that others know to be this worker's, and after what it says of them is known to others."""
        for one in declared.sessions:
            await self.told_session(worker_id, one)
        kept = await self.parts.directory.of_worker(worker_id)
        known = [_held(one) for one in kept if one.place.lease_expires_ms]
        return HelloAck(heartbeat_interval_ms=HEARTBEAT_MS, sessions=known[:MOST_SESSIONS])

    async def told_session(self, worker_id: str, one: HeldSession) -> None:
        if not (names.is_token(one.owner) and names.is_token(one.session_id)):
            raise InvalidRequestError("a session whose name or owner is none")
        directory = self.parts.directory
        if directory.count_of(worker_id) >= MOST_SESSIONS and not directory.knows(one.owner, one.session_id):
            _log().warning("worker.too_many_sessions", worker_id=worker_id, session_id=one.session_id)
            return
        stands = await directory.note(one.owner, one.session_id, _place(worker_id, one))
        if stands.worker != worker_id:
            _log().warning("session.elsewhere", worker_id=worker_id, session_id=one.session_id, owner=one.owner)

    def _must_go(self, stream: Stream, why: str) -> None:
        """A newer stream of the same worker is there, or this server was cut off from all others for too long."""
        if not stream.closed:
            _log().info("worker.sent_away", worker_id=stream.entry.worker_id, epoch=stream.entry.epoch, why=why)
        stream.end()
        stream.outlet.close(why, _WHY[why])

    def _revoked(self, worker_id: str) -> None:
        stream = self.streams.get(worker_id)
        if stream is not None:
            stream.outlet.close("unauthenticated", "the worker's credentials were revoked")

    async def left(self, stream: Stream) -> None:
        """The stream is no more."""
        worker_id = stream.entry.worker_id
        if self.streams.get(worker_id) is stream:
            del self.streams[worker_id]
        stream.end()
        try:
            await self.parts.presence.release(worker_id, stream.entry.epoch)
        except BrokerError as error:
            _log().warning("worker.not_released", worker_id=worker_id, code=error.code)

    # --- what workers answer -------------------------------------------------------------------------------

    async def ended(self, stream: Stream, result: Result) -> None:
        """Tell whoever asked; and see to it that the end of a command is stored, also where nobody asks any more."""
        flight = stream.inflight.get(result.command_id)
        if flight is None:
            stream.stored(result.command_id)  # it was dealt with, and the worker has not heard of that
            return
        if result.error.code == Reason.NO_CAPACITY and not flight.capability.startswith(SESSION_CALL):
            self._refused(stream, flight, result.command_id)
            return
        stream.ended(result, asyncio.get_running_loop().time())
        self._tell_freed(stream)
        await self.parts.exchange.tell_result(flight.origin, stream.entry.worker_id, result)

    def _refused(self, stream: Stream, flight: InFlight, command_id: str) -> None:
        """The worker has more than we knew of: it did nothing, and another one may."""
        stream.forget(command_id)
        self.parts.exchange.unconfirm(command_id)
        reply = Reply(command_id=command_id, holder=self.parts.exchange.server, refused=Reason.NO_CAPACITY)
        reply.epoch, reply.attempt = stream.entry.epoch, flight.attempt
        self.parts.exchange.reply(flight.origin, reply)

    def _tell_freed(self, stream: Stream) -> None:
        for capability in stream.freed():
            self.parts.exchange.tell_freed(stream.entry.worker_id, capability)

    async def _store_unclaimed(self) -> None:
        """Store what nobody else did: whoever asked is gone, or never heard of it."""
        while True:
            await asyncio.sleep(UNCLAIMED_SECONDS / 5)
            before = asyncio.get_running_loop().time() - UNCLAIMED_SECONDS
            for stream in list(self.streams.values()):
                for flight in stream.unstored(before):
                    await self._store(stream, flight)

    async def _store(self, stream: Stream, flight: InFlight) -> None:
        """Or not: then its worker keeps it, and it is tried again. One that cannot be stored is no reason to store no
        others."""
        assert flight.result is not None
        command_id = flight.result.command_id
        try:
            await self.parts.finisher.finish_unclaimed(flight.result, stream.entry.worker_id, flight.record)
        except FumehoodError as error:
            _log().warning("command.not_stored", command_id=command_id, code=error.code)
        except Exception:  # noqa: BLE001 - whatever is wrong with it
            _log().exception("command.not_stored", command_id=command_id)
        else:
            stream.stored(command_id)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log().warning("console.task_failed", error=type(error).__name__)

    # --- what other servers want ---------------------------------------------------------------------------

    def called(self, call: Call) -> str | None:
        stream = self.streams.get(call.worker_id)
        if stream is None or stream.entry.epoch != call.epoch:
            return Reason.WORKER_LOST
        return stream.call(call.origin, call.dispatch, call.record, call.attempt)

    def stored(self, command_id: str) -> None:
        for stream in self.streams.values():
            if command_id in stream.inflight:
                stream.stored(command_id)

    def cancelled(self, command_id: str) -> None:
        for stream in self.streams.values():
            stream.cancel(command_id)

    def drained(self, worker_id: str) -> None:
        stream = self.streams.get(worker_id)
        if stream is not None:
            stream.drain()
            self._spawn(self.parts.presence.change(worker_id, stream.entry.epoch, draining=True))


@dataclass(slots=True)
class Welcomed:
    """Implements `Held`."""

    console: Console
    stream: Stream
    ack: HelloAck

    async def take(self, frame: WorkerFrame) -> None:
        match frame.WhichOneof("frame"):
            case "result":
                await self.console.ended(self.stream, frame.result)
            case "heartbeat":
                await self._beat(frame)
            case "hello":
                raise InvalidRequestError("a hello is said once")
            case _:
                pass  # of a later version

    async def _beat(self, frame: WorkerFrame) -> None:
        beat, worker_id = frame.heartbeat, self.stream.entry.worker_id
        if max(len(beat.changed_sessions), len(beat.ended_sessions)) > MOST_SESSIONS:
            raise InvalidRequestError("a heartbeat with more sessions than a worker may keep")
        for one in beat.changed_sessions:
            await self.console.told_session(worker_id, one)
        for name in beat.ended_sessions:
            await self.console.parts.directory.ended(name.owner, name.session_id, worker_id)
        self.stream.beat(beat.timestamp_unix_ms)

    async def gone(self) -> None:
        await self.console.left(self.stream)


async def _for_ever(work: Callable[[], Coroutine[None, None, None]]) -> None:
    """A fault of ours in one of them is written down, and is no reason to leave all workers alone."""
    while True:
        try:
            await work()
        except Exception:  # noqa: BLE001 - see above
            _log().exception("console.loop_failed")
        await asyncio.sleep(1.0)


def _held(kept: Kept) -> HeldSession:
    place = kept.place
    return HeldSession(
        owner=kept.tenant,
        session_id=kept.session_id,
        lease_expires_unix_ms=place.lease_expires_ms,
        created_unix_ms=place.created_ms,
        image=place.image,
        image_digest=place.image_digest,
        network=place.network,
        runtime=place.runtime,
    )


def _place(worker_id: str, one: HeldSession) -> Place:
    return Place(
        worker=worker_id,
        lease_expires_ms=one.lease_expires_unix_ms,
        created_ms=one.created_unix_ms,
        image=one.image,
        image_digest=one.image_digest,
        network=one.network,
        runtime=one.runtime,
    )


def _check(declared: Declaration) -> None:
    """A worker is let in, and still no reason to take anything from it that has no bound."""
    if len(declared.capabilities) > MOST_CAPABILITIES or len(declared.labels) > MOST_CAPABILITIES:
        raise InvalidRequestError(f"more than {MOST_CAPABILITIES} capabilities or labels")
    if len(declared.holding) > MOST_HOLDING or len(declared.sessions) > MOST_SESSIONS:
        raise InvalidRequestError("it holds more commands or sessions than a worker may")
    for one in declared.capabilities:
        if not names.is_token(one.name) or not 1 <= one.max_inflight <= MOST_INFLIGHT:
            raise InvalidRequestError("a capability whose name is none, or whose max_inflight is out of bounds")
    for name, value in declared.labels.items():
        if not name or max(len(name), len(value)) > LONGEST_LABEL:
            raise InvalidRequestError(f"a label of more than {LONGEST_LABEL} characters")
    if any(not names.is_token(one) for one in declared.holding):
        raise InvalidRequestError("a command whose name is none")


def _log() -> structlog.stdlib.BoundLogger:
    return structlog.get_logger()  # type: ignore[no-any-return]
