"""`fumehood node`: one machine's worker, put together and served."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import uvicorn
import uvloop

from fumehood.cli.engine_access import engine_trouble
from fumehood.errors import ConfigurationError
from fumehood.images.admission import PUBLIC_REGISTRIES, Admission, DevelopmentPolicy
from fumehood.images.registry import RegistryAccess, RegistryClient
from fumehood.node.http.app import create_app
from fumehood.node.http.server import make_server
from fumehood.node.http.tokens import TokenSource
from fumehood.node.ledger import Ledger
from fumehood.node.lock import StateLock, load_node_id
from fumehood.node.logs import configure_logging
from fumehood.node.node import Node
from fumehood.node.telemetry import Telemetry
from fumehood.sandbox.docker import DockerDriver, DockerOptions
from fumehood.settings import NodeSettings, RegistryCredentials

CONFIG = typer.Option("--config", help="A TOML file with settings; FUMEHOOD_* variables and flags win over it.")
STATE = typer.Option("--state", help="Where the node keeps its ledger, id and warden.")


def node(
    config: Annotated[Path | None, CONFIG] = None,
    state: Annotated[Path | None, STATE] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes any free one.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="A file (mode 0600) with the Worker API's token.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="No token at all. Loopback only.")] = False,
    ready_file: Annotated[
        Path | None, typer.Option(help="Receives one JSON object when the node can run containers.")
    ] = None,
    json_logs: Annotated[bool, typer.Option("--json", help="Log as JSON lines.")] = False,
) -> None:
    """Run this machine's node: the Worker API, and the sandboxes behind it."""
    configure_logging(json=json_logs)
    settings = NodeSettings.load(
        config_file=config,
        state_dir=state,
        host=host,
        port=port,
        worker_api_token_file=token_file,
        insecure=insecure or None,
    )
    with uvloop_runner() as runner:
        runner.run(serve(settings, ready_file))


def uvloop_runner() -> asyncio.Runner:
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


async def serve(settings: NodeSettings, ready_file: Path | None = None) -> None:
    """A node from its lock to its drain."""
    with StateLock(settings.state_dir) as lock:
        node_id = settings.node_id or load_node_id(lock)
        telemetry = Telemetry.create(node_id=node_id, otlp_endpoint=settings.otlp_endpoint)
        try:
            await _check_engine(settings, telemetry)
            async with _parts(settings, node_id, telemetry) as running:
                app = create_app(
                    running, settings=settings, tokens=TokenSource.from_settings(settings), telemetry=telemetry
                )
                server = _Server(make_server(app, settings).config)
                await _serve_until_drained(server, running, settings, ready_file)
        finally:
            await asyncio.to_thread(telemetry.close)


async def _check_engine(settings: NodeSettings, telemetry: Telemetry) -> None:
    """An engine that is away may come; a socket that we may not open stays shut until somebody changes that."""
    trouble = await asyncio.to_thread(engine_trouble, settings.docker_socket)
    if trouble is not None and trouble.denied:
        raise ConfigurationError(trouble.sentence)
    if trouble is not None:
        telemetry.log.warning("engine.absent", notice=f"{trouble.sentence}; the node waits for it")


@contextlib.asynccontextmanager
async def _parts(settings: NodeSettings, node_id: str, telemetry: Telemetry) -> AsyncIterator[Node]:
    async with contextlib.AsyncExitStack() as stack:
        ledger = await Ledger.open(settings.state_dir / "ledger.sqlite3")
        stack.push_async_callback(ledger.close)
        accesses = {credentials.host: _access(credentials) for credentials in settings.registries}
        registry = await stack.enter_async_context(RegistryClient(accesses.values()))
        driver = DockerDriver(_docker_options(settings, node_id, accesses))
        stack.push_async_callback(driver.close)
        hosts = PUBLIC_REGISTRIES | accesses.keys()  # an operator who gives credentials for a registry means to use it
        policy = DevelopmentPolicy(registries=frozenset(hosts), allow_unsigned=settings.unsigned_public_images)
        telemetry.log.warning("admission.development_policy", notice=policy.notice)
        admission = Admission(policy, registry)
        yield await stack.enter_async_context(Node.open(settings, driver, admission, ledger, telemetry))


def _access(credentials: RegistryCredentials) -> RegistryAccess:
    password = None
    if credentials.password_file is not None:
        try:
            password = credentials.password_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            what = f"the password file {credentials.password_file} of {credentials.host}"
            raise ConfigurationError(f"{what} cannot be read: {reason}") from error
    return RegistryAccess(
        host=credentials.host, username=credentials.username, password=password, ca_file=credentials.ca_file
    )


def _docker_options(settings: NodeSettings, node_id: str, accesses: Mapping[str, RegistryAccess]) -> DockerOptions:
    def engine_auth(host: str) -> Mapping[str, str] | None:
        access = accesses.get(host)
        if access is None or access.username is None or access.password is None:
            return None
        return {"username": access.username, "password": access.password, "serveraddress": host}

    return DockerOptions(
        node_id=node_id,
        state_dir=settings.state_dir,
        socket=settings.docker_socket,
        runtime=settings.runtime,
        orphan_seconds=settings.orphan_seconds,
        concurrent_starts=settings.effective_concurrent_starts,
        pull_seconds=settings.pull_timeout_seconds,
        credentials=engine_auth,
    )


class _Server(uvicorn.Server):
    """uvicorn without signal handlers of its own: a node drains before its door closes."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


async def _serve_until_drained(server: _Server, running: Node, settings: NodeSettings, ready_file: Path | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: _stop(server, stop))
    listener = _listen(settings)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    ready = asyncio.create_task(_announce(server, listener, running, settings, ready_file))
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            await running.drain(settings.drain_seconds)
    finally:
        ready.cancel()
        stopping.cancel()
        server.should_exit = True
        await serving


def _listen(settings: NodeSettings) -> socket.socket:
    """Bound before anything is started, so that a taken port is one sentence."""
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        return socket.create_server((settings.host, settings.port), family=family, backlog=1024)
    except OSError as error:
        # Python adds the address to `strerror`, which stands in the sentence already.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise ConfigurationError(f"cannot listen on {settings.host}, port {settings.port}: {reason}") from error


def _stop(server: _Server, stop: asyncio.Event) -> None:
    """The first signal drains; the second does not wait."""
    if stop.is_set():
        server.force_exit = True
        os._exit(130)
    stop.set()


async def _announce(
    server: _Server, listener: socket.socket, running: Node, settings: NodeSettings, ready_file: Path | None
) -> None:
    while not (server.started and running.readiness().ready):  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.02)
    url = f"http://{settings.host}:{listener.getsockname()[1]}"
    if ready_file is not None:
        write_private(ready_file, json.dumps({"node_url": url, "pids": {"node": os.getpid()}}))


def write_private(path: Path, text: str) -> None:
    """Whole or not at all, and only for its owner."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.touch(mode=0o600)
    draft.write_text(text + "\n", encoding="utf-8")
    draft.replace(path)
