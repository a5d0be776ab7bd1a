"""Implements `jobs.types.sandbox_run.SandboxJobs` over a driver and an admission."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable
from typing import Final

from fumehood.errors import (
    CommandRefusedError,
    FumehoodError,
    ImageError,
    JobFailedError,
    SandboxError,
    SandboxLostError,
    SandboxNotFoundError,
    SandboxStartError,
    WardenProtocolError,
)
from fumehood.images.admission import Admission
from fumehood.jobs.base import Context
from fumehood.jobs.types.sandbox_run import SandboxRunRequest, SandboxRunResponse
from fumehood.node.jobs.sandbox.job import Job
from fumehood.node.jobs.sandbox.options import SandboxJobOptions
from fumehood.node.jobs.sandbox.sandboxes import Sandboxes
from fumehood.sandbox.driver import Driver

_REASONS: Final[Iterable[tuple[tuple[type[FumehoodError], ...], str]]] = (
    ((SandboxLostError, SandboxNotFoundError, WardenProtocolError, CommandRefusedError), "sandbox_lost"),
    ((SandboxStartError,), "sandbox_start_failed"),
    ((ImageError,), "image_unavailable"),
    ((SandboxError,), "engine_unavailable"),
)
"""What stood in the way of a job that another try may do; the first that fits."""


class SandboxExecutor:
    """Give it the driver that this worker alone uses; `sweep` before the first job."""

    def __init__(self, driver: Driver, admission: Admission, options: SandboxJobOptions) -> None:
        self._driver = driver
        self._admission = admission
        self._options = options
        self._sandboxes = Sandboxes(driver, options)

    async def sweep(self) -> int:
        """Remove what an earlier life left, and say how many sandboxes that were."""
        await asyncio.to_thread(self._empty_folder)
        return await self._sandboxes.sweep()

    async def run(self, request: SandboxRunRequest, context: Context) -> SandboxRunResponse:
        """What the contract calls an error is an answer; what has nothing to do with the request is raised."""
        job = Job(self._driver, self._admission, self._options, self._sandboxes, request, context)
        try:
            return await job.response()
        except (SandboxError, ImageError) as error:
            reason = next(reason for kinds, reason in _REASONS if isinstance(error, kinds))
            raise JobFailedError(reason, error.detail, again=True) from error

    def _empty_folder(self) -> None:
        shutil.rmtree(self._options.folder, ignore_errors=True)
        self._options.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
