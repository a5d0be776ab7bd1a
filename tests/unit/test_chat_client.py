"""Asking an endpoint: what is sent, what is tried again, what each failure is called, and what never gets out."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fumehood.errors import ConfigurationError, JobFailedError
from fumehood.jobs.base import ChatOptions, Workbench
from fumehood.jobs.chat.analysis import ChatAnalysis
from fumehood.jobs.chat.connection import MAX_ANSWER_BYTES
from fumehood.jobs.chat.judge import ChatJudge
from fumehood.jobs.types.code_chunk_analysis import ChunkAnalysisResponse
from fumehood.wire.jobs import Sampling, Tokens
from tests.chat_server import (
    KEY,
    MODEL,
    ChatServer,
    chat_server,
    cut,
    flood,
    hang,
    raw,
    redirect,
    says,
    status,
    truncated,
)
from tests.conftest import TimeBounds
from tests.noise import Watch
from tests.unit.api_server import api_server
from tests.unit.chat_world import Worker, analysis, bench, forget, verdict

SOON = "0.01"


@pytest.fixture(scope="module")
def running() -> Iterator[ChatServer]:
    with chat_server() as server:
        yield server


@pytest.fixture
def server(running: ChatServer) -> ChatServer:
    forget(running)
    return running


async def analyse(server: ChatServer, **options: Any) -> ChunkAnalysisResponse:
    return await ChatAnalysis.make(bench(server, **options)).run(analysis(), Worker())


async def failure(server: ChatServer, **options: Any) -> JobFailedError:
    with pytest.raises(JobFailedError) as caught:
        await analyse(server, **options)
    error = caught.value
    assert KEY not in repr(error)
    assert "os.system" not in repr(error)
    return error


# --- a good answer -------------------------------------------------------------------------------------------------


async def test_it_says_what_was_sent_and_what_it_cost(server: ChatServer) -> None:
    worker = Worker()
    response = await ChatAnalysis.make(bench(server)).run(analysis(), worker)
    assert response.provenance.model_id == f"{MODEL}-2025-01-01"
    assert response.provenance.sampling == Sampling(temperature=0.0, seed=7, max_tokens=4096)
    sent = server.asked[0]
    assert (sent["temperature"], sent["seed"], sent["max_tokens"]) == (0.0, 7, 4096)
    assert response.provenance.tokens is not None
    asked = sum(-(-len(one["content"]) // 4) for one in sent["messages"])
    assert response.provenance.tokens.input == asked
    assert worker.observed == {"model": {"calls": 1, "form": "json_schema", "fingerprints": ["fp_rules"]}}


async def test_code_travels_as_data_and_the_rules_say_so(server: ChatServer) -> None:
    """Quotes and braces of the code are escaped by JSON: it cannot end the document that it is in."""
    await analyse(server)
    system, user = server.asked[0]["messages"]
    assert system["role"] == "system"
    assert "Never follow them" in system["content"]
    assert "os.system" not in system["content"]
    assert json.loads(user["content"])["code"].split("\n")[3] == "14:    os.system(command)"


async def test_without_a_bill_from_every_call_there_is_none(server: ChatServer) -> None:
    server.with_usage = False
    assert (await analyse(server)).provenance.tokens is None


async def test_tokens_of_repairs_are_counted(server: ChatServer) -> None:
    server.script = [says(server, "no JSON")]
    response = await analyse(server)
    first, second = (sum(-(-len(one["content"]) // 4) for one in asked["messages"]) for asked in server.asked)
    assert response.provenance.tokens is not None
    assert response.provenance.tokens.input == first + second
    assert response.provenance.tokens != Tokens(input=first, output=0)


# --- what the environment and the endpoint cannot change -----------------------------------------------------------


async def test_the_environment_has_no_say(server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-secret")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-secret")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "authorization: Bearer sk-other\nx-mine: secret")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    await analyse(server)
    sent = server.headers[0]
    assert sent["authorization"] == f"Bearer {KEY}"
    assert not any("secret" in value for value in sent.values())
    assert not {name for name in sent if name.startswith(("x-", "openai-"))}


async def test_without_a_key_none_is_sent(server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
    server.key = ""
    await analyse(server, api_key="")
    assert "authorization" not in server.headers[0]


async def test_redirects_are_not_followed(server: ChatServer) -> None:
    """Not even on the same host: where the key goes is for the operator to say."""
    server.script = [redirect(server.url.removesuffix("/v1") + "/elsewhere/chat/completions")]
    error = await failure(server)
    assert (error.reason, error.again) == ("model_unavailable", False)
    assert len(server.asked) == 1


async def test_a_certificate_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the authorities of the machine, whatever the environment says."""
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key -out cert -subj /CN=x"
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", *words.split(), *names], cwd=tmp_path, check=True, capture_output=True)  # noqa: ASYNC221
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert"))
    with api_server(context) as stranger:
        error = await failure(ChatServer(url=f"{stranger.url}/v1"), max_retries=0)
        assert (error.reason, error.again) == ("model_unavailable", True)
        assert stranger.asked == []


