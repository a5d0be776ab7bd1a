"""The console when something is wrong: each of these was a fault once, or would be one if a line were missing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import NoReturn

import pytest

from fumehood.broker.memory import MemoryKeyValue
from fumehood.broker.memory_faults import Verdict
from fumehood.control.callers import ADMIN
from fumehood.control.console import commands as commands_module
from fumehood.control.console import console as console_module
from fumehood.control.console import journey as journey_module
from fumehood.control.console import placing as placing_module
from fumehood.control.console import presence as presence_module
from fumehood.control.console import record as record_module
from fumehood.control.console.assembly import ConsoleDesk
from fumehood.control.console.record import Record
from fumehood.errors import BrokerUnavailableError, CommandFailedError, DrainingError
from fumehood.wire.command_api import CommandStatus
from fumehood.wire.console import sessions as wire
from fumehood.wire.console.codes import PIECE_BYTES
from fumehood.wire.console.console_pb2 import Dispatch, Error, HeldSession, Result
from fumehood.wire.sandbox import NetworkProfile
from tests.unit.console_storm import Storm, stormy
from tests.unit.console_world import FakeWorker, World, connected, echo, failing, wish, world
from tests.waiting import past, until

Patch = pytest.MonkeyPatch
Change = Callable[[Record], Record | None]
MINE = HeldSession(owner="default", session_id="s", lease_expires_unix_ms=2**45)
VIEW = wire.SessionView(
    session_id="s",
    image="i",
    image_digest="d",
    created_unix_ms=1,
    lease_expires_unix_ms=2**45,
    network=NetworkProfile.DENY_ALL,
)


@contextlib.asynccontextmanager
async def stormy_world(servers: int = 2) -> AsyncIterator[tuple[World, list[Storm]]]:
    storms = [Storm() for _ in range(servers)]
    async with world(servers, broker=stormy(storms)) as there:
        yield there, storms


def never(*_: object, **__: object) -> asyncio.Future[int]:
    """A call that is not answered."""
    return asyncio.get_running_loop().create_future()


async def unavailable(*_: object, **__: object) -> int:
    raise BrokerUnavailableError("the broker is away")


def with_payload(worker: FakeWorker, payload: object) -> list[Dispatch]:
    return [one for one in worker.dispatched if json.loads(one.payload_json) == payload]


async def busy(there: World, at: int, *names: str) -> list[FakeWorker]:
    """Workers that take one command at a time, and have one."""
    workers = [await connected(there, at, name, capabilities={"echo": 1}) for name in names]
    for _ in workers:
        await there.desks[at].commands.submit(wish("busy", wait_ms=0), ADMIN)
    return workers


# --- a command runs once -----------------------------------------------------------------------------------


class Held:
    """Messages of one server to another wait until they are let go, one by one, in their order."""

    def __init__(self, desk: ConsoleDesk, to: ConsoleDesk, patch: Patch) -> None:
        self.waiting: list[tuple[str, bytes]] = []
        self._address = f"console.{to.exchange.server}"
        self._switchboard = desk.exchange._broker.switchboard
        self._send = self._switchboard.send
        self._holds = True
        patch.setattr(self._switchboard, "send", self._sent)

    async def _sent(self, address: str, data: bytes) -> None:
        if self._holds and address == self._address:
            self.waiting.append((address, data))
        else:
            await self._send(address, data)

    async def let_go(self, count: int | None = None) -> None:
        going = self.waiting[:count]
        del self.waiting[:count]
        self._holds = count is not None
        for address, data in going:
            await self._send(address, data)


async def test_a_workers_own_refusal_is_of_one_saying_alone(monkeypatch: Patch) -> None:
    """It refused what was said first, and took what was said again. The refusal comes last: the command is out, and is
    offered to nobody else."""
    monkeypatch.setattr(placing_module, "AGAIN_SECONDS", 0.05)
    async with world(3) as there:
        first = await connected(there, 1, "first", answers=failing("no_capacity"))
        held = Held(there.desks[1], there.desks[0], monkeypatch)
        submitted = asyncio.create_task(there.desks[0].commands.submit(wish("x"), ADMIN))
        await until(lambda: len(held.waiting) == 1)
        first.answers = None
        await first.until(lambda: len(first.dispatched) == 2)
        second = await connected(there, 2, "second", answers=echo)
        await held.let_go()
        (asked,) = there.desks[0].exchange._asked.values()
        await until(lambda: asked.taken)
        await first.say(echo(first.dispatched[1]))
        assert (await submitted).worker == "first"
        assert (len(first.dispatched), second.dispatched) == (2, [])


async def test_one_that_was_refused_after_all_does_not_wait_for_ever(monkeypatch: Patch) -> None:
    """It was said twice: the first saying was confirmed, the second got lost. Now the worker refuses the first one; as
    nobody knows what became of the second, it is said once more."""
    monkeypatch.setattr(placing_module, "AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(journey_module, "LOOK_SECONDS", 0.05)
    async with stormy_world() as (there, storms):
        worker = await connected(there, 1)
        held = Held(there.desks[1], there.desks[0], monkeypatch)
        submitted = asyncio.create_task(there.desks[0].commands.submit(wish("x"), ADMIN))
        await worker.until(lambda: bool(worker.dispatched))
        storms[0].loss = 1.0
        (asked,) = there.desks[0].exchange._asked.values()
        await until(lambda: asked.attempt >= 2 and bool(held.waiting))
        await held.let_go()
        await until(lambda: asked.taken)
        storms[0].loss, worker.answers = 0.0, echo
        await worker.say(failing("no_capacity")(worker.dispatched[0]))
        assert (await submitted).status is CommandStatus.SUCCEEDED
        assert len(worker.dispatched) == 2


async def test_a_confirmation_does_not_outlive_the_workers_refusal(monkeypatch: Patch) -> None:
    """The server confirms a moment later what went out; by then its worker has refused it. Nobody has the command, and
    nobody is told that it runs."""
    async with world() as there:
        full = await connected(there, 1, "full", capabilities={"echo": 1}, answers=failing("no_capacity"))
        submitted = asyncio.create_task(there.desks[0].commands.submit(wish("x", wait_ms=1_500), ADMIN))
        await full.until(lambda: bool(full.dispatched))
        (asked,) = there.desks[0].exchange._asked.values()
        await until(lambda: bool(asked.refused))
        assert there.desks[1].exchange._confirming == {}
        with pytest.raises(CommandFailedError) as error:
            await submitted
        assert (error.value.reason, asked.taken) == ("no_capacity", False)


async def test_a_refusal_that_comes_after_the_command_was_taken_is_old(monkeypatch: Patch) -> None:
    """It was asked twice; the answer to the first asking comes when the second one was taken."""
    monkeypatch.setattr(placing_module, "AGAIN_SECONDS", 0.05)
    async with world() as there:
        (first,) = await busy(there, 1, "w1")
        held = Held(there.desks[1], there.desks[0], monkeypatch)
        submitted = asyncio.create_task(there.desks[0].commands.submit(wish("x"), ADMIN))
        await until(lambda: len(held.waiting) >= 1)
        second = await there.worker("w2", capabilities={"echo": 1})
        await second.connect(there.desks[0])
        await first.say(echo(first.dispatched[0]))
        await first.until(lambda: len(first.dispatched) == 2)
        await held.let_go()
        (asked,) = [one for one in there.desks[0].exchange._asked.values() if one.worker_id]
        await until(lambda: asked.taken)
        await first.say(echo(first.dispatched[1]))
        assert (await submitted).worker == "w1"
        assert second.dispatched == []


@pytest.mark.parametrize("round_", range(5))
async def test_two_that_get_free_at_once_do_not_both_get_what_waits(round_: int) -> None:
    async with world() as there:
        workers = await busy(there, 1, "w1", "w2")
        third = asyncio.create_task(there.desks[0].commands.submit(wish("third"), ADMIN))
        streams = there.desks[1].console.streams.values()
        await until(lambda: all(one.refused for one in streams))
        for worker in workers:
            await worker.say(echo(worker.dispatched[0]))
        await until(lambda: any(with_payload(one, "third") for one in workers))
        (asked,) = [one for one in there.desks[0].exchange._asked.values() if one.dispatch.payload_json == b'"third"']
        await until(lambda: asked.taken)
        (ran,) = [one for worker in workers for one in with_payload(worker, "third")]
        (who,) = [worker for worker in workers if with_payload(worker, "third")]
        await who.say(echo(ran))
        assert (await third).worker == who.worker_id


async def test_the_workers_own_refusal_leads_to_another_one() -> None:
    """A worker has more than its server knows of, since it brought a command along. It did nothing, so another one
    may; and nobody is told that it failed."""
    async with world() as there:
        full = await connected(there, 0, "full", capabilities={"echo": 1}, answers=failing("no_capacity"))
        second = asyncio.create_task(there.desks[1].commands.submit(wish("x"), ADMIN))
        await full.until(lambda: bool(full.dispatched))
        free = await connected(there, 0, "free", answers=echo)
        done = await second
        assert (done.status, done.worker) == (CommandStatus.SUCCEEDED, "free")
        assert len(free.dispatched) == 1
        await until(lambda: not there.desks[0].console.streams["full"].inflight)
        assert not +there.desks[0].console.streams["full"].counts


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_worker_that_refuses_is_not_asked_all_the_time(key: str | None) -> None:
    async with world() as there:
        full = await connected(there, 0, "full", capabilities={"echo": 1}, answers=failing("no_capacity"))
        with pytest.raises(CommandFailedError) as error:
            await there.desks[1].commands.submit(wish("x", wait_ms=800, idempotency_key=key), ADMIN)
        assert error.value.reason == "no_capacity"
        assert len(full.dispatched) <= 8


async def test_what_goes_to_the_next_worker_is_not_judged_by_the_last_one(monkeypatch: Patch) -> None:
    """The first worker refused it, and left. While the second one gets it, its record must not say that the first has
    it: whoever asks would be told that it is lost."""
    monkeypatch.setattr(placing_module, "AGAIN_SECONDS", 0.05)
    async with world(3) as there:
        first = await connected(there, 1, "first")
        running = await there.desks[0].commands.submit(wish("x", wait_ms=0), ADMIN)
        finisher, written = there.desks[0].commands._parts.finisher, asyncio.Event()
        change = finisher.change

        async def late(record: Record, revision: int, changed: Change) -> tuple[Record, int]:
            if (new := changed(record)) is not None and new.worker == "second":
                await written.wait()
            return await change(record, revision, changed)

        monkeypatch.setattr(finisher, "change", late)
        second = await connected(there, 2, "second")
        await first.say(failing("no_capacity")(first.dispatched[0]))
        first.answers = failing("no_capacity")
        await second.until(lambda: bool(second.dispatched))
        assert first.held is not None
        await first.held.gone()
        first.capabilities = {"pythonExec": 1}
        await first.connect(there.desks[1])
        await until(lambda: all("echo" not in _entry(desk, "first") for desk in there.desks))
        assert not (await there.desks[2].commands.get(running.command_id, ADMIN)).status.ended
        written.set()
        await second.say(echo(second.dispatched[0]))
        done = await there.desks[2].commands.get(running.command_id, ADMIN, wait_ms=5000)
        assert (done.status, done.worker) == (CommandStatus.SUCCEEDED, "second")


def _entry(desk: ConsoleDesk, name: str) -> Mapping[str, int]:
    found = desk.presence.of(name)
    return found.capabilities if found is not None else {"echo": 0}


# --- what is told is true ----------------------------------------------------------------------------------


async def test_a_server_whose_table_lags_says_nothing_of_a_command_that_runs() -> None:
    """The worker went from the first server to the second; the third knows nothing of that, and is asked."""
    async with stormy_world(3) as (there, storms):
        worker = await connected(there, 0)
        storms[2].calm.clear()
        assert worker.held is not None
        await worker.held.gone()
        await worker.connect(there.desks[1])
        here = there.desks[1].exchange.server
        await until(lambda: (found := there.desks[0].presence.of("w1")) is not None and found.server == here)
        running = await there.desks[0].commands.submit(wish("x", wait_ms=0), ADMIN)
        assert (await there.desks[2].commands.get(running.command_id, ADMIN)).status is CommandStatus.RUNNING
        await worker.say(echo(worker.dispatched[0]))
        done = await there.desks[2].commands.get(running.command_id, ADMIN, wait_ms=5000)
        assert done.status is CommandStatus.SUCCEEDED


async def test_a_server_that_is_cut_off_from_the_broker_sends_its_workers_away(monkeypatch: Patch) -> None:
    """Others take them for gone when their entries have run out; so they must not be here any more, either."""
    monkeypatch.setattr(presence_module, "REFRESH_SECONDS", 0.02)
    async with stormy_world() as (there, storms):
        worker = await connected(there, 1)
        storms[1].failing, storms[1].ways = 1.0, (Verdict.LOST,)
        clock = time.monotonic
        monkeypatch.setattr(there.desks[1].presence, "clock", lambda: clock() + presence_module.TTL_SECONDS - 2)
        await asyncio.sleep(0)
        assert worker.closed is None
        monkeypatch.setattr(there.desks[1].presence, "clock", lambda: clock() + presence_module.TTL_SECONDS + 1)
        await worker.until(lambda: worker.closed == "draining")
        assert there.desks[1].console.streams["w1"].closed


async def test_a_worker_is_not_lost_while_its_command_may_run(monkeypatch: Patch) -> None:
    """It is out of sight for long. It may be alive, at a server that nobody hears, until the command's time is over."""
    monkeypatch.setattr(presence_module, "REFRESH_SECONDS", 1000.0)
    async with world() as there:
        await connected(there, 1)
        running = await there.desks[0].commands.submit(wish("x", wait_ms=0), ADMIN)
        await there.desks[1].presence._bucket.delete("stream.w1")
        await until(lambda: there.desks[0].presence.of("w1") is None)
        clock = time.monotonic
        monkeypatch.setattr(there.desks[0].presence, "clock", lambda: clock() + record_module.LOST_SECONDS + 1)
        there.desks[0].exchange.poke()
        got = await there.desks[0].commands.get(running.command_id, ADMIN, wait_ms=200)
        assert got.status is CommandStatus.RUNNING
        monkeypatch.setattr(record_module, "OVERDUE_MS", -120_000)
        there.desks[0].exchange.poke()
        done = await there.desks[0].commands.get(running.command_id, ADMIN, wait_ms=5000)
        assert (done.status, done.reason) == (CommandStatus.FAILED, "worker_lost")


