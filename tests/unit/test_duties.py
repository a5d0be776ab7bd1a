"""What a worker was told to do: done once, told until it was heard, and never more at once than it takes."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import stat
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fumehood.errors import (
    CommandFailedError,
    ConfigurationError,
    DigestResolutionError,
    ImageDeniedError,
    ImagePullError,
    InvalidReferenceError,
    PolicyDeniedError,
    RegistryUnavailableError,
    SandboxStartError,
)
from fumehood.node.console import duties as duties_module
from fumehood.node.console.duties import Answer, Duties, Handler, is_let_go
from fumehood.node.console.duty import LARGEST_RESULT
from fumehood.node.console.duty_store import MIGRATIONS, DutyStore
from fumehood.node.console.outbox import MOST_WAITING, Outbox
from fumehood.wire.console.codes import Capability, Reason
from fumehood.wire.console.console_pb2 import Dispatch, Result
from fumehood.wire.console.sessions import Method
from tests.waiting import past, turns, until

R = TypeVar("R")
EXEC, PYTHON, ECHO = Capability.TERMINAL_EXEC.value, Capability.PYTHON_EXEC.value, Capability.ECHO.value
POLL, CREATE = Method.OUTPUT.value, Method.CREATE.value
SOON = 180.0


def dispatch(command_id: str, capability: str = EXEC, timeout_ms: int = 0) -> Dispatch:
    return Dispatch(command_id=command_id, capability=capability, payload_json=b'{"n": 1}', timeout_ms=timeout_ms)


class World:
    """Handlers whose every step a test decides, and what they did outside, which outlives any process."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.alive: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.cleaned: set[str] = set()
        self.kept: set[str] = set()
        self.begun = asyncio.Event()
        self._ends: dict[str, asyncio.Event] = {}
        self._cleanups: dict[str, asyncio.Event] = {}
        self.raises: BaseException | None = None

    def end(self, command_id: str) -> asyncio.Event:
        return self._ends.setdefault(command_id, asyncio.Event())

    def cleanup(self, command_id: str) -> asyncio.Event:
        """Set: whoever cleans up after the command is done with it at once."""
        return self._cleanups.setdefault(command_id, asyncio.Event())

    async def handle(self, given: Dispatch) -> Answer:
        kind = "session." if given.capability.startswith("session.") else given.capability
        self.calls[given.command_id] += 1
        self.alive[kind] += 1
        self.most[kind] = max(self.most[kind], self.alive[kind])
        self.begun.set()
        try:
            await self.end(given.command_id).wait()
            if self.raises is not None:
                raise self.raises
        except asyncio.CancelledError:
            if is_let_go():
                self.kept.add(given.command_id)
            else:
                await self.cleanup(given.command_id).wait()
                self.cleaned.add(given.command_id)
            raise
        finally:
            self.alive[kind] -= 1
        return Answer(given.payload_json + given.command_id.encode())

    def handlers(self) -> dict[str, Handler]:
        return dict.fromkeys([EXEC, PYTHON, ECHO, POLL, CREATE], self.handle)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[DutyStore]:
    opened = await DutyStore.open(tmp_path / "duties.db")
    yield opened
    await opened.close()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def duties(store: DutyStore, world: World) -> AsyncIterator[Duties]:
    made = Duties(store, world.handlers())
    yield made
    await made.close()


async def next_of(outbox: Outbox) -> Result:
    async with asyncio.timeout(SOON):
        return await outbox.next()


async def nothing_from(outbox: Outbox, store: DutyStore) -> None:
    """Nothing is told, however long all that is under way is given."""
    waiting = asyncio.ensure_future(outbox.next())
    for _ in range(3):
        await store.all()
        await turns()
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


# --- doing -----------------------------------------------------------------------------------------------------------


async def test_a_command_is_stored_before_it_is_done_and_its_result_before_it_is_told(
    duties: Duties, world: World, tmp_path: Path
) -> None:
    other = sqlite3.connect(tmp_path / "duties.db")
    outbox = duties.begin()
    duties.take(dispatch("c1"))
    await world.begun.wait()
    (stored,) = other.execute("SELECT dispatch FROM duties WHERE command_id = 'c1'").fetchone()
    assert Dispatch.FromString(stored) == dispatch("c1")
    world.end("c1").set()
    told = await next_of(outbox)
    assert told == Result(command_id="c1", payload_json=b'{"n": 1}c1')
    assert other.execute("SELECT dispatch, result FROM duties").fetchall() == [(None, told.SerializeToString())]
    assert duties.holding() == ["c1"]
    duties.acknowledged("c1")
    assert duties.holding() == []
    await until(lambda: other.execute("SELECT * FROM duties").fetchall() == [])
    other.close()


