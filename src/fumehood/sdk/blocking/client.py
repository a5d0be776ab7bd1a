# Made by scripts/derive-sync from sdk/aio/client.py; edit that, not this.
"""One server, and everything that can be asked of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypedDict, Unpack

from fumehood.sdk.blocking.jobs import Jobs
from fumehood.sdk.blocking.python import Python
from fumehood.sdk.blocking.receipts import Receipts
from fumehood.sdk.blocking.run_lists import Runs
from fumehood.sdk.blocking.transport import Transport
from fumehood.sdk.blocking.workflows import Workflows
from fumehood.sdk.connection import find_connection

if TYPE_CHECKING:
    from fumehood.sdk.blocking.sandbox import Sandbox
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


class Sandboxes:
    """Sandboxes of this client's server; they share its connections."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(self, image: str | None = None, **options: Unpack[SandboxOptions]) -> Sandbox:
        """Make one; the options are those of `Sandbox.create`.

        with client.sandboxes.create("python:3.12-slim", memory_mib=256) as sb:
            assert (sb.commands.run("echo hello")).ok
        """
        from fumehood.sdk.blocking.sandbox import Sandbox

        return Sandbox.create(image, **options, client=self._client)

    def connect(self, sandbox_id: str) -> Sandbox:
        """One that is there already."""
        from fumehood.sdk.blocking.sandbox import Sandbox

        return Sandbox.connect(sandbox_id, client=self._client)

    def list(self) -> list[SandboxInfo]:
        """Those that are there."""
        from fumehood.sdk.blocking.sandbox import Sandbox

        return Sandbox.list(client=self._client)


class Client:
    """A caller of one server.

    Without arguments it is the one that the environment (`FUMEHOOD_URL`, `FUMEHOOD_API_KEY`), `fumehood login` or one's
    own `fumehood dev` say. Any number of threads may use it at once; nothing is asked before it is used.

        with Client() as client:
            result = client.python.run("print(6 * 7)")
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
        transport: Transport | None = None,
    ) -> None:
        """`transport`: one that is there already, for a server in the same process; it is closed with this client."""
        self.transport = transport or Transport(
            find_connection(
                url=url,
                key=key,
                key_file=None if key_file is None else Path(key_file),
                context=context,
                insecure_http=insecure_http,
            )
        )
        self.sandboxes = Sandboxes(self)
        self.workflows = Workflows(self.transport)
        self.runs = Runs(self.transport)
        self.jobs = Jobs(self.transport)
        self.receipts = Receipts(self.transport)
        self.python = Python(self.transport)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.transport.url}>"

    @property
    def url(self) -> str:
        """The server's address."""
        return self.transport.url

    def close(self) -> None:
        """Ask nothing any more. What was started goes on."""
        self.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
