"""Who follows runs sees every event of his once and in order, wherever he was cut off, and nothing of others'."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.broker.memory import Faults, MemoryJournal, Verdict
from fumehood.broker.ports import Bucket, Entry
from fumehood.control import archived, event_pulse, records
from fumehood.control.event_streams import HISTORY_RECORDS, Selection
from fumehood.engine.events import MapExpanded, RunFailed, RunRetried, RunSucceeded, StepCalling, StepQueued
from fumehood.engine.state import Failure
from fumehood.errors import DrainingError, InvalidRequestError, NotFoundError, OverloadedError
from fumehood.wire.event_api import Message, Position, cursor, event_data, parse_cursor
from tests.unit.event_world import EventWorld, Reader, caller, ids, reading, said, started
from tests.waiting import past, until

RUN = "run-1"


# --- ids ---------------------------------------------------------------------------------------------------

POSITIONS = st.builds(Position, st.integers(0, 10**16 - 1), st.none() | st.integers(0, 10**7 - 1))


@given(st.lists(POSITIONS, min_size=1, max_size=8))
def test_an_id_says_what_it_means(positions: list[Position]) -> None:
    assert [Position.parse(str(one)) for one in positions] == positions
    assert parse_cursor(cursor(positions), len(positions)) == positions
    with pytest.raises(InvalidRequestError):
        parse_cursor(cursor(positions), len(positions) + 1)


@given(st.dictionaries(st.integers(1, 50), st.integers(0, 4), max_size=20), st.data())
def test_behind_any_event_lies_exactly_the_rest(counts: dict[int, int], data: st.DataObject) -> None:
    """Records have gaps between them, and some have no events."""
    events = [(seq, index) for seq in sorted(counts) for index in range(counts[seq])]
    seen = data.draw(st.integers(0, len(events)))
    position = Position(*events[seen - 1]) if seen else Position()
    rest = [(seq, index) for seq, index in events if seq > position.before and not position.has_seen(seq, index)]
    assert rest == events[seen:]


@pytest.mark.parametrize(
    "text", ["", "-", "1-", "-1", "x", "1-x", "1.2", "1 ", "+1", "1-2-3", "1" * 17, "1-" + "1" * 8, "١"]
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        Position.parse(text)


def test_a_message_is_one_block_of_lines() -> None:
    data = event_data(1, "2026-01-01T00:00:00.000Z", "r", {"type": "t", "text": "a\r\nb\u2028", "run_id": "child"})
    encoded = Message(data, "t", "1-0").encode()
    assert len(encoded.decode().splitlines()) == 4
    assert encoded.startswith(b"id: 1-0\nevent: t\ndata: {")
    assert encoded.endswith(b"\n\n")
    assert said(Message(data)) == {
        "seq": 1,
        "at": "2026-01-01T00:00:00.000Z",
        "run_id": "r",
        "type": "t",
        "text": "a\r\nb\u2028",
        "child_run_id": "child",
    }
    assert Message(id="7").encode() == b": still here\nid: 7\n\n"


# --- one run -----------------------------------------------------------------------------------------------


async def test_a_run_is_told_from_its_beginning_to_its_end() -> None:
    world = EventWorld()
    await world.play(RUN)
    async with world.run(RUN) as reader:
        *messages, end = await reader.rest()
    expected = await world.all_of(RUN)
    assert ids(messages) == [place for place, _ in expected]
    assert [message.event for message in messages] == [event["type"] for _, event in expected]
    for message, (place, event) in zip(messages, expected, strict=True):
        envelope = {"seq": int(place.partition("-")[0]), "at": "2023-11-14T22:13:20.000Z", "run_id": RUN}
        assert said(message) == {**envelope, **event}
    assert (end.event, end.id, said(end)) == ("end", None, {"run_id": RUN, "status": "succeeded"})


async def test_a_reader_who_was_cut_off_anywhere_sees_the_rest_and_nothing_twice() -> None:
    world = EventWorld()
    await world.play(RUN)
    expected = [place for place, _ in await world.all_of(RUN)]
    for index, place in enumerate(expected[:-1]):
        async with world.run(RUN, after=place) as reader:
            assert ids(await reader.rest())[:-1] == expected[index + 1 :]


async def test_events_are_told_as_they_happen() -> None:
    world = EventWorld()
    await world.write(RUN, started())
    async with world.run(RUN) as reader:
        assert said(await reader.next())["type"] == "run.started"
        for number in range(5):
            await world.write(RUN, StepQueued(f"s{number % 3}", 1, 0))
            assert said(await reader.next())["type"] == "step.queued"
        await world.write(RUN, RunSucceeded())
        assert [message.event for message in await reader.rest()] == ["run.succeeded", "end"]


RARE_FROM = 3000.0


@pytest.fixture
def rare_reads(monkeypatch: pytest.MonkeyPatch) -> EventWorld:
    """A world in which reads without a notification are half an hour apart by the time `RARE_FROM`, and streams end
    before the next one."""
    monkeypatch.setattr(event_pulse, "SLOWEST_SECONDS", 3600.0)
    return EventWorld(stream_seconds=RARE_FROM + 60, heartbeat_seconds=3600.0)


async def test_events_are_read_on_notification(rare_reads: EventWorld) -> None:
    await rare_reads.write(RUN, started())
    async with rare_reads.run(RUN) as reader:
        assert said(await reader.next())["type"] == "run.started"
        await past(RARE_FROM)
        await rare_reads.write(RUN, RunSucceeded())
        assert [message.event for message in await reader.rest()] == ["run.succeeded", "end"]


async def test_a_notification_may_come_before_its_record(rare_reads: EventWorld) -> None:
    await rare_reads.write(RUN, started())
    async with rare_reads.run(RUN) as reader:
        assert said(await reader.next())["type"] == "run.started"
        await past(RARE_FROM)
        (followers,) = rare_reads.server.journal_followers
        notify = followers.pop()
        notify()
        await past(event_pulse.AGAIN_SECONDS / 2)
        await rare_reads.write(RUN, RunSucceeded())
        followers.append(notify)
        assert [message.event for message in await reader.rest()] == ["run.succeeded", "end"]


async def test_a_run_that_is_queued_is_waited_for() -> None:
    world = EventWorld()
    await world.broker.mailboxes.send(RUN, f"{RUN}.start", b'{"type": "start", "meta": {}}')
    async with world.run(RUN) as reader:
        first = asyncio.create_task(reader.next())
        await until(lambda: reader.signs)
        assert not first.done()
        await world.play(RUN)
        assert said(await first)["type"] == "run.started"


async def test_a_run_of_nobodys_or_of_another_tenants_is_not_found() -> None:
    world = EventWorld()
    await world.play(RUN, tenant="other")
    for run_id in (RUN, "run-nobody", "no run", ""):
        with pytest.raises(NotFoundError):
            await world.events.of_run(run_id, caller(), None)
    assert len(world.events) == 0
    assert not world.events.is_beating


async def test_an_ended_run_of_which_all_was_seen_has_no_stream() -> None:
    world = EventWorld()
    await world.play(RUN)
    last, _ = (await world.all_of(RUN))[-1]
    assert await world.events.of_run(RUN, caller(), Position.parse(last)) is None
    assert len(world.events) == 0
    assert not world.events.is_beating


async def test_a_run_that_is_retried_goes_on_behind_the_last_id() -> None:
    world = EventWorld()
    await world.write(RUN, started(), RunFailed(Failure("broken", "it broke")))
    async with world.run(RUN) as reader:
        *_, failed, end = await reader.rest()
        assert (failed.event, said(end)["status"]) == ("run.failed", "failed")
    assert failed.id is not None
    await world.write(RUN, RunRetried("somebody"))
    async with world.run(RUN, after=failed.id) as reader:
        assert said(await reader.next())["type"] == "run.retried"
        await world.write(RUN, RunSucceeded())
        assert [message.event for message in await reader.rest()] == ["run.succeeded", "end"]
    async with world.run(RUN) as reader:
        told = [message.event for message in await reader.rest()]
        assert told == ["run.started", "run.failed", "run.retried", "run.succeeded", "end"], (
            "the first end is not the last"
        )


async def test_a_run_that_was_retried_and_not_ended_again_is_waited_for() -> None:
    world = EventWorld()
    await world.write(RUN, started(), RunFailed(Failure("broken", "")))
    await world.write(RUN, RunRetried("somebody"))
    last, _ = (await world.all_of(RUN))[-1]
    async with world.run(RUN, after=last) as behind, world.run(RUN) as whole:
        following = asyncio.create_task(behind.next())
        assert [message.event for message in await whole.take(3)] == ["run.started", "run.failed", "run.retried"]
        ending = asyncio.create_task(whole.rest())
        await until(lambda: behind.signs)
        await world.write(RUN, RunSucceeded())
        assert said(await following)["type"] == "run.succeeded"
        assert [message.event for message in await ending] == ["run.succeeded", "end"]


async def test_a_history_longer_than_a_page_is_told_whole() -> None:
    world = EventWorld()
    await world.write(RUN, started())
    for number in range(250):
        await world.write(RUN, StepQueued(f"s{number % 3}", 1, number))
    await world.write(RUN, RunSucceeded())
    async with world.run(RUN) as reader:
        assert ids(await reader.rest())[:-1] == [place for place, _ in await world.all_of(RUN)]


class Fetched(Faults):
    """Counts what is asked for."""

    def __init__(self) -> None:
        self.asked = Counter[str]()

    async def call(self, operation: str, subject: str) -> Verdict:
        self.asked[operation] += 1
        return Verdict.OK


async def test_a_long_history_is_fetched_once_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    world, pages, read = EventWorld(), list[int](), MemoryJournal.read

    async def counted(self: MemoryJournal, run_id: str, *, after: int = 0, limit: int | None = None) -> list[Entry]:
        found = await read(self, run_id, after=after, limit=limit)
        pages.append(len(found))
        return found

    await world.write(RUN, started())
    for number in range(8 * HISTORY_RECORDS):
        await world.write(RUN, StepQueued("s0", number, 0))
    await world.write(RUN, RunSucceeded())
    await world.broker.bucket(Bucket.SUMMARIES).put(RUN, b'{"workflow": "w", "status": "succeeded"}')
    monkeypatch.setattr(MemoryJournal, "read", counted)
    async with world.run(RUN) as reader:
        assert len(await reader.rest()) == 8 * HISTORY_RECORDS + 3
    assert max(pages) == HISTORY_RECORDS + 1
    assert sum(pages) <= 9 * (HISTORY_RECORDS + 1), "each record once, and one of each page to see that there are more"


async def test_an_archive_is_fetched_once_for_all_its_pages_and_not_kept_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetched = Fetched()
    world = EventWorld(faults=fetched)
    await world.write(RUN, started())
    for number in range(3 * HISTORY_RECORDS):
        await world.write(RUN, StepQueued("s0", number, 0))
    await world.write(RUN, RunSucceeded())
    expected = [place for place, _ in await world.all_of(RUN)]
    await world.archive(RUN)
    monkeypatch.setattr(archived, "KEPT_SECONDS", 0.2)
    async with world.run(RUN) as reader, world.run(RUN) as other:
        assert ids(await reader.rest())[:-1] == expected
        assert ids(await other.rest())[:-1] == expected
    assert fetched.asked["blobs.get"] == 1
    kept = world.events._shared.runs._archives._kept
    await until(lambda: not kept)
    async with world.run(RUN, after=expected[-2]) as reader:
        assert ids(await reader.rest())[:-1] == expected[-1:]


async def test_archives_that_are_kept_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = EventWorld()
    for number in range(4):
        await world.play(f"run-{number}")
        await world.archive(f"run-{number}")
    kept = world.events._shared.runs._archives._kept
    for room, left in ((10**6, ["run-0", "run-1", "run-2", "run-3"]), (5000, ["run-2", "run-3"]), (1, [])):
        monkeypatch.setattr(archived, "KEPT_BYTES", room)
        for number in range(4):
            async with world.run(f"run-{number}") as reader:
                assert len(await reader.rest()) == 9
        assert [run_id for run_id, _ in kept] == left


async def test_the_run_that_a_step_calls_is_not_taken_for_the_run_itself() -> None:
    world = EventWorld()
    await world.write(RUN, started(), StepCalling("s0", 1, "run-child", "sha256:x"))
    async with world.run(RUN) as reader:
        await reader.next()
        calling = said(await reader.next())
        assert (calling["run_id"], calling["child_run_id"]) == (RUN, "run-child")


# --- all runs ----------------------------------------------------------------------------------------------


def by_run(messages: list[Message]) -> dict[str, list[str]]:
    """Each run's events in the order in which they were told."""
    found: dict[str, list[str]] = {}
    for message in messages:
        found.setdefault(said(message)["run_id"], []).append(said(message)["type"])
    return found