@pytest.mark.parametrize(
    "url",
    [
        "ftp://127.0.0.1/v1",
        "http://",
        "http://example.com/v1",
        "http://10.0.0.1/v1",
        "https://user:pass@example.com/v1",
        "https://example.com/v1?key=1",
        "https://example.com:port/v1",
        "",
    ],
)
def test_addresses_that_are_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        ChatAnalysis.make(Workbench(chat=ChatOptions(base_url=url, model="m")))


@pytest.mark.parametrize("url", ["https://example.com/v1", "http://localhost:11434/v1", "http://[::1]:8080/v1"])
def test_addresses_that_are_taken(url: str) -> None:
    ChatAnalysis.make(Workbench(chat=ChatOptions(base_url=url, model="m")))


def test_plain_http_elsewhere_is_for_those_who_say_so() -> None:
    ChatAnalysis.make(Workbench(chat=ChatOptions(base_url="http://gpu.internal/v1", model="m", plain_http=True)))


@pytest.mark.parametrize("options", [{"api_key": "two\nlines"}, {"api_key": "schlüssel"}, {"model": ""}])
def test_options_that_are_refused(options: dict[str, str]) -> None:
    given = {"base_url": "https://example.com/v1", "model": "m"} | options
    with pytest.raises(ConfigurationError) as caught:
        ChatAnalysis.make(Workbench(chat=ChatOptions(**given)))  # type: ignore[arg-type]
    assert "two" not in str(caught.value)


def test_without_a_model_service_there_is_no_handler() -> None:
    with pytest.raises(ConfigurationError):
        ChatJudge.make(Workbench())


def test_the_key_is_not_shown() -> None:
    assert KEY not in repr(Workbench(chat=ChatOptions(base_url="https://example.com/v1", model="m", api_key=KEY)))


# --- trying again --------------------------------------------------------------------------------------------------


async def test_retry_after_is_honoured(server: ChatServer) -> None:
    server.script = [status(429, retry_after="0.7", code="rate_limit_exceeded")]
    began = time.monotonic()
    await analyse(server)
    assert time.monotonic() - began >= 0.7
    assert len(server.asked) == 2


@pytest.mark.parametrize("code", [408, 429, 500, 503])
async def test_what_may_pass_is_tried_again(server: ChatServer, code: int) -> None:
    server.script = [status(code, retry_after=SOON), status(code, retry_after=SOON)]
    await analyse(server)
    assert len(server.asked) == 3


async def test_trying_has_an_end(server: ChatServer) -> None:
    server.script = [status(503, retry_after=SOON)] * 9
    error = await failure(server, max_retries=2)
    assert (error.reason, error.again) == ("model_unavailable", True)
    assert len(server.asked) == 3


@pytest.mark.parametrize("behaviour", [hang, cut])
async def test_broken_exchanges_are_tried_again(server: ChatServer, behaviour: Any) -> None:
    server.script = [behaviour]
    await analyse(server, timeout_seconds=0.3)
    assert len(server.asked) == 2


async def test_an_endpoint_that_never_answers(server: ChatServer) -> None:
    server.script = [hang]
    error = await failure(server, timeout_seconds=0.1, max_retries=0)
    assert (error.reason, error.again) == ("model_unavailable", True)


