"""The owner of one warden: starts commands, takes their output, and comes back after a broken connection.

One `WardenClient` is one attachment. It ends when its transport ends; whoever holds it (a driver) then looks at
the engine, opens another one and *joins* the commands that were running. What makes that safe is in the protocol:
command ids never repeat, reliable frames are kept by the warden until they are acknowledged, and a piece of
output is acknowledged only after its sink has it.

All commands of a sandbox share the attachment. A command whose sink has no room, or that nobody has joined, keeps its
frames here, not acknowledged, while those of all others go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Collection
from typing import Any

from fumehood.errors import CommandRefusedError, DeadlineExceededError, WardenProtocolError
from fumehood.sandbox.driver import Sink
from fumehood.sandbox.warden import frames, ids
from fumehood.sandbox.warden.acks import Ack
from fumehood.sandbox.warden.frames import Exit, Frame, Type, Welcome, WireCommand
from fumehood.sandbox.warden.inputs import Inputs
from fumehood.sandbox.warden.intake import Intake
from fumehood.sandbox.warden.known import Known, Waiter
from fumehood.sandbox.warden.transport import Transport, TransportClosedError

_RELIABLE = frozenset({Type.STARTED, Type.OUTPUT, Type.EXIT})
_SIGKILL = 9
_DUPLICATE = 1
_INPUT_REFUSED = 5
_FATAL_REFUSALS = frozenset({1, 2, 3, 6})


class WardenClient:
    def __init__(self, transport: Transport, *, orphan_ms: int) -> None:
        self._transport = transport
        self._orphan_ms = orphan_ms
        self._nonce = os.urandom(frames.NONCE_SIZE)
        self._welcome: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        self._known: dict[int, Known] = {}
        self._highest = 0
        self._begun = asyncio.Event()
        self._intake = Intake(self._send_acks)
        self._inputs = Inputs(self._write, self.round_trip)
        self._pings = 0
        self._pongs: dict[int, asyncio.Future[None]] = {}
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
                if welcome.version != frames.VERSION:
                    raise WardenProtocolError(f"the warden speaks version {welcome.version}, not {frames.VERSION}")
                await self.disown([number for number in welcome.commands if not ids.is_ours(number)])
        except TimeoutError:
            self.close()
            raise DeadlineExceededError("the warden did not answer in time") from None
        except BaseException:
            self.close()
            raise
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

    @property
    def highest(self) -> int:
        """The highest id that was ever started here."""
        return self._highest

    def fresh_id(self) -> int:
        """An id for an operation of ours that is started at once."""
        return ids.our_id(self._highest)

    async def run(
        self, command_id: int, command: WireCommand, sink: Sink, stdin: bytes = b"", *, more_stdin: bool = False
    ) -> Exit:
        """Start the command, or join it if the warden already knows its id, and wait for its end."""
        end = await self.start(command_id, command, sink)
        try:
            if command.flags & frames.Flag.STDIN:
                await self._inputs.first(self._known[command_id], stdin, more=more_stdin)
            return await end
        finally:
            self.leave(command_id, sink)

    async def start(self, command_id: int, command: WireCommand, sink: Sink) -> asyncio.Future[Exit]:
        """Start or join a command, and tell its end. Until `leave` its output goes to the sink."""
        await asyncio.shield(self._welcome)
        if self._closed is not None:
            raise self._closed
        known, new = self._known.get(command_id), command_id > self._highest
        if (known is None and not new) or (known is not None and known.dropped):
            raise WardenProtocolError(f"the result of command {command_id} was taken before")
        if known is None:
            known = self._known[command_id] = Known(command_id)
        if known.waiter is not None:
            raise CommandRefusedError(f"command {command_id} is waited for already")
        waiter = known.waiter = Waiter(sink, asyncio.get_running_loop().create_future())
        try:
            if new:
                self._highest = command_id
                self._begun.set()
                self._begun = asyncio.Event()
                await self._write(command.frames(command_id))  # before anybody who waited for it can write
            self._intake.take_held(known)
            await self._intake.acknowledge_if_due()
        except BaseException:
            self.leave(command_id, sink)
            raise
        return waiter.exit

    def leave(self, command_id: int, sink: Sink) -> None:
        """Take no more of this command's output. It may well go on in there, and be joined again."""
        known = self._known.get(command_id)
        if known is None or known.waiter is None or known.waiter.sink is not sink:
            return
        if known.waiter.pump is not None:
            known.waiter.pump.cancel()
        known.waiter = None
        if known.refused:
            del self._known[command_id]

    async def settle(self, *command_ids: int) -> None:
        """Acknowledge the ends of commands: their outcomes are stored. All of them, even if this is cancelled."""
        for command_id in command_ids:
            known = self._known.get(command_id)
            if known is not None:
                self._drop(known)
        await self._intake.acknowledge()

    async def disown(self, keep: Collection[int]) -> None:
        """Kill and forget all commands but these, and those that somebody waits for here."""
        for known in list(self._known.values()):
            if known.command_id not in keep and known.waiter is None:
                await self.abandon(known.command_id)

    async def abandon(self, command_id: int) -> None:
        """Forget a command, and kill it unless it has ended. What still comes of it is passed over."""
        known = self._known.get(command_id)
        if known is None or self._closed is not None:
            return
        self._drop(known)
        if not known.over:
            with contextlib.suppress(TransportClosedError):  # then the next attachment finds it
                await self.signal(command_id, _SIGKILL, everything=False)
        await self._intake.acknowledge()

    def _drop(self, known: Known) -> None:
        self._intake.drop(known)
        if known.forgotten:
            self._known.pop(known.command_id, None)

    async def signal(self, command_id: int, number: int, *, everything: bool) -> None:
        await self._write(frames.signal(command_id, number, everything=everything))

    async def resize(self, command_id: int, rows: int, columns: int) -> None:
        """The warden has it when this returns; a command that has ended is none of its concern."""
        if await self._find(command_id) is not None:
            await self._write(frames.resize(command_id, rows, columns))
            await self.round_trip()

    async def begin(self, command_id: int, timeout_ms: int) -> bool:
        """Start the clock of a command that waits. The warden has it when this returns; False: it had ended before."""
        known = await self._find(command_id)
        if known is None or known.over:
            return False
        await self._write(frames.begin(command_id, timeout_ms))
        await self.round_trip()
        return True

    async def shutdown(self) -> None:
        await self._write(frames.encode(Type.SHUTDOWN))

    async def ping(self, timeout: float) -> None:
        """A round trip; raises `DeadlineExceededError` when the warden does not answer."""
        try:
            async with asyncio.timeout(timeout):
                await self.round_trip()
        except TimeoutError:
            raise DeadlineExceededError("the warden did not answer a ping in time") from None

    # --- input ---------------------------------------------------------------------------------------------

    async def feed(self, command_id: int, offset: int, data: bytes, *, seconds: float | None = None) -> int:
        """Give a command more input, for at most so long; returns what the warden has of it for certain."""
        known = await self._find(command_id)
        return 0 if known is None else await self._inputs.feed(known, offset, data, seconds)

    async def end_input(self, command_id: int) -> None:
        known = await self._find(command_id)
        if known is not None:
            await self._inputs.end(known)

    async def stdin_received(self, command_id: int) -> int:
        """Does not wait for a command that was not started: there is none of its input."""
        known = self._known.get(command_id)
        return 0 if known is None or known.dropped else known.received

    async def _find(self, command_id: int) -> Known | None:
        """A command, as soon as it was started; `None` when it has ended and is forgotten."""
        await asyncio.shield(self._welcome)
        while command_id > self._highest and self._closed is None:
            await self._begun.wait()
        if self._closed is not None:
            raise self._closed
        known = self._known.get(command_id)
        return None if known is None or known.dropped else known

    # --- frames --------------------------------------------------------------------------------------------

    async def _write(self, data: bytes) -> None:
        if self._closed is not None:
            raise self._closed
        try:
            await self._transport.write(data)
        except OSError as error:
            self._fail(TransportClosedError(str(error)))
            raise TransportClosedError(str(error)) from error

    async def round_trip(self) -> None:
        """Everything that was written before has reached the warden, and what it refused has been told."""
        self._pings += 1
        number, pong = self._pings, asyncio.get_running_loop().create_future()
        self._pongs[number] = pong
        try:
            await self._write(frames.encode(Type.PING, number.to_bytes(8, "big")))
            await pong
        finally:
            self._pongs.pop(number, None)

    async def _read(self) -> None:
        decoder = frames.Decoder(self._nonce)
        try:
            while data := await self._read_piece():
                for frame in decoder.feed(data):
                    self._receive(frame)
                await self._intake.acknowledge_if_due()
            self._fail(TransportClosedError("the attachment ended"))
        except Exception as error:  # noqa: BLE001 - a warden that lies: nobody may hang
            self._fail(error)

    async def _read_piece(self) -> bytes:
        try:
            return await self._transport.read()
        except OSError as error:
            raise TransportClosedError(str(error)) from error

    def _receive(self, frame: Frame) -> None:
        if frame.type in _RELIABLE:
            known = self._known.get(frame.command_id)
            if known is None:
                raise WardenProtocolError(f"the warden speaks of command {frame.command_id}, which nobody started")
            self._intake.arrived(known, frame)
            if known.forgotten:
                self._drop(known)
        elif frame.type == Type.WELCOME:
            self._welcomed(frame)
        elif frame.type == Type.STDIN_ACK:
            if frame.command_id in self._known:
                self._known[frame.command_id].was_handed(frames.parse_u64(frame.payload))
        elif frame.type == Type.PONG:
            self._ponged(frames.parse_u64(frame.payload))
        elif frame.type == Type.REFUSED:
            self._refused(frame)
        else:
            raise WardenProtocolError(f"the warden sent a frame of type {frame.type}")

    def _welcomed(self, frame: Frame) -> None:
        if self._welcome.done():
            return
        welcome = frames.parse_welcome(frame.payload)
        self._highest = welcome.highest_id
        self._intake.welcomed(welcome.next_seq)
        for number, told in welcome.commands.items():
            received = told.stdin_received
            self._known[number] = Known(number, received=received, written=received, over=not told.running)
        self._welcome.set_result(welcome)

    def _ponged(self, last: int) -> None:
        """Of several pings only the last is answered: it counts for all before it."""
        for number, pong in self._pongs.items():
            if number <= last and not pong.done():
                pong.set_result(None)

    def _refused(self, frame: Frame) -> None:
        code, text = frames.parse_refused(frame.payload)
        known = self._known.get(frame.command_id)
        if known is None:
            return
        if code == _INPUT_REFUSED:
            known.input_refused = True
        elif code in _FATAL_REFUSALS and not known.refused:
            known.refused = known.over = True
            known.moved.set()
            if self._highest == known.command_id and code != _DUPLICATE:
                self._highest -= 1  # it was not used up
            if known.waiter is not None and not known.waiter.exit.done():
                known.waiter.exit.set_exception(CommandRefusedError(f"{text} (code {code})"))

    async def _send_acks(self, acks: list[Ack]) -> None:
        if self._closed is None:
            with contextlib.suppress(TransportClosedError):  # who reads will see it, and all comes again
                await self._write(b"".join(frames.ack(command_id, number) for command_id, number in acks))

    async def _keep_alive(self) -> None:
        period = self._orphan_ms / 3000
        while self._closed is None:
            await asyncio.sleep(period)
            with contextlib.suppress(Exception):  # whoever waits for a command sees what broke
                await self._write(frames.encode(Type.PING, self._pings.to_bytes(8, "big")))

    def _fail(self, error: BaseException) -> None:
        if self._closed is None:
            self._closed = error
        _break(self._welcome, self._closed)
        for pong in self._pongs.values():
            _break(pong, self._closed)
        for known in self._known.values():
            if known.waiter is not None and not known.all_here:
                _break(known.waiter.exit, self._closed)
            known.lost = self._closed
            known.moved.set()
        self._begun.set()


def _break(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # whoever waits sees it; nobody waiting is no error