async def test_a_result_is_told_over_every_stream_until_it_is_acknowledged(
    duties: Duties, world: World, store: DutyStore
) -> None:
    """Those that echo sent, too, though they are not on the disk."""
    duties.begin()
    world.end("c1").set()
    world.end("e1").set()
    duties.take(dispatch("c1"))
    duties.take(dispatch("e1", ECHO))
    await duties.idle()
    assert [stored.command_id for stored in await store.all()] == ["c1"]
    for _ in range(2):
        outbox = duties.begin()
        assert {(await next_of(outbox)).command_id for _ in range(2)} == {"c1", "e1"}
    duties.acknowledged("e1")
    outbox = duties.begin()
    assert (await next_of(outbox)).command_id == "c1"
    await nothing_from(outbox, store)


async def test_the_same_command_again_is_not_done_again(duties: Duties, world: World, store: DutyStore) -> None:
    outbox = duties.begin()
    for _ in range(3):
        duties.take(dispatch("c1"))
    world.end("c1").set()
    first = await next_of(outbox)
    await nothing_from(outbox, store)
    duties.take(dispatch("c1"))
    assert await next_of(outbox) == first
    duties.acknowledged("c1")
    duties.take(dispatch("c1"))
    again = await next_of(outbox)
    assert (again.error.code, "asked again" in again.error.message) == (Reason.EXECUTION_FAILED, True)
    assert world.calls == {"c1": 1}
    assert duties.holding() == []


async def test_no_more_is_done_at_once_than_a_worker_takes(duties: Duties, world: World) -> None:
    """Each capability has slots of its own; who is refused may come again."""
    outbox = duties.begin()
    for number in range(5):
        duties.take(dispatch(f"c{number}"))
        duties.take(dispatch(f"p{number}", PYTHON))
    refused = [await next_of(outbox) for _ in range(2)]
    assert {(one.command_id, one.error.code) for one in refused} == {
        ("c4", Reason.NO_CAPACITY),
        ("p4", Reason.NO_CAPACITY),
    }
    assert set(duties.holding()) == {f"{kind}{number}" for kind in "cp" for number in range(4)}
    world.end("c0").set()
    assert (await next_of(outbox)).command_id == "c0"
    duties.take(dispatch("c4"))
    await until(lambda: world.calls["c4"] == 1)
    assert world.most == {EXEC: 4, PYTHON: 4}


async def test_what_a_worker_cannot_do_is_said(duties: Duties) -> None:
    outbox = duties.begin()
    duties.take(dispatch("c1", "dance"))
    assert (await next_of(outbox)).error.code == Reason.UNSUPPORTED_CAPABILITY
    assert duties.holding() == []


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (CommandFailedError(Reason.SESSION_BUSY, "it is busy"), Reason.SESSION_BUSY, "it is busy"),
        (SandboxStartError("no room"), Reason.EXECUTION_FAILED, "no room"),
        (ImageDeniedError("no rule", reason="registry_not_allowed"), Reason.POLICY_DENIED, "no rule"),
        (PolicyDeniedError("too large", reason="limits_not_allowed"), Reason.POLICY_DENIED, "too large"),
        (DigestResolutionError("no such tag"), Reason.IMAGE_UNAVAILABLE, "no such tag"),
        (InvalidReferenceError("has a blank"), Reason.INVALID_PAYLOAD, "image: has a blank"),
        (RegistryUnavailableError("it is down"), Reason.IMAGE_UNAVAILABLE, "it is down"),
        (ImagePullError("not there"), Reason.IMAGE_UNAVAILABLE, "not there"),
        (ZeroDivisionError("secret"), Reason.EXECUTION_FAILED, "the worker failed at it; its log says why"),
        (CommandFailedError(Reason.FILE_ERROR, "x" * 10_000), Reason.FILE_ERROR, "x" * 4096),
    ],
)
async def test_a_failure_has_its_reason(
    duties: Duties, world: World, error: Exception, code: str, message: str
) -> None:
    world.raises = error
    world.end("c1").set()
    outbox = duties.begin()
    duties.take(dispatch("c1"))
    told = (await next_of(outbox)).error
    assert (told.code, told.message) == (code, message)


