"""The commands over the API: what each asks of a server, what it prints, and how it exits.

The server here only says what it is told; what a real one does is in `tests/e2e/test_command_line.py`.
"""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fumehood.cli import keys, runs, schedule, worker, workflow
from fumehood.cli.main import main
from fumehood.cli.parts import PARTS, loaded
from fumehood.control.http import index as index_routes
from fumehood.control.http import keys as key_routes
from fumehood.control.http import schedules as schedule_routes
from fumehood.control.http import task_types as task_type_routes
from fumehood.control.http import workers as worker_routes
from fumehood.control.http import workflows as workflow_routes
from tests.unit.api_server import Answer, ApiServer, Asked, api_server, problem

RUN_ID = "run-0193ab0193ab0193ab0193ab0193ab01"
AT = "2026-01-02T12:00:00.000Z"
DEFINITION = {
    "name": "review",
    "steps": [{"id": "fetch", "task": "http"}, {"id": "ok", "needs": ["fetch"], "approval": {}}],
}
WORKFLOW = {"name": "review", "digest": "sha256:" + "a" * 64, "version": 2, "applied_at": AT, "definition": DEFINITION}
SUMMARY = {
    "run_id": RUN_ID,
    "workflow": "review",
    "status": "failed",
    "started_at": AT,
    "ended_at": AT,
    "labels": {"a": "b"},
}
DEAD = {**SUMMARY, "error": {"code": "x", "message": "no disk"}, "failed_step": "fetch"}
SCHEDULE = {
    "name": "nightly", "workflow": "review", "cron": "0 3 * * *", "timezone": "Europe/Berlin", "input": {"x": 1},
    "labels": {"by": "clock"}, "catch_up": "all", "catch_up_limit": 5, "paused": False, "changed_by": "ada",
    "created_at": AT, "next_at": AT, "last": {"at": AT, "run_id": RUN_ID}, "last_error": None,
}  # fmt: skip
KEY_VIEW = {
    "id": "k1", "name": "ci", "tenant": "acme", "scopes": ["runs:read"], "created_at": AT, "created_by": "admin",
    "expires_at": None,
}  # fmt: skip

CREDENTIAL = {"worker_id": "gpu-1", "labels": {"zone": "a"}, "created_at": AT, "created_by": "admin"}
PROVIDER = {"worker": "p-1", "present": True, "job_types": ["oa.x.v1"], "counts": {"agreed": 7}, "recent": []}
JOB = {"job_id": "job-1", "job_type": "oa.x.v1", "status": "succeeded", "result": {"a": 1}, "receipts": [{}]}
JOB_TYPE = {"name": "oa.x.v1", "version": "1.0.0", "about": "About x."}
NO_CLIENTS = {"worker docker", "worker jobs"}
"""Commands that are processes of their own and ask no server."""


def run_view(status: str = "succeeded", **more: Any) -> dict[str, Any]:
    steps = {"fetch": {"status": "completed", "attempt": 1}, "ok": {"status": "awaiting_approval", "attempt": 1}}
    return {
        "run_id": RUN_ID, "workflow": "review", "definition": WORKFLOW["digest"], "status": status, "steps": steps,
        "input": {"x": 1}, "output": {"y": 2}, "error": None, "started_at": AT, "ended_at": AT,
    } | more  # fmt: skip


