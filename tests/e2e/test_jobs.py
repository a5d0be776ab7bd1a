"""Jobs as somebody has them done: a real `fumehood dev` with its three providers, the command line, and `verify`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.dev_process import Dev
from tests.typed import typed
from tests.waiting import wait_until

PATIENCE = 240.0
PROVIDERS = ["dev-provider-1", "dev-provider-2", "dev-provider-3"]

ANALYSIS = {
    "task": "Find security issues",
    "chunk": {
        "path": "app/login.py",
        "start_line": 1,
        "end_line": 4,
        "language": "python",
        "content": "import subprocess\n\ndef run(command):\n    return subprocess.call(command, shell=True)\n",
    },
}
RERANK = {
    "user_task": "How does the login work?",
    "k": 2,
    "candidates": [
        {"id": "config", "content": "def parse_config(path): return toml.load(path)"},
        {"id": "login", "content": "def login(user, password): verify the password, then create a session"},
        {"id": "colours", "content": "RED, GREEN, BLUE = range(3)"},
    ],
}
JUDGE = {
    "job_type": "oa.retrieval_rerank.v1",
    "request": RERANK,
    "candidates": [
        {"topk": [{"rank": 1, "id": "colours", "score": 0.9}, {"rank": 2, "id": "config", "score": 0.8}]},
        {"topk": [{"rank": 1, "id": "login", "score": 0.9}, {"rank": 2, "id": "config", "score": 0.1}]},
    ],
}


@dataclass(frozen=True)
class Home:
    """Somebody's home folder, in which a `dev` runs, and the command line there."""

    dev: Dev
    image: str

    @property
    def folder(self) -> Path:
        return self.dev.home

    def type(self, *words: str, stdin: object = None) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        given = json.dumps(stdin) if stdin is not None else ""
        done = typed(*words, folder=self.folder, env=self.dev.env, given=given)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout, done.stderr

    def submit(self, job_type: str, request: object, *words: str) -> dict[str, Any]:
        code, out, err = self.type("job", "submit", job_type, "--json", *words, stdin=request)
        assert code == 0, out + err
        found: dict[str, Any] = json.loads(out)
        return found

    def verify(self, document: object, *words: str) -> tuple[int, str]:
        """Exit code, and what it says."""
        file = self.folder / "document.json"
        file.write_text(json.dumps(document), encoding="utf-8")
        code, out, err = self.type("verify", "document.json", *words)
        return code, out + err

    def sandbox_run(self, *commands: str, **more: Any) -> dict[str, Any]:
        sandbox = {"image_digest": self.image.partition("@")[2]}
        return {"sandbox": sandbox, "commands": [{"cmd": one} for one in commands], **more}


@pytest.fixture(scope="module")
def home(dev: Dev, base_image: str) -> Home:
    return Home(dev, base_image)


@pytest.fixture(scope="module")
def majority(home: Home) -> dict[str, Any]:
    """One program, done by three providers."""
    request = home.sandbox_run("echo hello; echo made > file", "exit 3", artifacts=["*"])
    return home.submit("oa.sandbox_run.v1", request, "--redundancy", "3")


def test_three_providers_are_there_with_a_key_each(home: Home) -> None:
    known = json.loads(home.type("worker", "standing", "--json")[1])["providers"]
    assert [one["worker"] for one in known if one["present"]] == ["dev-judge", *PROVIDERS]
    assert len({one["receipt_key"] for one in known}) == 4
    types = json.loads(home.type("job", "types", "--json")[1])["job_types"]
    judge, *others = known
    assert judge["job_types"] == ["oa.candidate_judge.v1"]
    assert all(one["job_types"] == [kind["name"] for kind in types] for one in others)


@pytest.mark.parametrize(
    ("job_type", "request_", "outcome", "redundancy"),
    [
        ("oa.code_chunk_analysis.v1", ANALYSIS, "judged", 2),
        ("oa.retrieval_rerank.v1", RERANK, "majority", 2),
        ("oa.candidate_judge.v1", JUDGE, "single", 1),
        ("oa.sandbox_run.v1", None, "single", 1),
    ],
)
def test_every_type_works_as_its_contract_verifies_it(
    home: Home, job_type: str, request_: dict[str, Any] | None, outcome: str, redundancy: int
) -> None:
    """On one machine, with what `dev` brings: the answer, distinct providers, and a chain that holds."""
    job = home.submit(job_type, request_ or home.sandbox_run("true"))
    verdict = job["verdict"]
    assert (job["status"], verdict["outcome"], verdict["redundancy"]) == ("succeeded", outcome, redundancy), job
    assert len({one["worker"] for one in verdict["candidates"]}) == redundancy
    code, said = home.verify(job)
    assert code == 0, said


