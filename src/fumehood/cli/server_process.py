"""The process of `fumehood server`: the API, the bridge for workers and the deciders, put together and served."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fumehood.broker.broker import NatsBroker
from fumehood.broker.topology import Shape
from fumehood.cli.admission import admitting
from fumehood.cli.connecting import connection, waited_for
from fumehood.cli.serving import clear_ready, serve_until_drained, uvloop_runner, write_ready
from fumehood.control.bridge import Bridge
from fumehood.control.http.app import Neighbour, create_app
from fumehood.control.jobs.jobs import Waits
from fumehood.control.rpc.server import ConsoleDoor, DoorOptions, opened
from fumehood.control.rpc.tls import DoorTls
from fumehood.control.service import Service
from fumehood.control.telemetry import Telemetry
from fumehood.door.logs import configure_logging
from fumehood.door.server import DoorServer, make_server
from fumehood.door.tokens import TokenSource
from fumehood.jobs.registry import Registry
from fumehood.mcp.door import METHODS, PATH, McpDoor
from fumehood.mcp.origin import Origins
from fumehood.settings import ServerSettings, is_loopback


def run(settings: ServerSettings, ready_file: Path | None, *, json_logs: bool) -> None:
    configure_logging(json=json_logs, level=settings.log_level)
    clear_ready(ready_file)
    with uvloop_runner() as runner:
        runner.run(serve(settings, ready_file))


async def serve(settings: ServerSettings, ready_file: Path | None = None) -> None:
    """A server from its connection to its drain."""
    server_id = settings.server_id or secrets.token_hex(8)
    telemetry = Telemetry.create(server_id=server_id, otlp_endpoint=settings.otlp_endpoint)
    try:
        async with _broker(settings, server_id, telemetry) as broker, admitting(settings, telemetry.log) as images:
            service = Service(
                broker,
                tracer=telemetry.tracer,
                index_dir=settings.index_dir,
                retention_seconds=settings.retention_seconds,
                admission=images.admission,
                receipt_root=bytes.fromhex(settings.receipt_root) if settings.receipt_root is not None else None,
                job_types=Registry.load(settings.job_modules),
                job_waits=Waits(settings.job_wait_seconds, settings.job_busy_seconds),
            )
            bridge = Bridge(broker)
            telemetry.watch(service.decider.counters, lambda: _counts(broker, bridge, service))
            telemetry.metrics.broker_connected.set_function(lambda: broker.connection.connected)
            mcp = McpDoor(Origins(is_loopback(settings.host), settings.mcp_hosts)) if settings.mcp else None
            door = _door(service, bridge, settings, telemetry, mcp)
            async with service.deciding(), opened(service.desk.console, _console(settings)) as console:
                telemetry.metrics.console_streams.set_function(lambda: len(console))
                await _serve(Doors(door, console, bridge, mcp), service, settings, ready_file)
    finally:
        await asyncio.to_thread(telemetry.close)


def _door(
    service: Service, bridge: Bridge, settings: ServerSettings, telemetry: Telemetry, mcp: McpDoor | None
) -> DoorServer:
    app = create_app(
        service,
        bridge,
        settings=settings,
        tokens=TokenSource(settings.api),
        bridge_tokens=TokenSource(settings.bridge),
        telemetry=telemetry,
        neighbour=None if mcp is None else Neighbour(PATH, METHODS, mcp, mcp.bounds.body_bytes),
    )
    return make_server(app, settings)


def _console(settings: ServerSettings) -> DoorOptions:
    tls = None
    if settings.grpc_tls_cert_file is not None and settings.grpc_tls_key_file is not None:
        tls = DoorTls(settings.grpc_tls_cert_file, settings.grpc_tls_key_file, settings.grpc_client_ca_file)
    return DoorOptions(settings.grpc_host, settings.grpc_port, tls, settings.grpc_max_streams)


@dataclass(frozen=True, slots=True)
class Doors:
    """Where callers, and workers of both kinds, come in."""

    http: DoorServer
    console: ConsoleDoor
    bridge: Bridge
    mcp: McpDoor | None = None

    async def close(self, seconds: float) -> None:
        await self.bridge.close()  # polls and streams would take all the time there is
        agents = [self.mcp.close(seconds)] if self.mcp is not None else []
        await asyncio.gather(self.console.drain(seconds), self.http.settle(seconds), *agents)


async def _serve(doors: Doors, service: Service, settings: ServerSettings, ready_file: Path | None) -> None:
    host = f"[{settings.grpc_host}]" if ":" in settings.grpc_host else settings.grpc_host
    facts = {"grpc_target": f"{host}:{doors.console.port}", "pids": {"server": os.getpid()}}

    async def ready(url: str) -> None:
        while not (await service.readiness()).ready:  # noqa: ASYNC110 - readiness is asked for, never awaited
            await asyncio.sleep(0.1)
        write_ready(ready_file, {"server_url": url, **facts})

    async def drain() -> None:
        service.drain()
        await doors.close(settings.drain_seconds)

    await serve_until_drained(doors.http, settings, ready=ready, drain=drain)


@contextlib.asynccontextmanager
async def _broker(settings: ServerSettings, server_id: str, telemetry: Telemetry) -> AsyncIterator[NatsBroker]:
    options = connection(settings, f"fumehood-server-{server_id}", "_INBOX_server")  # where no worker listens
    broker = await waited_for(lambda: NatsBroker.open(options, _shape(settings)), options, telemetry.log)
    for made in broker.report.created:
        telemetry.log.info("broker.created", stream=made)
    for one in broker.report.drift:
        telemetry.log.warning("broker.drift", stream=one.stream, setting=one.setting)
    try:
        yield broker
    finally:
        await broker.close()


def _shape(settings: ServerSettings) -> Shape:
    return Shape(settings.partitions, settings.replicas, settings.storage_bytes)


def _counts(broker: NatsBroker, bridge: Bridge, service: Service) -> Mapping[str, Mapping[str, int]]:
    return {
        "connection": broker.connection.errors,
        "journal": broker.journal.counts,
        "feed": broker.feed.counts,
        "tasks": broker.tasks.counts,
        "switchboard": broker.switchboard.counts,
        "handouts": bridge.handouts.counts,
        "sweep": {"put_back": service.sweeper.replaced},
        "index": {"failed": service.index.failed},
        "archive": {"archived": service.archiver.archived, "failed": service.archiver.failed},
        "schedules": service.scheduler.counts,
        "audit": service.audit.counts,
    }
