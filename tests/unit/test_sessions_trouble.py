"""Sessions when things go wrong half way: the truth is told, nothing is stuck, and the janitor goes on."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import threading
from collections.abc import Collection
from pathlib import Path
from typing import ClassVar

import pytest

from fumehood.errors import CommandRefusedError, EngineUnavailableError, LedgerError
from fumehood.sandbox.driver import Handle, Inspection, Sink
from fumehood.sandbox.fake import FakeDriver
from fumehood.sandbox.sessions import janitor as janitor_module
from fumehood.sandbox.sessions.labels import LABEL_ONCE
from fumehood.sandbox.sessions.process import SIDE_EFFECT
from fumehood.sandbox.sessions.store import FILE, SessionStore
from fumehood.sandbox.sessions.values import SessionName
from fumehood.sandbox.spec import Command, End, Outcome
from fumehood.wire.console.codes import Reason
from tests.unit.session_world import MINUTE, NAME, World, command, refusal, rounds, wish
from tests.waiting import turns, until

NAMES = [SessionName("acme", f"s{number}") for number in range(3)]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


class Holding(FakeDriver):
    """Removes nothing before it is told to."""

    def __init__(self, world: World) -> None:
        super().__init__(world.engine)
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def destroy(self, handle: Handle) -> None:
        self.asked.set()
        await self.go_on.wait()
        await super().destroy(handle)


# --- what is told when -------------------------------------------------------------------------------------


async def killed_while_removed(world: World) -> None:
    """A life that died between the decision that a session shall go and its end."""
    driver = Holding(world)
    async with world.life(driver) as sessions:
        await sessions.create(wish())
        with sessions.exclusive(NAME, "c1"):
            await sessions.start(NAME, command("ignores", command_id="c1"))
            removing = asyncio.create_task(sessions.remove(NAME))
            await driver.asked.wait()
    await asyncio.wait({removing})


async def test_commands_have_no_end_before_their_doomed_sandbox_is_gone(world: World) -> None:
    await killed_while_removed(world)
    driver = Holding(world)
    async with world.life(driver) as sessions:
        await driver.asked.wait()
        assert sessions.process("c1").outcome is None
        assert refusal(lambda: sessions.get(NAME)) == Reason.SESSION_NOT_FOUND
        assert refusal(lambda: sessions.exclusive(NAME, "c2").__enter__()) == Reason.SESSION_NOT_FOUND
        with sessions.exclusive(NAME, "c1"):  # its own command may come back, and wait
            assert (await sessions.ended("c1", 0.05)).outcome is None
            assert len(world.engine.boxes) == 1
            driver.go_on.set()
            ended = await sessions.ended("c1", 120)
        assert world.engine.boxes == {}
        assert ended.outcome is not None
        assert (ended.outcome.end, ended.detail) == (End.SANDBOX_LOST, "the session was removed")


async def test_a_removal_that_an_earlier_life_began_can_be_waited_for(world: World) -> None:
    await killed_while_removed(world)
    driver = Holding(world)
    async with world.life(driver) as sessions:
        removing = asyncio.create_task(sessions.remove(NAME))
        making = asyncio.create_task(sessions.create(wish()))
        await driver.asked.wait()
        assert not (await asyncio.wait({removing, making}, timeout=0.05))[0]
        driver.go_on.set()
        await removing
        assert sessions.process("c1").outcome is not None
        assert (await making).name == NAME


async def test_why_a_session_went_is_told_also_by_the_next_life(world: World) -> None:
    driver = Holding(world)
    async with world.life(driver) as sessions:
        await sessions.create(wish())
        await sessions.start(NAME, command("sleep", "60", command_id="c1"))
        world.clock.pass_ms(MINUTE)
        await driver.asked.wait()
    async with world.life() as sessions:
        assert (await sessions.ended("c1", 120)).detail == "the session's lease was over"


async def test_a_lost_sandbox_is_gone_before_its_commands_are_told_so(world: World) -> None:
    driver = Holding(world)
    async with world.life(driver) as sessions:
        await sessions.create(wish())
        await sessions.start(NAME, command("sleep", "60", command_id="c1"))
        (box,) = world.engine.boxes.values()
        world.engine.end(box.handle)
        await driver.asked.wait()
        assert (await sessions.ended("c1", 0.05)).outcome is None
        driver.go_on.set()
        ended = await sessions.ended("c1", 120)
        assert (world.engine.boxes, ended.detail) == ({}, "the sandbox ended with 137")


async def test_a_command_of_an_earlier_life_is_never_said_not_to_have_begun(world: World) -> None:
    """Nor to have ended, as long as it may run."""

    class Refuses(Holding):
        async def run(self, handle: Handle, command: Command, sink: Sink, *, command_id: int) -> Outcome:
            raise CommandRefusedError("waited for already")

    async with world.life() as sessions:
        await sessions.create(wish())
        for name in ("c1", "c2"):
            await sessions.start(NAME, command("ticks", "500", "0.1", command_id=name))
            await sessions.output(name, 0, 0, 100, 5)
    driver = Refuses(world)
    async with world.life(driver) as sessions:
        await driver.asked.wait()
        assert [sessions.process(name).outcome for name in ("c1", "c2")] == [None, None]
        driver.go_on.set()
        for name in ("c1", "c2"):
            ended = await sessions.ended(name, 120)
            assert ended.outcome is not None
            assert (ended.outcome.end, world.engine.boxes) == (End.SANDBOX_LOST, {})


async def test_who_was_signalled_on_wish_is_known_to_the_next_life(world: World) -> None:
    async with world.life() as sessions:
        await sessions.create(wish())
        for name in ("wanted", "beside"):
            await sessions.start(NAME, command("ignores", command_id=name))
        await sessions.signal("wanted", signal.SIGTERM)
    async with world.life() as sessions:
        (box,) = world.engine.boxes.values()
        for job in box.jobs.values():
            job.signal(signal.SIGKILL)  # as it is when the time of another command is over
        assert (await sessions.ended("wanted", 120)).detail == ""
        assert (await sessions.ended("beside", 120)).detail == SIDE_EFFECT


async def test_nobody_without_a_name_passes_a_command_of_an_earlier_life(world: World) -> None:
    async with world.life() as sessions:
        await sessions.create(wish())
        with sessions.exclusive(NAME, "c1"):
            await sessions.start(NAME, command("sleep", "60", command_id="c1"))
    async with world.life() as sessions:
        assert refusal(lambda: sessions.exclusive(NAME).__enter__()) == Reason.SESSION_BUSY


# --- clocks ------------------------------------------------------------------------------------------------


async def test_a_wall_clock_that_is_set_ends_no_session_and_keeps_none(world: World) -> None:
    async with world.life() as sessions:
        await sessions.create(wish(lease_ms=30 * MINUTE))
        for jump in (60 * MINUTE, -120 * MINUTE):
            world.clock.now_ms += jump
            await rounds(sessions)
            assert len(sessions.list()) == 1
        world.clock.pass_ms(30 * MINUTE)
        await until(lambda: not world.engine.boxes)


# --- the store ---------------------------------------------------------------------------------------------


async def test_a_session_that_is_removed_while_its_row_is_written_leaves_its_name_free(world: World) -> None:
    store = await SessionStore.open(world.folder)
    real, writing, gate = store._write, threading.Event(), threading.Event()

    def slow(sql: str, values: tuple[object, ...]) -> int:
        if sql.startswith("INSERT INTO sessions"):
            writing.set()
            assert gate.wait(120)
        return real(sql, values)

    async with world.opened(world.driver(), store) as sessions:
        store._write = slow  # type: ignore[method-assign]
        making = asyncio.create_task(sessions.create(wish()))
        await until(writing.is_set)
        removing = asyncio.create_task(sessions.remove(NAME))
        await turns()
        gate.set()
        await asyncio.wait({making, removing})
        assert removing.exception() is None
        store._write = real  # type: ignore[method-assign]
        assert (await sessions.create(wish())).name == NAME
        assert len(world.engine.boxes) == 1
    await store.close()


async def test_leaving_takes_no_time_when_the_disk_is_full(world: World) -> None:
    """Ends that cannot be stored are the next life's to tell. The worst moment: the sandbox has just gone."""

    class Stopping(FakeDriver):
        async def destroy(self, handle: Handle) -> None:
            leave.set_result(None)  # whoever waits for it comes next, before the command hears of its end
            await super().destroy(handle)

    leave = asyncio.get_running_loop().create_future()
    store = await SessionStore.open(world.folder)
    real = store._write

    def full(sql: str, values: tuple[object, ...]) -> int:
        raise sqlite3.OperationalError("database or disk is full")

    async with asyncio.timeout(60):
        async with world.opened(Stopping(world.engine), store) as sessions:
            await sessions.create(wish())
            await sessions.start(NAME, command("sleep", "60", command_id="c1"))
            await sessions.start(NAME, command("exit", "0", command_id="c2"))
            store._write = full  # type: ignore[method-assign]
            removing = asyncio.create_task(sessions.remove(NAME))
            await leave
        await asyncio.wait({removing})
        store._write = real  # type: ignore[method-assign]
        await store.close()
    async with world.life() as sessions:
        for name in ("c1", "c2"):
            assert sessions.process(name).outcome is not None


