"""The second chance of a test suite: once, alone, visible, and only for a few failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import pathlib, pytest
HERE = pathlib.Path(__file__).parent

def attempt(name):
    with (HERE / name).open("a") as file:
        file.write("x")
    return len((HERE / name).read_text())

@pytest.fixture(scope="module")
def server():
    if attempt("server") < 2:
        raise OSError("the server did not start")

@pytest.mark.parametrize("value", ["a@b"])
def test_flaky(value):
    assert attempt("flaky") > 1, "first answer"

def test_of_server(server):
    pass

def test_passes():
    assert attempt("passes") == 1
"""
FAILS_TWICE = """
def test_fails_twice():
    assert attempt("wrong") > 2
"""
MANY = """
@pytest.mark.parametrize("number", range(9))
def test_many(number):
    assert attempt(f"many{number}") > 1
"""
SKIPPED = """
def test_skipped():
    pytest.skip("no service")
"""


class Folder:
    """A project with one suite."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "tests" / "small").mkdir(parents=True)

    def write(self, text: str) -> None:
        (self.path / "tests" / "small" / "test_it.py").write_text(text)

    def suites(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        environment |= {"FUMEHOOD_BUILD_DIR": str(self.path / "build"), "PYTHONPATH": str(ROOT), "CI": "true"}
        environment |= {
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_PLUGINS": "xdist.plugin",
        }  # others load slowly
        command = [sys.executable, "-m", "tests.suites", *arguments]
        return subprocess.run(
            command, cwd=self.path, env=environment, capture_output=True, text=True, timeout=50, check=False
        )

    @property
    def report(self) -> ElementTree.Element:
        return next(ElementTree.parse(self.path / "build" / "junit" / "small.xml").iter("testsuite"))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.mark.parametrize("workers", [(), ("-n", "1", "--dist", "loadfile")], ids=["serial", "distributed"])
def test_flaky_tests_pass_the_suite_and_are_named(folder: Folder, workers: tuple[str, ...]) -> None:
    folder.write(TESTS)
    done = folder.suites("run", "small", "tests/small", *workers)
    assert done.returncode == 0, done.stdout
    assert {key: folder.report.get(key) for key in ("tests", "failures", "errors")} == {
        "tests": "3",
        "failures": "0",
        "errors": "0",
    }
    added = folder.suites("summary")
    assert added.returncode == 0
    *flaky, last = added.stdout.splitlines()
    assert last == "3 passed, 0 failed, 0 skipped"
    assert [line.split(":")[0] for line in flaky] == ["FLAKY tests.small.test_it"] * 2
    assert any("test_flaky[a@b]" in line and "first answer" in line for line in flaky)
    assert len(json.loads((folder.path / "build" / "flakes.json").read_text())) == 2


def test_failure_that_repeats_fails_the_suite(folder: Folder) -> None:
    folder.write(TESTS + FAILS_TWICE)
    assert folder.suites("run", "small", "tests/small").returncode == 1
    added = folder.suites("summary")
    assert added.returncode == 1
    assert added.stdout.splitlines()[-1] == "3 passed, 1 failed, 0 skipped"


def test_second_chance_keeps_a_selection_that_is_also_a_path(folder: Folder) -> None:
    folder.write(TESTS)
    assert folder.suites("run", "small", "tests/small", "-k", "tests").returncode == 0


def test_many_failures_get_no_second_chance(folder: Folder) -> None:
    folder.write(TESTS + MANY)
    assert folder.suites("run", "small", "tests/small").returncode == 1
    assert folder.suites("summary").stdout.splitlines()[-1] == "1 passed, 11 failed, 0 skipped"


def test_more_than_five_flaky_tests_fail_the_run(folder: Folder) -> None:
    folder.write(TESTS + MANY.replace("range(9)", "range(5)"))
    assert folder.suites("run", "small", "tests/small").returncode == 0
    added = folder.suites("summary")
    assert added.returncode == 1
    assert added.stdout.splitlines()[-1] == "8 passed, 0 failed, 0 skipped"


def test_skipped_test_fails_the_run_in_ci(folder: Folder) -> None:
    folder.write("import pytest\n" + SKIPPED)
    assert folder.suites("run", "small", "tests/small").returncode == 0
    assert folder.suites("summary").returncode == 1


def test_broken_collection_gets_no_second_chance(folder: Folder) -> None:
    folder.write("import missing_module_of_this_test\n")
    done = folder.suites("run", "small", "tests/small")
    assert done.returncode == 2
    assert "second chance" not in done.stdout
