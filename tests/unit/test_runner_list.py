"""Lists of the Runner API's runs stay quick when there are many, whatever is asked for."""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fumehood.control import index_query, index_store
from fumehood.control.index_query import Place
from fumehood.control.index_schema import SCHEMA
from fumehood.control.index_store import Store, Told
from fumehood.control.runner_list import ListWish
from fumehood.wire.runner_api import RunnerStatus
from fumehood.wire.sandbox import RUN_WORKFLOW
from tests.unit.index_world import BEGAN, encode, line

RUNS = 10_000
"""A tenth of what is recorded: ten times as many take as long, since each list goes along an index."""
COMMON, RARE = ("sha256:" + digit * 64 for digit in "ab")
OUTCOMES = {RunnerStatus.SUCCEEDED: "succeeded", RunnerStatus.FAILED: "failed", RunnerStatus.STOPPED: "cancelled"}


def known(number: int) -> dict[str, Any]:
    """Most succeeded; one in a thousand failed, and of those one in five is of the rare image."""
    status = RunnerStatus.FAILED if number % 1000 == 0 else RunnerStatus.SUCCEEDED
    image = RARE if number % 5000 == 0 else COMMON
    runner = {"outcome": status.value, "image_ref": "tool", "image_digest": image, "reason": "exit", "exit_code": 0}
    return line(BEGAN + number, workflow=RUN_WORKFLOW, status=OUTCOMES[status], runner=runner)


@pytest.fixture
async def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    monkeypatch.setattr(index_store, "LIST_SECONDS", 60.0)
    made = await Store.open(tmp_path / "index.db")
    for begin in range(0, RUNS, 500):
        told = [Told(f"{number:032x}", number + 1, encode(known(number))) for number in range(begin, begin + 500)]
        await made.apply(told)
    others = [Told(f"run-{number}", RUNS + number, encode(line(BEGAN + number))) for number in range(1000)]
    await made.apply(others)
    yield made
    await made.close()


ALL = ListWish()
WISHES = [
    ALL,
    ListWish(status=RunnerStatus.SUCCEEDED),
    ListWish(status=RunnerStatus.FAILED),
    ListWish(status=RunnerStatus.TIMED_OUT),
    ListWish(status=RunnerStatus.QUEUED),
    ListWish(image_digest=COMMON),
    ListWish(image_digest=RARE),
    ListWish(image_digest=COMMON, status=RunnerStatus.FAILED),
    ListWish(image_digest=RARE, status=RunnerStatus.SUCCEEDED),
    ListWish(created_after=BEGAN + 5000, created_before=BEGAN + 5100),
]


@pytest.mark.parametrize("wish", WISHES, ids=str)
def test_every_list_goes_along_an_index_of_its_own(wish: ListWish, tmp_path: Path) -> None:
    """Without sorting, and never through all runs: what is quick with ten is quick with a hundred thousand."""
    expected = {"runs_outcome"} if wish.status is not None else set()
    expected |= {"runs_image"} if wish.image_digest is not None else set()
    expected |= {"runs_workflow"} if not expected else set()
    expected |= {"runs_newest"} if wish.created_after is not None else set()
    db = sqlite3.connect(tmp_path / "index.db")
    db.executescript(SCHEMA)
    for place in (None, Place(BEGAN, "r")):
        asked = index_query.runs("default", wish.filter, place, 51)
        plan = " ".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {asked.sql}", asked.values))
        assert any(index in plan for index in expected), plan
        assert "TEMP B-TREE" not in plan
    db.close()


@pytest.mark.timed
async def test_a_page_takes_no_tenth_of_a_second(store: Store) -> None:
    """Of a processor, at its best: what else this machine does is not the list's fault."""
    places = (None, Place(BEGAN + RUNS // 2, f"{RUNS // 2:032x}"))
    for wish, place in itertools.product(WISHES, places):
        taken = []
        for _ in range(5):
            began = time.process_time()
            await store.runs("default", wish.filter, place, 51)
            taken.append(time.process_time() - began)
        assert min(taken) < 0.1, wish


async def test_what_is_found_is_what_was_asked_for(store: Store) -> None:
    failed = await store.runs("default", ListWish(status=RunnerStatus.FAILED).filter, None, 100)
    assert [run.started_at - BEGAN for run in failed] == list(range(9000, -1, -1000))
    rare = await store.runs("default", ListWish(image_digest=RARE).filter, None, 100)
    assert [run.started_at - BEGAN for run in rare] == [5000, 0]
    assert len(await store.runs("default", ALL.filter, None, 20_000)) == RUNS
    assert await store.runs("other", ALL.filter, None, 10) == []
