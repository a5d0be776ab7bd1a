"""`fumehood dev`: a broker, a server, a node, a worker and providers on one machine, with one command."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Annotated, Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

import typer
from rich.console import Console
from rich.markup import escape

from fumehood.cli import dev_broker, dev_demo, dev_policy, dev_providers, dev_receipts, dev_worker, processes
from fumehood.cli.dev_broker import DevBroker, Providers, secret
from fumehood.cli.dev_demo import Demo
from fumehood.cli.dev_policy import DevPolicy
from fumehood.cli.dev_ready import Ready
from fumehood.cli.engine_access import engine_trouble
from fumehood.cli.processes import HOST, Child
from fumehood.cli.serving import clear_ready
from fumehood.errors import ConfigurationError
from fumehood.jobs.registry import Registry
from fumehood.sdk.own_dev import WORD, own_dev
from fumehood.settings import Access, NodeSettings, ProviderSettings, ServerSettings, WorkerSettings
from fumehood.settings.token_file import TokenFile

START_SECONDS = 300.0
LOCK_SECONDS = 15.0
"""For what an earlier `dev` left behind to end: it was told to when that ended."""
PATIENCE_SECONDS = 5.0
"""A process is ready sooner. After that the person at the terminal is told what it waits for."""
SECOND_DEV_REMEDY = "use it, stop it, or give this one its own --state"

KINDS: dict[str, type[ServerSettings | NodeSettings | WorkerSettings | ProviderSettings]] = {
    "server": ServerSettings,
    "node": NodeSettings,
    "worker": WorkerSettings,
    "providers": ProviderSettings,
}
COMMANDS = {
    "server": ("fumehood", "server", "--host", HOST, "--ready-file"),
    "node": ("fumehood", "node", "--host", HOST, "--ready-file"),
    "worker": ("fumehood", "worker", "docker", "--ready-file"),
    "providers": ("fumehood.cli.dev_providers",),
}
"""Modules and their words, up to where the ready file is named."""

console = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Ports:
    """Where everything listens; 0 is any free port."""

    http: int
    node: int
    nats: int | None
    grpc: int


@dataclass(slots=True)
class Dev:
    """What runs, in the order in which it was started."""

    folder: Path
    ports: Ports
    lock: int
    policy: DevPolicy
    verbose: bool
    children: list[Child] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """What the ready file says."""
    token_files: list[Path] = field(default_factory=list)
    """Where tokens lie; those of the configuration are not among them."""

    def launch(self, name: str, words: list[str], token_files: list[str]) -> dict[str, Any]:
        """Start one of our own processes and wait until it says that it is ready."""
        self.token_files += [Path(word) for word in token_files if not word.startswith("--")]
        return self.ready(self.begin(name, [*words, *token_files]))

    def begin(self, name: str, words: list[str], more: Mapping[str, str] | None = None) -> Child:
        """Start one of our own processes; others may be started meanwhile."""
        announced = self._announced(name)
        announced.unlink(missing_ok=True)
        command = [sys.executable, "-m", *COMMANDS[name], str(announced), *words]
        kind = KINDS[name]
        settings = kind.load()
        more = {**(more or {}), **self.policy.environment(name, settings)}
        if self.verbose and settings.log_level != "debug":
            more["FUMEHOOD_LOG_LEVEL"] = "info"
        elif settings.log_level is None:
            more["FUMEHOOD_LOG_LEVEL"] = "warning"
        child = processes.start(name, command, kind=kind, more=more)
        self.children.append(child)
        return child

    def ready(self, child: Child) -> dict[str, Any]:
        announced = self._announced(child.name)
        doors = {"server": self.ports.http, "node": self.ports.node}
        try:
            return _wait(child, announced, doors.get(child.name, 0))
        finally:
            announced.unlink(missing_ok=True)

    def _announced(self, name: str) -> Path:
        return self.folder / f"{name}-ready.{os.getpid()}.json"

    def stop(self) -> None:
        while self.children:
            self.children.pop().stop()


def dev(
    state: Annotated[Path, typer.Option("--state", help="Where everything is kept.")] = Path("~/.local/state/fumehood"),
    http_port: Annotated[int, typer.Option(help="Port of the server's API; 0 takes any free one.")] = 8080,
    node_port: Annotated[int, typer.Option(help="Port of the node's Worker API; 0 takes any free one.")] = 8090,
    nats_port: Annotated[
        int | None,
        typer.Option(help="Port of NATS; 0 takes any free one. Without it 4222, or a free one where that is taken."),
    ] = None,
    grpc_port: Annotated[
        int, typer.Option(help="Port of the console, where workers dial in; 0 takes any free one.")
    ] = 8081,
    with_node: Annotated[
        bool,
        typer.Option(
            "--node/--no-node",
            help="Whether to run a node and a worker, and sandboxes for jobs: all need a Docker Engine.",
        ),
    ] = True,
    providers: Annotated[int, typer.Option(min=0, max=9, help="How many providers of jobs to run.")] = 3,
    ready_file: Annotated[
        Path | None, typer.Option(help="Receives one JSON object, with the tokens, when all is ready.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show all that is logged, not only warnings.")] = False,
) -> None:
    """Run NATS, a server, a node, a worker, three providers of jobs and a judge on this machine, for development:
    loopback only, images admitted by policy.yaml in the state folder, a demo workflow applied.

    All other settings are those of the server and the node, from FUMEHOOD_* variables, of the worker, from WORKER_*
    variables, and of the providers, from PROVIDER_* variables.
    """
    folder = state.expanduser()
    ports = Ports(http_port, node_port, nats_port, grpc_port)
    _check(folder, ports, with_node)
    clear_ready(ready_file)
    interrupts = processes.Interrupts()
    interrupts.take(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    with _locked(folder) as lock:
        policy = dev_policy.kept(folder, [kind.load() for kind in KINDS.values()])
        running = Dev(folder, ports, lock, policy, verbose)
        try:
            _start(running, with_node, providers)
            demo = _demo(running) if with_node else None
            Ready(folder, running.facts, running.token_files, _policy(running), demo).tell(console, ready_file)
            code = _ended(processes.first_to_end(running.children, interrupts))
        except KeyboardInterrupt:
            console.print("stopping: running jobs get a moment; a second Ctrl-C leaves them to the next start")
            code = 0
        finally:
            running.stop()
            (folder / WORD).unlink(missing_ok=True)
            clear_ready(ready_file)
    sys.exit(code)


def _check(folder: Path, ports: Ports, with_node: bool) -> None:
    """What can be known to be wrong before anything is started."""
    if with_node:
        trouble = engine_trouble(NodeSettings.load().docker_socket)
        if trouble is not None:
            raise ConfigurationError(f"{trouble.sentence}; or start without a node: --no-node")
    if (other := own_dev(state=folder)) is not None:
        raise ConfigurationError(f"`fumehood dev` runs in {folder} already, at {other.url}: {SECOND_DEV_REMEDY}")
    wanted = {"--http-port": ports.http, "--grpc-port": ports.grpc}
    wanted |= {"--node-port": ports.node} if with_node else {}
    wanted |= {"--nats-port": ports.nats} if ports.nats is not None else {}
    processes.check_ports(wanted)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[int]:
    """One `dev` for each folder. Its NATS holds the lock, too, and may take a moment to go."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        held = os.open(folder / "dev.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigurationError(
            f"--state {folder} cannot be used: {error.strerror}; give a folder that you may write to"
        ) from error
    until = time.monotonic() + LOCK_SECONDS
    try:
        while not _try_lock(held):
            if time.monotonic() > until:
                raise ConfigurationError(f"another `fumehood dev` runs in {folder}: {SECOND_DEV_REMEDY}")
            time.sleep(0.1)
        yield held
    finally:
        os.close(held)


