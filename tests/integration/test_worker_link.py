"""The worker's end of the stream, against a real gRPC server: it comes back, tells everything, and trusts nobody."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ipaddress
import itertools
import random
import socket
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from fumehood.errors import ConfigurationError
from fumehood.node.console.duties import Answer, Duties
from fumehood.node.console.duty_store import DutyStore
from fumehood.node.rpc import link as link_module
from fumehood.node.rpc.link import About, Identity, Link, Tls, route
from fumehood.node.rpc.pauses import LONGEST_REFUSED_SECONDS, LONGEST_SECONDS, Ending, Pauses
from fumehood.node.rpc.stream import changes
from fumehood.wire.console.codes import CONNECT_METHOD, MAX_FRAME_BYTES, Capability, Reason
from fumehood.wire.console.console_pb2 import (
    Cancel,
    ConsoleFrame,
    Declaration,
    Dispatch,
    Drain,
    Heartbeat,
    HeartbeatAck,
    HeldSession,
    HelloAck,
    Result,
    ResultAck,
    WorkerFrame,
)
from fumehood.wire.console.hello import new_secret, public_key_of, verify_hello
from fumehood.wire.console.sessions import Method
from tests.conftest import TimeBounds
from tests.noise import Watch
from tests.waiting import until

SOON = 60.0
WORKER, SECRET = "worker-1", new_secret()
BEAT_MS = 5000
EXEC = Capability.TERMINAL_EXEC.value
SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
    ("grpc.max_send_message_length", MAX_FRAME_BYTES),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.so_reuseport", 0),
)


# --- a console -------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Connection:
    """A stream as the console sees it."""

    declared: Declaration
    context: grpc.aio.ServicerContext[WorkerFrame, ConsoleFrame]
    beats: list[tuple[float, Heartbeat]] = field(default_factory=list)
    results: asyncio.Queue[Result] = field(default_factory=asyncio.Queue)
    closing: asyncio.Future[tuple[grpc.StatusCode, str]] = field(default_factory=asyncio.Future)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def say(self, frame: ConsoleFrame) -> None:
        async with self.writing:  # gRPC takes one write at a time
            await self.context.write(frame)

    async def ask(self, command_id: str, capability: str = EXEC) -> None:
        await self.say(ConsoleFrame(dispatch=Dispatch(command_id=command_id, capability=capability)))

    async def result(self) -> Result:
        async with asyncio.timeout(SOON):
            return await self.results.get()

    async def acknowledge(self, command_id: str) -> None:
        await self.say(ConsoleFrame(result_ack=ResultAck(command_id=command_id)))

    def close(self, code: grpc.StatusCode, detail: str) -> None:
        self.closing.set_result((code, detail))


class Console:
    """Takes everybody who proves to be the worker."""

    def __init__(self) -> None:
        self.connections: asyncio.Queue[Connection] = asyncio.Queue()
        self.hellos: list[float] = []
        self.refuse: tuple[grpc.StatusCode, str] | None = None
        self.answers_beats = True
        self.reads = asyncio.Event()
        self.reads.set()
        self.known: Sequence[HeldSession] = ()
        self.beat_ms = BEAT_MS
        self.open = 0
        self._server: grpc.aio.Server | None = None
        self.port = 0

    async def start(self, credentials: grpc.ServerCredentials | None = None, port: int = 0) -> None:
        server = grpc.aio.server(options=SERVER_OPTIONS)
        handler = grpc.stream_stream_rpc_method_handler(
            self._connect,
            request_deserializer=WorkerFrame.FromString,
            response_serializer=ConsoleFrame.SerializeToString,
        )
        service, method = CONNECT_METHOD.lstrip("/").split("/")
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        address = f"127.0.0.1:{port}"
        if credentials is None:
            self.port = server.add_insecure_port(address)
        else:
            self.port = server.add_secure_port(address, credentials)
        await server.start()
        self._server = server

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def connection(self, seconds: float = SOON) -> Connection:
        async with asyncio.timeout(seconds):
            return await self.connections.get()

    async def _connect(
        self, _: object, context: grpc.aio.ServicerContext[WorkerFrame, ConsoleFrame]
    ) -> None:  # gRPC calls it with an iterator that this one does without
        self.hellos.append(time.monotonic())
        self.open += 1
        try:
            await self._serve(context)
        finally:
            self.open -= 1

    async def _serve(self, context: grpc.aio.ServicerContext[WorkerFrame, ConsoleFrame]) -> None:
        first = await context.read()
        if self.refuse is not None:
            await context.abort(*self.refuse)
        assert isinstance(first, WorkerFrame)
        declared = verify_hello(first.hello, public_key_of(WORKER, SECRET), time.time_ns() // 1_000_000)
        connection = Connection(declared, context)
        await context.write(ConsoleFrame(hello_ack=HelloAck(heartbeat_interval_ms=self.beat_ms, sessions=self.known)))
        self.connections.put_nowait(connection)
        reading = asyncio.create_task(self._read(connection))
        try:
            ends: list[asyncio.Future[Any]] = [reading, connection.closing]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if connection.closing.done():
                await context.abort(*connection.closing.result())
        finally:
            reading.cancel()
            connection.over.set()

    async def _read(self, connection: Connection) -> None:
        while isinstance(frame := await connection.context.read(), WorkerFrame):
            await self.reads.wait()
            if frame.WhichOneof("frame") == "result":
                connection.results.put_nowait(frame.result)
            else:
                connection.beats.append((time.monotonic(), frame.heartbeat))
                if self.answers_beats:
                    ack = HeartbeatAck(timestamp_unix_ms=frame.heartbeat.timestamp_unix_ms)
                    await connection.say(ConsoleFrame(heartbeat_ack=ack))


# --- a worker --------------------------------------------------------------------------------------------------------


class Sessions:
    """Implements `Keeper`."""

    def __init__(self) -> None:
        self.kept: list[HeldSession] = []
        self.leased: list[Sequence[HeldSession]] = []
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    def sessions(self) -> Sequence[HeldSession]:
        return list(self.kept)

    async def leases(self, known: Sequence[HeldSession]) -> None:
        self.leased.append(list(known))
        await self.may_go_on.wait()


class Work:
    """Handlers that end when they are told to; their answer is their command's name."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.end = asyncio.Event()
        self.cleaned: list[str] = []

    async def __call__(self, given: Dispatch) -> Answer:
        self.calls.append(given.command_id)
        try:
            await self.end.wait()
        except asyncio.CancelledError:
            self.cleaned.append(given.command_id)
            raise
        return Answer(given.payload_json or given.command_id.encode())


