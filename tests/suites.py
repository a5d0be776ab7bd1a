"""Runs a test suite with one second chance, and adds up what all suites reported.

    python -m tests.suites run NAME PATH… [PYTEST OPTION…]
    python -m tests.suites summary

The tests of a suite that fail run once more, alone and one after another. A test that passes then is flaky: its JUnit
entry is replaced and keeps the first failure as the property `flaky`, so that `summary` can name it. A test that
fails twice fails the suite. More than `MOST_RERUN` failures in one suite are not rerun: that is a broken change, not
a busy machine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

BUILD: Final = Path(os.environ.get("FUMEHOOD_BUILD_DIR") or Path(__file__).parents[1] / "build")
MOST_RERUN: Final = 8
MOST_FLAKY: Final = 5
"""In one run of all suites. With more of them, something is wrong with the machine or with a suite: the run is red."""
TESTS_FAILED: Final = 1
"""Pytest's exit code. Any other failure (usage, collection, no tests) gets no second chance."""


def run(name: str, arguments: Sequence[str]) -> int:
    """Run pytest with these arguments; the result is its exit code after the second chance."""
    report = BUILD / "junit" / f"{name}.xml"
    cache = BUILD / "pytest" / name
    shutil.rmtree(cache, ignore_errors=True)  # or tests that failed in an earlier run would get a second chance, too
    report.parent.mkdir(parents=True, exist_ok=True)
    common = [sys.executable, "-m", "pytest", "-q", "-o", f"cache_dir={cache}"]

    status = subprocess.run([*common, f"--junitxml={report}", *arguments], check=False).returncode
    if status != TESTS_FAILED:
        return status
    failed = last_failed(cache)
    if not 0 < len(failed) <= MOST_RERUN:
        print(f"{name}: {len(failed)} tests failed; at most {MOST_RERUN} get a second chance", flush=True)
        return status

    print(f"\n{name}: second chance, one after another: {' '.join(failed)}", flush=True)
    again = report.with_suffix(".again")
    words = [*common, f"--junitxml={again}", "-p", "no:xdist", *serial_options(arguments), *failed]
    status = subprocess.run(words, check=False).returncode
    if again.exists():
        merge(report, again)
        again.unlink()
    return status


def last_failed(cache: Path) -> list[str]:
    path = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else []


def serial_options(arguments: Sequence[str]) -> list[str]:
    """Pytest's arguments without the paths and without the options of xdist."""
    kept = []
    words = iter(arguments)
    for word in words:
        if word in ("-n", "--dist"):
            next(words, None)
        elif word in ("-m", "-k"):  # their value may look like a path
            kept += [word, next(words)]
        elif not Path(word).exists():
            kept.append(word)
    return kept


def merge(report: Path, again: Path) -> None:
    """Put the second answers into a suite's report in place of the first ones."""
    tree = ElementTree.parse(report)
    suite = next(tree.iter("testsuite"))
    second = {_key(case): case for case in ElementTree.parse(again).iter("testcase")}
    first: dict[tuple[str, str], str] = {}
    for case in suite.findall("testcase"):
        trouble = _trouble(case)
        if _key(case) in second:  # a failed call and a failed teardown are two entries of one test
            suite.remove(case)
            if trouble is not None:
                first.setdefault(_key(case), (trouble.get("message") or trouble.text or "")[:2000])
    for key, case in second.items():
        if _trouble(case) is None:
            properties = case.find("properties")
            if properties is None:
                properties = ElementTree.SubElement(case, "properties")
            ElementTree.SubElement(properties, "property", name="flaky", value=first.get(key, ""))
        suite.append(case)
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for kind, attribute in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(attribute, str(sum(case.find(kind) is not None for case in cases)))
    tree.write(report, encoding="utf-8", xml_declaration=True)


def _key(case: ElementTree.Element) -> tuple[str, str]:
    return case.get("classname", ""), case.get("name", "")


def _trouble(case: ElementTree.Element) -> ElementTree.Element | None:
    failure = case.find("failure")
    return failure if failure is not None else case.find("error")


def summary() -> int:
    """Name the flaky tests, write them to `build/flakes.json`, and print the totals as the last line."""
    count = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    flaky: dict[str, str] = {}
    for report in sorted((BUILD / "junit").glob("*.xml")):
        for suite in ElementTree.parse(report).iter("testsuite"):
            for key in count:
                count[key] += int(suite.get(key, 0))
            for case in suite.iter("testcase"):
                for entry in case.iterfind("properties/property[@name='flaky']"):
                    flaky[f"{case.get('classname')}::{case.get('name')}"] = entry.get("value", "")
    (BUILD / "flakes.json").write_text(json.dumps(flaky, indent=2) + "\n", encoding="utf-8")
    for name, words in flaky.items():
        print(f"FLAKY {name}: {words.splitlines()[0] if words else ''}")
    if len(flaky) > MOST_FLAKY:
        print(f"{len(flaky)} flaky tests are more than {MOST_FLAKY}: this run is red")
    failed = count["failures"] + count["errors"]
    passed = count["tests"] - failed - count["skipped"]
    print(f"{passed} passed, {failed} failed, {count['skipped']} skipped")
    skipped_in_ci = bool(os.environ.get("CI")) and count["skipped"] > 0
    return int(failed > 0 or passed <= 0 or skipped_in_ci or len(flaky) > MOST_FLAKY)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run", name, *arguments]:
            sys.exit(run(name, arguments))
        case ["summary"]:
            sys.exit(summary())
        case _:
            sys.exit(__doc__)