async def test_leaving_takes_no_time_when_the_engine_does_not_answer(world: World) -> None:
    driver = Holding(world)
    async with asyncio.timeout(60):
        async with world.life(driver) as sessions:
            await sessions.create(wish())
            removing = asyncio.create_task(sessions.remove(NAME))
            await driver.asked.wait()
    assert removing.done()


# --- a worker that lost its memory -------------------------------------------------------------------------


class Slow(FakeDriver):
    """Takes its time to look at a sandbox, until it is told not to."""

    def __init__(self, world: World) -> None:
        super().__init__(world.engine)
        self.looking, self.go_on = asyncio.Event(), asyncio.Event()

    async def inspect(self, handle: Handle) -> Inspection:
        self.looking.set()
        await self.go_on.wait()
        return await super().inspect(handle)


async def forgotten(world: World) -> dict[SessionName, int]:
    """Sessions of a worker that lost its memory; what the servers know of them."""
    async with world.life() as sessions:
        for name in NAMES:
            await sessions.create(wish(name))
    (world.folder / FILE).unlink()
    return dict.fromkeys(NAMES, world.clock.now_ms + MINUTE)


async def test_whoever_tells_the_leases_may_go_before_all_are_taken_over(world: World) -> None:
    known, driver = await forgotten(world), Slow(world)
    async with world.life(driver) as sessions:
        telling = asyncio.create_task(sessions.leases(known))
        await driver.looking.wait()
        telling.cancel()  # the stream breaks
        await asyncio.wait({telling})
        driver.go_on.set()
        await sessions.leases(known)  # the next one's hello
        assert [facts.name for facts in sessions.list()] == NAMES
    async with world.life() as sessions:
        assert len(sessions.list()) == 3