@dataclass(slots=True)
class Worker:
    duties: Duties
    work: Work
    sessions: Sessions
    link: Link
    serving: asyncio.Task[None]


@contextlib.asynccontextmanager
async def worker(folder: Path, targets: Sequence[str], tls: Tls | None = None) -> AsyncIterator[Worker]:
    store = await DutyStore.open(folder / "duties.db")
    work, sessions = Work(), Sessions()
    names = [one.value for one in Capability] + [Method.OUTPUT.value]
    duties = Duties(store, dict.fromkeys(names, work))
    await duties.recover()
    about = About(Identity(WORKER, SECRET), "fumehood/test", {"zone": "a"})
    link = Link(route(targets, tls), about, duties, sessions, chance=random.Random(7))
    serving = asyncio.create_task(link.serve())
    try:
        yield Worker(duties, work, sessions, link, serving)
    finally:
        link.stop()
        await asyncio.gather(serving, return_exceptions=True)
        await duties.close()
        await store.close()


@pytest.fixture
async def console() -> AsyncIterator[Console]:
    made = Console()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def linked(console: Console, tmp_path: Path) -> AsyncIterator[Worker]:
    async with worker(tmp_path, [console.target]) as made:
        yield made


def session(session_id: str, expires: int = 1) -> HeldSession:
    return HeldSession(owner="t1", session_id=session_id, lease_expires_unix_ms=expires, image="python:slim")


