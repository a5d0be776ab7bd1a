"""The process of `fumehood node`: one machine's worker, put together and served."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from functools import partial
from math import inf
from pathlib import Path

from fumehood.broker.broker import NatsBroker
from fumehood.cli.admission import admitting
from fumehood.cli.connecting import connection, waited_for
from fumehood.cli.engine_access import engine_trouble
from fumehood.cli.engine_options import docker_options
from fumehood.cli.networks import serve_networks
from fumehood.cli.serving import clear_ready, serve_until_drained, uvloop_runner, write_ready
from fumehood.door.logs import configure_logging
from fumehood.door.server import make_server
from fumehood.door.tokens import TokenSource
from fumehood.errors import ConfigurationError
from fumehood.node.http.app import create_app
from fumehood.node.ledger import Ledger
from fumehood.node.lock import StateLock, load_node_id
from fumehood.node.node import Node, Queue
from fumehood.node.receipts import Receipts
from fumehood.node.signing import ReceiptKeys
from fumehood.node.telemetry import Telemetry
from fumehood.sandbox.docker import DockerDriver
from fumehood.sandbox.pool.driver import PooledDriver
from fumehood.sandbox.pool.values import PoolOptions
from fumehood.sandbox.spec import MIB
from fumehood.settings import NodeSettings


def run(settings: NodeSettings, ready_file: Path | None, *, json_logs: bool) -> None:
    configure_logging(json=json_logs, level=settings.log_level)
    clear_ready(ready_file)
    with uvloop_runner() as runner:
        runner.run(serve(settings, ready_file))


async def serve(settings: NodeSettings, ready_file: Path | None = None) -> None:
    """A node from its lock to its drain."""
    settings.check_policy()
    with StateLock(settings.state_dir) as lock:
        node_id = settings.node_id or load_node_id(lock)
        telemetry = Telemetry.create(node_id=node_id, otlp_endpoint=settings.otlp_endpoint)
        try:
            await _check_engine(settings, telemetry)
            async with _parts(settings, node_id, telemetry) as running:
                await _serve(running, settings, telemetry, ready_file)
        finally:
            await asyncio.to_thread(telemetry.close)


async def _serve(running: Node, settings: NodeSettings, telemetry: Telemetry, ready_file: Path | None) -> None:
    tokens = TokenSource(settings.worker_api)
    app = create_app(running, settings=settings, tokens=tokens, telemetry=telemetry)

    async def ready(url: str) -> None:
        await _until_ready(running)
        write_ready(ready_file, {"node_url": url, "pids": {"node": os.getpid()}})

    async def drain() -> None:
        await running.drain(settings.drain_seconds)

    await serve_until_drained(make_server(app, settings), settings, ready=ready, drain=drain)


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
        images = await stack.enter_async_context(admitting(settings, telemetry.log))
        telemetry.metrics.watch_policy(images.counts, lambda: images.admission.trouble is not None)
        options = docker_options(
            settings,
            node_id,
            settings.state_dir,
            images,
            orphan_seconds=settings.orphan_seconds,
            concurrent_starts=settings.effective_concurrent_starts,
            pull_seconds=settings.pull_timeout_seconds,
        )
        driver = DockerDriver(options)
        stack.push_async_callback(driver.close)
        await serve_networks(driver, telemetry.log)
        stock = PoolOptions(settings.warm_sandboxes, settings.warm_memory_mib * MIB)
        pool = await stack.enter_async_context(PooledDriver.open(driver, settings.state_dir, stock))
        pool.on_given = lambda how: telemetry.metrics.sandboxes.labels(how).inc()
        telemetry.metrics.watch_pool(lambda: pool.idle, lambda: pool.making)
        queue = partial(_queue, settings, node_id, telemetry) if settings.nats_servers else None
        name = _user(settings, node_id) if settings.nats_servers else node_id
        receipts = Receipts(ReceiptKeys.load(settings.state_dir), name)
        yield await stack.enter_async_context(
            Node.open(settings, pool, images.admission, ledger, receipts, telemetry, queue)
        )


@contextlib.asynccontextmanager
async def _queue(settings: NodeSettings, node_id: str, telemetry: Telemetry) -> AsyncIterator[Queue]:
    """However long it takes: jobs of the Worker API do not wait for it."""
    user = _user(settings, node_id)
    options = connection(settings, f"fumehood-node-{node_id}", f"_INBOX_{user}")
    broker = await waited_for(lambda: NatsBroker.open_worker(options), options, telemetry.log, seconds=inf)
    try:
        yield Queue(broker, node_id, user)
    finally:
        await broker.close()


def _user(settings: NodeSettings, node_id: str) -> str:
    """By which the directory has it, and under which it signs: the broker lets nobody else say that it is this."""
    return settings.nats_user or node_id


async def _until_ready(running: Node) -> None:
    while not running.readiness().ready:  # noqa: ASYNC110 - readiness is asked for, never awaited
        await asyncio.sleep(0.02)