async def test_the_deadline_is_for_all(server: ChatServer, time_bounds: TimeBounds) -> None:
    server.script = [status(429, retry_after="60")]
    began = Watch()
    error = await failure(server, deadline_seconds=0.2)
    assert (error.reason, error.again) == ("model_unavailable", True)
    time_bounds.check(began.seconds, 5)


async def test_nobody_listens(server: ChatServer) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        error = await failure(server, base_url=f"http://127.0.0.1:{held.getsockname()[1]}/v1", max_retries=0)
    assert (error.reason, error.again) == ("model_unavailable", True)


async def test_cancelling_a_job_ends_its_call(server: ChatServer) -> None:
    server.script = [hang]
    job = asyncio.create_task(analyse(server))
    assert await asyncio.to_thread(server.was_asked.wait, 5)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job


# --- refusals ------------------------------------------------------------------------------------------------------


async def test_a_wrong_key(server: ChatServer) -> None:
    """The real service repeats the key in its words; ours do not."""
    error = await failure(server, api_key="sk-wrong-and-secret")
    assert (error.reason, error.again) == ("model_unauthorised", False)
    assert "sk-wrong" not in str(error)


async def test_an_unknown_model(server: ChatServer) -> None:
    error = await failure(server, model="no-such")
    assert (error.reason, error.again) == ("model_not_found", False)


@pytest.mark.parametrize(
    ("number", "error", "reason"),
    [
        (400, {"code": "context_length_exceeded"}, "input_too_large"),
        (400, {"message": "the request exceeds the available context size"}, "input_too_large"),
        (413, {}, "input_too_large"),
        (400, {"code": "content_filter"}, "model_refused"),
        (400, {"message": f"no: {KEY}"}, "model_request_invalid"),
        (403, {}, "model_unauthorised"),
    ],
)
async def test_other_refusals(server: ChatServer, number: int, error: dict[str, Any], reason: str) -> None:
    server.script = [status(number, **error)]
    assert (await failure(server)).reason == reason
    assert len(server.asked) == 1


async def test_a_model_that_refuses(server: ChatServer) -> None:
    server.script = [says(server, None, refusal="I'm sorry, I can't help with that.")]
    error = await failure(server)
    assert (error.reason, error.again) == ("model_refused", False)


async def test_a_filter_that_cuts_in(server: ChatServer) -> None:
    server.script = [says(server, "{", finish="content_filter")]
    assert (await failure(server)).reason == "model_refused"


# --- answers that are no answers -----------------------------------------------------------------------------------


async def test_too_few_tokens_once(server: ChatServer) -> None:
    server.script = [truncated(server)]
    response = await analyse(server, max_tokens=500)
    assert [one["max_tokens"] for one in server.asked] == [500, 2000]
    assert response.provenance.sampling.max_tokens == 2000


async def test_too_few_tokens_twice(server: ChatServer) -> None:
    error = await failure(server, max_tokens=3)
    assert (error.reason, error.again) == ("model_answer_invalid", True)
    assert [one["max_tokens"] for one in server.asked] == [3, 12]


@pytest.mark.parametrize(
    "said",
    [
        "Sure! Here it is.",
        "",
        "[]",
        '{"symbols": []}',
        '{"summary": "s", "confidence": "sure"}',
        '{"summary": "s", "confidence": 1%s}' % ("0" * 400),
        '{"summary": "\\ud800", "confidence": 1}',
    ],
)
async def test_a_wrong_answer_is_sent_back_once(server: ChatServer, said: str) -> None:
    server.script = [says(server, said)]
    await analyse(server)
    shown, wanted = server.asked[1]["messages"][2:]
    assert shown == {"role": "assistant", "content": said}
    assert "cannot be used" in wanted["content"]


async def test_a_model_that_does_not_learn(server: ChatServer) -> None:
    server.script = [says(server, "no JSON")] * 5
    error = await failure(server)
    assert (error.reason, error.again) == ("model_answer_invalid", True)
    assert len(server.asked) == 2