@pytest.mark.parametrize("tells", [True, False])
async def test_a_command_whose_server_died_before_it_wrote_down_who_has_it_is_not_lost_while_it_may_run(
    monkeypatch: Patch, tells: bool
) -> None:
    """A worker has it, and tells its end; or nobody ever does, and its time is over."""
    monkeypatch.setattr(commands_module, "QUEUED_SECONDS", 0.0)
    async with world() as there:
        worker = await connected(there, 1)
        dying, other = there.desks[0].commands, there.desks[1].commands

        async def never(*_: object) -> NoReturn:
            await asyncio.Event().wait()
            raise AssertionError

        monkeypatch.setattr(dying._parts.finisher, "change", never)
        submitted = asyncio.create_task(dying.submit(wish("x", idempotency_key="k", wait_ms=0), ADMIN))
        await worker.until(lambda: len(worker.dispatched) == 1)
        command_id = worker.dispatched[0].command_id
        await dying.close()
        await asyncio.gather(submitted, return_exceptions=True)
        assert (await other.get(command_id, ADMIN)).status is CommandStatus.QUEUED, "nobody knows that nothing runs"
        if tells:
            await worker.say(echo(worker.dispatched[0]))
            done = await other.get(command_id, ADMIN, wait_ms=30_000)
            assert (done.status, done.result_json) == (CommandStatus.SUCCEEDED, '"x"')
        else:
            monkeypatch.setattr(record_module, "OVERDUE_MS", -120_000)
            done = await other.get(command_id, ADMIN)
            assert (done.status, done.reason) == (CommandStatus.FAILED, "worker_lost")


