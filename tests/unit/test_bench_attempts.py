"""A bench fails only where its bound was missed every time."""

from __future__ import annotations

import pytest

from bench.attempts import ATTEMPTS, attempts
from bench.disturbance import Disturbance
from bench.figures import Ratio
from bench.sessions_exec import TRUE, Live
from bench.sessions_report import EXEC_BOUNDS, SessionsReport, room_of, strain


class Share(Disturbance):
    """Of a machine that is made up."""

    def __init__(self, share: float) -> None:
        self._share = share

    @property
    def share(self) -> float:
        return self._share


def others_had(share: float) -> Disturbance:
    return Share(share)


@pytest.mark.parametrize(
    ("values", "measured"),
    [([1.0], 1), ([2.0, 1.0], 2), ([2.0, 3.0, 1.0], 3), ([2.0, 3.0, 4.0], ATTEMPTS)],
)
async def test_what_does_not_hold_is_measured_again(values: list[float], measured: int) -> None:
    left = iter([*values, 0.0])

    async def measure() -> float:
        return next(left)

    assert await attempts(measure, lambda one: one <= 1, lambda: others_had(0.1)) == values[:measured]


async def test_what_others_disturbed_is_not_measured_again() -> None:
    left = iter([2.0, 1.0])

    async def measure() -> float:
        return next(left)

    assert await attempts(measure, lambda one: one <= 1, lambda: others_had(0.5)) == [2.0]


def live(**ratios: float) -> Live:
    return Live(" ".join(TRUE), {}, {way: Ratio(one, one, one, one) for way, one in ratios.items()})


@pytest.mark.parametrize("kind", ["quick", "full"])
@pytest.mark.parametrize("share", [0.99, 1.01])
def test_what_is_measured_again_is_what_would_fail(kind: str, share: float) -> None:
    """By each way's own bound: the largest ratio alone may be one that is allowed."""
    bound, room = EXEC_BOUNDS["true"], room_of(kind)
    one = live(**{"in process": share * bound, "sandbox over HTTP": 0.98 * bound * room})
    report = SessionsReport(kind, {}, {}, live=[one])
    assert (strain(one, room) > 1) == bool(report.failures) == (share > 1)
