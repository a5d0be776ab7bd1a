"""Schedules are fired when they say, once, whatever happens to whoever fires them."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
from dataclasses import replace

import pytest

from fumehood.broker.memory import Faults, MemoryBroker, Verdict
from fumehood.broker.ports import Bucket
from fumehood.control.callers import ADMIN
from fumehood.control.runs import Runs
from fumehood.control.schedule import Fired, Schedule
from fumehood.control.schedules import Plan
from fumehood.control.service import Service, now_ms
from fumehood.engine.state import RunState
from fumehood.errors import OverloadedError
from fumehood.wire.schedule_api import CatchUp
from tests.simulation.weather import Chaos, Crashed, StormyFaults
from tests.unit.schedule_world import SMALL, ScheduleWorld, instant
from tests.waiting import until

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"


async def world(begins: str = "2026-06-01 00:00:30", where: str = "UTC") -> ScheduleWorld:
    made = ScheduleWorld(begins, where)
    await made.apply()
    return made


# --- firing ------------------------------------------------------------------------------------------------


async def test_a_time_becomes_a_run_that_says_where_it_comes_from() -> None:
    here = await world()
    await here.put("0 * * * *", input={"x": 1}, labels={"team": "a"})
    async with here.at_work():
        await here.until("2026-06-01 00:59:59")
        assert here.starts() == {}
        await here.until("2026-06-01 01:00:00")
        ((run_id, body),) = here.starts().items()
    at = instant("2026-06-01 01:00")
    assert (body["input"], body["definition"]["name"]) == ({"x": 1}, "w")
    assert body["meta"] == {"by": "schedule/s", "labels": {"team": "a"}, "schedule": {"name": "s", "at": at}}
    assert re.fullmatch(r"run-[0-9a-f]{32}", run_id)
    assert run_id.startswith(f"run-{at:012x}")
    schedule = await here.shown()
    assert (schedule.last, schedule.done_until) == (Fired(at, run_id), at)


async def test_each_schedule_follows_its_own_times() -> None:
    here = await world()
    async with here.at_work():
        await here.put("*/15 * * * *", "often")
        await here.put("30 0,2 * * *", "seldom")
        await here.until("2026-06-01 03:00")
    assert here.fired_at("often")[:3] == [f"2026-06-01 00:{minute}+00:00" for minute in (15, 30, 45)]
    assert len(here.fired("often")) == 12
    assert here.fired_at("seldom") == ["2026-06-01 00:30+00:00", "2026-06-01 02:30+00:00"]


async def test_many_that_are_due_at_once_are_all_fired() -> None:
    here = await world()
    for number in range(100):
        await here.put("0 * * * *", f"s{number}")
    both = [here.scheduler(), here.scheduler()]
    async with here.at_work(*both):
        await here.until("2026-06-01 01:30")
    assert {len(runs) for runs in here.runs_by_time().values()} == {1}
    assert len(here.starts()) == 100


async def test_a_schedule_that_changes_is_followed_as_it_is_now() -> None:
    here = await world()
    async with here.at_work():
        await here.put("0 * * * *")
        await here.until("2026-06-01 01:30")
        await here.put("45 * * * *")
        await here.until("2026-06-01 02:30")
        await here.service.schedules.delete("s", ADMIN)
        await here.until("2026-06-01 05:00")
    assert here.fired_at() == ["2026-06-01 01:00+00:00", "2026-06-01 01:45+00:00"]


async def test_a_schedule_that_changes_all_the_time_fills_no_memory() -> None:
    here = await world()
    scheduler = here.scheduler()
    async with here.at_work(scheduler):
        for minute in range(60):
            for hour in range(24):
                await here.put(f"{minute} {hour} 1 1 *")
            await here.settle()
        assert len(scheduler._naps) < 200
        await here.until("2027-01-01 23:59")
    assert here.fired_at() == ["2027-01-01 23:59+00:00"]


async def test_what_is_started_is_the_workflow_of_that_moment() -> None:
    here = await world()
    await here.put("0 * * * *")
    async with here.at_work():
        await here.until("2026-06-01 01:30")
        await here.apply(b"name: w\nsteps:\n  - {id: b, task: t}\n")
        await here.until("2026-06-01 02:30")
    assert [body["definition"]["steps"][0]["id"] for body in here.starts().values()] == ["a", "b"]


async def test_a_schedule_made_again_under_the_same_name_begins_anew() -> None:
    here = await world()
    async with here.at_work():
        await here.put("0 * * * *")
        await here.until("2026-06-01 01:00")
        await here.service.schedules.delete("s", ADMIN)
        await here.put("0 * * * *")
        await here.until("2026-06-01 02:00")
    first, second = here.starts()
    assert here.fired_at() == ["2026-06-01 01:00+00:00", "2026-06-01 02:00+00:00"]
    assert first[16:] != second[16:]


async def test_a_server_fires_while_it_decides() -> None:
    """Its clock is a second before the full minute."""
    ahead = 59_000 - now_ms() % 60_000
    service = Service(MemoryBroker(), clock_ms=lambda: now_ms() + ahead)
    await service.workflows.apply("w", SMALL, is_json=False, tenant=ADMIN.tenant)
    await service.schedules.put("s", Plan("w", "* * * * *"), ADMIN)

    async def run_of_the_last() -> bool:
        fired = (await service.schedules.get("s", ADMIN)).last
        return fired is not None and isinstance(await service.runs.get(fired.run_id, ADMIN), RunState)

    async with service.deciding():
        await until(run_of_the_last)
    assert service.scheduler.counts == {"fired": 1}


# --- clocks that are put back and forward ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "year"), [(BERLIN, ("2026-03-29", "2026-10-25")), (NEW_YORK, ("2026-03-08", "2026-11-01"))]
)
async def test_a_year_with_both_changes_of_the_clock(where: str, year: tuple[str, str]) -> None:
    """01:30 and 02:30 are what the two cities' changes touch, and each of the 365 days has one run of each."""
    here = await world("2026-01-01 00:00:30", where)
    both = [here.scheduler(), here.scheduler()]
    async with here.at_work(*both):
        await here.put("30 1 * * *", "early")
        await here.put("30 2 * * *", "late")
        await here.until("2027-01-01 00:00")
    for name in ("early", "late"):
        days = [day[:10] for day in here.fired_at(name)]
        assert len(days) == len(set(days)) == 365
    spring, autumn = year
    (leapt,) = [time for time in here.fired_at("late") if time.startswith(spring)]
    assert leapt[11:16] == "03:00"
    repeated = "late" if where == BERLIN else "early"
    (first,) = [time for time in here.fired_at(repeated) if time.startswith(autumn)]
    assert first[16:] == {BERLIN: "+02:00", NEW_YORK: "-04:00"}[where]
    assert {len(runs) for runs in here.runs_by_time().values()} == {1}


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25)])
async def test_an_hourly_schedule_has_as_many_runs_as_the_day_has_hours(day: str, hours: int) -> None:
    here = await world(f"{day} 00:00:30", BERLIN)
    async with here.at_work():
        await here.put("15 * * * *")
        await here.until(f"{day} 23:59")
    times = here.fired()
    assert len(times) == hours
    assert {later - earlier for earlier, later in itertools.pairwise(times)} == {3_600_000}


