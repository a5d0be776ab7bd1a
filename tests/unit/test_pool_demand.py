"""How many of which kind should lie in stock."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from fumehood.sandbox.pool.demand import REMEMBERED, Demand
from fumehood.sandbox.pool.values import IDLE_GVISOR_BYTES, Key, PoolOptions, key_of
from fumehood.sandbox.spec import MIB, Limits, SandboxSpec
from tests.unit.pool_world import spec

ROOMY = PoolOptions(most=8, memory_bytes=64 * 1024 * MIB)


def kind(number: int) -> SandboxSpec:
    return spec(limits=Limits(cpu_millis=1000 + number))


def asked(demand: Demand, wanted: SandboxSpec, *moments: float) -> Key:
    key = key_of(wanted)
    for moment in moments:
        demand.asked(key, wanted, moment)
    return key


def test_nothing_is_kept_that_nobody_asked_for() -> None:
    assert Demand(ROOMY).targets(0) == {}


def test_one_of_a_kind_that_was_asked_for() -> None:
    demand = Demand(ROOMY)
    key = asked(demand, kind(1), 0)
    assert demand.targets(1) == {key: 1}
    assert demand.targets(ROOMY.keep_seconds) == {key: 1}
    assert demand.targets(ROOMY.keep_seconds + 1) == {}


def test_as_many_as_came_together_are_kept_until_the_kind_is_forgotten() -> None:
    demand = Demand(ROOMY)
    key = asked(demand, kind(1), 0, 100, 100.1, 100.2, 100.3, 100.4, 200)
    assert demand.targets(201) == {key: 5}
    assert demand.targets(100.4 + ROOMY.keep_seconds) == {key: 1}, "only one of them was asked for since"


def test_one_at_a_time_needs_one() -> None:
    demand = Demand(ROOMY)
    key = asked(demand, kind(1), *range(100))
    assert demand.targets(100) == {key: 1}


def test_a_kind_with_no_room_for_one_is_reported_once() -> None:
    demand = Demand(PoolOptions(most=1, memory_bytes=40 * MIB))
    with capture_logs() as logs:
        key = asked(demand, kind(1), 0, 1, 2)
    assert demand.targets(3) == {key: 0}
    assert [(line["event"], line["needed_mib"], line["allowed_mib"]) for line in logs] == [("pool.no_room", 64, 40)]


def test_one_that_takes_long_to_make_has_more() -> None:
    quick, slow, key = Demand(ROOMY), Demand(ROOMY), key_of(kind(1))
    for demand, seconds in ((quick, 0.1), (slow, 2.0)):
        asked(demand, kind(1), *(number / 5 for number in range(50)))
        for _ in range(20):
            demand.made(key, seconds)
    assert quick.targets(10)[key] < slow.targets(10)[key]


def test_each_kind_has_its_first_before_any_has_its_second() -> None:
    demand = Demand(replace(ROOMY, most=4))
    busy = asked(demand, kind(1), *(number / 10 for number in range(100)))
    quiet = [asked(demand, kind(number), 9 + number / 10) for number in (2, 3)]
    assert demand.targets(10) == {busy: 2, quiet[0]: 1, quiet[1]: 1}


def test_where_there_is_not_room_for_all_the_last_asked_for_have_it() -> None:
    demand = Demand(replace(ROOMY, most=2))
    keys = [asked(demand, kind(number), number) for number in range(4)]
    assert demand.targets(5) == {keys[3]: 1, keys[2]: 1, keys[1]: 0, keys[0]: 0}


def test_one_that_failed_is_tried_again_after_longer_and_longer() -> None:
    demand = Demand(ROOMY)
    key = asked(demand, kind(1), 0)
    pauses = []
    for _ in range(10):
        demand.failed(key, 100)
        pauses.append(next(seconds for seconds in range(1000) if demand.may_be_made(key, 100 + seconds)))
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (1, 60)
    demand.made(key, 1)
    demand.failed(key, 100)
    assert demand.may_be_made(key, 101)


def test_the_memory_of_kinds_is_bounded() -> None:
    demand = Demand(ROOMY)
    for number in range(3 * REMEMBERED):
        asked(demand, kind(number), number / 1000)
    assert len(demand.targets(1)) == REMEMBERED


@given(
    st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1000)), max_size=200),
    st.integers(0, 20),
    st.integers(0, 20 * IDLE_GVISOR_BYTES),
    st.floats(0, 2000),
)
def test_it_never_wants_more_than_there_is_room_for(
    requests: list[tuple[int, float]], most: int, memory: int, now: float
) -> None:
    demand = Demand(PoolOptions(most=most, memory_bytes=memory))
    for number, moment in sorted(requests, key=lambda request: request[1]):
        asked(demand, kind(number), moment)
    targets = demand.targets(now)
    assert sum(targets.values()) <= most
    assert sum(key.idle_bytes * count for key, count in targets.items()) <= memory