# --- hello and heartbeats --------------------------------------------------------------------------------------------


async def test_a_worker_says_what_it_is_and_what_it_has(console: Console, tmp_path: Path) -> None:
    console.known = [session("s9")]
    async with worker(tmp_path, [console.target]) as one:
        one.sessions.kept = [session("s1")]
        declared = (await console.connection()).declared
        await until(one.link.connected.is_set)
        assert {each.name: each.max_inflight for each in declared.capabilities} == {
            "echo": 4,
            "pythonExec": 4,
            "terminalExec": 4,
            "terminalResource": 4,
        }
        assert (dict(declared.labels), declared.software) == ({"zone": "a"}, "fumehood/test")
        assert (declared.max_session_calls, list(declared.holding)) == (256, [])
        assert list(declared.sessions) == [session("s1")]
        await until(lambda: one.sessions.leased == [[session("s9")]])


async def test_no_command_is_begun_before_the_leases_were_taken(console: Console, tmp_path: Path) -> None:
    """Silence is not counted meanwhile, though no answer to a heartbeat is read."""
    console.beat_ms = 300
    async with worker(tmp_path, [console.target]) as one:
        one.sessions.may_go_on.clear()
        connection = await console.connection()
        await connection.ask("c1")
        await until(lambda: len(connection.beats) >= 5)
        assert one.work.calls == []
        assert len(console.hellos) == 1
        one.sessions.may_go_on.set()
        await until(lambda: one.work.calls == ["c1"])


async def test_heartbeats_come_in_time_and_tell_what_changed(
    console: Console, tmp_path: Path, time_bounds: TimeBounds
) -> None:
    """Their pauses differ by a fifth both ways; the bounds here leave room for a busy machine."""
    console.beat_ms, watch = 500, Watch()
    async with worker(tmp_path, [console.target]) as one:
        one.sessions.kept = [session("s1"), session("s2")]
        connection = await console.connection()
        one.sessions.kept = [session("s1", expires=2), session("s3")]
        await until(lambda: len(connection.beats) >= 8)
    told = [beat for _, beat in connection.beats]
    assert list(connection.declared.sessions) == [session("s1"), session("s2")]
    assert [each for beat in told for each in beat.changed_sessions] == [session("s1", expires=2), session("s3")]
    assert [each.session_id for beat in told for each in beat.ended_sessions] == ["s2"]
    times = [at for at, _ in connection.beats]
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert sum(pauses) / len(pauses) > 0.35
    time_bounds.check(watch.seconds / len(pauses), 1.5)
    assert max(pauses) - min(pauses) > 0.03, "they are not all alike"


async def test_a_console_that_does_not_answer_is_left(
    console: Console, tmp_path: Path, time_bounds: TimeBounds
) -> None:
    """After three pauses without a word, and not before."""
    console.beat_ms, console.answers_beats = 400, False
    async with worker(tmp_path, [console.target]) as one:
        connection = await console.connection()
        await until(one.link.connected.is_set)
        begun, watch = time.monotonic(), Watch()
        await connection.over.wait()
        assert time.monotonic() - begun > 1.0
        time_bounds.check(watch.seconds, 4)
        await console.connection()
        await until(lambda: console.open == 1)


async def test_a_console_that_does_not_read_is_left(console: Console, tmp_path: Path) -> None:
    """Heartbeats cannot even be written then: they wait behind a result that nobody takes."""
    console.beat_ms = 1000
    async with worker(tmp_path, [console.target]) as one:
        first = await console.connection()
        one.work.end.set()
        data = b"x" * (16 * 1024 * 1024)
        console.reads.clear()
        await first.say(ConsoleFrame(dispatch=Dispatch(command_id="c1", capability=EXEC, payload_json=data)))
        second = await console.connection()
        console.reads.set()
        assert (await second.result()).payload_json == data


