"""One server, and everything that can be asked of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypedDict, Unpack

from fumehood.sdk.aio.jobs import AsyncJobs
from fumehood.sdk.aio.python import AsyncPython
from fumehood.sdk.aio.receipts import AsyncReceipts
from fumehood.sdk.aio.run_lists import AsyncRuns
from fumehood.sdk.aio.transport import AsyncTransport
from fumehood.sdk.aio.workflows import AsyncWorkflows
from fumehood.sdk.connection import find_connection

if TYPE_CHECKING:
    from fumehood.sdk.aio.sandbox import AsyncSandbox
    from fumehood.sdk.template import Template
    from fumehood.sdk.values import SandboxInfo


class SandboxOptions(TypedDict, total=False):
    """How a sandbox is made."""

    template: Template | None
    name: str | None
    lease_seconds: int | None
    network: str | None
    memory_mib: int | None
    cpu_millis: int | None
    env: Mapping[str, str] | None


class AsyncSandboxes:
    """Sandboxes of this client's server; they share its connections."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def create(self, image: str | None = None, **options: Unpack[SandboxOptions]) -> AsyncSandbox:
        """Make one; the options are those of `AsyncSandbox.create`.

        async with await client.sandboxes.create("python:3.12-slim", memory_mib=256) as sb:
            assert (await sb.commands.run("echo hello")).ok
        """
        from fumehood.sdk.aio.sandbox import AsyncSandbox

        return await AsyncSandbox.create(image, **options, client=self._client)

    async def connect(self, sandbox_id: str) -> AsyncSandbox:
        """One that is there already."""
        from fumehood.sdk.aio.sandbox import AsyncSandbox

        return await AsyncSandbox.connect(sandbox_id, client=self._client)

    async def list(self) -> list[SandboxInfo]:
        """Those that are there."""
        from fumehood.sdk.aio.sandbox import AsyncSandbox

        return await AsyncSandbox.list(client=self._client)


class AsyncClient:
    """A caller of one server.

    Without arguments it is the one that the environment (`FUMEHOOD_URL`, `FUMEHOOD_API_KEY`), `fumehood login` or one's
    own `fumehood dev` say. Any number of tasks_or_threads may use it at once; nothing is asked before it is used.

        async with AsyncClient() as client:
            result = await client.python.run("print(6 * 7)")
            assert result.stdout == "42\\n"
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        key_file: str | os.PathLike[str] | None = None,
        context: str | None = None,
        insecure_http: bool | None = None,
        transport: AsyncTransport | None = None,
    ) -> None:
        """`transport`: one that is there already, for a server in the same process; it is closed with this client."""
        self.transport = transport or AsyncTransport(
            find_connection(
                url=url,
                key=key,
                key_file=None if key_file is None else Path(key_file),
                context=context,
                insecure_http=insecure_http,
            )
        )
        self.sandboxes = AsyncSandboxes(self)
        self.workflows = AsyncWorkflows(self.transport)
        self.runs = AsyncRuns(self.transport)
        self.jobs = AsyncJobs(self.transport)
        self.receipts = AsyncReceipts(self.transport)
        self.python = AsyncPython(self.transport)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.transport.url}>"

    @property
    def url(self) -> str:
        """The server's address."""
        return self.transport.url

    async def aclose(self) -> None:
        """Ask nothing any more. What was started goes on."""
        await self.transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
