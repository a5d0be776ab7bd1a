"""Two versions of the decider side by side on the same runs: whatever the older one cannot read it leaves alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from tests.conformance.broker_bench import NatsServer
from tests.conftest import TimeBounds
from tests.integration.engine_cases import Case, Event
from tests.integration.engine_people_cases import ALL_CASES
from tests.integration.engine_world import world
from tests.integration.older_decider import EVENTS, UNHEARD_OF
from tests.waiting import PATIENCE, until

ROOT = Path(__file__).parent.parent.parent
COPIES = 3
SOON = 15.0
"""Seconds: some for the broker to prefer somebody else, some for messages that were given back."""


class Older:
    """The older decider, seen from the test."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.did: dict[str, Any] = {}
        """Known when it has ended."""

    async def hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            told: dict[str, Any] = json.loads(await self._process.stdout.readline())
        return told

    async def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self.did = await self.hear()
        await self._process.wait()


@contextlib.asynccontextmanager
async def older_decider(server: NatsServer, errors: Path) -> AsyncIterator[Older]:
    pipe, options = asyncio.subprocess.PIPE, server.options()
    command = (sys.executable, "-m", "tests.integration.older_decider")
    with errors.open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=log)
    assert process.stdin is not None
    place: dict[str, Any] = {"servers": options.servers, "user": options.user, "password": options.password}
    place |= {"inbox_prefix": options.inbox_prefix, "partitions": server.partitions}
    process.stdin.write(json.dumps(place).encode() + b"\n")
    older = Older(process)
    try:
        assert await older.hear() == {"ready": True}
        yield older
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def is_unheard_of(case: Case) -> bool:
    return any(f"{word}:" in case.text for word in UNHEARD_OF)


def mentions(events: list[Event]) -> bool:
    return any(event["type"] in EVENTS for event in events)


async def test_an_older_decider_and_a_newer_one_side_by_side(tmp_path: Path) -> None:
    """What the older one does not know is in some of the cases and not in others; on one partition they meet."""
    errors = tmp_path / "errors"
    known = next(case for case in ALL_CASES if case.name == "task")
    new = next(case for case in ALL_CASES if case.name == "wait_signal")
    async with world(tmp_path, 1, deciders=1, at_work=False) as here, older_decider(here.server, errors) as older:
        async with here.workers.at_work():
            # The older decider is alone with two runs: which of two deciders gets a message is up to the broker.
            runs = {await here.play(known): known}
            await here.over(next(iter(runs)))
            runs[await here.play(new)] = new
            await until(lambda: "decide.unknown_format" in errors.read_text(), what="it met no unknown run")
            newer = here.group.create_task(here.deciders[0].work(0))
            runs |= {await here.play(case): case for _ in range(COPIES) for case in ALL_CASES}
            ends = await asyncio.gather(*(here.over(run_id) for run_id in runs))
            await here.settled()
        await older.end()
        newer.cancel()
        for (run_id, case), (events, relatives) in zip(runs.items(), ends, strict=True):
            problems = case.problems(events, here.workers.seen[run_id], [*relatives.values()])
            assert problems == [], f"{case.name}: {errors.read_text()[-4000:]}"
    decided = set(older.did["decided"])
    unheard_of = {run_id for run_id, case in runs.items() if is_unheard_of(case)}
    assert not decided & unheard_of, "it decided about what it cannot read"
    assert decided, "the older one had no part in it"
    assert here.deciders[0].counters.decisions > 0
    assert older.did["failed"] == 0, errors.read_text()[-4000:]
    assert any(mentions(events) for events, _ in ends)


async def test_a_newer_decider_that_comes_later_soon_has_what_only_it_can_read(
    tmp_path: Path, time_bounds: TimeBounds, record_property: Callable[[str, object], None]
) -> None:
    """The broker prefers the older one by then, and goes on to prefer it until that steps aside."""
    old = next(case for case in ALL_CASES if case.name == "task")
    new = next(case for case in ALL_CASES if case.name == "wait_signal")
    async with (
        world(tmp_path, 1, deciders=1, at_work=False) as here,
        older_decider(here.server, tmp_path / "errors") as older,
        here.workers.at_work(),
    ):
        known = await here.play(old)
        await here.over(known)
        newer = here.group.create_task(here.deciders[0].work(0))
        began = asyncio.get_running_loop().time()
        run_id = await here.play(new)
        events, _ = await here.over(run_id)
        seconds = round(asyncio.get_running_loop().time() - began, 1)
        await here.settled()
        await older.end()
        newer.cancel()
        assert new.problems(events, here.workers.seen[run_id]) == []
        assert older.did["decided"] == [known]
        assert older.did["unknown"] > 0
    record_property("seconds", seconds)
    print(f"\na run that only the newer decider can read took {seconds} s")
    time_bounds.check(seconds, SOON)
