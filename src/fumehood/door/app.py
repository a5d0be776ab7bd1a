"""A door put together: the framework's application, with its errors translated and its guards around it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from fumehood.door.middleware import Authentication, BodyBound, Edge, Methods, Tracing
from fumehood.door.paths import Templates
from fumehood.door.problems import on_error, on_http_exception
from fumehood.door.telemetry import Telemetry
from fumehood.door.tokens import TokenSource
from fumehood.errors import FumehoodError

BODY_SECONDS = 60.0
"""A whole body must be here by then. 10 MiB in a minute is a slow modem's pace; slower is an attack or a fault."""


class Door(FastAPI):
    """The framework's application, with the parts of the document that it cannot derive."""

    def __init__(
        self,
        *,
        title: str,
        description: str,
        routers: Collection[APIRouter],
        components: Callable[[], dict[str, Any]],
        announce: Collection[TokenSource],
    ) -> None:
        super().__init__(
            title=title,
            version="1",
            description=description,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            lifespan=_lifespan(announce),
        )
        self._components = components
        self._methods = _methods(routers)
        for router in routers:
            self.include_router(router)
        self.add_exception_handler(FumehoodError, on_error)
        self.add_exception_handler(HTTPException, on_http_exception)

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            document["components"] = self._components()
            for operation in (one for path in document["paths"].values() for one in path.values()):
                operation["responses"].pop("422", None)  # the framework's own; a malformed request is 400 here
            self.openapi_schema = document
        return self.openapi_schema

    def guard(
        self,
        *,
        telemetry: Telemetry,
        paths: Collection[str],
        open_paths: Collection[str],
        tokens: TokenSource,
        prefixes: Mapping[str, TokenSource] | None = None,
        body_limit: int,
        body_seconds: float = BODY_SECONDS,
    ) -> None:
        """Put the guards around it. `paths` are the templates of all routes, for metrics and spans."""
        routes = Templates(paths)
        self.add_middleware(Methods, routes=routes, methods=self._methods)
        # Each one added goes around those before it: the last is the outermost.
        self.add_middleware(Tracing, telemetry=telemetry, routes=routes)
        self.add_middleware(BodyBound, limit=body_limit, seconds=body_seconds)
        self.add_middleware(Authentication, tokens=tokens, open_paths=open_paths, prefixes=prefixes)
        self.add_middleware(Edge, telemetry=telemetry, routes=routes, body_limit=body_limit)


def _methods(routers: Iterable[APIRouter]) -> dict[str, list[str]]:
    """Which methods each path has, all of its routes together."""
    found: dict[str, set[str]] = {}
    for route in (route for router in routers for route in router.routes):
        if isinstance(route, APIRoute):
            found.setdefault(route.path, set()).update(route.methods or ())
    return {path: sorted(methods) for path, methods in found.items()}


def _lifespan(announce: Collection[TokenSource]) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        for tokens in announce:
            tokens.announce()
        yield

    return lifespan