async def test_a_result_that_fits_no_frame_is_a_failure(store: DutyStore) -> None:
    """Else it would break every stream that it is told over, for ever."""

    async def much(_: Dispatch) -> Answer:
        return Answer(b"x" * LARGEST_RESULT)

    duties = Duties(store, {ECHO: much})
    outbox = duties.begin()
    duties.take(dispatch("c1", ECHO))
    told = await next_of(outbox)
    assert told.error.code == Reason.EXECUTION_FAILED
    assert "too large" in told.error.message
    await duties.close()


async def test_an_empty_result_is_a_result(store: DutyStore) -> None:
    async def nothing(_: Dispatch) -> Answer:
        return Answer(b"")

    duties = Duties(store, {EXEC: nothing})
    outbox = duties.begin()
    duties.take(dispatch("c1"))
    assert (await next_of(outbox)).WhichOneof("end") == "payload_json"
    await duties.close()


async def test_a_disk_that_fails_does_not_let_a_command_begin(duties: Duties, world: World, store: DutyStore) -> None:
    outbox = duties.begin()
    await store.close()
    duties.take(dispatch("c1"))
    told = await next_of(outbox)
    assert told.error.code == Reason.EXECUTION_FAILED
    assert world.calls == {}
    assert duties.inflight(EXEC) == 0
    assert duties.holding() == ["c1"]


async def test_a_result_is_told_even_if_the_disk_fails(duties: Duties, world: World, store: DutyStore) -> None:
    outbox = duties.begin()
    duties.take(dispatch("c1"))
    await world.begun.wait()
    await store.close()
    world.end("c1").set()
    assert (await next_of(outbox)).payload_json == b'{"n": 1}c1'
    assert (await next_of(duties.begin())).payload_json == b'{"n": 1}c1'


async def test_results_that_nobody_acknowledges_end_the_taking(
    store: DutyStore, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duties_module, "MOST_HELD", 3)
    duties = Duties(store, world.handlers())
    outbox = duties.begin()
    for name in ("c0", "c1", "c2"):
        world.end(name).set()
        duties.take(dispatch(name))
        await next_of(outbox)
    duties.take(dispatch("c3"))
    assert (await next_of(outbox)).error.code == Reason.NO_CAPACITY
    duties.acknowledged("c1")
    duties.take(dispatch("c3"))
    await until(lambda: world.calls["c3"] == 1)
    await duties.close()


# --- ending ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_a_command_that_is_ended_has_its_slot_until_it_is_cleaned_up(
    duties: Duties, world: World, store: DutyStore, how: str
) -> None:
    outbox = duties.begin()
    duties.take(dispatch("c1", timeout_ms=50 if how == "deadline" else 0))
    for name in ("c2", "c3", "c4"):
        duties.take(dispatch(name))
    await until(lambda: world.alive[EXEC] == 4)
    if how == "cancel":
        duties.cancel("c1")
    else:
        await past(0.06)
    await nothing_from(outbox, store)
    duties.take(dispatch("c5"))
    assert (await next_of(outbox)).error.code == Reason.NO_CAPACITY
    world.cleanup("c1").set()
    told = await next_of(outbox)
    assert (told.command_id, told.error.code) == ("c1", Reason.DEADLINE_EXCEEDED)
    assert world.cleaned == {"c1"}
    assert duties.inflight(EXEC) == 3


async def test_a_command_that_is_cancelled_before_it_began_never_begins(duties: Duties, world: World) -> None:
    outbox = duties.begin()
    duties.take(dispatch("c1"))
    duties.cancel("c1")
    assert (await next_of(outbox)).error.code == Reason.DEADLINE_EXCEEDED
    assert world.calls == {}


async def test_a_cancel_for_what_has_ended_changes_nothing(duties: Duties, world: World) -> None:
    outbox = duties.begin()
    world.end("c1").set()
    duties.take(dispatch("c1"))
    first = await next_of(outbox)
    duties.cancel("c1")
    duties.cancel("never-was")
    assert await next_of(duties.begin()) == first


