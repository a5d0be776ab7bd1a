"""A bound that was missed while others had the machine was not judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.disturbance import MOST_STOLEN, Disturbance, verdict


def test_the_share_is_that_of_the_time_since(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 100 100 0 0 0 700 0 0\ncpu0 1 2 3\n")
    watch = Disturbance(stat)
    assert watch.share == 0
    stat.write_text("cpu  150 0 125 100 0 0 0 725 0 0\ncpu0 1 2 3\n")
    assert watch.share == 0.25


def test_this_machine_can_be_read() -> None:
    assert 0 <= Disturbance().share <= 1


@pytest.mark.parametrize(
    ("code", "share", "quick", "expected"),
    [
        (0, 0.9, True, 0),
        (1, 0.0, True, 1),
        (1, MOST_STOLEN, True, 1),
        (1, 0.3, True, 0),
        (1, 0.9, False, 1),
        (2, 0.9, True, 2),
    ],
)
def test_only_a_quick_bench_that_was_disturbed_goes_unjudged(
    code: int, share: float, quick: bool, expected: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verdict(code, share, quick=quick) == expected
    assert ("not judged" in capsys.readouterr().out) is (code != expected)
