"""Making a container under a name that may be taken: by whom decides whether another try makes sense."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from fumehood.errors import EngineStatusError, SandboxNameTakenError, SandboxStartError
from fumehood.sandbox.docker.engine import Engine, Json
from fumehood.sandbox.docker.plan import LABEL_SANDBOX


async def create_named(engine: Engine, name: str, body: Json) -> str:
    """The new container's id."""
    async with _taken(engine, name):
        return await engine.create(name, body)


async def rename(engine: Engine, container: str, name: str) -> None:
    async with _taken(engine, name):
        await engine.rename(container, name)


@contextlib.asynccontextmanager
async def _taken(engine: Engine, name: str) -> AsyncIterator[None]:
    """Status 409 is the engine's word for a name that is taken, and for nothing else."""
    try:
        yield
    except EngineStatusError as error:
        if error.status != 409:
            raise
        if not await _is_sandbox(engine, name):
            raise SandboxStartError(f"a container that is no sandbox has the name {name}: remove it") from error
        raise SandboxNameTakenError(f"an earlier sandbox still has the name {name}: try again") from error


async def _is_sandbox(engine: Engine, name: str) -> bool:
    """Whoever had the name and is gone by now counts as one: the next try may do in either case."""
    try:
        inspected = await engine.inspect(name)
    except EngineStatusError as error:
        if error.status == 404:
            return True
        raise
    return LABEL_SANDBOX in (inspected["Config"].get("Labels") or {})