async def types_of(world: EventWorld, *runs: str) -> dict[str, list[str]]:
    return {run_id: [event["type"] for _, event in await world.all_of(run_id)] for run_id in runs}


async def test_all_runs_are_told_from_now_on() -> None:
    world = EventWorld(4)
    await world.play("run-before")
    async with world.wide() as reader:
        await asyncio.gather(*(world.play(f"run-{n}") for n in range(8)))
        expected = await types_of(world, *(f"run-{n}" for n in range(8)))
        messages = await reader.take(sum(map(len, expected.values())))
    assert by_run(messages) == expected


async def test_a_reader_of_all_runs_who_was_cut_off_anywhere_sees_the_rest_and_nothing_twice() -> None:
    world = EventWorld(4)
    async with world.wide() as reader:
        await reader_is_there(reader, world)
        begin = reader.last_id
        for number in range(6):
            await world.play(f"run-{number}")
        expected = await types_of(world, *(f"run-{n}" for n in range(6)))
        total = sum(map(len, expected.values()))
    assert begin is not None
    found: list[Message] = []
    place = begin
    while len(found) < total:
        async with world.wide(after=place) as reader:
            found += await reader.take(min(1 + len(found) % 5, total - len(found)))
            place = reader.last_id or place
    assert by_run(found) == expected
    assert len({(message.id, message.data) for message in found}) == total
    async with world.wide(after=place) as reader:
        await world.write("run-last", started())
        assert said(await reader.next())["run_id"] == "run-last", "there was nothing left of the others"


