"""The Runner API over the real broker: through its death, at two servers, and of a run that was archived."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from fumehood.broker.broker import NatsBroker
from fumehood.broker.handout import Handouts, Leased
from fumehood.broker.ports import Bucket, LogKind, LogName, LogPlace, LogRecord
from fumehood.broker.topology import GIB, Shape
from fumehood.control.archive import Archiver
from fumehood.control.callers import ADMIN
from fumehood.control.runner import Creation
from fumehood.control.runner_list import ListWish
from fumehood.control.service import Service, now_ms
from fumehood.images import Admission, DevelopmentPolicy
from fumehood.wire.base import validate
from fumehood.wire.logs import LogEnd, LogStart
from fumehood.wire.runner_api import CreateRunRequest, CreateRunResponse, RunnerStatus
from fumehood.wire.sandbox import RUN_STEP, SANDBOX_TASK, RunReason
from tests.conformance.broker_bench import NODE, TIMING, NatsServer
from tests.contract.runner_harness import BEGAN, report, wish
from tests.contract.server_api_harness import ScriptedRegistry
from tests.waiting import until

SHAPE = Shape(1, storage=4 * GIB, timing=TIMING)


@dataclass
class Cell:
    """A broker, servers, and a node that a test plays, with a node's own rights."""

    nats: NatsServer
    services: list[Service]
    node: NatsBroker

    async def create(self, key: str | None = None, server: int = 0) -> tuple[CreateRunResponse, bool]:
        creation = Creation(validate(CreateRunRequest, wish()), key)
        return await self.services[server].runner.create(creation, ADMIN)

    async def status(self, run_id: str) -> RunnerStatus:
        return (await self.services[0].runner.get(run_id, ADMIN)).status

    async def reaches(self, run_id: str, status: RunnerStatus) -> None:
        async def there() -> bool:
            return await self.status(run_id) is status

        await until(there)

    async def begin(self) -> Leased:
        (taken,) = await Handouts(self.node).take(
            [SANDBOX_TASK], max_tasks=1, timeout=30, worker_id="n1", lease_seconds=60
        )
        start = LogRecord(LogKind.START, data=LogStart(started_at=BEGAN, node="n1").encode())
        await self.node.logs.append(LogName(taken.task.run_id, RUN_STEP, taken.task.attempt), start)
        return taken

    async def complete(self, taken: Leased) -> None:
        await Handouts(self.node).complete(taken.lease, report().model_dump(mode="json"))


@asynccontextmanager
async def cell(path: Path) -> AsyncIterator[Cell]:
    nats = NatsServer(path / "nats", 1)
    nats.start()
    brokers = [await NatsBroker.open(nats.options(), SHAPE) for _ in range(2)]
    node = await NatsBroker.open_worker(nats.options(NODE))
    registry = ScriptedRegistry()
    services = [
        Service(broker, index_dir=path / f"index-{number}", admission=Admission(DevelopmentPolicy(), registry))
        for number, broker in enumerate(brokers)
    ]
    try:
        async with services[0].deciding(), services[1].deciding():
            yield Cell(nats, services, node)
    finally:
        for broker in (*brokers, node):
            await broker.close()
        nats.kill()


async def test_a_run_goes_its_way_through_the_death_of_the_broker(tmp_path: Path) -> None:
    async with cell(tmp_path) as world:
        made, _ = await world.create()
        world.nats.kill()
        await asyncio.to_thread(world.nats.start)
        taken = await world.begin()
        assert taken.task.run_id == made.run_id
        await world.reaches(made.run_id, RunnerStatus.RUNNING)
        await world.complete(taken)
        await world.reaches(made.run_id, RunnerStatus.SUCCEEDED)
        found = await world.services[1].runner.get(made.run_id, ADMIN)
        assert (found.exit_code, found.reason, found.started_at) == (0, RunReason.EXIT, BEGAN)

        async def listed() -> bool:
            page = await world.services[1].runner_list.page("default", ListWish(), cursor=None, limit=10)
            return [(run.run_id, run.status) for run in page.runs] == [(made.run_id, RunnerStatus.SUCCEEDED)]

        await until(listed)


async def test_of_many_at_once_with_one_key_at_two_servers_there_is_one_run_and_one_answer(tmp_path: Path) -> None:
    async with cell(tmp_path) as world:
        answers = await asyncio.gather(*(world.create("k", number % 2) for number in range(24)))
        assert len({made.model_dump_json() for made, _ in answers}) == 1
        assert sum(created for _, created in answers) == 1
        await world.complete(await world.begin())
        await world.reaches(answers[0][0].run_id, RunnerStatus.SUCCEEDED)
        again, created = await world.create("k", 1)
        assert (again, created) == (answers[0][0], False)
        assert await world.services[0].broker.tasks.waiting() == {}


async def test_a_stop_before_and_after_somebody_took_the_run(tmp_path: Path) -> None:
    async with cell(tmp_path) as world:
        waiting, _ = await world.create()
        await world.services[0].runner.stop(waiting.run_id, ADMIN)
        await world.reaches(waiting.run_id, RunnerStatus.STOPPED)

        async def gone() -> bool:
            return await world.services[0].broker.tasks.waiting() == {}

        await until(gone)  # its task goes once its end is known
        taken_up, _ = await world.create()
        taken = await world.begin()
        assert taken.task.run_id == taken_up.run_id
        await world.services[1].runner.stop(taken_up.run_id, ADMIN)
        assert (await world.services[0].runner.get(taken_up.run_id, ADMIN)).status is RunnerStatus.RUNNING
        end = LogEnd(reason=RunReason.STOPPED)
        name = LogName(taken_up.run_id, RUN_STEP, 1)
        await world.node.logs.append(name, LogRecord(LogKind.END, LogPlace(), end.encode()))
        await world.reaches(taken_up.run_id, RunnerStatus.STOPPED)
        assert (await world.services[0].runner.get(taken_up.run_id, ADMIN)).started_at == BEGAN
        assert await world.services[0].runner.stop(taken_up.run_id, ADMIN) is False


async def test_an_archived_run_can_be_read_as_before(tmp_path: Path) -> None:
    async with cell(tmp_path) as world:
        made, _ = await world.create()
        await world.complete(await world.begin())
        await world.reaches(made.run_id, RunnerStatus.SUCCEEDED)
        before = await world.services[0].runner.get(made.run_id, ADMIN)
        service = world.services[0]
        archiver = Archiver(service.broker, service.index, now_ms=now_ms, retention=0.001)

        async def is_archived() -> bool:
            return await archiver.archive(made.run_id)

        await until(is_archived)
        assert await service.broker.mailboxes.first(made.run_id) is None
        assert await service.broker.bucket(Bucket.SUMMARIES).get(made.run_id) is not None
        assert await service.runner.get(made.run_id, ADMIN) == before
        assert await service.runner.stop(made.run_id, ADMIN) is False
        assert before.finished_at is not None
        assert before.finished_at - BEGAN == dt.timedelta(seconds=3)
