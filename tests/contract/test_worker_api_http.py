"""The Worker API's door: each row of its decision table, every error a problem, and nothing that leaks."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from opentelemetry import trace

from fumehood.door.server import DoorProtocol
from fumehood.errors import (
    ConflictError,
    DrainingError,
    EngineUnavailableError,
    InvalidReferenceError,
    LedgerError,
    OverloadedError,
)
from fumehood.node.http.openapi import document
from fumehood.node.service import JobAnswer, Readiness
from fumehood.node.telemetry import Telemetry
from fumehood.settings import NodeSettings
from fumehood.wire.problem import ProblemDetails
from fumehood.wire.worker_api import RUN_JOB_PATH, JobStatus, NetworkPolicy, RunJobRequest
from tests.contract.worker_api_harness import (
    TOKEN,
    ScriptedService,
    a_request,
    at_once,
    client,
    completed,
    golden,
    make_app,
    post,
    served,
)
from tests.waiting import past, until

SMALL = NodeSettings(worker_api_token=TOKEN, body_limit_bytes=2048)


@pytest.fixture
def service() -> ScriptedService:
    return ScriptedService()


@pytest.fixture
def app(service: ScriptedService) -> FastAPI:
    return make_app(service)


def check_problem(response: httpx.Response, status: int, code: str) -> ProblemDetails:
    """A problem to the letter, whose instance is the request's id."""
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    problem = ProblemDetails.model_validate_json(response.content)
    assert (problem.status, problem.type) == (status, f"urn:fumehood:problem:{code}")
    assert problem.instance == response.headers["x-request-id"]
    assert set(response.json()) == {"type", "version", "title", "status", "detail", "instance"}
    return problem


# --- the rows of the decision table ----------------------------------------------------------------------------


async def test_the_contracts_own_request_gets_the_contracts_own_answer(app: FastAPI) -> None:
    response = await post(app, golden("request.json"))
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.json() == golden("response-completed.json")


async def test_unknown_request_fields_are_400(app: FastAPI, service: ScriptedService) -> None:
    for body in (a_request() | {"priority": 1}, a_request(privileged=True)):
        check_problem(await post(app, body), 400, "invalid-request")
    assert service.asked == []


async def test_a_version_other_than_1_is_400_and_names_both(app: FastAPI) -> None:
    problem = check_problem(await post(app, a_request() | {"version": 2}), 400, "unsupported-version")
    assert problem.detail == "version 2 was received; supported is 1"


async def test_an_unknown_network_policy_is_400(app: FastAPI) -> None:
    check_problem(await post(app, a_request(network_policy="full")), 400, "invalid-request")


async def test_an_absent_network_policy_means_restricted(app: FastAPI, service: ScriptedService) -> None:
    body = a_request()
    del body["sandbox"]["network_policy"]
    assert (await post(app, body)).status_code == 200
    assert service.asked[0][0].sandbox.network_policy is NetworkPolicy.RESTRICTED


@pytest.mark.parametrize("seconds", [0, -1, -(10**30)])
async def test_a_timeout_of_zero_or_less_is_400(app: FastAPI, seconds: int) -> None:
    check_problem(await post(app, a_request(timeout_seconds=seconds)), 400, "invalid-request")


async def test_a_clamped_timeout_shows_in_the_header(service: ScriptedService, app: FastAPI) -> None:
    def clamping(request: RunJobRequest) -> JobAnswer:
        return JobAnswer(completed(request), NodeSettings().effective_timeout(request.sandbox.timeout_seconds))

    service.script = clamping
    response = await post(app, a_request(timeout_seconds=100_000))
    assert response.headers["fumehood-effective-timeout"] == "3600"
    body = a_request()
    del body["sandbox"]["timeout_seconds"]
    assert (await post(app, body)).headers["fumehood-effective-timeout"] == "300"