async def reader_is_there(reader: Reader, world: EventWorld) -> None:
    """Its first sign of life names its place."""
    await world.write("run-sign", started())
    assert await reader.next() is not None


async def test_nobody_sees_the_runs_of_another_tenant() -> None:
    world = EventWorld(2)
    async with world.wide(tenant="a") as one, world.wide(tenant="b") as two, world.wide() as nobody:
        for number in range(4):
            await world.play(f"run-a{number}", "a")
            await world.play(f"run-b{number}", "b")
        await world.write("run-own", started())
        for reader, tenant in ((one, "a"), (two, "b")):
            expected = await types_of(world, *(f"run-{tenant}{n}" for n in range(4)))
            assert by_run(await reader.take(sum(map(len, expected.values())))) == expected
        assert said(await nobody.next())["run_id"] == "run-own"


async def test_whose_a_run_is_is_found_out_when_its_beginning_was_not_seen() -> None:
    """By its summary, or by its journal where that is not written yet."""
    world = EventWorld()
    for run_id, tenant in (("run-a", "a"), ("run-b", "b"), ("run-c", "a")):
        await world.write(run_id, started(tenant))
    await world.broker.bucket(Bucket.SUMMARIES).put("run-a", b'{"tenant": "a", "workflow": "w"}')
    async with world.wide(tenant="a") as reader:
        for run_id in ("run-b", "run-a", "run-c"):
            await world.write(run_id, StepQueued("s0", 1, 0))
        assert [said(message)["run_id"] for message in await reader.take(2)] == ["run-a", "run-c"]