def story(last: str = "run.succeeded") -> Answer:
    events = [{"type": "run.started"}, {"type": "step.completed", "step": "fetch"}, {"type": last}]
    told = [{"seq": seq, "at": AT, "run_id": RUN_ID, **event} for seq, event in enumerate(events, 1)]
    pieces = [f"id: {one['seq']}-0\nevent: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in told]
    end = 'event: end\ndata: {"run_id": "x", "status": "y"}\n\n'
    return Answer(headers={"content-type": "text/event-stream"}, pieces=tuple(p.encode() for p in [*pieces, end]))


HISTORY = {"run_id": RUN_ID, "next": None, "records": [
    {"seq": 1, "at": AT, "events": [{"type": "run.started"}], "consumed": []},
    {"seq": 2, "at": AT, "events": [{"type": "step.failed", "step": "fetch", "failure": {"code": "x"}}]},
]}  # fmt: skip
DONE = {"run_id": RUN_ID, "done": True}
VERBS = ("approve", "reject", "skip", "complete")


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Done]


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with api_server() as made:
        made.answers |= {
            "GET /v1/workflows": Answer({"workflows": [WORKFLOW], "next": None}),
            "GET /v1/workflows/review": Answer(WORKFLOW),
            "PUT /v1/workflows/review": Answer({"name": "review", "digest": WORKFLOW["digest"], "version": 2}),
            "POST /v1/workflows/review/runs": Answer({"run_id": RUN_ID}, 201),
            "GET /v1/runs": Answer({"runs": [SUMMARY], "next": None}),
            "GET /v1/dead-letters": Answer({"runs": [DEAD], "next": None}),
            f"GET /v1/runs/{RUN_ID}": Answer(run_view()),
            f"GET /v1/runs/{RUN_ID}/steps/ok/receipt": Answer({"payloadType": "", "payload": "", "signatures": []}),
            f"GET /v1/runs/{RUN_ID}/events": story(),
            f"GET /v1/runs/{RUN_ID}/history": Answer(HISTORY),
            f"POST /v1/runs/{RUN_ID}:cancel": Answer({"run_id": RUN_ID}, 202),
            f"POST /v1/runs/{RUN_ID}:retry": Answer(DONE),
            f"POST /v1/runs/{RUN_ID}/signals/go": Answer({**DONE, "done": False}, 202),
            **{f"POST /v1/runs/{RUN_ID}/steps/ok:{verb}": Answer(DONE) for verb in VERBS},
            f"POST /v1/runs/{RUN_ID}/steps/ok:token": Answer({"token": "one-time", "expires_at": AT}, 201),
            "POST /v1/index:rebuild": Answer({"state": "rebuilding", "runs": 3}, 202),
            "GET /v1/index": Answer({"state": "ready", "runs": 4}),
            "GET /v1/schedules": Answer({"schedules": [SCHEDULE], "next": None}),
            "GET /v1/schedules/nightly": Answer(SCHEDULE),
            "PUT /v1/schedules/nightly": Answer(SCHEDULE),
            "POST /v1/schedules/nightly:pause": Answer({**SCHEDULE, "paused": True}),
            "POST /v1/schedules/nightly:resume": Answer(SCHEDULE),
            "POST /v1/schedules/nightly:trigger": Answer({"run_id": RUN_ID}, 201),
            "DELETE /v1/schedules/nightly": Answer(status=204),
            "GET /v1/workers": Answer({"workers": [
                {"worker_id": "w1", "task_types": ["http"], "max_tasks": 4, "language": "python", "transport": "nats"}
            ], "waiting": {"http": 2}, "next": None}),
            "GET /v1/task-types": Answer({"task_types": [{"task_type": "http", "waiting": 2}], "next": None}),
            "DELETE /v1/workers/w1": Answer(status=204),
            "GET /v1/providers": Answer({"providers": [PROVIDER]}),
            "POST /v1/providers/p-1:set-aside": Answer(PROVIDER),
            "POST /v1/providers/p-1:restore": Answer(PROVIDER),
            "POST /v1/jobs": Answer(JOB, 201),
            "GET /v1/jobs/job-1": Answer(JOB),
            "POST /v1/jobs/job-1:cancel": Answer(JOB, 202),
            "GET /v1/job-types": Answer({"job_types": [JOB_TYPE]}),
            "GET /v1/job-types/oa.x.v1": Answer(JOB_TYPE),
            "POST /v1/bundles": Answer({"source": "bundle:sha256:1", "size": 2}, 201),
            "PUT /v1/task-types/http/limit": Answer({"rate": "10/s", "burst": 5}),
            "DELETE /v1/task-types/http/limit": Answer(status=204),
            "POST /v1/worker-credentials": Answer({**CREDENTIAL, "worker_secret": "w_secret"}, 201),
            "GET /v1/worker-credentials": Answer({"workers": [CREDENTIAL], "next": None}),
            "DELETE /v1/worker-credentials/gpu-1": Answer(CREDENTIAL),
            "POST /v1/keys": Answer({**KEY_VIEW, "key": "fh_secret"}, 201),
            "GET /v1/keys": Answer({"keys": [KEY_VIEW], "next": None}),
            "DELETE /v1/keys/k1": Answer(status=204),
            "GET /v1/tenants": Answer({"tenants": [{"tenant": "acme", "max_runs": 3}]}),
            "GET /v1/tenants/acme": Answer({"tenant": "acme", "max_runs": 3}),
            "PUT /v1/tenants/acme": Answer({"tenant": "acme", "max_runs": None}),
            "GET /v1/audit": Answer({"entries": [
                {"id": "1", "at": AT, "tenant": "acme", "by": "admin", "action": "run.started", "target": RUN_ID,
                 "outcome": "done", "request_id": "r", "detail": {}}
            ], "next": None}),
        }  # fmt: skip
        yield made


