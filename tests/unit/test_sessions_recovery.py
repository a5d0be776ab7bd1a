"""A worker dies, and the next one goes on: nothing runs twice, nothing is lost, nothing is left behind."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fumehood.errors import EngineUnavailableError, LedgerError, SandboxError
from fumehood.sandbox.driver import Handle
from fumehood.sandbox.fake import FakeDriver, FakeEngine
from fumehood.sandbox.fake_machine import Box
from fumehood.sandbox.sessions import sessions as module
from fumehood.sandbox.sessions.store import FILE, SessionStore
from fumehood.sandbox.sessions.values import SessionName
from fumehood.sandbox.spec import End, SandboxSpec
from fumehood.wire.console.codes import PIECE_BYTES, Reason
from tests.unit.session_world import MINUTE, NAME, World, command, refusal, rounds, wish
from tests.waiting import past, until


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_commands_go_on_with_their_whole_output(world: World) -> None:
    async with world.life() as sessions:
        made = await sessions.create(wish(env={"A": "b"}))
        await sessions.start(NAME, command("ticks", "20", "0.01", command_id="c1"))
        await sessions.start(NAME, command("cat", command_id="c2", stdin=True))
        await sessions.start(NAME, command("echo", "before", command_id="c0"))
        await sessions.ended("c0", 120)
        await sessions.send_input("c2", 0, b"first ")
        await sessions.output("c1", 0, 0, 100, 5)
    async with world.life() as sessions:
        assert sessions.get(NAME) == made.__class__(**{**_fields(made), "running": 2})
        assert [facts.command_id for facts in sessions.processes(NAME)] == ["c1", "c2", "c0"]
        assert (await sessions.captured("c0")).stdout == b"before\n"
        assert sessions.process("c2").stdin_bytes == 6
        assert await sessions.send_input("c2", 6, b"second", eof=True) == 12
        assert (await sessions.ended("c1", 120)).outcome is not None
        assert (await sessions.captured("c1")).stdout == b"".join(f"tick {n}\n".encode() for n in range(20))
        assert (await sessions.ended("c2", 120)).outcome is not None
        assert (await sessions.captured("c2")).stdout == b"first second"
        begun = await sessions.start(NAME, command("env"))
        await sessions.ended(begun.command_id, 120)
        assert b"A=b\n" in (await sessions.captured(begun.command_id)).stdout


async def test_a_reader_that_was_cut_off_loses_nothing(world: World) -> None:
    """Far more than is kept is printed; its reader comes back a moment after the next process."""
    size = 24 * 1024 * 1024
    data = b""
    async with world.life() as sessions:
        await sessions.create(wish())
        await sessions.start(NAME, command("flood", str(size), command_id="c1"))
        for _ in range(8):
            pieces, _ = await sessions.output("c1", len(data), 0, PIECE_BYTES, 5)
            data += b"".join(piece.data for piece in pieces)
    async with world.life() as sessions:
        await past(0.2)
        ended = None
        while ended is None:
            pieces, ended = await sessions.output("c1", len(data), 0, PIECE_BYTES, 5)
            for piece in pieces:
                assert piece.offset == len(data)
                data += piece.data
    assert len(data) == size


def _fields(value: object) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}  # type: ignore[attr-defined]


async def test_leases_survive_and_run_out_meanwhile(world: World) -> None:
    async with world.life() as sessions:
        await sessions.create(wish())
        longer = await sessions.extend(NAME, 10 * MINUTE)
    async with world.life() as sessions:
        assert sessions.get(NAME).lease_expires_ms == longer.lease_expires_ms
    world.clock.pass_ms(10 * MINUTE)
    async with world.life() as sessions:
        assert refusal(lambda: sessions.get(NAME)) == Reason.SESSION_NOT_FOUND
        await until(lambda: not world.engine.boxes)


async def test_a_session_whose_sandbox_is_gone_is_dropped(world: World) -> None:
    async with world.life() as sessions:
        await sessions.create(wish())
        await sessions.start(NAME, command("sleep", "60", command_id="c1"))
        await sessions.start(NAME, command("echo", "x", command_id="c2"))
        await sessions.ended("c2", 120)
    for box in list(world.engine.boxes.values()):
        await world.driver().destroy(box.handle)
    async with world.life() as sessions:
        assert sessions.list() == []
        ended = sessions.process("c1")
        assert ended.outcome is not None
        assert (ended.outcome.end, ended.detail) == (
            End.SANDBOX_LOST,
            "the session was gone when the worker came back",
        )
        other = sessions.process("c2").outcome
        assert other is not None
        assert other.end is End.EXITED
    async with world.life() as sessions:
        assert sessions.process("c1") == ended
        await sessions.create(wish())


async def test_a_sandbox_that_ended_meanwhile_is_removed(world: World) -> None:
    async with world.life() as sessions:
        await sessions.create(wish())
    for box in world.engine.boxes.values():
        world.engine.end(box.handle)
    async with world.life() as sessions:
        assert sessions.list() == []
        await until(lambda: not world.engine.boxes)
        await sessions.create(wish())


async def test_nobody_comes_between_a_command_and_its_session(world: World) -> None:
    async with world.life() as sessions:
        await sessions.create(wish())
        with sessions.exclusive(NAME, "c1"):
            await sessions.start(NAME, command("sleep", "60", command_id="c1"))
            await sessions.start(NAME, command("sleep", "60", command_id="c2"))
    world.clock.pass_ms(MINUTE)
    async with world.life() as sessions:
        await rounds(sessions)
        assert sessions.process("c1").outcome is None  # not reaped: a command has it
        assert refusal(lambda: sessions.exclusive(NAME, "c3").__enter__()) == Reason.SESSION_NOT_FOUND
        with sessions.exclusive(NAME, "c1"):
            await sessions.signal("c1", signal.SIGKILL)
            await sessions.ended("c1", 120)
        await until(lambda: not world.engine.boxes)


async def test_another_command_finds_the_session_busy(world: World) -> None:
    async with world.life() as sessions:
        await sessions.create(wish())
        with sessions.exclusive(NAME, "c1"):
            await sessions.start(NAME, command("sleep", "60", command_id="c1"))
    async with world.life() as sessions:
        assert refusal(lambda: sessions.exclusive(NAME, "c3").__enter__()) == Reason.SESSION_BUSY


async def test_an_engine_that_is_away_for_a_moment_is_waited_for(world: World) -> None:
    class Away(FakeDriver):
        lists = attaches = 2

        async def list(self, labels: Any) -> list[Handle]:
            self.lists -= 1
            if self.lists > 0:
                raise EngineUnavailableError("away")
            return await super().list(labels)

        async def attach(self, handle: Handle) -> None:
            self.attaches -= 1
            if self.attaches > 0:
                raise EngineUnavailableError("away")
            await super().attach(handle)

    async with world.life() as sessions:
        await sessions.create(wish())
    async with world.life(Away(world.engine)) as sessions:
        assert sessions.get(NAME).name == NAME


# --- a worker that lost its memory -------------------------------------------------------------------------


async def test_a_sandbox_without_a_lease_is_removed_once_the_leases_are_heard(world: World, tmp_path: Path) -> None:
    other = SessionName("acme", "known")
    once = SessionName("acme", "once")
    async with world.life() as sessions:
        await sessions.create(wish())
        made = await sessions.create(wish(other))
        await sessions.create(wish(once, once=True))
        await sessions.start(other, command("sleep", "60"))
    (world.folder / FILE).unlink()
    async with world.life() as sessions:
        assert sessions.list() == []
        await rounds(sessions)
        assert len(world.engine.boxes) == 3  # nobody knows yet whose they are
        expires = world.clock.now_ms + 5 * MINUTE
        await sessions.leases({other: expires, once: expires, NAME: world.clock.now_ms})
        (adopted,) = sessions.list()
        observed = {"isolation": made.evidence["isolation"]}  # why its image may run was written in the lost file
        assert _fields(adopted) == _fields(made) | {"lease_expires_ms": expires, "evidence": observed}
        assert len(world.engine.boxes) == 1
        begun = await sessions.start(other, command("echo", "alive"))
        await sessions.ended(begun.command_id, 120)
        assert (await sessions.captured(begun.command_id)).stdout == b"alive\n"
    async with world.life() as sessions:
        assert sessions.get(other) == adopted


async def test_sandboxes_that_are_no_sessions_are_left_alone(world: World) -> None:
    driver = world.driver()
    async with world.life() as sessions:
        await sessions.create(wish())
        (box,) = world.engine.boxes.values()
    spec = box.spec
    foreign = SandboxSpec(sandbox_id="job", image=spec.image, labels={"fumehood.job_id": "j1"})
    await driver.start(await driver.prepare(foreign))
    async with world.life() as sessions:
        await sessions.leases({})
        assert len(world.engine.boxes) == 2


# --- every place to die ------------------------------------------------------------------------------------


class DeadError(SandboxError, LedgerError):
    """The process is no more: nothing that it still tries has an effect."""


class Killer:
    """Stops the world at the n-th step of one life."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.dead = asyncio.Event()

    async def step(self) -> None:
        if self.dead.is_set():
            raise DeadError("dead")
        self.left -= 1
        if self.left == 0:
            self.dead.set()
            await asyncio.Event().wait()


