"""The index: complete or not answering, never another tenant's, and worth nothing when lost."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from fumehood.broker.memory import Faults, MemoryBroker, MemoryServer, Verdict
from fumehood.broker.ports import Bucket
from fumehood.control.index import Index, Source, Stage
from fumehood.control.index_feed import BEAT_KEY
from fumehood.control.index_files import PREFIX, IndexFolder
from fumehood.control.index_query import RunFilter
from fumehood.control.index_rows import RunRow
from fumehood.control.index_store import Store, TooSlowError
from fumehood.errors import ConfigurationError, ConflictError, IndexUnavailableError, InvalidRequestError
from tests.unit.decider_world import RUN, DeciderWorld
from tests.unit.index_world import ALL, BEGAN, IndexWorld, failed, inside, line, running
from tests.waiting import past, until


class Gate(Faults):
    """Lets calls of one kind wait until it is opened."""

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self.open = asyncio.Event()

    async def call(self, operation: str, subject: str) -> Verdict:
        if operation == self.operation:
            await self.open.wait()
        return Verdict.OK


async def listed(world: IndexWorld, expected: list[str], wanted: RunFilter = ALL) -> None:
    async def look() -> bool:
        return await world.ids(wanted) == expected

    await until(look)


# --- what is told ------------------------------------------------------------------------------------------


async def test_runs_are_there_before_after_and_between(tmp_path: Path) -> None:
    world = IndexWorld(tmp_path)
    await world.put("run-1", line(BEGAN + 1))
    async with world.index.working():
        assert await world.ids() == ["run-1"]
        await world.put("run-3", running(BEGAN + 3))
        await world.put("run-2", failed(BEGAN + 2))
        await listed(world, ["run-3", "run-2", "run-1"])
        assert await world.index.running("default") == 1
        assert await world.ids(RunFilter(dead=True)) == ["run-2"]
        await world.put("run-3", line(BEGAN + 3))
        await listed(world, [], RunFilter(status="running"))
        await world.broker.bucket(Bucket.SUMMARIES).delete("run-2")
        await listed(world, ["run-3", "run-1"])


async def test_a_cursor_is_good_while_runs_arrive_at_another_server_and_after_a_rebuild(tmp_path: Path) -> None:
    world = IndexWorld(tmp_path)
    for number in range(6):
        await world.put(f"run-{number}", line(BEGAN + number // 2))
    other = world.another()
    async with world.index.working(), other.working():
        first = await world.index.runs("default", ALL, limit=3)
        assert [run.run_id for run in first.runs] == ["run-5", "run-4", "run-3"]
        await world.put("run-9", line(BEGAN + 9))
        await listed(world, [f"run-{n}" for n in (9, 5, 4, 3, 2, 1, 0)])
        for index in (world.index, other):
            second = await index.runs("default", ALL, cursor=first.next, limit=3)
            assert [run.run_id for run in second.runs] == ["run-2", "run-1", "run-0"]
            assert second.next is None


async def test_a_broken_cursor_is_the_callers_fault(tmp_path: Path) -> None:
    index = IndexWorld(tmp_path).index
    with pytest.raises(InvalidRequestError):
        await index.runs("default", ALL, cursor="nonsense")
    with pytest.raises(InvalidRequestError):
        await index.audit("default", cursor="nonsense")


async def test_an_index_that_is_not_complete_answers_nothing(tmp_path: Path) -> None:
    world = IndexWorld(tmp_path, patience=0.05)
    with pytest.raises(IndexUnavailableError):
        await world.ids()
    assert (await world.index.state()).stage is Stage.BUILDING
    with pytest.raises(ConflictError):
        world.index.rebuild()
    world.index._patience = 30
    async with world.index.working():
        assert await world.ids() == []


async def test_a_list_that_takes_too_long_costs_no_other_its_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = IndexWorld(tmp_path)

    async def slow(*_: object) -> list[RunRow]:
        raise TooSlowError("narrow the filters down")

    async with world.index.working():
        await world.ids()
        with monkeypatch.context() as patched:
            patched.setattr(Store, "runs", slow)
            with pytest.raises(IndexUnavailableError):
                await world.ids()
        await world.put("run-1", line())
        await listed(world, ["run-1"])
        assert world.index.failed == 0


async def test_whoever_asks_early_waits_for_it(tmp_path: Path) -> None:
    world = IndexWorld(tmp_path, patience=30)
    await world.put("run-1", line())
    asking = asyncio.create_task(world.ids())
    done, _ = await asyncio.wait({asking}, timeout=0.05)
    assert not done
    async with world.index.working():
        assert await asking == ["run-1"]


async def test_runs_are_listed_while_the_audit_log_is_not_known_yet(tmp_path: Path) -> None:
    server, gate = MemoryServer(), Gate("audit.tail")
    await MemoryBroker(server).audit.add("line-1", b'{"at":5,"tenant":"default"}')
    index = Index(MemoryBroker(server, faults=gate), now_ms=lambda: 0, base=tmp_path, patience=0.1)
    async with index.working():
        assert (await index.runs("default", ALL)).runs == ()
        with pytest.raises(IndexUnavailableError):
            await index.audit("default")
        index.rebuild()
        with pytest.raises(IndexUnavailableError):
            await index.audit("default")
        assert (await index.state()).stage is Stage.REBUILDING, "another one must know as much"
        gate.open.set()
        await until(lambda: _is(index, Stage.READY))
        assert len((await index.audit("default")).lines) == 1


async def test_the_audit_list_follows_the_log(tmp_path: Path) -> None:
    world = IndexWorld(tmp_path, sleep=lambda _: past(0.001))
    for number in range(5):
        data = b'{"at":%d,"tenant":"default","by":"k","action":"a"}' % (BEGAN * 10 + number)
        await world.broker.audit.add(f"line-{number}", data)
    async with world.index.working():
        first = await world.index.audit("default", limit=3)
        second = await world.index.audit("default", limit=3, cursor=first.next)
        assert [one.line_id for one in first.lines] == ["line-4", "line-3", "line-2"]
        assert [one.line_id for one in second.lines] == ["line-1", "line-0"]
        assert second.next is None
        await world.broker.audit.add("line-5", b'{"at":%d,"tenant":"other"}' % (BEGAN * 10))

        async def others() -> bool:
            return [one.line_id for one in (await world.index.audit("other")).lines] == ["line-5"]

        await until(others)


async def test_its_age_is_that_of_the_last_beat_that_came_through(tmp_path: Path) -> None:
    world = IndexWorld(tmp_path, sleep=lambda seconds: past(seconds / 100))
    async with world.index.working():
        await world.ids()

        async def young() -> bool:
            state = await world.index.state()
            return state.age_seconds is not None and state.age_seconds < 0.08

        await until(young)
        await past(0.1)
        await until(young)
        assert await world.broker.bucket(Bucket.SUMMARIES).get(BEAT_KEY) is not None
        assert (await world.index.state()).runs == 0


# --- made anew ---------------------------------------------------------------------------------------------


async def test_a_rebuild_serves_all_the_time_and_gives_the_same(tmp_path: Path) -> None:
    world = IndexWorld(tmp_path, patience=0.0)
    for number in range(1200):
        await world.put(f"run-{number:04}", line(BEGAN + number))
    async with world.index.working():
        await until(lambda: _is(world.index, Stage.READY))
        before = await world.index.state()
        world.index.rebuild()
        assert (await world.index.state()).stage is Stage.REBUILDING
        with pytest.raises(ConflictError):
            world.index.rebuild()
        pages = 0
        while (await world.index.state()).stage is Stage.REBUILDING:
            page = await world.index.runs("default", ALL, limit=200)
            assert len(page.runs) == 200
            pages += 1
        after = await world.index.state()
        assert pages
        assert (after.runs, before.runs) == (1200, 1200)
        await world.put("run-last", line(BEGAN + 5000))
        await until(lambda: _count(world.index, 1201))
        assert len(inside(tmp_path, "*/*.sqlite")) == 1
    assert inside(tmp_path) == []


def damage(path: Path) -> None:
    for file in inside(path, "*/*.sqlite*"):
        with file.open("r+b") as open_file:
            open_file.write(os.urandom(file.stat().st_size))


async def _is(index: Index, stage: Stage) -> bool:
    return (await index.state()).stage is stage


async def _count(index: Index, runs: int) -> bool:
    return (await index.state()).runs == runs


async def test_an_index_that_is_damaged_is_thrown_away_and_made_anew(tmp_path: Path) -> None:
    world = IndexWorld(tmp_path, sleep=lambda seconds: past(seconds / 100))
    for number in range(300):
        await world.put(f"run-{number:03}", line(BEGAN + number))
    async with world.index.working():
        assert len(await world.ids()) == 300
        damage(tmp_path)
        numbers = itertools.count(300)

        async def noticed() -> bool:
            await world.put(f"run-{next(numbers):03}", line(BEGAN))
            with contextlib.suppress(IndexUnavailableError):
                await world.index.runs("default", ALL, limit=200)
            return world.index.failed > 0

        await until(noticed)
        count = next(numbers)
        await until(lambda: _count(world.index, count))
        assert len(await world.ids()) == count


async def test_a_rebuild_that_fails_leaves_the_present_index_serving(tmp_path: Path) -> None:
    world = IndexWorld(tmp_path, sleep=lambda seconds: past(seconds / 100))
    await world.put("run-1", line())
    async with world.index.working():
        assert await world.ids() == ["run-1"]
        (folder,) = inside(tmp_path)
        (folder / "index-2.sqlite").mkdir()  # nothing can be made there
        world.index.rebuild()
        await until(lambda: _is(world.index, Stage.READY))
        assert world.index.failed == 1
        await world.put("run-2", line(BEGAN + 1))
        await listed(world, ["run-2", "run-1"])
        world.index.rebuild()
        await until(lambda: _is(world.index, Stage.READY))
        assert await world.ids() == ["run-2", "run-1"]
        assert world.index.failed == 1


async def test_lines_that_were_lost_or_damaged_come_back_from_the_journals(tmp_path: Path) -> None:
    runs = DeciderWorld()
    await runs.start("name: w\nsteps:\n- {id: a, task: t}\n", labels={"team": "a"})
    await runs.start("name: v\nsteps:\n- {id: a, sleep: 1h}\n", run_id="run-2", tenant="other")
    await runs.start("name: v\nsteps:\n- {id: a, sleep: 1h}\n", run_id="run-3")
    bucket = runs.broker.bucket(Bucket.SUMMARIES)
    await bucket.delete(RUN)
    await bucket.put("run-2", b"damaged")
    world = IndexWorld(tmp_path, runs.server, sleep=lambda seconds: past(seconds / 100))
    async with world.index.working():
        assert await world.ids() == ["run-3"]
        assert (await world.index.state()).unreadable == 1
        world.index.rebuild(Source.JOURNALS)
        await until(lambda: _is(world.index, Stage.READY))
        assert sorted(await world.ids()) == [RUN, "run-3"]
        assert await world.ids(RunFilter(labels={"team": "a"})) == [RUN]
        assert await world.ids(tenant="other") == ["run-2"]
        assert (await world.index.state()).unreadable == 0


async def test_a_broker_that_is_away_is_waited_for(tmp_path: Path) -> None:
    class Away(Faults):
        left = 5

        async def call(self, operation: str, subject: str) -> Verdict:
            self.left -= 1
            return Verdict.LOST if self.left >= 0 else Verdict.OK

    server = MemoryServer()
    quick: Any = lambda seconds: past(seconds / 1000)  # noqa: E731
    index = Index(MemoryBroker(server, faults=Away()), now_ms=lambda: 0, base=tmp_path, sleep=quick)
    async with index.working():
        assert (await index.runs("default", ALL)).runs == ()


# --- where it lies -----------------------------------------------------------------------------------------


def test_each_process_has_a_folder_of_its_own_and_takes_it_away(tmp_path: Path) -> None:
    base = tmp_path / "deep" / "base"
    first, second = IndexFolder.make(base), IndexFolder.make(base)
    assert first.path != second.path
    assert first.path.stat().st_mode & 0o777 == 0o700
    assert first.new_file() != first.new_file()
    first.remove()
    assert list(base.iterdir()) == [second.path]
    second.remove()
    assert list(base.iterdir()) == []


def test_what_a_killed_process_left_behind_is_taken_away_and_nothing_else(tmp_path: Path) -> None:
    left = tmp_path / f"{PREFIX}left"
    left.mkdir()
    (left / "lock").touch()
    (left / "index-1.sqlite").touch()
    being_made = tmp_path / f"{PREFIX}young"
    being_made.mkdir()
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "lock").touch()
    (tmp_path / f"{PREFIX}link").symlink_to(victim)
    (tmp_path / "others").mkdir()
    alive = IndexFolder.make(tmp_path)
    another = IndexFolder.make(tmp_path)
    kept = {alive.path, another.path, being_made, victim, tmp_path / f"{PREFIX}link", tmp_path / "others"}
    assert set(tmp_path.iterdir()) == kept
    assert (victim / "lock").exists()
    for folder in (alive, another):
        folder.remove()


def test_a_folder_that_cannot_be_made_is_a_matter_of_configuration(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="index_dir"):
        IndexFolder.make(tmp_path / "file")