async def test_a_command_that_ended_in_time_keeps_its_result(duties: Duties, world: World) -> None:
    """A handler that is cancelled and has an answer all the same tells the truth."""

    async def stubborn(_: Dispatch) -> Answer:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return Answer(b"done")
        raise AssertionError

    duties._handlers[EXEC] = stubborn
    outbox = duties.begin()
    duties.take(dispatch("c1", timeout_ms=500))
    assert (await next_of(outbox)).payload_json == b"done"


async def test_a_worker_that_leaves_ends_everything_first(duties: Duties, world: World) -> None:
    outbox = duties.begin()
    duties.take(dispatch("c1"))
    await world.begun.wait()
    ending = asyncio.create_task(duties.end_all())
    await turns()
    assert not ending.done()
    world.cleanup("c1").set()
    async with asyncio.timeout(SOON):
        await ending
    assert world.cleaned == {"c1"}
    assert (await next_of(outbox)).error.code == Reason.WORKER_LOST
    duties.take(dispatch("c2"))
    assert (await next_of(outbox)).error.code == Reason.NO_CAPACITY


async def test_draining(duties: Duties, world: World) -> None:
    """Nothing more is begun; what is there may be looked at until it has ended and was heard."""
    outbox = duties.begin()
    duties.take(dispatch("c1"))
    duties.drain()
    for name, capability in (("c2", EXEC), ("s1", CREATE)):
        duties.take(dispatch(name, capability))
        refused = await next_of(outbox)
        assert (refused.command_id, refused.error.code) == (name, Reason.NO_CAPACITY)
    duties.take(dispatch("s2", POLL))
    idle, told = asyncio.create_task(duties.idle()), asyncio.create_task(duties.told())
    await until(lambda: world.calls["s2"] == 1)
    assert not idle.done()
    world.end("c1").set()
    async with asyncio.timeout(SOON):
        await idle
    assert not told.done()
    assert (await next_of(outbox)).command_id == "c1"
    duties.acknowledged("c1")
    async with asyncio.timeout(SOON):
        await told


# --- the next process ------------------------------------------------------------------------------------------------


async def handed_over(duties: Duties, store: DutyStore, world: World, ahead: float = 0) -> Duties:
    """To a process whose clock is some seconds ahead."""
    await duties.close()
    return Duties(store, world.handlers(), clock=lambda: time.time() + ahead)


async def test_what_runs_is_handed_over_and_found_again(duties: Duties, store: DutyStore, world: World) -> None:
    duties.begin()
    world.end("c1").set()
    duties.take(dispatch("c1"))
    duties.take(dispatch("c2"))
    duties.take(dispatch("e1", ECHO))
    await until(lambda: world.calls["c2"] + world.calls["e1"] == 2)
    await until(lambda: duties.inflight(EXEC) == 1)
    after = await handed_over(duties, store, world)
    assert world.kept == {"c2", "e1"}
    assert world.cleaned == set()
    assert await after.recover() == 1
    assert after.holding() == ["c1", "c2"]
    assert after.inflight(EXEC) == 1
    outbox = after.begin()
    assert (await next_of(outbox)).command_id == "c1"
    world.end("c2").set()
    assert (await next_of(outbox)).payload_json == b'{"n": 1}c2'
    assert world.calls == {"c1": 1, "c2": 2, "e1": 1}
    await after.close()


async def test_a_restart_does_not_give_a_command_more_time(duties: Duties, store: DutyStore, world: World) -> None:
    """Its time ran out meanwhile: its handler is begun all the same, since only that can clean up."""
    duties.begin()
    duties.take(dispatch("c1", timeout_ms=60_000))
    duties.take(dispatch("c2", timeout_ms=90_000))
    await until(lambda: world.calls.total() == 2)
    after = await handed_over(duties, store, world, ahead=75)
    world.cleanup("c1").set()
    await after.recover()
    outbox = after.begin()
    told = await next_of(outbox)
    assert (told.command_id, told.error.code) == ("c1", Reason.DEADLINE_EXCEEDED)
    assert world.cleaned == {"c1"}
    await nothing_from(outbox, store)
    await after.close()