def mortal(part: object, killer: Killer, names: tuple[str, ...]) -> None:
    """Each call of a part can be the last thing that happens: before it does anything, or before it is known."""
    for name in names:
        real = getattr(part, name)

        async def call(*args: Any, _real: Callable[..., Any] = real, **kwargs: Any) -> Any:
            await killer.step()
            result = await _real(*args, **kwargs)
            await killer.step()
            return result

        setattr(part, name, call)


class Remembering(FakeEngine):
    """Knows all sandboxes that ever were."""

    def __init__(self) -> None:
        super().__init__()
        self.ever: list[Box] = []

    def make(self, spec: SandboxSpec, labels: Any) -> Handle:
        handle = super().make(spec, labels)
        self.ever.append(self.boxes[handle.engine_id])
        return handle


DRIVER = ("prepare", "start", "inspect", "next_id", "run", "settle", "destroy", "disown", "attach", "list")
STORE = ("add_session", "mark_there", "add_process", "end_process", "mark_going", "drop_session", "forget_processes")


async def work(sessions: module.Sessions) -> bytes:
    """What a handler does, and does again in the next life: find the command, or begin it; then clear up."""
    if not _known(sessions, "c1"):
        await sessions.create(wish())
        await sessions.start(NAME, command("ticks", "3", "0.001", command_id="c1"))
    ended = await sessions.ended("c1", 120)
    assert ended.outcome is not None
    assert ended.outcome.end is End.EXITED
    printed = (await sessions.captured("c1")).stdout
    await sessions.remove(NAME)
    return printed


