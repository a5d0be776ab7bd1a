"""The index's store answers every question as a plain look over all runs would, page by page."""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fumehood.broker.ports import Entry
from fumehood.control import index_query, index_store
from fumehood.control.index_query import AuditFilter, Place, RunFilter, decode_number, encode_number
from fumehood.control.index_rows import RunRow, run_row
from fumehood.control.index_store import Store, Told, TooSlowError
from fumehood.errors import IndexUnavailableError, InvalidRequestError
from tests.unit.index_world import BEGAN, encode, failed, inside, line, running


@pytest.fixture
async def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    monkeypatch.setattr(index_store, "LIST_SECONDS", 60.0)
    made = await Store.open(tmp_path / "index.sqlite")
    yield made
    await made.close()


def told(run_id: str, revision: int, document: Mapping[str, Any] | None) -> Told:
    return Told(run_id, revision, encode(document) if document is not None else None)


async def ids(store: Store, wanted: RunFilter | None = None, tenant: str = "default") -> list[str]:
    return [row.run_id for row in await store.runs(tenant, wanted or RunFilter(), None, 100)]


# --- what is in it -----------------------------------------------------------------------------------------


async def test_a_line_comes_out_as_it_went_in(store: Store) -> None:
    document = failed(
        BEGAN + 7,
        labels={"team": "a", "größe": "ж"},
        tries=2,
        parent={"run_id": "run-0", "step": "call"},
        schedule="nightly",
        continued_as="run-2",
        archived={"$blob": "sha256:" + "0" * 64, "size": 1},
        live=True,
    )
    await store.apply([told("run-1", 1, document)])
    assert await store.runs("default", RunFilter(), None, 10) == [
        RunRow(
            run_id="run-1",
            tenant="default",
            workflow="w",
            definition="sha256:" + "0" * 64,
            status="failed",
            started_at=BEGAN + 7,
            ended_at=BEGAN + 1007,
            by="admin",
            error_code="boom",
            error_message="it broke",
            failed_step="a",
            tries=2,
            parent_run="run-0",
            parent_step="call",
            schedule="nightly",
            continued_as="run-2",
            archived=True,
            live=True,
            labels={"team": "a", "größe": "ж"},
        )
    ]


async def test_a_line_of_the_first_version_is_a_run_of_the_default_tenant(store: Store) -> None:
    old = {name: line()[name] for name in ("workflow", "definition", "status", "started_at", "ended_at")}
    await store.apply([told("run-1", 1, old)])
    assert await ids(store) == ["run-1"]
    assert await ids(store, tenant="other") == []


async def test_an_older_line_changes_nothing(store: Store) -> None:
    await store.apply([told("run-1", 5, line(labels={"a": "1"})), told("run-1", 4, running(labels={"a": "2"}))])
    assert await ids(store, RunFilter(status="succeeded", labels={"a": "1"})) == ["run-1"]
    assert await ids(store, RunFilter(labels={"a": "2"})) == []


async def test_a_newer_line_takes_the_place_of_an_older_one_labels_included(store: Store) -> None:
    await store.apply([told("run-1", 1, running(labels={"a": "1"}))])
    assert await store.running("default") == 1
    await store.apply([told("run-1", 2, line(labels={"b": "1"}))])
    assert await store.running("default") == 0
    assert await ids(store, RunFilter(labels={"a": "1"})) == []
    assert await ids(store, RunFilter(labels={"b": "1"})) == ["run-1"]
    assert await store.count() == 1


async def test_a_line_that_is_gone_takes_its_run_along(store: Store) -> None:
    await store.apply([told("run-1", 1, line(labels={"a": "1"})), told("run-1", 0, None), told("run-2", 0, None)])
    assert await ids(store) == []
    assert await ids(store, RunFilter(labels={"a": "1"})) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"status":"running"}',
        b'{"status":"strange","started_at":"2026-01-01T00:00:00.000Z"}',
        b'{"status":["running"],"started_at":"2026-01-01T00:00:00.000Z"}',
        b'{"status":"running","started_at":5}',
        b'{"status":"running","started_at":"yesterday"}',
        b'{"status":"running","started_at":"9999-99-99T00:00:00.000Z"}',
    ],
)
async def test_what_is_no_line_is_counted_and_in_no_list(store: Store, data: bytes) -> None:
    await store.apply([Told("run-1", 1, data), told("run-2", 2, line())])
    assert await ids(store) == ["run-2"]
    assert store.unreadable == 1