async def test_a_run_of_which_nobody_knows_whose_it_is_is_shown_to_nobody() -> None:
    world = EventWorld()
    async with world.wide() as reader:
        await world.write("run-lost", StepQueued("s0", 1, 0))
        await world.write("run-own", started())
        assert said(await reader.next())["run_id"] == "run-own"


async def test_a_record_that_is_another_runs_is_shown_to_nobody() -> None:
    world = EventWorld()
    await world.write("run-a", started())
    (entry,) = await world.broker.journal.read("run-a")
    async with world.wide() as reader:
        await world.broker.journal.append("run-b", entry.record_id, entry.data, expected=0)
        await world.write("run-own", started())
        assert said(await reader.next())["run_id"] == "run-own"


async def test_events_are_selected_by_type_and_workflow() -> None:
    world = EventWorld()
    types = Selection(types={"run.started", "run.succeeded"})
    async with world.wide(selection=types) as some, world.wide(selection=Selection(workflow="other")) as other:
        await world.play("run-1")
        await world.write("run-2", started(workflow="other"), StepQueued("s0", 1, 0))
        assert [said(message)["type"] for message in await some.take(3)] == [
            "run.started",
            "run.succeeded",
            "run.started",
        ]
        assert [said(message)["run_id"] for message in await other.take(2)] == ["run-2", "run-2"]
    async with world.wide(after=some.last_id, selection=types) as some:
        await world.write("run-2", RunSucceeded())
        assert said(await some.next())["type"] == "run.succeeded"


