"""What providers of `oa.sandbox_run.v1` have: an engine, and an admission that says which images it runs."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from fumehood.broker.names import NODES_TENANT
from fumehood.broker.ports import Broker
from fumehood.cli.admission import Admitting, admitting
from fumehood.cli.engine_access import engine_trouble
from fumehood.cli.engine_options import docker_options
from fumehood.cli.networks import serve_networks
from fumehood.errors import ConfigurationError, SandboxError
from fumehood.node.jobs.sandbox import SandboxExecutor, SandboxJobOptions
from fumehood.sandbox.docker import DockerDriver
from fumehood.settings import ProviderSettings

SANDBOX_RUN: Final = "oa.sandbox_run.v1"
WORK: Final = "work"
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Machine:
    """One engine with its admission, for all providers of a process; or what stands in the way."""

    driver: DockerDriver | None = None
    images: Admitting | None = None
    trouble: str | None = None


@contextlib.asynccontextmanager
async def machine(settings: ProviderSettings) -> AsyncIterator[Machine]:
    """Nothing is asked of an engine for providers that do other types."""
    if settings.provider_job_types and SANDBOX_RUN not in settings.provider_job_types:
        yield Machine(trouble="this provider does other types")
        return
    trouble = await _trouble(settings)
    if trouble is not None:
        yield Machine(trouble=trouble)
        return
    async with contextlib.AsyncExitStack() as stack:
        images = await stack.enter_async_context(admitting(settings, _log))
        node_id = node_id_of(settings.worker_id, settings.provider_state_dir)
        starts = settings.concurrent_starts
        options = docker_options(settings, node_id, settings.provider_state_dir, images, concurrent_starts=starts)
        driver = DockerDriver(options)
        stack.push_async_callback(driver.close)
        await serve_networks(driver, _log)
        warming = asyncio.create_task(_warm(driver))
        stack.push_async_callback(_ended, warming)
        yield Machine(driver, images)


async def executor(
    settings: ProviderSettings, worker_id: str, broker: Broker, engine: Machine
) -> SandboxExecutor | None:
    """Who runs its requests. What an earlier life left on the engine is removed first."""
    if engine.driver is None or engine.images is None:
        return None
    options = SandboxJobOptions(
        worker_id=worker_id,
        work_dir=settings.provider_state_dir / WORK,
        repo_roots=tuple(map(Path, settings.provider_repo_roots)),
        blobs=broker.blobs(NODES_TENANT),
        dns_upstreams=settings.dns_upstreams,
    )
    made = SandboxExecutor(engine.driver, engine.images.admission, options)
    try:
        await made.sweep()
    except SandboxError as error:
        _log.warning("sandboxes.not_swept", code=error.code, notice=error.detail)
    return made


async def _trouble(settings: ProviderSettings) -> str | None:
    found = await asyncio.to_thread(engine_trouble, settings.docker_socket)
    if found is not None:
        return found.sentence
    try:
        settings.check_policy()
    except ConfigurationError as error:
        return error.detail
    return None


async def _warm(driver: DockerDriver) -> None:
    """See early which runtime holds: the first job does not wait for that, and an operator is told what is wrong."""
    try:
        await driver.check()
    except SandboxError as error:
        _log.warning("engine.cannot_run", code=error.code, notice=error.detail)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def node_id_of(worker_id: str, folder: Path) -> str:
    """What its containers bear. Two providers of one name on a machine would take each other's."""
    return f"{worker_id}-{hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:8]}"
