"""A session's name leads to one worker at any time: whoever makes it, however many at once, whatever workers say."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.control.callers import ADMIN
from fumehood.control.console import places
from fumehood.control.console.directory import SessionDirectory
from fumehood.control.console.places import Found, Place
from fumehood.control.console.session_table import SessionTable
from fumehood.errors import BrokerUnavailableError, CommandFailedError, InvalidRequestError
from fumehood.wire.command_api import CommandStatus
from fumehood.wire.console import sessions as wire
from fumehood.wire.console.codes import MOST_SESSIONS
from fumehood.wire.console.console_pb2 import Dispatch, Heartbeat, HeldSession, Result, SessionName, WorkerFrame
from fumehood.wire.sandbox import NetworkProfile
from fumehood.wire.times import rfc3339
from tests.unit.console_world import OTHER, FakeWorker, World, failing, now_ms, wish, world
from tests.waiting import until

HOUR_MS = 3_600_000
CREATE = wire.CreateSession(session_id="s", image="i")


async def connected(there: World, at: int, name: str, **more: object) -> FakeWorker:
    worker = await there.worker(name, **more)
    await worker.connect(there.desks[at])
    await until(lambda: all(desk.presence.of(name) is not None for desk in there.desks))
    return worker


def directory_of(there: World, at: int = 0) -> SessionDirectory:
    return there.desks[at].console.parts.directory


def making(name: str, **more: object) -> dict[str, object]:
    return {"command": "true", "session_id": name, "create_if_missing": True, **more}


def ran(one: Dispatch) -> Result:
    name = json.loads(one.payload_json).get("session_id", "s")
    said = {"session_id": name, "created": True, "lease_expires_unix_ms": now_ms() + HOUR_MS}
    return Result(command_id=one.command_id, payload_json=json.dumps(said).encode())


def made(one: Dispatch) -> Result:
    view = wire.SessionView(
        session_id=json.loads(one.payload_json)["session_id"],
        image="i",
        image_digest="d",
        created_unix_ms=1,
        lease_expires_unix_ms=now_ms() + HOUR_MS,
        network=NetworkProfile.DENY_ALL,
    )
    return Result(command_id=one.command_id, payload_json=view.model_dump_json().encode())


def named(worker: FakeWorker, name: str) -> list[Dispatch]:
    return [one for one in worker.dispatched if json.loads(one.payload_json).get("session_id") == name]


def held(owner: str = "default", session_id: str = "s", **more: object) -> HeldSession:
    given = {"lease_expires_unix_ms": now_ms() + HOUR_MS} | more
    return HeldSession(owner=owner, session_id=session_id, **given)  # type: ignore[arg-type]


def beat(*changed: HeldSession, ended: tuple[SessionName, ...] = ()) -> WorkerFrame:
    return WorkerFrame(heartbeat=Heartbeat(timestamp_unix_ms=1, changed_sessions=changed, ended_sessions=ended))


# --- the rules ---------------------------------------------------------------------------------------------

TOKENS = st.sampled_from(["a", "b", "c"])
WORKERS = st.sampled_from(["w1", "w2", "w3"])
STEPS = st.lists(st.tuples(st.sampled_from(["claim", "give up", "unsure"]), TOKENS, WORKERS), max_size=30)


@given(STEPS)
def test_a_claim_never_moves_away_from_somebody_who_holds_it(steps: list[tuple[str, str, str]]) -> None:
    """Each holder is told a worker, and as long as it holds the claim nobody is told another one."""
    place: Place | None = None
    told: dict[str, str] = {}
    for what, token, worker in steps:
        if what == "claim":
            place = places.claimed(place, worker, token, 0)
            assert place is not None
            assert token in place.claims
            told[token] = place.worker
        elif place is not None and token in place.claims:
            place = places.unclaimed(place, token, 0, sure=what == "give up")
            if what == "give up":
                told.pop(token, None)
        assert len(set(told.values())) <= 1
        assert set(told) == set(place.claims if place is not None else ())


def test_claims_have_a_bound_and_an_end() -> None:
    place: Place | None = None
    for token in range(places.MOST_CLAIMS):
        place = places.claimed(place, "w1", str(token), 0)
    assert places.claimed(place, "w1", "more", 0) is None
    later = places.claimed(place, "w2", "more", places.CLAIM_SECONDS * 1000)
    assert later is not None
    assert (later.worker, set(later.claims)) == ("w2", {"more"})


@given(
    st.builds(Place, worker=WORKERS, lease_expires_ms=st.integers(1, 10_000), created_ms=st.integers(0, 3)),
    st.builds(Place, worker=WORKERS, lease_expires_ms=st.integers(1, 10_000), created_ms=st.integers(0, 3)),
)
def test_a_word_takes_over_nothing_and_shortens_no_lease(known: Place, said: Place) -> None:
    place = places.agreed(known, said)
    assert place.worker == known.worker
    assert place.lease_expires_ms >= known.lease_expires_ms
    if known.worker == said.worker:
        assert said.lease_expires_ms - place.lease_expires_ms < places.NEAR_MS
        assert place.created_ms == (said.created_ms or known.created_ms)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1), st.text(max_size=20))
def test_whatever_a_worker_says_of_a_session_can_be_told(lease: int, created: int, text: str) -> None:
    said = Place(
        worker="w", lease_expires_ms=lease, created_ms=created, network=text, image=text * 200, runtime=text * 200
    )
    place = places.bounded(said, now_ms())
    assert rfc3339(place.lease_expires_ms)
    assert rfc3339(place.created_ms)
    assert not place.is_claim
    assert NetworkProfile(place.network or "deny-all")
    assert len(place.model_dump_json().encode()) < 16 * 1024
    assert places.bounded(place, now_ms()) == place


CHANGES = st.lists(st.tuples(st.sampled_from(["k1", "k2"]), WORKERS | st.none(), st.booleans()), max_size=20)


@given(CHANGES)
def test_the_table_ends_as_the_watch_tells_it(changes: list[tuple[str, str | None, bool]]) -> None:
    """Own writes are known before the watch tells them: what that tells meanwhile is older."""
    table, truth = SessionTable(), dict[str, str]()

    def tell(at: int) -> None:
        key, worker, _ = changes[at]
        if worker is None:
            table.remove(key, at)
        else:
            table.put(key, Found(Place(worker=worker), at))

    for at, (key, worker, is_own) in enumerate(changes):
        if is_own and at + 1 < len(changes):
            tell(at + 1)
        tell(at)
        truth |= {key: worker or ""}
    for worker in ("w1", "w2", "w3"):
        assert set(table.keys_of(worker)) == {key for key, at_worker in truth.items() if at_worker == worker}


# --- many make one -----------------------------------------------------------------------------------------


async def test_who_fails_to_make_a_session_does_not_take_away_anothers() -> None:
    async with world() as there:
        worker = await connected(there, 0, "w1")
        first, second = (asyncio.create_task(desk.sandboxes.create(ADMIN, CREATE)) for desk in there.desks)
        await worker.until(lambda: len(worker.dispatched) == 2)
        await worker.say(made(worker.dispatched[0]))
        await worker.say(failing("invalid_payload")(worker.dispatched[1]))
        ends = await asyncio.gather(first, second, return_exceptions=True)
        assert sorted(type(one).__name__ for one in ends) == ["CommandFailedError", "SessionView"]
        assert [one.session_id for one in await there.desks[0].sandboxes.list(ADMIN)] == ["s"]


async def test_two_that_make_one_session_where_one_has_room_are_never_at_two_workers() -> None:
    """Each worker takes one command at a time: whoever comes second waits for the worker of the first."""
    async with world() as there:
        workers = [await connected(there, at, f"w{at}", capabilities={"terminalExec": 1}) for at in range(2)]
        for name in ("s1", "s2", "s3", "s4"):
            asked = wish(making(name), "terminalExec", wait_ms=5_000)
            both = [asyncio.create_task(desk.commands.submit(asked, ADMIN)) for desk in there.desks]
            await until(lambda name=name: any(named(one, name) for one in workers))  # type: ignore[arg-type, misc]
            await asyncio.wait(both, timeout=0.5)
            (keeps,) = [one for one in workers if named(one, name)]
            keeps.answers = ran
            await keeps.say(ran(named(keeps, name)[0]))
            done = await asyncio.gather(*both)
            keeps.answers = None
            assert [one.status for one in done] == [CommandStatus.SUCCEEDED] * 2
            assert [len(named(one, name)) for one in workers] in ([2, 0], [0, 2])


async def test_two_that_make_one_session_at_a_full_worker_move_on_together() -> None:
    async with world() as there:
        full = await connected(there, 0, "full")
        other = await there.worker("other", answers=made)
        await other.connect(there.desks[1], sessions=[held(session_id=f"old{at}") for at in range(5)])
        await until(lambda: all(directory_of(there, at).count_of("other") == 5 for at in range(2)))
        both = [asyncio.create_task(desk.sandboxes.create(ADMIN, CREATE)) for desk in there.desks]
        await full.until(lambda: len(full.dispatched) == 2)
        for one in full.dispatched:
            await full.say(failing("no_capacity")(one))
        assert [one.worker for one in await asyncio.gather(*both)] == ["other"] * 2
        assert len(full.dispatched) == 2


async def test_two_commands_that_make_one_session_at_a_full_worker_move_on_together() -> None:
    async with world() as there:
        full = await connected(there, 0, "full", capabilities={"terminalExec": 1})
        await there.desks[0].commands.submit(wish({"command": "true"}, "terminalExec", wait_ms=0), ADMIN)
        asked = wish(making("s"), "terminalExec", wait_ms=5_000)
        both = [asyncio.create_task(desk.commands.submit(asked, ADMIN)) for desk in there.desks]
        await asyncio.wait(both, timeout=0.3)
        await connected(there, 1, "other", answers=ran)
        done = await asyncio.gather(*both)
        assert [(one.status, one.worker) for one in done] == [(CommandStatus.SUCCEEDED, "other")] * 2
        assert len(full.dispatched) == 1


async def test_where_all_are_full_the_name_is_free_again() -> None:
    async with world() as there:
        await connected(there, 0, "w1", answers=failing("no_capacity"))
        with pytest.raises(CommandFailedError) as error:
            await there.desks[1].sandboxes.create(ADMIN, CREATE)
        assert error.value.reason == "no_capacity"
        assert await directory_of(there).find("default", "s") is None


async def test_a_session_is_made_by_the_one_worker_of_many_that_has_room() -> None:
    async with world() as there:
        for at in range(8):
            await connected(there, 0, f"w{at}", answers=failing("no_capacity"))
        await connected(there, 0, "free", answers=lambda one: made(one) if "create" in one.capability else ran(one))
        assert (await there.desks[0].sandboxes.create(ADMIN, CREATE)).worker == "free"
        done = await there.desks[1].commands.submit(wish(making("t"), "terminalExec"), ADMIN)
        assert (done.status, done.worker) == (CommandStatus.SUCCEEDED, "free")


async def test_new_sessions_go_to_who_keeps_the_fewest() -> None:
    async with world() as there:
        busy = await there.worker("busy", answers=made)
        await busy.connect(there.desks[0], sessions=[held(session_id=f"old{at}") for at in range(3)])
        await connected(there, 0, "idle", answers=made)
        await until(lambda: directory_of(there, 1).count_of("busy") == 3)
        chosen = [
            await there.desks[1].sandboxes.create(ADMIN, CREATE.model_copy(update={"session_id": name}))
            for name in "abc"
        ]
        assert [one.worker for one in chosen] == ["idle"] * 3


# --- claims that nothing came of ---------------------------------------------------------------------------


@pytest.mark.parametrize("lease_ms", [0, -1000])
async def test_what_a_worker_that_is_gone_left_behind_blocks_no_name(lease_ms: int) -> None:
    async with world() as there:
        await connected(there, 1, "w2", answers=ran)
        if lease_ms:
            said = Place(worker="gone", lease_expires_ms=now_ms() + lease_ms)
            await directory_of(there).note("default", "s", said)
        else:
            await directory_of(there).claim("default", "s", "gone")
        done = await there.desks[0].commands.submit(wish(making("s"), "terminalExec", wait_ms=1_000), ADMIN)
        assert done.status is CommandStatus.SUCCEEDED


async def test_a_claim_of_a_worker_that_is_away_for_a_moment_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its command may be making the session: nobody else makes one while it can be back with that."""
    async with world() as there:
        first = await connected(there, 0, "w1")
        running = asyncio.create_task(there.desks[0].commands.submit(wish(making("s"), "terminalExec"), ADMIN))
        await first.until(lambda: bool(first.dispatched))
        second = await connected(there, 1, "w2", answers=ran)
        assert first.held is not None
        await first.held.gone()
        await until(lambda: all(desk.presence.of("w1") is None for desk in there.desks))
        with pytest.raises(CommandFailedError):
            await there.desks[1].commands.submit(wish(making("s"), "terminalExec", wait_ms=100), ADMIN)
        assert second.dispatched == []
        clock = there.desks[1].presence.clock
        monkeypatch.setattr(there.desks[1].presence, "clock", lambda: clock() + 11)
        done = await there.desks[1].commands.submit(wish(making("s"), "terminalExec", wait_ms=1_000), ADMIN)
        assert done.worker == "w2"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_name_is_free_again_when_nobody_had_room() -> None:
    async with world() as there:
        await connected(there, 0, "w1", capabilities={"terminalExec": 1})
        await there.desks[0].commands.submit(wish({"command": "true"}, "terminalExec", wait_ms=0), ADMIN)
        with pytest.raises(CommandFailedError):
            await there.desks[0].commands.submit(wish(making("s"), "terminalExec", wait_ms=100), ADMIN)
        assert await directory_of(there).find("default", "s") is None
        await connected(there, 1, "w2", capabilities={"terminalExec": 1}, answers=ran)
        done = await there.desks[0].commands.submit(wish(making("s"), "terminalExec", wait_ms=1_000), ADMIN)
        assert (done.status, done.worker) == (CommandStatus.SUCCEEDED, "w2")