async def test_a_wish_to_upgrade_is_passed_over_and_not_logged(
    app: FastAPI, service: ScriptedService, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(app) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        headers = {"connection": "upgrade", "upgrade": "websocket"}
        assert (await http.get("/healthz", headers=headers)).status_code == 200
    assert caplog.text == ""


async def test_a_timeout_is_200_without_an_exit_code(app: FastAPI, service: ScriptedService) -> None:
    service.script = lambda request: JobAnswer(completed(request, status=JobStatus.TIMEOUT, exit_code=None), 1)
    response = await post(app, a_request())
    assert (response.status_code, response.json()["status"]) == (200, "timeout")
    assert "exit_code" not in response.json()


@pytest.mark.parametrize("code", [125, 126, 127])
async def test_a_job_that_could_not_start_is_200_failed(app: FastAPI, service: ScriptedService, code: int) -> None:
    service.script = lambda request: JobAnswer(
        completed(request, status=JobStatus.FAILED, exit_code=code, stderr="no such image"), 300
    )
    response = await post(app, a_request())
    assert (response.status_code, response.json()["exit_code"]) == (200, code)
    assert "fumehood-exit-reason" not in response.headers


@pytest.mark.parametrize("reason", ["oom", "node_lost"])
async def test_oom_and_node_lost_are_told_in_a_header(app: FastAPI, service: ScriptedService, reason: str) -> None:
    service.script = lambda request: JobAnswer(
        completed(request, status=JobStatus.FAILED, exit_code=137), 300, exit_reason=reason
    )
    response = await post(app, a_request())
    assert response.headers["fumehood-exit-reason"] == reason
    assert response.json()["exit_code"] == 137


async def test_the_same_job_written_differently_has_the_same_hash(app: FastAPI, service: ScriptedService) -> None:
    body = a_request()
    async with client(app) as http:
        await http.post(RUN_JOB_PATH, json=body)
        turned = dict(reversed(body.items())) | {"job_id": body["job_id"].upper()}
        text = json.dumps(turned, indent=3)
        await http.post(RUN_JOB_PATH, content=text, headers={"content-type": "application/json"})
        await http.post(RUN_JOB_PATH, json=a_request(command=["other"]))
    first, second, third = (sha for _, sha in service.asked)
    assert first == second != third


async def test_the_same_job_id_with_another_body_is_409(app: FastAPI, service: ScriptedService) -> None:
    def refusing(request: RunJobRequest) -> JobAnswer:
        raise ConflictError(f"job_id {request.job_id} was used before with another request")

    service.script = refusing
    assert "was used before" in check_problem(await post(app, a_request()), 409, "conflict").detail


@pytest.mark.parametrize(("error", "code"), [(OverloadedError, "overloaded"), (DrainingError, "draining")])
async def test_overload_is_503_with_retry_after(
    app: FastAPI, service: ScriptedService, error: type[OverloadedError], code: str
) -> None:
    def refusing(request: RunJobRequest) -> JobAnswer:
        raise error("all slots and the queue are taken", retry_after_seconds=7)

    service.script = refusing
    response = await post(app, a_request())
    check_problem(response, 503, code)
    assert response.headers["retry-after"] == "7"


async def test_a_client_that_goes_away_does_not_end_its_job(service: ScriptedService, app: FastAPI) -> None:
    service.gate = asyncio.Event()
    async with served(app) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(raw_request(json.dumps(a_request()).encode()))
        await until(lambda: len(service.asked) == 1)
        writer.close()
        await writer.wait_closed()
        await until(lambda: not app.state.connections)
        assert service.ended == 0
        service.gate.set()
        await until(lambda: service.ended == 1)


async def test_a_cancelled_request_does_not_end_its_job(service: ScriptedService, app: FastAPI) -> None:
    service.gate = asyncio.Event()
    task = asyncio.create_task(post(app, a_request()))
    await until(lambda: len(service.asked) == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    service.gate.set()
    await until(lambda: service.ended == 1)


async def test_healthz_is_open_and_says_ok(app: FastAPI) -> None:
    async with client(app, token=None) as http:
        response = await http.get("/healthz")
    assert (response.status_code, response.text) == (200, "ok")
    assert response.headers["content-type"].startswith("text/plain")


async def test_readyz_is_open_and_says_ready_or_why_not(app: FastAPI, service: ScriptedService) -> None:
    async with client(app, token=None) as http:
        ready = await http.get("/readyz")
        service.state = Readiness(False, "the engine does not answer")
        broken = await http.get("/readyz")
    assert (ready.status_code, ready.text) == (200, "ready")
    assert (broken.status_code, broken.text) == (503, "the engine does not answer")
    assert broken.headers["content-type"].startswith("text/plain")


async def test_the_token_is_rotated_by_replacing_its_file(tmp_path: Path, service: ScriptedService) -> None:
    path = replace_file(tmp_path / "token", "old")
    app = make_app(service, settings=NodeSettings(worker_api_token_file=path))
    assert [(await post(app, a_request(), token)).status_code for token in ("old", "new")] == [200, 401]
    replace_file(path, "new")
    assert [(await post(app, a_request(), token)).status_code for token in ("old", "new", "x")] == [200, 200, 401]


# --- authentication --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("authorization", "Bearer wrong")],
        [("authorization", TOKEN)],
        [("authorization", "Bearer ")],
        [("authorization", f"Basic {TOKEN}")],
        [("authorization", f"Bearer {TOKEN}"), ("authorization", "Bearer wrong")],
        [("authorization", f"Bearer {TOKEN}"), ("authorization", f"Bearer {TOKEN}")],
    ],
)
async def test_whoever_has_no_valid_token_gets_401(
    app: FastAPI, service: ScriptedService, headers: list[tuple[str, str]]
) -> None:
    async with client(app, token=None) as http:
        response = await http.post(RUN_JOB_PATH, json=a_request(), headers=headers)
    check_problem(response, 401, "unauthenticated")
    challenge = response.headers["www-authenticate"]
    assert challenge.startswith('Bearer realm="fumehood"')
    assert ("invalid_token" in challenge) == bool(headers)
    assert service.asked == []


