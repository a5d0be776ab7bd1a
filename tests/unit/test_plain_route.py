"""Routes that do without the framework's working out of parameters are guarded as all others are."""

from __future__ import annotations

import httpx
import pytest
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fumehood.door.app import Door, PlainRoute
from fumehood.door.keepers import DECIDED


@pytest.mark.parametrize(("decided", "status"), [("/a/{b}", 200), ("/a", 403), (None, 403)])
@pytest.mark.parametrize("kind", [PlainRoute, None])
async def test_another_route_than_the_guard_decided_about_is_closed(
    decided: str | None, status: int, kind: type[PlainRoute] | None
) -> None:
    router = APIRouter(route_class=kind) if kind is not None else APIRouter()

    @router.get("/a/{b}")
    async def endpoint(request: Request) -> Response:
        return Response(request.path_params["b"])

    door = Door(title="t", description="d", routers=[router], components=dict, announce=[])

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        scope[DECIDED] = decided
        await door(scope, receive, send)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=guarded), base_url="http://door") as client:
        answer = await client.get("/a/x")
    assert answer.status_code == status
    assert (answer.text == "x") is (status == 200)
