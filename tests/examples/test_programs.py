"""The folders of examples/, each run as its page says, against one real `fumehood dev`."""

from __future__ import annotations

import csv
import json
import re
import statistics
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import unavailable
from tests.dev_process import Dev
from tests.examples.markdown import ROOT
from tests.examples.person import Done, Person, good, until

EXAMPLES = Path("examples")


@pytest.fixture(scope="module")
def person(dev: Dev) -> Person:
    return Person(dev)


def refused(done: Done) -> str:
    """What it complained about, in words."""
    assert done.returncode not in (0, 2), done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stderr


# --- coding_agent ------------------------------------------------------------------------------------------


@contextmanager
def scripted_model(person: Person, folder: Path) -> Iterator[dict[str, str]]:
    """What an agent needs to know of it."""
    log = folder / "model"
    with person.starts(log, sys.executable, EXAMPLES / "coding_agent" / "scripted_model.py", "--port", "0"):
        until(lambda: log.read_text().endswith("/v1\n"), log.read_text)
        yield {"OPENAI_BASE_URL": log.read_text().strip(), "OPENAI_API_KEY": "none"}


@pytest.mark.example
def test_an_agent_writes_code_sees_it_fail_and_mends_it(person: Person, tmp_path: Path) -> None:
    with scripted_model(person, tmp_path) as env:
        said = good(person.runs(sys.executable, EXAMPLES / "coding_agent" / "agent.py", env=env))
    assert re.findall(r"\$ .*exit code (\d+)]", said) == ["1", "0", "0"]
    assert said.index("exit code 1") < said.index("Four is IV, not IIII") < said.index("exit code 0")
    assert '(4, "IV")' in said.partition("once more")[2], "the code that passed"


@pytest.mark.example
def test_an_agent_does_not_take_the_models_word_for_it(person: Person, images: dict[str, str], tmp_path: Path) -> None:
    """Where there is no Python the model gives up, which is no exit code 0."""
    with scripted_model(person, tmp_path) as env:
        words = (EXAMPLES / "coding_agent" / "agent.py", "--image", images["base"])
        done = person.runs(sys.executable, *words, env=env)
    assert "I give up" in done.stdout
    assert "exit code 127" in refused(done)


# --- data_analysis -----------------------------------------------------------------------------------------


