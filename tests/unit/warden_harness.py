"""A second, independent reading of contracts/warden-protocol.md: drives the built warden as PID 1 over pipes.

On purpose this shares nothing with the product's own codec.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import select
import signal
import struct
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HELLO, SPEC, START, STDIN, STDIN_EOF, ACK, SIGNAL, RESIZE, PING, SHUTDOWN, ACK_COMMAND, BEGIN = range(1, 13)
WELCOME, STARTED, OUTPUT, EXIT, STDIN_ACK, PONG, REFUSED = range(129, 136)
RELIABLE = {STARTED, OUTPUT, EXIT}
EXITED, SIGNALED, TIMED_OUT, NOT_STARTED = 1, 2, 3, 4
EXEC, READ, WRITE, LIST, STAT, REMOVE, MKDIR = range(7)
SWEEP_EXIT, SWEEP_TIMEOUT, PTY, WITH_STDIN, RECURSIVE, WAITS = 1, 2, 4, 8, 16, 32
ZEROS = bytes(65_564)
USER = 65532
WARDEN_ID = 65511
HEADER = struct.Struct(">4sB3xIQII")


class ProtocolError(AssertionError):
    """The warden sent something the contract forbids."""


@dataclass(frozen=True)
class Frame:
    type: int
    payload: bytes = b""
    command: int = 0
    seq: int = 0

    def encode(self) -> bytes:
        head = struct.pack(">4sB3xIQI", b"FHW1", self.type, self.command, self.seq, len(self.payload))
        return head + struct.pack(">I", zlib.crc32(self.payload, zlib.crc32(head))) + self.payload


def decode(buffer: bytes | bytearray) -> tuple[Frame, int] | None:
    """The first frame of the buffer and its size, or None where it is not yet whole."""
    if len(buffer) < HEADER.size:
        return None
    magic, kind, command, seq, length, crc = HEADER.unpack_from(buffer)
    if magic != b"FHW1" or buffer[5:8] != b"\0\0\0" or length > 65536:
        raise ProtocolError(f"bad header {buffer[:28].hex()}")
    if len(buffer) < HEADER.size + length:
        return None
    payload = bytes(buffer[HEADER.size : HEADER.size + length])
    if zlib.crc32(payload, zlib.crc32(buffer[:24])) != crc:
        raise ProtocolError("bad CRC")
    return Frame(kind, payload, command, seq), HEADER.size + length


def string(value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack(">I", len(raw)) + raw


def make_spec(
    argv: Sequence[bytes | str],
    *,
    kind: int = EXEC,
    flags: int = 0,
    rows: int = 0,
    columns: int = 0,
    uid: int = USER,
    gid: int = USER,
    timeout_ms: int = 0,
    mode: int = 0o644,
    offset: int = 0,
    length: int = 0,
    directory: str = "/",
    env: Sequence[bytes | str] = ("PATH=/usr/bin:/bin",),
) -> bytes:
    head = struct.pack(">BBHHIIIIQQ", kind, flags, rows, columns, uid, gid, timeout_ms, mode, offset, length)
    lists = b"".join(struct.pack(">I", len(part)) + b"".join(map(string, part)) for part in (argv, env))
    return head + string(directory) + lists


@dataclass(frozen=True)
class Exit:
    state: int
    stage: int
    flags: int
    code: int
    started: int
    ended: int
    duration_us: int
    user_us: int
    system_us: int
    max_rss: int
    stdout_bytes: int
    stdout_sha: bytes
    stderr_bytes: int
    stderr_sha: bytes

    @classmethod
    def parse(cls, payload: bytes) -> Exit:
        fields = struct.unpack(">BBBxiQQQQQQQ32sQ32s", payload)
        return cls(*fields)


@dataclass(frozen=True)
class Welcome:
    version: int
    next_seq: int
    highest: int
    commands: dict[int, tuple[int, int]]

    @classmethod
    def parse(cls, payload: bytes) -> Welcome:
        version, next_seq, highest, count = struct.unpack_from(">HQIH", payload, 16)
        if len(payload) != 32 + 13 * count:
            raise ProtocolError("WELCOME of the wrong length")
        rows = [struct.unpack_from(">IBQ", payload, 32 + 13 * i) for i in range(count)]
        return cls(version, next_seq, highest, {row[0]: (row[1], row[2]) for row in rows})


@dataclass
class Result:
    """What one command said, put together from its frames; refuses gaps and repetitions."""

    pid: int = 0
    streams: dict[int, bytearray] = field(default_factory=lambda: {1: bytearray(), 2: bytearray()})
    end: Exit | None = None

    @property
    def exit(self) -> Exit:
        assert self.end is not None
        return self.end

    @property
    def stdout(self) -> bytes:
        return bytes(self.streams[1])

    @property
    def stderr(self) -> bytes:
        return bytes(self.streams[2])

    def take(self, frame: Frame) -> None:
        if self.end is not None:
            raise ProtocolError("a reliable frame after EXIT")
        if frame.type == STARTED:
            if self.pid:
                raise ProtocolError("STARTED twice")
            (self.pid,) = struct.unpack(">I", frame.payload)
        elif frame.type == OUTPUT:
            stream, offset = struct.unpack_from(">BQ", frame.payload)
            if offset != len(self.streams[stream]) or not self.pid or len(frame.payload) > 9 + 32768:
                raise ProtocolError(f"output at {offset}, expected {len(self.streams[stream])}")
            self.streams[stream] += frame.payload[9:]
        else:
            self.end = Exit.parse(frame.payload)
            self._check(self.end)

    def _check(self, end: Exit) -> None:
        for stream, total, digest in (
            (1, end.stdout_bytes, end.stdout_sha),
            (2, end.stderr_bytes, end.stderr_sha),
        ):
            if total != len(self.streams[stream]) or hashlib.sha256(self.streams[stream]).digest() != digest:
                raise ProtocolError(f"stream {stream} is not what EXIT says")
        if (end.state == NOT_STARTED) != bool(end.stage):
            raise ProtocolError("a stage without not_started, or the reverse")


class Sandbox:
    """One warden as PID 1 of namespaces of its own. The pipes outlive any single owner, as the engine's do."""

    def __init__(self, binary: Path, *, wrapper: Sequence[str] = (), stderr: int = subprocess.DEVNULL) -> None:
        command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *wrapper, str(binary)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, bufsize=0
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.fd_in = self.process.stdin.fileno()
        self.fd_out = self.process.stdout.fileno()

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self.fd_in, view) :]

    def receive(self, timeout: float) -> bytes:
        """Some bytes, b"" after the timeout; EOFError at the end."""
        ready, _, _ = select.select([self.fd_out], [], [], timeout)
        if not ready:
            return b""
        data = os.read(self.fd_out, 1 << 16)
        if not data:
            raise EOFError
        return data

    def wait(self, timeout: float = 60.0) -> int:
        return self.process.wait(timeout)

    def close(self) -> None:
        if self.process.poll() is None:
            # Not unshare alone: the warden's change of user has cleared what --kill-child set up.
            with contextlib.suppress(OSError, IndexError):
                os.kill(host_pid(self), signal.SIGKILL)
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self.process.wait(120)
            self.process.kill()
            self.process.wait(120)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class Owner:
    """One attachment. `results` may be carried from an earlier one, as a restarted node would."""

    def __init__(self, sandbox: Sandbox, previous: Owner | None = None) -> None:
        self.sandbox = sandbox
        self.buffer = bytearray()
        self.results: dict[int, Result] = previous.results if previous else {}
        self.last_seq: int = previous.last_seq if previous else 0
        self.next_id: int = previous.next_id if previous else 1
        self.control: list[Frame] = []
        self.stdin_acked: dict[int, int] = {}
        self.repeated = 0
        self.auto_ack = True

    # -- attaching

    def send(self, kind: int, payload: bytes = b"", command: int = 0) -> None:
        self.sandbox.send(Frame(kind, payload, command).encode())

    def attach(self, *, fresh: bool = False, orphan_ms: int = 30_000, timeout: float = 60.0) -> Welcome:
        nonce = os.urandom(16)
        hello = Frame(HELLO, nonce + struct.pack(">HI", 1, orphan_ms)).encode()
        self.sandbox.send((b"" if fresh else ZEROS) + hello)
        needle = b"FHW1" + bytes([WELCOME])
        deadline = time.monotonic() + timeout
        while True:
            at = self.buffer.find(nonce)
            start = at - HEADER.size
            if at >= 0 and start >= 0 and self.buffer[start : start + 5] == needle:
                del self.buffer[:start]
                found = decode(self.buffer)
                if found:
                    del self.buffer[: found[1]]
                    return Welcome.parse(found[0].payload)
            if time.monotonic() > deadline:
                raise TimeoutError("no WELCOME")
            self.buffer += self.sandbox.receive(0.1)

    # -- frames

    def frame(self, timeout: float = 60.0) -> Frame:
        deadline = time.monotonic() + timeout
        while True:
            found = decode(self.buffer)
            if found:
                del self.buffer[: found[1]]
                return found[0]
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("no frame")
            self.buffer += self.sandbox.receive(left)

    def step(self, timeout: float = 60.0) -> Frame:
        """Take one frame into account."""
        frame = self.frame(timeout)
        if frame.type not in RELIABLE:
            if frame.seq:
                raise ProtocolError("a number on an unreliable frame")
            self.control.append(frame)
            if frame.type == STDIN_ACK:
                (self.stdin_acked[frame.command],) = struct.unpack(">Q", frame.payload)
            return frame
        if frame.seq <= self.last_seq:
            self.repeated += 1
        elif frame.seq != self.last_seq + 1:
            raise ProtocolError(f"frame {frame.seq} after {self.last_seq}")
        else:
            self.last_seq = frame.seq
            self.results.setdefault(frame.command, Result()).take(frame)
        if self.auto_ack:
            self.ack()
        return frame

    def ack(self, seq: int | None = None) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.send(ACK, struct.pack(">Q", self.last_seq if seq is None else seq))

    def ack_command(self, command: int, seq: int | None = None) -> None:
        self.send(ACK_COMMAND, struct.pack(">Q", self.last_seq if seq is None else seq), command)

    def until(self, done: Callable[[], bool], timeout: float = 60.0) -> None:
        deadline = time.monotonic() + timeout
        while not done():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("what was awaited did not come")
            with contextlib.suppress(TimeoutError):
                self.step(min(left, 0.5))

    def settle(self) -> None:
        """A PING and its PONG: everything sent before was dealt with."""
        token = os.urandom(8)
        self.send(PING, token)
        self.until(lambda: Frame(PONG, token) in self.control)

    # -- commands

    def start(self, spec: bytes, command: int | None = None, *, piece: int = 65_532) -> int:
        if command is None:
            command = self.next_id
        self.next_id = max(self.next_id, command + 1)
        for offset in range(0, len(spec), piece):
            self.send(SPEC, struct.pack(">I", offset) + spec[offset : offset + piece], command)
        self.send(START, struct.pack(">I", len(spec)), command)
        return command

    def begin(self, command: int, timeout_ms: int) -> None:
        self.send(BEGIN, struct.pack(">I", timeout_ms), command)

    def started(self, command: int) -> int:
        self.until(lambda: command in self.results and self.results[command].pid != 0)
        return self.results[command].pid

    def finish(self, command: int, timeout: float = 60.0) -> Result:
        self.until(lambda: command in self.results and self.results[command].end is not None, timeout)
        return self.results[command]

    def run(self, spec: bytes, stdin: bytes | None = None, timeout: float = 60.0) -> Result:
        command = self.start(spec)
        if stdin is not None:
            self.feed(command, stdin)
        return self.finish(command, timeout)

    def feed(self, command: int, data: bytes, *, piece: int = 65_528, eof: bool = True) -> None:
        """Send all of the input, never more than the window allows."""
        sent = 0
        while sent < len(data):
            room = 262_144 - (sent - self.stdin_acked.get(command, 0))
            if room <= 0:
                self.step()
                continue
            part = data[sent : sent + min(piece, room)]
            self.send(STDIN, struct.pack(">Q", sent) + part, command)
            sent += len(part)
        if eof:
            self.send(STDIN_EOF, struct.pack(">Q", len(data)), command)

    def refusals(self) -> list[tuple[int, int]]:
        return [(frame.command, frame.payload[0]) for frame in self.control if frame.type == REFUSED]


def shell(script: str, **options: object) -> bytes:
    return make_spec(["/bin/sh", "-c", script], **options)  # type: ignore[arg-type]


@functools.cache
def build() -> Path:
    """The folder with every variant of the binary, freshly made."""
    folder = Path(__file__).parents[2] / "warden"
    with (Path(tempfile.gettempdir()) / "fumehood-warden-make.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(["make", "-s", "all", "asan", "no-openat2"], cwd=folder, check=True)
    return folder / "build"


def host_pid(sandbox: Sandbox) -> int:
    """The warden's PID as the host sees it."""
    unshare = sandbox.process.pid
    return int(Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()[0])


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
