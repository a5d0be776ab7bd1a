"""Receipts: an in-toto statement in a DSSE envelope, by which a worker is bound to what it says a request gave.

The subjects are the outputs, by their SHA-256; the predicate says which request, which hand-out of it, which image by
which evidence, what was observed of the sandbox, how it ended and when. A receipt proves who claimed what. That the
claim is true it cannot prove: for that there are several workers (`adjudication.py`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fumehood.errors import UnverifiedError
from fumehood.verify.dsse import Envelope, SigningKey, json_value
from fumehood.verify.keylist import KeyList
from fumehood.wire.base import Sha256, UtcTime
from fumehood.wire.canonical import canonical_json

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:fumehood:receipt:v1"
MAX_SUBJECTS = 512


class Kind(StrEnum):
    SANDBOX_RUN = "sandbox_run"
    """One program in one sandbox: Worker API, Runner API, sandbox steps of workflows."""
    COMMAND = "command"
    """A command of the console, or in a session."""
    JOB = "job"
    """One execution of a job."""


class _Part(BaseModel):
    """What a later version adds is kept by the signature and passed over by this reader."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)


class Digest(_Part):
    sha256: Sha256


class Subject(_Part):
    name: Annotated[str, Field(min_length=1, max_length=4096)]
    digest: Digest


class Worker(_Part):
    id: str
    key_id: Sha256


class Asked(_Part):
    """What was wanted, by its hash, and by whom."""

    sha256: Sha256
    type: str | None = None
    """The job type, or the contract that the request is of."""
    tenant: str | None = None
    by: str | None = None
    """The name of the key that asked, where the worker was told."""


class Outcome(_Part):
    status: str
    reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None


class Image(_Part):
    digest: str
    reference: str | None = None
    evidence: dict[str, Any] = Field(default_factory=dict)
    """Of admission: which policy, which rule, whose signature."""


class Claim(_Part):
    """The predicate: all that a worker says about one hand-out."""

    kind: Kind
    worker: Worker
    task: dict[str, str | int]
    """Which hand-out: `run_id`, `step_id`, `attempt`, `iteration`, `lease_id`; `job_id`; `command_id`, `session_id`."""
    request: Asked
    outcome: Outcome
    image: Image | None = None
    observed: dict[str, Any] = Field(default_factory=dict)
    """`isolation`, `network`, `limits`, `repo`, `streams`: as it was, not as it was asked for."""
    started_at: UtcTime | None = None
    finished_at: UtcTime
    software: str = ""


class Statement(_Part):
    type: Annotated[Literal["https://in-toto.io/Statement/v1"], Field(alias="_type")] = (
        "https://in-toto.io/Statement/v1"
    )
    subject: Annotated[tuple[Subject, ...], Field(max_length=MAX_SUBJECTS)]
    predicate_type: Annotated[Literal["urn:fumehood:receipt:v1"], Field(alias="predicateType")] = (
        "urn:fumehood:receipt:v1"
    )
    predicate: Claim

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True, populate_by_name=True)

    def digest_of(self, name: str) -> str | None:
        return next((one.digest.sha256 for one in self.subject if one.name == name), None)


def issue(claim: Claim, subjects: Mapping[str, str], key: SigningKey) -> dict[str, Any]:
    """The envelope. `claim.worker.key_id` must be the key's own."""
    if claim.worker.key_id != key.key_id:
        raise ValueError("a receipt names the key that signs it")
    named = tuple(Subject(name=name, digest=Digest(sha256=sha256)) for name, sha256 in subjects.items())
    statement = Statement(subject=named, predicate=claim)
    payload = canonical_json(statement.model_dump(mode="json", by_alias=True, exclude_none=True))
    return key.sign(PAYLOAD_TYPE, payload)


def look(envelope: Any) -> Statement:
    """What a receipt says, without believing it: for showing, never for deciding."""
    return _statement(Envelope.read(envelope, PAYLOAD_TYPE).payload)


def check(envelope: Any, keys: KeyList) -> Statement:
    """What a receipt says, by a key of the list that was good when it was made. `UnverifiedError` tells why not."""
    read = Envelope.read(envelope, PAYLOAD_TYPE)
    key = keys.find(read.key_id)
    statement = _statement(read.verify(key.public_bytes))
    if statement.predicate.worker.key_id != read.key_id:
        raise UnverifiedError("malformed", "the receipt names another key than the one that signed it")
    if statement.predicate.worker.id != key.worker:
        raise UnverifiedError("wrong_worker", f"the receipt is in another's name; the key is that of {key.worker}")
    key.check_good_at(statement.predicate.finished_at)
    return statement


def _statement(payload: bytes) -> Statement:
    json_value(payload)  # refuses what two readers could read differently
    try:
        found = Statement.model_validate_json(payload, strict=True)
    except (ValidationError, ValueError, OverflowError) as error:
        raise UnverifiedError("malformed", "the signed payload is no receipt of ours") from error
    if len({one.name for one in found.subject}) != len(found.subject):
        raise UnverifiedError("malformed", "the receipt has two hashes for the same output")
    return found


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
