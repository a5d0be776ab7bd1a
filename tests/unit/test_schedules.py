"""Schedules as people write, change, pause and trigger them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from fumehood.broker.ports import Bucket
from fumehood.control import schedules as module
from fumehood.control.callers import ADMIN, Caller
from fumehood.control.schedule import Fired
from fumehood.control.schedules import LARGEST_INPUT, Plan
from fumehood.errors import ConflictError, InvalidRequestError, NotFoundError
from fumehood.wire.schedule_api import CatchUp
from tests.unit.schedule_world import SMALL, ScheduleWorld, instant

HOURLY = Plan("w", "0 * * * *")
OTHER = replace(ADMIN, tenant="other", name="somebody")


async def world() -> ScheduleWorld:
    made = ScheduleWorld("2026-06-01 00:00:30")
    await made.apply()
    return made


async def test_a_new_schedule_begins_now_and_says_when_it_fires() -> None:
    here = await world()
    made, is_new = await here.service.schedules.put("s", Plan("w", "30 2 * * *", "Europe/Berlin"), ADMIN)
    assert is_new
    assert (made.created_at, made.done_until, made.by) == (here.now_ms(), here.now_ms(), "admin")
    assert here.service.schedules.next_at(made) == instant("2026-06-01 02:30", "Europe/Berlin")
    assert await here.shown() == made


@pytest.mark.parametrize(
    ("name", "plan", "said"),
    [
        ("s", replace(HOURLY, workflow="nobody"), "workflow: there is no such workflow"),
        ("s", replace(HOURLY, workflow="a.b"), "workflow: there is no such workflow"),
        ("s", replace(HOURLY, cron="0 9 * *"), "cron: 4 fields, but there must be 5"),
        ("s", replace(HOURLY, cron="0 0 30 2 *"), "cron: day of month: no month that is named has a day 30"),
        ("s", replace(HOURLY, timezone="Berlin"), "timezone: not a time zone"),
        ("s", replace(HOURLY, input={"$blob": "x"}), r"input: the key \$blob is not for callers"),
        ("s", replace(HOURLY, input="x" * LARGEST_INPUT), "input: must have at most 16384 bytes"),
        ("s", replace(HOURLY, labels={"a b": "c"}), "labels: a name must be"),
        ("", HOURLY, "name: must be letters"),
        ("a.b", HOURLY, "name: must be letters"),
        ("a--b", HOURLY, "name: must be letters"),
        ("a" * 129, HOURLY, "name: must be letters"),
    ],
)
async def test_what_is_no_schedule_is_refused_and_nothing_is_stored(name: str, plan: Plan, said: str) -> None:
    here = await world()
    with pytest.raises(InvalidRequestError, match=said):
        await here.service.schedules.put(name, plan, ADMIN)
    assert await here.service.broker.bucket(Bucket.SCHEDULES).keys() == []


async def test_an_input_must_fit_the_workflow_already_when_the_schedule_is_made() -> None:
    here = await world()
    await here.apply(b"name: w\ninput_schema: {required: [url]}\nsteps:\n  - {id: a, task: t}\n")
    with pytest.raises(InvalidRequestError, match="input_schema"):
        await here.service.schedules.put("s", replace(HOURLY, input={}), ADMIN)
    deep: Any = None
    for _ in range(100):
        deep = [deep]
    with pytest.raises(InvalidRequestError, match="nested too deeply"):
        await here.service.schedules.put("s", replace(HOURLY, input=deep), ADMIN)


# --- changing ----------------------------------------------------------------------------------------------


async def test_the_same_again_changes_nothing() -> None:
    here = await world()
    first, _ = await here.service.schedules.put("s", HOURLY, ADMIN)
    await here.until("2026-06-01 00:30")
    again, is_new = await here.service.schedules.put("s", HOURLY, replace(ADMIN, name="somebody else"))
    assert (again, is_new) == (first, False)


@pytest.mark.parametrize(
    "change",
    [{"input": {"x": 1}}, {"labels": {"a": "b"}}, {"catch_up": CatchUp.ALL}, {"catch_up_limit": 3}],
)
async def test_what_does_not_change_its_times_leaves_them_alone(change: dict[str, Any]) -> None:
    here = await world()
    first, _ = await here.service.schedules.put("s", HOURLY, ADMIN)
    await here.until("2026-06-01 00:30")
    changed, _ = await here.service.schedules.put("s", replace(HOURLY, **change), replace(ADMIN, name="k/x"))
    assert changed == replace(first, **change, by="k/x")


async def test_true_is_not_one() -> None:
    here = await world()
    await here.service.schedules.put("s", replace(HOURLY, input={"x": 1}), ADMIN)
    changed, _ = await here.service.schedules.put("s", replace(HOURLY, input={"x": True}), ADMIN)
    assert changed.input["x"] is True
    assert (await here.shown()).input["x"] is True


@pytest.mark.parametrize("change", [{"cron": "5 * * * *"}, {"timezone": "Asia/Kathmandu"}, {"workflow": "v"}])
async def test_what_changes_its_times_begins_anew(change: dict[str, Any]) -> None:
    here = await world()
    text = SMALL.replace(b"name: w", b"name: v")
    await here.service.workflows.apply("v", text, is_json=False, tenant="default")
    first, _ = await here.service.schedules.put("s", HOURLY, ADMIN)
    async with here.at_work():
        await here.until("2026-06-01 01:30")
    changed, is_new = await here.service.schedules.put("s", replace(HOURLY, **change), ADMIN)
    assert not is_new
    assert (changed.created_at, changed.done_until) == (first.created_at, here.now_ms())
    assert changed.generation != first.generation
    assert (changed.last, changed.last_error) == (None, None)


async def test_a_change_never_goes_behind_what_was_fired_unless_it_begins_anew() -> None:
    """The clock of whoever fired may be ahead of ours, by a year if it was wrong."""
    here = await world()
    first, _ = await here.service.schedules.put("s", HOURLY, ADMIN)
    year = here.now_ms() + 365 * 86_400_000
    ahead = replace(first, done_until=year, last=Fired(year, "run-1"))
    await here.service.broker.bucket(Bucket.SCHEDULES).put(first.key, ahead.encode())
    changed, _ = await here.service.schedules.put("s", replace(HOURLY, labels={"a": "b"}), ADMIN)
    assert changed.done_until == year
    anew, _ = await here.service.schedules.put("s", replace(HOURLY, cron="* * * * *"), ADMIN)
    assert (anew.done_until, anew.generation != first.generation) == (here.now_ms(), True)


async def test_two_who_change_at_once_both_succeed() -> None:
    here = await world()
    plans = [replace(HOURLY, labels={"n": str(number)}) for number in range(20)]
    services = [here.connect() for _ in plans]
    await asyncio.gather(
        *(one.schedules.put("s", plan, ADMIN) for one, plan in zip(services, plans, strict=True)),
    )
    assert (await here.shown()).labels in [plan.labels for plan in plans]


# --- pausing -----------------------------------------------------------------------------------------------


async def test_a_paused_schedule_has_no_next_time_and_a_resumed_one_begins_now() -> None:
    here = await world()
    await here.put("0 * * * *")
    paused = await here.service.schedules.pause("s", replace(ADMIN, name="k/x"))
    assert (paused.paused, paused.by, here.service.schedules.next_at(paused)) == (True, "k/x", None)
    await here.until("2026-06-01 05:30")
    assert await here.service.schedules.pause("s", ADMIN) == paused
    resumed = await here.service.schedules.resume("s", ADMIN)
    assert (resumed.paused, resumed.done_until) == (False, here.now_ms())
    assert resumed.generation == paused.generation
    assert await here.service.schedules.resume("s", ADMIN) == resumed


async def test_a_change_leaves_a_pause_unless_it_says_otherwise() -> None:
    """Somebody who applies his files must not wake what somebody else has stopped."""
    here = await world()
    await here.put("0 * * * *")
    await here.service.schedules.pause("s", ADMIN)
    await here.until("2026-06-01 05:30")
    assert (await here.put("0 * * * *", input=1)).paused
    assert (await here.put("5 * * * *", input=1)).paused
    woken = await here.put("5 * * * *", input=1, paused=False)
    assert (woken.paused, woken.done_until) == (False, here.now_ms())
    assert (await here.put("5 * * * *", "asleep", paused=True)).paused


# --- listing, deleting, triggering -------------------------------------------------------------------------


async def test_schedules_are_listed_page_by_page() -> None:
    here = await world()
    for name in ("b", "a", "c"):
        await here.put("0 * * * *", name)
    first, following = await here.service.schedules.list(ADMIN, limit=2)
    assert ([one.name for one in first], following) == (["a", "b"], "b")
    second, end = await here.service.schedules.list(ADMIN, after="b", limit=2)
    assert ([one.name for one in second], end) == (["c"], None)
    await here.service.broker.bucket(Bucket.SCHEDULES).put("default.d", b"[]")
    shown, _ = await here.service.schedules.list(ADMIN, limit=3)
    assert len(shown) == 3, "what is not shown is not read"


async def test_a_tenant_has_so_many_schedules_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 3)
    here = await world()
    await here.apply(caller=OTHER)
    for name in ("a", "b", "c"):
        await here.put("0 * * * *", name)
    with pytest.raises(ConflictError, match="3 schedules already"):
        await here.put("0 * * * *", "d")
    await here.put("5 * * * *", "a")
    await here.service.schedules.put("d", HOURLY, OTHER)
    await here.service.schedules.delete("a", ADMIN)
    await here.put("0 * * * *", "d")


async def test_a_tenant_sees_and_touches_its_own_only() -> None:
    here = await world()
    await here.put("0 * * * *")
    schedules = here.service.schedules
    with pytest.raises(InvalidRequestError, match="no such workflow"):
        await schedules.put("s", HOURLY, OTHER)
    assert await schedules.list(OTHER) == ([], None)
    for order in (schedules.get, schedules.delete, schedules.pause, schedules.resume, schedules.trigger):
        with pytest.raises(NotFoundError):
            await order("s", OTHER)
    await here.apply(caller=OTHER)
    theirs, is_new = await schedules.put("s", replace(HOURLY, cron="5 * * * *"), OTHER)
    assert is_new
    assert (await here.shown()).cron == "0 * * * *"
    async with here.at_work():
        await here.until("2026-06-01 01:30")
    tenants = [body["meta"].get("tenant") for body in here.starts().values()]
    assert tenants == ["other", None, "other"]
    assert theirs.run_id(0) != (await here.shown()).run_id(0)


@pytest.mark.parametrize("name", ["nobody", "", "a.b", "*", ">", "a b", "x" * 129])
async def test_an_unknown_schedule_is_not_found_in_any_way(name: str) -> None:
    schedules = (await world()).service.schedules
    for order in (schedules.get, schedules.delete, schedules.pause, schedules.resume, schedules.trigger):
        with pytest.raises(NotFoundError):
            await order(name, ADMIN)


async def test_a_trigger_starts_one_run_more_and_leaves_the_times_alone() -> None:
    here = await world()
    before = await here.put("0 * * * *", input={"x": 1}, labels={"a": "b"}, paused=True)
    caller = Caller("default", "k/somebody", frozenset())
    first = await here.service.schedules.trigger("s", caller)
    second = await here.service.schedules.trigger("s", caller)
    assert first != second
    assert list(here.starts()) == [first, second]
    body = here.starts()[first]
    assert body["meta"] == {
        "by": "k/somebody",
        "labels": {"a": "b"},
        "schedule": {"name": "s", "at": here.now_ms()},
    }
    assert body["input"] == {"x": 1}
    assert await here.shown() == before
