"""The sandboxes of jobs: each lives as long as its job, in this process, and not a moment longer."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from typing import Final

import structlog

from fumehood.broker.shield import shielded
from fumehood.errors import JobFailedError, SandboxError
from fumehood.images.admission import AdmittedImage
from fumehood.node.jobs.sandbox.options import SandboxJobOptions
from fumehood.node.work import LABEL_CAPABILITY, LABEL_TASK
from fumehood.sandbox.driver import Driver, Handle
from fumehood.sandbox.spec import Limits, Network, SandboxSpec

CAPABILITY: Final = "sandbox-job"
LABEL_WORKER: Final = "fumehood.worker_id"
AGAIN_SECONDS: Final = 0.2
LONGEST_AGAIN_SECONDS: Final = 2.0

_log = structlog.get_logger()


class Sandboxes:
    def __init__(self, driver: Driver, options: SandboxJobOptions) -> None:
        self._driver = driver
        self._options = options
        self._under_way: set[str] = set()

    @contextlib.asynccontextmanager
    async def made(self, image: AdmittedImage, limits: Limits, network: Network, task_id: str) -> AsyncIterator[Handle]:
        """A sandbox that runs. It is gone when this ends, however it ends; where the engine does not let it be removed,
        nobody is told anything but that."""
        labels = {**self._labels, LABEL_TASK: task_id}
        spec = SandboxSpec(uuid.uuid4().hex, image, limits=limits, network=network, labels=labels)
        self._under_way.add(spec.sandbox_id)
        try:
            handle = await self._driver.prepare(spec)
            await self._driver.start(handle)
            yield handle
        except asyncio.CancelledError:
            with contextlib.suppress(JobFailedError):  # `sweep` removes it in the next life
                await shielded(self._gone(spec.sandbox_id))
            raise
        except BaseException:
            await shielded(self._gone(spec.sandbox_id))
            raise
        else:
            await shielded(self._gone(spec.sandbox_id))
        finally:
            self._under_way.discard(spec.sandbox_id)

    async def sweep(self) -> int:
        """Remove what an earlier life of this worker left, and say how many that were: no job outlives its process."""
        found = [handle for handle in await self._driver.list(self._labels) if handle.sandbox_id not in self._under_way]
        for handle in found:
            await self._driver.destroy(handle)
        return len(found)

    @property
    def _labels(self) -> dict[str, str]:
        return {LABEL_CAPABILITY: CAPABILITY, LABEL_WORKER: self._options.worker_id}

    async def _gone(self, sandbox_id: str) -> None:
        """Whether or not the engine said that it made it."""
        pause, watch = AGAIN_SECONDS, asyncio.timeout(self._options.orphan_seconds)
        try:
            async with watch:
                while True:
                    try:
                        return await self._remove(sandbox_id)
                    except SandboxError as error:
                        _log.warning("job.sandbox_not_removed", sandbox_id=sandbox_id, code=error.code)
                    await asyncio.sleep(pause)
                    pause = min(LONGEST_AGAIN_SECONDS, pause * 2)
        except TimeoutError:
            if not watch.expired():
                raise
            raise JobFailedError(
                "engine_unavailable", "the engine does not remove the sandbox of this job", again=True
            ) from None

    async def _remove(self, sandbox_id: str) -> None:
        for handle in await self._driver.list(self._labels):
            if handle.sandbox_id == sandbox_id:
                await self._driver.destroy(handle)