def _try_lock(held: int) -> bool:
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


# --- starting ----------------------------------------------------------------------------------------------


def _start(dev: Dev, with_node: bool, many: int) -> None:
    settings = ServerSettings.load()
    working = many if dev_providers.has_work(with_node) else 0
    providers = Providers(dev_providers.names(working), tuple(Registry.load(settings.job_modules)))
    with console.status("starting NATS"):
        port = dev_broker.choose_port(dev.ports.nats)
        broker = dev_broker.start(dev.folder / "nats", port, settings, dev.lock, providers)
    dev.children.append(broker.child)
    dev.facts = _facts_of(broker)
    _start_server(dev, broker, settings)
    engine = "engine" if with_node else "no-engine"
    child = dev.begin("providers", [str(dev.folder), broker.url, str(working), engine]) if working else None
    if with_node:
        _start_node_and_worker(dev, broker)
    if child is not None:
        with console.status("starting the providers"):
            dev.facts |= {"providers": dev.ready(child)["providers"]}
    elif many:
        dev.facts["providers"] = []
    _enroll(dev, broker.node.name if with_node else None, providers.names)
    dev.facts["pids"] |= {"dev": os.getpid(), **{child.name.lower(): child.process.pid for child in dev.children}}


def _facts_of(broker: DevBroker) -> dict[str, Any]:
    worker = broker.worker
    access = {"user": worker.name, "password": worker.password, "inbox_prefix": worker.inbox_prefix}
    return {"nats_url": broker.worker_url, "nats": access, "tokens": {}, "pids": {}}


