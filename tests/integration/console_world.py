"""Servers whose gRPC door is open, over one broker, and a worker that says exactly what a test wants it to say."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ipaddress
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fumehood.broker.broker import NatsBroker
from fumehood.broker.topology import GIB, Shape
from fumehood.control.console.console import Console, ConsoleParts
from fumehood.control.console.credentials import Credentials
from fumehood.control.console.directory import SessionDirectory
from fumehood.control.console.exchange import Exchange
from fumehood.control.console.finish import Finisher
from fumehood.control.console.presence import Presence
from fumehood.control.rpc.server import ConsoleDoor, DoorOptions, opened
from fumehood.wire.console.codes import CONNECT_METHOD
from fumehood.wire.console.console_pb2 import Capability, ConsoleFrame, Declaration, Hello, WorkerFrame
from fumehood.wire.console.hello import new_nonce, sign_hello
from tests.conformance.broker_bench import TIMING, NatsServer
from tests.waiting import PATIENCE

DECLARED = Declaration(
    capabilities=[Capability(name="echo", max_inflight=4)], labels={"zone": "a"}, max_session_calls=256
)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class Replica:
    """One server, as far as workers see it."""

    broker: NatsBroker
    credentials: Credentials
    console: Console
    door: ConsoleDoor

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.door.port}"


@contextlib.asynccontextmanager
async def replica(server: NatsServer, name: str, options: DoorOptions | None = None) -> AsyncIterator[Replica]:
    broker = await NatsBroker.open(server.options(), Shape(server.partitions, storage=4 * GIB, timing=TIMING))
    credentials = Credentials(broker, now_ms=now_ms)
    parts = ConsoleParts(
        credentials=credentials,
        presence=Presence(broker),
        exchange=Exchange(broker, name),
        directory=SessionDirectory(broker, now_ms=now_ms),
        finisher=Finisher(broker, now_ms=now_ms),
        now_ms=now_ms,
    )
    watching = asyncio.create_task(credentials.work())
    console = Console(parts)
    try:
        async with console.open(), opened(console, options or DoorOptions(), drain_seconds=2.0) as door:
            yield Replica(broker, credentials, console, door)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await broker.close()


# --- a worker that is a script -------------------------------------------------------------------------------


def hello(worker_id: str, secret: str, *, skew_ms: int = 0, declared: Declaration = DECLARED) -> Hello:
    return sign_hello(worker_id, secret, declared.SerializeToString(), now_ms() + skew_ms, new_nonce())


class Dialled:
    """One stream."""

    def __init__(self, call: grpc.aio.StreamStreamCall[bytes, ConsoleFrame]) -> None:
        self.call = call

    async def say(self, frame: WorkerFrame | Hello | bytes) -> None:
        if isinstance(frame, Hello):
            frame = WorkerFrame(hello=frame)
        with contextlib.suppress(grpc.aio.AioRpcError):  # how it ended, `end` tells
            await self.call.write(frame if isinstance(frame, bytes) else frame.SerializeToString())

    async def hear(self) -> ConsoleFrame:
        async with asyncio.timeout(PATIENCE):
            frame = await self.call.read()
        assert isinstance(frame, ConsoleFrame), f"the stream ended: {await self.call.code()}"
        return frame

    async def greeted(self, said: Hello) -> ConsoleFrame:
        await self.say(said)
        frame = await self.hear()
        assert frame.WhichOneof("frame") == "hello_ack"
        return frame

    async def end(self) -> tuple[grpc.StatusCode, str]:
        """How the server ended it."""
        async with asyncio.timeout(PATIENCE):
            return await self.call.code(), await self.call.details() or ""


@contextlib.asynccontextmanager
async def dialled(
    target: str, credentials: grpc.ChannelCredentials | None = None, *, options: list[tuple[str, int]] | None = None
) -> AsyncIterator[Dialled]:
    given = [("grpc.use_local_subchannel_pool", 1), *(options or [])]
    if credentials is None:
        channel = grpc.aio.insecure_channel(target, options=given)
    else:
        channel = grpc.aio.secure_channel(target, credentials, options=given)
    try:
        connect: grpc.aio.StreamStreamMultiCallable[bytes, ConsoleFrame] = channel.stream_stream(
            CONNECT_METHOD, response_deserializer=ConsoleFrame.FromString
        )
        yield Dialled(connect())
    finally:
        await channel.close()


# --- certificates ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Authority:
    """One that signs whatever a test asks it to."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def ca_file(self) -> Path:
        return self.folder / "ca.pem"

    def issue(self, name: str) -> tuple[Path, Path]:
        """A certificate for 127.0.0.1, and its key: files that are replaced where they exist."""
        key = ec.generate_private_key(ec.SECP256R1())
        usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        loopback = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        made = (
            _builder(name, self.certificate.subject, key)
            .add_extension(usages, critical=False)
            .add_extension(loopback, critical=False)
            .sign(self.key, hashes.SHA256())
        )
        return _write(self.folder / f"{name}.pem", _pem(made)), _write(self.folder / f"{name}.key", _key_pem(key))


def authority(folder: Path, name: str = "ca") -> Authority:
    folder.mkdir(exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    constraints = x509.BasicConstraints(ca=True, path_length=None)
    builder = _builder(name, _subject(name), key).add_extension(constraints, critical=True)
    made = Authority(folder, key, builder.sign(key, hashes.SHA256()))
    _write(made.ca_file, _pem(made.certificate))
    return made


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(name: str, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_subject(name))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, data: bytes) -> Path:
    new = path.with_suffix(".new")
    new.write_bytes(data)
    return new.rename(path)
