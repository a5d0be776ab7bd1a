"""A run's line says what its newest state says, whoever is late."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.broker.memory import Faults, MemoryBroker, MemoryServer, Verdict
from fumehood.broker.ports import Bucket
from fumehood.control import summaries
from fumehood.engine import definition
from fumehood.engine.state import Failure, RunState, RunStatus, StepState
from fumehood.errors import BrokerUnavailableError

WORKFLOW = definition.parse("name: w\nsteps:\n- {id: a, task: t}\n- {id: b, map: {over: input, task: t}}\n")


def state(events: int, status: RunStatus = RunStatus.RUNNING, **changes: Any) -> RunState:
    ended_at = 2000 if status.ended else None
    known: dict[str, Any] = {"status": status, "ended_at": ended_at, "events": events, "digest": WORKFLOW.digest}
    steps = {"a": StepState(), "b": StepState()}
    return RunState("run-1", WORKFLOW, None, 1000, None, **{"steps": steps, **known, **changes})


async def stored(server: MemoryServer) -> dict[str, Any]:
    document, entry = await summaries.read(MemoryBroker(server), "run-1")
    assert entry is not None
    return document


def test_a_line_has_all_that_lists_show() -> None:
    meta = {
        "by": "k1/ci",
        "tenant": "acme",
        "labels": {"team": "a"},
        "parent": {"run_id": "run-0", "step": "call", "attempt": 1},
        "schedule": {"name": "nightly", "at": 5},
    }
    failure = Failure("boom", "x" * 5000)
    made = summaries.line(state(9, RunStatus.FAILED, meta=meta, failure=failure, tries=2, failed_step="a"))
    assert made == {
        "workflow": "w",
        "definition": WORKFLOW.digest,
        "status": "failed",
        "started_at": "1970-01-01T00:00:01.000Z",
        "ended_at": "1970-01-01T00:00:02.000Z",
        "tenant": "acme",
        "labels": {"team": "a"},
        "by": "k1/ci",
        "error": {"code": "boom", "message": "x" * summaries.LONGEST_MESSAGE},
        "failed_step": "a",
        "tries": 2,
        "parent": {"run_id": "run-0", "step": "call"},
        "schedule": "nightly",
        "continued_as": None,
        "events": 9,
    }


def test_a_run_of_which_nothing_is_known_is_the_default_tenants() -> None:
    made = summaries.line(state(1))
    assert (made["tenant"], made["labels"], made["by"], made["parent"], made["schedule"]) == (
        "default",
        {},
        "",
        None,
        None,
    )
    assert (made["status"], made["ended_at"], made["error"], made["failed_step"]) == ("running", None, None, None)


STATES = [
    state(1),
    state(4, RunStatus.FAILED),
    state(5, tries=1),
    state(9, RunStatus.SUCCEEDED, tries=1),
]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
async def test_the_newest_state_stays_in_whatever_order_they_come(order: tuple[int, ...]) -> None:
    server = MemoryServer()
    for number in order:
        await summaries.write(MemoryBroker(server), STATES[number])
    assert await stored(server) == summaries.line(STATES[3])


async def test_many_at_once_agree_on_the_newest() -> None:
    server = MemoryServer()

    class Mixed(Faults):
        async def call(self, operation: str, subject: str) -> Verdict:
            await asyncio.sleep(0)
            return Verdict.OK

    await asyncio.gather(*(summaries.write(MemoryBroker(server, faults=Mixed()), one) for one in STATES * 3))
    assert await stored(server) == summaries.line(STATES[3])


async def test_what_is_there_already_is_not_written_again() -> None:
    server = MemoryServer()
    for one in (STATES[0], STATES[0], STATES[3], STATES[3]):
        await summaries.write(MemoryBroker(server), one)
    entry = await MemoryBroker(server).bucket(Bucket.SUMMARIES).get("run-1")
    assert entry is not None
    assert entry.revision == 2


@pytest.mark.parametrize("old", [b"damaged", b"[]", b'{"status":"running"}', b'{"status":"failed","events":"5"}'])
async def test_a_line_that_knows_less_is_replaced(old: bytes) -> None:
    server = MemoryServer()
    await MemoryBroker(server).bucket(Bucket.SUMMARIES).put("run-1", old)
    await summaries.write(MemoryBroker(server), STATES[0])
    assert await stored(server) == summaries.line(STATES[0])


@given(st.integers(0, 3), st.integers(0, 3), st.booleans())
def test_where_an_archive_lies_is_never_forgotten(before: int, after: int, live: bool) -> None:
    pointer = {"$blob": "sha256:" + "0" * 64, "size": 5}
    known = {**summaries.line(STATES[before]), "archived": pointer} | ({"live": True} if live else {})
    document = summaries.merged(known, summaries.line(STATES[after]))
    if after <= before:
        assert document is None
    else:
        assert document == {**summaries.line(STATES[after]), "archived": pointer, "live": True}


async def test_a_line_that_never_holds_still_is_left_to_another_time() -> None:
    server = MemoryServer()

    class Restless(Faults):
        """Somebody else writes between every look and every write."""

        async def call(self, operation: str, subject: str) -> Verdict:
            if operation == "summaries.update":
                await MemoryBroker(server).bucket(Bucket.SUMMARIES).put("run-1", b"{}")
            return Verdict.OK

    await MemoryBroker(server).bucket(Bucket.SUMMARIES).put("run-1", b"{}")
    with pytest.raises(BrokerUnavailableError):
        await summaries.write(MemoryBroker(server, faults=Restless()), STATES[3])