# --- outages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("catch_up", "limit", "wanted"),
    [
        ("none", 10, []),
        ("last", 10, ["06:00"]),
        ("all", 10, ["02:00", "03:00", "04:00", "05:00", "06:00"]),
        ("all", 3, ["04:00", "05:00", "06:00"]),
    ],
)
async def test_what_was_missed_while_no_server_was_there(catch_up: str, limit: int, wanted: list[str]) -> None:
    here = await world()
    await here.put("0 * * * *", catch_up=catch_up, catch_up_limit=limit)
    async with here.at_work():
        await here.until("2026-06-01 01:30")
    before = here.fired()
    await here.until("2026-06-01 06:20")
    async with here.at_work():
        await here.until("2026-06-01 06:21")
        caught_up = here.fired_at()[len(before) :]
        await here.until("2026-06-01 07:30")
    assert caught_up == [f"2026-06-01 {time}+00:00" for time in wanted]
    assert here.fired_at()[len(before) + len(wanted) :] == ["2026-06-01 07:00+00:00"]


@pytest.mark.parametrize("catch_up", list(CatchUp))
async def test_a_time_of_the_last_minute_is_not_missed(catch_up: CatchUp) -> None:
    here = await world()
    await here.put("0 * * * *", catch_up=catch_up)
    await here.until("2026-06-01 01:00:59")
    async with here.at_work():
        await here.settle()
        assert here.fired_at() == ["2026-06-01 01:00+00:00"]