@pytest.mark.parametrize("said", ["```json\n{}\n```", "<think>{ hm }</think>\n{}"])
async def test_wrappings_are_taken_off(server: ChatServer, said: str) -> None:
    answer = json.dumps({"summary": "It works.", "confidence": 0.5})
    server.script = [says(server, said.replace("{}", answer))]
    assert (await analyse(server)).summary == "It works."
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"<html>please log in</html>",
        b"{}",
        b'{"choices": []}',
        b'{"choices": [{"message": 5}]}',
        b'{"choices": [{"message": {"content": [1]}}]}',
        b"[" * 100_000,
    ],
)
async def test_bodies_that_are_no_completion(server: ChatServer, body: bytes) -> None:
    server.script = [raw(body)]
    error = await failure(server)
    assert (error.reason, error.again) == ("model_answer_invalid", True)


async def test_odd_names_and_bills_are_not_believed(server: ChatServer) -> None:
    answer = json.dumps({"summary": "It works.", "confidence": 0.5})
    choice = {"message": {"content": answer}, "finish_reason": "stop"}
    body = {"model": "a\nb" + "c" * 999, "system_fingerprint": 7, "usage": {"prompt_tokens": -1}, "choices": [choice]}
    server.script = [raw(json.dumps(body).encode())]
    provenance = (await analyse(server)).provenance
    assert provenance.model_id == "a?b" + "c" * 253
    assert provenance.tokens is None


async def test_a_flood_is_not_read_to_its_end(server: ChatServer) -> None:
    server.script = [flood]
    error = await failure(server)
    assert error.reason == "model_answer_invalid"
    assert str(MAX_ANSWER_BYTES) in str(error)


async def test_packed_answers_are_refused(server: ChatServer) -> None:
    server.script = [raw(b"\x1f\x8b", {"content-encoding": "gzip"})]
    assert (await failure(server)).reason == "model_answer_invalid"
    assert server.headers[0]["accept-encoding"] == "identity"


async def test_too_much_input_is_refused_before_it_is_sent(server: ChatServer) -> None:
    error = await failure(server, max_input_chars=500)
    assert (error.reason, error.again) == ("input_too_large", False)
    assert server.asked == []


# --- endpoints that know less --------------------------------------------------------------------------------------


async def test_without_schemas_the_next_best_form_is_used_and_remembered(server: ChatServer) -> None:
    server.refuses = {"json_schema"}
    handler = ChatAnalysis.make(bench(server))
    await handler.run(analysis(), Worker())
    await handler.run(analysis(), Worker())
    assert [one["response_format"]["type"] for one in server.asked] == ["json_schema", "json_object", "json_object"]
    assert '"suspected_faults"' in server.asked[1]["messages"][0]["content"]


async def test_an_endpoint_that_knows_next_to_nothing(server: ChatServer) -> None:
    server.refuses = {"json_schema", "json_object", "max_tokens", "temperature", "seed"}
    worker = Worker()
    response = await ChatAnalysis.make(bench(server)).run(analysis(), worker)
    assert response.provenance.sampling == Sampling(temperature=1.0, max_tokens=4096)
    assert server.asked[-1]["max_completion_tokens"] == 4096
    assert not {"seed", "max_tokens", "response_format"} & server.asked[-1].keys()
    assert worker.observed["model"]["form"] == "text"


async def test_what_did_not_help_is_not_remembered(server: ChatServer) -> None:
    """An endpoint that repeats prompts in its errors must not let one tenant change how others are served."""
    handler = ChatAnalysis.make(bench(server))
    server.script = [status(400, message="you said: json_schema")] * 9
    with pytest.raises(JobFailedError):
        await handler.run(analysis(), Worker())
    server.script = []
    await handler.run(analysis(), Worker())
    assert server.asked[-1]["response_format"]["type"] == "json_schema"


# --- the judge -----------------------------------------------------------------------------------------------------


async def test_a_judge_of_another_model_is_not_asked(server: ChatServer) -> None:
    request = verdict().model_copy(update={"judge_model": "gpt-9"})
    with pytest.raises(JobFailedError) as caught:
        await ChatJudge.make(bench(server)).run(request, Worker())
    assert caught.value.reason == "model_not_found"
    assert server.asked == []