@pytest.fixture
def fumehood(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Command:
    """A command as it is typed, in this process."""
    for name in list(os.environ):
        if name.startswith("FUMEHOOD_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("FUMEHOOD_URL", server.url)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "request.json").write_text("{}")
    (tmp_path / "review.yaml").write_text("name: review\nsteps:\n  - {id: fetch, task: http}\n")

    def run(*words: str, stdin: str = "") -> Done:
        monkeypatch.setattr(sys, "argv", ["fumehood", *words])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        code = ended.value.code
        return Done(code if isinstance(code, int) else 0, printed.out, printed.err)

    return run


# --- every command -----------------------------------------------------------------------------------------

COMMANDS = [
    ("workflow apply review.yaml", "review version 2"),
    ("workflow ls", "review  2"),
    ("workflow show review", "●  ok     approval"),
    ("workflow graph review", "●  fetch  task http"),
    ("workflow graph review.yaml", "●  fetch  task http"),
    ("workflow run review", RUN_ID),
    ("workflow run review --wait", "review  succeeded"),
    ("runs ls", f"{RUN_ID}  review    failed"),
    ("runs dead-letters", "fetch  x: no disk"),
    (f"runs show {RUN_ID}", "◆  ok"),
    (f"runs receipt {RUN_ID} ok", '"signatures"'),
    (f"runs stop {RUN_ID}", "was asked to end"),
    (f"runs stop {RUN_ID} --wait", "has ended: succeeded"),
    (f"runs retry {RUN_ID}", "goes on"),
    (f"runs signal {RUN_ID} go", "was told go, as soon as it is looked at"),
    (f"runs approve {RUN_ID} ok", f"ok of {RUN_ID} is approved"),
    (f"runs reject {RUN_ID} ok", f"ok of {RUN_ID} is rejected"),
    (f"runs token {RUN_ID} ok --for ada", "one-time"),
    (f"runs skip {RUN_ID} ok --reason r", f"ok of {RUN_ID} is skipped"),
    (f"runs complete {RUN_ID} ok --reason r", f"ok of {RUN_ID} is completed"),
    ("runs reindex", "being made anew"),
    ("runs reindex --wait", "4 runs"),
    ("schedule ls", "nightly  review    0 3 * * *"),
    ("schedule show nightly", "0 3 * * * in Europe/Berlin"),
    ("schedule set nightly --cron @daily", "nightly"),
    ("schedule pause nightly", "paused"),
    ("schedule resume nightly", "nightly"),
    ("schedule trigger nightly", RUN_ID),
    ("schedule rm nightly", "is no more"),
    ("worker ls", "w1      http"),
    ("worker drain w1", "w1 gets no more tasks"),
    ("worker create gpu-1 --label zone=a --out -", "WORKER_SECRET=w_secret"),
    ("worker credentials", "gpu-1   zone=a"),
    ("worker revoke gpu-1", "gpu-1 is not let in any more"),
    ("worker standing", "p-1       7"),
    ("worker standing p-1", "7 agreed"),
    ("worker set-aside p-1 --reason lies", "p-1 is set aside"),
    ("worker restore p-1", "p-1 works again"),
    ("job submit oa.x.v1 request.json", "status  succeeded"),
    ("job submit oa.x.v1 request.json --no-wait", "job-1"),
    ("job show job-1", "1 receipt; check them offline"),
    ("job cancel job-1", "job-1 is being cancelled"),
    ("job types", "oa.x.v1   1.0.0    About x."),
    ("job types oa.x.v1", "About x."),
    ("job upload request.json", "bundle:sha256:1"),
    ("worker limit http 10/s --burst 5", "http: 10/s, 5 at once"),
    ("worker limit http none", "http: no limit"),
    ("key create ci --scope runs:read", "fh_secret"),
    ("key ls", "k1  ci"),
    ("key revoke k1", "k1 opens nothing any more"),
    ("tenant ls", "acme    at most 3"),
    ("tenant show acme", "at most 3"),
    ("tenant set acme --max-runs none", "no bound"),
    ("audit", "run.started"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "said"), COMMANDS, ids=[words for words, _ in COMMANDS])
def test_what_a_command_tells_people(fumehood: Command, words: str, said: str) -> None:
    done = fumehood(*words.split())
    assert (done.code, said in done.out) == (0, True), done
    assert "\x1b" not in done.out


@pytest.mark.parametrize("words", [words for words, _ in COMMANDS])
def test_with_json_there_is_one_document_and_nothing_else(fumehood: Command, words: str) -> None:
    done = fumehood(*words.split(), "--json")
    assert done.code == 0, done
    assert done.json is not None


@pytest.mark.parametrize(
    "words", [f"runs watch {RUN_ID}", f"runs logs {RUN_ID}", f"runs logs -f {RUN_ID}", "workflow run review --watch",
              "workflow watch review"]
)  # fmt: skip
def test_a_stream_is_a_line_for_each_event(fumehood: Command, words: str) -> None:
    done = fumehood(*words.split(), "--json")
    events = [json.loads(line) for line in done.out.splitlines()]
    assert done.code == 0
    assert events[0] == {"seq": 1, "at": AT, "run_id": RUN_ID, "type": "run.started"}
    assert len(events) == (3 if "logs run" not in words else 2)
    plain = fumehood(*words.split()).out.splitlines()
    assert len(plain) == len(events)
    assert plain[0].split() == ["2026-01-02", "12:00:00.000", "-", "started"]


def test_every_command_is_among_these() -> None:
    tried = {" ".join(words.split()[:2]) for words, _ in COMMANDS} | {
        "runs watch",
        "runs logs",
        "workflow watch",
        "audit",
    }
    found = {"audit"}
    for group in ("workflow", "runs", "job", "schedule", "worker", "key", "tenant"):
        found |= {f"{group} {name}" for name in loaded(group).commands} - NO_CLIENTS
    assert tried == found


def test_every_command_over_the_api_takes_the_same_options() -> None:
    for group in ("workflow", "runs", "job", "schedule", "worker", "key", "tenant"):
        for command in loaded(group).commands.values():
            if f"{group} {command.name}" in NO_CLIENTS:
                continue
            assert {"server", "key_file", "context", "as_json"} <= {param.name for param in command.params}, (
                command.name
            )


# --- what is asked of the server ---------------------------------------------------------------------------


def test_a_start_says_all_that_was_given(fumehood: Command, server: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "input.json").write_text('{"from": "file"}')
    words = ["workflow", "run", "review", "--label", "team=core", "--label", "empty=", "--key", "order-1"]
    fumehood(*words, "--input", '{"a": [1, null]}')
    fumehood(*words, "--input", "@input.json")
    fumehood(*words, "--input", "-", stdin="[2]")
    bodies = [asked.json for asked in server.asked if asked.method == "POST"]
    assert [body["input"] for body in bodies] == [{"a": [1, None]}, {"from": "file"}, [2]]
    assert bodies[0] == {
        "input": {"a": [1, None]},
        "labels": {"team": "core", "empty": ""},
        "idempotency_key": "order-1",
    }


def test_a_start_without_anything_says_nothing_more(fumehood: Command, server: ApiServer) -> None:
    assert fumehood("workflow", "run", "review").out == f"{RUN_ID}\n"
    assert server.asked[-1].json == {"input": None}


def test_a_list_is_filtered_by_the_server(fumehood: Command, server: ApiServer) -> None:
    words = "runs ls --workflow review --status failed --label a=b --label c=d --since 2026-01-01T00:00:00Z "
    words += "--until 2026-01-02T00:00:00+01:00 --parent p --schedule s --limit 7 --cursor c"
    fumehood(*words.split())
    assert sorted(server.asked[-1].query) == sorted(
        [
            ("workflow", "review"), ("status", "failed"), ("label", "a=b"), ("label", "c=d"),
            ("started_after", "2026-01-01T00:00:00.000Z"), ("started_before", "2026-01-01T23:00:00.000Z"),
            ("parent", "p"), ("schedule", "s"), ("limit", "7"), ("cursor", "c"),
        ]
    )  # fmt: skip


def test_a_definition_goes_as_it_stands(fumehood: Command, server: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"name": "review", "steps": []}')
    fumehood("workflow", "apply", "review.yaml", "a.json")
    yaml, document = server.asked
    assert (yaml.headers["content-type"], yaml.body) == ("application/yaml", (tmp_path / "review.yaml").read_bytes())
    assert document.headers["content-type"] == "application/json"


def test_a_schedule_keeps_what_is_not_given(fumehood: Command, server: ApiServer) -> None:
    fumehood("schedule", "set", "nightly", "--cron", "@daily", "--catch-up", "last")
    assert server.asked[-1].json == {
        "workflow": "review", "cron": "@daily", "timezone": "Europe/Berlin", "input": {"x": 1},
        "labels": {"by": "clock"}, "catch_up": "last", "catch_up_limit": 5,
    }  # fmt: skip


def test_a_new_schedule_is_what_is_given(fumehood: Command, server: ApiServer) -> None:
    server.answers["PUT /v1/schedules/hourly"] = Answer({**SCHEDULE, "name": "hourly"})
    words = "schedule set hourly --workflow review --cron @hourly --timezone Asia/Tokyo --label a=b --input 1"
    assert fumehood(*words.split()).code == 0
    assert server.asked[-1].json == {
        "workflow": "review", "cron": "@hourly", "timezone": "Asia/Tokyo", "labels": {"a": "b"}, "input": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "body"),
    [
        (f"runs stop {RUN_ID} --reason enough --force", {"reason": "enough", "force": True}),
        (f"runs signal {RUN_ID} go --data [1] --id s1", {"data": [1], "id": "s1"}),
        (f"runs approve {RUN_ID} --comment fine", {"comment": "fine"}),
        (f"runs complete {RUN_ID} ok --reason r --output 3", {"reason": "r", "output": 3}),
        (f"runs token {RUN_ID} ok --for ada --expires 90m", {"for": "ada", "expires_in_seconds": 5400}),
        ("runs reindex --from journals", {"from": "journals"}),
        (
            "key create ci --scope runs:read --scope runs:write --tenant acme --expires 90d",
            {"name": "ci", "scopes": ["runs:read", "runs:write"], "tenant": "acme", "expires_in_seconds": 90 * 86_400},
        ),
        ("tenant set acme --max-runs 5", {"max_runs": 5}),
        ("tenant set acme --max-runs none", {"max_runs": None}),
        ("worker limit http 10/s", {"rate": "10/s"}),
    ],
)
def test_an_order_says_what_was_typed(fumehood: Command, server: ApiServer, words: str, body: Any) -> None:
    assert fumehood(*words.split()).code == 0
    (asked,) = [one for one in server.asked if one.method in ("POST", "PUT")]
    assert asked.json == body


# --- how it ends -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "last", "code"),
    [
        ("succeeded", "run.succeeded", 0),
        ("failed", "run.failed", 1),
        ("timed_out", "run.timed_out", 1),
        ("cancelled", "run.cancelled", 1),
    ],
)
def test_waiting_and_watching_end_as_the_run_does(
    fumehood: Command, server: ApiServer, status: str, last: str, code: int
) -> None:
    server.answers[f"GET /v1/runs/{RUN_ID}"] = Answer(run_view(status))
    server.answers[f"GET /v1/runs/{RUN_ID}/events"] = story(last)
    for words in (
        ["workflow", "run", "review", "--wait"],
        ["workflow", "run", "review", "--watch"],
        ["runs", "watch", RUN_ID],
    ):
        assert fumehood(*words).code == code
        assert fumehood(*words, "--json").code == code


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("workflow show reveiw", "no such workflow: reveiw; did you mean review?"),
        ("workflow run reveiw", "no such workflow: reveiw; did you mean review?"),
        ("workflow graph zzz", "no such workflow: zzz"),
        ("schedule show nigthly", "no such schedule: nigthly; did you mean nightly?"),
        ("schedule rm zzz", "no such schedule: zzz"),
        (f"runs logs {RUN_ID} fecth", "no such step: fecth; did you mean fetch?"),
        (f"runs skip {RUN_ID} fecth --reason r", "no such step: fecth; did you mean fetch?"),
        ("worker drain w2", "no such worker: w2"),
        ("worker revoke gpu-2", "no such worker: gpu-2; did you mean gpu-1?"),
        ("key revoke zz", "no such key: zz"),
        ("runs show run-x", "there is no such thing (not-found, request req-1)"),
    ],
)
def test_what_is_not_there_is_said_with_what_was_meant(fumehood: Command, words: str, said: str) -> None:
    done = fumehood(*words.split())
    assert (done.code, done.out, done.err) == (1, "", f"fumehood: {said}\n")


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("workflow run review", "POST /v1/workflows/review/runs"),
        ("schedule rm nightly", "DELETE /v1/schedules/nightly"),
        ("worker drain w1", "DELETE /v1/workers/w1"),
        ("worker revoke gpu-1", "DELETE /v1/worker-credentials/gpu-1"),
        ("key revoke k1", "DELETE /v1/keys/k1"),
    ],
)
def test_what_is_there_is_not_said_to_be_missing(fumehood: Command, server: ApiServer, words: str, asked: str) -> None:
    """The server says for itself what it is that it did not find."""
    server.answers[asked] = problem(404, "not-found", "its owner is gone")
    done = fumehood(*words.split())
    assert (done.code, done.err) == (1, "fumehood: its owner is gone (not-found, request req-1)\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("workflow run review --input {", "--input is not JSON"),
        ("workflow run review --input @none.json", "--input: none.json cannot be read: No such file or directory"),
        ("workflow run review --label x", "--label x: write it like NAME=VALUE"),
        ("workflow run review --label x=1 --label x=2", "--label x is there twice"),
        ("workflow run review --wait --watch", "--wait and --watch: give one of them"),
        ("workflow apply none.yaml", "none.yaml cannot be read: No such file or directory"),
        ("runs ls --since yesterday", "--since: write how long ago (90m, 2d) or when"),
        ("runs token r s --for a --expires soon", "--expires: 'soon' is not a duration"),
        ("schedule set new --cron @daily", "there is no schedule new yet: a new one needs --workflow and --cron"),
        ("worker limit http none --burst 3", "--burst belongs to a rate, not to none"),
        ("tenant set acme --max-runs many", "--max-runs must be a number, or none"),
        ("key create ci --scope keys --out none/key", "--out none/key cannot be made: No such file or directory"),
        ("runs ls --server nonsense", "url must be like https://HOST:PORT"),
    ],
)
def test_a_wrong_word_is_one_line_and_asks_nothing(fumehood: Command, server: ApiServer, words: str, said: str) -> None:
    done = fumehood(*words.split())
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"fumehood: {said}")
    assert len(done.err.splitlines()) == 1
    assert [asked for asked in server.asked if asked.method != "GET"] == []


