"""Archived on the real broker: a run looks as it did before, from every side, and whoever is quicker, it is whole."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from fumehood.broker.broker import NatsBroker
from fumehood.broker.topology import Shape, run_stream
from fumehood.control import intake, loading, summaries
from fumehood.control.archive import Archiver
from fumehood.control.index import Index
from fumehood.engine.messages import MessageType
from fumehood.engine.state import RunState, RunStatus
from fumehood.wire.protocol import EventType, TaskPayload
from tests.conformance.broker_bench import TIMING, NatsServer
from tests.integration.engine_cases import Say
from tests.integration.engine_world import World, world
from tests.server_process import STORAGE, ServerProcess, make_cell
from tests.waiting import past, until

NAP = "name: nap\nsteps:\n  - {id: a, sleep: 1s}\n"
LATE = "name: late\ndeadline: 1s\nsteps:\n  - {id: a, task: nobody}\n"
SMALL = "name: w\nsteps:\n  - {id: a, task: t}\n"
YAML = {"content-type": "application/yaml"}
RUNS = 40


# --- at the door -------------------------------------------------------------------------------------------


def everything(client: httpx.Client, run_id: str) -> dict[str, Any]:
    """All that can be read of a run that has ended."""
    found = {path: client.get(f"/v1/runs/{run_id}{path}").raise_for_status() for path in ("", "/history", "/events")}
    return {"": found[""].json(), "/history": found["/history"].json(), "/events": found["/events"].text}


def begin(client: httpx.Client, text: str) -> str:
    name = text.split()[1]
    client.put(f"/v1/workflows/{name}", content=text, headers=YAML).raise_for_status()
    started = client.post(f"/v1/workflows/{name}/runs", json={"input": 1}).raise_for_status()
    return str(started.json()["run_id"])


async def test_an_archived_run_can_be_read_as_before_and_takes_no_orders(tmp_path: Path) -> None:
    nats = NatsServer(tmp_path / "nats", 1)
    nats.start()
    try:
        await make_cell(nats)
        with ServerProcess(tmp_path, nats, name="first") as server, server.client() as client:
            runs = [begin(client, NAP), begin(client, LATE)]

            async def all_ended() -> bool:
                return all("ended_at" in run and run["ended_at"] for run in shown(client, runs))

            await until(all_ended)
            before = {run_id: everything(client, run_id) for run_id in runs}
        await archive_all(nats, runs)
        with ServerProcess(tmp_path, nats, name="second") as server, server.client() as client:

            async def all_archived() -> bool:
                return [run["archived"] for run in client.get("/v1/runs").json()["runs"]] == [True, True]

            await until(all_archived)
            assert {run_id: everything(client, run_id) for run_id in runs} == before
            (dead,) = client.get("/v1/dead-letters").json()["runs"]
            assert (dead["run_id"], dead["archived"]) == (runs[1], True)
            refused = client.post(f"/v1/runs/{runs[1]}:retry", json={"reason": "once more"})
            assert (refused.status_code, refused.json()["type"]) == (409, "urn:fumehood:problem:archived")
    finally:
        nats.kill()


async def archive_all(nats: NatsServer, runs: list[str]) -> None:
    """As a server does when their time has come: no setting makes that come within a test."""
    broker = await NatsBroker.open(nats.options(), Shape(1, storage=STORAGE, timing=TIMING))
    try:
        archiver = Archiver(broker, Index(broker, now_ms=now_ms), now_ms=now_ms, retention=0.001)
        assert [await archiver.archive(run_id) for run_id in runs] == [True] * len(runs)
    finally:
        await broker.close()


def shown(client: httpx.Client, runs: list[str]) -> list[dict[str, Any]]:
    return [client.get(f"/v1/runs/{run_id}").raise_for_status().json() for run_id in runs]


# --- against those who take a run up again -----------------------------------------------------------------


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@asynccontextmanager
async def unlucky_workers(here: World) -> AsyncIterator[None]:
    """The first attempt at everything fails, the second one succeeds."""

    async def work() -> None:
        while True:
            for task in await here.broker.tasks.pull(["t"], max_tasks=64, timeout=1.0):
                payload = TaskPayload.model_validate_json(task.data)
                kind = EventType.FAILED if payload.attempt == 1 else EventType.COMPLETED
                await here.say(payload, Say(kind, {"error": "no"}))
                await here.broker.tasks.ack(task.token)

    working = asyncio.create_task(work())
    try:
        yield
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def left(here: World, run_id: str) -> dict[str, int]:
    """What the broker still holds of a run, by subject."""
    partition = here.broker.partition_of(run_id)
    found: dict[str, int] = {}
    for subject in (f"journal.{partition}.{run_id}", f"inbox.{partition}.{run_id}", f"timer.{partition}.{run_id}.*"):
        info = await here.broker.connection.api(f"STREAM.INFO.{run_stream(partition)}", {"subjects_filter": subject})
        found |= info["state"].get("subjects") or {}
    return found


async def states(here: World, runs: list[str]) -> list[RunState | None]:
    return [(await loading.load(here.broker, run_id))[0] for run_id in runs]


async def all_are(here: World, runs: list[str], status: RunStatus, tries: int) -> None:
    async def look() -> bool:
        found = await states(here, runs)
        return all(state is not None and (state.status, state.tries) == (status, tries) for state in found)

    await until(look)


async def lines_say(here: World, runs: list[str], status: RunStatus, tries: int) -> None:
    async def look() -> bool:
        lines = [(await summaries.read(here.broker, run_id))[0] for run_id in runs]
        return all((line["status"], line["tries"]) == (status.value, tries) for line in lines)

    await until(look)


async def test_runs_that_are_taken_up_again_while_they_are_archived_go_on(tmp_path: Path) -> None:
    """Each is archived and retried at about the same moment: the retry counts, once, and the history is whole."""
    chance = random.Random(11)
    async with world(tmp_path, 1, deciders=2) as here, unlucky_workers(here):
        archiver = Archiver(here.broker, Index(here.broker, now_ms=now_ms), now_ms=now_ms, retention=0.001)
        runs = [await here.begin(SMALL) for _ in range(RUNS)]
        await all_are(here, runs, RunStatus.FAILED, 0)
        await lines_say(here, runs, RunStatus.FAILED, 0)
        await here.settled()

        async def archive(run_id: str) -> bool:
            await past(chance.random() * 0.05)
            return await archiver.archive(run_id)

        async def retry(run_id: str) -> None:
            await past(chance.random() * 0.05)
            order = intake.encode(MessageType.RETRY, {"by": "test", "tenant": "default", "reason": "once more"})
            await here.broker.mailboxes.send(run_id, f"{run_id}.retry.1", order)

        moved, _ = await asyncio.gather(
            asyncio.gather(*map(archive, runs)),
            asyncio.gather(*map(retry, runs)),
        )
        print(f"{sum(moved)} of {RUNS} were archived before they were taken up again")
        await all_are(here, runs, RunStatus.SUCCEEDED, 1)
        await lines_say(here, runs, RunStatus.SUCCEEDED, 1)
        await here.settled()
        await archived_for_good(here, archiver, runs)


async def archived_for_good(here: World, archiver: Archiver, runs: list[str]) -> None:
    for run_id in runs:
        before, whole = (await states(here, [run_id]))[0], await loading.history(here.broker, run_id)
        assert await archiver.archive(run_id)
        assert (await states(here, [run_id]))[0] == before
        after = await loading.history(here.broker, run_id)
        assert after.entries == whole.entries
        assert (after.last, after.archived) == (0, True)
        line, _ = await summaries.read(here.broker, run_id)
        assert summaries.LIVE not in line
        assert not any(subject.startswith(("journal", "timer")) for subject in await left(here, run_id))
