"""A pool over the machine that is made up: what its tests share."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

from fumehood.images.admission import Admission, AdmittedImage
from fumehood.images.development import DevelopmentPolicy
from fumehood.images.registry import RegistryClient
from fumehood.sandbox.capture import STDOUT, Capture
from fumehood.sandbox.driver import Handle
from fumehood.sandbox.fake import FakeDriver, FakeEngine
from fumehood.sandbox.pool.driver import PooledDriver
from fumehood.sandbox.pool.values import PoolOptions
from fumehood.sandbox.spec import Command, Outcome, SandboxSpec

REFERENCE = "127.0.0.1:5055/fake/image@sha256:" + "0" * 64
QUICK = PoolOptions(most=2, quiet_seconds=0)
NO_KEEPER = PoolOptions(most=0)


@cache
def image() -> AdmittedImage:
    async def admitted() -> AdmittedImage:
        async with RegistryClient() as registry:
            return await Admission(DevelopmentPolicy(), registry).admit(REFERENCE)

    with asyncio.Runner() as runner:
        return runner.run(admitted())


def spec(**changes: object) -> SandboxSpec:
    return SandboxSpec(**{"sandbox_id": uuid.uuid4().hex, "image": image(), **changes})  # type: ignore[arg-type]


class PoolWorld:
    """One machine, and lives of a process on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engine = FakeEngine()
        self.given: list[str] = []

    @asynccontextmanager
    async def life(self, options: PoolOptions = QUICK, driver: FakeDriver | None = None) -> AsyncIterator[PooledDriver]:
        async with PooledDriver.open(driver or FakeDriver(self.engine), self.folder, options) as pool:
            pool.on_given = self.given.append
            yield pool

    @property
    def boxes(self) -> int:
        """All sandboxes of the machine, whoever's."""
        return len(self.engine.boxes)


async def said(pool: PooledDriver, handle: Handle, *argv: str) -> tuple[Outcome, str]:
    capture = Capture(1024)
    outcome = await pool.run(handle, Command(argv), capture, command_id=await pool.next_id(handle))
    return outcome, capture.text(STDOUT, None)