async def test_no_token_configured_means_closed(service: ScriptedService) -> None:
    app = make_app(service, settings=NodeSettings())
    for token in (None, "", "x"):
        check_problem(await post(app, a_request(), token), 401, "unauthenticated")


async def test_insecure_needs_no_token(service: ScriptedService) -> None:
    app = make_app(service, settings=NodeSettings(insecure=True))
    assert (await post(app, a_request(), None)).status_code == 200


async def test_the_posture_is_said_at_start_up(service: ScriptedService, log: io.StringIO) -> None:
    async with served(make_app(service, settings=NodeSettings(insecure=True))):
        pass
    (line,) = [json.loads(line) for line in log.getvalue().splitlines() if "authentication" in line]
    assert (line["posture"], line["level"]) == ("insecure", "warning")


async def test_a_stranger_learns_nothing_of_other_paths(app: FastAPI) -> None:
    async with client(app, token=None) as http:
        for path in ("/", "/openapi.json", "/docs", "/nothing", "/healthz/", "//healthz", RUN_JOB_PATH):
            check_problem(await http.get(path), 401, "unauthenticated")


async def test_authentication_comes_before_a_byte_of_the_body(app: FastAPI) -> None:
    """The body is announced and never sent: the answer must come all the same, and without `100 Continue`."""
    async with served(app) as port:
        for more in (b"content-length: 100000\r\n", b"content-length: 10\r\nexpect: 100-continue\r\n"):
            answer = await exchange(port, raw_head(more, token="wrong"), wait_for_close=False)
            assert answer.startswith(b"HTTP/1.1 401")


async def test_a_refused_connection_is_closed_when_its_body_may_be_long(app: FastAPI) -> None:
    async with served(app) as port:
        answer = await exchange(port, raw_head(b"transfer-encoding: chunked\r\n", token="wrong"))
        assert b"connection: close" in answer.lower()


async def test_a_refused_connection_with_a_short_body_lives_on(app: FastAPI) -> None:
    async with served(app) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        refused = await http.post(RUN_JOB_PATH, json=a_request())
        assert (refused.status_code, refused.headers.get("connection")) == (401, None)
        taken = await http.post(RUN_JOB_PATH, json=a_request(), headers={"authorization": f"Bearer {TOKEN}"})
        assert taken.status_code == 200


async def test_metrics_are_open_on_loopback_only(service: ScriptedService) -> None:
    for host, status in (("127.0.0.1", 200), ("0.0.0.0", 401)):
        app = make_app(service, settings=NodeSettings(host=host, worker_api_token=TOKEN))
        async with client(app, token=None) as http:
            assert (await http.get("/metrics")).status_code == status
        async with client(app) as http:
            assert "fumehood_node_ready" in (await http.get("/metrics")).text


