"""Errors of the SDK: one tree, each with a code and what to do next, made of what a server or the network said."""

from __future__ import annotations

import inspect
from typing import Any

import httpx
import pytest

from fumehood import errors
from fumehood.door import problems as door
from fumehood.errors import FumehoodError
from fumehood.sdk import problems

CLASSES = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, FumehoodError)]
URL = "http://there:1"
REQUEST = httpx.Request("POST", URL)
FRAMEWORK = {"method-not-allowed", "request-timeout", "unsupported-media-type"}
"""What no client of ours asks for; they come as the server's own words."""


def said(status: int, code: str, detail: str = "so it is", headers: dict[str, str] | None = None, **more: Any) -> Any:
    body = {"type": f"urn:fumehood:problem:{code}", "status": status, "detail": detail, "instance": "req-1", **more}
    return problems.refusal(URL, True, httpx.Response(status, json=body, headers=headers, request=REQUEST))


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_each_has_a_code_and_a_remedy(kind: type[FumehoodError]) -> None:
    assert kind.__doc__
    assert kind.code
    assert kind.code == kind.code.lower()
    assert kind.remedy
    assert "\n" not in kind.remedy
    assert not kind.remedy.endswith(".")


def test_a_code_means_one_class_and_those_below_it() -> None:
    for kind in CLASSES:
        own = [other for other in CLASSES if other.code == kind.code and "code" in vars(other)]
        root = [FumehoodError] if kind.code == "internal" else []
        assert len(set(own) - set(root)) == 1, kind.code


@pytest.mark.parametrize("code", sorted(set(door.KINDS) - FRAMEWORK))
def test_every_problem_of_the_door_is_a_class_of_ours(code: str) -> None:
    error = said(door.KINDS[code].status, code)
    assert type(error) is not errors.RefusedError
    assert error.code == code
    assert error.request_id == "req-1"


@pytest.mark.parametrize("code", [*sorted(FRAMEWORK), "of-a-later-version"])
def test_a_code_that_nobody_knows_is_told_as_it_is(code: str) -> None:
    error = said(409, code, "no, since it is Tuesday")
    assert type(error) is errors.RefusedError
    assert (error.code, error.detail, error.retryable) == (code, "no, since it is Tuesday", False)
    assert said(503, code).retryable


def test_what_to_do_next_is_the_second_line_for_callers_and_nothing_in_a_server() -> None:
    inside = errors.SandboxGoneError("it is gone")
    assert str(inside) == "it is gone"
    told = said(404, "session-not-found", "it is gone")
    assert str(told).splitlines() == ["it is gone", errors.SandboxGoneError.remedy]
    assert isinstance(told, errors.NotFoundError)


def test_members_of_a_problem_come_along() -> None:
    denied = said(403, "policy-denied", policy_evidence={"denial_reason": "user_not_allowed"})
    assert (denied.reason, denied.evidence) == ("user_not_allowed", {"denial_reason": "user_not_allowed"})
    wrong = said(400, "invalid-definition", problems=["one", "two"])
    assert wrong.problems == ("one", "two")
    later = said(503, "draining", headers={"retry-after": "7"})
    assert (later.retry_after_seconds, later.retryable) == (7, True)
    lost = said(503, "worker-lost", retryable=True)
    assert type(lost) is errors.WorkerLostError
    assert lost.retry_after_seconds == 1


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(502, text="<html>Bad Gateway", request=REQUEST),
        httpx.Response(404, json={"detail": "Not Found"}, request=REQUEST),
        httpx.Response(302, headers={"location": "https://elsewhere"}, request=REQUEST),
        httpx.Response(500, json=[1], request=REQUEST),
    ],
)
def test_what_is_no_server_of_ours_is_told_as_that(answer: httpx.Response) -> None:
    error = problems.refusal(URL, True, answer)
    assert type(error) is errors.UnexpectedAnswerError
    assert str(answer.status_code) in error.detail


def test_a_key_that_is_wrong_and_one_that_is_missing() -> None:
    answer = httpx.Response(
        401, json={"type": "urn:fumehood:problem:unauthenticated", "detail": "no", "instance": "r"}, request=REQUEST
    )
    assert problems.refusal(URL, True, answer).detail == f"{URL} rejected this key"
    assert problems.refusal(URL, False, answer).detail == f"{URL} asks for a key, and there is none"


def test_a_server_cannot_write_to_the_terminal() -> None:
    error = said(400, "invalid-request", "a\x1b[2Jb\nc\r\nd" + "x" * 10_000)
    assert error.detail.startswith("a�[2Jb c d")
    assert len(error.detail) < 5000


@pytest.mark.parametrize(
    ("trouble", "kind", "passing"),
    [
        (httpx.ConnectError("[Errno 111] Connection refused"), errors.UnreachableError, True),
        (httpx.ConnectError("CERTIFICATE_VERIFY_FAILED: …"), errors.UntrustedServerError, False),
        (httpx.UnsupportedProtocol("x"), errors.UnreachableError, True),
        (httpx.ReadTimeout("x"), errors.NoAnswerError, True),
        (httpx.RemoteProtocolError("x"), errors.NoAnswerError, True),
    ],
)
def test_what_the_network_did(trouble: Exception, kind: type[FumehoodError], passing: bool) -> None:
    error = problems.trouble(URL, "POST", trouble)
    assert type(error) is kind
    assert len(str(error).splitlines()) == 2
    assert problems.is_passing(error) is passing


def test_an_order_without_an_answer_may_have_been_carried_out() -> None:
    broken = httpx.ReadError("x")
    assert "may have been done all the same" in problems.trouble(URL, "POST", broken).detail
    assert "may have been done" not in problems.trouble(URL, "GET", broken).detail


def test_waiting_too_long_is_also_what_python_calls_it() -> None:
    assert issubclass(errors.WaitTimeoutError, TimeoutError)