def test_no_server_is_another_exit_than_no(fumehood: Command) -> None:
    done = fumehood("runs", "ls", "--server", "http://127.0.0.1:1")
    assert (done.code, done.out) == (3, "")
    assert "`fumehood dev` starts one here" in done.err


def test_what_is_wrong_with_a_definition_is_a_list(fumehood: Command, server: ApiServer, tmp_path: Path) -> None:
    server.answers["PUT /v1/workflows/review"] = problem(
        400, "invalid-definition", "…", problems=["line 2: steps: x", "line 3: y"]
    )
    done = fumehood("workflow", "apply", "review.yaml")
    assert (done.code, done.out) == (1, "")
    assert done.err == "fumehood: review.yaml was not applied\n  line 2: steps: x\n  line 3: y\n"
    (tmp_path / "broken.yaml").write_text("name: x\nsteps: [")
    assert fumehood("workflow", "apply", "broken.yaml").err.startswith(
        "fumehood: broken.yaml is not valid YAML: line 2: "
    )
    (tmp_path / "nameless.yaml").write_text("steps: []")
    assert (
        fumehood("workflow", "apply", "nameless.yaml").err == "fumehood: nameless.yaml is no workflow: it has no name\n"
    )


def test_a_file_is_drawn_without_a_server(fumehood: Command, server: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text("name: w\nsteps:\n  - {id: a, task: t}\n  - {id: b, needs: [a], slep: 1s}\n")
    done = fumehood("workflow", "graph", "w.yaml")
    assert (done.code, done.err.splitlines()[0]) == (2, "fumehood: w.yaml is no workflow")
    assert "line 4: steps[1].slep" in done.err
    assert fumehood("workflow", "graph", "review.yaml", "--format", "mermaid").out.startswith("flowchart TD")
    assert fumehood("workflow", "graph", "review.yaml", "--format", "dot").out.startswith("digraph")
    assert server.asked == []


def test_an_approval_needs_no_name_where_one_step_asks(fumehood: Command, server: ApiServer) -> None:
    assert fumehood("runs", "approve", RUN_ID).code == 0
    assert server.asked[-1].path.endswith("/steps/ok:approve")
    nobody = run_view(steps={"ok": {"status": "completed", "attempt": 1}})
    server.answers[f"GET /v1/runs/{RUN_ID}"] = Answer(nobody)
    assert fumehood("runs", "approve", RUN_ID).err == f"fumehood: no step of {RUN_ID} waits for an approval\n"
    both = {name: {"status": "awaiting_approval", "attempt": 1} for name in ("a", "b")}
    server.answers[f"GET /v1/runs/{RUN_ID}"] = Answer(run_view(steps=both))
    assert "name one of a, b" in fumehood("runs", "approve", RUN_ID).err


CREATE = ("key", "create", "ci", "--scope", "runs:read", "--out", "key")


def test_a_new_key_can_go_to_a_file_alone(fumehood: Command, tmp_path: Path) -> None:
    done = fumehood(*CREATE)
    assert "fh_secret" not in done.out + done.err
    assert ((tmp_path / "key").read_text(), (tmp_path / "key").stat().st_mode & 0o777) == ("fh_secret\n", 0o600)
    (tmp_path / "key").unlink()
    assert "key" not in fumehood(*CREATE, "--json").json


WRITTEN_BEFORE = "key is there already, and is not overwritten: say another file with --out"


def test_no_key_is_made_for_a_file_that_is_there(fumehood: Command, server: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("precious")
    done = fumehood(*CREATE)
    assert (done.code, done.err) == (2, f"fumehood: {WRITTEN_BEFORE}\n")
    assert ((tmp_path / "key").read_text(), server.asked) == ("precious", [])


def test_a_file_for_a_key_that_was_not_made_goes_again(fumehood: Command, server: ApiServer, tmp_path: Path) -> None:
    server.answers["POST /v1/keys"] = problem(403, "forbidden", "not this key")
    assert fumehood(*CREATE).code == 1
    assert not (tmp_path / "key").exists()


def test_a_key_that_could_not_be_written_can_be_revoked(fumehood: Command, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        done = fumehood(*CREATE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert done.code == 1
    assert "cannot be written: File too large" in done.err
    assert "revoke it with `fumehood key revoke k1`" in done.err
    assert "fh_secret" not in done.out + done.err
    assert not (tmp_path / "key").exists()


def test_a_workers_credentials_are_printed_once_and_written_for_its_owner_alone(
    fumehood: Command, server: ApiServer, tmp_path: Path
) -> None:
    file = tmp_path / "worker-credentials.json"
    done = fumehood("worker", "create", "gpu-1", "--label", "zone=a")
    assert done.out == "WORKER_ID=gpu-1\nWORKER_SECRET=w_secret\n"
    assert "w_secret" not in done.err
    assert server.asked[-1].json == {"worker_id": "gpu-1", "labels": {"zone": "a"}}
    assert json.loads(file.read_text()) == {"worker_id": "gpu-1", "worker_secret": "w_secret"}
    assert file.stat().st_mode & 0o777 == 0o600
    again = fumehood("worker", "create", "gpu-2")
    assert (again.code, "say another file with --out" in again.err, len(server.asked)) == (2, True, 1)
    other = fumehood("worker", "create", "gpu-1", "--out", "other.json", "--json")
    assert (other.json["worker_secret"], (tmp_path / "other.json").exists()) == ("w_secret", True)


def test_a_file_for_a_worker_that_was_not_made_goes_again(fumehood: Command, server: ApiServer, tmp_path: Path) -> None:
    server.answers["POST /v1/worker-credentials"] = problem(409, "conflict", "there is a worker gpu-1 already")
    assert fumehood("worker", "create", "gpu-1").code == 1
    assert not (tmp_path / "worker-credentials.json").exists()


def test_a_key_goes_in_the_clear_only_where_that_is_said(fumehood: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The port answers nobody: what is not refused is tried."""
    monkeypatch.setenv("FUMEHOOD_API_KEY", "fh_secret")
    words = ("runs", "ls", "--server", "http://0.0.0.0:1")
    done = fumehood(*words)
    assert (done.code, "say --insecure-http" in done.err, "fh_secret" in done.err) == (2, True, False)
    assert fumehood(*words, "--insecure-http").code == 3


def test_a_pipe_gets_no_colours_and_no_screen_whatever_the_environment_says(
    fumehood: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    assert "\x1b" not in fumehood("runs", "watch", RUN_ID).out
    assert RUN_ID in fumehood("runs", "ls").out


def test_a_log_is_of_one_step_where_that_is_named(fumehood: Command) -> None:
    lines = fumehood("runs", "logs", RUN_ID, "fetch").out.splitlines()
    assert [line.split()[2:] for line in lines] == [["fetch", "failed:", "x"]]


def test_the_log_of_a_sandbox_step_is_its_output(fumehood: Command, server: ApiServer) -> None:
    logs = {"run_id": RUN_ID, "stdout": "a\n", "stderr": "b\n", "truncated": False}
    server.answers[f"GET /v1/runs/{RUN_ID}/steps/fetch/logs"] = Answer(logs)
    done = fumehood("runs", "logs", RUN_ID, "fetch", "--tail", "3")
    assert (done.code, done.out, done.err) == (0, "a\n", "b\n")
    assert server.asked[-1].query == [("tail_lines", "3")]
    assert json.loads(fumehood("runs", "logs", RUN_ID, "fetch", "--json").out) == logs


def test_a_failed_step_is_shown_with_the_end_of_its_stderr(fumehood: Command, server: ApiServer) -> None:
    details = {"exit_code": 1, "streams": {}, "stderr_tail": "Traceback\nKeyError: 'x\x1b[2J'\n"}
    error = {"code": "exit", "message": "the command ended with exit code 1", "details": details}
    steps = {"fetch": {"status": "failed", "attempt": 1, "error": error}}
    server.answers[f"GET /v1/runs/{RUN_ID}"] = Answer(run_view("failed", steps=steps))
    out = fumehood("runs", "show", RUN_ID).out
    assert f"fumehood runs logs {RUN_ID} fetch" in out
    assert "Traceback\nKeyError: 'x [2J'\n" in out


def test_a_limit_that_was_not_there_is_gone(fumehood: Command, server: ApiServer) -> None:
    server.answers["DELETE /v1/task-types/http/limit"] = problem(404, "not-found", "no limit")
    assert fumehood("worker", "limit", "http", "none").out == "http: no limit\n"


def test_a_key_that_may_not_see_workflows_sees_runs(fumehood: Command, server: ApiServer) -> None:
    server.answers["GET /v1/workflows/review"] = problem(403, "forbidden", "not this key")
    done = fumehood("runs", "show", RUN_ID)
    assert done.code == 0
    assert "fetch  completed" in done.out


def test_nothing_that_a_server_says_is_an_order_to_the_terminal(fumehood: Command, server: ApiServer) -> None:
    evil = "\x1b[2J\x9b1m\u202e"

    def hostile(_: Asked) -> Answer:
        return Answer({"runs": [{**SUMMARY, "workflow": evil, "status": evil, "labels": {evil: evil}}], "next": None})

    server.answers["GET /v1/runs"] = hostile
    out = fumehood("runs", "ls").out
    assert {character for character in out if not character.isprintable()} == {"\n"}


# --- the root ----------------------------------------------------------------------------------------------


def test_help_and_completion_load_no_command() -> None:
    """Asking for help must be quick, whatever the commands need."""
    code = textwrap.dedent(
        """
        import sys
        from fumehood.cli.main import main
        sys.argv = ["fumehood", "--help"]
        try:
            main()
        finally:
            heavy = {"fastapi", "httpx", "nats", "pydantic", "uvloop", "yaml"}
            print(sorted(heavy & {name.partition(".")[0] for name in sys.modules}))
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert all(name in done.stdout for name in PARTS)


def test_a_misspelt_command_is_corrected(fumehood: Command) -> None:
    for words, meant in ((["wrokflow"], "'workflow'"), (["runs", "wacth"], "'watch'")):
        done = fumehood(*words)
        assert done.code == 2
        assert meant in done.err


def test_no_list_is_asked_for_in_larger_pages_than_a_server_gives() -> None:
    assert runs.PAGE <= index_routes.MOST
    assert schedule.PAGE <= schedule_routes.MOST
    assert workflow.PAGE <= workflow_routes.MOST
    assert min(key_routes.MOST, key_routes.MOST_ENTRIES) >= keys.PAGE
    assert min(worker_routes.MOST, task_type_routes.MOST) >= worker.PAGE


def test_the_list_of_workers_shows_by_which_policy_a_node_decides(fumehood: Command, server: ApiServer) -> None:
    def node(name: str, **said: str) -> dict[str, Any]:
        known = {"task_types": ["fumehood.sandbox"], "max_tasks": 4, "language": "python", "transport": "nats"}
        return {"worker_id": name, **known, "metadata": said}

    nodes = [node("a", policy="production", policy_sha256="0123456789ab" + "f" * 52), node("b", policy="development")]
    server.answers["GET /v1/workers"] = Answer({"workers": [*nodes, node("c")], "waiting": {}, "next": None})
    lines = [line.rstrip() for line in fumehood("worker", "ls").out.splitlines()]
    assert lines[0].split()[-3:] == ["POLICY", "RECEIPT", "KEY"]
    assert lines[1].endswith("production (0123456789ab)")
    assert lines[2].endswith("development")
    assert lines[3].endswith("python")


@pytest.mark.parametrize("name", PARTS)
def test_every_part_can_be_loaded_and_explains_itself(name: str) -> None:
    command = loaded(name)
    assert command.help
    for inner in getattr(command, "commands", {}).values():
        assert inner.help
        assert all(param.help or param.param_type_name == "argument" for param in inner.params), inner.name
