"""What all doors share: paths by their templates, and which key fits which path."""

from __future__ import annotations

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp

from fumehood.door.middleware import Authentication
from fumehood.door.paths import Templates
from fumehood.door.tokens import TokenSource
from fumehood.settings import Access

TEMPLATES = Templates(["/healthz", "/v1/runs/{run_id}", "/v1/runs/{run_id}:cancel", "/v1/runs/{run_id}/history"])


@pytest.mark.parametrize(
    ("path", "template"),
    [
        ("/healthz", "/healthz"),
        ("/v1/runs/run-1", "/v1/runs/{run_id}"),
        ("/v1/runs/run-1:cancel", "/v1/runs/{run_id}:cancel"),
        ("/v1/runs/run-1/history", "/v1/runs/{run_id}/history"),
        ("/v1/runs/", None),
        ("/v1/runs/a/b", None),
        ("/v1/runs/a\n", "/v1/runs/{run_id}"),
        ("/healthz/", None),
        ("", None),
    ],
)
def test_a_path_is_called_by_its_template(path: str, template: str | None) -> None:
    assert TEMPLATES.of(path) == template


def source(token: str | None, *, insecure: bool = False) -> TokenSource:
    return TokenSource(Access("api", "--token-file", token=token, insecure=insecure))


def door(admin: TokenSource, bridge: TokenSource) -> ASGIApp:
    prefixes = {"/v1/tasks/": bridge}
    return Authentication(PlainTextResponse("in"), tokens=admin, open_paths={"/healthz"}, prefixes=prefixes)


async def knock(app: ASGIApp, path: str, token: str | None) -> httpx.Response:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://door") as client:
        return await client.get(path, headers=headers)


@pytest.mark.parametrize(
    ("path", "token", "status"),
    [
        ("/healthz", None, 200),
        ("/v1/runs/a", "admin", 200),
        ("/v1/tasks/poll", "bridge", 200),
        ("/v1/runs/a", "bridge", 403),
        ("/v1/tasks/poll", "admin", 403),
        ("/v1/tasks", "bridge", 403),
        ("/v1/tasks", "admin", 200),
        ("/nowhere", "admin", 200),
        ("/nowhere", "bridge", 403),
        ("/v1/runs/a", "wrong", 401),
        ("/v1/tasks/poll", "wrong", 401),
        ("/v1/tasks/poll", None, 401),
    ],
)
async def test_each_part_of_a_door_has_its_own_key(path: str, token: str | None, status: int) -> None:
    answer = await knock(door(source("admin"), source("bridge")), path, token)
    assert answer.status_code == status
    if status == 403:
        assert answer.json()["type"] == "urn:fumehood:problem:forbidden"
        assert "www-authenticate" not in answer.headers
    if status == 401:
        assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_a_part_without_a_key_is_closed_and_the_rest_is_not() -> None:
    app = door(source("admin"), source(None))
    assert (await knock(app, "/v1/tasks/poll", "admin")).status_code == 403
    assert (await knock(app, "/v1/tasks/poll", "")).status_code == 401
    assert (await knock(app, "/v1/runs/a", "admin")).status_code == 200


async def test_two_authorization_headers_are_none() -> None:
    app = door(source("admin"), source("bridge"))
    headers = [("authorization", "Bearer admin"), ("authorization", "Bearer admin")]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://door") as client:
        assert (await client.get("/v1/runs/a", headers=headers)).status_code == 401
