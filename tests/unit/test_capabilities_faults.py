"""Commands that meet another's id, a full disk, a lost sandbox or lost output: nothing is told that is not so."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fumehood.errors import CommandFailedError
from fumehood.node.console import capabilities
from fumehood.node.console.duty import Duty
from fumehood.sandbox.driver import Handle
from fumehood.sandbox.fake import FakeDriver
from fumehood.sandbox.sessions.sessions import Sessions
from fumehood.sandbox.sessions.store import SessionStore
from fumehood.sandbox.sessions.values import SessionName
from fumehood.wire.console.console_pb2 import Dispatch
from tests.unit.session_world import NAME, World, command, wish
from tests.unit.test_capabilities import AT_ONCE, FOREVER, Bench, Gated, code, life, no_shell
from tests.waiting import turns, until

__all__ = ["no_shell"]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
async def bench(world: World) -> AsyncIterator[Bench]:
    async with life(world) as made:
        yield made


# --- an id is one command's --------------------------------------------------------------------------------


@pytest.mark.parametrize("capability", ["pythonExec", "terminalExec"])
async def test_the_id_of_anothers_command_tells_nothing_of_it(bench: Bench, capability: str) -> None:
    victim = SessionName("victim", "s")
    await bench.sessions.create(wish(victim))
    await bench.sessions.start(victim, command("echo", "secret", command_id="c"))
    await bench.sessions.ended("c", 120)
    result = await bench.begin(capability, _payload(capability, "echo")).run()
    assert code(result) == "invalid_payload"
    assert result is not None
    assert "secret" not in str(result)
    assert bench.sessions.get(victim).running == 0


@pytest.mark.parametrize("capability", ["pythonExec", "terminalExec"])
async def test_an_id_for_something_else_ends_nothing(bench: Bench, capability: str) -> None:
    """The command whose id it is goes on, and so does its sandbox."""
    first = bench.begin(capability, _payload(capability, FOREVER))
    running = asyncio.create_task(first.run())
    await until(bench.runs)
    assert code(await bench.begin(capability, _payload(capability, AT_ONCE)).run()) == "invalid_payload"
    assert bench.runs()
    assert await bench.containers() == 1
    first.let_go()
    assert await running is None


async def test_an_id_of_an_earlier_life_for_other_words(world: World) -> None:
    async with life(world) as bench:
        await bench.sessions.create(wish())
        assert (await bench.terminal(AT_ONCE, session_id="s1").run()) is not None
    async with life(world) as bench:
        assert code(await bench.terminal("exit", session_id="s1").run()) == "invalid_payload"


def _payload(capability: str, words: str) -> dict[str, Any]:
    return {"code": words} if capability == "pythonExec" else {"command": words}


# --- a full disk -------------------------------------------------------------------------------------------


class Disk:
    """Of a store; while it is full, leases cannot be stored."""

    def __init__(self, store: SessionStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full, self.refused, self._real = False, 0, store._write
        monkeypatch.setattr(store, "_write", self._write)

    def _write(self, sql: str, values: tuple[object, ...]) -> int:
        if self.full and sql.startswith("UPDATE") and "lease_expires_ms" in sql:
            self.refused += 1
            raise sqlite3.OperationalError("database or disk is full")
        return self._real(sql, values)


async def test_a_lease_that_cannot_be_stored_is_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command is not told to have ended while it runs."""
    monkeypatch.setattr(capabilities, "_pause", lambda lease_ms: 0.01)
    store = await SessionStore.open(world.folder)
    disk = Disk(store, monkeypatch)
    driver = Gated(world)
    async with world.opened(driver, store) as sessions:
        bench = Bench(world, driver, sessions)
        made = await sessions.create(wish())
        running = asyncio.create_task(bench.terminal(FOREVER, session_id="s1", lease_ttl_sec=600).run())
        await until(bench.runs)
        disk.full = True
        world.clock.now_ms += 5000
        await until(lambda: disk.refused > 2)
        assert not running.done()
        disk.full = False
        await until(lambda: sessions.get(NAME).lease_expires_ms > made.lease_expires_ms + 540_000)
        await sessions.signal("c", 9)
        result = await running
        assert result is not None
        assert not code(result)
    await store.close()


