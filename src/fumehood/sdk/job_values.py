"""What jobs are to a caller: plain values, the same for both flavours of the SDK."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from fumehood.sdk.run_values import Failure, word


class JobStatus(StrEnum):
    """Where a job stands.

    from fumehood import JobStatus

    assert JobStatus.DISPUTED == "disputed"
    """

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    """There is a result that was decided on as the request wanted. What the job itself found may well be a failure."""
    DISPUTED = "disputed"
    """Its providers disagree; all that they said is in the verdict."""
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"


JOB_ENDED: frozenset[str] = frozenset(JobStatus) - {JobStatus.QUEUED, JobStatus.RUNNING}


class VerdictOutcome(StrEnum):
    """How one result was made of all that providers said."""

    SINGLE = "single"
    MAJORITY = "majority"
    JUDGED = "judged"
    MERGED = "merged"
    NO_MAJORITY = "no_majority"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One execution: who did it, what it gave, and whether that counts."""

    execution: int
    worker: str | None
    accepted: bool
    rejected: str | None
    """Why its answer does not count: `unknown_key`, `task_mismatch` and the like."""
    response: Mapping[str, Any] | None = field(repr=False)
    receipt: Mapping[str, Any] | None = field(repr=False)
    """As its provider signed it."""
    error: Failure | None
    said: Mapping[str, Any] = field(repr=False)
    """All that the server says of it."""

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Self:
        """As a server says it."""
        return cls(
            execution=int(said["execution"]),
            worker=said.get("worker"),
            accepted=bool(said["accepted"]),
            rejected=said.get("rejected"),
            response=said.get("response"),
            receipt=said.get("receipt"),
            error=Failure.of(said.get("error")),
            said=said,
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was decided, and on what."""

    outcome: VerdictOutcome | str
    redundancy: int
    agreed: int
    """How many executions said what the chosen one says."""
    chosen: int | None
    """Which execution's answer is the result."""
    candidates: tuple[Candidate, ...] = field(repr=False)
    said: Mapping[str, Any] = field(repr=False)
    """All that the server says of it."""

    @classmethod
    def of(cls, said: Mapping[str, Any] | None) -> Self | None:
        """As a server says it."""
        if said is None:
            return None
        return cls(
            outcome=word(VerdictOutcome, said["outcome"]),
            redundancy=int(said["redundancy"]),
            agreed=int(said["agreed"]),
            chosen=said.get("chosen"),
            candidates=tuple(Candidate.of(one) for one in said.get("candidates", ())),
            said=said,
        )


@dataclass(frozen=True, slots=True)
class JobType:
    """A kind of job that the server knows."""

    name: str
    version: str
    about: str
    said: Mapping[str, Any] = field(repr=False)
    """All that the server says of it: the schemas of what it takes and gives."""

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Self:
        """As a server says it."""
        return cls(str(said["name"]), str(said["version"]), str(said["about"]), said)


MAJORITY = "majority_vote"


def with_trust(
    payload: Mapping[str, Any], usual: Mapping[str, Any], redundancy: int | None, adjudication: str | None
) -> dict[str, Any]:
    """The request with another redundancy or adjudication; the rest is as it says, or as its type does. Several
    answers of which nobody makes one would be as good as one: then their majority counts."""
    said = payload.get("verification")
    known = {name: value for name, value in usual.items() if value is not None}
    wanted = {**known, **(said if isinstance(said, Mapping) else {})}
    if redundancy is not None:
        wanted["redundancy"] = redundancy
    if adjudication is not None:
        wanted["adjudication"] = adjudication
    elif redundancy is not None and redundancy > 1 and wanted.get("adjudication") == "none":
        wanted["adjudication"] = MAJORITY
    return {**payload, "verification": wanted}