async def test_a_record_that_cannot_be_read_is_passed_over() -> None:
    """What lies elsewhere may be gone: nobody could go on behind a record that ends every stream."""
    world = EventWorld()
    async with world.wide() as reader:
        await world.write("run-large", started(), MapExpanded("s0", ["x" * 1000] * 3000))
        assert [said(message)["type"] for message in await reader.take(2)] == ["run.started", "map.expanded"]
        place = reader.last_id
        large = StepQueued("s0", 1, 0, "y" * 2_000_000), MapExpanded("s1", ["z" * 1000] * 3000)
        await world.write("run-large", *large)
        world.server.blobs.clear()
        await world.write("run-small", started())
        assert said(await reader.next())["run_id"] == "run-small"
    async with world.wide(after=place) as reader:
        assert said(await reader.next())["run_id"] == "run-small"


async def test_what_is_for_others_is_not_even_fetched() -> None:
    fetched = Fetched()
    world = EventWorld(faults=fetched)
    async with world.wide(tenant="a") as reader:
        await world.write("run-b", started("b"))
        for _ in range(5):
            await world.write("run-b", MapExpanded("s0", ["x" * 1000] * 3000))
        await world.write("run-a", started("a"), MapExpanded("s0", ["x" * 1000] * 3000))
        assert [said(message)["type"] for message in await reader.take(2)] == ["run.started", "map.expanded"]
    large = fetched.asked["blobs.get"]
    assert 1 <= large <= 2, "his own, to be shown and perhaps to be known"


async def test_a_run_of_which_only_a_newer_version_knows_whose_it_is_ends_no_stream() -> None:
    world = EventWorld()
    async with world.wide() as reader:
        data = b'{"v": 99}'
        await world.broker.journal.append("run-new", records.name("run-new", 0, data), data, expected=0)
        await world.broker.bucket(Bucket.SUMMARIES).put("run-new", b"no line")
        await world.write("run-own", started())
        assert said(await reader.next())["run_id"] == "run-own"


# --- both --------------------------------------------------------------------------------------------------


async def test_nothing_is_asked_for_while_nobody_follows() -> None:
    asked = Counter[str]()

    class Counts(Faults):
        async def call(self, operation: str, subject: str) -> Verdict:
            asked[operation] += 1
            return Verdict.OK

    world = EventWorld(4, faults=Counts())
    await world.write(RUN, started())
    assert not world.events.is_beating
    async with world.run(RUN), world.run(RUN):
        assert [pulse.is_beating for pulse in world.events._shared.pulses].count(True) == 1
        async with world.wide():
            assert all(pulse.is_beating for pulse in world.events._shared.pulses)
        assert [pulse.is_beating for pulse in world.events._shared.pulses].count(True) == 1
    assert not world.events.is_beating
    assert len(world.events) == 0
    before = asked["journal.tail"]
    await past(2 * event_pulse.SLOWEST_SECONDS)
    assert asked["journal.tail"] == before


