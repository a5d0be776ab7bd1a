"""One life of a process with sessions on the real engine."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from fumehood.images.admission import Admission
from fumehood.images.development import DevelopmentPolicy
from fumehood.images.registry import RegistryClient
from fumehood.sandbox.docker import DockerDriver, DockerOptions
from fumehood.sandbox.sessions.sessions import Sessions
from fumehood.sandbox.sessions.store import SessionStore
from fumehood.sandbox.sessions.values import SessionName, SessionOptions

NAME = SessionName("acme", "s1")


@contextlib.asynccontextmanager
async def life(state: Path, node_id: str, options: SessionOptions | None = None) -> AsyncIterator[Sessions]:
    """Leaving it does nothing about the sandboxes."""
    driver = DockerDriver(DockerOptions(node_id=node_id, state_dir=state, runtime="runc"))
    store = await SessionStore.open(state / "sessions")
    try:
        async with RegistryClient() as registry:
            admission = Admission(DevelopmentPolicy(), registry)
            async with Sessions.open(driver, admission, store, options) as sessions:
                yield sessions
    finally:
        await driver.close()
        await store.close()