# --- bodies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b'{"version": NaN}',
        b'{"version": 1, "version": 1}',
        b'{"a": "\\ud800"}',
        b"[" * 2_000_000,
        b'{"version": ' + b"9" * 5000 + b"}",
    ],
    ids=["empty", "torn", "null", "array", "no-utf8", "nan", "twice", "surrogate", "deep", "digits"],
)
async def test_a_malformed_body_is_400_never_422_or_500(app: FastAPI, service: ScriptedService, body: bytes) -> None:
    async with client(app) as http:
        response = await http.post(RUN_JOB_PATH, content=body, headers={"content-type": "application/json"})
    check_problem(response, 400, "invalid-request")
    assert service.asked == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "application/json"}, 200),
        ({"content-type": "Application/JSON; charset=UTF-8"}, 200),
        ({}, 200),
        ({"content-encoding": "identity"}, 200),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/json; charset=latin-1"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": "multipart/form-data; boundary=x"}, 415),
        ({"content-type": "nonsense"}, 415),
        ({"content-encoding": "gzip"}, 415),
    ],
)
async def test_only_plain_json_is_taken(app: FastAPI, headers: dict[str, str], status: int) -> None:
    async with client(app) as http:
        response = await http.post(RUN_JOB_PATH, content=json.dumps(a_request()), headers=headers)
    assert response.status_code == status
    if status == 415:
        check_problem(response, 415, "unsupported-media-type")


def padded(size: int) -> bytes:
    """The contract's request in exactly so many bytes."""
    body = json.dumps(a_request()).encode()
    return body + b" " * (size - len(body))


@pytest.mark.parametrize(("size", "status"), [(2048, 200), (2049, 413), (6000, 413)])
async def test_a_body_is_bounded_to_the_byte(service: ScriptedService, size: int, status: int) -> None:
    async with client(make_app(service, settings=SMALL)) as http:
        response = await http.post(RUN_JOB_PATH, content=padded(size))
    assert response.status_code == status


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_long_body_is_413_on_a_real_connection(service: ScriptedService, chunked: bool) -> None:
    """Counted while reading: a chunked body announces nothing. The writer gets to read why, then it is closed."""
    body = padded(2048 * 900)
    head = b"transfer-encoding: chunked\r\n" if chunked else b"content-length: %d\r\n" % len(body)
    frame = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if chunked else body
    async with served(make_app(service, settings=SMALL)) as port:
        answer = await exchange(port, raw_head(head) + frame)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in answer.lower()
    assert b"urn:fumehood:problem:payload-too-large" in answer
    assert service.asked == []


async def test_a_body_that_announces_too_much_is_413_before_it_is_sent(service: ScriptedService) -> None:
    async with served(make_app(service, settings=SMALL)) as port:
        answer = await exchange(port, raw_head(b"content-length: 2049\r\n"), wait_for_close=False)
    assert answer.startswith(b"HTTP/1.1 413")


async def test_an_honest_client_reads_its_413(service: ScriptedService) -> None:
    app = make_app(service, settings=SMALL)
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with served(app) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers) as http:
        check_problem(await http.post(RUN_JOB_PATH, content=padded(4000)), 413, "payload-too-large")
        assert (await http.post(RUN_JOB_PATH, json=a_request())).status_code == 200


async def test_a_body_without_end_is_cut_off(service: ScriptedService) -> None:
    async with served(make_app(service, settings=SMALL)) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(raw_head(b"transfer-encoding: chunked\r\n"))
        async with asyncio.timeout(60):
            with pytest.raises(ConnectionError):
                await write_for_ever(writer)
        writer.close()


async def test_a_body_that_trickles_is_408(service: ScriptedService) -> None:
    async with served(make_app(service, body_seconds=0.2)) as port:
        answer = await exchange(port, raw_head(b"content-length: 500\r\n") + b'{"version"')
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"urn:fumehood:problem:request-timeout" in answer


async def test_a_job_may_take_longer_than_its_body(service: ScriptedService) -> None:
    service.gate = asyncio.Event()
    app = make_app(service, body_seconds=0.05)
    task = asyncio.create_task(post(app, a_request()))
    await until(lambda: len(service.asked) == 1)
    await past(3 * 0.05)
    service.gate.set()
    assert (await task).status_code == 200


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_error(
    service: ScriptedService, log: io.StringIO
) -> None:
    telemetry = Telemetry()
    app = make_app(service, telemetry=telemetry)
    async with served(app) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(raw_head(b"content-length: 500\r\n") + b'{"version"')
        await until(lambda: any(connection.scope for connection in app.state.connections))
        writer.close()
        await writer.wait_closed()
        await until(lambda: counted(telemetry, route=RUN_JOB_PATH, method="POST", status="none") == 1)
    assert '"error"' not in log.getvalue()