# --- commands over streams that break --------------------------------------------------------------------------------


async def test_a_command_outlives_its_stream(console: Console, linked: Worker) -> None:
    first = await console.connection()
    await first.ask("c1")
    await until(lambda: linked.work.calls == ["c1"])
    first.close(grpc.StatusCode.UNAVAILABLE, "gone")
    second = await console.connection()
    assert list(second.declared.holding) == ["c1"]
    linked.work.end.set()
    assert await second.result() == Result(command_id="c1", payload_json=b"c1")
    second.close(grpc.StatusCode.UNAVAILABLE, "gone again, and nothing acknowledged")
    third = await console.connection()
    assert list(third.declared.holding) == ["c1"]
    assert await third.result() == Result(command_id="c1", payload_json=b"c1")
    await third.acknowledge("c1")
    await until(lambda: linked.duties.holding() == [])
    assert linked.work.calls == ["c1"]
    await until(lambda: console.open == 1)


async def test_a_command_and_a_result_outlive_the_worker(console: Console, tmp_path: Path) -> None:
    async with worker(tmp_path, [console.target]) as one:
        connection = await console.connection()
        one.work.end.set()
        await connection.ask("c1")
        await connection.result()
        one.work.end.clear()
        await connection.ask("c2")
        await until(lambda: one.work.calls == ["c1", "c2"])
    async with worker(tmp_path, [console.target]) as other:
        connection = await console.connection()
        assert sorted(connection.declared.holding) == ["c1", "c2"]
        assert (await connection.result()).command_id == "c1"
        assert other.work.calls == ["c2"]
        other.work.end.set()
        assert (await connection.result()).command_id == "c2"


async def test_a_cancel_ends_a_command(console: Console, linked: Worker) -> None:
    connection = await console.connection()
    await connection.ask("c1")
    await until(lambda: linked.work.calls == ["c1"])
    await connection.say(ConsoleFrame(cancel=Cancel(command_id="c1")))
    assert (await connection.result()).error.code == Reason.DEADLINE_EXCEEDED
    assert linked.work.cleaned == ["c1"]


async def test_more_than_it_takes_is_refused(console: Console, linked: Worker) -> None:
    connection = await console.connection()
    for number in range(5):
        await connection.ask(f"c{number}")
    refused = await connection.result()
    assert (refused.command_id, refused.error.code) == ("c4", Reason.NO_CAPACITY)


async def test_calls_of_a_broken_stream_are_not_told_over_the_next(console: Console, linked: Worker) -> None:
    first = await console.connection()
    await first.ask("s1", Method.OUTPUT.value)
    await until(lambda: linked.work.calls == ["s1"])
    first.close(grpc.StatusCode.UNAVAILABLE, "")
    second = await console.connection()
    await until(lambda: linked.work.cleaned == ["s1"])
    linked.work.end.set()
    await second.ask("s2", Method.OUTPUT.value)
    assert (await second.result()).command_id == "s2"
    assert list(second.declared.holding) == []


async def test_large_frames_pass(console: Console, tmp_path: Path) -> None:
    console.beat_ms = 5000
    async with worker(tmp_path, [console.target]) as one:
        connection = await console.connection()
        one.work.end.set()
        data = b"x" * (31 * 1024 * 1024)
        await connection.say(ConsoleFrame(dispatch=Dispatch(command_id="c1", capability=EXEC, payload_json=data)))
        assert (await connection.result()).payload_json == data


async def test_a_console_that_says_nonsense_is_left(console: Console, linked: Worker) -> None:
    connection = await console.connection()
    await connection.say(ConsoleFrame(hello_ack=HelloAck()))
    await connection.over.wait()
    await console.connection()


# --- coming back -----------------------------------------------------------------------------------------------------