@pytest.mark.parametrize(("reason", "stays"), [("invalid_payload", False), ("execution_failed", True)])
async def test_a_failed_command_leaves_its_claim_only_where_a_session_may_be(reason: str, stays: bool) -> None:
    async with world() as there:
        await connected(there, 0, "w1", answers=failing(reason))
        done = await there.desks[0].commands.submit(wish(making("s"), "terminalExec"), ADMIN)
        assert done.reason == reason
        found = await directory_of(there).find("default", "s")
        assert (found is not None) == stays
        if found is not None:
            (until,) = found.place.claims.values()
            assert until <= now_ms() + places.UNSURE_SECONDS * 1000


async def test_a_result_is_told_also_where_its_session_cannot_be_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object, **__: object) -> None:
        raise BrokerUnavailableError("away")

    async with world() as there:
        await connected(there, 0, "w1", answers=ran)
        monkeypatch.setattr(directory_of(there), "note", away)
        done = await there.desks[0].commands.submit(wish(making("s"), "terminalExec"), ADMIN)
        assert done.status is CommandStatus.SUCCEEDED


async def test_who_is_told_that_there_is_no_session_does_not_take_away_one_that_was_made_since() -> None:
    async with world() as there:
        worker = await there.worker("w1")
        await worker.connect(there.desks[0], sessions=[held(created_unix_ms=1)])
        asking = asyncio.create_task(there.desks[0].sandboxes.get(ADMIN, wire.SessionRef(session_id="s")))
        await worker.until(lambda: bool(worker.dispatched))
        assert worker.held is not None
        await worker.held.take(beat(held(created_unix_ms=2, lease_expires_unix_ms=now_ms() + 2 * HOUR_MS)))
        await worker.say(failing("session_not_found")(worker.dispatched[0]))
        with pytest.raises(CommandFailedError):
            await asking
        assert len(await there.desks[0].sandboxes.list(ADMIN)) == 1
        await worker.held.take(beat(ended=(SessionName(owner="default", session_id="s"),)))
        assert await there.desks[0].sandboxes.list(ADMIN) == []


