"""A worker that is told to go: everything is removed, or it is said that something may be left."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from fumehood.cli.worker_process import (
    Leave,
    LeftBehindError,
    Worker,
    _hand_over,
    _nothing_is_left,
    _remove_everything,
)
from fumehood.errors import EngineUnavailableError
from fumehood.node.console import capabilities
from fumehood.node.console.capabilities import Rules
from fumehood.node.console.duties import Duties
from fumehood.node.console.duty_store import DutyStore
from fumehood.node.console.keeper import SessionKeeper
from fumehood.node.console.uploads import Uploads
from fumehood.node.console.worker import handlers
from fumehood.sandbox.driver import Handle
from fumehood.sandbox.fake import FakeDriver
from fumehood.sandbox.sessions.store import SessionStore
from fumehood.wire.console.console_pb2 import Dispatch, HeldSession
from tests.unit.session_world import IMAGE, World, wish
from tests.waiting import until


class Stubborn(FakeDriver):
    """Removes nothing while its engine is away."""

    away = False

    async def destroy(self, handle: Handle) -> None:
        if self.away:
            raise EngineUnavailableError("the engine is away")
        await super().destroy(handle)


@asynccontextmanager
async def worker(world: World, driver: Stubborn) -> AsyncIterator[Worker]:
    store = await DutyStore.open(world.folder / "duties.db")
    try:
        async with world.life(driver) as sessions:
            rules = Rules(python_image=IMAGE, terminal_image=IMAGE)
            duties = Duties(store, handlers(sessions, rules, Uploads(world.folder / "uploads")))
            try:
                yield Worker("w", cast(Any, driver), sessions, duties)
            finally:
                await duties.close()
    finally:
        await store.close()


def begin(made: Worker, command_id: str) -> None:
    payload = json.dumps({"command": "ignores"}).encode()
    made.duties.take(Dispatch(command_id=command_id, capability="terminalExec", owner="acme", payload_json=payload))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(capabilities, "SHELL", ())
    monkeypatch.setattr("fumehood.sandbox.sessions.lives.GONE_ATTEMPTS", 1)
    monkeypatch.setattr("fumehood.cli.worker_process.TELL_SECONDS", 0.01)
    return World(tmp_path)


async def test_nothing_is_left(world: World) -> None:
    """What runs is ended, nothing more is taken, and results wait for a console that is away."""
    driver = Stubborn(world.engine)
    async with worker(world, driver) as made:
        for command_id in ("a", "b"):
            begin(made, command_id)
        await until(lambda: sum(facts.running for facts in made.sessions.list()) == 2)
        await _remove_everything(made, 10)
        assert await driver.list({}) == []
        assert (made.sessions.list(), made.duties.draining) == ([], True)
        assert sorted(made.duties.holding()) == ["a", "b"]


@pytest.mark.parametrize("running", [True, False])
async def test_what_may_be_left_is_said(world: World, running: bool) -> None:
    driver = Stubborn(world.engine)
    async with worker(world, driver) as made:
        begin(made, "a")
        await until(lambda: any(facts.running for facts in made.sessions.list()))
        if not running:
            await made.sessions.signal("a", 9)
            await until(lambda: not any(facts.running for facts in made.sessions.list()))
            await made.duties.idle()
        driver.away = True
        with pytest.raises(LeftBehindError, match=r"fumehood\.node=w may be left") as caught:
            await _remove_everything(made, 0.3)
        assert caught.value.exit_code == 1


async def test_a_worker_goes_though_its_engine_does_not_answer(world: World) -> None:
    """The whole process is out soon after its time is over, and its rows tell the next one what there is."""
    driver = Stubborn(world.engine)
    async with asyncio.timeout(60):
        async with worker(world, driver) as made:
            begin(made, "a")
            await until(lambda: any(facts.running for facts in made.sessions.list()))
            driver.away = True
            with pytest.raises(LeftBehindError):
                await _remove_everything(made, 0.3)
    driver.away = False
    async with worker(world, driver) as made:
        assert await made.duties.recover() == 1
        await _remove_everything(made, 10)
        assert await driver.list({}) == []


async def test_a_hand_over_does_not_wait_for_what_cannot_be_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that was cancelled is left to the next worker, which ends it; and that is said."""
    driver = Stubborn(world.engine)
    async with asyncio.timeout(60):
        async with worker(world, driver) as made:
            begin(made, "a")
            begin(made, "b")
            await until(lambda: sum(facts.running for facts in made.sessions.list()) == 2)
            driver.away = True
            made.duties.cancel("a")
            with pytest.raises(LeftBehindError, match="1 of the commands that were being ended have not ended"):
                await _hand_over(made, 0.3)
    driver.away = False
    async with worker(world, driver) as made:
        outbox = made.duties.begin()
        assert await made.duties.recover() == 2
        async with asyncio.timeout(60):
            assert (await outbox.next()).command_id == "a"
        assert len(await driver.list({})) == 1
        await _hand_over(made, 10)


class FullDisk:
    """Nothing can be stored from a moment on."""

    full, refused = False, 0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = SessionStore._write

        def write(store: SessionStore, sql: str, values: tuple[object, ...]) -> int:
            if self.full:
                self.refused += 1
                raise sqlite3.OperationalError("database or disk is full")
            return real(store, sql, values)

        monkeypatch.setattr(SessionStore, "_write", write)


@pytest.mark.parametrize("hands_over", [True, False])
async def test_a_worker_goes_though_its_disk_is_full(
    world: World, monkeypatch: pytest.MonkeyPatch, hands_over: bool
) -> None:
    disk, driver = FullDisk(monkeypatch), Stubborn(world.engine)
    async with asyncio.timeout(60):
        async with worker(world, driver) as made:
            begin(made, "a")
            await until(lambda: any(facts.running for facts in made.sessions.list()))
            disk.full = True
            made.duties.cancel("a")
            await until(lambda: disk.refused)
            with pytest.raises(LeftBehindError):
                await (_hand_over(made, 0.3) if hands_over else _remove_everything(made, 0.3))
    disk.full = False


async def test_sandboxes_that_nobody_could_remove_are_told(world: World) -> None:
    """There was no engine from the beginning: an earlier worker's sandboxes are still there."""
    store = await SessionStore.open(world.folder)
    async with world.opened(world.driver(), store) as sessions:
        await _nothing_is_left(store, "w", Leave.REMOVE)
        await sessions.create(wish())
    await _nothing_is_left(store, "w", Leave.HAND_OVER)
    with pytest.raises(LeftBehindError, match="none of 1 sandboxes of an earlier worker was removed"):
        await _nothing_is_left(store, "w", Leave.REMOVE)
    await store.close()


async def test_what_the_console_is_told_of_sessions(world: World) -> None:
    async with worker(world, Stubborn(world.engine)) as made:
        begin(made, "a")
        await until(lambda: any(facts.running for facts in made.sessions.list()))
        keeper = SessionKeeper(made.sessions)
        (facts,) = made.sessions.list()
        assert list(keeper.sessions()) == [
            HeldSession(
                owner="acme",
                session_id="terminal-a",
                lease_expires_unix_ms=facts.lease_expires_ms,
                created_unix_ms=facts.created_ms,
                image=IMAGE,
                image_digest=facts.image_digest,
                network="deny-all",
                runtime=facts.runtime,
            )
        ]
        await keeper.leases(keeper.sessions())
        await asyncio.sleep(0)
        assert made.sessions.list() == [facts]
