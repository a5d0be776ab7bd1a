"""Providers, for whoever looks after them: who is there, how each stands, and setting one aside."""

from __future__ import annotations

from fumehood.control.callers import Caller
from fumehood.control.directory import Directory
from fumehood.control.jobs.standing import Standing, Standings
from fumehood.errors import NotFoundError
from fumehood.wire.job_api import ProviderView
from fumehood.wire.protocol import WorkerRegistration
from fumehood.wire.sealed import JOB_TASK

RECEIPT_KEY = "receipt_key"
"""What a worker says of itself in the directory: its public key."""
PAGE = 200


class Providers:
    def __init__(self, standings: Standings, directory: Directory) -> None:
        self._standings = standings
        self._directory = directory

    async def all(self) -> list[ProviderView]:
        """Those that are there, and those that are remembered, by name."""
        present, known = await self._present(), await self._standings.all()
        names = sorted(present.keys() | known.keys())
        return [_view(name, present.get(name), known.get(name, Standing())) for name in names]

    async def serving(self, job_type: str) -> int:
        """How many are there for a type that may take executions."""
        there = [name for name, one in (await self._present()).items() if job_type in _job_types(one)]
        return len(there) - len(await self._standings.set_aside_of(there))

    async def set_aside(self, worker_id: str, reason: str, caller: Caller) -> ProviderView:
        await self._check(worker_id)
        return await self._shown(worker_id, await self._standings.set_aside(worker_id, reason, caller.name))

    async def restore(self, worker_id: str) -> ProviderView:
        await self._check(worker_id)
        return await self._shown(worker_id, await self._standings.restore(worker_id))

    async def _check(self, worker_id: str) -> None:
        if worker_id not in await self._present() and worker_id not in await self._standings.all():
            raise NotFoundError("there is no such provider, and never was one that answered")

    async def _shown(self, worker_id: str, standing: Standing) -> ProviderView:
        return _view(worker_id, (await self._present()).get(worker_id), standing)

    async def _present(self) -> dict[str, WorkerRegistration]:
        found: dict[str, WorkerRegistration] = {}
        after: str | None = ""
        while after is not None:
            page, after = await self._directory.workers(after=after, limit=PAGE)
            found |= {one.worker_id: one for one in page if _job_types(one)}
        return found


def _job_types(worker: WorkerRegistration) -> tuple[str, ...]:
    return tuple(sorted(kind.removeprefix(JOB_TASK) for kind in worker.task_types if kind.startswith(JOB_TASK)))


def _view(name: str, worker: WorkerRegistration | None, standing: Standing) -> ProviderView:
    return ProviderView(
        worker=name,
        present=worker is not None,
        job_types=() if worker is None else _job_types(worker),
        receipt_key=None if worker is None else worker.metadata.get(RECEIPT_KEY),
        **standing.model_dump(),
    )