async def test_who_asks_for_a_session_that_is_being_made_takes_no_claim_away() -> None:
    async with world() as there:
        worker = await connected(there, 0, "w1", answers=failing("session_not_found"))
        await directory_of(there).claim("default", "s", "w1", token="t")
        with pytest.raises(CommandFailedError):
            await there.desks[1].sandboxes.get(ADMIN, wire.SessionRef(session_id="s"))
        assert worker.held is not None
        await worker.held.take(beat(ended=(SessionName(owner="default", session_id="s"),)))
        found = await directory_of(there).find("default", "s")
        assert found is not None
        assert found.place.is_claim


# --- what workers say --------------------------------------------------------------------------------------


async def test_no_word_of_a_worker_breaks_a_tenants_list() -> None:
    async with world() as there:
        worker = await there.worker("w1")
        odd = held("other", "main", lease_expires_unix_ms=2**62, created_unix_ms=2**62, network="later")
        await worker.connect(there.desks[0], sessions=[odd, held("other", "old", lease_expires_unix_ms=-5)])
        listed = {one.session_id: one for one in await there.desks[1].sandboxes.list(OTHER)}
        assert set(listed) == {"main", "old"}
        assert rfc3339(listed["main"].lease_expires_unix_ms) < rfc3339(now_ms() + 25 * HOUR_MS)
        assert rfc3339(listed["main"].created_unix_ms) <= rfc3339(now_ms())
        assert listed["main"].network is NetworkProfile.FULL  # whatever it is, nobody shall rely on it


