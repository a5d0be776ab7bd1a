"""Cron expressions: what they may say, and which instants they mean wherever clocks are put back and forward."""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fumehood.engine.cron import parse
from fumehood.engine.zones import zone

BERLIN, NEW_YORK, UTC = zone("Europe/Berlin"), zone("America/New_York"), zone("UTC")
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


def instant(text: str, where: ZoneInfo = UTC) -> int:
    """`2026-03-29 02:30`, or with an offset of its own: `2026-10-25 02:30+01:00`."""
    read = dt.datetime.fromisoformat(text)
    return int((read if read.tzinfo else read.replace(tzinfo=where)).timestamp() * 1000)


def told(instants: Iterable[int], where: ZoneInfo) -> list[str]:
    return [dt.datetime.fromtimestamp(one // 1000, where).isoformat(" ", "minutes") for one in instants]


def times(text: str, where: ZoneInfo, after: str, until: str) -> list[str]:
    """Not including `after`."""
    return told(parse(text).between(instant(after, where), instant(until, where), where, 10_000), where)


# --- what may be written -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@Annually", "0 0 1 1 *"),
        ("0 9 * JAN-mar,Dec Mon-FRI", "0 9 * 1-3,12 1-5"),
        ("0 9 * * 7", "0 9 * * 0"),
        ("0 9 * * fri-sun", "0 9 * * 5,6,0"),
        ("0 9 * * 5-7", "0 9 * * fri,sat,sun"),
        ("10-40/15 9 * * *", "10,25,40 9 * * *"),
        ("  0   9 *\t* * ", "0 9 * * *"),
        ("*/61 */24 * * *", "0 */24 * * *"),
    ],
)
def test_two_ways_to_write_the_same(text: str, same: str) -> None:
    assert parse(text) == parse(same)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "0 fields, but there must be 5: minute, hour, day of month, month, day of week"),
        ("0 9 * *", "4 fields"),
        ("0 0 9 * * *", "6 fields"),
        ("60 9 * * *", "minute: 60 is not from 0 to 59"),
        ("0 24 * * *", "hour: 24 is not from 0 to 23"),
        ("0 9 0 * *", "day of month: 0 is not from 1 to 31"),
        ("0 9 * 13 *", "month: 13 is not from 1 to 12"),
        ("0 9 * * 8", "day of week: 8 is not from 0 to 7"),
        ("0 9 L * *", "day of month: 'L' is not a number"),
        ("0 9 * * funday", "day of week: 'funday' is not a number or a name like MON"),
        ("0 9 * mon *", "month: 'mon' is not a number or a name like FEB"),
        ("0 17-9 * * *", "hour: '17-9' ends before it begins"),
        ("0 9 * nov-feb *", "month: 'nov-feb' ends before it begins"),
        ("5/15 * * * *", "minute: '5/15' is a step without a range; write 5-59/15"),
        ("*/0 * * * *", "minute: '*/0' needs a number after the slash, from 1"),
        ("*/x * * * *", "minute: '*/x' needs a number after the slash, from 1"),
        ("*/ * * * *", "minute: '*/' needs a number after the slash, from 1"),
        ("0,,5 * * * *", "minute: '' is not a number"),
        ("-5 * * * *", "minute: '' is not a number"),
        ("²-5 * * * *", "minute: '²' is not a number"),
        ("@reboot", "'@reboot' is not one of @hourly, @daily"),
        ("0 0 30 2 *", "day of month: no month that is named has a day 30"),
        ("0 0 31 4,6,9,11 *", "day of month: no month that is named has a day 31"),
        ("0 " * 200, "more than 256 characters"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        parse(text)


@given(st.text(alphabet="0123456789*/,-@ abcdefunMONJAL?#", max_size=30))
def test_any_text_is_read_or_refused_and_never_searched_for_without_end(text: str) -> None:
    try:
        made = parse(text)
    except ValueError:
        return
    after = instant("2026-01-01")
    following = made.next_after(after, UTC)
    assert following is not None
    assert after < following


@pytest.mark.parametrize(
    "name", ["", "Berlin", "Europe/berlin", "../etc/passwd", "Europe/", "UTC+1", "x" * 100, "a\0b"]
)
def test_an_unknown_zone_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a time zone"):
        zone(name)


def test_zones_do_not_depend_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ZoneInfo` itself would ask the host first."""

    def never(name: str) -> None:
        raise AssertionError(name)

    monkeypatch.setattr("zoneinfo._tzpath.find_tzfile", never)
    assert zone("Pacific/Chatham").utcoffset(dt.datetime(2026, 7, 1, tzinfo=dt.UTC)) == dt.timedelta(hours=12.75)


# --- days --------------------------------------------------------------------------------------------------


def test_one_of_both_days_is_enough_where_both_are_restricted() -> None:
    """The 13th, and every Friday."""
    days = times("0 0 13 * fri", UTC, "2026-03-01", "2026-03-31")
    assert [day[8:10] for day in days] == ["06", "13", "20", "27"]
    days = times("0 0 13 * fri", UTC, "2026-04-01", "2026-04-30")
    assert [day[8:10] for day in days] == ["03", "10", "13", "17", "24"]


def test_a_day_that_begins_with_a_star_restricts_the_other() -> None:
    """Fridays with an odd number."""
    days = times("0 0 */2 * fri", UTC, "2026-03-01", "2026-04-30")
    assert [day[5:10] for day in days] == ["03-13", "03-27", "04-03", "04-17"]


def test_29_february_on_a_sunday_is_found_across_2100() -> None:
    """40 years after the one before: the longest wait."""
    found = parse("0 0 29 2 */7").between(instant("2088-03-01"), instant("2200-01-01"), UTC, 3)
    assert [day[:10] for day in told(found, UTC)] == ["2128-02-29", "2156-02-29", "2184-02-29"]


def test_an_impossible_day_is_possible_where_the_other_is_enough() -> None:
    days = times("0 0 30 2 mon", UTC, "2026-01-01", "2026-12-31")
    assert [day[5:10] for day in days] == ["02-02", "02-09", "02-16", "02-23"]


def test_the_end_of_the_calendar_is_the_end() -> None:
    assert parse("@hourly").next_after(instant("9995-01-01"), UTC) is None


# --- clocks that are put back and forward ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "where", "day", "wanted"),
    [
        # Berlin leaps from 02:00 to 03:00 on 29 March 2026
        ("30 2 * * *", BERLIN, "2026-03-29", ["2026-03-29 03:00+02:00"]),
        ("0,15,30,45 2 * * *", BERLIN, "2026-03-29", ["2026-03-29 03:00+02:00"]),
        ("0 3 * * *", BERLIN, "2026-03-29", ["2026-03-29 03:00+02:00"]),
        ("30 2,3 * * *", BERLIN, "2026-03-29", ["2026-03-29 03:00+02:00", "2026-03-29 03:30+02:00"]),
        ("0 2,3 * * *", BERLIN, "2026-03-29", ["2026-03-29 03:00+02:00"]),
        ("30 */2 * * *", BERLIN, "2026-03-29", ["2026-03-29 00:30+01:00", "2026-03-29 04:30+02:00"]),
        # and goes from 03:00 back to 02:00 on 25 October 2026
        ("30 2 * * *", BERLIN, "2026-10-25", ["2026-10-25 02:30+02:00"]),
        ("0 3 * * *", BERLIN, "2026-10-25", ["2026-10-25 03:00+01:00"]),
        ("30 */2 * * *", BERLIN, "2026-10-25", ["2026-10-25 00:30+02:00", "2026-10-25 02:30+02:00"]),
        # New York: 8 March and 1 November 2026
        ("30 2 * * *", NEW_YORK, "2026-03-08", ["2026-03-08 03:00-04:00"]),
        ("30 1 * * *", NEW_YORK, "2026-11-01", ["2026-11-01 01:30-04:00"]),
        # Lord Howe moves by half an hour: 02:00 to 02:30, and back
        ("15 2 * * *", zone("Australia/Lord_Howe"), "2026-10-04", ["2026-10-04 02:30+11:00"]),
        ("45 1 * * *", zone("Australia/Lord_Howe"), "2026-04-05", ["2026-04-05 01:45+11:00"]),
        # Havana leaps at midnight
        ("0 0 * * *", zone("America/Havana"), "2026-03-08", ["2026-03-08 01:00-04:00"]),
        # Samoa had no 30 December 2011
        ("0 9 30 * *", zone("Pacific/Apia"), "2011-12-30", ["2011-12-31 00:00+14:00"]),
    ],
)
def test_a_day_on_which_the_clock_is_changed(text: str, where: ZoneInfo, day: str, wanted: list[str]) -> None:
    after = instant(f"{day} 00:00", where) - 1
    assert told(parse(text).between(after, instant(wanted[-1]), where, 100), where) == wanted
    assert told(parse(text).newest(after, instant(wanted[-1]), where, 100), where) == wanted


@pytest.mark.parametrize(("text", "minutes"), [("@hourly", 60), ("*/20 * * * *", 20), ("* * * * *", 1)])
def test_a_schedule_of_all_hours_fires_as_time_passes(text: str, minutes: int) -> None:
    """The short day has 23 hours, the long one 25, and no two times are nearer to each other, or further apart."""
    for day, hours in (("2026-03-29", 23), ("2026-10-25", 25)):
        after, count = instant(f"{day} 00:00", BERLIN) - 1, hours * 60 // minutes
        found = parse(text).between(after, after + 2 * DAY_MS, BERLIN, count)
        assert {later - earlier for earlier, later in itertools.pairwise(found)} == {minutes * MINUTE_MS}
        assert told(found, BERLIN)[-1].startswith(f"{day} 23:{60 - minutes:02}")


def test_a_daily_schedule_fires_once_on_each_day_of_a_year() -> None:
    """02:30 is what both changes of the year touch."""
    for where in (BERLIN, NEW_YORK):
        days = [day[:10] for day in times("30 2 * * *", where, "2026-01-01", "2027-01-01")]
        assert len(days) == len(set(days)) == 365


# --- against a walk over every minute ----------------------------------------------------------------------

ZONES = {
    "UTC": ["2026-06-01 00:00"],
    "Europe/Berlin": ["2026-03-29 01:00", "2026-10-25 01:00", "2051-03-26 01:00"],
    "America/New_York": ["2026-03-08 07:00", "2026-11-01 06:00"],
    "Australia/Lord_Howe": ["2026-10-03 15:30", "2026-04-04 15:00"],
    "Asia/Kathmandu": ["1985-12-31 18:30"],
    "Pacific/Apia": ["2011-12-30 10:00", "2011-09-24 14:00"],
    "America/Havana": ["2026-03-08 05:00", "2026-11-01 05:00"],
    "America/St_Johns": ["2007-03-11 03:31", "2007-11-04 02:31"],
    "Africa/Casablanca": ["2026-02-15 02:00", "2026-03-22 02:00"],
    "Antarctica/Troll": ["2026-03-29 01:00", "2026-10-25 01:00"],
}
"""Instants of changes, or of nothing where there are none."""


KINDS = ("*", "*/n", "a", "a-b", "a-b/n")
OFTEN_ALL = ("*",) * 7 + KINDS
"""For days and months: else there would hardly ever be a time near the change."""


@dataclass(frozen=True)
class Drawn:
    """One field: its text, and its values by a way of their own."""

    text: str
    values: frozenset[int]


@st.composite
def fields(draw: st.DrawFn, low: int, high: int, likely: Sequence[int], kinds: Sequence[str] = KINDS) -> Drawn:
    value = st.sampled_from(likely) | st.integers(low, high)
    parts: list[str] = []
    values: set[int] = set()
    for _ in range(draw(st.sampled_from([1, 1, 2]))):
        kind = draw(st.sampled_from(kinds))
        first, last = sorted((draw(value), draw(value)))
        step = draw(st.sampled_from([1, 2, 5, 15]) | st.integers(1, high))
        if kind.startswith("*"):
            first, last = low, high
        if kind == "a":
            last = first
        parts.append(kind.replace("a", str(first)).replace("b", str(last)).replace("n", str(step)))
        values |= {one for one in range(first, last + 1) if not kind.endswith("n") or (one - first) % step == 0}
    return Drawn(",".join(parts), frozenset(values))


@st.composite
def drawn_schedules(draw: st.DrawFn) -> list[Drawn]:
    made = [
        draw(fields(0, 59, [0, 15, 30, 31])),
        draw(st.just(Drawn("*", frozenset(range(24)))) | fields(0, 23, [0, 1, 2, 3])),
        draw(fields(1, 31, [1, 8, 25, 29, 30], OFTEN_ALL)),
        draw(fields(1, 12, [3, 10, 11, 12], OFTEN_ALL)),
        draw(fields(0, 7, [0, 6, 7], OFTEN_ALL)),
    ]
    assume(min(made[2].values) <= 29)  # a day that every month of some year has
    return made


def is_meant(schedule: list[Drawn], wall: dt.datetime) -> bool:
    minute, hour, day, month, weekday = schedule
    if wall.minute not in minute.values or wall.hour not in hour.values or wall.month not in month.values:
        return False
    of_week = {number % 7 for number in weekday.values}
    both = (wall.day in day.values, (wall.weekday() + 1) % 7 in of_week)
    starred = day.text.startswith("*") or weekday.text.startswith("*")
    return all(both) if starred else any(both)


@functools.cache
def walls(name: str, change: int) -> list[tuple[int, dt.datetime]]:
    """What the clock shows at every minute of two days around a change."""
    where, around = zone(name), range(change - 30 * HOUR_MS, change + 30 * HOUR_MS, MINUTE_MS)
    return [(at, dt.datetime.fromtimestamp(at // 1000, where).replace(tzinfo=None, fold=0)) for at in around]


def walked(schedule: list[Drawn], minutes: list[tuple[int, dt.datetime]], after: int, until: int) -> list[int]:
    """Every minute of real time, one by one, with what the clock showed before."""
    hour = schedule[1].text
    passing = hour == "*" or (hour.startswith("*/") and "," not in hour)
    shown: set[dt.datetime] = set()
    found: list[int] = []
    before: dt.datetime | None = None
    for at, wall in minutes:
        leapt = []
        while before is not None and before + dt.timedelta(minutes=1) < wall:
            before += dt.timedelta(minutes=1)
            leapt.append(before)
        fresh = [*leapt, wall] if wall not in shown else []
        meant = is_meant(schedule, wall) if passing else any(is_meant(schedule, one) for one in fresh)
        if meant and after < at <= until:
            found.append(at)
        shown.update(fresh)
        before = wall
    return found


@settings(max_examples=100, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(ZONES)), schedule=drawn_schedules())
def test_the_times_are_those_of_a_walk_over_every_minute(data: st.DataObject, name: str, schedule: list[Drawn]) -> None:
    where = zone(name)
    change = instant(data.draw(st.sampled_from(ZONES[name]), label="change"))
    after = change + data.draw(st.integers(-12 * 3600, 4 * 3600), label="seconds from it") * 1000
    until = after + 16 * HOUR_MS
    made = parse(" ".join(field.text for field in schedule))
    wanted = walked(schedule, walls(name, change), after, until)
    assert made.between(after, until, where, 10_000) == wanted
    assert made.newest(after, until, where, 3) == wanted[-3:]
    following = made.next_after(after, where)
    assert following == wanted[0] if wanted else following is None or following > until


@settings(max_examples=100, deadline=None)
@given(
    name=st.sampled_from(sorted(ZONES)),
    schedule=drawn_schedules(),
    after=st.integers(0, instant("2060-01-01")),
)
def test_each_time_is_behind_the_one_before(name: str, schedule: list[Drawn], after: int) -> None:
    made = parse(" ".join(field.text for field in schedule))
    found = made.between(after, instant("9000-01-01"), zone(name), 5)
    assert len(found) == 5
    assert sorted(set(found)) == found
    assert found[0] > after


def test_the_newest_of_very_many_are_found() -> None:
    """More than anybody would count."""
    after, until = instant("2025-06-01 00:00:30"), instant("2026-06-01 00:00:30")
    found = parse("* * * * *").newest(after, until, BERLIN, 3)
    assert told(found, UTC) == ["2026-05-31 23:58+00:00", "2026-05-31 23:59+00:00", "2026-06-01 00:00+00:00"]
    weekly = parse("*/2 3 * * mon").newest(after, until, BERLIN, 2)
    assert told(weekly, BERLIN) == ["2026-05-25 03:56+02:00", "2026-05-25 03:58+02:00"]
