"""The SDK's client where things go wrong: cut connections, no streams, words of later servers, wrong content.

In both flavours where threads and tasks differ: the blocking one is not left hanging on a silent stream.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from fumehood import (
    AsyncClient,
    Client,
    CommandFailedError,
    JobStatus,
    LimitExceededError,
    NoAnswerError,
    RunFailedError,
    RunStatus,
    UnreachableError,
    UnverifiedError,
    WaitTimeoutError,
)
from fumehood.sdk.blocking.commands import Commands
from fumehood.sdk.job_values import JobStatus as SdkJobStatus
from fumehood.sdk.job_values import VerdictOutcome as SdkVerdictOutcome
from fumehood.sdk.job_values import with_trust
from fumehood.sdk.run_values import StepStatus
from fumehood.wire import job_api
from fumehood.wire.run_api import RunPhase, StepView
from fumehood.wire.runner_api import RunnerStatus
from tests.conftest import TimeBounds
from tests.unit.api_server import Answer, ApiServer, Asked, api_server, problem

EVENTS = {"content-type": "text/event-stream"}
GREETING = b"retry: 1000\n\n"
ALIVE = b": still here\n\n"
RUN = "GET /v1/runs/r1"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with api_server() as made:
        yield made


@pytest.fixture
def client(server: ApiServer) -> Iterator[Client]:
    with Client(server.url, key="a-key") as made:
        yield made


def view(status: str = "running", **more: Any) -> Answer:
    return Answer({"run_id": "r1", "workflow": "w", "definition": None, "status": status, "steps": {}, **more})


def told(*names: str) -> Answer:
    """A stream that ends behind these."""
    events = [
        f'id: {number}-0\nevent: {name}\ndata: {{"seq": {number}, "run_id": "r1"}}\n\n'.encode()
        for number, name in enumerate(names, 1)
    ]
    return Answer(headers=EVENTS, pieces=(GREETING, *events))


# --- starting once -----------------------------------------------------------------------------------------


def test_a_start_whose_answer_was_lost_is_the_same_start_again(server: ApiServer, client: Client) -> None:
    lost = Answer(pieces=(b"{",), whole=False, status=201)
    server.answers["POST /v1/workflows/w/runs"] = [lost, Answer({"run_id": "r1"}, 200)]
    server.answers["POST /runs"] = [lost, Answer({"run_id": "i1", "status": "queued"}, 200)]
    server.answers["POST /v1/jobs"] = [lost, Answer({"job_id": "j1", "job_type": "t", "status": "queued"}, 200)]
    assert client.workflows.run("w", {"n": 1}).id == "r1"
    assert client.runs.start_image("i", ["true"]).id == "i1"
    assert client.jobs.submit("t", {}).id == "j1"
    first, second, *rest = server.asked
    assert first.json == second.json
    assert len(first.json["idempotency_key"]) > 32
    for before, again in (rest[:2], rest[2:]):
        assert before.headers["idempotency-key"] == again.headers["idempotency-key"]
        assert before.body == again.body
    keys = {first.json["idempotency_key"], *(one.headers["idempotency-key"] for one in rest)}
    assert len(keys) == 3, "each has its own"


def test_an_order_that_may_not_be_repeated_is_not(server: ApiServer, client: Client) -> None:
    server.answers[RUN] = view()
    server.answers["POST /v1/runs/r1:retry"] = Answer(pieces=(b"{",), whole=False)
    run = client.runs.get("r1")
    with pytest.raises(Exception, match="may have been done all the same"):
        run.retry()
    assert len([one for one in server.asked if one.method == "POST"]) == 1


@pytest.mark.parametrize("later", [problem(503, "no-capacity", "full"), problem(404, "session-not-found", "gone")])
def test_a_command_that_may_have_started_is_not_refused_afterwards(
    server: ApiServer, client: Client, later: Answer
) -> None:
    server.answers["POST /v1/sandboxes/s1/commands"] = [Answer(pieces=(b"{",), whole=False), later]
    with pytest.raises(NoAnswerError) as caught:
        Commands(client.transport, "/v1/sandboxes/s1").start("true")
    assert caught.value.may_be_done
    assert f"command {server.asked[0].json['command_id']} may be running" in str(caught.value)


# --- waiting -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [404, 406])
def test_without_a_stream_the_server_is_asked_again_and_again(server: ApiServer, client: Client, code: int) -> None:
    server.answers[RUN] = [view("queued"), view(), view(), view(), view("succeeded", output=1)]
    server.answers["GET /v1/runs/r1/events"] = problem(code, "not-found", "there is nothing at this path")
    run = client.runs.get("r1").wait(timeout=120)
    assert (run.status, run.output) == (RunStatus.SUCCEEDED, 1)
    assert [one.path for one in server.asked].count("/v1/runs/r1/events") == 1


def test_a_stream_that_breaks_is_taken_up_behind_what_was_heard(server: ApiServer, client: Client) -> None:
    broken = Answer(headers=EVENTS, pieces=told("run.started").pieces, whole=False)
    server.answers["GET /v1/runs/r1/events"] = [
        broken,
        problem(503, "draining", "later"),
        told("x", "run.failed", "end"),
    ]
    server.answers[RUN] = [view("queued"), view(), view("failed", error={"code": "c", "message": "m"})]
    run = client.runs.get("r1").wait(timeout=120)
    assert run.error is not None
    assert run.error.code == "c"
    asked = [one for one in server.asked if one.path.endswith("/events")]
    assert [one.headers.get("last-event-id") for one in asked] == [None, "1-0", "1-0"]


async def test_an_end_is_never_made_up(server: ApiServer) -> None:
    """The stream says so, and the run does not: a retry, or a server that is behind."""
    server.answers["GET /v1/runs/r1/events"] = told("end")
    server.answers[RUN] = view()
    async with AsyncClient(server.url, key="a-key") as client:
        run = await client.runs.get("r1")
        with pytest.raises(WaitTimeoutError, match="it is running"):
            await run.wait(timeout=1)
        server.answers[RUN] = view("succeeded")
        assert (await run.wait(timeout=120)).ok


def _silent(stop: threading.Event, *, alive: bool) -> Any:
    def pieces() -> Iterator[bytes]:
        yield GREETING
        while not stop.wait(0.1):
            if alive:
                yield ALIVE

    return pieces()


@pytest.mark.parametrize("alive", [True, False])
def test_a_thread_is_not_left_hanging_on_a_silent_stream(
    server: ApiServer, client: Client, alive: bool, time_bounds: TimeBounds
) -> None:
    stop = threading.Event()
    server.answers[RUN] = view()
    server.answers["GET /v1/runs/r1/events"] = lambda _: Answer(headers=EVENTS, pieces=_silent(stop, alive=alive))
    run, began = client.runs.get("r1"), time.monotonic()
    try:
        with pytest.raises(WaitTimeoutError):
            run.wait(timeout=1.0)
        time_bounds.check(time.monotonic() - began, 20)
    finally:
        stop.set()


async def test_a_task_is_not_left_hanging_either(server: ApiServer) -> None:
    stop = threading.Event()
    server.answers[RUN] = view()
    server.answers["GET /v1/runs/r1/events"] = lambda _: Answer(headers=EVENTS, pieces=_silent(stop, alive=False))
    try:
        async with AsyncClient(server.url, key="a-key") as client:
            with pytest.raises(WaitTimeoutError):
                await (await client.runs.get("r1")).wait(timeout=0.5)
    finally:
        stop.set()


def test_a_server_that_is_away_is_waited_for_only_as_long_as_was_said() -> None:
    with api_server() as server, Client(server.url, key="a-key") as client:
        server.answers[RUN] = view()
        run = client.runs.get("r1")
    with Client(server.url, key="a-key") as client:
        gone = type(run)(client.transport, dict(run.said))
        with pytest.raises(WaitTimeoutError):
            gone.wait(timeout=1)
        with pytest.raises(UnreachableError):
            gone.refresh()


# --- words of later servers --------------------------------------------------------------------------------


def test_what_a_later_server_says_breaks_nothing(server: ApiServer, client: Client) -> None:
    step = {"status": "dreaming", "attempt": 1, "iteration": 0, "output": None, "colour": "red"}
    server.answers[RUN] = [view("hibernating", steps={"a": step}), view("merged", ended_at="2026-01-01T00:00:00Z")]
    server.answers["GET /v1/runs/r1/events"] = told("run.dreamt", "end")
    run = client.runs.get("r1")
    assert (run.status, run.has_ended, run.ok) == ("hibernating", False, False)
    assert run.steps["a"].status == "dreaming"
    assert run.steps["a"].said["colour"] == "red"
    assert [event.type for event in run.events()] == ["run.dreamt"]
    assert run.wait(timeout=120).status == "merged"
    with pytest.raises(RunFailedError, match="is merged"):
        run.check()


def test_jobs_have_words_of_later_servers_too(server: ApiServer, client: Client) -> None:
    verdict = {"outcome": "sung", "redundancy": 2, "agreed": 1, "candidates": [{"execution": 0, "accepted": False}]}
    job = {"job_id": "j1", "job_type": "t", "status": "sleeping"}
    server.answers["GET /v1/jobs/j1"] = [
        Answer(job),
        Answer(job | {"status": "settled", "ended_at": "2026-01-01T00:00:00Z", "verdict": verdict}),
    ]
    found = client.jobs.get("j1")
    assert (found.status, found.has_ended, found.verdict, found.candidates) == ("sleeping", False, None, ())
    assert found.wait(timeout=120).status == "settled"
    assert found.verdict is not None
    assert (found.verdict.outcome, found.candidates[0].worker) == ("sung", None)
    with pytest.raises(RunFailedError, match="is settled"):
        found.check()


def test_the_words_of_this_version_are_all_known() -> None:
    assert {*RunPhase, *RunnerStatus} == {*RunStatus}
    assert {*job_api.JobStatus} == {*SdkJobStatus}
    assert {*job_api.VerdictOutcome} == {*SdkVerdictOutcome}
    described = str(StepView.model_fields["status"].description)
    assert all(f"`{status}`" in described for status in StepStatus)
    assert described.count("`") == 2 * len(StepStatus)
    assert JobStatus is SdkJobStatus


# --- lists and large values --------------------------------------------------------------------------------


def test_lists_are_read_in_pages_and_no_further_than_asked(server: ApiServer, client: Client) -> None:
    def page(asked: Asked) -> Answer:
        query = dict(asked.query)
        start, limit = int(query.get("cursor", "0")), int(query["limit"])
        runs = [{"run_id": f"r{number}", "status": "failed"} for number in range(start, min(start + limit, 500))]
        return Answer({"runs": runs, "next": str(start + limit) if start + limit < 500 else None})

    server.answers["GET /v1/runs"] = page
    server.answers["GET /runs"] = page
    found = list(client.runs.list(status="failed", labels={"a": "b", "c": "d"}, limit=250))
    assert [one.id for one in found] == [f"r{number}" for number in range(250)]
    assert [dict(one.query)["limit"] for one in server.asked] == ["200", "50"]
    assert [value for name, value in server.asked[0].query if name == "label"] == ["a=b", "c=d"]
    assert len(list(client.runs.list())) == 500
    assert len(list(client.runs.list_images(limit=3))) == 3
    assert found[0].status == RunStatus.FAILED


def _blob(value: Any) -> tuple[dict[str, Any], bytes]:
    data = json.dumps(value).encode()
    return {"$blob": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}, data


def test_a_value_that_is_not_what_its_hash_says_is_refused(
    server: ApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, inner_data = _blob(["deep"])
    outer, outer_data = _blob({"inner": inner})
    server.answers[RUN] = view("succeeded", output={"a": outer})
    path = "GET /v1/runs/r1/blobs/"
    server.answers[path + outer["$blob"].replace(":", "%3A")] = Answer(json.loads(outer_data))
    server.answers[path + inner["$blob"].replace(":", "%3A")] = Answer(json.loads(inner_data))
    run = client.runs.get("r1").wait(timeout=120)
    assert run.output == {"a": {"inner": ["deep"]}}
    server.answers[path + inner["$blob"].replace(":", "%3A")] = Answer(["deeq"])
    with pytest.raises(UnverifiedError, match="something else"):
        run.value(inner)
    monkeypatch.setattr("fumehood.sdk.blocking.runs.MOST_VALUE_BYTES", 5)
    with pytest.raises(LimitExceededError, match=r"run\.value\(part\)"):
        run.value(outer)
    assert client.runs.get("r1").wait(timeout=120).output == {"a": outer}, "what is too large stays a reference"


# --- Python and jobs ---------------------------------------------------------------------------------------


def test_python_is_asked_about_until_it_has_ended(server: ApiServer, client: Client) -> None:
    said = {"command_id": "c1", "capability": "pythonExec", "created_at": "2026-01-01T00:00:00Z"}
    result = {"output": "4", "stderr": "", "exit_code": 0, "output_truncated": True}
    server.answers["POST /v1/commands"] = Answer(said | {"status": "queued"}, 202)
    server.answers["GET /v1/commands/c1"] = [
        Answer(said | {"status": "running"}),
        problem(503, "draining", "later"),
        Answer(said | {"status": "succeeded", "result": result}),
    ]
    found = client.python.run("print(4)", timeout=2.5)
    assert (found.stdout, found.exit_code, found.ok, found.stdout_truncated) == ("4", 0, True, True)
    assert server.asked[0].json["timeout_ms"] == 2500
    assert server.asked[0].json["payload"] == {"code": "print(4)"}


@pytest.mark.parametrize("code", ["image_unavailable", "policy_denied", "execution_failed"])
def test_an_image_that_cannot_be_had_is_told_with_what_to_do(server: ApiServer, client: Client, code: str) -> None:
    said = {"command_id": "c1", "capability": "pythonExec", "created_at": "2026-01-01T00:00:00Z", "status": "failed"}
    error = {"code": code, "message": "the image cannot be pulled"}
    server.answers["POST /v1/commands"] = Answer(said | {"error": error}, 202)
    assert client.python.run("print(4)").error is not None
    with pytest.raises(CommandFailedError, match=r"cannot be pulled\n.*WORKER_PYTHON_EXEC_DOCKER_IMAGE"):
        client.python.run("print(4)", check=True)
    server.answers["POST /v1/commands"] = Answer(said | {"error": error | {"code": "worker_lost"}}, 202)
    with pytest.raises(CommandFailedError) as raised:
        client.python.run("print(4)", check=True)
    assert raised.value.remedy == CommandFailedError.remedy


def test_trust_is_filled_in_as_the_type_has_it() -> None:
    usual = {"mode": "objective", "redundancy": 1, "adjudication": "none", "judge_model": None}
    assert with_trust({"a": 1}, usual, 3, None) == {
        "a": 1,
        "verification": {"mode": "objective", "redundancy": 3, "adjudication": "majority_vote"},
    }
    said = {"verification": {"adjudication": "merge"}}
    assert with_trust(said, usual, 2, None)["verification"]["adjudication"] == "merge"
    assert with_trust({}, usual, None, "judge_model")["verification"]["redundancy"] == 1
