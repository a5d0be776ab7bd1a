"""Who waits for a key of a run's: what it costs to find out whether those who hold it are still there."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from fumehood.broker.memory import Faults, MemoryBroker, Verdict
from fumehood.broker.ports import Bucket
from fumehood.control import gates, records
from fumehood.control.gates import Gates
from fumehood.control.locks import Lock, Who
from fumehood.engine.desired import desired
from fumehood.wire.protocol import EventType
from tests.unit.decider_world import DeciderWorld

ONE_RUN = "name: w\nconcurrency: {{key: input, limit: {limit}}}\nsteps:\n  - {{id: a, task: t}}\n"
ONE_STEP = "name: w\nsteps:\n  - {id: a, task: t, concurrency: {key: input}}\n  - {id: b, needs: [a], task: t}\n"


class Counts(Faults):
    def __init__(self) -> None:
        self.asked = Counter[str]()

    async def call(self, operation: str, subject: str) -> Verdict:
        self.asked[operation] += 1
        return Verdict.OK


class World(DeciderWorld):
    def __init__(self) -> None:
        super().__init__()
        self.counts = Counts()
        self.gates = Gates(MemoryBroker(self.server, faults=self.counts))

    async def begin(self, run_id: str, limit: int = 1) -> None:
        await self.start(ONE_RUN.format(limit=limit), "key", run_id=run_id)

    async def holds(self, run_id: str) -> bool:
        gate = (await self.state(run_id)).gates[""]
        return gate.held

    async def ask(self, run_id: str) -> None:
        state = await self.state(run_id)
        (claim,) = desired(state).claims
        await self.gates.ask(state, claim)
        await self.settle()

    async def lock(self) -> Lock:
        (entry,) = await self.broker.bucket(Bucket.LOCKS).entries()
        return Lock.decode(entry.value)

    async def dies(self, run_id: str) -> None:
        """The run ends, and its place is left by nobody."""
        (entry,) = await self.broker.bucket(Bucket.LOCKS).entries()
        await self.say(EventType.FAILED, "a", {"error": "no", "retryable": False}, run_id=run_id)
        assert (await self.state(run_id)).status.ended
        await self.broker.bucket(Bucket.LOCKS).put(entry.key, entry.value)

    async def is_a_newer_versions(self, run_id: str) -> None:
        """Its last record cannot be read by this version."""
        last = await self.broker.journal.last(run_id)
        assert last is not None
        data = json.dumps({"v": 99}).encode()
        await self.broker.journal.append(run_id, records.name(run_id, last.seq, data), data, expected=last.seq)


async def test_whoever_waits_reads_no_journal_of_those_who_hold_the_key() -> None:
    world = World()
    for number in range(20):
        await world.begin(f"run-{number}", limit=20)
        assert await world.holds(f"run-{number}")
    await world.begin("run-late", limit=20)
    assert not await world.holds("run-late")
    await world.ask("run-late")
    assert world.counts.asked["journal.read"] == 0
    assert world.counts.asked["summaries.get"] == 20
    assert await world.gates.sweep() == 0
    assert world.counts.asked["journal.read"] == 0


async def test_a_key_whose_holder_is_no_more_is_had_by_the_next_one_and_that_is_looked_at_once_in_a_while() -> None:
    world = World()
    for run_id in ("run-1", "run-2"):
        await world.begin(run_id)
        assert await world.holds(run_id)
        await world.dies(run_id)
        assert (await world.lock()).holders == (Who(run_id, ".0"),)
    await world.begin("run-3")
    assert not await world.holds("run-3"), "it is not long since the last look"
    assert await world.gates.sweep() == 1
    await world.settle()
    assert await world.holds("run-3")


async def test_it_is_looked_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr(gates, "LOOK_SECONDS", 0.0)
    for number in range(4):
        await world.begin(f"run-{number}")
        assert await world.holds(f"run-{number}")
        await world.dies(f"run-{number}")


async def test_a_holder_that_cannot_be_read_keeps_its_place_and_keeps_nobody_from_anything() -> None:
    world = World()
    for number in range(2):
        await world.start(ONE_RUN.format(limit=1), f"key-{number}", run_id=f"run-{number}")
        await world.is_a_newer_versions(f"run-{number}")
        await world.broker.bucket(Bucket.SUMMARIES).delete(f"run-{number}")
    await world.start(ONE_RUN.format(limit=1), "key-0", run_id="run-late")
    assert (world.decider.counters.failed, world.decider.counters.unknown) == (0, 0)
    assert not await world.holds("run-late")
    assert await world.gates.sweep() == 0
    held = [Lock.decode(entry.value).holders for entry in await world.broker.bucket(Bucket.LOCKS).entries()]
    assert sorted(held) == [(Who("run-0", ".0"),), (Who("run-1", ".0"),)]


async def test_a_lock_that_cannot_be_read_keeps_the_sweep_from_no_other() -> None:
    world = World()
    await world.begin("run-1")
    await world.dies("run-1")
    for key in ("0", "z"):
        await world.broker.bucket(Bucket.LOCKS).put(key, b"no lock")
    await world.gates.sweep()
    assert await world.broker.bucket(Bucket.LOCKS).keys() == ["0", "z"]


async def test_a_step_that_ended_in_a_run_that_goes_on_is_found_by_the_sweep() -> None:
    world = World()
    await world.start(ONE_STEP, "key", run_id="run-1")
    (entry,) = await world.broker.bucket(Bucket.LOCKS).entries()
    await world.start(ONE_STEP, "key", run_id="run-2")
    (waiting,) = await world.broker.bucket(Bucket.LOCKS).entries()
    await world.say(EventType.COMPLETED, "a", 1, run_id="run-1")
    await world.broker.bucket(Bucket.LOCKS).put(entry.key, entry.value)
    who = Who("run-1", "a.0")
    assert Lock.decode(waiting.value).holders == Lock.decode(entry.value).holders == (who,)
    assert (await world.gates.has_ended(who), await world.gates.is_over(who)) == (False, True)
    await world.gates.sweep()
    assert await world.broker.bucket(Bucket.LOCKS).entries() == []


async def test_a_run_that_never_was_is_not_over_and_one_that_was_archived_is() -> None:
    world = World()
    assert not await world.gates.is_over(Who("run-none", ".0"))
    line = {"workflow": "w", "status": "failed", "tries": 0, "archived": {"$blob": "sha256:" + "0" * 64, "size": 1}}
    await world.broker.bucket(Bucket.SUMMARIES).put("run-old", json.dumps(line).encode())
    assert await world.gates.is_over(Who("run-old", ".0"))
    assert world.counts.asked["blobs.get"] == 0


async def test_a_line_that_is_older_than_the_try_that_asked_is_not_believed() -> None:
    world = World()
    await world.begin("run-1")
    for gate, read in ((".0", 0), (".1", 1)):
        world.counts.asked.clear()
        await world.gates.has_ended(Who("run-1", gate))
        assert world.counts.asked["journal.read"] == read
