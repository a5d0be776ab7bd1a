"""The tests too long for CI, read from pytest's JUnit report so that their figures stand in the same record.

A test adds a figure with pytest's `record_property("name", value)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree


@dataclass(frozen=True, slots=True)
class TestRun:
    """One test of the report."""

    name: str
    outcome: str
    seconds: float
    figures: dict[str, str]


WORDS = {
    "engine": ("cluster_load", "many_runs", "many_timers", "test_broker", "test_decider", "simulation"),
    "sessions": ("console", "session"),
}
"""Words in the names of test modules that are about runs, or about sessions; their figures stand beside those of the
bench that measures the same."""


def read(path: Path, part: str) -> list[TestRun]:
    """Those about one part; all that are about no other belong to the worker API."""
    tests = [_test(case) for case in ElementTree.parse(path).iter("testcase")]
    return [test for test in tests if _part(test.name.partition("::")[0]) == part]


def _part(module: str) -> str:
    return next((part for part, words in WORDS.items() if any(word in module for word in words)), "worker-api")


def _test(case: ElementTree.Element) -> TestRun:
    bad = next((kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None), None)
    figures = {item.get("name", ""): item.get("value", "") for item in case.iter("property")}
    return TestRun(f"{case.get('classname')}::{case.get('name')}", bad or "passed", float(case.get("time", 0)), figures)