STRANGE = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.lists(st.none())
    | st.dictionaries(st.text(), st.text() | st.none())
    | st.sampled_from(["\ud800", "2026-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(sorted(line())), STRANGE), min_size=1, max_size=20))
def test_no_line_is_too_strange_to_be_read(changes: list[dict[str, Any]]) -> None:
    lines = {f"run-{number}": json.dumps({**line(), **one}).encode() for number, one in enumerate(changes)}
    rows = [row for run_id, data in lines.items() if (row := run_row(run_id, data)) is not None]

    async def stored(store: Store) -> None:
        await store.apply([Told(run_id, 1, data) for run_id, data in lines.items()])
        for row in rows:
            assert row in await store.runs(row.tenant, RunFilter(), None, 100)
        assert await store.count() == len(rows)

    asyncio.run(with_store(stored))


async def with_store(use: Callable[[Store], Awaitable[None]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = await Store.open(Path(folder) / "index.sqlite")
        try:
            await use(store)
        finally:
            await store.close()


async def test_a_closed_store_says_so_and_leaves_nothing_behind(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "index.sqlite")
    await store.apply([told("run-1", 1, line())])
    await store.close()
    await store.close()
    assert inside(tmp_path) == []
    with pytest.raises(IndexUnavailableError):
        await store.count()


async def test_whatever_lies_in_its_place_is_thrown_away(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    path.write_bytes(b"not a database, or one of another version")
    store = await Store.open(path)
    assert await store.count() == 0
    assert path.stat().st_mode & 0o777 == 0o600
    await store.close()


# --- lists -------------------------------------------------------------------------------------------------

RUNS = st.lists(
    st.fixed_dictionaries(
        {
            "started_at": st.integers(BEGAN, BEGAN + 6),
            "tenant": st.sampled_from(["default", "other"]),
            "workflow": st.sampled_from(["w", "v"]),
            "status": st.sampled_from(["running", "succeeded", "failed", "timed_out", "cancelled"]),
            "labels": st.dictionaries(st.sampled_from("ab"), st.sampled_from("12")),
            "parent": st.sampled_from([None, {"run_id": "run-0", "step": "a"}]),
            "schedule": st.sampled_from([None, "nightly"]),
        }
    ),
    max_size=12,
)
FILTERS = st.builds(
    RunFilter,
    workflow=st.sampled_from([None, "w", "v"]),
    status=st.sampled_from([None, "running", "failed", "timed_out"]),
    labels=st.dictionaries(st.sampled_from("ab"), st.sampled_from("12")),
    started_after=st.none() | st.integers(BEGAN, BEGAN + 6),
    started_before=st.none() | st.integers(BEGAN, BEGAN + 7),
    parent=st.sampled_from([None, "run-0"]),
    schedule=st.sampled_from([None, "nightly"]),
    dead=st.booleans(),
)


def wants(wanted: RunFilter, run: dict[str, Any]) -> bool:
    parent = run["parent"]["run_id"] if run["parent"] else None
    return (
        wanted.workflow in (None, run["workflow"])
        and wanted.status in (None, run["status"])
        and wanted.labels.items() <= run["labels"].items()
        and (wanted.started_after is None or run["started_at"] >= wanted.started_after)
        and (wanted.started_before is None or run["started_at"] < wanted.started_before)
        and wanted.parent in (None, parent)
        and wanted.schedule in (None, run["schedule"])
        and (not wanted.dead or run["status"] in ("failed", "timed_out"))
    )


async def pages(store: Store, tenant: str, wanted: RunFilter, limit: int) -> list[str]:
    found: list[str] = []
    place = None
    while rows := await store.runs(tenant, wanted, place, limit):
        found += [row.run_id for row in rows]
        place = Place(rows[-1].started_at, rows[-1].run_id)
    return found


@settings(max_examples=60, deadline=None)
@given(RUNS, st.lists(FILTERS, min_size=1, max_size=12), st.integers(1, 4))
def test_every_list_is_what_a_look_over_all_runs_finds(
    runs: list[dict[str, Any]], filters: list[RunFilter], limit: int
) -> None:
    documents = {f"run-{number}": run for number, run in enumerate(runs)}

    async def check(store: Store) -> None:
        await store.apply([told(run_id, 1, line(**run)) for run_id, run in documents.items()])
        for tenant in ("default", "other", "nobody"):
            mine = {run_id: run for run_id, run in documents.items() if run["tenant"] == tenant}
            for wanted in filters:
                chosen = [(run["started_at"], run_id) for run_id, run in mine.items() if wants(wanted, run)]
                expected = [run_id for _, run_id in sorted(chosen, reverse=True)]
                assert await pages(store, tenant, wanted, limit) == expected
            assert await store.running(tenant) == sum(run["status"] == "running" for run in mine.values())

    asyncio.run(with_store(check))


async def test_runs_to_be_archived_are_those_that_ended_and_are_not_archived_oldest_first(store: Store) -> None:
    reference = {"$blob": "sha256:" + "0" * 64, "size": 1}
    await store.apply(
        [
            told("run-running", 1, running(BEGAN)),
            told("run-young", 2, line(BEGAN + 50_000)),
            told("run-old", 3, line(BEGAN + 10)),
            told("run-older", 4, failed(BEGAN, tenant="other")),
            told("run-archived", 5, line(BEGAN, archived=reference)),
            told("run-half", 6, line(BEGAN + 5, archived=reference, live=True)),
        ]
    )
    found = await store.archivable(BEGAN + 40_000, (0, ""), 10)
    assert found == [(BEGAN + 1000, "run-older"), (BEGAN + 1005, "run-half"), (BEGAN + 1010, "run-old")]
    assert await store.archivable(BEGAN + 40_000, found[1], 10) == found[2:]
    assert await store.archivable(BEGAN + 40_000, (0, ""), 1) == found[:1]


# --- for how long ---


def many() -> list[Told]:
    return [told(f"run-{number}", 1, line(labels={"ab"[number % 2]: "1"})) for number in range(4000)]


async def test_a_list_that_takes_too_long_ends_and_nothing_is_wrong_then(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.apply(many())
    monkeypatch.setattr(index_store, "LIST_SECONDS", 0.0)
    for question in (
        store.runs("default", RunFilter(labels={"a": "1", "b": "1"}), None, 10),
        store.runs("default", RunFilter(labels={"a": "1"}, workflow="v"), None, 10),
    ):
        with pytest.raises(TooSlowError, match="narrow the filters down"):
            await question
    assert await store.count() == 4000, "what no caller can make dear has its time"
    monkeypatch.setattr(index_store, "LIST_SECONDS", 60.0)
    assert await ids(store, RunFilter(labels={"a": "1", "b": "1"})) == []


async def test_statistics_that_take_too_long_are_refused_and_do_not_hold_up_lists(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.apply(many())
    monkeypatch.setattr(index_store, "STATISTICS_SECONDS", 0.0)
    with pytest.raises(TooSlowError, match="choose a shorter window"):
        await store.statistics("default", BEGAN, 1000)
    assert await store.count() == 4000
    monkeypatch.setattr(index_store, "STATISTICS_SECONDS", 60.0)
    with pytest.raises(TooSlowError, match="choose a shorter window"):
        await store.statistics("default", BEGAN, 1000)
    counted = await store.statistics("default", BEGAN, 2000)
    assert sum(row["runs"] for row in counted.intervals) == 4000

    held = threading.Event()
    monkeypatch.setattr(store, "_count_runs", lambda *_: held.wait(120))
    counting = asyncio.ensure_future(store.statistics("default", BEGAN, 1000))
    assert await store.count() == 4000
    held.set()
    await counting


async def test_statistics_are_kept_for_some_seconds(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def runs(tenant: str = "default") -> int:
        return sum(row["runs"] for row in (await store.statistics(tenant, BEGAN, 1000)).intervals)

    monkeypatch.setattr(index_store, "STATISTICS_KEPT_SECONDS", 600.0)
    assert await runs() == 0
    await store.apply([told("run-1", 1, line()), told("run-2", 1, line(tenant="other"))])
    assert (await runs(), await runs("other")) == (0, 1)
    store._counted.clear()
    assert await runs() == 1


async def test_statistics_read_one_index_and_no_rows(store: Store) -> None:
    await store.apply(many())
    for question in index_query.statistics("default", BEGAN, 1000):
        plan = await store._ask(
            store._rows, index_query.Statement(f"EXPLAIN QUERY PLAN {question.sql}", question.values)
        )
        assert "COVERING INDEX runs_newest" in plan[0]["detail"]


async def test_a_question_whose_caller_has_gone_is_not_begun(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    held, asked = threading.Event(), list[str]()

    def runs(tenant: str, *_: object) -> list[RunRow]:
        asked.append(tenant)
        return []

    monkeypatch.setattr(store, "_number", lambda _: int(held.wait(120)))
    monkeypatch.setattr(store, "_runs", runs)
    first = asyncio.create_task(store.count())
    await asyncio.sleep(0)
    gone = [asyncio.create_task(store.runs("default", RunFilter(), None, 10)) for _ in range(5)]
    await asyncio.sleep(0)
    for task in gone:
        task.cancel()
    await asyncio.gather(*gone, return_exceptions=True)
    held.set()
    await first
    await store.runs("other", RunFilter(), None, 10)
    assert asked == ["other"]


# --- cursors -----------------------------------------------------------------------------------------------


@given(st.integers(-(10**15), 10**15), st.from_regex(r"[A-Za-z0-9_-]{1,128}", fullmatch=True))
def test_a_cursor_comes_back_as_it_went_out(started_at: int, run_id: str) -> None:
    place = Place(started_at, run_id)
    assert Place.decode(place.encode()) == place


@given(st.integers(1, 10**15))
def test_so_does_one_of_the_audit_list(number: int) -> None:
    assert decode_number(encode_number(number)) == number


@pytest.mark.parametrize(
    "cursor", ["", "x", "é", "MS4x", "=", "MS4xLmE=", "\x00", "A" * 10_000, "MS4xLmE\n", " MS4xLmE"]
)
def test_a_broken_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidRequestError):
        Place.decode(cursor)


@given(st.text(max_size=40))
def test_no_text_is_a_cursor_by_accident(text: str) -> None:
    """What is taken for one is the only way to write it."""
    for decode, again in ((Place.decode, Place.encode), (decode_number, encode_number)):
        try:
            found = decode(text)
        except InvalidRequestError:
            continue
        assert again(found) == text  # type: ignore[arg-type]


# --- audit -------------------------------------------------------------------------------------------------


def audit(number: int, **changes: Any) -> Entry:
    document = {
        "at": BEGAN + number,
        "tenant": "default",
        "by": "k1/ci",
        "action": "run.cancel",
        "target": "run-1",
        "request_id": "r-1",
        "detail": {"reason": "ж"},
        **changes,
    }
    return Entry(number, f"line-{number}", json.dumps(document).encode())


async def test_the_audit_list_is_newest_first_and_of_one_tenant(store: Store) -> None:
    lines = [audit(1), audit(2, tenant="other"), audit(3, by="k2/me"), audit(4, action="key.create", detail=None)]
    await store.add_audit([*lines, Entry(5, "line-5", b"strange"), audit(6, at="now")], since=0)
    await store.add_audit([lines[0]], since=0)

    async def numbers(wanted: AuditFilter, before: int | None = None, tenant: str = "default") -> list[int]:
        return [row.number for row in await store.audit(tenant, wanted, before, 10)]

    assert await numbers(AuditFilter()) == [4, 3, 1]
    assert await numbers(AuditFilter(), before=4) == [3, 1]
    assert await numbers(AuditFilter(), tenant="other") == [2]
    assert await numbers(AuditFilter(by="k2/me")) == [3]
    assert await numbers(AuditFilter(action="key.create", target="run-1")) == [4]
    assert await numbers(AuditFilter(after=BEGAN + 3, before=BEGAN + 4)) == [3]
    (row,) = await store.audit("other", AuditFilter(), None, 1)
    assert (row.line_id, row.at, row.request_id, row.detail) == ("line-2", BEGAN + 2, "r-1", {"reason": "ж"})


async def test_lines_that_the_log_has_forgotten_are_forgotten_here(store: Store) -> None:
    await store.add_audit([audit(1), audit(2)], since=0)
    await store.add_audit([audit(3)], since=BEGAN + 2)
    assert [row.number for row in await store.audit("default", AuditFilter(), None, 10)] == [3, 2]


async def test_so_many_lines_are_held_and_no_more(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_store, "MOST_AUDIT", 3)
    await store.add_audit([audit(number) for number in range(1, 7)], since=0)
    assert [row.number for row in await store.audit("default", AuditFilter(), None, 10)] == [6, 5, 4]


async def test_who_still_reads_does_not_find_the_file_gone(tmp_path: Path) -> None:
    """An index that is replaced ends its readers before it throws its file away."""
    for number in range(20):
        store = await Store.open(tmp_path / f"index-{number}")
        asked = [asyncio.ensure_future(store.count()) for _ in range(200)]
        await asyncio.sleep(0)
        await store.close()
        assert set(await asyncio.gather(*asked)) == {0}
