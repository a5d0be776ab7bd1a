"""The Docker Engine API over its socket: the calls that we need, each with a deadline, and nothing else.

Raw HTTP rather than an SDK: measured, it costs a quarter of the CPU of the official client, and every status
code is visible here. Decisions are made from status codes and JSON fields, never from message texts.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from fumehood.errors import DeadlineExceededError, EngineStatusError, EngineUnavailableError

API_VERSION = "v1.41"
"""Docker 20.10, the oldest engine that we support; newer ones still speak it."""

CALL_SECONDS = 30.0
START_SECONDS = 60.0
REMOVE_SECONDS = 60.0

Json = dict[str, Any]


class Engine:
    """One connection pool to one engine."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    # --- containers ----------------------------------------------------------------------------------------

    async def create(self, name: str, body: Json) -> str:
        answer = await self._call("POST", f"/containers/create?name={name}", body=body)
        return str(answer["Id"])

    async def start(self, container: str) -> None:
        await self._call("POST", f"/containers/{container}/start", seconds=START_SECONDS)

    async def inspect(self, container: str) -> Json:
        return await self._call("GET", f"/containers/{container}/json")

    async def kill(self, container: str) -> None:
        await self._call("POST", f"/containers/{container}/kill?signal=KILL")

    async def wait(self, container: str, *, seconds: float) -> None:
        """Return when the container does not run any more."""
        await self._call("POST", f"/containers/{container}/wait", seconds=seconds)

    async def rename(self, container: str, name: str) -> None:
        await self._call("POST", f"/containers/{container}/rename", params={"name": name})

    async def remove(self, container: str) -> None:
        await self._call("DELETE", f"/containers/{container}?force=1&v=1", seconds=REMOVE_SECONDS)

    async def containers(self, labels: Mapping[str, str]) -> list[Json]:
        filters = json.dumps({"label": [f"{name}={value}" for name, value in labels.items()]})
        data = await self._read("GET", "/containers/json", params={"all": "1", "filters": filters})
        found: list[Json] = json.loads(data)
        return found

    # --- images --------------------------------------------------------------------------------------------

    async def image(self, reference: str) -> Json:
        return await self._call("GET", f"/images/{reference}/json")

    async def import_image(self, tar: bytes, name: str) -> str:
        """Make an image of a tar of files; answers its id."""
        repository, _, tag = name.partition(":")
        path = f"/images/create?fromSrc=-&repo={repository}&tag={tag}"
        answer = await self._stream(path, data=tar, seconds=CALL_SECONDS)
        return str(answer["status"])

    async def pull(self, repository: str, digest: str, *, auth: Mapping[str, str] | None, seconds: float) -> None:
        path = f"/images/create?fromImage={repository}&tag={digest}"
        await self._stream(path, headers=_registry_auth(auth), seconds=seconds)

    async def distribution(self, reference: str, *, auth: Mapping[str, str] | None) -> Json:
        """What the registry says about an image, asked by the engine; nothing is fetched."""
        return await self._call("GET", f"/distribution/{reference}/json", headers=_registry_auth(auth))

    # --- networks ------------------------------------------------------------------------------------------

    async def create_network(self, body: Json) -> str:
        return str((await self._call("POST", "/networks/create", body=body))["Id"])

    async def network(self, network: str) -> Json:
        return await self._call("GET", f"/networks/{network}")

    async def networks(self, labels: Mapping[str, str]) -> list[Json]:
        """Those that bear these labels; one with an empty value, whatever its value is."""
        filters = json.dumps({"label": [f"{name}={value}" if value else name for name, value in labels.items()]})
        found: list[Json] = json.loads(await self._read("GET", "/networks", params={"filters": filters}))
        return found

    async def remove_network(self, network: str) -> None:
        await self._call("DELETE", f"/networks/{network}")

    # --- engine --------------------------------------------------------------------------------------------

    async def info(self) -> Json:
        return await self._call("GET", "/info")

    async def version(self) -> Json:
        return await self._call("GET", "/version")

    async def ping(self, seconds: float = 5.0) -> None:
        await self._call("GET", "/_ping", seconds=seconds)

    async def events(self, filters: Mapping[str, list[str]]) -> AsyncIterator[Json]:
        """Events as they happen, until the engine goes away."""
        params = {"filters": json.dumps(dict(filters))}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        try:
            async with self._client().get(self._url("/events"), params=params, timeout=timeout) as answer:
                async for line in answer.content:
                    if line.strip():
                        yield json.loads(line)
        except (aiohttp.ClientError, OSError) as error:
            raise EngineUnavailableError("the container engine does not answer") from error

    # --- inside --------------------------------------------------------------------------------------------

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.UnixConnector(str(self.socket), limit=0)
            self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        return self._session

    def _url(self, path: str) -> str:
        return f"http://engine/{API_VERSION}{path}"

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, *, seconds: float, **options: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with asyncio.timeout(seconds):
                async with self._client().request(method, self._url(path), timeout=_NO_TIMEOUT, **options) as answer:
                    if answer.status >= 400:
                        raise EngineStatusError(answer.status, _message(await answer.read()))
                    yield answer
        except TimeoutError:
            raise DeadlineExceededError(f"the container engine did not answer within {seconds:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise EngineUnavailableError("the container engine does not answer") from error

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: Json | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float = CALL_SECONDS,
    ) -> Json:
        data = await self._read(method, path, seconds=seconds, json=body, params=params, headers=headers)
        answer: Json = json.loads(data) if data[:1] == b"{" else {}
        return answer

    async def _read(self, method: str, path: str, *, seconds: float = CALL_SECONDS, **options: Any) -> bytes:
        async with self._request(method, path, seconds=seconds, **options) as answer:
            return await answer.read()

    async def _stream(
        self, path: str, *, seconds: float, data: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Json:
        """A call that reports progress line by line: 200 at once, and perhaps an error in the last line."""
        last: Json = {}
        async with self._request("POST", path, seconds=seconds, data=data, headers=headers) as answer:
            async for line in answer.content:
                last = json.loads(line)
                if "error" in last:
                    raise EngineStatusError(500, str(last["error"]))
        return last


_NO_TIMEOUT = aiohttp.ClientTimeout(total=None)


def _registry_auth(auth: Mapping[str, str] | None) -> dict[str, str]:
    if auth is None:
        return {}
    return {"X-Registry-Auth": base64.urlsafe_b64encode(json.dumps(dict(auth)).encode()).decode()}


def _message(data: bytes) -> str:
    try:
        return str(json.loads(data)["message"])
    except (ValueError, KeyError, TypeError):
        return data[:200].decode("utf-8", "replace")
