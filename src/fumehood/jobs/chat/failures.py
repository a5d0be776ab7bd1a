"""What an endpoint's refusals mean for a job. Its words stay here: they may hold parts of the key, or of the prompt."""

from __future__ import annotations

import openai

from fumehood.errors import JobFailedError
from fumehood.jobs.chat.dialect import said_by

_TOO_LONG = (
    "context length",
    "context size",
    "context window",
    "context_length",
    "too many tokens",
    "prompt is too long",
)
_REFUSED = frozenset({"content_filter", "content_policy_violation"})


def failure(error: openai.OpenAIError) -> JobFailedError:
    if isinstance(error, openai.APITimeoutError):
        return unavailable("the model service did not answer in time, however often it was asked")
    if isinstance(error, openai.APIStatusError):
        return _refusal(error)
    return unavailable("the model service could not be reached, or broke off")


def unavailable(detail: str) -> JobFailedError:
    return JobFailedError("model_unavailable", detail, again=True)


def unusable(detail: str) -> JobFailedError:
    return JobFailedError("model_answer_invalid", detail, again=True)


def too_large(detail: str) -> JobFailedError:
    return JobFailedError("input_too_large", detail)


def _refusal(error: openai.APIStatusError) -> JobFailedError:
    status = error.status_code
    if status in (401, 403):
        return JobFailedError("model_unauthorised", f"the model service refuses this worker's key (status {status})")
    if status == 404:
        return JobFailedError("model_not_found", "the model service knows no such model, or no such path")
    if status < 400:
        detail = f"the model service answers with a redirect (status {status}), which is not followed"
        return JobFailedError("model_unavailable", detail)
    if status in (408, 409, 429) or status >= 500:
        return unavailable(f"the model service is not able to answer now (status {status})")
    return _bad_request(error)


def _bad_request(error: openai.APIStatusError) -> JobFailedError:
    words = said_by(error)
    if error.status_code == 413 or error.code == "context_length_exceeded" or any(one in words for one in _TOO_LONG):
        return too_large("the request is longer than the model's context")
    if error.code in _REFUSED:
        return JobFailedError("model_refused", "the model service's filter refused the request")
    detail = f"the model service does not take our request (status {error.status_code})"
    return JobFailedError("model_request_invalid", detail)