async def test_a_console_that_restarts_gets_its_worker_back(
    console: Console, linked: Worker, time_bounds: TimeBounds
) -> None:
    await console.connection()
    await console.stop()
    await until(lambda: not linked.link.connected.is_set())
    await console.start(port=console.port)
    begun = Watch()
    await console.connection()
    time_bounds.check(begun.seconds, LONGEST_SECONDS + 2)


async def test_another_replica_takes_over(console: Console, tmp_path: Path, time_bounds: TimeBounds) -> None:
    """Within the five seconds that are promised, also where a third one was dead all along."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        other = Console()
        await other.start()
        dead = f"127.0.0.1:{nobody.getsockname()[1]}"
        async with worker(tmp_path, [console.target, dead, other.target]) as one:
            first = await console.connection()
            await first.ask("c1")
            await until(lambda: one.work.calls == ["c1"])
            begun = Watch()
            await console.stop()
            second = await other.connection()
            time_bounds.check(begun.seconds, 5)
            assert list(second.declared.holding) == ["c1"]
        await other.stop()


@pytest.mark.parametrize(
    ("code", "detail", "event"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "no such worker", "console.refused"),
        (grpc.StatusCode.ABORTED, "worker_replaced: another connection took over", "console.replaced"),
    ],
)
async def test_who_is_not_wanted_does_not_hammer(
    console: Console,
    linked: Worker,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    code: grpc.StatusCode,
    detail: str,
    event: str,
) -> None:
    """Its pauses grow from a second on, although it would be welcomed in between."""
    connection = await console.connection()
    console.refuse = (code, detail)
    begun = time.monotonic()
    connection.close(code, detail)
    await until(lambda: len(console.hellos) >= 3)
    assert time.monotonic() - begun > 0.5 + 1.0
    assert len(console.hellos) == 3
    said = capsys.readouterr().out + caplog.text
    assert event in said
    assert detail in said
    assert SECRET not in said


@given(
    endings=st.lists(st.tuples(st.sampled_from(Ending), st.floats(0, 300)), max_size=50),
    targets=st.integers(1, 4),
    seed=st.integers(),
)
def test_pauses_are_bounded_and_grow(endings: list[tuple[Ending, float]], targets: int, seed: int) -> None:
    pauses = Pauses(targets, random.Random(seed))
    refused = 0
    for ending, lived in endings:
        pause = pauses.after(ending, lived)
        if ending is Ending.LOST:
            assert 0 <= pause <= LONGEST_SECONDS
            continue
        refused = 0 if lived >= 2 * LONGEST_REFUSED_SECONDS else refused
        grown = min(LONGEST_REFUSED_SECONDS, 2.0**refused)
        assert grown / 2 <= pause <= grown
        refused += 1


def test_the_first_pauses_after_a_lost_console_are_short_for_each_target() -> None:
    """Three of them fit into the promise of five seconds, whatever chance says."""

    class Worst(random.Random):
        def uniform(self, a: float, b: float) -> float:
            return b

    worst = Pauses(3, Worst())
    assert [worst.after(Ending.LOST, 60 if first else 0) for first in (True, False, False, False)] == [
        0.2,
        0.2,
        0.2,
        0.4,
    ]


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 2)),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 2)),
)
def test_what_changed_is_all_that_differs(before: dict[str, int], after: dict[str, int]) -> None:
    told = {("t1", name): session(name, expires) for name, expires in before.items()}
    now = {("t1", name): session(name, expires) for name, expires in after.items()}
    changed, ended = changes(told, now)
    for one in changed:
        told[("t1", one.session_id)] = one
    for name in ended:
        del told[(name.owner, name.session_id)]
    assert told == now
    assert len(changed) == sum(before.get(name) != expires for name, expires in after.items())


# --- leaving ---------------------------------------------------------------------------------------------------------


async def test_a_worker_that_is_told_to_leave_finishes_what_it_has(console: Console, linked: Worker) -> None:
    connection = await console.connection()
    await connection.ask("c1")
    await until(lambda: linked.work.calls == ["c1"])
    await connection.say(ConsoleFrame(drain=Drain(leave=True)))
    await connection.ask("c2")
    refused = await connection.result()
    assert (refused.command_id, refused.error.code) == ("c2", Reason.NO_CAPACITY)
    linked.work.end.set()
    assert (await connection.result()).command_id == "c1"
    assert not linked.serving.done()
    await connection.acknowledge("c1")
    async with asyncio.timeout(SOON):
        await linked.serving
    await connection.over.wait()
    assert linked.link.told_to_leave


async def test_a_worker_that_is_told_to_leave_does_not_wait_for_ever(
    console: Console, linked: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that does not end by itself is ended by whoever stops the process."""
    monkeypatch.setattr(link_module, "LEAVE_SECONDS", 0.3)
    connection = await console.connection()
    await connection.ask("c1")
    await until(lambda: linked.work.calls == ["c1"])
    await connection.say(ConsoleFrame(drain=Drain(leave=True)))
    async with asyncio.timeout(SOON):
        await linked.serving
    assert linked.duties.holding() == ["c1"]


