"""A whole server over the in-memory broker, behind its real door."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from fastapi import FastAPI

from fumehood.broker.memory import Faults, MemoryBroker, MemoryServer
from fumehood.control.bridge import Bridge
from fumehood.control.console.output_streams import OutputOptions
from fumehood.control.event_streams import EventOptions
from fumehood.control.http.app import Neighbour, create_app
from fumehood.control.service import Service
from fumehood.control.telemetry import Telemetry
from fumehood.door.tokens import TokenSource
from fumehood.errors import DigestResolutionError
from fumehood.images import Admission, DevelopmentPolicy, ImageReference
from fumehood.settings import ServerSettings

ADMIN, BRIDGE = "t0ken-of-the-admin", "t0ken-of-the-workers"
SETTINGS = ServerSettings(api_token=ADMIN, bridge_token=BRIDGE)
YAML = {"content-type": "application/yaml"}
SMALL = "name: w\nsteps:\n  - {id: a, task: t}\n"


@dataclass
class ScriptedRegistry:
    """Knows what every tag means, until it is told otherwise."""

    digests: dict[str, str] = field(default_factory=dict)
    error: DigestResolutionError | None = None
    asked: list[str] = field(default_factory=list)

    async def resolve(self, reference: ImageReference) -> str:
        self.asked.append(str(reference))
        if self.error is not None:
            raise self.error
        return self.digests.get(str(reference), digest_of(str(reference)))


def digest_of(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


@dataclass
class Api:
    """The application and what lies behind it."""

    settings: ServerSettings = SETTINGS
    faults: Faults = field(default_factory=Faults)
    memory: MemoryServer = field(default_factory=MemoryServer)
    telemetry: Telemetry = field(default_factory=Telemetry)
    event_options: EventOptions | None = None
    output_options: OutputOptions | None = None
    registry: ScriptedRegistry = field(default_factory=ScriptedRegistry)
    admission: Admission | None = None
    """A developer's, over `registry`, unless another one is given."""
    neighbour: Neighbour | None = None

    def __post_init__(self) -> None:
        broker = MemoryBroker(self.memory, faults=self.faults)
        admission = self.admission or Admission(DevelopmentPolicy(), self.registry)
        self.service = Service(
            broker, tracer=self.telemetry.tracer, event_options=self.event_options, admission=admission
        )
        self.bridge = Bridge(broker)
        self.app: FastAPI = create_app(
            self.service,
            self.bridge,
            settings=self.settings,
            tokens=TokenSource(self.settings.api),
            bridge_tokens=TokenSource(self.settings.bridge),
            telemetry=self.telemetry,
            output_options=self.output_options,
            neighbour=self.neighbour,
        )

    def client(self, token: str | None = ADMIN) -> httpx.AsyncClient:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://server", headers=headers)

    async def decide(self) -> None:
        """Everything that waits."""
        while await self.service.decider.turn(0, timeout=0.01):
            pass

    @asynccontextmanager
    async def deciding(self) -> AsyncIterator[None]:
        """Everything, as soon as it comes."""

        async def turns() -> None:
            while True:
                await self.service.decider.turn(0, timeout=1.0)

        task = asyncio.create_task(turns())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def started(self, client: httpx.AsyncClient, given: Any = None, definition: str = SMALL) -> str:
        """A run of a workflow that is applied first."""
        applied = await client.put("/v1/workflows/w", content=definition, headers=YAML)
        assert applied.is_success, applied.text
        answer = await client.post("/v1/workflows/w/runs", json={"input": given})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["run_id"])