def pixels(data: bytes) -> tuple[int, int, set[bytes]]:
    """Width, height and the different rows of a PNG, every part of it read and its sums checked."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    parts, place = list[tuple[bytes, bytes]](), 8
    while place < len(data):
        (size,) = struct.unpack_from(">I", data, place)
        kind, body = data[place + 4 : place + 8], data[place + 8 : place + 8 + size]
        assert struct.unpack_from(">I", data, place + 8 + size) == (zlib.crc32(kind + body),), kind
        parts.append((kind, body))
        place += 12 + size
    assert (parts[0][0], parts[-1][0]) == (b"IHDR", b"IEND")
    width, height = struct.unpack_from(">II", parts[0][1])
    raw = zlib.decompress(b"".join(body for kind, body in parts if kind == b"IDAT"))
    assert len(raw) % height == 0
    row = len(raw) // height
    return width, height, {raw[start : start + row] for start in range(0, len(raw), row)}


def by_hand(file: Path) -> dict[str, dict[str, float]]:
    """What the example finds, computed otherwise."""
    rows = [row for row in csv.DictReader(file.read_text().splitlines()) if all(row.values())]
    found = {}
    for station in {row["station"] for row in rows}:
        warmth, rides = (
            [float(row[name]) for row in rows if row["station"] == station] for name in ("celsius", "rides")
        )
        slope = statistics.linear_regression(warmth, rides).slope
        found[station] = {"mean": round(statistics.fmean(rides), 1), "per degree": round(slope, 1)}
    return found


@pytest.fixture(scope="module")
def data_image(images: dict[str, str]) -> str:
    if "data" not in images:
        unavailable("no image data: run scripts/images")
    return images["data"]


@pytest.mark.example
def test_an_analysis_finds_what_is_in_the_data_and_draws_it(person: Person, data_image: str, tmp_path: Path) -> None:
    plot = tmp_path / "plot.png"
    words = ("--image", data_image, "--out", plot)
    said = good(person.runs(sys.executable, EXAMPLES / "data_analysis" / "analyse.py", *words))
    lines = dict(line.split(": ", 1) for line in said.splitlines())
    assert json.loads(lines["data"]) == {"rows": 366, "left out": 6}
    assert json.loads(lines["found"]) == by_hand(ROOT / EXAMPLES / "data_analysis" / "rides.csv")
    width, height, rows = pixels(plot.read_bytes())
    assert (width, height) == (800, 450)
    assert len(rows) > 100, "an empty sheet"


@pytest.mark.example
def test_an_analysis_of_something_else_says_why_not(person: Person, data_image: str, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("date,station,rides,celsius\n2025-01-01,harbour,many,1.0\n")
    words = ("--image", data_image, "--data", wrong, "--out", tmp_path / "plot.png")
    done = person.runs(sys.executable, EXAMPLES / "data_analysis" / "analyse.py", *words)
    assert "ValueError: invalid literal for int()" in refused(done)
    assert not (tmp_path / "plot.png").exists()


# --- map_files ---------------------------------------------------------------------------------------------


def worker_words(dev: Dev) -> tuple[str | Path, ...]:
    return ("--nats-url", f"nats://worker@{dev.nats_url.rpartition('@')[2]}")


@pytest.mark.example
def test_a_map_does_each_of_a_hundred_files_once(person: Person) -> None:
    said = good(person.runs(sys.executable, EXAMPLES / "map_files" / "map_files.py", *worker_words(person.dev)))
    assert "100 files, at most 8 at a time" in said
    assert re.search(r"^100 files, \d{4,} words; each once: True; as counted here: True", said, re.MULTILINE)
    (at_once,) = re.findall(r"at most (\d) at the same time$", said, re.MULTILINE)
    assert 1 < int(at_once) <= 8


@pytest.mark.example
def test_a_map_over_a_folder_of_ones_own(person: Person, tmp_path: Path) -> None:
    for name, text in {"a": "one two", "b c": "three"}.items():
        (tmp_path / name).write_text(text)
    words = (tmp_path, *worker_words(person.dev))
    said = good(person.runs(sys.executable, EXAMPLES / "map_files" / "map_files.py", *words))
    assert "2 files, 3 words; each once: True; as counted here: True" in said


# --- approval ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ada(person: Person, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key of hers."""
    key = tmp_path_factory.mktemp("keys") / "ada.key"
    scopes = ("--scope", "runs:approve", "--scope", "runs:read")
    good(person.runs("fumehood", "key", "create", "ada", *scopes, "--out", key))
    return key


