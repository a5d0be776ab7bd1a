"""The owner of one warden: starts commands, takes their output, and comes back after a broken connection.

One `WardenClient` is one attachment. It ends when its transport ends; whoever holds it (a driver) then looks at
the engine, opens another one and *joins* the commands that were running. What makes that safe is in the protocol:
command ids never repeat, reliable frames are kept by the warden until they are acknowledged, and a piece of
output is acknowledged only after its sink has it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass, field
from typing import Protocol

from fumehood.errors import CommandRefusedError, DeadlineExceededError, WardenProtocolError
from fumehood.sandbox.driver import Sink
from fumehood.sandbox.warden import frames
from fumehood.sandbox.warden.frames import Exit, Frame, Type, Welcome, WireCommand

ACK_EVERY = frames.WINDOW // 4
"""Acknowledge this often (bytes): rarely enough to cost nothing, early enough that the window never runs dry."""

_RELIABLE = frozenset({Type.STARTED, Type.OUTPUT, Type.EXIT})


class TransportClosedError(Exception):
    """The attachment ended; the sandbox itself may well live on."""


class Transport(Protocol):
    """A byte stream to and from a warden, whatever carries it."""

    async def read(self) -> bytes:
        """The next bytes that the warden wrote; empty at the end of the stream."""
        ...

    async def write(self, data: bytes) -> None: ...

    def abort(self) -> None:
        """Let go at once, without waiting for anything."""
        ...


@dataclass(slots=True)
class _Running:
    """A command whose end we wait for."""

    sink: Sink
    exit: asyncio.Future[Exit]
    stdin_acked: int = 0
    stdin_moved: asyncio.Event = field(default_factory=asyncio.Event)


class WardenClient:
    def __init__(self, transport: Transport, *, orphan_ms: int) -> None:
        self._transport = transport
        self._orphan_ms = orphan_ms
        self._nonce = os.urandom(frames.NONCE_SIZE)
        self._welcome: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        self._running: dict[int, _Running] = {}
        self._backlog: dict[int, list[Frame]] = {}
        self._unsettled: dict[int, int] = {}
        self._last_seq = 0
        self._acked = 0
        self._unacked_bytes = 0
        self._next_id = 1
        self._pinged: asyncio.Future[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._closed: BaseException | None = None

    # --- life ----------------------------------------------------------------------------------------------

    async def connect(self, *, fresh: bool, timeout: float) -> Welcome:
        """Say HELLO and wait for the WELCOME that answers it. `fresh`: nobody ever spoke to this warden before."""
        self._tasks.append(asyncio.create_task(self._read(), name="warden-read"))
        try:
            async with asyncio.timeout(timeout):
                greeting = frames.hello(self._nonce, self._orphan_ms)
                await self._transport.write(greeting if fresh else frames.PADDING + greeting)
                welcome = await asyncio.shield(self._welcome)
        except TimeoutError:
            self.close()
            raise DeadlineExceededError("the warden did not answer in time") from None
        except BaseException:
            self.close()
            raise
        if welcome.version != frames.VERSION:
            self.close()
            raise WardenProtocolError(f"the warden speaks version {welcome.version}, not {frames.VERSION}")
        self._next_id = welcome.highest_id + 1
        self._tasks.append(asyncio.create_task(self._keep_alive(), name="warden-ping"))
        return welcome

    def close(self) -> None:
        """End the attachment; the sandbox goes on until it is orphaned or another owner comes."""
        self._fail(TransportClosedError("closed by its owner"))
        for task in self._tasks:
            task.cancel()
        self._transport.abort()

    @property
    def closed(self) -> bool:
        return self._closed is not None

    # --- commands ------------------------------------------------------------------------------------------

    def fresh_id(self) -> int:
        """An id that this warden has not seen."""
        self._next_id += 1
        return self._next_id - 1

    async def run(self, command_id: int, command: WireCommand, sink: Sink, stdin: bytes = b"") -> Exit:
        """Start the command, or join it if the warden already knows its id, and wait for its end."""
        welcome = await asyncio.shield(self._welcome)
        running = self._register(command_id, sink)
        try:
            known = welcome.commands.get(command_id)
            if known is None and command_id > welcome.highest_id:
                await self._write(command.frames(command_id))
            elif known is None:
                raise WardenProtocolError(f"the result of command {command_id} was taken before")
            self._drain_backlog(command_id)
            received = known.stdin_received if known else 0
            if command.flags & frames.Flag.STDIN:
                return await self._feed(command_id, running, stdin, received)
            return await running.exit
        finally:
            self._running.pop(command_id, None)

    async def settle(self, command_id: int) -> None:
        """Acknowledge the end of a command: its outcome is stored."""
        for seq in [seq for seq, owner in self._unsettled.items() if owner == command_id]:
            del self._unsettled[seq]
        await self._acknowledge()

    async def signal(self, command_id: int, number: int, *, everything: bool) -> None:
        await self._write(frames.signal(command_id, number, everything=everything))

    async def resize(self, command_id: int, rows: int, columns: int) -> None:
        await self._write(frames.resize(command_id, rows, columns))

    async def ping(self, timeout: float) -> None:
        """A round trip; raises `DeadlineExceededError` when the warden does not answer."""
        if self._pinged is None or self._pinged.done():
            self._pinged = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout):
                await self._write(frames.encode(Type.PING, bytes(8)))
                await asyncio.shield(self._pinged)
        except TimeoutError:
            raise DeadlineExceededError("the warden did not answer a ping in time") from None

    async def shutdown(self) -> None:
        await self._write(frames.encode(Type.SHUTDOWN))

    # --- inside --------------------------------------------------------------------------------------------

    def _register(self, command_id: int, sink: Sink) -> _Running:
        if self._closed is not None:
            raise self._closed
        if command_id in self._running:
            raise CommandRefusedError(f"command {command_id} is waited for already")
        running = _Running(sink, asyncio.get_running_loop().create_future())
        self._running[command_id] = running
        self._next_id = max(self._next_id, command_id + 1)
        return running

    def _drain_backlog(self, command_id: int) -> None:
        for frame in self._backlog.pop(command_id, []):
            self._take(frame)

    async def _feed(self, command_id: int, running: _Running, data: bytes, offset: int) -> Exit:
        """Send stdin within the warden's window; the program may end without reading all of it."""
        while offset < len(data) and not running.exit.done():
            room = running.stdin_acked + frames.STDIN_WINDOW - offset
            if room <= 0:
                running.stdin_moved.clear()
                running.exit.add_done_callback(lambda _: running.stdin_moved.set())
                await running.stdin_moved.wait()
                continue
            piece = data[offset : offset + min(room, frames.MAX_PAYLOAD - 8)]
            await self._write(frames.stdin(command_id, offset, piece))
            offset += len(piece)
        if not running.exit.done():
            await self._write(frames.stdin_eof(command_id, len(data)))
        return await running.exit

    async def _write(self, data: bytes) -> None:
        if self._closed is not None:
            raise self._closed
        try:
            await self._transport.write(data)
        except OSError as error:
            raise TransportClosedError(str(error)) from error

    async def _read(self) -> None:
        decoder = frames.Decoder(self._nonce)
        try:
            while data := await self._read_piece():
                for frame in decoder.feed(data):
                    self._receive(frame)
                if self._unacked_bytes >= ACK_EVERY:
                    await self._acknowledge()
            self._fail(TransportClosedError("the attachment ended"))
        except Exception as error:  # noqa: BLE001 - a sink that cannot store, a warden that lies: nobody may hang
            self._fail(error)

    async def _read_piece(self) -> bytes:
        try:
            return await self._transport.read()
        except OSError as error:
            raise TransportClosedError(str(error)) from error

    def _receive(self, frame: Frame) -> None:
        if frame.type == Type.WELCOME:
            if not self._welcome.done():
                self._welcome.set_result(frames.parse_welcome(frame.payload))
        elif frame.type in _RELIABLE:
            self._last_seq = max(self._last_seq, frame.seq)
            self._unacked_bytes += len(frame.payload)
            if frame.command_id in self._running:
                self._take(frame)
            else:
                # Nobody joined this command yet. The warden keeps at most its window unacknowledged: bounded.
                self._backlog.setdefault(frame.command_id, []).append(frame)
        elif frame.type == Type.STDIN_ACK:
            self._stdin_moved(frame)
        elif frame.type == Type.PONG:
            if self._pinged is not None and not self._pinged.done():
                self._pinged.set_result(None)
        elif frame.type == Type.REFUSED:
            self._refused(frame)
        else:
            raise WardenProtocolError(f"the warden sent a frame of type {frame.type}")

    def _take(self, frame: Frame) -> None:
        running = self._running[frame.command_id]
        if frame.type == Type.OUTPUT:
            output = frames.parse_output(frame.payload)
            running.sink.write(output.stream, output.offset, output.data)
        elif frame.type == Type.EXIT and not running.exit.done():
            self._unsettled[frame.seq] = frame.command_id
            running.exit.set_result(frames.parse_exit(frame.payload))

    def _stdin_moved(self, frame: Frame) -> None:
        running = self._running.get(frame.command_id)
        if running is not None:
            running.stdin_acked = max(running.stdin_acked, frames.parse_u64(frame.payload))
            running.stdin_moved.set()

    def _refused(self, frame: Frame) -> None:
        code, text = frames.parse_refused(frame.payload)
        running = self._running.get(frame.command_id)
        # Input for a command that ended meanwhile is refused as unknown: that is no error of the command.
        if running is not None and not running.exit.done() and code in _FATAL_REFUSALS:
            running.exit.set_exception(CommandRefusedError(f"{text} (code {code})"))

    async def _acknowledge(self) -> None:
        """ACK is cumulative: stop before the first frame that is not yet safe with us."""
        waiting = [frame.seq for backlog in self._backlog.values() for frame in backlog]
        limit = min([*waiting, *self._unsettled], default=self._last_seq + 1) - 1
        self._unacked_bytes = 0
        if limit > self._acked:
            self._acked = limit
            await self._write(frames.ack(limit))

    async def _keep_alive(self) -> None:
        period = self._orphan_ms / 3000
        while self._closed is None:
            await asyncio.sleep(period)
            with contextlib.suppress(Exception):  # whoever waits for a command sees what broke
                await self._write(frames.encode(Type.PING, bytes(8)))

    def _fail(self, error: BaseException) -> None:
        if self._closed is None:
            self._closed = error
        for future in (self._welcome, self._pinged, *(r.exit for r in self._running.values())):
            if future is not None and not future.done():
                future.set_exception(self._closed)
                future.exception()  # whoever waits sees it; nobody waiting is no error
        for running in self._running.values():
            running.stdin_moved.set()


_FATAL_REFUSALS = frozenset({1, 2, 3, 6})