async def test_a_console_that_only_drains_keeps_its_worker(console: Console, linked: Worker) -> None:
    connection = await console.connection()
    await connection.say(ConsoleFrame(drain=Drain(leave=False)))
    linked.work.end.set()
    await connection.ask("c1")
    assert (await connection.result()).payload_json == b"c1"
    await connection.acknowledge("c1")
    await until(lambda: linked.duties.holding() == [])
    assert not linked.serving.done()
    assert not linked.link.told_to_leave


# --- a network that is gone ------------------------------------------------------------------------------------------


class Wire:
    """Bytes to and from a console, until somebody cuts it: then nothing comes through, and nobody is told."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.cut = False
        self.accepted = 0

    async def __aenter__(self) -> Wire:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.target = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(self._pass(reader, back), self._pass(there, writer), return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                if not self.cut:
                    writer.write(data)
                    await writer.drain()
        finally:
            writer.close()


async def test_a_peer_that_vanished_is_noticed(console: Console, tmp_path: Path, time_bounds: TimeBounds) -> None:
    """By gRPC's own pings: heartbeats are half a minute apart here, and nothing else is sent."""
    console.beat_ms = 30_000
    async with Wire(console.port) as wire, worker(tmp_path, [wire.target]) as one:
        await console.connection()
        await until(one.link.connected.is_set)
        wire.cut = True
        begun = Watch()
        await until(lambda: not one.link.connected.is_set())
        time_bounds.check(begun.seconds, 12)
        wire.cut = False
        await console.connection()
        assert wire.accepted == 2