async def test_a_worker_has_no_more_sessions_than_a_worker_keeps() -> None:
    async with world(1) as there:
        worker = await there.worker("w1")
        await worker.connect(there.desks[0], sessions=[held(session_id=f"s{at}") for at in range(MOST_SESSIONS)])
        assert worker.held is not None
        await worker.held.take(beat(held(session_id="more"), held(session_id="s1", image="known")))
        listed = {one.session_id: one for one in await there.desks[0].sandboxes.list(ADMIN)}
        assert "more" not in listed
        assert len(listed) == MOST_SESSIONS
        assert listed["s1"].image == "known"
        with pytest.raises(InvalidRequestError):
            await worker.held.take(beat(*[held(session_id=f"t{at}") for at in range(MOST_SESSIONS + 1)]))


async def test_a_worker_answers_with_no_other_session_than_the_one_that_was_named() -> None:
    def lies(one: Dispatch) -> Result:
        said = {"session_id": "another", "created": True, "lease_expires_unix_ms": now_ms() + HOUR_MS}
        return Result(command_id=one.command_id, payload_json=json.dumps(said).encode())

    async with world() as there:
        await connected(there, 0, "w1", answers=lies)
        await there.desks[0].commands.submit(wish(making("s"), "terminalExec"), ADMIN)
        assert await directory_of(there).find("default", "another") is None
        await there.desks[0].commands.submit(wish({"command": "true"}, "terminalExec"), ADMIN)
        assert await directory_of(there).find("default", "another") is not None