async def test_a_claim_that_lands_late_takes_no_worker_away(monkeypatch: Patch) -> None:
    """The worker gave up on a server that was slow to write, and is at another one, where it works."""
    gate, begun = asyncio.Event(), asyncio.Event()
    create = MemoryKeyValue.create

    async def late(self: MemoryKeyValue, key: str, value: bytes, *, ttl: int | None = None) -> int:
        if key == "stream.w1" and not begun.is_set():
            begun.set()
            await gate.wait()
        return await create(self, key, value, ttl=ttl)

    async with world() as there:
        worker = await there.worker("w1")
        monkeypatch.setattr(MemoryKeyValue, "create", late)
        old = FakeWorker("w1", worker.secret)
        first = asyncio.create_task(old.connect(there.desks[0]))
        await begun.wait()
        await past(0.002)  # the worker's clock counts milliseconds
        await worker.connect(there.desks[1])
        await until(lambda: all(desk.presence.of("w1") for desk in there.desks))
        running = await there.desks[1].commands.submit(wish("x", wait_ms=0), ADMIN)
        gate.set()
        with pytest.raises(DrainingError):
            await first
        got = await there.desks[0].commands.get(running.command_id, ADMIN)
        assert (worker.closed, got.status) == (None, CommandStatus.RUNNING)
        assert there.desks[0].console.streams == {}