# --- TLS -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Authority:
    """A CA, and what it signs."""

    key: ec.EllipticCurvePrivateKey
    cert: x509.Certificate

    @classmethod
    def make(cls) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        name = _named("a ca")
        cert = _builder(name, name, key).add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        return cls(key, cert.sign(key, hashes.SHA256()))

    def issue(self, name: str) -> tuple[bytes, bytes]:
        """Key and certificate, in PEM, for 127.0.0.1."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        cert = _builder(_named(name), self.cert.subject, key).add_extension(names, critical=False)
        return _pem_key(key), _pem(cert.sign(self.key, hashes.SHA256()))

    @property
    def pem(self) -> bytes:
        return _pem(self.cert)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
    )


def _pem(cert: x509.Certificate) -> bytes:
    return cert.public_bytes(serialization.Encoding.PEM)


def _pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def file_of(folder: Path, name: str, data: bytes) -> Path:
    (folder / name).write_bytes(data)
    return folder / name


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[tuple[Console, Authority]]:
    """A console that shows a certificate, and wants to see one."""
    authority = Authority.make()
    console = Console()
    await console.start(
        grpc.ssl_server_credentials(
            [authority.issue("console")], root_certificates=authority.pem, require_client_auth=True
        )
    )
    yield console, authority
    await console.stop()


async def test_both_sides_prove_who_they_are(secured: tuple[Console, Authority], tmp_path: Path) -> None:
    console, authority = secured
    key, cert = authority.issue("worker")
    tls = Tls(
        file_of(tmp_path, "ca.pem", authority.pem),
        file_of(tmp_path, "cert.pem", cert),
        file_of(tmp_path, "key.pem", key),
    )
    async with worker(tmp_path, [console.target], tls) as one:
        connection = await console.connection()
        one.work.end.set()
        await connection.ask("c1")
        assert (await connection.result()).command_id == "c1"


async def test_tls_alone_proves_the_console(tmp_path: Path) -> None:
    authority, console = Authority.make(), Console()
    await console.start(grpc.ssl_server_credentials([authority.issue("console")]))
    async with worker(tmp_path, [console.target], Tls(file_of(tmp_path, "ca.pem", authority.pem))):
        await console.connection()
    await console.stop()


@pytest.mark.parametrize(
    "wrong",
    ["the console's authority", "the console's name", "no certificate", "a certificate of somebody else's"],
)
async def test_who_does_not_prove_it_gets_nothing(
    secured: tuple[Console, Authority], tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    console, authority = secured
    stranger = Authority.make()
    trusted = stranger if wrong == "the console's authority" else authority
    key, cert = (stranger if wrong == "a certificate of somebody else's" else authority).issue("worker")
    cert_file, key_file = file_of(tmp_path, "cert.pem", cert), file_of(tmp_path, "key.pem", key)
    ca_file = file_of(tmp_path, "ca.pem", trusted.pem)
    tls = Tls(ca_file) if wrong == "no certificate" else Tls(ca_file, cert_file, key_file)
    said = ""

    def tried_twice() -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return said.count("console.lost") >= 2

    target = f"localhost:{console.port}" if wrong == "the console's name" else console.target
    async with worker(tmp_path, [target], tls) as one:
        await until(tried_twice)
        assert not one.link.connected.is_set()
        assert console.hellos == []


# --- what is refused before anything is dialled ----------------------------------------------------------------------


@pytest.mark.parametrize("target", ["console.example:50051", "10.0.0.7:50051", "[2001:db8::1]:50051", "0.0.0.0:1"])
def test_plain_text_does_not_leave_this_machine(target: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="TLS only"):
        route(["127.0.0.1:50051", target], None)
    tls = Tls(file_of(tmp_path, "ca.pem", Authority.make().pem))
    assert len(route(["127.0.0.1:50051", target], tls).targets) == 2


@pytest.mark.parametrize(
    "target",
    ["", "unix:/run/console.sock", "dns:///localhost:1", "localhost:0", "localhost:65536", "a b:1", "::1:50051"],
)
def test_a_target_is_a_host_and_a_port(target: str) -> None:
    with pytest.raises(ConfigurationError):
        route([target], None)


def test_targets_as_they_are_dialled() -> None:
    targets = route(["localhost:1", "127.9.9.9", "[::1]:2", "localhost:1"], None).targets
    assert [str(one) for one in targets] == ["localhost:1", "127.9.9.9:50051", "[::1]:2"]


def test_files_that_are_none_are_named(tmp_path: Path) -> None:
    missing, wrong = tmp_path / "missing.pem", file_of(tmp_path, "wrong.pem", b"no")
    for tls, text in (
        (Tls(missing), "missing.pem"),
        (Tls(wrong), "wrong.pem"),
        (Tls(None, wrong), "belong together"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            route(["console.example:50051"], tls)


async def test_a_secret_that_is_none_is_refused_at_once(tmp_path: Path) -> None:
    store = await DutyStore.open(tmp_path / "duties.db")
    with pytest.raises(ConfigurationError, match="secret"):
        Link(route(["localhost:1"], None), About(Identity(WORKER, "nonsense"), "x"), Duties(store, {}), Sessions())
    await store.close()
