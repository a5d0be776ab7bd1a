"""One stream to the console, from the hello to its end.

Four tasks: one reads, one writes results, one says that we are there, one notices when nobody answers that. When one of
them ends, the stream does. Frames are acted on by the reader of this stream alone, and it is over before another stream
begins.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

import grpc.aio

from fumehood.errors import FumehoodError
from fumehood.node.console.duties import Duties
from fumehood.node.console.outbox import Outbox
from fumehood.wire.console.codes import MAX_INFLIGHT, MAX_SESSION_CALLS, Capability
from fumehood.wire.console.console_pb2 import Capability as CapabilityFrame
from fumehood.wire.console.console_pb2 import (
    ConsoleFrame,
    Declaration,
    Heartbeat,
    HeldSession,
    Hello,
    HelloAck,
    SessionName,
    WorkerFrame,
)
from fumehood.wire.console.hello import new_nonce, sign_hello

CONNECT_SECONDS: Final = 5.0
HELLO_SECONDS: Final = 15.0
"""For the console's answer to our hello: longer than that gives itself, so that one which takes us late is not left."""
LEASES_SECONDS: Final = 60.0
"""For what follows from the leases that the console knows."""
MISSED_BEATS: Final = 3
SHORTEST_BEAT, LONGEST_BEAT = 0.05, 60.0

Call: TypeAlias = "grpc.aio.StreamStreamCall[WorkerFrame, ConsoleFrame]"


class StreamError(FumehoodError):
    """The stream cannot go on, for a reason that gRPC does not know of."""

    code = "console-stream"
    retryable = True


class ProtocolError(StreamError):
    """The console said something that has no place there."""

    code = "console-protocol"


@dataclass(frozen=True, slots=True)
class Identity:
    worker_id: str
    secret: str = field(repr=False)


class Keeper(Protocol):
    """Who keeps the sessions."""

    def sessions(self) -> Sequence[HeldSession]:
        """All that there are now."""

    async def leases(self, known: Sequence[HeldSession]) -> None:
        """What the console knows to be ours. No dispatch is acted on before it returns."""


@dataclass(frozen=True, slots=True)
class About:
    """What a worker says of itself."""

    identity: Identity
    software: str
    labels: Mapping[str, str] = field(default_factory=dict)
    beat_seconds: float = 5.0
    """Unless the console asks for another."""
    jitter: float = 0.2


@dataclass(frozen=True, slots=True)
class Parts:
    """Whom a stream works for."""

    about: About
    duties: Duties
    keeper: Keeper
    drained: Callable[[bool], None]
    """The console wants this worker to take nothing more; True: and to leave."""
    chance: random.Random