async def test_a_worker_that_left_while_it_was_refreshed_is_gone(monkeypatch: Patch) -> None:
    """Its server writes its entry anew at the moment in which the stream ends: nobody shall find it."""
    update = MemoryKeyValue.update
    written, gate = asyncio.Event(), asyncio.Event()

    async def slow(self: MemoryKeyValue, key: str, value: bytes, **more: int) -> int:
        revision = await update(self, key, value, **more)
        if key == "stream.w1":
            written.set()
            await gate.wait()
        return revision

    async with world() as there:
        worker = await connected(there, 0)
        presence = there.desks[0].presence
        monkeypatch.setattr(MemoryKeyValue, "update", slow)
        refreshing = asyncio.create_task(presence._refresh("w1", presence._own["w1"]))
        await written.wait()
        assert worker.held is not None
        await worker.held.gone()
        gate.set()
        await refreshing
        assert await presence.fresh("w1") is None
        await until(lambda: all(desk.presence.of("w1") is None for desk in there.desks))


async def test_a_worker_of_a_server_of_a_later_version_is_seen() -> None:
    """Whose entry says more than we know."""
    async with world() as there:
        await connected(there, 0)
        entry = there.desks[0].presence.of("w1")
        assert entry is not None
        said = json.loads(entry.model_dump_json()) | {"zone": "x", "worker_id": "w9"}
        await there.desks[0].presence._bucket.put("stream.w9", json.dumps(said).encode(), ttl=15)
        await until(lambda: all(desk.presence.of("w9") is not None for desk in there.desks))