async def test_a_name_that_leads_to_a_worker_is_not_taken_over_when_its_lease_is_over() -> None:
    async with world() as there:
        await connected(there, 0, "w1")
        thief = await connected(there, 1, "w2")
        over = Place(worker="w1", lease_expires_ms=now_ms() - 1)
        await directory_of(there).note("default", "s", over)
        assert thief.held is not None
        await thief.held.take(beat(held()))
        found = await directory_of(there).find("default", "s")
        assert found is not None
        assert found.place.worker == "w1"


# --- cost --------------------------------------------------------------------------------------------------


async def test_the_same_word_again_costs_nothing() -> None:
    async with world() as there:
        directory = directory_of(there)
        lease = now_ms() + HOUR_MS
        await directory.note("default", "s", Place(worker="w1", lease_expires_ms=lease))
        before = await directory.find("default", "s")
        for more in (0, 500, 999):
            await directory.note("default", "s", Place(worker="w1", lease_expires_ms=lease + more))
        assert await directory.find("default", "s") == before
        await directory.note("default", "s", Place(worker="w1", lease_expires_ms=lease + 1000))
        after = await directory.find("default", "s")
        assert before is not None
        assert after is not None
        assert after.revision > before.revision
        await until(lambda: directory_of(there, 1).count_of("w1") == 1)
        assert [one.place for one in await directory_of(there, 1).of_worker("w1")] == [after.place]