class Stream:
    """Use `run` once."""

    def __init__(self, call: Call, parts: Parts) -> None:
        self._call = call
        self._parts = parts
        self._writing = asyncio.Lock()
        self._told: dict[tuple[str, str], HeldSession] = {}
        self._beat_seconds = parts.about.beat_seconds
        self._heard = 0.0
        self._leased = asyncio.Event()
        """What the console knows of our sessions has been heard."""
        self._answered = asyncio.Event()
        """Set by the answer to a heartbeat."""
        self.welcomed: float | None = None
        """When the console took the stream, by the loop's clock."""

    async def run(self, welcomed: Callable[[], None]) -> None:
        """Until it breaks: with gRPC's error, or `StreamError`. Returns when the console ended it in order."""
        outbox = self._parts.duties.begin()
        try:
            known = await self._greet()
            self.welcomed = self._heard = asyncio.get_running_loop().time()
            welcomed()
            works = (self._read(outbox, known), self._write(outbox), self._beat(), self._tell_missing(), self._watch())
            await _first(*works)
        except asyncio.InvalidStateError:  # a write to a stream that has just ended: who reads is told why
            await self._call.read()
        finally:
            self._parts.duties.pause()

    # --- hello ---------------------------------------------------------------------------------------------

    async def _greet(self) -> Sequence[HeldSession]:
        async with asyncio.timeout(CONNECT_SECONDS):
            await self._call.wait_for_connection()
        async with asyncio.timeout(HELLO_SECONDS):
            await self._send(WorkerFrame(hello=self._hello()))
            frame = await self._call.read()
        if not isinstance(frame, ConsoleFrame):
            raise ProtocolError("the console ended the stream without an answer to our hello")
        if frame.WhichOneof("frame") != "hello_ack":
            raise ProtocolError("the console did not answer our hello")
        self._beat_seconds = _beat_seconds(frame.hello_ack, self._parts.about.beat_seconds)
        return frame.hello_ack.sessions

    def _hello(self) -> Hello:
        parts, identity = self._parts, self._parts.about.identity
        sessions = parts.keeper.sessions()
        self._told = {_name(one): one for one in sessions}
        declared = declaration(parts.about, parts.duties.holding(), sessions)
        now_ms = time.time_ns() // 1_000_000
        return sign_hello(identity.worker_id, identity.secret, declared.SerializeToString(), now_ms, new_nonce())

    # --- reading -------------------------------------------------------------------------------------------

    async def _read(self, outbox: Outbox, known: Sequence[HeldSession]) -> None:
        await self._take_leases(known)
        self._told = {_name(one): one for one in known} | self._told  # what is not here is told to be no more
        self._leased.set()
        while True:
            await outbox.room()
            frame = await self._call.read()
            if not isinstance(frame, ConsoleFrame):
                return
            self._heard = asyncio.get_running_loop().time()
            self._take(frame)

    async def _take_leases(self, known: Sequence[HeldSession]) -> None:
        """Silence is counted from its end on: nothing is read meanwhile."""
        self._heard = asyncio.get_running_loop().time() + LEASES_SECONDS
        async with asyncio.timeout(LEASES_SECONDS):
            await self._parts.keeper.leases(known)
        self._heard = asyncio.get_running_loop().time()

    def _take(self, frame: ConsoleFrame) -> None:
        duties = self._parts.duties
        match frame.WhichOneof("frame"):
            case "dispatch":
                duties.take(frame.dispatch)
            case "cancel":
                duties.cancel(frame.cancel.command_id)
            case "result_ack":
                duties.acknowledged(frame.result_ack.command_id)
            case "drain":
                self._parts.drained(frame.drain.leave)
            case "heartbeat_ack":
                self._answered.set()
            case "hello_ack":
                raise ProtocolError("the console answered our hello twice")
            case _:
                pass  # a frame of a later version: somebody is there

    # --- writing -------------------------------------------------------------------------------------------

    async def _write(self, outbox: Outbox) -> None:
        while True:
            await self._send(WorkerFrame(result=await outbox.next()))

    async def _beat(self) -> None:
        jitter = self._parts.about.jitter
        while True:
            await asyncio.sleep(self._beat_seconds * self._parts.chance.uniform(1 - jitter, 1 + jitter))
            await self._send(WorkerFrame(heartbeat=self._heartbeat()))

    async def _tell_missing(self) -> None:
        """At once, of sessions that the console knows and that are not here; for as long as the stream lives."""
        await self._leased.wait()
        if self._told.keys() - {_name(one) for one in self._parts.keeper.sessions()}:
            await self._send(WorkerFrame(heartbeat=self._heartbeat()))
        await asyncio.get_running_loop().create_future()

    async def tell_sessions(self) -> None:
        """A heartbeat, at once, and its answer: the console knows what it said."""
        self._answered.clear()
        await self._send(WorkerFrame(heartbeat=self._heartbeat()))
        await self._answered.wait()

    async def _watch(self) -> None:
        """Apart from the beats: they, too, can get stuck behind a console that reads nothing."""
        loop, patience = asyncio.get_running_loop(), MISSED_BEATS * self._beat_seconds
        while True:
            left = self._heard + patience - loop.time()
            if left <= 0:
                raise StreamError(f"the console has said nothing for {patience:.1f} s, not even to our heartbeats")
            await asyncio.sleep(left)

    def _heartbeat(self) -> Heartbeat:
        now = {_name(one): one for one in self._parts.keeper.sessions()}
        changed, ended = changes(self._told, now)
        self._told = now
        return Heartbeat(timestamp_unix_ms=time.time_ns() // 1_000_000, changed_sessions=changed, ended_sessions=ended)

    async def _send(self, frame: WorkerFrame) -> None:
        """gRPC takes one write at a time."""
        async with self._writing:
            await self._call.write(frame)


def declaration(about: About, holding: Sequence[str], sessions: Sequence[HeldSession]) -> Declaration:
    """The contract's capabilities, all of them and nothing else."""
    return Declaration(
        capabilities=[CapabilityFrame(name=one.value, max_inflight=MAX_INFLIGHT) for one in Capability],
        labels=about.labels,
        software=about.software,
        max_session_calls=MAX_SESSION_CALLS,
        holding=holding,
        sessions=sessions,
    )


def changes(
    told: Mapping[tuple[str, str], HeldSession], now: Mapping[tuple[str, str], HeldSession]
) -> tuple[list[HeldSession], list[SessionName]]:
    """Sessions that are new or other than they were told, and those that are no more."""
    changed = [one for name, one in now.items() if told.get(name) != one]
    ended = [SessionName(owner=owner, session_id=session_id) for owner, session_id in told.keys() - now.keys()]
    return changed, ended


def _name(session: HeldSession) -> tuple[str, str]:
    return session.owner, session.session_id


def _beat_seconds(ack: HelloAck, default: float) -> float:
    if ack.heartbeat_interval_ms <= 0:
        return default
    return min(max(ack.heartbeat_interval_ms / 1000, SHORTEST_BEAT), LONGEST_BEAT)


async def _first(*works: Awaitable[None]) -> None:
    """Until the first of them ends, as it ends; the others are over then, too."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if task in done:
            if task.cancelled():
                raise StreamError("the stream was cancelled")
            task.result()
