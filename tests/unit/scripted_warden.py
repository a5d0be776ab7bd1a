"""A warden in memory: the protocol's other end without processes, so that a test says when what happens.

It refuses to be acknowledged what is not safe, and keeps to its window as the real one does. Its reading of the
contract is that of `warden_harness`, not the product's. An `old` one is of the release before: all its commands share
one window, and it passes over acknowledgements of single commands.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from tests.unit.warden_harness import (
    ACK,
    ACK_COMMAND,
    BEGIN,
    EXIT,
    HELLO,
    OUTPUT,
    PING,
    PONG,
    REFUSED,
    RESIZE,
    SHUTDOWN,
    SIGNAL,
    SPEC,
    START,
    STARTED,
    STDIN,
    STDIN_ACK,
    STDIN_EOF,
    WELCOME,
    ZEROS,
    Frame,
    decode,
)

WINDOW = 524_288
OLD_WINDOW = 1024 * 1024
STDIN_WINDOW = 262_144
SLOTS = 32
_TILE = bytes(range(251))
DUPLICATE, TOO_MANY, UNKNOWN, OUT_OF_WINDOW = 1, 2, 4, 5


def pattern(command: int, stream: int, offset: int, size: int) -> bytes:
    """What a scripted command says there: every byte tells where it belongs."""
    begin = (command * 7 + stream * 3 + offset) % len(_TILE)
    return (_TILE * (2 + size // len(_TILE)))[begin : begin + size]


@dataclass
class Script:
    """What a command is going to do."""

    outputs: list[tuple[int, int]] = field(default_factory=list)
    """Stream and size."""
    reads: bool = False
    """It takes input, and ends behind the end of it."""
    lives: bool = False
    """Until it is killed."""


@dataclass
class Running:
    script: Script
    outputs: deque[tuple[int, int]]
    said: dict[int, int] = field(default_factory=lambda: {1: 0, 2: 0})
    input: bytearray = field(default_factory=bytearray)
    handed: int = 0
    hungry: bool = True
    eof: bool = False
    killed: bool = False
    exit_seq: int = 0
    used: int = 0


class ScriptedWarden:
    def __init__(
        self, scripts: dict[int, Script], safe: Callable[[Frame], bool] = lambda frame: True, *, old: bool = False
    ) -> None:
        """`safe`: may this reliable frame be forgotten?"""
        self.old = old
        self.scripts = scripts
        self.commands: dict[int, Running] = {}
        self.highest = 0
        self.sizes: list[tuple[int, int, int]] = []
        self.signals: list[tuple[int, int]] = []
        self.begun: list[tuple[int, int]] = []
        self.attachment: Attachment | None = None
        self._safe = safe
        self._seq = 1
        self._window: list[Frame] = []
        self._unsent: deque[Frame] = deque()

    def attach(self, bytes_in: int | None = None) -> Attachment:
        """Another owner; the connection breaks when that many bytes came in."""
        if self.attachment is not None:
            self.attachment.abort()
        self.attachment = Attachment(self, bytes_in)
        return self.attachment

    # --- frames in

    def take(self, frame: Frame) -> None:
        self._answer(frame)
        self.go_on()

    def _answer(self, frame: Frame) -> None:
        if frame.type == HELLO:
            self._welcome(frame.payload[:16])
        elif frame.type == START:
            self._start(frame.command)
        elif frame.type == PING:
            self._send(Frame(PONG, frame.payload))
        elif frame.type == ACK:
            self._acked(struct.unpack(">Q", frame.payload)[0], self.commands)
        elif frame.type == ACK_COMMAND:
            self._acked(struct.unpack(">Q", frame.payload)[0], () if self.old else (frame.command,))
        elif frame.type == BEGIN:
            self.begun.append((frame.command, *struct.unpack(">I", frame.payload)))
        elif frame.type in (SIGNAL, STDIN, STDIN_EOF, RESIZE):
            self._steer(frame)
        else:
            assert frame.type in (SPEC, SHUTDOWN)

    def _steer(self, frame: Frame) -> None:
        command = self.commands.get(frame.command)
        if frame.type == SIGNAL:
            self.signals.append((frame.command, frame.payload[0]))
        if command is None:
            self._refuse(frame.command, UNKNOWN)
        elif frame.type == SIGNAL:
            command.killed = True
        elif frame.type == RESIZE:
            self.sizes.append((frame.command, *struct.unpack(">HH", frame.payload)))
        elif not command.exit_seq:
            self._input(frame, command)

    def _welcome(self, nonce: bytes) -> None:
        known = b"".join(
            struct.pack(">IBQ", number, 2 if command.exit_seq else 1, len(command.input))
            for number, command in self.commands.items()
        )
        head = struct.pack(">HQIH", 1, self._seq, self.highest, len(self.commands))
        self._send(Frame(WELCOME, nonce + head + known))
        for number, command in self.commands.items():
            if command.script.reads:
                self._send(Frame(STDIN_ACK, struct.pack(">Q", command.handed), number))
        self._unsent = deque(self._window)

    def _start(self, number: int) -> None:
        if number <= self.highest:
            self._refuse(number, DUPLICATE)
        elif len(self.commands) >= SLOTS:
            self._refuse(number, TOO_MANY)
        else:
            self.highest = number
            script = self.scripts.get(number, Script())
            self.commands[number] = Running(script, deque(script.outputs))
            self._push(Frame(STARTED, struct.pack(">I", 1000 + number), number))

    def _input(self, frame: Frame, command: Running) -> None:
        (offset,) = struct.unpack_from(">Q", frame.payload)
        data = frame.payload[8:]
        if frame.type == STDIN_EOF:
            if not command.script.reads or offset != len(command.input):
                self._refuse(frame.command, OUT_OF_WINDOW)
            else:
                command.eof = True
            return
        new = data[max(0, len(command.input) - offset) :]
        if (
            not command.script.reads
            or offset > len(command.input)
            or (new and (command.eof or len(command.input) + len(new) - command.handed > STDIN_WINDOW))
        ):
            self._refuse(frame.command, OUT_OF_WINDOW)
        else:
            command.input += new

    def _acked(self, seq: int, commands: Collection[int]) -> None:
        assert seq < self._seq, "an acknowledgement of what was never sent"
        gone = [frame for frame in self._window if frame.seq <= seq and frame.command in commands]
        self._window = [frame for frame in self._window if frame not in gone]
        for frame in gone:
            self.commands[frame.command].used -= 28 + len(frame.payload)
            assert self._safe(frame), f"acknowledged and not safe: {frame.type} of {frame.command}"
            if frame.type == EXIT:
                del self.commands[frame.command]

    def _room(self, command: Running) -> bool:
        used = sum(each.used for each in self.commands.values()) if self.old else command.used
        return used + 28 + 9 + 32_768 <= (OLD_WINDOW if self.old else WINDOW)

    # --- what goes on inside

    def go_on(self) -> None:
        for number, command in list(self.commands.items()):
            self._read_input(number, command)
            while command.outputs and not command.killed and self._room(command):
                stream, size = command.outputs.popleft()
                offset = command.said[stream]
                command.said[stream] += size
                head = struct.pack(">BQ", stream, offset)
                self._push(Frame(OUTPUT, head + pattern(number, stream, offset, size), number))
            if not command.exit_seq and (command.killed or self._is_over(command)):
                command.exit_seq = self._seq
                self._push(Frame(EXIT, self._exit(number, command), number))
        if self.attachment is not None and self.attachment.greeted:
            while self._unsent:
                self._send(self._unsent.popleft())

    def _read_input(self, number: int, command: Running) -> None:
        if command.hungry and command.handed < len(command.input):
            command.handed = len(command.input)
            self._send(Frame(STDIN_ACK, struct.pack(">Q", command.handed), number))

    def _is_over(self, command: Running) -> bool:
        if command.script.lives:
            return False
        return not command.outputs and (not command.script.reads or (command.eof and command.hungry))

    def _exit(self, number: int, command: Running) -> bytes:
        ends = b""
        for stream in (1, 2):
            data = pattern(number, stream, 0, command.said[stream])
            ends += struct.pack(">Q", len(data)) + hashlib.sha256(data).digest()
        head = (2, 0, 1, 9) if command.killed else (1, 0, 0, 0)
        return struct.pack(">BBBxiQQQQQQ", *head, 1, 2, 3, 4, 5, 6) + ends

    # --- frames out

    def _push(self, frame: Frame) -> None:
        numbered = Frame(frame.type, frame.payload, frame.command, self._seq)
        self._seq += 1
        self.commands[frame.command].used += 28 + len(frame.payload)
        self._window.append(numbered)
        self._unsent.append(numbered)

    def _refuse(self, number: int, code: int) -> None:
        self._send(Frame(REFUSED, bytes([code]) + b"no", number))

    def _send(self, frame: Frame) -> None:
        if self.attachment is not None:
            self.attachment.sent(frame)


class Attachment:
    """A transport of the product's to a scripted warden."""

    def __init__(self, warden: ScriptedWarden, bytes_in: int | None) -> None:
        self._warden = warden
        self._left = bytes_in
        self._in = bytearray()
        self._out = bytearray()
        self._news = asyncio.Event()
        self._gone = False
        self.greeted = False

    def breaks_after(self, bytes_in: int) -> None:
        self._left = bytes_in

    async def read(self) -> bytes:
        while not self._out and not self._gone:
            self._news.clear()
            await self._news.wait()
        data = bytes(self._out[:100_000])
        del self._out[:100_000]
        return data

    async def write(self, data: bytes) -> None:
        """What is written is on its way, not there: whoever wrote cannot tell where the connection broke."""
        if self._gone:
            raise BrokenPipeError
        breaks = self._left is not None and len(data) > self._left
        if self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
        self._in += data
        self._take()
        if breaks:
            self.abort()
        await asyncio.sleep(0)

    def _take(self) -> None:
        if self._in[: len(ZEROS)] == ZEROS:
            del self._in[: len(ZEROS)]
        while self._in[:4] == b"FHW1" and (found := decode(self._in)):
            del self._in[: found[1]]
            self.greeted = self.greeted or found[0].type == HELLO
            self._warden.take(found[0])

    def sent(self, frame: Frame) -> None:
        if not self._gone:
            self._out += frame.encode()
            self._news.set()

    def abort(self) -> None:
        """What was under way to the owner is gone, too."""
        self._gone = True
        self._out.clear()
        self._news.set()
        if self._warden.attachment is self:
            self._warden.attachment = None