def test_what_the_local_providers_find_is_right(home: Home) -> None:
    found = home.submit("oa.code_chunk_analysis.v1", ANALYSIS, "--redundancy", "1", "--adjudication", "none")["result"]
    assert "run" in [one["name"] for one in found["symbols"]]
    assert 4 in [one["line"] for one in found["suspected_faults"]], "shell=True"
    ranked = home.submit("oa.retrieval_rerank.v1", RERANK)["result"]
    assert ranked["topk"][0]["id"] == "login"
    assert home.submit("oa.candidate_judge.v1", JUDGE)["result"]["index"] == 1


def test_three_providers_that_agree_are_a_majority(home: Home, majority: dict[str, Any]) -> None:
    verdict, result = majority["verdict"], majority["result"]
    assert (verdict["outcome"], verdict["agreed"]) == ("majority", 3)
    assert sorted(one["worker"] for one in verdict["candidates"]) == PROVIDERS
    assert (result["status"], [one["exit_code"] for one in result["runs"]]) == ("failed", [0, 3])
    assert [one["path"] for one in result["artifacts"]] == ["file"]
    assert len(majority["receipts"]) == 3
    code, said = home.verify(majority)
    assert code == 0, said
    shown = home.type("job", "show", majority["job_id"])[1]
    assert "3 of 3 providers came to the same" in shown


def test_a_receipt_vouches_for_what_the_program_printed(home: Home, majority: dict[str, Any]) -> None:
    (home.folder / "printed").write_text("hello\n")
    assert home.verify(majority["receipts"][0], "--against", "stdout/0=printed")[0] == 0
    (home.folder / "printed").write_text("hallo\n")
    code, said = home.verify(majority["receipts"][0], "--against", "stdout/0=printed")
    assert (code, "refused" in said) == (1, True)


@pytest.mark.parametrize("where", ["exit code", "receipt", "verdict", "another's receipt"])
def test_whatever_is_changed_is_noticed(home: Home, majority: dict[str, Any], where: str) -> None:
    job = json.loads(json.dumps(majority))
    if where == "exit code":
        job["result"]["runs"][1]["exit_code"] = 0
    elif where == "receipt":
        payload = job["verdict"]["candidates"][0]["receipt"]["payload"]
        flipped = payload[:100] + ("A" if payload[100] != "A" else "B") + payload[101:]
        job["verdict"]["candidates"][0]["receipt"]["payload"] = flipped
    elif where == "verdict":
        job["verdict"]["agreed"] = 2
    else:
        job["verdict"]["candidates"][0]["receipt"] = job["verdict"]["candidates"][1]["receipt"]
    code, said = home.verify(job)
    assert (code, "refused" in said) == (1, True), said


def test_a_folder_goes_up_and_commands_run_over_it(home: Home) -> None:
    source = home.folder / "source"
    source.mkdir()
    (source / "words").write_text("b\na\n")
    code, out, err = home.type("job", "upload", "source")
    assert code == 0, err
    request = home.sandbox_run("sort words", repo={"source": out.strip()})
    result = home.submit("oa.sandbox_run.v1", request)["result"]
    assert (result["status"], result["runs"][0]["stdout_preview"]) == ("success", "a\nb\n"), result
    assert result["repo_tree"]


def test_a_job_that_nobody_wants_any_more_is_cancelled(home: Home) -> None:
    _, out, _ = home.type("job", "submit", "oa.sandbox_run.v1", "--no-wait", stdin=home.sandbox_run("sleep 600"))
    job_id = out.strip()
    assert home.type("job", "cancel", job_id)[0] == 0
    shown = ("job", "show", job_id, "--json")
    wait_until(lambda: json.loads(home.type(*shown)[1])["status"] not in ("queued", "running"))
    assert json.loads(home.type(*shown)[1])["status"] == "cancelled"


def test_a_request_that_is_none_is_told_by_its_field(home: Home) -> None:
    code, out, err = home.type("job", "submit", "oa.sandbox_run.v1", stdin={"commands": []})
    assert (code, out) == (1, "")
    assert "payload.sandbox" in err