async def test_an_outage_of_a_year_is_over_at_once() -> None:
    """Half a million missed times, of which the last hundred count; and one that is on time."""
    here = await world()
    await here.put("* * * * *", catch_up="all", catch_up_limit=100)
    await here.until("2027-06-01 00:00:30")
    async with here.at_work():
        await here.settle()
        times = here.fired()
    last = instant("2027-06-01 00:00")
    assert times == [last - 60_000 * n for n in range(100, -1, -1)]


@pytest.mark.parametrize(
    ("catch_up", "wanted"),
    [("none", []), ("last", ["2026-03-29 03:00+02:00"]), ("all", ["2026-03-28 02:30+01:00", "2026-03-29 03:00+02:00"])],
)
async def test_an_outage_over_a_change_of_the_clock(catch_up: str, wanted: list[str]) -> None:
    here = await world("2026-03-27 12:00", BERLIN)
    await here.put("30 2 * * *", catch_up=catch_up)
    await here.until("2026-03-29 12:00")
    async with here.at_work():
        await here.until("2026-03-30 12:00")
    assert here.fired_at() == [*wanted, "2026-03-30 02:30+02:00"]


@pytest.mark.parametrize("catch_up", list(CatchUp))
async def test_a_pause_is_not_caught_up(catch_up: CatchUp) -> None:
    here = await world()
    async with here.at_work():
        await here.put("0 * * * *", catch_up=catch_up)
        await here.until("2026-06-01 01:30")
        await here.service.schedules.pause("s", ADMIN)
        await here.until("2026-06-01 04:30")
        await here.service.schedules.resume("s", ADMIN)
        await here.until("2026-06-01 05:30")
    assert here.fired_at() == ["2026-06-01 01:00+00:00", "2026-06-01 05:00+00:00"]


# --- refusals ----------------------------------------------------------------------------------------------


async def test_a_start_that_is_refused_is_told_and_not_tried_again() -> None:
    here = await world()
    async with here.at_work():
        await here.put("0 * * * *", input={"hush": "hush-hush"})
        await here.apply(b"name: w\ninput_schema: {required: [url]}\nsteps:\n  - {id: a, task: t}\n")
        await here.until("2026-06-01 01:30")
        refused = await here.shown()
        assert refused.last_error is not None
        assert (refused.last_error.at, refused.last_error.code) == (instant("2026-06-01 01:00"), "invalid-request")
        assert "hush" not in refused.last_error.message
        assert (refused.done_until, refused.last) == (instant("2026-06-01 01:00"), None)
        await here.apply()
        await here.until("2026-06-01 02:30")
    assert here.fired_at() == ["2026-06-01 02:00+00:00"]
    assert (await here.shown()).last_error is None


async def test_a_workflow_that_is_gone_is_a_refusal() -> None:
    here = await world()
    async with here.at_work():
        await here.put("0 * * * *")
        await here.service.broker.bucket(Bucket.DEFINITIONS).delete("name.w")
        await here.until("2026-06-01 01:30")
    schedule = await here.shown()
    assert schedule.last_error is not None
    assert schedule.last_error.code == "not-found"


