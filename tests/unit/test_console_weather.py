"""The console in bad weather: streams break, messages between servers get lost or come late, writes fail, tables lag.

Whatever happens, a command is run by one worker at most, its caller is told the truth about it and nothing else later,
and when the weather is fine again nothing is left: no slot, no command that a worker keeps, no call that waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from dataclasses import dataclass, field

import pytest

from fumehood.control.callers import ADMIN
from fumehood.control.console import console as console_module
from fumehood.control.console import journey as journey_module
from fumehood.control.console import placing as placing_module
from fumehood.control.console import presence as presence_module
from fumehood.control.console.commands import Commands
from fumehood.control.console.record import Record
from fumehood.errors import BrokerError, CommandFailedError
from fumehood.wire.command_api import CommandStatus
from tests.unit.console_roaming import Journal, Roaming
from tests.unit.console_storm import Storm, stormy
from tests.unit.console_world import World, wish, world
from tests.waiting import past, until

DAYS, AT_ONCE = 36, 6
COMMANDS = 20
SESSIONS = 3
DID_NOT_RUN = {"no_worker", "no_capacity", "worker_lost", "deadline_exceeded"}
"""Said instead of a record: nobody took it."""
QUICK = (
    (placing_module, "AGAIN_SECONDS", 0.03),
    (placing_module, "LOOK_SECONDS", 0.03),
    (placing_module, "FULL_SECONDS", 0.1),
    (placing_module, "OFFER_SECONDS", 0.15),
    (journey_module, "LOOK_SECONDS", 0.05),
    (journey_module, "STORE_SECONDS", 0.1),
    (journey_module, "STORE_AGAIN_SECONDS", 0.1),
    (console_module, "UNCLAIMED_SECONDS", 0.3),
    (presence_module, "REFRESH_SECONDS", 0.2),
    (presence_module, "TTL_SECONDS", 1),
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in QUICK:
        monkeypatch.setattr(module, name, value)


@dataclass
class Callers:
    """They ask, ask again, cancel; and check what they are told at the moment when they are."""

    there: World
    chance: random.Random
    workers: list[Roaming]
    journal: Journal
    told: dict[str, tuple[object, ...]] = field(default_factory=dict)
    """By command: its end, as somebody was told."""
    known: set[str] = field(default_factory=set)
    never: set[int] = field(default_factory=set)
    """Commands that nobody may run: their callers were told so."""

    async def ask(self, number: int) -> None:
        await past(self.chance.random() * 0.5)
        payload: dict[str, object] = {"number": number}
        kind = self.chance.choice(["echo", "key", "session"])
        if kind == "session":
            name = f"s{self.chance.randrange(SESSIONS)}"
            payload |= {"command": "true", "session_id": name, "create_if_missing": True}
        capability = "terminalExec" if kind == "session" else "echo"
        key = f"key {number}" if kind == "key" else None
        again = self._once(payload, capability, key), self._once(payload, capability, key)
        if key is None:
            again[1].close()
            await again[0]
        else:
            await asyncio.gather(*again)

    async def _once(self, payload: dict[str, object], capability: str, key: str | None) -> None:
        await past(self.chance.random() * 0.1)
        wait_ms = self.chance.choice([0, 300, 2000])
        number = payload["number"]
        assert isinstance(number, int)
        try:
            said = await self._desk().submit(wish(payload, capability, wait_ms=wait_ms, idempotency_key=key), ADMIN)
        except CommandFailedError as error:
            self.refused(number, key, error.reason)
            return
        except BrokerError:
            return
        self.known.add(said.command_id)
        ended = self.check(number, said)
        if capability == "echo" and self.chance.random() < 0.2:
            with contextlib.suppress(BrokerError):
                ended = self.check(number, await self._desk().cancel(said.command_id, ADMIN), before=ended)
        with contextlib.suppress(BrokerError):
            self.check(number, await self._desk().get(said.command_id, ADMIN, wait_ms=3000), before=ended)

    def _desk(self) -> Commands:
        return self.chance.choice(self.there.desks).commands

    def refused(self, number: int, key: str | None, reason: str) -> None:
        assert reason in DID_NOT_RUN
        if key is None:  # under a key, the other one may have been luckier
            self.never.add(number)

    def check(self, number: int, record: Record, *, before: bool = False) -> bool:
        """What a caller is told is true now, and nobody was told that it ended otherwise. Whether it has ended;
        `before`: whether the same caller knows that already."""
        command_id, runs = record.command_id, self.journal.ran.get(record.command_id, [])
        if not record.status.ended:
            assert not before, (record, self.told[command_id])
            return False
        said = (record.status, record.result_json, record.reason, record.worker, len(runs))
        first = self.told.setdefault(command_id, said)
        assert first == said, (first, said)
        if record.status is CommandStatus.SUCCEEDED:
            assert record.result_json is not None
            answer = json.loads(record.result_json)
            assert (answer["worker"], answer["number"]) == (record.worker, number), (answer, record)
            assert runs == [(record.worker, number)], (runs, record)
        elif record.reason == "deadline_exceeded":
            assert all(command_id not in one.running for one in self.workers), record
        else:
            assert record.reason in {"worker_replaced", "no_capacity", "no_worker"}, record
            assert all(command_id not in one.held for one in self.workers), (record, runs)
        return True


async def weather(storms: list[Storm], chance: random.Random) -> None:
    """It changes all the time."""
    while True:
        storm = chance.choice(storms)
        storm.loss, storm.longest = chance.choice([0.0, 0.1, 0.3]), chance.choice([0.0, 0.02, 0.1])
        match chance.choice(["fine", "stalled", "failing"]):
            case "stalled":
                storm.calm.clear()
            case "failing":
                storm.failing = chance.choice([0.3, 1.0])
        await past(chance.random() * 0.3)
        storm.calm.set()
        storm.failing = 0.0


def left(there: World, workers: list[Roaming]) -> list[object]:
    """What should be nothing when all is quiet."""
    found: list[object] = [one.held for one in workers]
    for desk in there.desks:
        found += [desk.exchange._asked, desk.exchange._confirming, desk.commands._under_way]
        found += [desk.commands._parts.placing._load, desk.commands._parts.placing._waiting]
        for stream in desk.console.streams.values():
            found += [stream.inflight, +stream.counts]
    return [one for one in found if one]


async def stormy_day(seed: int) -> None:
    chance = random.Random(seed)
    storms = [Storm(chance) for _ in range(3)]
    async with world(3, broker=stormy(storms)) as there:
        journal = Journal()
        workers = []
        for name in ("w1", "w2"):
            worker = await there.worker(name, capabilities={"echo": 1, "terminalExec": 1})
            workers.append(Roaming(there, chance, worker, journal))
        living = [asyncio.create_task(one.live()) for one in workers]
        await until(lambda: all(len(desk.presence.workers) == 2 for desk in there.desks))
        callers = Callers(there, chance, workers, journal)
        changing = asyncio.create_task(weather(storms, chance))
        try:
            async with asyncio.timeout(30):
                await asyncio.gather(*(callers.ask(number) for number in range(COMMANDS)))
            changing.cancel()
            for storm in storms:
                storm.over()
            for one in workers:
                one.settled = True
                one.news.set()
            with contextlib.suppress(TimeoutError):
                await until(lambda: left(there, workers) == [])
            assert left(there, workers) == []
            await the_end(there, callers)
        finally:
            for task in (changing, *living):
                task.cancel()
            ends = await asyncio.gather(changing, *living, return_exceptions=True)
            for one in workers:
                await one.end()
        assert [end for end in ends if not isinstance(end, asyncio.CancelledError)] == []


async def the_end(there: World, callers: Callers) -> None:
    """Every server tells the same, which is what was told before; and nothing ran twice, or against what was said."""
    ran = callers.journal.ran
    assert callers.journal.faults == []
    assert {command_id: runs for command_id, runs in ran.items() if len(runs) != 1} == {}
    for number in range(COMMANDS):
        assert callers.journal.times(number) <= (0 if number in callers.never else 1), number
    for command_id in callers.known:
        told = [await desk.commands.get(command_id, ADMIN) for desk in there.desks]
        assert len({(one.status, one.result_json, one.reason, one.worker) for one in told}) == 1, told
        assert told[0].status.ended or (told[0].status is CommandStatus.QUEUED and command_id not in ran), told[0]
        if command_id in callers.told:
            assert (told[0].status, told[0].result_json, told[0].reason, told[0].worker) == callers.told[command_id][:4]
    assert {name: made for name, made in callers.journal.sessions.items() if len(made) > 1} == {}


@pytest.mark.parametrize("first", range(0, DAYS, AT_ONCE))
async def test_whatever_happens_a_command_runs_once_and_its_caller_hears_the_truth(first: int) -> None:
    """Several worlds at once, since each of them mostly waits."""
    days = range(first, first + AT_ONCE)
    ends = await asyncio.gather(*(stormy_day(seed) for seed in days), return_exceptions=True)
    assert {seed: end for seed, end in zip(days, ends, strict=True) if end is not None} == {}
