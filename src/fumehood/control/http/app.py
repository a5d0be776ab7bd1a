"""The ASGI application of the server's HTTP door.

`/healthz` and `/readyz` are open. `/metrics` is open where the server listens on loopback, and needs the
administrator's token elsewhere. The bridge's paths need the workers' token, everything else the administrator's, paths
that do not exist included, so that a stranger learns nothing about the door but that it is shut.
"""

from __future__ import annotations

from fastapi import FastAPI

from fumehood.control.bridge import Bridge
from fumehood.control.http import bridge as bridge_door
from fumehood.control.http import health, runs, schema, workflows
from fumehood.control.service import Service
from fumehood.control.telemetry import Telemetry
from fumehood.door.app import BODY_SECONDS, Door
from fumehood.door.tokens import TokenSource
from fumehood.settings import ServerSettings, is_loopback

DESCRIPTION = "Apply workflows, start runs of them, see where they stand; and for workers: take tasks and resolve them."
PATHS = (*workflows.PATHS, *runs.PATHS, *bridge_door.PATHS, *health.PATHS)


def create_app(
    service: Service,
    bridge: Bridge,
    *,
    settings: ServerSettings,
    tokens: TokenSource,
    bridge_tokens: TokenSource,
    telemetry: Telemetry,
    body_seconds: float = BODY_SECONDS,
) -> FastAPI:
    """Put the door together around a server."""
    telemetry.metrics.ready.set_function(lambda: service.is_ready)
    telemetry.metrics.polls.set_function(lambda: bridge.polls)
    telemetry.metrics.streams.set_function(lambda: len(bridge.workers))
    door = Door(
        title="Fumehood API",
        description=DESCRIPTION,
        routers=[
            workflows.workflows_router(service.workflows),
            runs.runs_router(service.runs, telemetry),
            bridge_door.bridge_router(bridge),
            health.health_router(service, telemetry),
        ],
        components=lambda: schema.components(bridge_door.MODELS),
        announce=[tokens, bridge_tokens],
    )
    door.guard(
        telemetry=telemetry,
        paths=PATHS,
        open_paths=_open_paths(settings),
        tokens=tokens,
        prefixes=dict.fromkeys(bridge_door.PREFIXES, bridge_tokens),
        body_limit=settings.body_limit_bytes,
        body_seconds=body_seconds,
    )
    return door


def _open_paths(settings: ServerSettings) -> set[str]:
    return {health.HEALTH_PATH, health.READY_PATH} | ({health.METRICS_PATH} if is_loopback(settings.host) else set())
