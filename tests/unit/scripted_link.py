"""The node's connection to a scripted warden, with an engine that runs its container until it is killed."""

from __future__ import annotations

from typing import Any, cast

from fumehood.sandbox.docker.attach import AttachTransport
from fumehood.sandbox.docker.engine import Engine
from fumehood.sandbox.docker.link import Link
from fumehood.sandbox.docker.oom import OomWatch
from fumehood.sandbox.spec import SANDBOX_USER
from tests.unit.scripted_warden import ScriptedWarden


class ScriptedEngine:
    def __init__(self) -> None:
        self.killed: list[str] = []

    async def inspect(self, container: str) -> dict[str, Any]:
        return {"State": {"Running": container not in self.killed}}

    async def kill(self, container: str) -> None:
        self.killed.append(container)


class NoOomKills:
    def mark(self, container: str) -> None:
        return None


class DiscardingSink:
    def write(self, stream: int, offset: int, data: bytes) -> None:
        pass


class ScriptedLink(Link):
    def __init__(self, warden: ScriptedWarden) -> None:
        self.engine = ScriptedEngine()
        self._warden = warden
        super().__init__(
            engine=cast(Engine, self.engine),
            oom=cast(OomWatch, NoOomKills()),
            container="box",
            user=SANDBOX_USER,
            image_env=(),
            orphan_seconds=600,
        )

    async def _attach(self) -> AttachTransport:
        return cast(AttachTransport, self._warden.attach())
