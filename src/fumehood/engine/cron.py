"""Times that come again, as cron writes them: minute, hour, day of month, month, day of week.

An expression is a set of minutes on a clock on the wall, and the clock hangs in a zone. Where the zone puts it back
or forward, this is what happens (the tests hold it to a walk over every minute):

- Hours that are written out (`30 2 * * *`) mean once a day. A minute that the clock shows twice fires the first time.
  A minute that the clock leaps over fires at the first instant after the leap; all that one leap skips is one firing.
- Hours that are `*` or `*/n` mean as time passes. A minute that the clock shows twice fires both times, one that it
  leaps over never.

Both come out of one thought: `_reached` is the first instant at which the clock shows a minute or has passed it.
"""

from __future__ import annotations

import bisect
import datetime as dt
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from zoneinfo import ZoneInfo

LONGEST = 256
"""Characters of an expression: every minute of an hour, written out, has fewer."""
HORIZON = dt.timedelta(days=41 * 366)
"""How far is looked for the next time. The longest wait there is has 40 years: for a 29 February on a certain day of
the week, across a year like 2100."""

_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - what a clock shows has no zone
_LAST = dt.date(9990, 12, 31)
_MINUTE, _DAY = dt.timedelta(minutes=1), dt.timedelta(days=1)
_WALKED = 500
"""Times that are counted one by one before `newest` looks for them from the end: some 20 ms."""

_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_LONGEST_MONTHS = {1: 31, 2: 29, 3: 31, 4: 30, 5: 31, 6: 30, 7: 31, 8: 31, 9: 30, 10: 31, 11: 30, 12: 31}


# --- reading -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Field:
    what: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    """From `low` on."""

    def parse(self, text: str) -> frozenset[int]:
        return frozenset().union(*(self._part(part) for part in text.split(",")))

    def _part(self, text: str) -> range:
        span, slash, step = text.partition("/")
        if slash and (re.fullmatch(r"[0-9]{1,4}", step) is None or int(step) == 0):
            raise ValueError(f"{self.what}: {text!r} needs a number after the slash, from 1")
        if span == "*":
            low, high = self.low, self.high
        else:
            first, dash, last = span.partition("-")
            low = self._value(first)
            high = self._value(last) if dash else low
            if slash and not dash:
                raise ValueError(f"{self.what}: {text!r} is a step without a range; write {span}-{self.high}/{step}")
            if self.names == _WEEKDAYS and dash and high == 0 < low:
                high = 7  # `fri-sun`
        if high < low:
            raise ValueError(f"{self.what}: {text!r} ends before it begins")
        return range(low, high + 1, int(step) if slash else 1)

    def _value(self, text: str) -> int:
        if text.lower() in self.names:
            return self.low + self.names.index(text.lower())
        if re.fullmatch(r"[0-9]{1,4}", text) is None:
            named = f" or a name like {self.names[1].upper()}" if self.names else ""
            raise ValueError(f"{self.what}: {text!r} is not a number{named}")
        if not self.low <= int(text) <= self.high:
            raise ValueError(f"{self.what}: {text} is not from {self.low} to {self.high}")
        return int(text)


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, 7, _WEEKDAYS),
)


@functools.lru_cache(maxsize=4096)
def parse(text: str) -> Cron:
    """`ValueError` says what is wrong."""
    if len(text) > LONGEST:
        raise ValueError(f"more than {LONGEST} characters")
    if text.strip().startswith("@") and text.strip().lower() not in _NAMED:
        raise ValueError(f"{text.strip()!r} is not one of {', '.join(_NAMED)}")
    parts = _NAMED.get(text.strip().lower(), text).split()
    if len(parts) != len(_FIELDS):
        raise ValueError(f"{len(parts)} fields, but there must be 5: {', '.join(one.what for one in _FIELDS)}")
    minutes, hours, days, months, weekdays = (one.parse(part) for one, part in zip(_FIELDS, parts, strict=True))
    made = Cron(
        minutes=tuple(sorted(minutes)),
        hours=tuple(sorted(hours)),
        days=days,
        months=months,
        weekdays=frozenset(day % 7 for day in weekdays),
        either_day=not parts[2].startswith("*") and not parts[4].startswith("*"),
        any_hour=re.fullmatch(r"\*(/[0-9]+)?", parts[1]) is not None,
    )
    if not made.either_day and not any(min(days) <= _LONGEST_MONTHS[month] for month in months):
        raise ValueError(f"day of month: no month that is named has a day {min(days)}")
    return made