async def test_readers_who_are_up_to_date_share_what_was_read() -> None:
    tails = Counter[str]()

    class Counts(Faults):
        async def call(self, operation: str, subject: str) -> Verdict:
            tails[operation] += 1
            return Verdict.OK

    world = EventWorld(faults=Counts())
    async with contextlib.AsyncExitStack() as stack:
        readers = [await stack.enter_async_context(world.wide()) for _ in range(16)]
        for number in range(10):
            await world.write(f"run-{number}", started())
            assert [said(await reader.next())["run_id"] for reader in readers] == [f"run-{number}"] * 16
    assert tails["journal.tail"] < 100, "one loop asks for all sixteen"


async def test_a_slow_reader_holds_up_nobody_and_nothing_is_kept_for_him() -> None:
    world = EventWorld()
    async with world.wide() as slow, world.wide() as quick:
        await world.write("run-0", started())
        assert await slow.next() is not None
        total = 3 * event_pulse.RING_RECORDS
        taking = asyncio.create_task(quick.take(total + 1))
        for number in range(total):
            await world.write(f"run-{number + 1}", started())
        assert len(by_run(await taking)) == total + 1
        (pulse,) = world.events._shared.pulses
        assert len(pulse._ring) <= event_pulse.RING_RECORDS
        assert pulse._ring_bytes <= event_pulse.RING_BYTES
        found = [said(message)["run_id"] for message in await slow.take(total)]
        assert found == [f"run-{n + 1}" for n in range(total)]


async def test_the_ring_is_bounded_in_bytes_too() -> None:
    world = EventWorld()
    async with world.wide() as reader:
        for number in range(20):
            await world.write(f"run-{number}", started(), StepQueued("s0", 1, 0, "x" * 120_000))
        assert len(await reader.take(40)) == 40
        assert world.events._shared.pulses[0]._ring_bytes <= event_pulse.RING_BYTES


async def test_another_server_goes_on_where_one_stopped() -> None:
    world = EventWorld(2)
    await world.play(RUN)
    expected = [place for place, _ in await world.all_of(RUN)]
    async with world.run(RUN) as reader:
        first = await reader.take(3)
    assert ids(first) == expected[:3]
    world.events = world.another()
    async with world.run(RUN, after=first[-1].id) as reader:
        assert ids(await reader.rest())[:-1] == expected[3:]


async def test_streams_are_bounded_and_no_tenant_has_more_than_a_quarter() -> None:
    world, tenants = EventWorld(most_streams=8, most_wide=4), ("default", "b", "c", "d")
    for tenant in (*tenants, "e"):
        await world.write(f"run-{tenant}", started(tenant))
    async with contextlib.AsyncExitStack() as stack:

        async def is_full(tenant: str, why: str) -> None:
            with pytest.raises(OverloadedError, match=why):
                await world.events.of_run(f"run-{tenant}", caller(tenant), None)
            with pytest.raises(OverloadedError, match=why):
                await world.events.of_all(caller(tenant), Selection(), None)

        for number, tenant in enumerate(tenants, 1):
            for stream in (world.run(f"run-{tenant}", None, tenant), world.wide(None, tenant)):
                await stack.enter_async_context(stream)
            await stack.enter_async_context(world.run(f"run-{tenant}", None, tenant))
            await is_full(tenant, "this tenant" if number < len(tenants) else "too many streams are open here")
            assert len(world.events) == 3 * number
        await is_full("e", "too many streams are open here")
    async with world.run("run-e", None, "e"):
        assert len(world.events) == 1


async def test_all_streams_end_when_the_server_drains() -> None:
    world = EventWorld()
    await world.write(RUN, started())
    async with world.run(RUN) as one, world.wide() as all_runs:
        assert await one.next() is not None
        rests = [asyncio.create_task(reader.rest()) for reader in (one, all_runs)]
        await until(lambda: all_runs.signs)
        world.events.close()
        assert [await rest for rest in rests] == [[], []], "an end of the server is not one of the run"
        with pytest.raises(DrainingError):
            await world.events.of_run(RUN, caller(), None)