# --- an end is stored, whoever is left to do so ------------------------------------------------------------


def deep(_: Dispatch) -> Result:
    return Result(payload_json=b"[" * 200_000)


def long(_: Dispatch) -> Result:
    return Result(error=Error(code="x" * 100_000, message="m" * 3_000_000))


@pytest.mark.parametrize("bad", [deep, long])
async def test_a_bad_result_is_an_end_like_any_other(monkeypatch: Patch, bad: Callable[[Dispatch], Result]) -> None:
    """Its server is gone, so whoever holds the stream stores it; and those of others after it."""
    monkeypatch.setattr(console_module, "UNCLAIMED_SECONDS", 0.05)
    async with world(3) as there:
        evil = await connected(there, 1, "evil", capabilities={"echo": 1})
        good = await connected(there, 1, "good", capabilities={"pythonExec": 1})
        first = await there.desks[0].commands.submit(wish("a", wait_ms=0), ADMIN)
        second = await there.desks[0].commands.submit(wish("b", "pythonExec", wait_ms=0), ADMIN)
        await there.desks[0].commands.close()
        result = bad(evil.dispatched[0])
        result.command_id = first.command_id
        await evil.say(result)
        failed = await there.desks[2].commands.get(first.command_id, ADMIN, wait_ms=5000)
        assert failed.status is CommandStatus.FAILED
        assert len(failed.model_dump_json()) < 10_000
        await good.say(echo(good.dispatched[0]))
        done = await there.desks[2].commands.get(second.command_id, ADMIN, wait_ms=5000)
        assert done.status is CommandStatus.SUCCEEDED