async def test_sandboxes_have_an_owner_before_anybody_is_heard(world: World) -> None:
    """Without one they would end soon."""

    class Owning(FakeDriver):
        attached: ClassVar[set[str]] = set()

        async def attach(self, handle: Handle) -> None:
            self.attached.add(handle.sandbox_id)
            await super().attach(handle)

    await forgotten(world)
    async with world.life(Owning(world.engine)):
        await until(lambda: len(Owning.attached) == 3, seconds=2.0)


async def test_nothing_is_swept_that_is_being_taken_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(janitor_module, "SWEEP_SECONDS", 0.01)
    known, driver = await forgotten(world), Slow(world)
    async with world.life(driver) as sessions:
        telling = asyncio.create_task(sessions.leases(known))
        await driver.looking.wait()
        await rounds(sessions)
        driver.go_on.set()
        await telling
        assert len(sessions.list()) == len(world.engine.boxes) == 3


async def test_one_that_cannot_be_taken_over_yet_is_tried_again(world: World) -> None:
    class Away(FakeDriver):
        away = 3

        async def disown(self, handle: Handle, keep: Collection[int]) -> None:
            self.away -= 1
            if self.away >= 0:
                raise EngineUnavailableError("away")
            await super().disown(handle, keep)

    known = await forgotten(world)
    async with world.life(Away(world.engine)) as sessions:
        await sessions.leases(known)
        await until(lambda: len(sessions.list()) == 3)


async def test_a_session_is_waited_for_while_it_is_taken_over(world: World) -> None:
    known, driver = await forgotten(world), Slow(world)
    before = {box.handle.sandbox_id for box in world.engine.boxes.values()}
    async with world.life(driver) as sessions:
        telling = asyncio.create_task(sessions.leases(known))
        await driver.looking.wait()
        making = asyncio.create_task(sessions.create(wish(NAMES[0])))
        removing = asyncio.create_task(sessions.remove(NAMES[1]))
        await removing  # nobody has looked at that one yet
        driver.go_on.set()
        assert (await making).sandbox_id in before
        await telling
        assert {facts.name for facts in sessions.list()} == {NAMES[0], NAMES[2]}
        assert len(world.engine.boxes) == 2


async def test_one_that_is_removed_while_it_is_taken_over_is_gone(world: World) -> None:
    known, driver = await forgotten(world), Slow(world)
    async with world.life(driver) as sessions:
        telling = asyncio.create_task(sessions.leases(known))
        await driver.looking.wait()
        await sessions.remove(NAMES[0])
        assert len(world.engine.boxes) == 2
        driver.go_on.set()
        await telling
        await sessions.leases(known)
        assert {facts.name for facts in sessions.list()} == set(NAMES[1:])


async def test_a_label_of_a_wish_does_not_make_a_session_one_for_a_single_command(world: World) -> None:
    async with world.life() as sessions:
        await sessions.create(wish(labels={LABEL_ONCE: "true"}))
    (world.folder / FILE).unlink()
    async with world.life() as sessions:
        await sessions.leases({NAME: world.clock.now_ms + MINUTE})
        assert [facts.name for facts in sessions.list()] == [NAME]


# --- the janitor -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [LedgerError("the disk is full"), KeyError("ghost")])
async def test_the_janitor_goes_on_whatever_happens(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async with world.life() as sessions:
        tidied = 0

        async def broken() -> None:
            nonlocal tidied
            tidied += 1
            raise error

        monkeypatch.setattr(sessions._lives.commands.all, "tidy", broken)
        await until(lambda: tidied >= 3)
        monkeypatch.setattr(janitor_module.Janitor, "_reap", lambda _: 1 / 0)
        await sessions.create(wish())
        world.clock.pass_ms(MINUTE)
        await rounds(sessions)
        monkeypatch.undo()
        await until(lambda: not world.engine.boxes)
