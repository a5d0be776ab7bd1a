"""Rate limits: never more than the limit says over any stretch of time, whoever asks, and no slot for two."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fumehood.broker.memory import Faults, MemoryBroker, MemoryServer, Verdict
from fumehood.broker.ports import Bucket
from fumehood.control.contended import Contended
from fumehood.control.rates import FRESH_MS, HORIZON_MS, LATEST_MS, SOONEST_MS, Limit, Rates, Slot, parse, reserve
from fumehood.errors import BrokerUnavailableError, InvalidRequestError, NotFoundError
from fumehood.wire.task_type_api import LARGEST_BURST

NOW = 1_700_000_000_000


class Clock:
    def __init__(self) -> None:
        self.ms = NOW

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


def offsets(slots: Sequence[Slot] | None) -> list[int]:
    """Of slots that are all taken."""
    assert slots is not None
    assert all(slot.taken for slot in slots)
    return [slot.at_ms - NOW for slot in slots]


# --- what people write -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["10/s", "100/m", "1000/h", "1/h", "999/s", "9999/m", "999999/h"])
def test_a_rate_is_read_and_written_the_same(text: str) -> None:
    assert parse(text).rate == text


@pytest.mark.parametrize(
    "text",
    ["", "10", "10/", "/s", "0/s", "-1/s", "1.5/s", "10/d", "10 /s", "10/s\n", "١/s", "1000/s", "10000/m", "1000000/h"],
)
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="rate: "):
        parse(text)


@pytest.mark.parametrize("burst", [0, -1, LARGEST_BURST + 1])
def test_a_burst_has_bounds(burst: int) -> None:
    with pytest.raises(InvalidRequestError, match="burst: "):
        parse("1/s", burst)


# --- slots -------------------------------------------------------------------------------------------------


def test_without_a_burst_slots_are_evenly_apart() -> None:
    tat, slots = reserve(parse("10/s"), 0, NOW, 4)
    assert offsets(slots) == [0, 100, 200, 300]
    assert offsets(reserve(parse("10/s"), tat, NOW + 150, 2)[1]) == [400, 500]


def test_after_a_pause_a_burst_goes_at_once_and_the_rest_evenly() -> None:
    limit = parse("10/s", 3)
    tat, slots = reserve(limit, 0, NOW, 5)
    assert offsets(slots) == [0, 0, 0, 100, 200]
    assert offsets(reserve(limit, tat, NOW + 100_000, 4)[1]) == [100_000, 100_000, 100_000, 100_100]


def test_a_rate_that_does_not_divide_evenly_is_never_passed() -> None:
    _, slots = reserve(parse("7/s"), 0, NOW, 8)
    assert offsets(slots) == [0, 143, 286, 429, 572, 715, 858, 1001]


LIMITS = st.builds(
    lambda count, unit, burst: parse(f"{count}/{unit}", burst),
    st.integers(1, 999),
    st.sampled_from("smh"),
    st.integers(1, 20),
)


@settings(max_examples=200, deadline=None)
@given(LIMITS, st.lists(st.tuples(st.integers(-2000, 60_000), st.integers(1, 30)), max_size=20))
def test_no_stretch_of_time_holds_more_slots_than_the_limit(limit: Limit, asks: list[tuple[int, int]]) -> None:
    """Also where the clocks of those who ask disagree."""
    tat, now, slots = 0, NOW, list[int]()
    for passed, count in asks:
        now += passed
        tat, given_out = reserve(limit, tat, now, count)
        assert len(given_out) == count
        assert all(now <= slot.at_ms <= now + HORIZON_MS for slot in given_out if slot.taken)
        slots += [slot.at_ms for slot in given_out if slot.taken]
    slots.sort()
    for begin in range(len(slots)):
        for end in range(begin, len(slots)):
            stretch = slots[end] - slots[begin]
            assert end - begin + 1 <= limit.burst + stretch * limit.count / limit.per_ms + 1


def in_the_end(limit: Limit, batches: Sequence[int]) -> tuple[list[int], int]:
    """The slots of tasks that all come now, in batches, and ask again when they are told to; how often that was."""
    tat, asks = 0, 0
    coming = [(NOW, count) for count in batches]
    slots: list[int] = []
    while coming:
        coming.sort()
        now, count = coming.pop(0)
        tat, found = reserve(limit, tat, now, count)
        asks += count
        slots += [slot.at_ms for slot in found if slot.taken]
        again = Counter(slot.at_ms for slot in found if not slot.taken)
        assert all(SOONEST_MS <= at - now <= LATEST_MS for at in again)
        coming += again.items()
    return sorted(slots), asks


@settings(max_examples=60, deadline=None)
@given(LIMITS, st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_everything_gets_its_slot_and_none_goes_by_unused(limit: Limit, batches: list[int]) -> None:
    """The other half: a limit is used to the full while anything waits, although few are asked to come again."""
    slots, asks = in_the_end(limit, batches)
    assert len(slots) == sum(batches)
    beyond = max(0, len(slots) - limit.burst)
    took = slots[-1] - NOW
    assert took <= beyond * limit.interval_ns / 1_000_000 + 1
    assert asks <= len(slots) * (2 + took // SOONEST_MS)


@settings(deadline=None)
@given(LIMITS, st.integers(1, 20_000))
def test_a_backlog_that_is_cancelled_holds_no_more_than_the_horizon(limit: Limit, count: int) -> None:
    tat, slots = reserve(limit, 0, NOW, count)
    taken = [slot for slot in slots if slot.taken]
    assert len(taken) <= limit.burst + HORIZON_MS * limit.count / limit.per_ms + 1
    assert all(slot.at_ms <= NOW + HORIZON_MS for slot in taken)
    interval_ms = limit.interval_ns / 1_000_000
    _, (after,) = reserve(limit, tat, NOW + HORIZON_MS, 1)
    assert after.at_ms <= NOW + HORIZON_MS + interval_ms + 1


def test_what_is_too_far_away_moves_nothing_and_is_told_when_to_come_again() -> None:
    limit = parse("1/m")
    tat, slots = reserve(limit, 0, NOW, 200)
    assert [slot.at_ms - NOW for slot in slots if slot.taken] == [60_000 * number for number in range(11)]
    again = [slot.at_ms - NOW for slot in slots if not slot.taken]
    assert again[:7] == [300_000, 300_000, 300_000, 300_000, 300_000, 360_000, 420_000]
    assert again[-1] == LATEST_MS
    assert reserve(limit, tat, NOW, 1)[0] == tat


def test_a_slot_is_good_for_a_second_or_until_the_next_one() -> None:
    assert [parse(rate).patience_ms for rate in ("100/s", "1/s", "7/m", "1/h")] == [1000, 1000, 8572, 3_600_000]


# --- over a broker -----------------------------------------------------------------------------------------


async def test_a_type_without_a_limit_has_none(clock: Clock) -> None:
    rates = Rates(MemoryBroker(), now_ms=clock)
    assert await rates.reserve("http") is None
    await rates.set("http", parse("10/s"))
    assert await rates.reserve("http.other") is None
    assert (await rates.is_limited("http"), await rates.is_limited("http.other")) == (True, False)
    assert offsets(await rates.reserve("http", 2)) == [0, 100]
    await rates.clear("http")
    assert await rates.reserve("http") is None
    with pytest.raises(NotFoundError):
        await rates.clear("http")


async def test_limits_are_listed_by_type(clock: Clock) -> None:
    rates = Rates(MemoryBroker(), now_ms=clock)
    await rates.set("llm.large", parse("100/m", 5))
    await rates.set("http", parse("10/s"))
    assert await rates.list() == [("http", Limit(10, 1000)), ("llm.large", Limit(100, 60_000, 5))]


async def test_what_is_no_task_type_has_no_limit(clock: Clock) -> None:
    with pytest.raises(InvalidRequestError):
        await Rates(MemoryBroker(), now_ms=clock).set("a b", parse("1/s"))


async def test_all_servers_share_one_limit_and_hear_of_a_new_one_within_a_second(clock: Clock) -> None:
    server = MemoryServer()
    here, there = (Rates(MemoryBroker(server), now_ms=clock) for _ in range(2))
    assert await there.reserve("t") is None
    await here.set("t", parse("10/s"))
    assert offsets(await here.reserve("t")) == [0]
    clock.ms += FRESH_MS
    assert offsets(await there.reserve("t")) == [FRESH_MS]
    assert offsets(await here.reserve("t")) == [FRESH_MS + 100]


async def test_setting_the_same_limit_again_changes_nothing_and_another_begins_anew(clock: Clock) -> None:
    rates = Rates(MemoryBroker(), now_ms=clock)
    await rates.set("t", parse("1/m"))
    await rates.reserve("t", 10)
    await rates.set("t", parse("1/m"))
    assert offsets(await rates.reserve("t")) == [10 * 60_000]
    await rates.set("t", parse("1/s"))
    assert offsets(await rates.reserve("t", 2)) == [0, 1000]


async def test_what_is_too_far_away_is_asked_for_later_and_writes_nothing(clock: Clock) -> None:
    broker = MemoryBroker()
    rates = Rates(broker, now_ms=clock)
    await rates.set("t", parse("1/m"))
    found = await rates.reserve("t", 1000)
    assert found is not None
    assert sum(slot.taken for slot in found) == 11
    before = await broker.bucket(Bucket.RATES).entries()
    found = await rates.reserve("t", 1000)
    assert found is not None
    assert not any(slot.taken for slot in found)
    assert await broker.bucket(Bucket.RATES).entries() == before
    clock.ms += 60_000
    assert offsets(await rates.reserve("t")) == [HORIZON_MS + 60_000]


async def test_a_slot_whose_answer_got_lost_is_not_given_to_another(clock: Clock) -> None:
    server = MemoryServer()
    await Rates(MemoryBroker(server), now_ms=clock).set("t", parse("10/s"))

    class Unanswered(Faults):
        async def call(self, operation: str, subject: str) -> Verdict:
            return Verdict.UNANSWERED if operation == "rates.update" else Verdict.OK

    with pytest.raises(BrokerUnavailableError):
        await Rates(MemoryBroker(server, faults=Unanswered()), now_ms=clock).reserve("t")
    assert offsets(await Rates(MemoryBroker(server), now_ms=clock).reserve("t")) == [100]


async def test_servers_that_reserve_at_once_are_given_different_slots(clock: Clock) -> None:
    server = MemoryServer()
    await Rates(MemoryBroker(server), now_ms=clock).set("t", parse("10/s"))

    class Slow(Faults):
        async def call(self, operation: str, subject: str) -> Verdict:
            await asyncio.sleep(0)
            return Verdict.OK

    brokers = [MemoryBroker(server, faults=Slow()) for _ in range(4)]
    shared = [Contended(broker.bucket(Bucket.RATES)) for broker in brokers]
    servers = [Rates(broker, now_ms=clock, contended=one) for broker, one in zip(brokers, shared, strict=True)]
    found = await asyncio.gather(*(one.reserve("t", 3) for one in servers for _ in range(5)))
    assert sorted(slot for slots in found for slot in offsets(slots)) == [100 * number for number in range(60)]
    assert sum(one.refusals for one in shared) > 0, "they met"


async def test_which_types_have_a_limit_is_asked_once_a_second_however_many_ask(clock: Clock) -> None:
    class Counts(Faults):
        looks = 0

        async def call(self, operation: str, subject: str) -> Verdict:
            self.looks += operation == "rates.keys"
            await asyncio.sleep(0)
            return Verdict.OK

    faults = Counts()
    rates = Rates(MemoryBroker(faults=faults), now_ms=clock)
    await asyncio.gather(*(rates.reserve(f"t{number}") for number in range(50)))
    clock.ms += FRESH_MS - 1
    await rates.reserve("t")
    assert faults.looks == 1
    clock.ms += 1
    await rates.reserve("t")
    assert faults.looks == 2