async def test_bytes_that_are_no_http_are_a_400_problem(app: FastAPI) -> None:
    async with served(app) as port:
        for nonsense in (
            b"HELLO\r\n\r\n",
            b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 100_000,
            b"\x16\x03\x01\r\n\r\n",
        ):
            head, _, body = (await exchange(port, nonsense)).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400")
            assert b"content-type: application/problem+json" in head
            assert ProblemDetails.model_validate_json(body).instance in head.decode()


async def test_a_body_that_breaks_the_framing_is_a_400_problem(app: FastAPI, service: ScriptedService) -> None:
    async with served(app) as port:
        answer = await exchange(port, raw_head(b"transfer-encoding: chunked\r\n") + b"nonsense\r\n")
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1
    assert service.asked == []


@pytest.mark.parametrize("begun", [b"", b"GET /healthz HTTP/1.1\r\nhost:"])
async def test_a_caller_that_never_finishes_its_headers_is_hung_up_on(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(DoorProtocol, "head_seconds", 0.2)
    async with served(app) as port, asyncio.timeout(60):
        assert await exchange(port, begun) == b""


async def test_the_same_holds_for_the_second_request_of_a_connection(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DoorProtocol, "head_seconds", 0.2)
    async with served(app) as port, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        writer.write(b"GET")
        assert await reader.read() == b""
        writer.close()


async def test_a_long_job_outlives_the_patience_for_headers(
    app: FastAPI, service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DoorProtocol, "head_seconds", 0.1)
    service.gate = asyncio.Event()
    async with served(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(raw_request(json.dumps(a_request()).encode()))
        await until(lambda: len(service.asked) == 1)
        await past(3 * 0.1)
        service.gate.set()
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()


# --- errors ----------------------------------------------------------------------------------------------------


async def test_an_unknown_path_is_a_404_problem(app: FastAPI) -> None:
    async with client(app) as http:
        for path in ("/", "/v1/worker/jobs", "/v1/worker/jobs:run/", "/docs", "/redoc"):
            check_problem(await http.get(path), 404, "not-found")


@pytest.mark.parametrize(("method", "path", "allow"), [("GET", RUN_JOB_PATH, "POST"), ("POST", "/healthz", "GET")])
async def test_a_wrong_method_is_a_405_problem_with_allow(app: FastAPI, method: str, path: str, allow: str) -> None:
    async with client(app) as http:
        response = await http.request(method, path)
    check_problem(response, 405, "method-not-allowed")
    assert response.headers["allow"] == allow


@pytest.mark.parametrize("error", [ValueError("hush"), KeyError("hush"), LedgerError("hush")])
async def test_a_500_never_says_why(app: FastAPI, service: ScriptedService, log: io.StringIO, error: Exception) -> None:
    def failing(request: RunJobRequest) -> JobAnswer:
        raise error

    service.script = failing
    response = await post(app, a_request())
    code = getattr(error, "code", "internal")
    check_problem(response, 500, code)
    assert "hush" not in response.text
    assert json.loads(log.getvalue())["event"] == "http.failed"
    assert "fumehood-effective-timeout" not in response.headers


async def test_an_engine_that_is_away_is_a_503_with_retry_after(app: FastAPI, service: ScriptedService) -> None:
    def failing(request: RunJobRequest) -> JobAnswer:
        raise EngineUnavailableError("the container engine does not answer")

    service.script = failing
    response = await post(app, a_request())
    check_problem(response, 503, "engine-unavailable")
    assert response.headers["retry-after"] == "5"


async def test_an_image_reference_that_does_not_parse_is_a_400(app: FastAPI, service: ScriptedService) -> None:
    def failing(request: RunJobRequest) -> JobAnswer:
        raise InvalidReferenceError("the repository name is empty")

    service.script = failing
    check_problem(await post(app, a_request()), 400, "invalid-image-ref")


async def test_an_unexpected_failure_is_logged_under_the_request_id(
    app: FastAPI, service: ScriptedService, log: io.StringIO
) -> None:
    def failing(request: RunJobRequest) -> JobAnswer:
        raise ZeroDivisionError("hush")

    service.script = failing
    response = await post(app, a_request())
    (line,) = [json.loads(line) for line in log.getvalue().splitlines()]
    assert (line["event"], line["exception"]) == ("http.failed", "ZeroDivisionError")
    assert line["request_id"] == response.headers["x-request-id"]
    assert "hush" not in log.getvalue()


async def test_secrets_of_a_request_never_come_back_or_into_the_log(app: FastAPI, log: io.StringIO) -> None:
    for changes in (
        {"env": {"K": "hush\0"}},
        {"env": {"hush": 1}},
        {"timeout_seconds": "hush"},
        {"command": ["hush\0"]},
    ):
        assert "hush" not in (await post(app, a_request(**changes))).text
    assert "hush" not in (await post(app, a_request(), token="hush")).text
    assert "hush" not in log.getvalue()


@pytest.mark.parametrize(
    ("given", "kept"),
    [("abc-123_x.y", True), ("a" * 128, True), ("a" * 129, False), ("a b", False), ("", False), ("<x>", False)],
)
async def test_a_sane_request_id_is_kept_and_any_other_replaced(app: FastAPI, given: str, kept: bool) -> None:
    async with client(app) as http:
        response = await http.get("/nothing", headers={"x-request-id": given})
    assert (response.headers["x-request-id"] == given) is kept
    check_problem(response, 404, "not-found")


async def test_every_answer_has_a_request_id(app: FastAPI) -> None:
    async with client(app) as http:
        answers = [await http.get(path) for path in ("/healthz", "/readyz", "/metrics", "/nothing")]
        answers.append(await http.post(RUN_JOB_PATH, json=a_request()))
    assert len({answer.headers["x-request-id"] for answer in answers}) == 5


async def test_who_has_the_token_may_read_the_document(app: FastAPI) -> None:
    async with client(app) as http:
        assert (await http.get("/openapi.json")).json() == document()


# --- telemetry -------------------------------------------------------------------------------------------------


async def test_the_callers_trace_reaches_the_job(app: FastAPI, service: ScriptedService) -> None:
    seen: list[str] = []

    def looking(request: RunJobRequest) -> JobAnswer:
        seen.append(trace.format_trace_id(trace.get_current_span().get_span_context().trace_id))
        return at_once(request)

    service.script = looking
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with client(app) as http:
        await http.post(RUN_JOB_PATH, json=a_request(), headers={"traceparent": parent})
    assert seen == ["0af7651916cd43dd8448eb211c80319c"]


async def test_requests_are_counted_by_known_routes_only(service: ScriptedService) -> None:
    telemetry = Telemetry()
    app = make_app(service, telemetry=telemetry)
    async with client(app) as http:
        for path in ("/a", "/b", "/healthz"):
            await http.get(path)
        await http.request("BREW", "/healthz")
    assert counted(telemetry, route="other", method="GET", status="404") == 2
    assert counted(telemetry, route="/healthz", method="GET", status="200") == 1
    assert counted(telemetry, route="/healthz", method="other", status="405") == 1


def counted(telemetry: Telemetry, **labels: str) -> float | None:
    return telemetry.metrics.registry.get_sample_value("fumehood_node_http_requests_total", labels)


# --- raw connections -------------------------------------------------------------------------------------------


def raw_head(more: bytes, token: str = TOKEN) -> bytes:
    return b"POST %s HTTP/1.1\r\nhost: node\r\ncontent-type: application/json\r\nauthorization: Bearer %s\r\n%s\r\n" % (
        RUN_JOB_PATH.encode(),
        token.encode(),
        more,
    )


def raw_request(body: bytes) -> bytes:
    return raw_head(b"content-length: %d\r\n" % len(body)) + body


async def exchange(port: int, data: bytes, *, wait_for_close: bool = True) -> bytes:
    """Write, then read until the server closes, or until it has said something."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        async with asyncio.timeout(60):
            return await (reader.read() if wait_for_close else reader.read(65536))
    finally:
        writer.close()


async def write_for_ever(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"400\r\n" + b" " * 1024 + b"\r\n")
        await writer.drain()
        await asyncio.sleep(0)


def replace_file(path: Path, text: str) -> Path:
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    draft.chmod(0o600)
    return draft.replace(path)
