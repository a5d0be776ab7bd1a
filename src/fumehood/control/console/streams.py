"""Streams of workers that this server holds: what goes out over them, within their bounds, and what comes back.

A stream forgets nothing by itself that a worker still has: a command's result is acknowledged when it is stored, which
the server that the command came from says (`stored`), or this one does in its place (`unstored`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from fumehood.control.console.ports import Outlet, OutletClosedError
from fumehood.control.console.presence import Entry
from fumehood.wire.console.codes import SESSION_CALL, Reason
from fumehood.wire.console.console_pb2 import (
    Cancel,
    ConsoleFrame,
    Dispatch,
    Drain,
    HeartbeatAck,
    Result,
    ResultAck,
)
from fumehood.wire.console.relay_pb2 import Reply

ENDED = "ended"
"""Why a command is not sent out: it was, and its end is stored."""
MOST_DONE = 4096

Answer = Callable[[str, Reply], None]
"""To a server by its name, or to all with an empty one."""


@dataclass(slots=True)
class InFlight:
    """A command that went out over a stream."""

    capability: str
    """Empty once its slot is free."""
    origin: str
    """Who waits for it; empty: nobody knows any more."""
    record: bytes = b""
    """What is to be stored of a command, beside its end."""
    result: Result | None = None
    """A command's, that is not stored yet."""
    since: float = 0.0
    """When that came."""
    attempt: int = 0
    """The last saying of it that was heard."""


@dataclass(slots=True)
class Stream:
    """One worker's, on this server."""

    entry: Entry
    outlet: Outlet
    answer: Answer
    server: str
    inflight: dict[str, InFlight] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    done: OrderedDict[str, None] = field(default_factory=OrderedDict)
    """Commands that ended and are stored, the last of them: one that is said again is not done again."""
    refused: set[str] = field(default_factory=set)
    """Capabilities that somebody was turned away from since there was room."""
    closed: bool = False

    def __post_init__(self) -> None:
        for command_id in self.entry.holding:
            self.inflight[command_id] = InFlight("", "")

    # --- to the worker -------------------------------------------------------------------------------------

    def call(self, origin: str, dispatch: Dispatch, record: bytes = b"", attempt: int = 0) -> str | None:
        """Send it out; or the code of why not. One that is out already is not sent again, but told to whoever asks."""
        if dispatch.command_id in self.done:
            return ENDED
        known = self.inflight.get(dispatch.command_id)
        if known is not None:
            known.origin, known.record, known.attempt = origin, record, attempt
            return None
        bound = _bound(self.entry, dispatch.capability)
        if self.closed or bound is None:
            return Reason.WORKER_LOST if self.closed else Reason.UNSUPPORTED_CAPABILITY
        kind = _kind(dispatch.capability)
        if self.counts[kind] >= bound:
            self.refused.add(kind)
            return Reason.NO_CAPACITY
        self.inflight[dispatch.command_id] = InFlight(dispatch.capability, origin, record, attempt=attempt)
        self.counts[kind] += 1
        try:
            self.outlet.send(ConsoleFrame(dispatch=dispatch))
        except OutletClosedError:
            self.closed = True
            self._out(dispatch.command_id)
            return Reason.WORKER_LOST
        return None

    def cancel(self, command_id: str) -> bool:
        if command_id not in self.inflight:
            return False
        self._say(ConsoleFrame(cancel=Cancel(command_id=command_id)))
        return True

    def drain(self) -> None:
        self._say(ConsoleFrame(drain=Drain(leave=True)))

    def stored(self, command_id: str) -> None:
        """The worker may forget it."""
        self._out(command_id)
        self.done[command_id] = None
        while len(self.done) > MOST_DONE:
            self.done.popitem(last=False)
        self._say(ConsoleFrame(result_ack=ResultAck(command_id=command_id)))

    def beat(self, timestamp_ms: int) -> None:
        self._say(ConsoleFrame(heartbeat_ack=HeartbeatAck(timestamp_unix_ms=timestamp_ms)))

    def _say(self, frame: ConsoleFrame) -> None:
        try:
            self.outlet.send(frame)
        except OutletClosedError:
            self.closed = True  # the door notices, too, and ends the stream

    # --- from the worker -----------------------------------------------------------------------------------

    def ended(self, result: Result, now: float) -> None:
        """Its slot is free; what the worker keeps of it is another matter. Answers to calls nobody stores."""
        flight = self.inflight[result.command_id]
        if flight.capability.startswith(SESSION_CALL):
            self._out(result.command_id)
        else:
            self._free(flight)
            flight.result, flight.since = result, now

    def forget(self, command_id: str) -> None:
        """One that the worker did not take."""
        self._out(command_id)

    def unstored(self, before: float) -> list[InFlight]:
        """Those whose results came before a moment, and were not stored since."""
        return [one for one in self.inflight.values() if one.result is not None and one.since < before]

    def freed(self) -> list[str]:
        """Capabilities that have room again after somebody was turned away."""
        found = [kind for kind in self.refused if self.counts[kind] < (_bound(self.entry, kind) or 0)]
        self.refused.difference_update(found)
        return found

    # --- the end -------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Nothing goes out any more. Calls are answered, since they can be made again; commands are not: their worker
        goes on with them, and says so when it is back."""
        self.closed = True
        for command_id, flight in self.inflight.items():
            if flight.capability.startswith(SESSION_CALL):
                reply = Reply(command_id=command_id, holder=self.server, refused=Reason.WORKER_LOST)
                reply.epoch = self.entry.epoch
                self.answer(flight.origin, reply)
        self.inflight.clear()

    def _out(self, command_id: str) -> None:
        flight = self.inflight.pop(command_id, None)
        if flight is not None:
            self._free(flight)

    def _free(self, flight: InFlight) -> None:
        if flight.capability:
            self.counts[_kind(flight.capability)] -= 1
            flight.capability = ""


def _kind(capability: str) -> str:
    """What shares a bound."""
    return SESSION_CALL if capability.startswith(SESSION_CALL) else capability


def _bound(entry: Entry, capability: str) -> int | None:
    if _kind(capability) == SESSION_CALL:
        return entry.session_calls or None
    return entry.capabilities.get(capability)