async def test_a_clock_that_was_set_back_does_not_either(duties: Duties, store: DutyStore, world: World) -> None:
    duties.begin()
    duties.take(dispatch("c1", timeout_ms=300))
    await world.begun.wait()
    after = await handed_over(duties, store, world, ahead=-3600)
    world.cleanup("c1").set()
    await after.recover()
    assert (await next_of(after.begin())).error.code == Reason.DEADLINE_EXCEEDED
    await after.close()


async def test_a_cancel_is_not_forgotten_by_a_restart(store: DutyStore, world: World) -> None:
    """The process dies while it cleans up: the next one does that."""
    await store.accept(dispatch("c1"), 0, None)
    await store.cancel("c1")
    world.cleanup("c1").set()
    duties = Duties(store, world.handlers())
    await duties.recover()
    assert (await next_of(duties.begin())).error.code == Reason.DEADLINE_EXCEEDED
    assert (world.calls, world.cleaned) == ({"c1": 1}, {"c1"})
    await duties.close()


async def test_a_cancel_is_on_the_disk(duties: Duties, store: DutyStore, world: World, tmp_path: Path) -> None:
    duties.begin()
    duties.take(dispatch("c1"))
    await world.begun.wait()
    duties.cancel("c1")
    other = sqlite3.connect(tmp_path / "duties.db")
    await until(lambda: other.execute("SELECT cancelled FROM duties").fetchall() == [(1,)])
    other.close()
    world.cleanup("c1").set()


async def test_a_command_that_this_version_cannot_do_is_answered(store: DutyStore) -> None:
    await store.accept(dispatch("c1", "older"), 0, None)
    duties = Duties(store, {})
    await duties.recover()
    assert (await next_of(duties.begin())).error.code == Reason.UNSUPPORTED_CAPABILITY
    await duties.close()


KILLED = textwrap.dedent(
    """
    import asyncio, sys
    from pathlib import Path
    from fumehood.node.console.duties import Answer, Duties
    from fumehood.node.console.duty_store import DutyStore
    from fumehood.wire.console.console_pb2 import Dispatch

    async def handle(dispatch):
        if dispatch.command_id == "c2":
            return Answer(b"two")
        print("begun", flush=True)
        await asyncio.Event().wait()

    async def main():
        duties = Duties(await DutyStore.open(Path(sys.argv[1])), {"terminalExec": handle})
        outbox = duties.begin()
        duties.take(Dispatch(command_id="c2", capability="terminalExec"))
        await outbox.next()
        duties.take(Dispatch(command_id="c1", capability="terminalExec"))
        await asyncio.Event().wait()

    asyncio.run(main())
    """
)


async def test_a_killed_worker_loses_no_command_and_no_result(tmp_path: Path, world: World) -> None:
    path = tmp_path / "duties.db"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, str(path), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"begun\n"
    process.kill()
    await process.wait()
    store = await DutyStore.open(path)
    duties = Duties(store, world.handlers())
    assert await duties.recover() == 1
    outbox = duties.begin()
    assert (await next_of(outbox)).payload_json == b"two"
    world.end("c1").set()
    assert (await next_of(outbox)).command_id == "c1"
    await duties.close()
    await store.close()


# --- session calls ---------------------------------------------------------------------------------------------------


async def test_calls_share_their_slots_and_leave_nothing_on_the_disk(store: DutyStore, world: World) -> None:
    duties = Duties(store, world.handlers(), max_session_calls=2)
    outbox = duties.begin()
    duties.take(dispatch("s1", POLL))
    duties.take(dispatch("s2", CREATE))
    duties.take(dispatch("s3", POLL))
    refused = await next_of(outbox)
    assert (refused.command_id, refused.error.code) == ("s3", Reason.NO_CAPACITY)
    world.end("s1").set()
    await until(lambda: world.alive["session."] == 1)
    assert duties.inflight(POLL) == 2, "a result that nobody took yet still counts"
    assert (await next_of(outbox)).command_id == "s1"
    assert duties.inflight(POLL) == 1
    assert duties.holding() == []
    assert await store.all() == []
    await duties.close()


