"""A door put together: the framework's application, with its errors translated and its guards around it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from fumehood.door.keepers import DECIDED, Doorkeeper
from fumehood.door.middleware import Authentication, BodyBound, BodyLimits, Edge, Methods, Tracing
from fumehood.door.paths import Templates
from fumehood.door.problems import on_error, on_http_exception
from fumehood.door.telemetry import Telemetry
from fumehood.door.tokens import TokenSource
from fumehood.errors import ForbiddenError, FumehoodError

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
        complete: Callable[[str, str, dict[str, Any]], None] | None = None,
    ) -> None:
        """`complete` is given each operation of the document, with its method and its path."""
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
        self._complete = complete
        self._methods = _methods(routers) | {str(self.openapi_url): ["GET"]}
        for router in routers:
            self.include_router(router, dependencies=[Depends(_as_decided)])
        self.add_exception_handler(FumehoodError, on_error)
        self.add_exception_handler(HTTPException, on_http_exception)

    def beside(self, path: str, methods: Collection[str], app: ASGIApp) -> None:
        """Another application for one path, behind the same guards. It is no part of the document."""
        self.router.routes.append(Route(path, endpoint=app))
        self._methods[path] = sorted(methods)

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            document["components"] = self._components()
            operations = [
                (method, path, one) for path, all_ in document["paths"].items() for method, one in all_.items()
            ]
            for method, path, operation in operations:
                operation["responses"].pop("422", None)  # the framework's own; a malformed request is 400 here
                if self._complete is not None:
                    self._complete(method.upper(), path, operation)
            self.openapi_schema = document
        return self.openapi_schema

    def guard(
        self,
        *,
        telemetry: Telemetry,
        paths: Collection[str],
        open_paths: Collection[str],
        keeper: Doorkeeper,
        body_limit: int,
        body_seconds: float = BODY_SECONDS,
        long_bodies: Mapping[tuple[str, str], BodyLimits] | None = None,
    ) -> None:
        """Put the guards around it. `paths` are the templates of all routes, for metrics and spans; `long_bodies` are
        the routes, by method and template, that take other bodies than the rest."""
        routes = Templates(paths)
        self.add_middleware(Methods, routes=routes, methods=self._methods)
        # Each one added goes around those before it: the last is the outermost.
        self.add_middleware(Tracing, telemetry=telemetry, routes=routes)
        self.add_middleware(BodyBound, usual=BodyLimits(body_limit, body_seconds), others=long_bodies or {})
        self.add_middleware(Authentication, keeper=keeper, open_paths=open_paths, routes=routes, methods=self._methods)
        self.add_middleware(Edge, telemetry=telemetry, routes=routes, body_limit=body_limit)


class PlainRoute(APIRoute):
    """A route whose endpoint takes the request and nothing else: there is nothing for the framework to work out, which
    takes it as long as many an endpoint. What the door asks of every route is asked here, too."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        endpoint: Callable[[Request], Awaitable[Response]] = self.endpoint

        async def handle(request: Request) -> Response:
            await _as_decided(request)
            return await endpoint(request)

        return handle


async def _as_decided(request: Request) -> None:
    """The guard decides by a path's template. That the framework chose the same route is not left to chance."""
    if request.scope[DECIDED] != request.scope["route"].path:
        raise ForbiddenError("this path is closed")


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
