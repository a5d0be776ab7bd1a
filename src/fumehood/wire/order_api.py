"""What runs are told over HTTP: signals, approvals, and repairs by hand."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from fumehood.wire.base import ABSENT_NOT_NULL, NOT_NULL, WHOLE, UtcTime, WireModel
from fumehood.wire.run_api import LONGEST_REASON

RETRY_PATH = "/v1/runs/{run_id}:retry"
SIGNAL_PATH = "/v1/runs/{run_id}/signals/{signal}"
APPROVE_PATH = "/v1/runs/{run_id}/steps/{step}:approve"
REJECT_PATH = "/v1/runs/{run_id}/steps/{step}:reject"
TOKEN_PATH = "/v1/runs/{run_id}/steps/{step}:token"
SKIP_PATH = "/v1/runs/{run_id}/steps/{step}:skip"
COMPLETE_PATH = "/v1/runs/{run_id}/steps/{step}:complete"
APPROVALS_PATH = "/v1/approvals"

LONGEST_SIGNAL = 1024 * 1024
"""Bytes of a signal's data as JSON; the wire protocol's bound for those of workers."""
LONGEST_TOKEN_SECONDS = 30 * 86_400

Comment = Annotated[str, Field(max_length=LONGEST_REASON, description="For people; it stands in the run's history")]
Reason = Annotated[
    str, Field(min_length=1, max_length=LONGEST_REASON, description="Why; it stands in the run's history")
]


class Verdict(StrEnum):
    APPROVE = "approve"
    REJECT = "reject"


class SignalRequest(WireModel):
    """Something that a run is told."""

    data: Annotated[Any, Field(description="What the step that waits for it gives as its output")] = None
    id: Annotated[
        Annotated[str, Field(pattern="^[A-Za-z0-9_-]{1,64}$")] | None,
        NOT_NULL,
        ABSENT_NOT_NULL,
        Field(description="The same id again is the same signal, and is told once"),
    ] = None


class ApprovalRequest(WireModel):
    """A word about a decision."""

    comment: Comment = ""


class TokenRequest(WireModel):
    """Who shall be able to decide about a step without a key."""

    for_: Annotated[
        str,
        Field(
            alias="for",
            pattern=r"^[^\s/]{1,128}$",
            description="Whoever the token is for, as the history will name them: a name or an address",
        ),
    ]
    expires_in_seconds: Annotated[
        int, Field(ge=1, le=LONGEST_TOKEN_SECONDS, description="How long the token can be used"), WHOLE
    ] = 86_400


class TokenResponse(WireModel):
    """A token that decides about one step, once. It is shown here and nowhere else."""

    token: Annotated[str, Field(description="For `POST /v1/approvals`")]
    expires_at: Annotated[UtcTime, Field(description="When it ends")]


class TokenDecision(WireModel):
    """A decision by whoever holds a token."""

    token: Annotated[str, Field(min_length=1, max_length=4096, description="The token")]
    decision: Annotated[Verdict, Field(strict=False, description="Yes or no")]
    comment: Comment = ""


class RetryRequest(WireModel):
    """Why a run shall go on."""

    reason: Comment = ""


class SkipRequest(WireModel):
    """Why a step shall not be done."""

    reason: Reason


class CompleteRequest(WireModel):
    """What a step would have given."""

    reason: Reason
    output: Annotated[Any, Field(description="What the steps that need it see")] = None


class OrderResponse(WireModel):
    """What became of it."""

    run_id: Annotated[str, Field(description="The run")]
    done: Annotated[
        bool, Field(description="Whether it has had its effect; if not yet, it is safe with the broker and will have")
    ]
