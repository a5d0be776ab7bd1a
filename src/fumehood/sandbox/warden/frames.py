"""The warden's frames as values: encoding, and a decoder that finds its place again. Pure, no I/O.

`contracts/warden-protocol.md` is the text of record; `contracts/golden/warden/` pins both ends to it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from fumehood.errors import WardenProtocolError

VERSION = 1
MAGIC = b"FHW1"
MAX_PAYLOAD = 65_536
MAX_SPEC = 2 * 1024 * 1024
STDIN_WINDOW = 262_144
WINDOW = 524_288
"""Of each command."""
NONCE_SIZE = 16

_HEADER = struct.Struct(">4sB3xIQII")
_HEADER_WITHOUT_CRC = struct.Struct(">4sB3xIQI")
HEADER_SIZE = _HEADER.size
PADDING = bytes(MAX_PAYLOAD + HEADER_SIZE)
"""Completes any frame that an earlier owner left torn, so that its CRC fails and it is dropped whole."""


class Type(IntEnum):
    HELLO = 1
    SPEC = 2
    START = 3
    STDIN = 4
    STDIN_EOF = 5
    ACK = 6
    SIGNAL = 7
    RESIZE = 8
    PING = 9
    SHUTDOWN = 10
    ACK_COMMAND = 11
    BEGIN = 12
    WELCOME = 129
    STARTED = 130
    OUTPUT = 131
    EXIT = 132
    STDIN_ACK = 133
    PONG = 134
    REFUSED = 135


class Kind(IntEnum):
    EXEC = 0
    READ = 1
    WRITE = 2
    LIST = 3
    STAT = 4
    REMOVE = 5
    MKDIR = 6


class Flag(IntFlag):
    SWEEP_ON_EXIT = 1
    SWEEP_ON_TIMEOUT = 2
    PTY = 4
    STDIN = 8
    RECURSIVE = 16
    WAITS = 32


@dataclass(frozen=True, slots=True)
class Frame:
    type: int
    command_id: int
    seq: int
    payload: bytes


def encode(type_: Type, payload: bytes = b"", *, command_id: int = 0, seq: int = 0) -> bytes:
    """One frame as bytes."""
    if len(payload) > MAX_PAYLOAD:
        raise ValueError(f"payload of {len(payload)} bytes")
    head = _HEADER_WITHOUT_CRC.pack(MAGIC, type_, command_id, seq, len(payload))
    crc = zlib.crc32(payload, zlib.crc32(head))
    return head + struct.pack(">I", crc) + payload


class Decoder:
    """Takes the warden's bytes in pieces of any size and gives back its frames.

    Until the WELCOME with our own nonce was seen everything is discarded: the engine may begin an attachment in
    the middle of a frame. The nonce is random and never visible inside the sandbox, so no output can stand in for it.
    """

    def __init__(self, nonce: bytes) -> None:
        self._buffer = bytearray()
        self._nonce = nonce
        self._synced = False

    @property
    def synced(self) -> bool:
        return self._synced

    def feed(self, data: bytes) -> Iterator[Frame]:
        """All frames that are complete with this piece. Raises `WardenProtocolError` on a bad frame after the sync."""
        self._buffer += data
        if not self._synced and not self._sync():
            return
        yield from self._frames()

    def _sync(self) -> bool:
        start = self._buffer.find(self._nonce) - HEADER_SIZE
        while start >= 0:
            if self._buffer[start : start + 5] == MAGIC + bytes([Type.WELCOME]):
                del self._buffer[:start]
                self._synced = True
                return True
            start = self._buffer.find(self._nonce, start + HEADER_SIZE + 1) - HEADER_SIZE
        # Keep what could still be the beginning of it; drop the rest, so that a flood before the sync stays bounded.
        keep = HEADER_SIZE + NONCE_SIZE
        del self._buffer[: max(0, len(self._buffer) - keep)]
        return False

    def _frames(self) -> Iterator[Frame]:
        buffer, position = self._buffer, 0
        try:
            while len(buffer) - position >= HEADER_SIZE:
                magic, type_, command_id, seq, length, crc = _HEADER.unpack_from(buffer, position)
                if magic != MAGIC or length > MAX_PAYLOAD:
                    raise WardenProtocolError("the warden sent a malformed frame")
                end = position + HEADER_SIZE + length
                if len(buffer) < end:
                    return
                payload = bytes(memoryview(buffer)[position + HEADER_SIZE : end])
                head = bytes(memoryview(buffer)[position : position + HEADER_SIZE - 4])
                if zlib.crc32(payload, zlib.crc32(head)) != crc:
                    raise WardenProtocolError("the warden sent a frame with a wrong checksum")
                position = end
                yield Frame(type_, command_id, seq, payload)
        finally:
            del buffer[:position]


# --- payloads, owner to warden -----------------------------------------------------------------------------


def hello(nonce: bytes, orphan_ms: int) -> bytes:
    return encode(Type.HELLO, nonce + struct.pack(">HI", VERSION, orphan_ms))


def ack(command_id: int, seq: int) -> bytes:
    """Everything up to a number is safe: of one command, or with 0 of all."""
    return encode(Type.ACK_COMMAND if command_id else Type.ACK, struct.pack(">Q", seq), command_id=command_id)


def stdin(command_id: int, offset: int, data: bytes) -> bytes:
    return encode(Type.STDIN, struct.pack(">Q", offset) + data, command_id=command_id)


def stdin_eof(command_id: int, total: int) -> bytes:
    return encode(Type.STDIN_EOF, struct.pack(">Q", total), command_id=command_id)


def signal(command_id: int, number: int, *, everything: bool) -> bytes:
    return encode(Type.SIGNAL, bytes([number, int(everything)]), command_id=command_id)


def resize(command_id: int, rows: int, columns: int) -> bytes:
    return encode(Type.RESIZE, struct.pack(">HH", rows, columns), command_id=command_id)


def begin(command_id: int, timeout_ms: int) -> bytes:
    return encode(Type.BEGIN, struct.pack(">I", timeout_ms), command_id=command_id)


@dataclass(frozen=True, slots=True)
class WireCommand:
    """A command's spec as the warden reads it."""

    kind: Kind
    flags: Flag
    uid: int
    gid: int
    directory: bytes
    argv: Sequence[bytes]
    env: Sequence[bytes] = ()
    timeout_ms: int = 0
    rows: int = 0
    columns: int = 0
    mode: int = 0
    offset: int = 0
    length: int = 0

    def encode(self) -> bytes:
        fixed = struct.pack(
            ">BBHHIIIIQQ",
            self.kind,
            self.flags,
            self.rows,
            self.columns,
            self.uid,
            self.gid,
            self.timeout_ms,
            self.mode,
            self.offset,
            self.length,
        )
        return fixed + _str(self.directory) + _strs(self.argv) + _strs(self.env)

    @property
    def fits(self) -> bool:
        """Whether the warden would take it at all. Its bound is above what a kernel takes as arguments."""
        return len(self.encode()) <= MAX_SPEC

    def frames(self, command_id: int) -> bytes:
        """SPEC pieces and the START that commits them."""
        spec = self.encode()
        if len(spec) > MAX_SPEC:
            raise ValueError(f"a command of {len(spec)} bytes is larger than {MAX_SPEC}")
        step = MAX_PAYLOAD - 4
        pieces = [
            encode(Type.SPEC, struct.pack(">I", at) + spec[at : at + step], command_id=command_id)
            for at in range(0, len(spec), step)
        ]
        return b"".join(pieces) + encode(Type.START, struct.pack(">I", len(spec)), command_id=command_id)