async def test_calls_that_only_wait_end_with_their_stream(duties: Duties, world: World, store: DutyStore) -> None:
    """A call that changes something goes to its end, and tells it to nobody."""
    duties.begin()
    for name in ("s1", "s2"):
        world.cleanup(name).set()
    duties.take(dispatch("s1", POLL))
    duties.take(dispatch("s2", CREATE))
    await until(lambda: world.alive["session."] == 2)
    outbox = duties.begin()
    await until(lambda: duties.inflight(POLL) == 1)
    assert world.cleaned == {"s1"}
    world.end("s2").set()
    await until(lambda: duties.inflight(POLL) == 0)
    await nothing_from(outbox, store)


async def test_a_call_that_is_made_again_is_answered_where_it_was_made_last(duties: Duties, world: World) -> None:
    duties.begin()
    duties.take(dispatch("s1", CREATE))
    await until(lambda: world.alive["session."] == 1)
    outbox = duties.begin()
    duties.take(dispatch("s1", CREATE))
    world.end("s1").set()
    assert (await next_of(outbox)).command_id == "s1"
    assert world.calls == {"s1": 1}
    duties.take(dispatch("s1", CREATE))
    assert (await next_of(outbox)).command_id == "s1"
    assert world.calls == {"s1": 2}


async def test_a_call_has_a_deadline_and_can_be_cancelled(duties: Duties, world: World) -> None:
    outbox = duties.begin()
    for name in ("s1", "s2"):
        world.cleanup(name).set()
    duties.take(dispatch("s1", CREATE, timeout_ms=20))
    duties.take(dispatch("s2", CREATE))
    await until(lambda: world.calls["s2"] == 1)
    duties.cancel("s2")
    told = [await next_of(outbox) for _ in range(2)]
    assert {one.error.code for one in told} == {Reason.DEADLINE_EXCEEDED}
    assert duties.inflight(CREATE) == 0


async def test_a_console_that_does_not_read_is_not_read() -> None:
    async def fetch(command_id: str) -> Result | None:
        return Result(command_id=command_id)

    outbox = Outbox(fetch)
    for number in range(MOST_WAITING):
        outbox.tell(str(number))
    room = asyncio.create_task(outbox.room())
    await turns()
    assert not room.done()
    await outbox.next()
    async with asyncio.timeout(SOON):
        await room


# --- the file --------------------------------------------------------------------------------------------------------


async def test_the_store_is_its_owners_alone(store: DutyStore, tmp_path: Path) -> None:
    await store.accept(dispatch("c1"), 0, None)
    for name in ("duties.db", "duties.db-wal", "duties.db-shm"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


async def test_a_store_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "duties.db") as made:
        made.execute(f"PRAGMA user_version={len(MIGRATIONS) + 1}")
    made.close()
    with pytest.raises(ConfigurationError):
        await DutyStore.open(tmp_path / "duties.db")


# --- any order of everything -----------------------------------------------------------------------------------------

NAMES = st.sampled_from("abcdef")
MOST = 2


