"""examples/node_worker: plain Node over the bridge, for runs of a real server."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import unavailable
from tests.dev_process import Dev
from tests.examples.markdown import ROOT
from tests.examples.person import Person, good, until

FOLDER = Path("examples/node_worker")
TEXTS = json.loads((ROOT / FOLDER / "texts.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def person(dev: Dev) -> Person:
    if shutil.which("node") is None:
        unavailable("no node: run scripts/services up")
    made = Person(dev)
    good(made.runs("fumehood", "workflow", "apply", FOLDER / "count-words.yaml"))
    return made


@contextmanager
def worker(person: Person, log: Path) -> Iterator[int]:
    """Its process's number; it goes well when it is told to."""
    token = person.dev.state / "bridge.token"
    with person.starts(log, "node", FOLDER / "worker.mjs", person.dev.server_url, token) as process:
        until(lambda: "serves words and publish" in log.read_text(), log.read_text)
        yield process.pid
        process.terminate()
        assert process.wait(120) == 0, log.read_text()
    said = log.read_text()
    assert said.endswith("goes home\n")
    assert token.read_text().strip() not in said


def start(person: Person, given: Any, workflow: str = "count-words") -> str:
    return good(person.runs("fumehood", "workflow", "run", workflow, "--input", json.dumps(given))).strip()


def shown(person: Person, run: str) -> dict[str, Any]:
    """Asked as a program would: the command line takes a while to start."""
    key = (person.dev.state / "api.token").read_text().strip()
    answer = httpx.get(f"{person.dev.server_url}/v1/runs/{run}", headers={"authorization": f"Bearer {key}"})
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


def ended(person: Person, run: str) -> dict[str, Any]:
    until(lambda: shown(person, run)["status"] in ("succeeded", "failed"), lambda: shown(person, run))
    return shown(person, run)


@pytest.mark.example
def test_it_counts_in_every_language_and_tries_again(person: Person, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with worker(person, log) as pid:
        view = ended(person, start(person, TEXTS))
        assert view["status"] == "succeeded", view
    counts = {one["language"]: one["words"] for one in view["output"]["counts"]}
    assert (counts["en"], counts["de"]) == (23, 15)
    assert min(counts["ja"], counts["th"]) > 1, "words that no blanks are between"
    assert view["output"]["published"] == {"published": 4, "attempt": 2, "by": f"node-{pid}"}
    assert re.search(r"publish attempt 1: fail\n", log.read_text())


@pytest.mark.example
def test_a_failure_that_is_final_is_not_tried_again(person: Person, tmp_path: Path) -> None:
    with worker(person, tmp_path / "log"):
        view = ended(person, start(person, {"texts": []}))
    assert (view["status"], view["error"]["code"]) == ("failed", "nothing_to_publish")
    assert view["steps"]["publish"]["attempt"] == 1


@pytest.mark.example
def test_one_that_is_sent_home_hands_on_what_it_has_done(person: Person, tmp_path: Path) -> None:
    """The next one goes on behind the checkpoint: no line is counted twice, and no attempt is used up."""
    lines = 12
    slow = {"language": "en", "text": "\n".join(["one two"] * lines), "pause_ms": 1500}
    first, second = tmp_path / "first", tmp_path / "second"
    with worker(person, first):
        run = start(person, {"texts": [slow]})
        until(lambda: "checkpoint" in first.read_text(), first.read_text)
    done = first.read_text().count(": checkpoint")
    assert 0 < done < lines
    assert ": pause" in first.read_text()
    with worker(person, second):
        view = ended(person, run)
    assert view["output"]["counts"] == [{"language": "en", "words": 2 * lines}]
    assert second.read_text().count(": checkpoint") == lines - done
    assert "attempt 2: c" not in second.read_text().replace("publish attempt 2", "")


@pytest.mark.example
def test_a_task_that_takes_long_is_heard_of_meanwhile(person: Person, tmp_path: Path) -> None:
    """The same workflow with less time for each attempt: a third of that is when the worker tells of itself."""
    text = (ROOT / FOLDER / "count-words.yaml").read_text(encoding="utf-8")
    brief, log = tmp_path / "brief.yaml", tmp_path / "log"
    brief.write_text(text.replace("name: count-words", "name: count-briefly").replace("timeout: 1m", "timeout: 15s"))
    good(person.runs("fumehood", "workflow", "apply", brief))
    with worker(person, log):
        slow = {"language": "en", "text": "one two", "pause_ms": 6500}
        view = ended(person, start(person, {"texts": [slow]}, "count-briefly"))
    assert view["output"]["counts"] == [{"language": "en", "words": 2}], view
    assert ": heartbeat" in log.read_text()


@pytest.mark.example
def test_it_is_refused_with_a_sentence(person: Person, tmp_path: Path) -> None:
    wrong = tmp_path / "token"
    wrong.write_text("wrong")
    done = person.runs("node", FOLDER / "worker.mjs", person.dev.server_url, wrong)
    assert done.returncode == 1
    assert ": 401 " in done.stderr
    assert "    at " not in done.stderr, "a stack"
