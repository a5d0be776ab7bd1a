"""The shape of every error that a door of ours answers with: RFC 9457, `application/problem+json`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fumehood.wire.base import Version, WireModel

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:fumehood:problem:"


class ProblemDetails(WireModel):
    """One problem. `type` is stable and made for programs, `detail` is made for people."""

    type: Annotated[
        str, Field(pattern=r"^urn:fumehood:problem:[a-z0-9-]+$", description="Which problem it is; see the errors")
    ]
    version: Annotated[Version, Field(description="Of this contract")] = 1
    title: Annotated[str, Field(description="The same for every problem of this type")]
    status: Annotated[int, Field(ge=400, le=599, description="The HTTP status, repeated")]
    detail: Annotated[str, Field(description="What was wrong this time; never a secret or a host path")]
    instance: Annotated[str, Field(description="The request's id, as in the header `X-Request-Id`")]


def problem_type(code: str) -> str:
    """The stable URI of an error code."""
    return TYPE_PREFIX + code