class DutiesMachine(RuleBasedStateMachine):
    """A console that asks, cancels, reads, forgets to read, reconnects; and a worker that dies in between."""

    @initialize()
    def start(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.world = self.run(self._world())
        self.fresh = itertools.count()
        self.asked: dict[str, str] = {}
        """Ids by name: a name is used again once its command is over."""
        self.results: dict[str, Result] = {}
        self.over: set[str] = set()
        self.lost: set[str] = set()
        """Echoes that a process took with it: nobody promised them."""
        self.open()

    async def _world(self) -> World:
        return World()

    def run(self, call: Awaitable[R]) -> R:
        async def awaited() -> R:
            return await call

        return self.loop.run_until_complete(awaited())

    def open(self) -> None:
        self.told_before = set(self.results)
        self.store = self.run(DutyStore.open(Path(self.folder.name) / "duties.db"))
        self.run(self._open())
        self.settle()

    async def _open(self) -> None:
        self.world.calls.clear()
        self.world.most.clear()
        self.world.alive.clear()
        self.duties = Duties(self.store, self.world.handlers(), max_inflight=MOST)
        await self.duties.recover()
        self.outbox = self.duties.begin()

    def settle(self) -> None:
        async def rounds() -> None:
            for _ in range(4):
                await self.store.all()
                for _ in range(6):
                    await asyncio.sleep(0)

        self.run(rounds())

    # --- what the console does ---

    @rule(name=NAMES, capability=st.sampled_from([EXEC, ECHO]))
    def ask(self, name: str, capability: str) -> None:
        if name in self.asked:
            self.read()  # who was refused knows it before it asks again
        command_id = self.asked.get(name)
        if command_id is None or command_id in self.over:
            command_id = f"{name}{next(self.fresh)}-{capability}"
            self.asked[name] = command_id
        self.act(lambda: self.duties.take(dispatch(command_id, command_id.partition("-")[2])))
        self.settle()

    @rule(name=NAMES)
    def cancel(self, name: str) -> None:
        if name in self.asked:
            self.act(lambda: self.duties.cancel(self.asked[name]))
            self.settle()

    @rule(name=NAMES)
    def acknowledge(self, name: str) -> None:
        command_id = self.asked.get(name)
        if command_id in self.results:
            self.act(lambda: self.duties.acknowledged(command_id))
            self.over.add(command_id)
            self.settle()

    @rule()
    def read(self) -> None:
        self.run(self._read())

    async def _read(self) -> None:
        while True:
            try:
                async with asyncio.timeout(0.02):
                    result = await self.outbox.next()
            except TimeoutError:
                return
            if result.error.code == Reason.NO_CAPACITY:
                assert result.command_id not in self.duties.holding()
                for name in [name for name, one in self.asked.items() if one == result.command_id]:
                    del self.asked[name]
                continue
            assert self.results.setdefault(result.command_id, result) == result, "a result never changes"

    @rule()
    def reconnect(self) -> None:
        """Refusals are told once: who does not hear one finds its command missing in the next hello."""
        self.read()
        self.outbox = self.run(self._begin())

    async def _begin(self) -> Outbox:
        return self.duties.begin()

    # --- what the programs do ---

    @rule(name=NAMES)
    def program_ends(self, name: str) -> None:
        if name in self.asked:
            self.world.end(self.asked[name]).set()
            self.settle()

    @rule(name=NAMES)
    def cleanup_ends(self, name: str) -> None:
        if name in self.asked:
            self.world.cleanup(self.asked[name]).set()
            self.settle()

    # --- what happens to the worker ---

    @rule(orderly=st.booleans())
    def restart(self, orderly: bool) -> None:
        self.read()
        if orderly and not any(self._ending()):
            self.run(self.duties.close())
        else:
            self.run(self._die())
        self.run(self.store.close())
        self.lost |= {one for one in self.asked.values() if one.endswith(ECHO) and one not in self.over}
        self.asked = {name: one for name, one in self.asked.items() if one not in self.lost}
        self.open()

    def _ending(self) -> list[str]:
        return [one for one in self.duties.holding() if (d := self.duties._commands[one].duty) and d.why is not None]

    async def _die(self) -> None:
        """As the kernel ends a process: nobody gets to say or write anything more. Cleanups stop in the middle."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for _ in range(3):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=0.05) if tasks else None

    def act(self, what: Callable[[], None]) -> None:
        async def now() -> None:
            what()

        self.run(now())

    # --- what must hold ---

    @invariant()
    def never_more_than_it_takes(self) -> None:
        assert all(count <= MOST for count in self.world.most.values())

    @invariant()
    def nothing_runs_twice(self) -> None:
        """Not in one process, and in none once its result was told."""
        assert all(count == 1 for count in self.world.calls.values())
        assert not self.told_before & set(self.world.calls)

    @invariant()
    def what_was_told_and_not_acknowledged_is_held(self) -> None:
        durable = {one for one in self.results if one.endswith(EXEC)} - self.over
        assert durable <= set(self.duties.holding())

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        self.read()
        for command_id in self.asked.values():
            self.world.end(command_id).set()
            self.world.cleanup(command_id).set()
        self.settle()
        self.outbox = self.run(self._begin())
        self.read()
        until = time.monotonic() + SOON
        while not set(self.asked.values()) <= set(self.results) and time.monotonic() < until:
            self.read()  # what is slow is not lost
        try:
            assert set(self.asked.values()) <= set(self.results), "no result is lost"
            assert all(self.duties.inflight(one) == 0 for one in (EXEC, ECHO))
        finally:
            self.run(self.duties.close())
            self.run(self.store.close())
            self.loop.close()
            self.folder.cleanup()


DutiesMachine.TestCase.settings = settings(
    max_examples=30, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestDuties = DutiesMachine.TestCase
