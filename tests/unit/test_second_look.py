"""What is looked at again: what failed while the processors were taken away, once, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.second_look import is_disturbed

ROOT = Path(__file__).parents[2]
CONFTEST = """
from tests import second_look
from tests.second_look import pytest_runtest_protocol, pytest_terminal_summary
count = 0
def ticks():
    global count
    count += {stolen}
    return [count * 3] * 7 + [count]
second_look.ticks = ticks
"""
TESTS = """
import pathlib, pytest
HERE = pathlib.Path(__file__).parent

def tried(name):
    with (HERE / name).open("a") as file:
        file.write("x")
    return len((HERE / name).read_text())

@pytest.fixture(scope="module")
def server():
    if tried("server") < 2:
        raise OSError("the server did not come")

def test_once_late():
    assert tried("late") > 1, "first answer"

def test_of_a_server(server):
    pass

def test_beside_it(server):
    pass

def test_good():
    assert tried("good") == 1

def test_always_wrong():
    assert tried("wrong") > 2
"""


def play(folder: Path, stolen: int, *arguments: str) -> str:
    (folder / "conftest.py").write_text(CONFTEST.format(stolen=stolen))
    (folder / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={folder}", *arguments, "."]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment["PYTHONPATH"] = str(ROOT)
    return subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, timeout=300, check=False
    ).stdout


@pytest.mark.parametrize("arguments", [(), ("-n", "1")], ids=["alone", "distributed"])
def test_what_failed_in_a_disturbance_has_a_second_answer_and_both_are_told(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    told = play(tmp_path, 500, *arguments)
    assert "1 failed, 4 passed" in told
    assert "test_always_wrong" in told
    assert told.count("was looked at again") == 3
    assert "first answer" in told
    assert (tmp_path / "wrong").read_text() == "xx"


def test_what_fails_by_itself_fails(tmp_path: Path) -> None:
    told = play(tmp_path, 0)
    assert "2 failed, 1 passed, 2 errors" in told
    assert "looked at again" not in told
    assert (tmp_path / "late").read_text() == "x"


@pytest.mark.parametrize(
    ("others", "stolen", "expected"),
    [(10_000, 101, True), (10_000, 100, False), (50, 10, True), (5, 2, False), (0, 0, False), (1000, 50, False)],
)
def test_a_disturbance(others: int, stolen: int, expected: bool) -> None:
    assert is_disturbed([5] * 8, [5 + others, *[5] * 6, 5 + stolen]) is expected
