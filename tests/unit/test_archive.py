"""The archive: whatever dies and whoever is quicker, a run's history is the same before and after."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fumehood.broker.memory import Faults, MemoryBroker, MemoryJournal, MemoryServer, Verdict
from fumehood.broker.ports import Bucket, Entry
from fumehood.control import archived, intake, loading, records, summaries
from fumehood.control.archive import Archiver
from fumehood.control.callers import ADMIN
from fumehood.control.decider import Decider
from fumehood.control.index import Index
from fumehood.control.orders import Orders
from fumehood.control.runs import Runs
from fumehood.control.turns import is_our_turn
from fumehood.control.workflows import Workflows
from fumehood.engine.messages import MessageType
from fumehood.engine.state import RunState, RunStatus
from fumehood.errors import ArchivedError, BlobCorruptError, BrokerUnavailableError, NotFoundError
from fumehood.wire import blobref
from fumehood.wire.protocol import EventType
from tests.unit.decider_world import RUN, DeciderWorld
from tests.waiting import until

WEEK = 7 * 86_400
SMALL = "name: w\nsteps:\n- {id: a, task: t}\n"
STEPS = ("summaries.get", "journal.read", "blobs.put", "summaries.update", "journal.purge")


class CrashError(BaseException):
    """The process is gone."""


class Dies(Faults):
    """Ends its process at the n-th call of a kind, before or after the call has had its effect."""

    def __init__(self, at: int = -1) -> None:
        self.left = at
        self.calls: list[str] = []

    async def call(self, operation: str, subject: str) -> Verdict:
        self.calls.append(operation)
        self.left -= 1
        if self.left == -1:
            raise CrashError
        return Verdict.OK


class Interferes(Faults):
    """Lets somebody else do something in between, once, right before the n-th call."""

    def __init__(self, at: int, act: Callable[[], Awaitable[None]]) -> None:
        self.left = at
        self._act = act

    async def call(self, operation: str, subject: str) -> Verdict:
        self.left -= 1
        if self.left == -1:
            await self._act()
        return Verdict.OK


class World(DeciderWorld):
    """A run that failed, more than a week ago."""

    def archiver(self, faults: Faults | None = None, retention: float = WEEK) -> Archiver:
        broker = MemoryBroker(self.server, faults=faults or Faults())
        index = Index(broker, now_ms=self.now_ms)
        return Archiver(broker, index, now_ms=self.now_ms, retention=retention)

    async def failed(self, run_id: str = RUN) -> None:
        await self.start(SMALL, {"n": 1}, run_id=run_id, labels={"team": "a"})
        await self.say(EventType.FAILED, "a", {"error": "no"}, run_id=run_id)
        await self.tasks()
        assert (await self.state(run_id)).status is RunStatus.FAILED

    async def old(self) -> None:
        await self.failed()
        await self.pass_time(WEEK + 1)

    async def line(self) -> dict[str, Any]:
        return (await summaries.read(self.broker, RUN))[0]

    async def in_the_journal(self) -> int:
        return len(await self.broker.journal.read(RUN))

    async def order(self, name: str, kind: MessageType = MessageType.RETRY) -> None:
        data = intake.encode(kind, {"by": "somebody", "tenant": "default", "reason": "again"})
        await self.broker.mailboxes.send(RUN, f"{RUN}.{name}", data)

    async def retry(self) -> None:
        """An order that is given, decided and followed by its effects in one go."""
        await self.order("retry")
        await self.settle()


def comparable(state: RunState) -> dict[str, Any]:
    return {name: getattr(state, name) for name in RunState.__slots__}


async def seen(world: World) -> dict[str, Any]:
    """All that can be seen of the run."""
    state = await world.state()
    whole = await loading.history(world.broker, RUN)
    return comparable(state) | {"history": [(entry.seq, entry.record_id, entry.data) for entry in whole.entries]}


# --- archiving ---------------------------------------------------------------------------------------------


async def test_an_archived_run_is_all_that_it_was() -> None:
    world = World()
    await world.old()
    before = await seen(world)
    assert await world.archiver().archive(RUN)
    assert await world.in_the_journal() == 0
    assert await world.broker.mailboxes.last(RUN) is None
    assert await seen(world) == before
    line = await world.line()
    assert summaries.LIVE not in line
    assert {name: value for name, value in line.items() if name != "archived"} == summaries.line(await world.state())
    runs = Runs(world.broker, Workflows(world.broker, now_ms=world.now_ms), now_ms=world.now_ms)
    shown = await runs.get(RUN, ADMIN)
    assert isinstance(shown, RunState)
    assert comparable(shown) == {name: before[name] for name in RunState.__slots__}
    page, following = await runs.history(RUN, ADMIN, after=0, limit=1)
    assert following == page[0][0]
    rest, end = await runs.history(RUN, ADMIN, after=page[0][0], limit=100)
    assert [seq for seq, _ in [*page, *rest]] == [seq for seq, _, _ in before["history"]]
    assert end is None
    assert (await runs.history(RUN, ADMIN, after=10**6, limit=1)) == ([], None)


@pytest.mark.parametrize("case", ["young", "running", "unknown", "without a line"])
async def test_what_is_not_to_be_archived_is_left_alone(case: str) -> None:
    world = World()
    if case == "running":
        await world.start(SMALL)
    elif case != "unknown":
        await world.failed()
    await world.pass_time(WEEK - 1 if case == "young" else WEEK + 1)
    if case == "without a line":
        await world.broker.bucket(Bucket.SUMMARIES).delete(RUN)
    faults = Dies()
    assert not await world.archiver(faults).archive(RUN)
    assert {"blobs.put", "summaries.update", "summaries.create", "journal.purge"}.isdisjoint(faults.calls)


async def test_a_run_is_archived_once() -> None:
    world = World()
    await world.old()
    assert await world.archiver().archive(RUN)
    before = await world.line()
    faults = Dies()
    assert not await world.archiver(faults).archive(RUN)
    assert faults.calls == ["summaries.get"]
    assert await world.line() == before


async def test_a_process_that_dies_at_any_point_leaves_a_run_that_is_whole_and_archived_the_next_time() -> None:
    calls = len(await calls_of_an_archive())
    assert calls >= 7
    for at in range(calls):
        world = World()
        await world.old()
        before = await seen(world)
        with pytest.raises(CrashError):
            await world.archiver(Dies(at)).archive(RUN)
        assert await seen(world) == before, at
        undone = await world.in_the_journal() or (await world.line()).get(summaries.LIVE)
        assert await world.archiver().archive(RUN) == bool(undone), at
        assert await seen(world) == before, at
        assert await world.in_the_journal() == 0
        line = await world.line()
        assert summaries.ARCHIVED in line
        assert summaries.LIVE not in line
        assert len(world.server.blobs) == 1, "the same records are the same blob"


async def calls_of_an_archive() -> list[str]:
    world, faults = World(), Dies()
    await world.old()
    await world.archiver(faults).archive(RUN)
    assert set(STEPS) <= set(faults.calls)
    return faults.calls


@pytest.mark.parametrize("verdict", [Verdict.LOST, Verdict.UNANSWERED])
async def test_a_call_that_is_lost_at_any_point_costs_another_turn_and_nothing_else(verdict: Verdict) -> None:
    class Loses(Dies):
        async def call(self, operation: str, subject: str) -> Verdict:
            self.left -= 1
            return verdict if self.left == -1 else Verdict.OK

    for at in range(len(await calls_of_an_archive())):
        world = World()
        await world.old()
        before = await seen(world)
        with pytest.raises(BrokerUnavailableError):
            await world.archiver(Loses(at)).archive(RUN)
        assert await seen(world) == before
        await world.archiver().archive(RUN)
        assert await seen(world) == before
        assert await world.in_the_journal() == 0
        assert summaries.LIVE not in await world.line()


# --- somebody is quicker -----------------------------------------------------------------------------------


async def test_a_run_that_is_taken_up_again_at_any_point_goes_on() -> None:
    """Whoever comes first: the retry has its effect once, the run ends, and its history is whole."""
    for at in range(len(await calls_of_an_archive())):
        world = World()
        await world.old()
        before = await seen(world)
        await world.archiver(Interferes(at, world.retry)).archive(RUN)
        state = await world.state()
        assert (state.status, state.tries) == (RunStatus.RUNNING, 1), at
        assert (await world.line())["status"] == "running", at
        await went_on(world, before)


async def test_an_order_that_waits_while_the_run_is_archived_is_taken() -> None:
    """It is given between any two steps, and looked at when all is done, by a decider that has never seen the run."""
    for at in range(len(await calls_of_an_archive())):
        world = World()
        await world.old()
        before = await seen(world)
        await world.archiver(Interferes(at, lambda world=world: world.order("retry"))).archive(RUN)  # type: ignore[misc]
        world.decider = world.another()
        await world.settle()
        state = await world.state()
        assert (state.status, state.tries) == (RunStatus.RUNNING, 1), at
        assert (await world.line())["status"] == "running", at
        await went_on(world, before)


async def test_a_decider_that_has_loaded_the_run_before_it_was_archived_decides_again() -> None:
    world = World()
    await world.old()
    before = await seen(world)
    await world.order("retry")

    class Between(Faults):
        done = False

        async def call(self, operation: str, subject: str) -> Verdict:
            if operation == "journal.append" and not self.done:
                self.done = True
                assert await world.archiver().archive(RUN)
            return Verdict.OK

    world.decider = Decider(MemoryBroker(world.server, faults=Between()), now_ms=world.now_ms)
    await world.settle()
    assert world.decider.counters.conflicts == 1
    assert (await world.state()).tries == 1
    await went_on(world, before)


async def went_on(world: World, before: dict[str, Any]) -> None:
    """Retried, ended well, and archived again when its time has come."""
    assert [task["step_id"] for task in await world.tasks()] == ["a"]
    await world.say(EventType.COMPLETED, "a", 5)
    state = await world.state()
    assert (state.status, state.tries) == (RunStatus.SUCCEEDED, 1)
    line = await world.line()
    assert (line["status"], line["tries"], line["events"]) == ("succeeded", 1, state.events)
    whole = await seen(world)
    assert whole["history"][: len(before["history"])] == before["history"]
    assert not await world.archiver().archive(RUN), "it is young again"
    await world.pass_time(WEEK + 1)
    assert await world.archiver().archive(RUN)
    assert await seen(world) == whole
    assert await world.in_the_journal() == 0
    assert summaries.LIVE not in await world.line()


async def test_two_archivers_at_once_do_no_harm() -> None:
    for at in range(len(await calls_of_an_archive())):
        world = World()
        await world.old()
        before = await seen(world)

        async def other(world: World = world) -> None:
            await world.archiver().archive(RUN)

        await world.archiver(Interferes(at, other)).archive(RUN)
        assert await seen(world) == before
        assert await world.in_the_journal() == 0
        assert summaries.LIVE not in await world.line()


async def test_a_line_that_an_older_version_wrote_over_ours_gets_its_pointer_back() -> None:
    old = {"workflow": "w", "definition": "d", "status": "failed", "started_at": "x", "ended_at": "y"}
    world = World()
    await world.old()
    before = await seen(world)

    async def forget() -> None:
        await world.broker.bucket(Bucket.SUMMARIES).put(RUN, blobref.encode(old))

    calls = await calls_of_an_archive()
    await world.archiver(Interferes(calls.index("journal.purge"), forget)).archive(RUN)
    assert await seen(world) == before


async def test_a_journal_that_was_cut_is_not_archived() -> None:
    world = World()
    await world.old()
    line = await world.line()
    await world.broker.bucket(Bucket.SUMMARIES).put(RUN, blobref.encode({**line, "events": 1000}))
    archiver = world.archiver()
    await archiver._lane(iter([RUN, RUN]))
    assert (archiver.archived, archiver.failed) == (0, 2)
    assert await world.in_the_journal()


# --- reading -----------------------------------------------------------------------------------------------


async def test_orders_to_an_archived_run_are_refused() -> None:
    world = World()
    await world.old()
    await world.archiver().archive(RUN)
    runs = Runs(world.broker, Workflows(world.broker, now_ms=world.now_ms), now_ms=world.now_ms)
    orders = Orders(world.broker, runs, now_ms=world.now_ms)
    with pytest.raises(ArchivedError):
        await orders.retry(RUN, ADMIN)
    with pytest.raises(ArchivedError):
        await orders.override(RUN, "a", ADMIN, action="skip", reason="")


async def test_a_long_journal_that_is_archived_between_two_reads_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    await world.old()
    before = await seen(world)
    monkeypatch.setattr(loading, "LONG", 1)

    read = MemoryJournal.read

    async def torn(self: MemoryJournal, run_id: str, *, after: int = 0) -> list[Entry]:
        """The second half of the journal is gone when it is asked for."""
        found = await read(self, run_id, after=after)
        monkeypatch.undo()
        monkeypatch.setattr(loading, "LONG", 1)
        await world.archiver().archive(RUN)
        return found[: len(found) // 2]

    monkeypatch.setattr(MemoryJournal, "read", torn)
    state = await world.state()
    assert comparable(state) == {name: before[name] for name in RunState.__slots__}


async def test_a_run_that_never_was_is_not_found_in_the_archive_either() -> None:
    world = World()
    runs = Runs(world.broker, Workflows(world.broker, now_ms=world.now_ms), now_ms=world.now_ms)
    with pytest.raises(NotFoundError):
        await runs.history(RUN, ADMIN, after=0, limit=1)


def entries(run_id: str = RUN) -> list[Entry]:
    data = ['{"v":1}', '{"ж":"\\u2028"}']
    return [Entry(n, records.name(run_id, n, text.encode()), text.encode()) for n, text in enumerate(data, 1)]


async def test_records_come_back_as_they_were() -> None:
    packed = await archived.pack(RUN, [*entries(), Entry(9, f"{RUN}.0.forged", b"{}")])
    assert archived.unpack(RUN, packed) == entries()
    assert packed == await archived.pack(RUN, entries())
    assert gzip.decompress(packed).count(b"\n") == 3


async def test_what_is_not_this_runs_archive_is_refused() -> None:
    packed = await archived.pack(RUN, entries())
    text = gzip.decompress(packed)
    head, first, second = text.splitlines()
    forged = json.dumps({"seq": 1, "id": entries()[0].record_id, "data": "{}"}).encode()
    for wrong in (
        b"",
        b"not compressed",
        packed[:-4],
        packed + packed,
        gzip.compress(b""),
        gzip.compress(b"[]\n" * 3),
        gzip.compress(head + b"\n" + first),
        gzip.compress(b"\n".join([head, first, forged])),
        gzip.compress(b"\n".join([head.replace(b'"v":1', b'"v":2'), first, second])),
        await archived.pack("run-2", entries("run-2")),
    ):
        with pytest.raises(BlobCorruptError):
            archived.unpack(RUN, wrong)


async def test_an_archive_that_holds_more_than_it_may_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = gzip.compress(b"0" * 100_000)
    monkeypatch.setattr(archived, "LARGEST", 1000)
    with pytest.raises(BlobCorruptError):
        archived.unpack(RUN, bomb)


# --- turns -------------------------------------------------------------------------------------------------


async def test_all_old_runs_are_archived_in_a_turn_and_one_that_fails_keeps_no_other(tmp_path: Path) -> None:
    world = World()
    for number in range(5):
        await world.failed(f"run-{number}")
    await world.pass_time(WEEK + 1)
    await world.failed("run-young")
    await world.broker.journal.append("run-bad", records.name("run-bad", 0, b"[]"), b"[]", expected=0)
    line = await summaries.read(world.broker, "run-0")
    await world.broker.bucket(Bucket.SUMMARIES).put("run-bad", blobref.encode(line[0]))
    broker = MemoryBroker(world.server)
    index = Index(broker, now_ms=world.now_ms, base=tmp_path)
    archiver = Archiver(broker, index, now_ms=world.now_ms, retention=WEEK)
    async with index.working():
        assert await archiver.turn() == 5
        assert (archiver.archived, archiver.failed) == (5, 1)

        async def known() -> bool:
            left = await index.archivable(world.now_ms() - WEEK * 1000, (0, ""), 10)
            return [run_id for _, run_id in left] == ["run-bad"]

        await until(known)
        assert await archiver.turn() == 0
        assert archiver.failed == 1, "what failed for good is left"
    assert await world.broker.journal.read("run-young")


async def test_one_server_has_the_turn_in_each_interval() -> None:
    server = MemoryServer()
    turns = await asyncio.gather(
        *(is_our_turn(MemoryBroker(server), "x", now_ms=1_000_000, every=60) for _ in range(5))
    )
    assert sorted(turns) == [False] * 4 + [True]
    assert await is_our_turn(MemoryBroker(server), "y", now_ms=1_000_000, every=60)
    assert not await is_our_turn(MemoryBroker(server), "y", now_ms=1_000_000 - 1000, every=60)
    for later, expected in ((53_999, False), (54_000, True), (54_001, False)):
        assert await is_our_turn(MemoryBroker(server), "x", now_ms=1_000_000 + later, every=60) is expected


async def test_a_turn_that_a_wrong_clock_took_far_ahead_keeps_nobody_waiting() -> None:
    broker = MemoryBroker(MemoryServer())
    assert await is_our_turn(broker, "x", now_ms=365 * 86_400_000, every=60)
    assert await is_our_turn(broker, "x", now_ms=1_000_000, every=60)
    assert not await is_our_turn(broker, "x", now_ms=1_000_000 + 1000, every=60)


@pytest.mark.parametrize("retention", [0, WEEK])
async def test_work_goes_on_turn_by_turn_unless_nothing_is_to_be_archived(tmp_path: Path, retention: float) -> None:
    world = World()
    await world.old()
    turns = 0

    async def pause(seconds: float) -> None:
        nonlocal turns
        turns += 1
        if turns == 4:
            raise asyncio.CancelledError
        world.clock.advance_to(world.clock.now() + seconds)

    broker = MemoryBroker(world.server)
    index = Index(broker, now_ms=world.now_ms, base=tmp_path, patience=0.0)
    archiver = Archiver(broker, index, now_ms=world.now_ms, retention=retention, sleep=pause)
    with pytest.raises(asyncio.CancelledError):
        await archiver.work()
    assert archiver.archived == archiver.failed == 0, "without an index nothing is known to be old"
    turns = 0
    async with index.working():
        await until(lambda: _ready(index))
        with pytest.raises(asyncio.CancelledError):
            await archiver.work()
    assert archiver.archived == (1 if retention else 0)


async def _ready(index: Index) -> bool:
    return (await index.state()).built_at is not None