async def test_a_table_that_is_behind_is_put_right_by_the_truth() -> None:
    """Another server changed the entry; this one has not heard of it."""
    async with world() as there:
        one, two = directory_of(there), directory_of(there, 1)
        await one.note("default", "s", Place(worker="w1", lease_expires_ms=now_ms() + HOUR_MS))
        await one.note("default", "t", Place(worker="w1", lease_expires_ms=now_ms() + HOUR_MS))
        await until(lambda: two.count_of("w1") == 2)
        for name in ("s", "t"):
            seen = await one.find("default", name)
            assert seen is not None
            await one._bucket.delete(f"default.{name}")
        said = Place(worker="w2", lease_expires_ms=now_ms() + 2 * HOUR_MS)
        assert (await two.note("default", "s", said)).worker == "w2"
        again = Place(worker="w1", lease_expires_ms=now_ms() + 2 * HOUR_MS)
        assert (await two.note("default", "t", again)).lease_expires_ms == again.lease_expires_ms


# --- calls that nobody waits for ---------------------------------------------------------------------------


async def test_a_call_that_nobody_waits_for_any_more_is_cancelled() -> None:
    async with world() as there:
        worker = await there.worker("w1")
        await worker.connect(there.desks[0], sessions=[held()])
        await until(lambda: there.desks[1].presence.of("w1") is not None)
        asked = wire.AskOutput(session_id="s", command_id="c", wait_ms=20_000)
        polls = [asyncio.create_task(there.desks[1].sandboxes.output(ADMIN, asked)) for _ in range(16)]
        await worker.until(lambda: len(worker.dispatched) == 16)
        for one in polls:
            one.cancel()
        await asyncio.gather(*polls, return_exceptions=True)
        await worker.until(lambda: len(worker.cancelled) == 16)
        assert set(worker.cancelled) == {one.command_id for one in worker.dispatched}


async def test_who_waits_for_news_at_a_worker_where_too_many_wait_has_his_turn() -> None:
    turns = iter([failing("no_capacity"), failing("no_capacity")])

    def shares(one: Dispatch) -> Result:
        said = wire.Output().model_dump_json().encode()
        return next(turns, lambda _: Result(command_id=one.command_id, payload_json=said))(one)

    async with world() as there:
        worker = await there.worker("w1", answers=shares)
        await worker.connect(there.desks[0], sessions=[held()])
        asked = wire.AskOutput(session_id="s", command_id="c", wait_ms=1_000)
        assert await there.desks[0].sandboxes.output(ADMIN, asked) == (wire.Output(), b"")
        assert len(worker.dispatched) == 3


async def test_a_command_that_waits_for_a_worker_has_printed_nothing() -> None:
    async with world() as there:
        await connected(there, 0, "w1", capabilities={"terminalExec": 4})
        asked = wish("x", wait_ms=5_000, idempotency_key="k")
        waiting = asyncio.create_task(there.desks[0].commands.submit(asked, ADMIN))
        await until(lambda: bool(there.desks[0].commands._under_way))
        (command_id,) = there.desks[0].commands._under_way
        async with asyncio.timeout(60):
            assert await there.desks[1].commands.output(command_id, ADMIN, 0, 0, 0) == (wire.Output(), b"")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