async def test_a_stream_ends_with_its_server_while_it_is_paced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_pulse, "QUICK_TURNS", 0)
    world = EventWorld(heartbeat_seconds=3600.0)
    await world.write(RUN, started())
    async with world.run(RUN) as reader:
        assert await reader.next() is not None
        rest = asyncio.create_task(reader.rest())
        await past(60)
        (stream,) = world.events._shared.streams
        stream.follower.bell.set()
        await past(0.5 / event_pulse.TURNS_PER_SECOND)
        world.events.close()
        async with asyncio.timeout(60):
            assert await rest == []


async def test_there_are_signs_of_life_and_they_name_the_place() -> None:
    world = EventWorld(heartbeat_seconds=0.02)
    async with world.wide(tenant="a") as reader:
        waiting = asyncio.create_task(reader.next())
        await until(lambda: reader.signs)
        first = reader.last_id
        for number in range(3):
            await world.write(f"run-{number}", started("b"))
        await until(lambda: reader.last_id != first)
        signs = reader.signs
        await until(lambda: reader.signs > signs + 2)
        await world.write("run-a", started("a"))
        assert said(await waiting)["run_id"] == "run-a"


async def test_there_are_signs_of_life_on_a_long_way_through_what_is_for_others() -> None:
    world = EventWorld(heartbeat_seconds=10, look_seconds=0)
    for number in range(10 * event_pulse.PAGE_RECORDS):
        await world.write(f"run-{number}", started("b"))

    async def is_still_allowed() -> bool:
        await past(10)
        return True

    start = parse_cursor("0", world.events.partitions)
    stream = await world.events.of_all(caller("a"), Selection(), start, is_still_allowed)
    async with reading(stream) as reader:
        await world.write("run-a", started("a"))
        assert said(await reader.next())["run_id"] == "run-a"
        assert reader.signs >= 10


@pytest.mark.parametrize("busy", [False, True])
async def test_a_stream_ends_soon_after_its_key_does(busy: bool) -> None:
    world = EventWorld(look_seconds=0.05)
    allowed, looks = True, 0

    async def is_still_allowed() -> bool:
        nonlocal looks
        looks += 1
        return allowed

    stream = await world.events.of_all(caller(), Selection(), None, is_still_allowed)
    async with reading(stream) as reader:
        await world.write("run-first", started())
        assert await reader.next() is not None
        if busy:
            for number in range(200):
                await world.write(f"run-{number}", started())
        else:
            following = asyncio.create_task(reader.next())
            await until(lambda: looks > 3)
            await world.write("run-second", started())
            assert await following is not None, "as long as it may"
        allowed = False
        taken = 0
        while await reader.next() is not None:
            taken += 1
            await past(0.001)
        assert taken < 200


async def test_a_broker_that_was_away_makes_nobody_miss_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_pulse, "PAUSE_SECONDS", 0.01)
    away, refused = False, 0

    class Away(Faults):
        async def call(self, operation: str, subject: str) -> Verdict:
            nonlocal refused
            is_lost = away and operation == "journal.tail"
            refused += is_lost
            return Verdict.LOST if is_lost else Verdict.OK

    world = EventWorld(faults=Away())
    async with world.wide() as reader:
        away = True
        for number in range(5):
            await world.write(f"run-{number}", started())
        waiting = asyncio.create_task(reader.take(5))
        await until(lambda: refused >= 3)
        assert not waiting.done()
        away = False
        assert [said(message)["run_id"] for message in await waiting] == [f"run-{n}" for n in range(5)]


async def test_a_stream_that_cannot_read_ends_and_another_goes_on() -> None:
    lost = False

    class Lost(Faults):
        async def call(self, operation: str, subject: str) -> Verdict:
            return Verdict.LOST if lost and operation == "journal.read" else Verdict.OK

    world = EventWorld(faults=Lost())
    await world.write(RUN, started())
    async with world.run(RUN) as reader:
        assert await reader.next() is not None
        lost = True
        await world.write(RUN, RunSucceeded())
        assert await reader.rest() == [], "without an end"
    lost = False
    async with world.run(RUN, after=reader.last_id) as reader:
        assert [message.event for message in await reader.rest()] == ["run.succeeded", "end"]