def _known(sessions: module.Sessions, command_id: str) -> bool:
    return sessions._lives.commands.all.find(command_id) is not None


async def lives(world: World, at: int) -> bool:
    """One life that dies at a step, and one that does not. Whether the first one came to its end."""
    killer = Killer(at)
    store = await SessionStore.open(world.folder)
    driver = world.driver()
    mortal(driver, killer, DRIVER)
    mortal(store, killer, STORE)

    async def life() -> None:
        async with world.opened(driver, store) as sessions:
            await work(sessions)

    living, dying = asyncio.create_task(life()), asyncio.create_task(killer.dead.wait())
    await asyncio.wait({living, dying}, return_when=asyncio.FIRST_COMPLETED)
    finished = not dying.done()
    for task in (living, dying):
        task.cancel()
    await asyncio.wait({living, dying})
    await store.close()
    async with world.life() as sessions:
        assert await work(sessions) == b"tick 0\ntick 1\ntick 2\n"
    return finished


async def test_wherever_it_dies_a_command_runs_once_and_whole(tmp_path: Path) -> None:
    for at in range(1, 100):
        world = World(tmp_path / str(at), engine=Remembering())
        finished = await lives(world, at)
        assert isinstance(world.engine, Remembering)
        begun = [job.command.argv for box in world.engine.ever for job in box.jobs.values()]
        assert (at, begun) == (at, [("ticks", "3", "0.001")])
        assert (at, world.engine.boxes) == (at, {})
        if finished:
            assert at > 15
            return
    raise AssertionError("it never came to an end")