@pytest.mark.parametrize("wrong", [ValueError("a fault of ours"), BrokerUnavailableError("away")])
async def test_an_end_that_cannot_be_stored_keeps_no_other_from_it(monkeypatch: Patch, wrong: Exception) -> None:
    monkeypatch.setattr(console_module, "UNCLAIMED_SECONDS", 0.05)
    async with world(3) as there:
        worker = await connected(there, 1)
        ids = [(await there.desks[0].commands.submit(wish(one, wait_ms=0), ADMIN)).command_id for one in "ab"]
        await there.desks[0].commands.close()
        finisher = there.desks[1].console.parts.finisher
        finish, tried = finisher.finish_unclaimed, []

        async def sometimes(result: Result, worker_id: str, began: bytes) -> None:
            tried.append(result.command_id)
            if result.command_id == ids[0] and tried.count(ids[0]) < 3:
                raise wrong
            await finish(result, worker_id, began)

        monkeypatch.setattr(finisher, "finish_unclaimed", sometimes)
        for dispatch in worker.dispatched:
            await worker.say(echo(dispatch))
        await worker.until(lambda: worker.acknowledged == [ids[1], ids[0]])
        for command_id in ids:
            assert (await there.desks[2].commands.get(command_id, ADMIN)).status is CommandStatus.SUCCEEDED


@pytest.mark.parametrize("key", ["k", None], ids=["with a key", "without"])
async def test_the_end_of_a_command_that_was_never_written_down_is_stored(monkeypatch: Patch, key: str | None) -> None:
    """The server that it came to died between the worker's taking it and its record."""
    monkeypatch.setattr(console_module, "UNCLAIMED_SECONDS", 0.05)
    async with world() as there:
        worker = await connected(there, 1)
        finisher = there.desks[0].commands._parts.finisher
        monkeypatch.setattr(finisher, "change" if key else "create", never)
        submitted = asyncio.create_task(there.desks[0].commands.submit(wish("x", idempotency_key=key), ADMIN))
        await worker.until(lambda: bool(worker.dispatched))
        await there.desks[0].commands.close()
        with pytest.raises(DrainingError):
            await submitted
        command_id = worker.dispatched[0].command_id
        await worker.say(echo(worker.dispatched[0]))
        await worker.until(lambda: worker.acknowledged == [command_id])
        other = there.desks[1].commands
        done = await other.get(command_id, ADMIN)
        assert (done.status, done.result_json, done.worker) == (CommandStatus.SUCCEEDED, '"x"', "w1")
        if key:
            again = await other.submit(wish("x", idempotency_key=key), ADMIN)
            assert (again.command_id, again.result_json) == (command_id, '"x"')


@pytest.mark.parametrize("for_ever", [True, False], ids=["for ever", "until it is stored"])
async def test_a_server_that_hears_nothing_finds_the_end_where_it_is_stored(
    monkeypatch: Patch, *, for_ever: bool
) -> None:
    """Its call arrives, no answer does. The other server stores the end, and the worker forgets it. If the command is
    then said again, it is not done again."""
    for module, name, value in (
        (console_module, "UNCLAIMED_SECONDS", 0.05),
        (placing_module, "AGAIN_SECONDS", 0.1),
        (placing_module, "OFFER_SECONDS", 0.5),
        (journey_module, "LOOK_SECONDS", 0.05),
        (journey_module, "STORE_SECONDS", 0.1),
    ):
        monkeypatch.setattr(module, name, value)
    async with stormy_world() as (there, storms):
        worker = await connected(there, 1, answers=echo)
        storms[1].loss = 1.0
        submitted = asyncio.create_task(there.desks[0].commands.submit(wish("x"), ADMIN))
        await worker.until(lambda: bool(worker.acknowledged))
        storms[1].loss = 1.0 if for_ever else 0.0
        done = await submitted
        assert (done.status, done.result_json) == (CommandStatus.SUCCEEDED, '"x"')
        assert len(worker.dispatched) == 1
        assert not +there.desks[1].console.streams["w1"].counts


