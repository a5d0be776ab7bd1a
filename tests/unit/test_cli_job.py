"""`fumehood job` and `fumehood worker standing`: what they ask, what they show, and how they exit.

The server here only says what it is told; what a real one does is in `tests/e2e/test_jobs.py`.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fumehood.cli import job_payload, job_view, job_watch
from fumehood.cli.main import main
from fumehood.wire.job_api import JobStatus, VerdictOutcome
from tests.unit.api_server import Answer, ApiServer, api_server, problem

TYPE = "oa.sandbox_run.v1"
JOB = "job-0190"
RECEIPT = {"payloadType": "application/vnd.in-toto+json", "payload": "", "signatures": []}
KIND = {
    "name": TYPE,
    "version": "1.0.0",
    "about": "Runs commands.",
    "verification": {"mode": "objective", "redundancy": 1, "adjudication": "none", "judge_model": None},
    "request_schema": {
        "properties": {
            "repo": {"$ref": "#/$defs/RepoMount"},
            "commands": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["commands"],
    },
}


def candidate(number: int, **more: Any) -> dict[str, Any]:
    said = {"execution": number, "worker": f"p-{number}", "key_id": "ab" * 32, "accepted": True}
    return {**said, "declared_sha256": "cd" * 32, "response": {"status": "success"}, "receipt": RECEIPT, **more}


def job(status: str = "succeeded", outcome: str = "majority", **more: Any) -> dict[str, Any]:
    verdict = {"outcome": outcome, "mode": "objective", "redundancy": 3, "adjudication": "majority_vote"}
    verdict |= {"agreed": 2, "chosen": 0, "candidates": [candidate(0), candidate(1), candidate(2, accepted=False)]}
    said = {"job_id": JOB, "job_type": TYPE, "status": status, "request_sha256": "ef" * 32}
    return {**said, "verdict": verdict, "result": {"status": "success"}, "receipts": [RECEIPT] * 3, **more}


QUEUED = {"job_id": JOB, "job_type": TYPE, "status": "queued", "receipts": [], "verification": {"redundancy": 3}}


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


Command = Callable[..., Done]


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with api_server() as made:
        made.answers["POST /v1/jobs"] = Answer(QUEUED, 201)
        made.answers[f"GET /v1/jobs/{JOB}"] = [Answer(QUEUED), Answer({**QUEUED, "status": "running"}), Answer(job())]
        made.answers["GET /v1/job-types"] = Answer({"job_types": [KIND]})
        made.answers[f"GET /v1/job-types/{TYPE}"] = Answer(KIND)
        yield made


@pytest.fixture
def command(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Command:
    monkeypatch.setenv("FUMEHOOD_URL", server.url)
    monkeypatch.setenv("FUMEHOOD_API_KEY", "secret-key")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(*words: str, stdin: str = "") -> Done:
        monkeypatch.setattr("sys.argv", ["fumehood", *words])
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert "secret-key" not in out + err
        return Done(ended.value.code if isinstance(ended.value.code, int) else 0, out, err)

    return run


def submitted(server: ApiServer) -> dict[str, Any]:
    (asked,) = [one for one in server.asked if (one.method, one.path) == ("POST", "/v1/jobs")]
    assert asked.headers["idempotency-key"]
    found: dict[str, Any] = asked.json
    return found


# --- submit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ['{"commands": [{"cmd": "true"}]}', "commands:\n- cmd: 'true'\n"])
def test_a_request_is_json_or_yaml_and_its_verdict_is_told(server: ApiServer, command: Command, text: str) -> None:
    Path("request").write_text(text)
    done = command("job", "submit", TYPE, "request")
    assert done.code == 0, done.err
    assert submitted(server) == {"job_type": TYPE, "payload": {"commands": [{"cmd": "true"}]}}
    assert "2 of 3 providers came to the same; shown is what p-0 gave" in done.out
    assert f"fumehood verify {JOB}.json" in done.out


def test_a_request_from_a_pipe(server: ApiServer, command: Command) -> None:
    assert command("job", "submit", TYPE, "-", stdin='{"a": 1}').code == 0
    assert submitted(server)["payload"] == {"a": 1}


def test_for_programs_the_job_is_one_document(command: Command) -> None:
    done = command("job", "submit", TYPE, "--json", stdin="{}")
    assert (json.loads(done.out), done.err, done.code) == (job(), "", 0)


def test_whoever_does_not_wait_is_told_the_id(server: ApiServer, command: Command) -> None:
    done = command("job", "submit", TYPE, "--no-wait", stdin="{}")
    assert (done.out, done.code) == (f"{JOB}\n", 0)
    assert [one.method for one in server.asked] == ["POST"]


@pytest.mark.parametrize(
    ("words", "said", "wanted"),
    [
        (["--redundancy", "3"], {}, ("objective", 3, "majority_vote")),
        (["--redundancy", "1"], {}, ("objective", 1, "none")),
        (["--redundancy", "3", "--adjudication", "none"], {}, ("objective", 3, "none")),
        (
            ["--redundancy", "2"],
            {"mode": "subjective", "adjudication": "judge_model"},
            ("subjective", 2, "judge_model"),
        ),
        (["--adjudication", "merge"], {"redundancy": 5}, ("objective", 5, "merge")),
    ],
)
def test_how_sure_it_has_to_be_is_said_on_the_command_line(
    server: ApiServer, command: Command, words: list[str], said: dict[str, Any], wanted: tuple[Any, ...]
) -> None:
    """All else is as the request says, or as its type does."""
    done = command(
        "job", "submit", TYPE, *words, stdin=json.dumps({"a": 1, **({"verification": said} if said else {})})
    )
    assert done.code == 0, done.err
    found = submitted(server)["payload"]
    assert found["a"] == 1
    assert tuple(found["verification"].values()) == wanted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "neither JSON nor YAML: line"),
        ("[1]", "must be an object"),
        ("", "must be an object"),
        ("a: &x 1\nb: *x", "aliases are not allowed"),
    ],
)
def test_what_is_no_request_is_never_sent(server: ApiServer, command: Command, text: str, words: str) -> None:
    done = command("job", "submit", TYPE, stdin=text)
    assert (done.code, words in done.err, server.asked) == (2, True, [])
    assert command("job", "submit", TYPE, "no-such-file").code == 2


def test_a_refusal_names_the_field(server: ApiServer, command: Command) -> None:
    server.answers["POST /v1/jobs"] = problem(400, "invalid-request", "commands: Field required")
    done = command("job", "submit", TYPE, stdin="{}")
    assert (done.code, "commands: Field required" in done.err) == (1, True)


def test_a_type_that_nobody_knows_is_told_with_the_one_that_was_meant(server: ApiServer, command: Command) -> None:
    server.answers["POST /v1/jobs"] = problem(404, "not-found", "there is no job type of this name")
    done = command("job", "submit", "oa.sandbox_run.v2", stdin="{}")
    assert (done.code, f"did you mean {TYPE}?" in done.err) == (1, True)
    assert f"did you mean {TYPE}?" in command("job", "types", "oa.sandboxrun.v1").err


@pytest.mark.parametrize(
    ("status", "code"), [("succeeded", 0), ("failed", 1), ("disputed", 4), ("timed_out", 124), ("cancelled", 143)]
)
def test_the_exit_code_says_how_it_ended(server: ApiServer, command: Command, status: str, code: int) -> None:
    server.answers[f"GET /v1/jobs/{JOB}"] = Answer(job(status))
    assert command("job", "submit", TYPE, stdin="{}").code == code


def test_every_status_and_outcome_is_known() -> None:
    assert {one.value for one in JobStatus if one.ended} == job_watch.ENDED
    for outcome in VerdictOutcome:
        assert job_view.verdict(job(outcome=outcome.value)) != outcome.value
    assert job_view.verdict(QUEUED) == ""


def test_what_a_later_server_says_is_shown_as_it_is(server: ApiServer, command: Command) -> None:
    server.answers[f"GET /v1/jobs/{JOB}"] = Answer(job(outcome="by lot\x1b[2J"))
    done = command("job", "show", JOB)
    assert (done.code, "by lot" in done.out, "\x1b" in done.out) == (0, True, False)


def test_a_judge_is_told_with_its_reason(server: ApiServer, command: Command) -> None:
    said = job(outcome="judged")
    said["verdict"]["judge"] = {"worker": "p-9", "reason": "it names the fault"}
    server.answers[f"GET /v1/jobs/{JOB}"] = Answer(said)
    assert "a judge chose what p-0 gave out of the answers of 3 providers (p-9: it names the fault)" in (
        command("job", "show", JOB).out
    )


def test_a_long_wait_is_explained(server: ApiServer, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_watch, "QUEUED_SECONDS", -1.0)
    here = {"present": True, "job_types": [TYPE]}
    away = {**here, "present": False}
    aside = {**here, "set_aside": {"reason": "lies"}}
    server.answers["GET /v1/providers"] = Answer({"providers": [here, away, aside]})
    err = command("job", "submit", TYPE, stdin="{}").err
    assert err.count("1 of the 3 distinct providers that it wants are there") == 1


# --- show, cancel, receipts --------------------------------------------------------------------------------


def test_receipts_go_to_files(server: ApiServer, command: Command) -> None:
    server.answers[f"GET /v1/jobs/{JOB}"] = Answer(job())
    done = command("job", "show", JOB, "--receipts", "proof/of")
    assert done.code == 0, done.err
    written = sorted(Path("proof/of").iterdir())
    assert [json.loads(path.read_text()) for path in written] == [RECEIPT] * 3
    assert all(f"fumehood verify {path}" in done.out for path in written)


def test_a_name_of_the_servers_never_leaves_the_folder(tmp_path: Path) -> None:
    written = job_payload.write_receipts(job(job_id="../../x"), tmp_path / "a" / "b")
    assert all(path.resolve().parent == (tmp_path / "a" / "b").resolve() for path in written)


def test_a_job_that_is_not_there(command: Command) -> None:
    for words in (("show",), ("cancel",)):
        done = command("job", *words, "job-none")
        assert (done.code, "there is no job job-none" in done.err) == (1, True)


def test_a_job_is_cancelled(server: ApiServer, command: Command) -> None:
    server.answers[f"POST /v1/jobs/{JOB}:cancel"] = Answer({**QUEUED, "status": "cancelled"}, 202)
    assert command("job", "cancel", JOB).out == f"{JOB} is being cancelled\n"


def test_types_are_listed_and_shown(command: Command) -> None:
    assert TYPE in command("job", "types").out
    shown = command("job", "types", TYPE).out
    assert "1 providers, none, objective" in shown
    assert [line.split() for line in shown.splitlines() if line.startswith("commands")] == [
        ["commands", "list", "of", "string", "required"]
    ]
    assert json.loads(command("job", "types", TYPE, "--json").out) == KIND


# --- upload ------------------------------------------------------------------------------------------------


def test_a_folder_goes_up_as_a_tar_that_is_always_the_same(server: ApiServer, command: Command) -> None:
    source = Path("source")
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "b").write_text("b")
    (source / "a").write_text("a")
    server.answers["POST /v1/bundles"] = Answer({"source": "bundle:sha256:1", "size": 3}, 201)
    assert command("job", "upload", "source").out == "bundle:sha256:1\n"
    hashes = []
    for _ in range(2):
        with job_payload.bundled(source) as made:
            hashes.append(hashlib.sha256(made.read_bytes()).hexdigest())
            with tarfile.open(made) as archive:
                assert archive.getnames() == ["a", "sub", "sub/b"]
        (source / "a").touch()
    assert hashes[0] == hashes[1]
    assert command("job", "upload", "nowhere").code == 2


def test_a_repository_goes_up_as_what_is_committed(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    git = ["git", "-C", str(repo), "-c", "user.name=x", "-c", "user.email=x@x.invalid"]
    subprocess.run(["git", "init", "-q", str(repo)], check=True)
    with pytest.raises(Exception, match="git makes no bundle of it"), job_payload.bundled(repo):
        pass
    (repo / "file").write_text("committed")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "one"], check=True)
    (repo / "file").write_text("not committed")
    with job_payload.bundled(repo) as made:
        subprocess.run(["git", "clone", "-q", str(made), str(tmp_path / "clone")], check=True)
    assert (tmp_path / "clone" / "file").read_text() == "committed"


# --- providers ---------------------------------------------------------------------------------------------

PROVIDER = {
    "worker": "p-1",
    "present": True,
    "job_types": [TYPE],
    "counts": {"agreed": 7, "disagreed": 2},
    "recent": [{"job_id": JOB, "said": "disagreed", "at": "2026-01-31T12:00:00.000Z"}],
}


def test_standings_are_shown(server: ApiServer, command: Command) -> None:
    aside = {"reason": "it lies", "by": "me", "at": "2026-01-31T12:00:00.000Z"}
    server.answers["GET /v1/providers"] = Answer(
        {"providers": [PROVIDER, {**PROVIDER, "worker": "p-2", "set_aside": aside}]}
    )
    lines = command("worker", "standing").out.splitlines()
    assert lines[1].split()[:4] == ["p-1", "7", "2", "0"]
    assert "set aside: it lies" in lines[2]
    shown = command("worker", "standing", "p-1").out
    assert "7 agreed, 2 disagreed" in shown
    assert JOB in shown
    assert "did you mean p-1?" in command("worker", "standing", "p1").err


def test_a_provider_is_set_aside_and_restored(server: ApiServer, command: Command) -> None:
    server.answers["POST /v1/providers/p-1:set-aside"] = Answer(PROVIDER)
    server.answers["POST /v1/providers/p-1:restore"] = Answer(PROVIDER)
    server.answers["GET /v1/providers"] = Answer({"providers": [PROVIDER]})
    assert command("worker", "set-aside", "p-1", "--reason", "it lies").out == "p-1 is set aside\n"
    assert server.asked[-1].json == {"reason": "it lies"}
    assert command("worker", "restore", "p-1").out == "p-1 works again\n"
    assert "did you mean p-1?" in command("worker", "restore", "p1").err
