"""What is kept of ended commands, and how a full disk gets room again. What is gone is never told as nothing."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest

from fumehood.errors import CommandFailedError
from fumehood.sandbox.sessions.process import Process
from fumehood.sandbox.sessions.sessions import Sessions
from fumehood.sandbox.sessions.spool import Bounds
from fumehood.sandbox.sessions.store import SPOOL, SessionStore
from fumehood.wire.console.codes import Reason
from tests.unit.session_world import NAME, World, command, refusal, wish
from tests.waiting import past, until

FLOOD = 100_000


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def flooded(sessions: Sessions, count: int, prefix: str = "f") -> None:
    """Commands that print something, one after the other."""
    for number in range(count):
        await sessions.start(NAME, command("flood", str(FLOOD), command_id=f"{prefix}{number}"))
        assert (await sessions.ended(f"{prefix}{number}", 120)).outcome is not None


def spools(world: World) -> int:
    return len(list((world.folder / SPOOL).iterdir()))


async def rounds(sessions: Sessions) -> None:
    """The janitor has been round."""
    await sessions._lives.commands.all.tidy()


async def all_ended(sessions: Sessions) -> None:
    """And nobody asks for any of them."""
    await until(lambda: all(facts.outcome is not None for facts in sessions.processes(NAME)))


async def refused(sessions: Sessions) -> CommandFailedError:
    with pytest.raises(CommandFailedError) as error:
        await sessions.start(NAME, command("echo"))
    return error.value


# --- what was used last stays ------------------------------------------------------------------------------


async def test_a_long_command_keeps_its_output_whatever_ended_before_it(world: World) -> None:
    async with world.life(kept_output=1000, pressed_seconds=0.5) as sessions:
        await sessions.create(wish())
        await sessions.start(NAME, command("ticks", "3", "0.3", command_id="long"))
        await flooded(sessions, 3)
        await until(lambda: spools(world) == 1)  # theirs are gone, and the long one goes on
        await all_ended(sessions)
        await rounds(sessions)
        captured = await sessions.captured("long")
        assert (captured.stdout, captured.gone) == (b"tick 0\ntick 1\ntick 2\n", False)
        assert (await sessions.captured("f2")).gone


async def test_a_long_command_is_known_when_it_ends_however_many_ended_meanwhile(world: World) -> None:
    async with world.life(remembered=2, kept_seconds=0.5) as sessions:
        await sessions.create(wish())
        await sessions.start(NAME, command("ticks", "3", "0.3", command_id="long"))
        await flooded(sessions, 5)
        await until(lambda: len(sessions.processes(NAME)) == 3)
        await all_ended(sessions)
        await rounds(sessions)
        assert sessions.process("long").outcome is not None


async def test_what_somebody_asks_for_is_not_forgotten(world: World) -> None:
    async with world.life(kept_output=0, remembered=0, kept_seconds=4, pressed_seconds=4) as sessions:
        await sessions.create(wish())
        await flooded(sessions, 2)
        read = 0

        async def f1_is_forgotten() -> bool:
            nonlocal read
            pieces, _ = await sessions.output("f0", read, 0, 100, 0)
            read += sum(len(piece.data) for piece in pieces)
            return "f1" not in {facts.command_id for facts in sessions.processes(NAME)}

        await until(f1_is_forgotten)
        assert refusal(lambda: sessions.process("f1")) == Reason.COMMAND_NOT_FOUND
        assert not (await sessions.captured("f0")).gone


async def test_output_that_was_lost_is_not_told_as_nothing(world: World) -> None:
    async with world.life() as sessions:
        await sessions.create(wish())
        await flooded(sessions, 1)
        await sessions.start(NAME, command("exit", "0", command_id="silent"))
        await sessions.ended("silent", 120)
    shutil.rmtree(world.folder / SPOOL)
    async with world.life() as sessions:
        captured = await sessions.captured("f0")
        assert (captured.stdout, captured.stdout_total, captured.gone) == (b"", FLOOD, True)
        assert not (await sessions.captured("silent")).gone


async def test_too_many_commands_are_refused_until_some_can_be_forgotten(world: World) -> None:
    async with world.life(most_known=4, pressed_seconds=0.3) as sessions:
        await sessions.create(wish())
        await flooded(sessions, 4)
        assert (await refused(sessions)).reason == Reason.NO_CAPACITY
        await past(0.3)
        await flooded(sessions, 1, "g")
        assert sessions.process("f3").outcome is not None


# --- the disk ----------------------------------------------------------------------------------------------


async def test_output_is_let_go_of_also_when_the_store_fails(world: World) -> None:
    """And what the store still has stays known, until it has forgotten, too."""
    store = await SessionStore.open(world.folder)
    real = store._write

    def full(sql: str, values: tuple[object, ...]) -> int:
        raise sqlite3.OperationalError("database or disk is full")

    async with world.opened(world.driver(), store, remembered=2, kept_seconds=0.3) as sessions:
        await sessions.create(wish())
        await flooded(sessions, 5)
        store._write = full  # type: ignore[method-assign]
        await until(lambda: spools(world) == 2)
        assert len(sessions.processes(NAME)) == 5
        assert (await sessions.captured("f0")).gone
        store._write = real  # type: ignore[method-assign]
        await until(lambda: len(sessions.processes(NAME)) <= 3)
    await store.close()


async def test_all_output_together_is_bounded(world: World) -> None:
    """Ended commands make room for running ones; those that ended a moment ago do not, and then there is none."""
    most = Bounds(1000).most + 2 * FLOOD
    async with world.life(output_limit=1000, most_output=most, pressed_seconds=0.5) as sessions:
        await sessions.create(wish())
        await flooded(sessions, 3)
        told = await refused(sessions)
        assert (told.reason, told.detail) == (
            Reason.NO_CAPACITY,
            "this worker's disk has no room for the output of another command: try again later",
        )
        assert not (await sessions.captured("f2")).gone
        await past(0.5)
        await flooded(sessions, 1, "g")
        assert (await sessions.captured("f0")).gone
        assert not (await sessions.captured("g0")).gone


async def test_the_bytes_of_ended_commands_are_counted_through_restarts_discards_and_removals(world: World) -> None:
    def check(sessions: Sessions, commands: int, output: int) -> None:
        known = sessions._lives.commands.all
        ended = [process for process in known.all() if not process.running]
        kept = sum(process.kept for process in ended)
        assert (len(ended), kept, known._ended_bytes) == (commands, output, output)

    async with world.life() as sessions:
        await sessions.create(wish())
        await flooded(sessions, 4)
        check(sessions, 4, 4 * FLOOD)
    async with world.life(kept_output=2 * FLOOD, pressed_seconds=0) as sessions:
        await rounds(sessions)
        check(sessions, 4, 2 * FLOOD)
        await sessions.start(NAME, command("sleep", "3600", command_id="long"))
        pieces, _ = await sessions.output("long", 0, 0, 100, 60)
        check(sessions, 4, 2 * FLOOD)
        await sessions.remove(NAME)
        check(sessions, 5, 2 * FLOOD + sum(len(piece.data) for piece in pieces))
    async with world.life(kept_seconds=0) as sessions:
        await rounds(sessions)
        check(sessions, 0, 0)


async def test_a_start_looks_at_no_ended_command(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or each one would take longer than the one before."""
    async with world.life(janitor_seconds=3600) as sessions:
        await sessions.create(wish())
        await flooded(sessions, 5)
        looked: list[str] = []

        def kept(process: Process) -> int:
            looked.append(process.record.command_id)
            return process.output.spool.kept

        monkeypatch.setattr(Process, "kept", property(kept))
        await sessions.start(NAME, command("sleep", "60", command_id="a"))
        await sessions.start(NAME, command("sleep", "60", command_id="b"))
        assert set(looked) == {"a"}


async def test_a_disk_that_is_nearly_full_takes_no_commands_and_frees_itself(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.life(disk_reserve=10**9, pressed_seconds=0.2) as sessions:
        await sessions.create(wish())
        await flooded(sessions, 3)
        with monkeypatch.context() as nearly_full:
            nearly_full.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=10**9 - 1, f_frsize=1))
            assert (await refused(sessions)).reason == Reason.NO_CAPACITY
            await until(lambda: spools(world) < 3)  # the janitor lets go of what nobody used
        await flooded(sessions, 1, "g")
