"""Sessions: one sandbox under a lease, and many commands in it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
from pathlib import Path

import pytest

from fumehood.errors import (
    CommandFailedError,
    ConfigurationError,
    EngineUnavailableError,
    LedgerError,
    SandboxStartError,
)
from fumehood.sandbox.driver import Handle
from fumehood.sandbox.fake import FakeDriver
from fumehood.sandbox.sessions.records import ProcessRecord
from fumehood.sandbox.sessions.sessions import Sessions
from fumehood.sandbox.sessions.store import FILE, SessionStore
from fumehood.sandbox.sessions.values import ProcessFacts, SessionFacts, SessionName
from fumehood.sandbox.spec import End, SandboxSpec
from fumehood.wire.console.codes import Reason
from tests.unit.session_world import MINUTE, NAME, World, command, refusal, rounds, wish
from tests.waiting import until

OTHER = SessionName("acme", "s2")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def finished(sessions: Sessions, command_id: str) -> ProcessFacts:
    facts = await sessions.ended(command_id, 120)
    assert facts.outcome is not None
    return facts


async def exited(sessions: Sessions, *argv: str, name: SessionName = NAME) -> bytes:
    """Run a command to its end; what it printed."""
    begun = await sessions.start(name, command(*argv))
    await finished(sessions, begun.command_id)
    return (await sessions.captured(begun.command_id)).stdout


# --- sessions ----------------------------------------------------------------------------------------------


async def test_a_command_runs_in_a_session(world: World) -> None:
    async with world.life() as sessions:
        made = await sessions.create(wish())
        assert (made.name, made.image_digest, made.runtime) == (NAME, "sha256:" + "0" * 64, "fake")
        begun = await sessions.start(NAME, command("both", "out", "err!", command_id="c1"))
        assert begun.command_id == "c1"
        ended = await finished(sessions, "c1")
        assert ended.outcome is not None
        assert (ended.outcome.end, ended.outcome.exit_code, ended.detail) == (End.EXITED, 0, "")
        captured = await sessions.captured("c1")
        assert (captured.stdout, captured.stderr) == (b"out", b"err!")
        assert (captured.stdout_total, captured.stderr_total) == (3, 4)


async def test_what_is_not_there_is_not_found(world: World) -> None:
    async with world.life() as sessions:
        assert refusal(lambda: sessions.get(NAME)) == Reason.SESSION_NOT_FOUND
        assert refusal(lambda: sessions.process("c1")) == Reason.COMMAND_NOT_FOUND
        await sessions.create(wish())
        assert refusal(lambda: sessions.get(SessionName("other", NAME.session_id))) == Reason.SESSION_NOT_FOUND
        await sessions.remove(SessionName("other", NAME.session_id))
        assert sessions.get(NAME).name == NAME


async def test_many_who_create_at_once_get_one_session(world: World) -> None:
    async with world.life() as sessions:
        made = await asyncio.gather(*(sessions.create(wish()) for _ in range(10)))
        assert len({facts.sandbox_id for facts in made}) == 1
        assert len(world.engine.boxes) == 1
        assert (await sessions.create(wish(lease_ms=9 * MINUTE))).lease_expires_ms == made[0].lease_expires_ms


async def test_whoever_gives_up_waiting_does_not_take_it_from_the_others(world: World) -> None:
    driver = Gated(world)
    async with world.life(driver) as sessions:
        first = asyncio.create_task(sessions.create(wish()))
        second = asyncio.create_task(sessions.create(wish()))
        await driver.preparing.wait()
        first.cancel()
        driver.go_on.set()
        assert (await second).name == NAME


async def test_a_session_is_removed_while_it_is_made(world: World) -> None:
    driver = Gated(world)
    async with world.life(driver) as sessions:
        creating = asyncio.create_task(sessions.create(wish()))
        await driver.preparing.wait()
        await sessions.remove(NAME)
        assert not world.engine.boxes
        with pytest.raises(CommandFailedError) as error:
            await creating
        assert error.value.reason == Reason.SESSION_NOT_FOUND
        driver.go_on.set()
        assert (await sessions.create(wish())).name == NAME


async def test_one_that_cannot_be_made_leaves_nothing(world: World) -> None:
    driver = Refusing(world.engine)
    async with world.life(driver) as sessions:
        with pytest.raises(SandboxStartError):
            await sessions.create(wish())
        assert (world.engine.boxes, sessions.list()) == ({}, [])
        driver.refuses = False
        assert (await sessions.create(wish())).name == NAME


async def test_there_is_a_bound_to_sessions(world: World) -> None:
    async with world.life(most_sessions=1) as sessions:
        await sessions.create(wish())
        with pytest.raises(CommandFailedError) as error:
            await sessions.create(wish(OTHER))
        assert error.value.reason == Reason.NO_CAPACITY
        await sessions.remove(NAME)
        await sessions.create(wish(OTHER))


async def test_removing_ends_everything(world: World) -> None:
    async with world.life() as sessions:
        await sessions.create(wish())
        await sessions.start(NAME, command("ignores", command_id="c1"))
        await asyncio.gather(sessions.remove(NAME), sessions.remove(NAME))
        assert not world.engine.boxes
        ended = sessions.process("c1")
        assert ended.outcome is not None
        assert (ended.outcome.end, ended.detail) == (End.SANDBOX_LOST, "the session was removed")
        assert refusal(lambda: sessions.get(NAME)) == Reason.SESSION_NOT_FOUND


async def test_all_are_removed_and_no_new_ones_made(world: World) -> None:
    async with world.life() as sessions:
        await sessions.create(wish())
        await sessions.create(wish(OTHER, once=True))
        await sessions.remove_all()
        assert not world.engine.boxes
        with pytest.raises(CommandFailedError):
            await sessions.create(wish())


async def test_sessions_for_one_command_are_not_listed(world: World) -> None:
    changes: list[tuple[SessionName, SessionFacts | None]] = []
    async with world.life() as sessions:
        sessions.on_change(lambda name, facts: changes.append((name, facts)))
        await sessions.create(wish(OTHER, once=True))
        made = await sessions.create(wish())
        assert sessions.list() == [made]
        longer = await sessions.extend(NAME, 2 * MINUTE)
        await sessions.remove(OTHER)
        await sessions.remove(NAME)
        assert changes == [(NAME, made), (NAME, longer), (NAME, None)]


# --- leases ------------------------------------------------------------------------------------------------


async def test_a_lease_only_grows(world: World) -> None:
    async with world.life() as sessions:
        made = await sessions.create(wish())
        longer = await sessions.extend(NAME, 5 * MINUTE)
        assert longer.lease_expires_ms == made.lease_expires_ms + 4 * MINUTE
        assert (await sessions.extend(NAME, MINUTE)).lease_expires_ms == longer.lease_expires_ms


async def test_an_expired_session_is_reaped_and_never_revived(world: World) -> None:
    async with world.life() as sessions:
        made = await sessions.create(wish())
        await sessions.start(NAME, command("ignores", command_id="c1"))
        world.clock.pass_ms(MINUTE)
        with pytest.raises(CommandFailedError) as error:
            await sessions.extend(NAME, MINUTE)
        assert error.value.reason == Reason.SESSION_NOT_FOUND
        again = await sessions.create(wish())
        assert again.sandbox_id != made.sandbox_id
        await until(lambda: len(world.engine.boxes) == 1)
        assert (await finished(sessions, "c1")).detail.startswith("the session")


async def test_the_janitor_reaps_without_being_asked(world: World) -> None:
    async with world.life() as sessions:
        await sessions.create(wish())
        world.clock.pass_ms(MINUTE - 1)
        await rounds(sessions)
        assert sessions.get(NAME).name == NAME
        world.clock.pass_ms(1)
        await until(lambda: not world.engine.boxes)


async def test_a_session_is_not_reaped_under_the_command_that_has_it(world: World) -> None:
    async with world.life() as sessions:
        await sessions.create(wish())
        with sessions.exclusive(NAME, "c1"):
            await sessions.start(NAME, command("sleep", "60", command_id="c1"))
            world.clock.pass_ms(MINUTE)
            await rounds(sessions)
            assert sessions.process("c1").outcome is None
            assert refusal(lambda: sessions.get(NAME)) == Reason.SESSION_NOT_FOUND
            with pytest.raises(CommandFailedError) as error:
                await sessions.create(wish())
            assert error.value.reason == Reason.SESSION_BUSY
            await sessions.signal("c1", signal.SIGKILL)
            await finished(sessions, "c1")
        await until(lambda: not world.engine.boxes)


async def test_a_session_can_be_had_by_one_at_a_time(world: World) -> None:
    async with world.life() as sessions:
        await sessions.create(wish())
        with sessions.exclusive(NAME):
            with pytest.raises(CommandFailedError) as error, sessions.exclusive(NAME):
                pass
            assert error.value.reason == Reason.SESSION_BUSY
            assert await exited(sessions, "echo", "beside") == b"beside\n"
        with sessions.exclusive(NAME):
            pass


# --- commands ----------------------------------------------------------------------------------------------


async def test_the_same_command_is_begun_once(world: World) -> None:
    async with world.life() as sessions:
        await sessions.create(wish())
        begun = command("echo", "once", command_id="c1")
        await asyncio.gather(*(sessions.start(NAME, begun) for _ in range(5)))
        await finished(sessions, "c1")
        assert (await sessions.start(NAME, begun)).outcome is not None
        (box,) = world.engine.boxes.values()
        assert len(box.jobs) == 1
        for name, other in ((NAME, command("echo", "twice", command_id="c1")), (OTHER, begun)):
            with pytest.raises(CommandFailedError) as error:
                await sessions.start(name, other)
            assert error.value.reason == Reason.INVALID_PAYLOAD


@pytest.mark.parametrize("argv", [(), ("a\0b",), ("\ud800",)])
async def test_words_that_are_none_are_refused(world: World, argv: tuple[str, ...]) -> None:
    async with world.life() as sessions:
        await sessions.create(wish())
        with pytest.raises(CommandFailedError) as error:
            await sessions.start(NAME, command(*argv))
        assert error.value.reason == Reason.INVALID_PAYLOAD
        assert sessions.processes(NAME) == []


async def test_the_environment_is_the_sessions_and_the_commands(world: World) -> None:
    async with world.life() as sessions:
        await sessions.create(wish(env={"A": "session", "B": "session"}))
        begun = await sessions.start(NAME, command("env", env={"B": "command"}, terminal=(24, 80)))
        await finished(sessions, begun.command_id)
        lines = (await sessions.captured(begun.command_id)).stdout.decode().split()
        assert set(lines) == {"HOME=/workspace", "TERM=xterm-256color", "A=session", "B=command"}
        await sessions.create(wish(OTHER, env={"HOME": "/tmp"}))
        assert await exited(sessions, "env", name=OTHER) == b"HOME=/tmp\n"


async def test_only_sessions_for_one_command_are_swept(world: World) -> None:
    """What a command leaves behind lives on, unless its session is for it alone."""
    async with world.life() as sessions:
        for name, once, alive in ((NAME, False, b"alive\n"), (OTHER, True, b"gone\n")):
            await sessions.create(wish(name, once=once))
            begun = await sessions.start(name, command("leaves", "mark"))
            await until(lambda begun=begun: sessions.process(begun.command_id).stdout_bytes > 0)  # type: ignore[arg-type, misc]
            await sessions.signal(begun.command_id, signal.SIGTERM)
            await finished(sessions, begun.command_id)
            assert await exited(sessions, "left", "mark", name=name) == alive


async def test_there_is_a_bound_to_running_commands(world: World) -> None:
    async with world.life(most_running=2) as sessions:
        await sessions.create(wish())
        for number in range(2):
            await sessions.start(NAME, command("sleep", "60", command_id=f"c{number}"))
        assert sessions.get(NAME).running == 2
        with pytest.raises(CommandFailedError) as error:
            await sessions.start(NAME, command("echo"))
        assert error.value.reason == Reason.NO_CAPACITY
        await sessions.signal("c0", signal.SIGKILL)
        await finished(sessions, "c0")
        await exited(sessions, "echo")


async def test_the_oldest_commands_are_forgotten_with_their_output(world: World) -> None:
    async with world.life(remembered=3, kept_seconds=0.0) as sessions:
        await sessions.create(wish())
        for number in range(40):
            await sessions.start(NAME, command("echo", "x", command_id=f"c{number}"))
            await finished(sessions, f"c{number}")
        await until(lambda: len(sessions.processes(NAME)) == 3)
        assert [facts.command_id for facts in sessions.processes(NAME)] == ["c37", "c38", "c39"]
        assert refusal(lambda: sessions.process("c0")) == Reason.COMMAND_NOT_FOUND
        assert len(list((world.folder / "spool").iterdir())) == 3


async def test_the_oldest_output_goes_when_it_is_too_much(world: World) -> None:
    async with world.life(kept_output=200_000, pressed_seconds=0.0) as sessions:
        await sessions.create(wish())
        for number in range(3):
            await sessions.start(NAME, command("flood", str(131072), command_id=f"c{number}"))
            await finished(sessions, f"c{number}")
        await until(lambda: len(list((world.folder / "spool").iterdir())) == 1)
        first, last = await sessions.captured("c0"), await sessions.captured("c2")
        assert (len(first.stdout), first.stdout_total, first.gone) == (0, 131072, True)
        assert (len(last.stdout), last.stdout_total, last.gone) == (131072, 131072, False)
        pieces, ended = await sessions.output("c0", 0, 0, 100, 0)
        assert (pieces, ended) == ([], sessions.process("c0"))


async def test_commands_stay_known_when_their_session_is_gone(world: World) -> None:
    async with world.life() as sessions:
        await sessions.create(wish())
        await sessions.start(NAME, command("echo", "hello", command_id="c1"))
        await finished(sessions, "c1")
        await sessions.remove(NAME)
        assert (await sessions.captured("c1")).stdout == b"hello\n"
        await sessions.create(wish())
        assert sessions.processes(NAME) == []
        assert (await sessions.start(NAME, command("echo", "hello", command_id="c1"))).outcome is not None


async def test_a_sandbox_that_ends_by_itself_ends_its_session(world: World) -> None:
    async with world.life() as sessions:
        await sessions.create(wish())
        await sessions.start(NAME, command("sleep", "60", command_id="c1"))
        (box,) = world.engine.boxes.values()
        world.engine.end(box.handle)
        ended = await finished(sessions, "c1")
        assert ended.outcome is not None
        assert (ended.outcome.end, ended.detail) == (End.SANDBOX_LOST, "the sandbox ended with 137")
        await until(lambda: not world.engine.boxes)
        assert refusal(lambda: sessions.get(NAME)) == Reason.SESSION_NOT_FOUND


async def test_a_signal_reaches_one_or_everything(world: World) -> None:
    async with world.life() as sessions:
        await sessions.create(wish())
        for number in range(3):
            await sessions.start(NAME, command("sleep", "60", command_id=f"c{number}"))
        await sessions.signal("c0", signal.SIGTERM)
        assert (await finished(sessions, "c0")).detail == ""
        assert sessions.process("c1").outcome is None
        await sessions.signal("c0", signal.SIGKILL, everything=True)
        for number in (1, 2):
            ended = await finished(sessions, f"c{number}")
            assert ended.outcome is not None
            assert (ended.outcome.end, ended.outcome.signal) == (End.SIGNALED, signal.SIGKILL)


async def test_one_process_has_the_folder(world: World) -> None:
    async with world.life():
        with pytest.raises(ConfigurationError, match="belongs to another process"):
            await SessionStore.open(world.folder)


async def test_a_command_whose_session_goes_before_it_is_sent_has_an_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    storing, go_on = asyncio.Event(), asyncio.Event()
    real = SessionStore.add_process

    async def slow(store: SessionStore, record: ProcessRecord) -> int:
        serial = await real(store, record)
        storing.set()
        await go_on.wait()
        return serial

    monkeypatch.setattr(SessionStore, "add_process", slow)
    async with world.life() as sessions:
        await sessions.create(wish())
        starting = asyncio.create_task(sessions.start(NAME, command("echo", "x", command_id="c1")))
        await storing.wait()
        await sessions.remove(NAME)
        go_on.set()
        begun = await starting
        assert begun.outcome is not None
        assert (begun.outcome.end, begun.detail) == (End.SANDBOX_LOST, "the session was removed")


async def test_a_removal_that_fails_is_tried_again(world: World) -> None:
    class Stubborn(FakeDriver):
        fails = 2

        async def destroy(self, handle: Handle) -> None:
            self.fails -= 1
            if self.fails >= 0:
                raise EngineUnavailableError("away")
            await super().destroy(handle)

    async with world.life(Stubborn(world.engine)) as sessions:
        await sessions.create(wish())
        await sessions.remove(NAME)
        assert not world.engine.boxes


async def test_a_store_that_fails_does_not_keep_a_session_alive(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(store: SessionStore, sandbox_id: str) -> None:
        raise LedgerError("the disk is full")

    async with world.life(janitor_seconds=60.0) as sessions:
        await sessions.create(wish())
        with monkeypatch.context() as full:
            full.setattr(SessionStore, "drop_session", fails)
            await sessions.remove(NAME)
            assert (world.engine.boxes, sessions.list()) == ({}, [])
            with pytest.raises(LedgerError):
                await sessions.create(wish())
        assert (await sessions.create(wish())).name == NAME


async def test_an_ended_command_leaves_no_environment_in_the_store(world: World) -> None:
    async with world.life() as sessions:
        await sessions.create(wish())
        await sessions.start(NAME, command("sleep", "60", command_id="c1", env={"TOKEN": "secret"}))
        assert "secret" in stored(world)
        await sessions.signal("c1", signal.SIGKILL)
        await finished(sessions, "c1")
        assert "secret" not in stored(world)
        assert (world.folder / FILE).stat().st_mode & 0o777 == 0o600


def stored(world: World) -> str:
    with contextlib.closing(sqlite3.connect(world.folder / FILE)) as connection:
        return str(connection.execute("SELECT * FROM processes").fetchall())


async def test_a_store_of_a_newer_version_is_not_touched(world: World) -> None:
    async with world.life():
        pass
    with contextlib.closing(sqlite3.connect(world.folder / FILE)) as connection:
        connection.execute("PRAGMA user_version=99")
    with pytest.raises(ConfigurationError, match="newer version"):
        await SessionStore.open(world.folder)


# --- machines that are slow, or say no ---------------------------------------------------------------------


class Gated(FakeDriver):
    """Makes a sandbox, and says so only when it is told to."""

    def __init__(self, world: World) -> None:
        super().__init__(world.engine)
        self.preparing, self.go_on = asyncio.Event(), asyncio.Event()

    async def prepare(self, spec: SandboxSpec) -> Handle:
        handle = await super().prepare(spec)
        self.preparing.set()
        await self.go_on.wait()
        return handle


class Refusing(FakeDriver):
    refuses = True

    async def start(self, handle: Handle) -> None:
        if self.refuses:
            raise SandboxStartError("no")
        await super().start(handle)
