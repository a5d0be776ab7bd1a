"""The ASGI application of the node's HTTP door.

`/healthz` and `/readyz` are open. `/metrics` is open where the node listens on loopback, and needs the token
elsewhere: metrics tell how busy a machine is, and with what. Everything else needs the token, paths that do not
exist included, so that a stranger learns nothing about the door but that it is shut.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException

from fumehood.errors import FumehoodError
from fumehood.node.http import schema
from fumehood.node.http.middleware import Authentication, BodyBound, Edge, Tracing
from fumehood.node.http.problems import on_error, on_http_exception
from fumehood.node.http.routes import HEALTH_PATH, METRICS_PATH, PATHS, READY_PATH, health_router, worker_router
from fumehood.node.http.tokens import TokenSource
from fumehood.node.service import JobService
from fumehood.node.telemetry import Telemetry
from fumehood.settings import NodeSettings, is_loopback

BODY_SECONDS = 60.0
"""A whole body must be here by then. 10 MiB in a minute is a slow modem's pace; slower is an attack or a fault."""

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
    app = _Door(
        title="Fumehood Worker API",
        version="1",
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan(tokens),
    )
    app.include_router(worker_router(service))
    app.include_router(health_router(service, telemetry))
    app.add_exception_handler(FumehoodError, on_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    # Each one added goes around those before it: the last is the outermost.
    app.add_middleware(Tracing, telemetry=telemetry, routes=PATHS)
    app.add_middleware(BodyBound, limit=settings.body_limit_bytes, seconds=body_seconds)
    app.add_middleware(Authentication, tokens=tokens, open_paths=_open_paths(settings))
    app.add_middleware(Edge, telemetry=telemetry, routes=PATHS, body_limit=settings.body_limit_bytes)
    return app


def _open_paths(settings: NodeSettings) -> set[str]:
    return {HEALTH_PATH, READY_PATH} | ({METRICS_PATH} if is_loopback(settings.host) else set())


def _lifespan(tokens: TokenSource) -> Any:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        tokens.announce()
        yield

    return lifespan


class _Door(FastAPI):
    """The framework's application, with the parts of the document that it cannot derive."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            document["components"] = schema.components()
            self.openapi_schema = document
        return self.openapi_schema
