"""Contract 4: what all job types have in common. Their own models are in `jobs/types/`."""

from __future__ import annotations

import datetime as dt
import re
from enum import StrEnum
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from fumehood.wire.base import ABSENT_NOT_NULL, JOB_TYPE_FORM, NOT_NULL, WHOLE, Sha256, UtcTime, WireModel

MAX_REDUNDANCY = 9
LARGEST_INTEGER = 2**53 - 1
"""What every language can hold in a number of JSON."""

JOB_TYPES = (
    "oa.candidate_judge.v1",
    "oa.code_chunk_analysis.v1",
    "oa.retrieval_rerank.v1",
    "oa.sandbox_run.v1",
)
"""Those that come with the system; a test holds this to the registry."""
LONGEST_JOB_TYPE = 96
VERSION_FORM = r"^(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})$"
FIRST_VERSION = "1.0.0"
JobTypeName = Annotated[str, Field(pattern=JOB_TYPE_FORM, max_length=LONGEST_JOB_TYPE)]
U32 = Annotated[int, Field(ge=0, le=2**32 - 1), WHOLE]
U64 = Annotated[int, Field(ge=0, le=LARGEST_INTEGER), WHOLE]
"""As far as JSON carries it."""
Line = Annotated[int, Field(ge=1, le=2**32 - 1), WHOLE]
Number = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]

T = TypeVar("T")
Option = Annotated[T | None, NOT_NULL, ABSENT_NOT_NULL]
"""What may be left out, for fields with the default None: `null` is no value, and what is unset is not written."""

_RFC_3339 = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})")


def _refuse_other_than_text(value: object) -> object:
    """Numbers could be seconds or milliseconds, and are neither."""
    if isinstance(value, dt.datetime) or (isinstance(value, str) and _RFC_3339.fullmatch(value)):
        return value
    raise ValueError("must be a time like 2026-02-16T12:00:00.000Z")


Moment = Annotated[UtcTime, Field(strict=False), BeforeValidator(_refuse_other_than_text)]


class JobModel(WireModel):
    """Strict in what a field holds; what it does not know, it ignores."""

    model_config = ConfigDict(
        extra="ignore",
        use_attribute_docstrings=True,
        ser_json_inf_nan="constants",  # the default is null, which would have a hash
    )


class Mode(StrEnum):
    """Whether two honest providers must come to the same."""

    OBJECTIVE = "objective"
    SUBJECTIVE = "subjective"


class Adjudication(StrEnum):
    """How one result is made of several."""

    NONE = "none"
    MAJORITY_VOTE = "majority_vote"
    JUDGE_MODEL = "judge_model"
    MERGE = "merge"


class Verification(JobModel):
    """How often a job is done, and what decides. What a request leaves out is as usual for its type."""

    mode: Annotated[Mode, Field(strict=False)]
    """Whether two honest providers must come to the same."""
    redundancy: Annotated[int, Field(ge=1, le=MAX_REDUNDANCY), WHOLE]
    """How many providers do it, each a different one."""
    adjudication: Annotated[Adjudication, Field(strict=False)]
    """How one result is made of several."""
    judge_model: Option[Annotated[str, Field(min_length=1, max_length=256)]] = None
    """Which model judges, where one does; unset: whichever the judge has."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """`jobs/base.py` fills in what is missing."""
        schema = handler(core_schema)
        if handler.mode == "validation":
            handler.resolve_ref_schema(schema).pop("required", None)
        return schema


class Sampling(JobModel):
    """How a model was asked; all zero and unset where none was."""

    temperature: Number = 0.0
    top_p: Option[Number] = None
    top_k: Option[U32] = None
    seed: Option[U64] = None
    max_tokens: Option[U32] = None
    stop: Annotated[tuple[str, ...], Field(strict=False)] = ()


class Tokens(JobModel):
    """What a model counted."""

    input: U64
    output: U64


class Provenance(JobModel):
    """Who made a response, with what, and from what."""

    model_id: str
    """A model, or the program that did without one, with its version."""
    sampling: Sampling = Sampling()
    input_sha256: Option[Sha256] = None
    """The request's hash."""
    output_sha256: Option[Sha256] = None
    """Of the response without its provenance."""
    provider_pubkey: Option[Sha256] = None
    """Ed25519, 64 hex digits."""
    executed_at: Option[Moment] = None
    """When it began."""
    duration_ms: Option[U64] = None
    """How long it took."""
    tokens: Option[Tokens] = None
    """What the model counted, where one was asked."""


# --- what is handed to a provider, and what it answers -------------------------------------------------------


class JobTask(JobModel):
    """The input of one execution."""

    job_type: JobTypeName
    schema_version: Annotated[str, Field(pattern=VERSION_FORM)] = FIRST_VERSION
    """Of whoever read the request and hashed it."""
    payload: dict[str, Any]
    """The request in its typed form, with defaults."""
    request_sha256: Sha256
    tenant: str
    asked_by: str
    """The name of the key that asked."""


class JobAnswer(JobModel):
    """The output of one execution: what was found, and the receipt that binds its provider to it."""

    response: dict[str, Any]
    receipt: dict[str, Any]
    """A DSSE envelope."""
