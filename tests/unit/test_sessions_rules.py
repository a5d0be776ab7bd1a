"""The pure rules of sessions: leases, and who is waited for."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from fumehood.sandbox.sessions.leases import Lease, Moment
from fumehood.sandbox.sessions.process import lost
from fumehood.sandbox.sessions.readers import ACTIVE_SECONDS, AHEAD_BYTES, MOST, RETURN_SECONDS, Readers
from fumehood.sandbox.sessions.records import (
    SHOWN,
    outcome_json,
    outcome_of,
    process_json,
    process_of,
    session_json,
    session_of,
    shown,
)
from fumehood.sandbox.sessions.retention import excess, surplus
from fumehood.sandbox.sessions.values import ProcessWish, SessionName, SessionWish
from fumehood.wire.sandbox import NetworkProfile

TIMES = st.integers(0, 10**13)
LENGTHS = st.integers(0, 10**9)
MOMENTS = st.builds(Moment, TIMES, TIMES)


@given(MOMENTS, LENGTHS, st.lists(st.tuples(MOMENTS, LENGTHS), max_size=20))
def test_a_lease_only_grows_and_is_never_revived(began: Moment, length: int, asked: list[tuple[Moment, int]]) -> None:
    """Whatever is asked for and however the clock is set."""
    lease = Lease.begun(began, length)
    for now, wanted in asked:
        before = lease
        was_over = before.expired(now)
        lease = lease.extended(now, wanted)
        assert lease.expires_ms >= before.expires_ms
        assert lease.ends_ms >= before.ends_ms
        if was_over:
            assert (lease.expires_ms, lease.over) == (before.expires_ms, True)
            assert lease.expired(Moment(0, 0))
        else:
            assert lease.expires_ms == max(before.expires_ms, now.wall_ms + wanted)
            assert lease.ends_ms == max(before.ends_ms, now.steady_ms + wanted)


@given(MOMENTS, LENGTHS, TIMES, LENGTHS)
def test_a_lease_ends_at_its_moment_however_the_wall_clock_is_set(
    began: Moment, length: int, wall_ms: int, passed: int
) -> None:
    lease = Lease.begun(began, length)
    assert lease.expired(Moment(wall_ms, began.steady_ms + passed)) == (passed >= length)


@given(MOMENTS, LENGTHS, LENGTHS, TIMES)
def test_the_next_life_goes_on_with_what_is_left_by_the_wall_clock(
    began: Moment, length: int, away: int, steady_ms: int
) -> None:
    stored = Lease.stored(Moment(began.wall_ms + away, steady_ms), Lease.begun(began, length).expires_ms)
    assert stored.expires_ms == began.wall_ms + length
    assert stored.expired(Moment(0, steady_ms)) == (away >= length)
    assert stored.expired(Moment(0, steady_ms + max(0, length - away)))


@dataclass(frozen=True)
class Old:
    used: float
    kept: int = 0


OLD = st.lists(st.builds(Old, st.integers(0, 100).map(float), st.integers(0, 10)), max_size=30)


@given(OLD, st.integers(0, 30), st.integers(0, 100))
def test_the_longest_unused_are_forgotten_and_none_that_was_used_since(ended: list[Old], most: int, idle: int) -> None:
    gone = surplus(ended, most, float(idle))
    assert all(one.used <= idle for one in gone)
    assert len(ended) - len(gone) >= min(most, len(ended))
    left = list(ended)
    for one in gone:
        left.remove(one)
    assert all(one.used <= other.used for one in gone for other in left)
    assert len(left) <= most or min(one.used for one in left) > idle


@given(OLD, st.integers(-5, 100), st.integers(0, 100))
def test_as_much_output_goes_as_must_and_can(ended: list[Old], over: int, idle: int) -> None:
    gone = excess(ended, over, float(idle))
    assert all(one.used <= idle and one.kept for one in gone)
    freed = sum(one.kept for one in gone)
    can = sum(one.kept for one in ended if one.used <= idle)
    assert freed >= min(over, can)
    assert not gone or freed - gone[-1].kept < over  # and no more than that


@given(st.lists(st.tuples(st.integers(0, 3 * AHEAD_BYTES), st.integers(0, 3 * AHEAD_BYTES)), max_size=MOST))
def test_the_slowest_reader_is_waited_for(places: list[tuple[int, int]]) -> None:
    readers = Readers()
    for place in places:
        readers.ask(place, 0.0)
    written = (3 * AHEAD_BYTES, 3 * AHEAD_BYTES)
    slowest = min((min(place) for place in places), default=written[0])
    assert readers.room(written, 1.0) == (written[0] - slowest < AHEAD_BYTES)
    assert readers.room(written, ACTIVE_SECONDS)  # nobody asked for so long


def test_a_reader_that_goes_on_is_the_same_reader() -> None:
    readers = Readers()
    place = (0, 0)
    for step in range(10):
        reader = readers.ask(place, float(step))
        place = ((step + 1) * AHEAD_BYTES, 0)
        readers.give(reader, place, float(step))
    assert not readers.room((10 * AHEAD_BYTES, 0), 9.0)  # it has nine, and was only offered the tenth
    readers.ask(place, 9.5)
    assert readers.room((10 * AHEAD_BYTES, 0), 9.5)


def test_a_reader_that_may_come_back_is_waited_for_a_while() -> None:
    readers = Readers()
    readers.expect((0, 0), 100.0)
    assert not readers.room((AHEAD_BYTES, 0), 100.0 + RETURN_SECONDS - 0.1)
    assert readers.room((AHEAD_BYTES, 0), 100.0 + RETURN_SECONDS)
    readers.expect((0, 0), 200.0)
    readers.ask((AHEAD_BYTES, 0), 201.0)  # it is back, and further
    assert readers.room((AHEAD_BYTES, 0), 201.0)


def test_too_many_readers_are_forgotten_the_oldest_first() -> None:
    readers = Readers()
    for number in range(MOST):
        readers.ask((number, 0), float(number))
    readers.ask((2 * AHEAD_BYTES, 0), float(MOST))
    assert readers.room((AHEAD_BYTES, 0), float(MOST))  # the one at byte 0 is forgotten
    assert not readers.room((AHEAD_BYTES + 1, 0), float(MOST))


@given(st.lists(st.text(max_size=3000), min_size=1, max_size=5))
def test_shown_words_are_bounded_and_a_prefix(words: list[str]) -> None:
    kept = shown(tuple(words))
    assert sum(map(len, kept)) <= SHOWN + 1
    if sum(len(word) + 1 for word in words) <= SHOWN:
        assert kept == tuple(words)


def test_wishes_and_outcomes_come_back_as_they_were() -> None:
    process = ProcessWish("c1", ("sh", "-c", "é\ud800"), {"A": "b"}, "/tmp", 5, (24, 80), stdin=True)
    assert process_of(process_json(process)) == process
    session = SessionWish(SessionName("a", "b"), "image", 5, NetworkProfile.FULL, env={"X": "y"}, once=True)
    assert session_of(session_json(session)) == session
    outcome = lost(1_700_000_000_000)
    assert outcome_of(outcome_json(outcome)) == outcome