async def test_a_command_that_cannot_be_waited_for_is_gone_when_it_is_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong while it runs: its session goes, and only then its slot is free."""

    async def broken(self: Sessions, command_id: str, seconds: float) -> None:
        await until(bench.runs)
        raise ZeroDivisionError

    monkeypatch.setattr(Sessions, "ended", broken)
    assert code(await bench.terminal(FOREVER).run()) == "execution_failed"
    assert await bench.containers() == 0
    assert not bench.sessions.list()


async def test_a_command_that_never_began_takes_no_session_with_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.sessions.create(wish())

    async def refused(self: Sessions, name: SessionName, asked: object) -> None:
        raise CommandFailedError("no_capacity", "as many as it takes")

    monkeypatch.setattr(Sessions, "start", refused)
    assert code(await bench.terminal(AT_ONCE, session_id="s1").run()) == "no_capacity"
    assert bench.sessions.get(NAME).running == 0


# --- a lost sandbox ----------------------------------------------------------------------------------------


class Slow(FakeDriver):
    """Removes when a test says so."""

    def __init__(self, world: World) -> None:
        super().__init__(world.engine)
        self.asked, self.gate = asyncio.Event(), asyncio.Event()

    async def destroy(self, handle: Handle) -> None:
        self.asked.set()
        await self.gate.wait()
        await super().destroy(handle)


def dispatched() -> Dispatch:
    payload = b'{"command": "ignores", "session_id": "s1"}'
    return Dispatch(command_id="c", capability="terminalExec", owner="acme", timeout_ms=60_000, payload_json=payload)


async def begun_and_going(world: World) -> None:
    """A worker that dies while the session of a command is being removed."""
    store = await SessionStore.open(world.folder)
    async with world.opened(world.driver(), store) as sessions:
        made = await sessions.create(wish())
        with sessions.exclusive(NAME, "c"):
            await sessions.start(NAME, command(FOREVER, command_id="c", timeout_ms=60_000))
        await store.mark_going(made.sandbox_id, "the session was removed")
    await store.close()


async def test_a_lost_command_is_told_when_its_sandbox_is_gone(world: World) -> None:
    """And as its deadline says, which was why."""
    await begun_and_going(world)
    driver = Slow(world)
    async with world.life(driver) as sessions:
        programs = capabilities.Programs(sessions, capabilities.Rules())
        duty = Duty(dispatched(), programs.terminal_exec, -3.0, again=True)
        running = asyncio.create_task(duty.run())
        await driver.asked.wait()
        await turns()
        assert not running.done()
        assert len(await driver.list({})) == 1
        driver.gate.set()
        assert code(await running) == "deadline_exceeded"
        assert await driver.list({}) == []


async def test_a_lost_command_takes_no_later_session_of_its_name(world: World) -> None:
    await begun_and_going(world)
    async with world.life() as sessions:
        made = await sessions.create(wish())
        programs = capabilities.Programs(sessions, capabilities.Rules())
        result = await Duty(dispatched(), programs.terminal_exec, None, again=True).run()
        assert code(result) == "execution_failed"
        assert sessions.get(NAME).sandbox_id == made.sandbox_id


# --- lost output -------------------------------------------------------------------------------------------


async def test_output_that_is_gone_is_not_told_as_none(world: World) -> None:
    async with life(world) as bench:
        await bench.sessions.create(wish())
        first = await bench.terminal(AT_ONCE, session_id="s1").run()
        assert first is not None
        assert b'"stdout":"HOME=' in first.payload_json
    shutil.rmtree(world.folder / "spool")
    async with life(world) as bench:
        result = await bench.terminal(AT_ONCE, session_id="s1").run()
        assert code(result) == "execution_failed"
        assert result is not None
        assert "its output is gone" in result.error.message
