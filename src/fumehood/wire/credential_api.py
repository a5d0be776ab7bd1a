"""Credentials of workers that dial in, over the server's own API.

Field names are the contract; a later version adds fields and never changes what one means.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fumehood.wire.base import LABEL_NAME_FORM, NAME_FORM, UtcTime, WireModel

CREDENTIALS_PATH = "/v1/worker-credentials"
CREDENTIAL_PATH = "/v1/worker-credentials/{worker_id}"

WORKER_PATTERN = NAME_FORM
LONGEST_WORKER = 64
LABEL_PATTERN = LABEL_NAME_FORM
LONGEST_LABEL_NAME = 63
MOST_LABELS = 32
LONGEST_LABEL = 128

LabelName = Annotated[str, Field(pattern=LABEL_PATTERN, max_length=LONGEST_LABEL_NAME)]
LabelValue = Annotated[str, Field(pattern=r"^[^=,\x00-\x1f]*$", max_length=LONGEST_LABEL)]


class CreateWorkerRequest(WireModel):
    """A worker that may dial in."""

    worker_id: Annotated[
        str, Field(pattern=WORKER_PATTERN, max_length=LONGEST_WORKER, description="Its name; nobody else may have it")
    ]
    labels: Annotated[
        dict[LabelName, LabelValue],
        Field(
            max_length=MOST_LABELS,
            description="What is true of it, whatever it says of itself",
            json_schema_extra={"additionalProperties": False, "propertyNames": {"maxLength": LONGEST_LABEL_NAME}},
        ),
    ] = Field(default_factory=dict)


class WorkerCredentialView(WireModel):
    """A worker that may dial in, without what lets it in."""

    worker_id: Annotated[str, Field(description="Its name, by which it is revoked")]
    labels: Annotated[dict[str, str], Field(description="What is true of it, whatever it says of itself")]
    created_at: Annotated[UtcTime, Field(description="When it was made")]
    created_by: Annotated[str, Field(description="Who made it")]


class CreateWorkerResponse(WorkerCredentialView):
    """A new worker, with what lets it in."""

    worker_secret: Annotated[
        str, Field(description="What it proves itself with; it is shown here and never again, and not stored")
    ]


class WorkerCredentialList(WireModel):
    """A part of a list of workers that may dial in."""

    workers: Annotated[list[WorkerCredentialView], Field(description="By name")]
    next: Annotated[str | None, Field(description="`after` for the next page; null where this is the last")] = None
