"""The ASGI application of the node's HTTP door.

`/healthz` and `/readyz` are open. `/metrics` is open where the node listens on loopback, and needs the token
elsewhere: metrics tell how busy a machine is, and with what. Everything else needs the token, paths that do not
exist included, so that a stranger learns nothing about the door but that it is shut.
"""

from __future__ import annotations

from fastapi import FastAPI

from fumehood.door.app import BODY_SECONDS, Door
from fumehood.door.keepers import TokenKeeper
from fumehood.door.tokens import TokenSource
from fumehood.node.http import schema
from fumehood.node.http.routes import HEALTH_PATH, METRICS_PATH, PATHS, READY_PATH, health_router, worker_router
from fumehood.node.service import JobService
from fumehood.node.telemetry import Telemetry
from fumehood.settings import NodeSettings, is_loopback

DESCRIPTION = "Run one job in one sandbox and get back how it ended."


def create_app(
    service: JobService,
    *,
    settings: NodeSettings,
    tokens: TokenSource,
    telemetry: Telemetry,
    body_seconds: float = BODY_SECONDS,
) -> FastAPI:
    """Put the door together around a node."""
    door = Door(
        title="Fumehood Worker API",
        description=DESCRIPTION,
        routers=[worker_router(service), health_router(service, telemetry)],
        components=schema.components,
        announce=[tokens],
    )
    door.guard(
        telemetry=telemetry,
        paths=PATHS,
        open_paths=_open_paths(settings),
        keeper=TokenKeeper(tokens),
        body_limit=settings.body_limit_bytes,
        body_seconds=body_seconds,
    )
    return door


def _open_paths(settings: NodeSettings) -> set[str]:
    return {HEALTH_PATH, READY_PATH} | ({METRICS_PATH} if is_loopback(settings.host) else set())