@contextmanager
def release(person: Person, log: Path, version: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A release that waits, and its run."""
    program = EXAMPLES / "approval" / "release.py"
    with person.starts(log, sys.executable, program, version, "--approver", "ada") as process:
        until(lambda: " waits for ada\n" in log.read_text() or process.poll() is not None, log.read_text)
        assert process.poll() is None, log.read_text()
        yield process, log.read_text().split()[0]


@pytest.mark.example
def test_a_release_waits_for_ada_and_knows_that_it_was_her(person: Person, ada: Path, tmp_path: Path) -> None:
    approve = (sys.executable, EXAMPLES / "approval" / "approve.py")
    log = tmp_path / "log"
    with release(person, log, "1.4.0") as (process, run):
        asked = good(person.runs(*approve, run, "--key-file", ada, "--comment", "looks good"))
        assert process.wait(120) == 0, log.read_text()
    shown = json.loads(asked.splitlines()[0])
    assert (shown["message"], shown["approvers"], shown["input"]["version"]) == ("Release it?", ["ada"], "1.4.0")
    assert json.loads(shown["input"]["measured"])["milliseconds"] > 0
    assert re.search(r"^1\.4\.0 is released: \w+/ada said 'looks good'$", log.read_text(), re.MULTILINE)


@pytest.mark.example
def test_a_release_that_ada_rejects_is_none_and_others_are_not_asked(person: Person, ada: Path, tmp_path: Path) -> None:
    approve = (sys.executable, EXAMPLES / "approval" / "approve.py")
    log = tmp_path / "log"
    with release(person, log, "1.5.0") as (process, run):
        assert "somebody else is asked" in refused(person.runs(*approve, run))
        assert process.poll() is None
        good(person.runs(*approve, run, "--key-file", ada, "--reject", "--comment", "not on a Friday"))
        assert process.wait(120) == 1
    assert "not on a Friday" in log.read_text()
    assert "is released" not in log.read_text()


# --- ci_with_receipts --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(person: Person, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("ci") / "build"
    said = good(person.runs(sys.executable, EXAMPLES / "ci_with_receipts" / "ci.py", "--out", out))
    assert re.findall(r"^(\w+): exited, exit code (\d)", said, re.MULTILINE) == [("compile", "0"), ("test", "0")]
    return out


def check(person: Person, folder: Path) -> Done:
    """Offline: the only server that it could ask is not there."""
    nowhere = {"FUMEHOOD_URL": "http://127.0.0.1:9"}
    return person.runs(sys.executable, EXAMPLES / "ci_with_receipts" / "check.py", folder, env=nowhere)


def copied(built: Path, to: Path) -> Path:
    to.mkdir()
    for file in built.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


@pytest.mark.example
def test_a_ci_run_leaves_receipts_that_hold(person: Person, built: Path) -> None:
    said = good(check(person, built))
    assert len(re.findall(r"^(compile|test): exit code 0, signed by \w", said, re.MULTILINE)) == 2
    assert "Ran 3 tests" in (built / "test.stderr").read_text()
    words = ("fumehood", "verify", built / "test.receipt.json", "--against", f"stderr={built / 'test.stderr'}")
    good(person.runs(*words))


@pytest.mark.example
def test_an_output_that_was_changed_is_refused(person: Person, built: Path, tmp_path: Path) -> None:
    forged = copied(built, tmp_path / "forged")
    text = (forged / "test.stderr").read_text()
    (forged / "test.stderr").write_text(text.replace("Ran 3 tests", "Ran 4 tests"))
    done = check(person, forged)
    assert done.returncode == 1
    assert re.search(r"^test: REFUSED, .*\(output_mismatch\)$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^compile: exit code 0, signed by", done.stdout, re.MULTILINE)


@pytest.mark.example
def test_a_receipt_that_was_changed_or_exchanged_is_refused(person: Person, built: Path, tmp_path: Path) -> None:
    forged = copied(built, tmp_path / "forged")
    envelope: dict[str, Any] = json.loads((forged / "test.receipt.json").read_text())
    (signature,) = envelope["signatures"]
    signature["sig"] = signature["sig"][::-1]
    (forged / "test.receipt.json").write_text(json.dumps(envelope))
    done = check(person, forged)
    assert (done.returncode, done.stdout.count("REFUSED")) == (1, 1), done.stdout + done.stderr
    (forged / "test.receipt.json").write_bytes((built / "compile.receipt.json").read_bytes())
    done = check(person, forged)
    assert (done.returncode, done.stdout.count("REFUSED")) == (1, 1), done.stdout + done.stderr


@pytest.mark.example
def test_a_ci_run_ends_as_its_tests_end_and_says_so_in_its_receipt(person: Person, tmp_path: Path) -> None:
    project, out = tmp_path / "project", tmp_path / "build"
    project.mkdir()
    (project / "test_it.py").write_text("import unittest\nclass T(unittest.TestCase):\n  def test(self): 1/0\n")
    done = person.runs(sys.executable, EXAMPLES / "ci_with_receipts" / "ci.py", "--project", project, "--out", out)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert "test: exit code 1, signed by" in check(person, out).stdout
