"""What a worker holds, when ending it takes for ever, the disk is full, or one caller wants everything."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.errors import CommandFailedError
from fumehood.node.console import duties as duties_module
from fumehood.node.console.duties import Answer, Duties
from fumehood.node.console.duty_store import DutyStore
from fumehood.node.console.endings import in_any_case
from fumehood.node.console.making import Making
from fumehood.node.console.places import KEPT_PART, Places
from fumehood.node.console.shares import PATIENCE_SECONDS, SHARE, Shares
from fumehood.sandbox.sessions.values import SessionName
from fumehood.wire.console.codes import Reason
from fumehood.wire.console.console_pb2 import Dispatch
from fumehood.wire.console.sessions import Method
from tests.unit.session_world import World, wish
from tests.unit.test_duties import EXEC, dispatch, next_of
from tests.waiting import until


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[DutyStore]:
    opened = await DutyStore.open(tmp_path / "duties.db")
    yield opened
    await opened.close()


# --- leaving -----------------------------------------------------------------------------------------------


class Stuck:
    """A handler whose cleanup does not end."""

    def __init__(self) -> None:
        self.begun, self.cleaning, self.stopped = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def __call__(self, given: Dispatch) -> Answer:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await in_any_case(self._clean())
            raise
        raise AssertionError

    async def _clean(self) -> None:
        self.cleaning.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped.set()


async def test_what_cannot_be_ended_is_left_to_the_next_process(store: DutyStore) -> None:
    """It has no result: nobody knows that it ended. That it shall end is remembered."""
    stuck = Stuck()
    duties = Duties(store, {EXEC: stuck})
    duties.begin()
    duties.take(dispatch("c1"))
    await stuck.begun.wait()
    duties.cancel("c1")
    await stuck.cleaning.wait()
    async with asyncio.timeout(60):
        assert await duties.close(seconds=0.05) == 1
        await stuck.stopped.wait()
        assert await duties.close() == 0
    (row,) = await store.all()
    assert row.dispatch is not None
    assert row.cancelled


async def test_a_handler_that_does_not_hear_does_not_keep_the_process(
    store: DutyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duties_module, "ABANDON_SECONDS", 0.05)
    deaf, over = asyncio.Event(), asyncio.Event()

    async def handler(given: Dispatch) -> Answer:
        while not over.is_set():
            deaf.set()
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue
        return Answer(b"{}")

    duties = Duties(store, {EXEC: handler})
    duties.take(dispatch("c1"))
    await deaf.wait()
    async with asyncio.timeout(60):
        assert await duties.close(seconds=0.05) == 1
    over.set()


# --- a full disk -------------------------------------------------------------------------------------------


async def test_what_could_not_be_forgotten_is_tried_again(store: DutyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fumehood.node.console.forgetting.AGAIN_SECONDS", 0.02)
    tries, real = 0, store._write

    def full(sql: str, values: tuple[object, ...]) -> None:
        nonlocal tries
        if sql.startswith("DELETE") and tries < 3:
            tries += 1
            raise sqlite3.OperationalError("database or disk is full")
        real(sql, values)

    monkeypatch.setattr(store, "_write", full)

    async def handler(given: Dispatch) -> Answer:
        return Answer(b"{}")

    duties = Duties(store, {EXEC: handler})
    outbox = duties.begin()
    for command_id in ("c1", "c2"):
        duties.take(dispatch(command_id))
        await next_of(outbox)
        duties.acknowledged(command_id)

    async def all_forgotten() -> bool:
        return not await store.all()

    await until(all_forgotten)
    assert tries == 3
    await duties.close()


# --- shares ------------------------------------------------------------------------------------------------


def call(owner: str, method: Method = Method.OUTPUT) -> Dispatch:
    return Dispatch(command_id=owner, capability=method.value, owner=owner)


def filled(places: Places, owner: str, method: Method = Method.OUTPUT) -> int:
    """How many more it gets."""
    count = 0
    while places.refusal(call(owner, method)) is None:
        places.occupy(call(owner, method))
        count += 1
    return count


def test_calls_that_wait_leave_room_for_those_that_do_not() -> None:
    places = Places(max_calls=256)
    assert filled(places, "a") == 256 - 256 // KEPT_PART
    assert filled(places, "a", Method.SIGNAL) == 256 // KEPT_PART


def test_who_waits_gets_what_becomes_free() -> None:
    """One owner has all places, and asks again as soon as one is free; so does another one."""
    places = Places(max_calls=64)
    had = filled(places, "hog")
    assert places.refusal(call("poor")) is not None
    got = 0
    for _ in range(200):
        places.free(call("hog"))
        if places.refusal(call("hog")) is None:
            places.occupy(call("hog"))
        elif places.refusal(call("poor")) is None:
            places.occupy(call("poor"))
            got += 1
            had -= 1
        if had <= 64 // SHARE:
            break
        places.refusal(call("poor"))
    assert got >= 64 // SHARE


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.sampled_from([Method.OUTPUT, Method.STAT_FILE]))))
def test_places_are_never_more_than_there_are(steps: list[tuple[str, bool, Method]]) -> None:
    held: list[Dispatch] = []
    places = Places(max_calls=8)
    for owner, frees, method in steps:
        if frees and held:
            places.free(held.pop())
        elif places.refusal(call(owner, method)) is None:
            held.append(call(owner, method))
            places.occupy(held[-1])
        assert places.taken(method.value) == len(held) <= 8
        assert sum(one.capability == Method.OUTPUT for one in held) <= 7
    for one in held:
        places.free(one)
    assert filled(Places(max_calls=8), "z") == 7


def test_patience_ends() -> None:
    now = 0.0
    shares = Shares(8, lambda: now)
    shares.turned_away("poor")
    assert (
        shares.is_fair("hog", {"hog": 2}),
        shares.is_fair("hog", {"hog": 1}),
        shares.is_fair("poor", {"poor": 5}),
    ) == (
        False,
        True,
        True,
    )
    now = PATIENCE_SECONDS + 1
    assert shares.is_fair("hog", {"hog": 2})
    shares.turned_away("poor")
    shares.served("poor")
    assert shares.is_fair("hog", {"hog": 2})


async def test_one_owner_does_not_keep_all_sessions(tmp_path: Path) -> None:
    async with World(tmp_path).life(most_sessions=4) as sessions:
        making = Making(sessions, 4)
        for number in range(4):
            await making.create(wish(SessionName("hog", str(number))))
        with pytest.raises(CommandFailedError, match="takes no more"):
            await making.create(wish(SessionName("poor", "s")))
        await sessions.remove(SessionName("hog", "0"))
        with pytest.raises(
            CommandFailedError, match="others wait for a session on this worker, and you have 3"
        ) as error:
            await making.create(wish(SessionName("hog", "4")))
        assert error.value.reason == Reason.NO_CAPACITY
        await making.create(wish(SessionName("hog", "1")))  # what it has, it finds
        await making.create(wish(SessionName("poor", "s")))
        await sessions.remove(SessionName("hog", "1"))
        await making.create(wish(SessionName("hog", "5")))  # nobody waits any more
        assert sorted(facts.name.owner for facts in sessions.list()) == ["hog", "hog", "hog", "poor"]