def _start_server(dev: Dev, broker: DevBroker, settings: ServerSettings) -> None:
    admin, admin_words = _token(settings.api, dev.folder / "api.token")
    bridge, bridge_words = _token(settings.bridge, dev.folder / "bridge.token")
    words = ["--port", str(dev.ports.http), "--grpc-host", HOST, "--grpc-port", str(dev.ports.grpc)]
    words += ["--nats", broker.url, "--nats-user", broker.server.name]
    words += ["--nats-password-file", str(broker.server_password_file)]
    with console.status("starting the server"):
        ready = dev.launch("server", words, [*admin_words, *bridge_words])
    dev.facts |= {name: ready[name] for name in ("server_url", "grpc_target")}
    dev.facts["tokens"] |= {"admin": admin, "bridge": bridge}


def _start_node_and_worker(dev: Dev, broker: DevBroker) -> None:
    """Side by side: each takes some seconds until it has started, and does not need the other."""
    file = secret(dev.folder / "worker-api.token")
    words = ["--port", str(dev.ports.node), "--state", str(dev.folder / "node")]
    words += ["--nats", broker.url, "--nats-user", broker.node.name]
    words += ["--nats-password-file", str(broker.node_password_file)]
    dev.token_files.append(file)
    node, worker = dev.begin("node", [*words, "--token-file", str(file)]), _begin_worker(dev)
    with console.status("starting the node, and running a first container to see that it can"):
        dev.facts["node_url"] = dev.ready(node)["node_url"]
    dev.facts["tokens"]["worker_api"] = TokenFile(file).read()[0]
    with console.status("starting the worker"):
        dev.ready(worker)


def _begin_worker(dev: Dev) -> Child:
    file = dev_worker.let_in(dev.folder, dev.facts["server_url"], dev.facts["tokens"]["admin"])
    words = ["--console", dev.facts["grpc_target"], "--credentials", str(file), "--state", str(dev.folder / "worker")]
    return dev.begin("worker", words, dev_worker.images(_own_policy(dev)))


def _enroll(dev: Dev, node: str | None, providers: Sequence[str]) -> None:
    """Let the receipts of all that runs here count."""
    workers = {name: dev_providers.state_of(dev.folder, name) for name in providers}
    if node is not None:
        workers |= {node: dev.folder / "node", dev_worker.name_in(dev.folder): dev.folder / "worker"}
    for trouble in dev_receipts.enroll(dev.folder, dev.facts["server_url"], dev.facts["tokens"]["admin"], workers):
        console.print(f"[yellow]receipts:[/] {escape(trouble)}", soft_wrap=True)


def _token(access: Access, own: Path) -> tuple[str, list[str]]:
    """The token that counts, and what the command line must say for that: nothing where it is configured."""
    if access.token is not None:
        return access.token, []
    file = access.file or secret(own)
    return TokenFile(file).read()[0], [access.option, str(file)]


def _wait(child: Child, announced: Path, port: int) -> dict[str, Any]:
    began = time.monotonic()
    ask_at, reason = began + PATIENCE_SECONDS, ""
    while (now := time.monotonic()) < began + START_SECONDS:
        if announced.exists():
            facts: dict[str, Any] = json.loads(announced.read_text(encoding="utf-8"))
            return facts
        if (code := child.process.poll()) is not None:
            sys.exit(code if code > 0 else _ended(child) or 1)
        if port and now >= ask_at:  # a port that the process chose itself is not known before it is ready
            ask_at, before, reason = now + 1, reason, _why_not(port) or reason
            if reason != before:
                console.print(f"[yellow]not ready:[/] {escape(reason)}")
        time.sleep(0.05)
    because = f": {reason}" if reason else ""
    raise ConfigurationError(f"the {child.name} did not become ready in time{because}; `fumehood doctor` tells more")


def _why_not(port: int) -> str:
    """What a process says of itself; nothing while it says nothing."""
    try:
        build_opener(ProxyHandler({})).open(f"http://{HOST}:{port}/readyz", timeout=2).close()
    except HTTPError as error:
        with error:
            return error.read(1000).decode("utf-8", "replace")
    except (OSError, HTTPException):
        pass
    return ""


# --- telling -----------------------------------------------------------------------------------------------


def _demo(dev: Dev) -> Demo:
    with console.status("applying the demo workflow, and looking for its image"):
        return dev_demo.prepare(dev.folder, _own_policy(dev), dev.facts["server_url"], dev.facts["tokens"]["admin"])


def _own_policy(dev: Dev) -> Path | None:
    """The file of `dev`, if the node decides by it."""
    return dev.policy.path if NodeSettings.load().policy_file is None else None


def _policy(dev: Dev) -> DevPolicy | None:
    """Where it counts for anybody."""
    return dev.policy if any(dev.policy.environment(name, kind.load()) for name, kind in KINDS.items()) else None


def _ended(child: Child) -> int:
    """Say how a process ended; an exit code that a shell understands."""
    code = child.process.wait()
    how = f"ended with {code}" if code >= 0 else f"was killed by signal {-code}"
    where = "its last lines above" if child.log is None else escape(str(child.log))
    console.print(f"[bold red]the {child.name} {how}[/]; {where} may tell why", soft_wrap=True)
    return code if code >= 0 else 128 - code
