"""A test that failed while the host took the processors away is looked at once more, and that is said.

Tests run on shared machines, whose host may stop all of this one for seconds (steal): then a guard ends that no change
to the code would help. So a test that failed in such a moment runs again, once; its second answer counts, and the first
one is printed at the end. Where nothing was stolen nothing is run again: a test that fails now and then by itself fails
the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest
from _pytest.runner import runtestprotocol

from tests.noise import STOLEN, TICKS_PER_SECOND, ticks

MOST_STOLEN: Final = 1.0
"""Seconds of processor time, during one test."""
SHARE: Final = 0.1
"""Or so much of all the processors' time, of a test that is short."""
AGAIN: Final = "looked at again"


def is_disturbed(before: Sequence[int], after: Sequence[int]) -> bool:
    """A tick alone, which in a test of a few milliseconds is a large share, is no disturbance."""
    passed = [now - then for now, then in zip(after, before, strict=True)]
    stolen = passed[STOLEN]
    return stolen > MOST_STOLEN * TICKS_PER_SECOND or (stolen > 2 and stolen > SHARE * sum(passed))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    before = ticks()
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    failed = next((report for report in reports if report.failed), None)
    if failed is not None and is_disturbed(before, ticks()):
        if failed.when == "setup":  # what a fixture of the whole module failed with would be kept
            item.session._setupstate.teardown_exact(None)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        reports[0].user_properties.append((AGAIN, failed.longreprtext[-2000:]))
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    told = [
        (report.nodeid, text)
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, text in getattr(report, "user_properties", ())
        if name == AGAIN
    ]
    for nodeid, text in dict(told).items():
        terminalreporter.write_sep("-", f"failed while the host took the processors, and was {AGAIN}: {nodeid}")
        terminalreporter.write_line(str(text))