async def test_who_does_not_hear_of_the_end_finds_it_where_it_is_stored(monkeypatch: Patch) -> None:
    """The command was confirmed; its result gets lost on the way, and is stored by the other server."""
    monkeypatch.setattr(console_module, "UNCLAIMED_SECONDS", 0.05)
    monkeypatch.setattr(journey_module, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(journey_module, "STORE_SECONDS", 0.1)
    async with stormy_world() as (there, storms):
        worker = await connected(there, 1)
        running = await there.desks[0].commands.submit(wish("x", wait_ms=0), ADMIN)
        storms[1].loss = 1.0
        await worker.say(echo(worker.dispatched[0]))
        await worker.until(lambda: bool(worker.acknowledged))
        await until(lambda: not there.desks[0].commands._under_way)
        assert (await there.desks[0].commands.get(running.command_id, ADMIN)).result_json == '"x"'


async def test_a_command_that_cannot_be_written_down_is_ended(monkeypatch: Patch) -> None:
    """Its caller is told that it failed: so it must not go on."""
    async with world() as there:
        worker = await connected(there, 1)
        monkeypatch.setattr(there.desks[0].commands._parts.finisher, "create", unavailable)
        with pytest.raises(BrokerUnavailableError):
            await there.desks[0].commands.submit(wish("x"), ADMIN)
        await worker.until(lambda: worker.cancelled == [worker.dispatched[0].command_id])


# --- cancelling, keys, shutting down -----------------------------------------------------------------------


async def test_a_command_that_waits_is_cancelled_at_another_server() -> None:
    async with world() as there:
        (worker,) = await busy(there, 0, "w1")
        waiting = asyncio.create_task(there.desks[0].commands.submit(wish("x", idempotency_key="k"), ADMIN))
        mine = there.desks[0].commands._under_way
        await until(lambda: len(mine) == 2)
        command_id = next(one for one in mine if one != worker.dispatched[0].command_id)
        cancelled = await there.desks[1].commands.cancel(command_id, ADMIN)
        with pytest.raises(CommandFailedError) as error:
            await waiting
        assert (cancelled.status, error.value.reason) == (CommandStatus.CANCELLED, "deadline_exceeded")
        await worker.say(echo(worker.dispatched[0]))
        await worker.until(lambda: bool(worker.acknowledged))
        assert with_payload(worker, "x") == []


async def test_who_shuts_down_says_so() -> None:
    async with world() as there:
        worker = await connected(there, 1)
        submitted = asyncio.create_task(there.desks[0].commands.submit(wish("x"), ADMIN))
        await worker.until(lambda: bool(worker.dispatched))
        await there.desks[0].commands.close()
        with pytest.raises(DrainingError):
            await submitted


async def test_a_key_under_which_nothing_ran_may_be_used_again() -> None:
    """Nobody took it: the caller was told to try again, and does."""
    async with world() as there:
        with pytest.raises(CommandFailedError) as nobody:
            await there.desks[0].commands.submit(wish("a", idempotency_key="k", wait_ms=50), ADMIN)
        worker = await connected(there, 0, capabilities={"echo": 1})
        await there.desks[0].commands.submit(wish("busy", wait_ms=0), ADMIN)
        with pytest.raises(CommandFailedError) as full:
            await there.desks[1].commands.submit(wish("a", idempotency_key="k", wait_ms=50), ADMIN)
        await worker.say(echo(worker.dispatched[0]))
        worker.answers = echo
        done = await there.desks[1].commands.submit(wish("a", idempotency_key="k"), ADMIN)
        assert (nobody.value.reason, full.value.reason) == ("no_worker", "no_capacity")
        assert (done.status, len(with_payload(worker, "a"))) == (CommandStatus.SUCCEEDED, 1)


async def test_who_asked_under_the_same_key_is_told_that_nobody_took_it() -> None:
    """Two ask at once; nobody has room. Both are told so, and the key is free again."""
    async with world() as there:
        wished = wish("a", idempotency_key="k", wait_ms=300)
        asking = (there.desks[number].commands.submit(wished, ADMIN) for number in (0, 1))
        ends = await asyncio.gather(*asking, return_exceptions=True)
        (known,) = [one for one in ends if isinstance(one, Record)]
        (told,) = [one for one in ends if isinstance(one, CommandFailedError)]
        assert told.reason == "no_worker"
        ended = await there.desks[0].commands.get(known.command_id, ADMIN)
        assert (ended.status, ended.reason) == (CommandStatus.FAILED, "no_worker")
        await connected(there, 0, answers=echo)
        again = await there.desks[1].commands.submit(wished, ADMIN)
        assert (again.status, again.command_id != known.command_id) == (CommandStatus.SUCCEEDED, True)


async def test_nobody_is_told_of_a_command_that_cannot_be_asked_about(monkeypatch: Patch) -> None:
    """It ended at once, and its end cannot be stored for a while: there is no record yet under its name."""
    monkeypatch.setattr(journey_module, "STORE_AGAIN_SECONDS", 0.05)
    async with world() as there:
        await connected(there, 1, answers=echo)
        finisher, tries = there.desks[0].commands._parts.finisher, []
        create = finisher.create

        async def at_last(record: Record) -> int:
            tries.append(record)
            return await (create(record) if len(tries) > 3 else unavailable())

        monkeypatch.setattr(finisher, "create", at_last)
        done = await there.desks[0].commands.submit(wish("x", wait_ms=50), ADMIN)
        assert (await there.desks[1].commands.get(done.command_id, ADMIN)).status is CommandStatus.SUCCEEDED


# --- waiting is cheap and has an end -----------------------------------------------------------------------


async def test_who_waits_for_room_does_not_ask_all_the_time() -> None:
    """Fifty commands wait for eight workers that are full, and not each of them asks each worker again and again."""
    async with stormy_world() as (there, storms):
        await busy(there, 1, *(f"w{number}" for number in range(8)))
        before = len(storms[0].sent)
        wishes = [wish("x", wait_ms=900) for _ in range(50)]
        ends = await asyncio.gather(
            *(there.desks[0].commands.submit(one, ADMIN) for one in wishes), return_exceptions=True
        )
        assert {end.reason for end in ends if isinstance(end, CommandFailedError)} == {"no_capacity"}
        assert len(storms[0].sent) - before <= 50 * 8 * 1.5


async def test_what_cannot_be_sent_is_not_kept_again_and_again(monkeypatch: Patch) -> None:
    """The broker takes nothing; forty callers upload. What waits is what they hold themselves."""
    monkeypatch.setattr(placing_module, "AGAIN_SECONDS", 0.02)
    async with world() as there:
        worker = await there.worker("w1")
        await worker.connect(there.desks[1], sessions=[MINE])
        await until(lambda: there.desks[0].presence.of("w1") is not None)
        exchange, stuck = there.desks[0].exchange, []

        async def send(address: str, data: bytes) -> None:
            stuck.append(len(data))
            await never()

        monkeypatch.setattr(exchange._broker.switchboard, "send", send)
        asked = wire.SendInput(session_id="s", command_id="c", offset=0, eof=False)
        uploads = [
            asyncio.create_task(there.desks[0].sandboxes.input(ADMIN, asked, bytes(PIECE_BYTES))) for _ in range(40)
        ]

        def kept() -> int:
            return sum(len(data) for _, data in exchange._out)

        bound = 40 * PIECE_BYTES
        try:
            await until(lambda: len(stuck) == 40 or kept() > bound)
            assert kept() <= bound
        finally:
            for task in uploads:
                task.cancel()
            await asyncio.gather(*uploads, return_exceptions=True)


async def test_submitting_ends_where_nobody_answers(monkeypatch: Patch) -> None:
    """The server that holds the stream hears nothing. A command may be running for all one knows; a call is made
    again by whoever wants that."""
    monkeypatch.setattr(placing_module, "AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(placing_module, "OFFER_SECONDS", 0.2)
    async with stormy_world() as (there, storms):
        worker = await there.worker("w1")
        await worker.connect(there.desks[1], sessions=[MINE])
        await until(lambda: there.desks[0].presence.of("w1") is not None)
        storms[0].loss = 1.0
        async with asyncio.timeout(60):
            running = await there.desks[0].commands.submit(wish("x", wait_ms=0), ADMIN)
        assert running.status is CommandStatus.RUNNING


async def test_a_new_session_finds_the_one_worker_that_has_room() -> None:
    def made(dispatch: Dispatch) -> Result:
        said = VIEW.model_copy(update={"session_id": json.loads(dispatch.payload_json)["session_id"]})
        return Result(command_id=dispatch.command_id, payload_json=said.model_dump_json().encode())

    async with world() as there:
        for number in range(8):
            await connected(there, 0, f"w{number}", answers=failing("no_capacity"))
        await connected(there, 1, "free", answers=made)
        wanted = wire.CreateSession(session_id="s", image="a", lease_ttl_sec=60)
        assert (await there.desks[0].sandboxes.create(ADMIN, wanted)).worker == "free"


async def test_who_does_not_wait_finds_room_wherever_there_is_some() -> None:
    async with world() as there:
        workers = [await connected(there, 0, f"w{number}", capabilities={"echo": 1}) for number in range(4)]
        for _ in workers:
            await there.desks[0].commands.submit(wish("a", wait_ms=0), ADMIN)
        assert [len(one.dispatched) for one in workers] == [1, 1, 1, 1]
