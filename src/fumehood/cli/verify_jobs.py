"""What this version knows of job types, for checking a job without its server: what is compared, and what was asked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fumehood.cli import receipt_files
from fumehood.cli.exits import UsageError
from fumehood.errors import FumehoodError, UnverifiedError
from fumehood.jobs.base import JobRequest
from fumehood.jobs.registry import Registry
from fumehood.jobs.types.candidate_judge import JudgeRequest
from fumehood.verify.job_checking import Known, Responses
from fumehood.wire.canonical import json_sha256


def known_of(job_type: Any, request_file: Path | None) -> Known:
    """Of a type that nobody here knows, what its receipts say is all there is."""
    registry = Registry.load()
    if not isinstance(job_type, str) or job_type not in registry:
        if request_file is not None:
            raise UsageError(f"--request: this version knows no such job type; it knows {', '.join(registry)}")
        return Known()
    if request_file is None:
        return Known(lambda name, response: _declared(registry, name, response))
    request = _request(registry, job_type, request_file)
    return Known(
        lambda name, response: _declared(registry, name, response),
        request.compute_hash(),
        request.verification,
        lambda outputs: _judge(job_type, request, outputs),
        _merging(registry, job_type, request),
    )


def _request(registry: Registry, job_type: str, path: Path) -> JobRequest:
    """The payload, or the whole body that was submitted."""
    try:
        said = receipt_files.document_in(path)
        if isinstance(said, dict) and said.keys() == {"job_type", "payload"}:
            if said["job_type"] != job_type:
                raise UsageError(f"--request {path} is of another type than the job")
            said = said["payload"]
        return registry.request(job_type, said)
    except (UnverifiedError, UsageError):
        raise
    except FumehoodError as error:
        raise UsageError(f"--request {path}: {error.detail}") from None


def _declared(registry: Registry, job_type: str, response: Mapping[str, Any]) -> str:
    try:
        return json_sha256(registry.response(job_type, response).declared())
    except FumehoodError as error:
        raise UnverifiedError("not_an_answer", f"the response does not fit its type: {error.detail}") from None


def _judge(job_type: str, request: JobRequest, outputs: Responses) -> str:
    model = request.verification.judge_model
    asked = {
        "job_type": job_type,
        "request": request.typed(),
        "candidates": list(outputs),
        **({"judge_model": model} if model is not None else {}),
    }
    try:
        return JudgeRequest.model_validate(asked).compute_hash()
    except (ValueError, FumehoodError):
        raise UnverifiedError("request_mismatch", "no judge could be asked about these answers") from None


def _merging(registry: Registry, job_type: str, request: JobRequest) -> Any:
    merge = registry.type(job_type).merge
    if merge is None:
        return None

    def merged(responses: Responses) -> str:
        try:
            return json_sha256(merge(request, [registry.response(job_type, one) for one in responses]).typed())
        except (ValueError, FumehoodError):
            raise UnverifiedError("not_an_answer", "the answers cannot be merged") from None

    return merged