def _str(text: bytes) -> bytes:
    if b"\0" in text:
        raise ValueError("NUL in a string")
    return struct.pack(">I", len(text)) + text


def _strs(texts: Sequence[bytes]) -> bytes:
    return struct.pack(">I", len(texts)) + b"".join(map(_str, texts))


# --- payloads, warden to owner -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KnownCommand:
    running: bool
    stdin_received: int


@dataclass(frozen=True, slots=True)
class Welcome:
    version: int
    next_seq: int
    highest_id: int
    commands: dict[int, KnownCommand]


@dataclass(frozen=True, slots=True)
class Output:
    stream: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Exit:
    state: int
    stage: int
    flags: int
    code: int
    started_ms: int
    ended_ms: int
    duration_us: int
    user_us: int
    system_us: int
    max_rss_kib: int
    stdout_total: int
    stdout_sha256: bytes
    stderr_total: int
    stderr_sha256: bytes


@dataclass(frozen=True, slots=True)
class FileRecord:
    kind: int
    mode: int
    uid: int
    gid: int
    size: int
    modified_ms: int
    name: bytes


_WELCOME = struct.Struct(">16sHQIH")
_KNOWN = struct.Struct(">IBQ")
_EXIT = struct.Struct(">BBBxiQQQQQQQ32sQ32s")
_OUTPUT = struct.Struct(">BQ")
_RECORD = struct.Struct(">BIIIQQI")


def parse_welcome(payload: bytes) -> Welcome:
    try:
        _nonce, version, next_seq, highest, count = _WELCOME.unpack_from(payload)
        known = {}
        for index in range(count):
            command_id, state, received = _KNOWN.unpack_from(payload, _WELCOME.size + index * _KNOWN.size)
            known[command_id] = KnownCommand(state == 1, received)
    except struct.error as error:
        raise WardenProtocolError("a malformed WELCOME") from error
    return Welcome(version, next_seq, highest, known)


def parse_output(payload: bytes) -> Output:
    if len(payload) < _OUTPUT.size or payload[0] not in (1, 2):
        raise WardenProtocolError("a malformed OUTPUT")
    stream, offset = _OUTPUT.unpack_from(payload)
    return Output(stream, offset, payload[_OUTPUT.size :])


def parse_exit(payload: bytes) -> Exit:
    try:
        return Exit(*_EXIT.unpack(payload))
    except struct.error as error:
        raise WardenProtocolError("a malformed EXIT") from error


def parse_u64(payload: bytes) -> int:
    if len(payload) != 8:
        raise WardenProtocolError("a malformed number")
    return int.from_bytes(payload, "big")


def parse_refused(payload: bytes) -> tuple[int, str]:
    if not payload:
        raise WardenProtocolError("a malformed REFUSED")
    return payload[0], payload[1:].decode("utf-8", "replace")


def parse_records(data: bytes) -> list[FileRecord]:
    """The output of `list` and `stat`."""
    records, position = [], 0
    while position < len(data):
        try:
            kind, mode, uid, gid, size, modified, length = _RECORD.unpack_from(data, position)
        except struct.error as error:
            raise WardenProtocolError("a malformed file record") from error
        position += _RECORD.size
        name = data[position : position + length]
        if len(name) != length:
            raise WardenProtocolError("a file record is cut off")
        position += length
        records.append(FileRecord(kind, mode, uid, gid, size, modified, name))
    return records