async def test_a_quota_that_is_used_up_is_a_refusal_and_not_a_reason_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its times would pile up behind it."""
    here = await world()

    async def full(*_: object) -> None:
        raise OverloadedError("too many runs", retry_after_seconds=1)

    monkeypatch.setattr(Runs, "start_as", full)
    async with here.at_work():
        await here.put("0 * * * *")
        await here.until("2026-06-01 03:30")
    schedule = await here.shown()
    assert schedule.last_error is not None
    assert (schedule.last_error.code, schedule.done_until) == ("overloaded", instant("2026-06-01 03:00"))


async def test_a_run_that_is_there_already_is_not_held_against_a_newer_schema() -> None:
    """Its first start was heard; whoever repeats it must not record a refusal of a run that exists."""
    here = await world()
    schedule = await here.put("0 * * * *")
    await here.until("2026-06-01 01:00:10")
    dying = here.scheduler(Cuts("schedules.update", Crashed))
    with pytest.raises(Crashed):
        await dying.serve(schedule.key)
    assert len(here.starts()) == 1
    await here.apply(b"name: w\ninput_schema: {required: [url]}\nsteps:\n  - {id: a, task: t}\n")
    async with here.at_work():
        await here.settle()
    after = await here.shown()
    assert (after.last_error, len(here.starts())) == (None, 1)
    assert after.last is not None
    assert after.last.run_id in here.starts()


# --- crashes -----------------------------------------------------------------------------------------------


class Cuts(Faults):
    """Dies at the first call of an operation, or has it fail so."""

    def __init__(self, operation: str, how: type[BaseException] | Verdict) -> None:
        self.operation: str | None = operation
        self.how = how

    async def call(self, operation: str, subject: str) -> Verdict:
        if operation != self.operation:
            return Verdict.OK
        self.operation = None
        if isinstance(self.how, Verdict):
            return self.how
        raise self.how


class Full(Faults):
    """No schedule can be changed."""

    is_full = True

    async def call(self, operation: str, subject: str) -> Verdict:
        return Verdict.LOST if self.is_full and operation == "schedules.update" else Verdict.OK


STEPS = ["schedules.get", "mailboxes.last", "definitions.get", "summaries.get", "mailboxes.send", "schedules.update"]


@pytest.mark.parametrize("operation", STEPS)
async def test_whoever_dies_at_any_call_leaves_one_run(operation: str) -> None:
    here = await world()
    schedule = await here.put("0 * * * *")
    await here.until("2026-06-01 01:00:10")
    with pytest.raises(Crashed):
        await here.scheduler(Cuts(operation, Crashed)).serve(schedule.key)
    async with here.at_work():
        await here.settle()
    assert here.fired_at() == ["2026-06-01 01:00+00:00"]
    assert (await here.shown()).done_until == instant("2026-06-01 01:00")


@pytest.mark.parametrize("verdict", [Verdict.LOST, Verdict.UNANSWERED])
@pytest.mark.parametrize("operation", STEPS)
async def test_a_broker_that_fails_is_tried_again(operation: str, verdict: Verdict) -> None:
    here = await world()
    await here.put("0 * * * *")
    faulty = here.scheduler(Cuts(operation, verdict))
    async with here.at_work(faulty):
        await here.until("2026-06-01 02:30")
    assert here.fired_at() == ["2026-06-01 01:00+00:00", "2026-06-01 02:00+00:00"]
    assert faulty.counts["failed"] == 0


async def test_what_is_due_is_fired_while_nothing_can_be_moved() -> None:
    """The bucket is full: what was caught up stays due, and keeps nothing else from being fired in its time."""
    here = await world()
    await here.put("0 * * * *", catch_up="last")
    await here.until("2026-06-01 01:30")
    full = Full()
    async with here.at_work(here.scheduler(full)):
        await here.until("2026-06-01 03:30")
        assert here.fired_at() == [f"2026-06-01 0{hour}:00+00:00" for hour in (1, 2, 3)]
        full.is_full = False
        await here.until("2026-06-01 04:30")
    assert here.fired_at() == [f"2026-06-01 0{hour}:00+00:00" for hour in (1, 2, 3, 4)]
    assert (await here.shown()).done_until == instant("2026-06-01 04:00")


async def test_a_schedule_that_is_gone_is_forgotten_although_the_watch_is_quiet() -> None:
    here = await world()
    schedule = await here.put("0 * * * *")
    entry = await here.service.broker.bucket(Bucket.SCHEDULES).get(schedule.key)
    assert entry is not None
    scheduler = here.scheduler()
    scheduler._note(entry)  # and nothing after it
    await here.service.schedules.delete("s", ADMIN)
    await here.until("2026-06-01 01:00")
    assert scheduler._due() == [schedule.key]
    await scheduler.serve(schedule.key)
    assert scheduler._known == {}


async def test_a_fault_of_ours_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    here = await world()
    faults = [RuntimeError("a fault of ours")] * 3
    start_as = Runs.start_as

    async def faulty(*arguments: object) -> None:
        if faults:
            raise faults.pop()
        await start_as(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Runs, "start_as", faulty)
    scheduler = here.scheduler()
    async with here.at_work(scheduler):
        await here.put("0 * * * *")
        await here.until("2026-06-01 02:30")
    assert here.fired_at() == ["2026-06-01 01:00+00:00", "2026-06-01 02:00+00:00"]
    assert scheduler.counts["failed"] == 3


async def test_a_schedule_that_cannot_be_read_keeps_nobody_from_the_others() -> None:
    here = await world()
    bucket = here.service.broker.bucket(Bucket.SCHEDULES)
    newer = replace(await here.put("0 * * * *", "newer"), timezone="Mars/Olympus")
    await bucket.put(newer.key, newer.encode())
    await bucket.put("default.broken", b"[]")
    async with here.at_work():
        await here.put("0 * * * *")
        await here.until("2026-06-01 02:30")
    assert len(here.fired()) == 2
    assert here.fired("newer") == []


async def test_what_a_newer_version_wrote_is_kept() -> None:
    here = await world()
    schedule = await here.put("0 * * * *")
    newer = replace(schedule, more={"jitter": "5m"})
    await here.service.broker.bucket(Bucket.SCHEDULES).put(schedule.key, newer.encode())
    async with here.at_work():
        await here.until("2026-06-01 01:30")
        await here.put("0 * * * *", labels={"a": "b"})
    after = await here.shown()
    assert (after.more, after.labels, after.done_until) == (
        {"jitter": "5m"},
        {"a": "b"},
        instant("2026-06-01 01:00"),
    )


# --- bad weather -------------------------------------------------------------------------------------------

HOURS = 6
BAD = Chaos(crash=0.03, lost=0.05, unanswered=0.05, cut_off=0.005)


async def crashing(here: ScheduleWorld, draw: random.Random, chaos: Chaos) -> None:
    """A scheduler that is started again whenever it dies."""
    while True:
        scheduler = here.scheduler(StormyFaults(draw, chaos, here.clock), draw)
        try:
            await scheduler.work()
        except BaseExceptionGroup as group:
            if group.subgroup(Crashed) is None:
                raise
        await here.pause(draw.random() * 20)


@pytest.mark.parametrize("seed", range(25))
async def test_two_schedulers_in_bad_weather_fire_each_time_once(seed: int) -> None:
    """They crash at any call, lose requests and answers and are cut off for up to a minute; with `all`, no time may be
    lost whatever they do. Meanwhile somebody changes what may be changed without another meaning."""
    draw = random.Random(seed)
    here = ScheduleWorld("2026-06-01 00:00:30")
    await here.apply()
    crons = {"a": "*/10 * * * *", "b": "*/10 * * * *", "c": "7,8,9 * * * *"}
    for name, cron in crons.items():
        await here.put(cron, name, catch_up="all", catch_up_limit=100)
    chaos = replace(BAD)
    processes = [asyncio.create_task(crashing(here, draw, chaos)) for _ in range(2)]
    begin, end = here.now_ms(), instant(f"2026-06-01 0{HOURS}:15")
    try:
        for hour in range(HOURS):
            await here.until(instant(f"2026-06-01 0{hour}:00") + draw.randrange(3_600_000))
            await here.put(crons["a"], "a", catch_up="all", catch_up_limit=100, labels={"hour": str(hour)})
        for name in vars(chaos):
            setattr(chaos, name, 0.0)
        await here.until(end)
        for process in processes:
            assert not process.done(), process.result()
    finally:
        for process in processes:
            process.cancel()
        await asyncio.gather(*processes, return_exceptions=True)
    runs = here.runs_by_time()
    assert {len(ids) for ids in runs.values()} == {1}
    for name in crons:
        wanted = all_times(await here.shown(name), begin, end)
        assert sorted(at for one, at in runs if one == name) == wanted


def all_times(schedule: Schedule, begin: int, end: int) -> list[int]:
    found: list[int] = []
    following = schedule.next_after(begin)
    while following is not None and following <= end:
        found.append(following)
        following = schedule.next_after(following)
    return found
