"""What went wrong, as errors of ours: problem documents of a server, and what the network did.

The other direction is `door/problems.py`. Whatever is raised here says what to do next, and never shows a traceback of
the library that speaks HTTP.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import httpx

from fumehood import errors
from fumehood.errors import FumehoodError
from fumehood.sdk.asking import BACK_OFF_SECONDS

LATER = (429, 503)
BROKEN = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError, httpx.CloseError)
"""The connection was there, and went: mostly one that was kept open and that the server closed at the same moment."""
NOT_DONE = frozenset({"image-unavailable", "index-unavailable", "no-capacity", "no-worker", "overloaded"})
"""Problems of status 500 and above that mean that a request was not carried out."""
MAY_BE_DONE = "; what was asked for may have been done all the same"
_UNKNOWN_PATH = "there is nothing at this path"
_LONGEST = 4000
"""Characters of what a server says that are shown."""


def _classes() -> dict[str, type[FumehoodError]]:
    """By code. Of several with one code, the one that has it from nobody else."""
    found: dict[str, type[FumehoodError]] = {}
    for kind in vars(errors).values():
        if inspect.isclass(kind) and issubclass(kind, FumehoodError) and "code" in vars(kind):
            found[kind.code] = kind
    return found


CLASSES: Mapping[str, type[FumehoodError]] = _classes()


# --- what a server said ------------------------------------------------------------------------------------


def refusal(url: str, has_key: bool, answer: httpx.Response) -> FumehoodError:
    """An answer that is none, read to its end."""
    try:
        problem = answer.json()
        detail, code = plain(str(problem["detail"])), str(problem["type"]).rpartition(":")[2]
    except (ValueError, KeyError, TypeError, UnicodeDecodeError):
        return stranger(url, answer)
    found = _made(code, detail, problem, answer)
    found.may_be_done = may_be_done(answer, code)
    request_id = plain(str(problem.get("instance", ""))) or None
    if answer.status_code == 401:
        found = errors.UnauthenticatedError(
            f"{url} rejected this key" if has_key else f"{url} asks for a key, and there is none"
        )
    elif detail == _UNKNOWN_PATH:
        found = errors.UnexpectedAnswerError(f"{url} does not know what was asked").advise(
            "bring the server to the version of this client: it seems to be older"
        )
    return found.advise(request_id=request_id)


def _made(code: str, detail: str, problem: Mapping[str, Any], answer: httpx.Response) -> FumehoodError:
    kind = CLASSES.get(code)
    after = retry_after(answer.headers.get("retry-after"))
    if code == "policy-denied":
        return _denied(detail, problem)
    if kind is errors.InvalidDefinitionError:
        problems = [plain(str(one)) for one in _listed(problem.get("problems"))]
        return errors.InvalidDefinitionError(problems or [detail])
    if kind is not None and issubclass(kind, errors.OverloadedError):
        return kind(detail, retry_after_seconds=int(after))
    found = _plainly(kind, detail)
    if found is None:
        found = errors.RefusedError(detail)
        found.code = plain(code)
        found.retryable = answer.status_code in (408, *LATER)
    if isinstance(retryable := problem.get("retryable"), bool):
        found.retryable = retryable
    if answer.status_code in LATER:
        found.retry_after_seconds = int(after)
    return found


def _plainly(kind: type[FumehoodError] | None, detail: str) -> FumehoodError | None:
    """Of a class that needs nothing but words; others are never said over HTTP under their own code."""
    try:
        return kind(detail) if kind is not None else None
    except TypeError:
        return None


def _denied(detail: str, problem: Mapping[str, Any]) -> FumehoodError:
    evidence = problem.get("policy_evidence")
    evidence = evidence if isinstance(evidence, dict) else {}
    reason = str(evidence.get("denial_reason") or evidence.get("reason") or "policy_denied")
    return errors.RunDeniedError(detail, reason=plain(reason), evidence=evidence)


def _listed(found: object) -> list[object]:
    return found if isinstance(found, list) else []


def may_be_done(answer: httpx.Response, code: str = "") -> bool:
    """Whether what was asked for may have been done although this is no good answer: the server, or something in front
    of it, may have passed the request on."""
    is_refusal = 300 <= answer.status_code < 500 or code in NOT_DONE
    return answer.request.method != "GET" and not is_refusal


def stranger(url: str, answer: httpx.Response) -> FumehoodError:
    """Something stands there that is no server of ours, or in front of one."""
    maybe_done = may_be_done(answer)
    said = f"{url} answered {answer.status_code}, and not as a Fumehood server does"
    found = errors.UnexpectedAnswerError(said + (MAY_BE_DONE if maybe_done else ""))
    found.retryable = answer.status_code >= 500
    found.may_be_done = maybe_done
    return found.advise()


def retry_after(text: str | None) -> float:
    return float(text) if text is not None and text.isdecimal() and len(text) < 6 else BACK_OFF_SECONDS


# --- what the network did ----------------------------------------------------------------------------------


def trouble(url: str, method: str, error: Exception) -> FumehoodError:
    """No answer, or not a whole one."""
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        said = plain(str(error))
        if "CERTIFICATE_VERIFY_FAILED" in said:
            return errors.UntrustedServerError(f"{url} has a certificate that this machine does not trust").advise()
        return errors.UnreachableError(f"no server answers at {url} ({said or type(error).__name__})").advise()
    if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
        return errors.UnreachableError(f"{url} is no address that can be asked").advise()
    done = "" if method == "GET" else MAY_BE_DONE
    found = errors.NoAnswerError(f"{url} gave no whole answer ({type(error).__name__}){done}")
    found.may_be_done = method != "GET"
    if isinstance(error, BROKEN):
        found.retry_after_seconds = 0
    return found.advise("ask again" if method == "GET" else None)


def is_passing(error: FumehoodError) -> bool:
    """Whether asking again may do, for somebody who waits: the server is away, or says "later"."""
    return error.retry_after_seconds is not None or (
        error.retryable
        and isinstance(error, errors.UnreachableError | errors.NoAnswerError | errors.UnexpectedAnswerError)
    )


def plain(text: str) -> str:
    """On one line, without what a terminal takes for orders: a server passes on what strangers wrote."""
    words = " ".join(text.split())[:_LONGEST]
    return "".join(letter if letter.isprintable() else "�" for letter in words)
