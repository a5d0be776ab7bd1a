"""The field's figures: what they are made of, what is held against a bound, and what is told of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import record
from bench.field import bounds, burst, plot, rows
from bench.field.bounds import AHEAD, BOUNDS, GVISOR, PLAIN, kind_of
from bench.field.burst import Burst
from bench.field.memory import Memory
from bench.field.report import FieldReport
from bench.field.rows import ROWS
from bench.field.samples import Figures, Measured, interval, times
from bench.figures import Ratio
from bench.world import BenchError
from docs import speed_page

MACHINE = {"processor": "one", "cores": 2, "memory_mib": 4096, "load_before": [0.5, 0.4, 0.3]}
VERSIONS = {"fumehood": "1", "commit": "abc", "engine": "20", "runc": "1.1", "llm-sandbox": "0.3", "swe-rex": "1.4"}


def measured(p50: float, ratio: float | None = None) -> Measured:
    found = times([p50 / 1000])
    return Measured(found, None if ratio is None else Ratio(ratio, ratio, ratio, ratio))


def held_at(share: float, *, kind: str = PLAIN, quick: bool = False) -> dict[str, Measured]:
    """Every row that has a bound, at this share of it."""
    found = {}
    for bound in BOUNDS:
        most = (bound.quick if quick else bound.most).of(kind)
        found[bound.row] = measured(10, (most or 100.0) * share)
    return found


def some_burst(ratio: float) -> Burst:
    ours, bare = times([ratio * 0.1] * 20), times([0.1] * 20)
    return Burst(20, 16, ours, bare, 10.0, 10.0)


# --- samples -----------------------------------------------------------------------------------------------


def test_times_have_a_median_an_interval_and_a_tail() -> None:
    found = times([value / 1000 for value in range(1, 101)])
    assert [found.n, found.p50, found.p95, found.p99] == pytest.approx([100, 50.5, 95, 99])
    assert found.low < found.p50 < found.high


def test_an_interval_is_the_same_each_time_and_narrows() -> None:
    few, many = [1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 2.0, 3.0, 4.0, 5.0] * 40
    assert interval(few) == interval(few)
    assert interval(many)[1] - interval(many)[0] < interval(few)[1] - interval(few)[0]


def test_a_row_is_a_ratio_of_its_own_bare_row() -> None:
    figures = Figures()
    for round_ in (1.0, 2.0, 3.0):
        figures.add({rows.BARE_TRUE: 0.2 * round_, rows.BARE_PYTHON: 0.4 * round_})
        figures.add({rows.WARM_TRUE: 0.01 * round_, rows.WARM_PYTHON: 0.04 * round_})
    found = figures.measured()
    assert list(found) == [rows.BARE_TRUE, rows.BARE_PYTHON, rows.WARM_TRUE, rows.WARM_PYTHON]
    assert found[rows.BARE_TRUE].ratio is None
    shares = [found[name].ratio for name in (rows.WARM_TRUE, rows.WARM_PYTHON)]
    assert [share.value for share in shares if share is not None] == [pytest.approx(0.05), pytest.approx(0.1)]


def test_rows_of_other_rounds_are_no_pairs() -> None:
    figures = Figures()
    figures.add({rows.BARE_TRUE: 0.2, rows.WARM_TRUE: 0.01})
    figures.add({rows.BARE_TRUE: 0.2})
    assert figures.measured()[rows.WARM_TRUE].ratio is None


def test_every_row_stands_against_one_of_the_bare_engine() -> None:
    for row in ROWS.values():
        assert row.against is None or ROWS[row.against].whose == rows.BARE


# --- bounds ------------------------------------------------------------------------------------------------


def test_the_bounds_are_those_that_were_promised() -> None:
    """By heart: whoever loosens one has to say so here, too."""
    assert {bound.row: (bound.most.plain, bound.most.gvisor) for bound in BOUNDS} == {
        rows.WARM_TRUE: (0.06, 0.10),
        rows.WARM_PYTHON: (0.15, 0.20),
        rows.PYTHON_EXEC: (0.08, 0.12),
        rows.RUN: (0.30, 0.30),
        rows.COLD_TRUE_GONE: (1.10, 1.10),
        rows.COLD_PYTHON_GONE: (1.10, 1.10),
        rows.SESSION: (0.15, 0.15),
        rows.SESSION_HTTP: (0.15, 0.15),
    }
    assert (bounds.BURST.plain, bounds.BURST.gvisor) == (1.2, 1.2)


def test_a_quick_run_has_room_and_never_less() -> None:
    for bound in BOUNDS:
        for kind in (PLAIN, GVISOR):
            most, quick = bound.most.of(kind), bound.quick.of(kind)
            assert quick is None or (most is not None and most <= quick <= 2 * most)


@pytest.mark.parametrize(("runtime", "kind"), [("runc", PLAIN), ("crun", PLAIN), ("runsc", GVISOR)])
@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("share", [0.99, 1.01])
def test_what_is_beyond_its_bound_fails(runtime: str, kind: str, quick: bool, share: float) -> None:
    assert kind_of(runtime) == kind
    found = held_at(share, kind=kind, quick=quick)
    report = FieldReport("quick" if quick else "full", {}, {}, runtimes={runtime: found})
    judged = [bound for bound in BOUNDS if (bound.quick if quick else bound.most).of(kind) is not None]
    assert judged
    assert len(report.failures) == (len(judged) if share > 1 else 0)
    assert bounds.strain(bounds.held(runtime, found, quick=quick)) == pytest.approx(share)


def test_what_was_not_measured_is_not_judged() -> None:
    assert FieldReport("full", {}, {}, runtimes={"runc": {rows.WARM_TRUE: measured(10)}}).failures == []
    assert bounds.strain([]) == 0


@pytest.mark.parametrize(("ratio", "missed"), [(1.19, False), (1.21, True)])
def test_a_burst_is_held_to_its_tail(ratio: float, missed: bool) -> None:
    report = FieldReport("full", {}, {}, bursts={"runc": some_burst(ratio)})
    assert bool(report.failures) is missed


def test_a_burst_is_judged_by_its_99th_of_100_and_a_short_one_by_its_95th() -> None:
    one = replace(some_burst(1.0), ours=replace(times([0.1] * 20), p95=200.0, p99=300.0))
    assert one.judged(quick=False) == pytest.approx(3.0)
    assert one.judged(quick=True) == pytest.approx(2.0)


def test_a_peer_that_is_ahead_is_a_failure() -> None:
    ours = {name: measured(10) for name in AHEAD}
    peers = {name: measured(20) for names in AHEAD.values() for name in names}
    assert FieldReport("full", {}, {}, peers={"runc": ours | peers}).failures == []
    ahead = FieldReport("full", {}, {}, peers={"runc": ours | peers | {rows.REX_NEXT: measured(9)}})
    assert ahead.failures == [f"runc: {rows.SESSION_PYTHON} / {rows.REX_NEXT} 1.111, at most 1"]


# --- a burst -----------------------------------------------------------------------------------------------


async def test_a_burst_asks_for_another_word_each_time_and_no_more_at_once_than_it_may() -> None:
    words: list[str] = []

    async def echo(word: str) -> tuple[str, float]:
        words.append(word)
        return f"{word}\n", 0.5

    assert await burst.many(echo, 40, 16) == [0.5] * 40
    assert len(set(words)) == 40


async def test_a_wrong_answer_in_a_burst_is_no_measurement() -> None:
    async def always_the_same(_: str) -> tuple[str, float]:
        return "one\n", 0.5

    with pytest.raises(BenchError, match="a wrong answer in a burst"):
        await burst.many(always_the_same, 8, 4)


# --- what is told ------------------------------------------------------------------------------------------


def full_report(label: str = "") -> FieldReport:
    found = {name: measured(100) for name in ROWS if ROWS[name].whose == rows.BARE} | held_at(0.5)
    peers = {name: measured(50, 2.0) for names in AHEAD.values() for name in names} | {n: measured(9) for n in AHEAD}
    return FieldReport(
        "full",
        MACHINE,
        VERSIONS,
        label,
        runtimes={"runc": {name: found[name] for name in ROWS if name in found}},
        peers={"runc": {name: peers[name] for name in ROWS if name in peers}},
        bursts={"runc": some_burst(1.1)},
        memory={"runc": [Memory("an idle warm sandbox", {"control group": 1.25, "shim": 3.5})]},
        attempts={"runc": [0.5]},
    )


def test_the_tables_tell_everything() -> None:
    text = full_report("Docker 99").text()
    for words in ("Docker 99", "One at a time on runc", "Peers on runc", "A burst, 16 at once", "4.8", "at most"):
        assert words in text
    assert all(row.what in text for name, row in ROWS.items() if name in full_report().runtimes["runc"])


def test_a_record_is_a_document_a_page_and_two_pictures(tmp_path: Path) -> None:
    report = full_report()
    page = record.write(report, "field", tmp_path)
    pictures = plot.write(report, page.with_suffix(""))
    document = json.loads(page.with_suffix(".json").read_text())
    assert (document["part"], document["failures"]) == ("field", [])
    assert document["runtimes"]["runc"][rows.WARM_TRUE]["ratio"]["value"] == pytest.approx(0.03)
    assert document["bursts"]["runc"]["ratios"]["p99"] == pytest.approx(1.1)
    assert pictures[0].read_bytes().startswith(b"\x89PNG")
    assert "swe-rex" in pictures[1].read_text()


def test_figures_in_the_picture_are_short() -> None:
    assert [plot.short(one) for one in (0.4137, 5.0, 58.66, 163.2, 1928.6)] == ["0.414", "5", "58.7", "163", "1,929"]


def test_the_same_figures_make_the_same_picture(tmp_path: Path) -> None:
    first, second = (plot.write(full_report(), tmp_path / name)[1].read_text() for name in ("a", "b"))
    assert first == second


# --- the page ----------------------------------------------------------------------------------------------


def documents(folder: Path, *reports: tuple[str, FieldReport, Mapping[str, Any]]) -> None:
    for name, report, more in reports:
        (folder / f"{name}.json").write_text(json.dumps({"name": name, "at": name[:10], **report.document(), **more}))


def test_the_page_has_the_newest_record_of_each_engine(tmp_path: Path) -> None:
    old, new, other = full_report(), full_report(), full_report("Docker 99 with crun")
    new.notes.append("The newer one.")
    documents(
        tmp_path,
        ("2026-01-01-field", old, {}),
        ("2026-02-01-field", new, {}),
        ("2026-01-15-crun", other, {}),
        ("2026-03-01-quick", replace(full_report(), kind="quick"), {}),
        ("2026-03-01-sessions", full_report(), {"part": "sessions"}),
    )
    assert [path.stem for path, _ in speed_page.records(tmp_path)] == ["2026-02-01-field", "2026-01-15-crun"]
    text = speed_page.make(speed_page.records(tmp_path))
    assert "The newer one." in text
    assert "## Docker 99 with crun" in text
    assert text.count("| fumehood |") > 2


def test_the_page_says_what_was_missed(tmp_path: Path) -> None:
    report = full_report()
    report.runtimes["runc"][rows.RUN] = measured(10, 0.31)
    documents(tmp_path, ("2026-01-01-field", report, {}))
    text = speed_page.make(speed_page.records(tmp_path))
    assert "**missed**" in text
    assert f"| runc | {rows.ROWS[rows.RUN].what} | 0.310 | 0.3 | not known |" in text


def test_the_page_says_what_limits_a_row(tmp_path: Path) -> None:
    report = full_report()
    report.runtimes["runc"][rows.SESSION] = measured(10, 0.19)
    documents(tmp_path, ("2026-01-01-field", report, {}))
    assert bounds.LIMITS[rows.SESSION, bounds.PLAIN] in speed_page.make(speed_page.records(tmp_path))


def test_without_a_record_the_page_says_so(tmp_path: Path) -> None:
    assert speed_page.files(tmp_path) == {speed_page.PAGE: speed_page.make([])}
    assert "There is no record yet" in speed_page.make([])