# --- telling -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cron:
    """An expression that was read. Instants are milliseconds since the epoch."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool
    """Day of month and day of week both say something: then one of them is enough. This is cron's rule, in which a
    field that begins with `*` says nothing."""
    any_hour: bool
    """The hours are `*` or `*/n`."""

    def next_after(self, instant_ms: int, zone: ZoneInfo) -> int | None:
        """The first time behind an instant; None where there is none within `HORIZON`."""
        return self._next_as_time_passes(instant_ms, zone) if self.any_hour else self._next_of_day(instant_ms, zone)

    def between(self, after_ms: int, until_ms: int, zone: ZoneInfo, limit: int) -> list[int]:
        """The first `limit` times behind one instant and not behind another."""
        found: list[int] = []
        while len(found) < limit:
            following = self.next_after(found[-1] if found else after_ms, zone)
            if following is None or following > until_ms:
                break
            found.append(following)
        return found

    def newest(self, after_ms: int, until_ms: int, zone: ZoneInfo, limit: int) -> list[int]:
        """The last `limit` times of the same, oldest first, however many there are."""
        walked = self.between(after_ms, until_ms, zone, _WALKED)
        if len(walked) < _WALKED:
            return walked[-limit:]
        found: list[int] = []
        for _ in range(limit):
            found.append(self._last(after_ms, found[-1] - 1 if found else until_ms, zone))
        return found[::-1]

    def _last(self, after_ms: int, until_ms: int, zone: ZoneInfo) -> int:
        """The first instant behind which there is nothing any more, where there is something behind `after_ms`."""

        def is_behind_all(instant_ms: int) -> bool:
            following = self.next_after(instant_ms, zone)
            return following is None or following > until_ms

        return after_ms + bisect.bisect_left(range(after_ms, until_ms), True, key=is_behind_all)

    def _next_of_day(self, instant_ms: int, zone: ZoneInfo) -> int | None:
        """Minutes before what the clock shows were reached before; so were those that it showed before it was put
        back."""
        for wall in self._walls(_shown(instant_ms, zone)):
            reached = _reached(wall, zone)
            if reached > instant_ms:
                return reached
        return None

    def _next_as_time_passes(self, instant_ms: int, zone: ZoneInfo) -> int | None:
        """A clock that will be put back soon is going to show earlier minutes than it does now."""
        tomorrow = _shown(instant_ms + _ms(_DAY), zone) - _DAY
        found: int | None = None
        for wall in self._walls(min(_shown(instant_ms, zone), tomorrow)):
            if found is not None and _reached(wall, zone) >= found:
                break
            later = [one for one in _instants(wall, zone) if one > instant_ms and _shown(one, zone) == wall]
            found = min(later if found is None else [*later, found], default=None)
        return found

    def _walls(self, start: dt.datetime) -> Iterator[dt.datetime]:
        """The minutes on the wall from `start` on."""
        start = -(-(start - _EPOCH) // _MINUTE) * _MINUTE + _EPOCH
        for day in self._days_from(start.date()):
            first = (start.hour, start.minute) if day == start.date() else (0, 0)
            for hour in self.hours[bisect.bisect_left(self.hours, first[0]) :]:
                for minute in self.minutes:
                    if (hour, minute) >= first:
                        yield dt.datetime(day.year, day.month, day.day, hour, minute)  # noqa: DTZ001 - as above

    def _days_from(self, day: dt.date) -> Iterator[dt.date]:
        last = min(_LAST, day + HORIZON) if day < _LAST else day - _DAY
        while day <= last:
            if day.month not in self.months:
                day = (day.replace(day=28) + 4 * _DAY).replace(day=1)
                continue
            if self._is_on(day):
                yield day
            day += _DAY

    def _is_on(self, day: dt.date) -> bool:
        of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return (of_month or of_week) if self.either_day else (of_month and of_week)


# --- the clock on the wall ---------------------------------------------------------------------------------


def _ms(span: dt.timedelta) -> int:
    return span // dt.timedelta(milliseconds=1)


def _shown(instant_ms: int, zone: ZoneInfo) -> dt.datetime:
    """What the clock shows."""
    there = (_EPOCH + dt.timedelta(milliseconds=instant_ms)).replace(tzinfo=dt.UTC).astimezone(zone)
    return there.replace(tzinfo=None, fold=0)


def _instants(wall: dt.datetime, zone: ZoneInfo) -> list[int]:
    """When the clock shows it: once, or twice where it was put back. Where it was put forward over `wall`, one instant
    before and one after that."""
    found = set()
    for fold in (0, 1):
        offset = wall.replace(tzinfo=zone, fold=fold).utcoffset()
        assert offset is not None
        found.add(_ms(wall - _EPOCH - offset))
    return sorted(found)


def _reached(wall: dt.datetime, zone: ZoneInfo) -> int:
    """The first instant at which the clock shows `wall`, or has passed it."""
    early, *late = _instants(wall, zone)
    if not late or _shown(early, zone) == wall:
        return early
    seconds = range(early // 1000, late[0] // 1000 + 1)
    return 1000 * seconds[bisect.bisect_left(seconds, True, key=lambda second: _shown(second * 1000, zone) >= wall)]
