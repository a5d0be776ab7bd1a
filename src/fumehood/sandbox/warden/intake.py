"""Takes what commands say: each at the pace of its own sink, and acknowledges what is safe.

Frames of a command that nobody has joined, or whose sink has no room, stay here. They are not acknowledged, so that the
command's window in the warden bounds them, and its program blocks when that is full. Other commands go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fumehood.sandbox.driver import PacedSink
from fumehood.sandbox.warden import frames
from fumehood.sandbox.warden.acks import Ack, Acks
from fumehood.sandbox.warden.frames import Frame, Type
from fumehood.sandbox.warden.known import Known, Waiter


class Intake:
    def __init__(self, send_acks: Callable[[list[Ack]], Awaitable[None]]) -> None:
        self._send_acks = send_acks
        self._acks = Acks()

    def welcomed(self, next_seq: int) -> None:
        self._acks.welcomed(next_seq)

    def arrived(self, known: Known, frame: Frame) -> None:
        if not self._acks.arrived(known.command_id, frame.seq, len(frame.payload)):
            return
        known.hold(frame)
        if known.dropped:
            self.drop(known)
        else:
            self.take_held(known)

    def take_held(self, known: Known) -> None:
        """Give whoever waits for the command what is there of it."""
        waiter = known.waiter
        if waiter is None:
            return
        if known.ended is not None and not waiter.exit.done():
            waiter.exit.set_result(known.ended)  # somebody was here before, and left without settling it
        elif isinstance(waiter.sink, PacedSink):
            if waiter.pump is None:
                waiter.pump = asyncio.create_task(self._pump(known, waiter, waiter.sink), name="warden-pump")
        else:
            while known.held and not waiter.exit.done():
                _take_next(known, waiter, self._acks)

    def drop(self, known: Known) -> None:
        """Nobody wants anything of this command any more, now or later."""
        known.dropped = True
        for frame in known.held:
            self._acks.safe(frame.seq, ends=frame.type == Type.EXIT)
        known.held.clear()
        if known.exit_seq is not None:
            self._acks.safe(known.exit_seq, ends=True)
            known.exit_seq = None

    async def acknowledge(self) -> None:
        news = self._acks.take()
        if news:
            await self._send_acks(news)

    async def acknowledge_if_due(self) -> None:
        if self._acks.due:
            await self.acknowledge()

    async def _pump(self, known: Known, waiter: Waiter, sink: PacedSink) -> None:
        try:
            while not waiter.exit.done():
                while not known.held:
                    known.arrived.clear()
                    await known.arrived.wait()
                if known.held[0].type == Type.OUTPUT:
                    await sink.room()
                if known.held:  # unless it was dropped meanwhile
                    _take_next(known, waiter, self._acks)
                await self.acknowledge_if_due()
        except Exception as error:  # noqa: BLE001 - whatever a sink raises: whoever waits must not hang
            _fail(waiter, error)


def _take_next(known: Known, waiter: Waiter, acks: Acks) -> None:
    """A frame that its sink cannot store stays, and is not acknowledged: it comes again for who joins next."""
    frame = known.held[0]
    try:
        if frame.type == Type.OUTPUT:
            output = frames.parse_output(frame.payload)
            waiter.sink.write(output.stream, output.offset, output.data)
        elif frame.type == Type.EXIT:
            known.ended = frames.parse_exit(frame.payload)
    except Exception as error:  # noqa: BLE001 - it is this command's trouble, and no other's
        _fail(waiter, error)
        return
    known.held.popleft()
    if known.ended is None:
        acks.safe(frame.seq)
        return
    known.exit_seq = frame.seq
    if not waiter.exit.done():
        waiter.exit.set_result(known.ended)


def _fail(waiter: Waiter, error: Exception) -> None:
    if not waiter.exit.done():
        waiter.exit.set_exception(error)
        waiter.exit.exception()  # whoever waits sees it; nobody waiting is no error
