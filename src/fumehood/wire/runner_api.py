"""The Runner API, contract 2: run one image in a sandbox, see how it goes, read what it printed, stop it.

Names, values and bounds are the contract's. What is ours beyond it says so in its description.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field

from fumehood.wire import blobref, strict_json
from fumehood.wire.base import ABSENT_NOT_NULL, NO_NUL, PLAIN_ENV_NAME, WHOLE, UtcTime, WireModel
from fumehood.wire.problem import ProblemDetails
from fumehood.wire.sandbox import NetworkProfile, RunReason
from fumehood.wire.secret_forms import secret_in

RUNS_PATH = "/runs"
RUN_PATH = "/runs/{run_id}"
LOGS_PATH = "/runs/{run_id}/logs"
LOG_STREAM_PATH = "/runs/{run_id}/logs/stream"
EVENTS_PATH = "/runs/{run_id}/events"
RECEIPT_PATH = "/runs/{run_id}/receipt"
STOP_PATH = "/runs/{run_id}/stop"

TAIL_LINES, MOST_TAIL_LINES = 500, 10_000
LONGEST_IMAGE = 4096
MOST_ARGUMENTS = 4096
LONGEST_ARGUMENT = 131_071
"""The kernel's own bound."""
_EACH = f"Each entry has at most {LONGEST_ARGUMENT} bytes"
LONGEST_ENV_NAME = 4096
MOST_ENV, MOST_ENV_BYTES = 128, 32 * 1024
MOST_CONTEXT_BYTES, DEEPEST_CONTEXT = 16 * 1024, 16
MOST_ATTEMPTS = 5


class RunnerStatus(StrEnum):
    """Where a run stands."""

    QUEUED = "queued"
    STARTING = "starting"
    """A node has it, and its command was not sent yet."""
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    STOPPED = "stopped"

    @property
    def ended(self) -> bool:
        return self not in (RunnerStatus.QUEUED, RunnerStatus.STARTING, RunnerStatus.RUNNING)


class CreatedStatus(StrEnum):
    """What the contract lets a new run be. Ours is always queued."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    FAILED = "failed"


# --- what is asked -----------------------------------------------------------------------------------------


def _is_env(env: dict[str, str]) -> dict[str, str]:
    size = sum(len(text.encode("utf-8", "surrogatepass")) for entry in env.items() for text in entry)
    if size > MOST_ENV_BYTES:
        raise ValueError(f"must have at most {MOST_ENV_BYTES} bytes of UTF-8, names and values together")
    for value in env.values():
        if (found := secret_in(value)) is not None:
            raise ValueError(f"a value looks like {found}; what is given here is shown to others, so it is refused")
    return env


def _is_context(context: dict[str, Any]) -> dict[str, Any]:
    if not strict_json.is_flat(context, DEEPEST_CONTEXT):
        raise ValueError(f"must have at most {DEEPEST_CONTEXT} levels")
    if blobref.mentions_blob(context):
        raise ValueError(f"the key {blobref.KEY} is not for callers")
    if len(blobref.encode(context)) > MOST_CONTEXT_BYTES:
        raise ValueError(f"must have at most {MOST_CONTEXT_BYTES} bytes as JSON")
    return context


def _fit_the_kernel(arguments: list[str]) -> list[str]:
    if any(len(text.encode("utf-8", "surrogatepass")) > LONGEST_ARGUMENT for text in arguments):
        raise ValueError(f"an entry must have at most {LONGEST_ARGUMENT} bytes of UTF-8")
    return arguments


Argument = Annotated[str, Field(pattern=NO_NUL)]
Arguments = Annotated[list[Argument], Field(max_length=MOST_ARGUMENTS), AfterValidator(_fit_the_kernel)]
EnvName = Annotated[str, Field(pattern=PLAIN_ENV_NAME, max_length=LONGEST_ENV_NAME)]
Digest = Annotated[str, Field(pattern=r"^sha256:[a-f0-9]{64}$")]


class ResourceLimits(WireModel):
    """What a run may use."""

    cpu_millis: Annotated[
        int,
        Field(ge=50, le=8000, description="Thousandths of a CPU, by quota: also on a machine that has fewer CPUs"),
        WHOLE,
    ]
    memory_mb: Annotated[int, Field(ge=64, le=16384, description="Memory in MiB; beyond it the run is killed"), WHOLE]
    timeout_seconds: Annotated[
        int, Field(ge=1, le=3600, description="From the start of the command; then everything of it is killed"), WHOLE
    ]


class CreateRunRequest(WireModel):
    """A run to create. Fields that are not named here are refused."""

    image_ref: Annotated[
        str,
        Field(
            min_length=1,
            max_length=LONGEST_IMAGE,
            description="Input image reference (tag or digest); runner resolves to digest.",
        ),
    ]
    command: Annotated[
        Arguments,
        Field(description=f"Replaces the image's entrypoint, and its arguments too; empty: the image's own. {_EACH}"),
    ] = Field(default_factory=list)
    args: Annotated[
        Arguments, Field(description=f"Replaces the image's arguments; empty: the image's own. {_EACH}")
    ] = Field(default_factory=list)
    env_allowlist: Annotated[
        dict[EnvName, Annotated[str, Field(pattern=NO_NUL)]],
        Field(
            max_length=MOST_ENV,
            description="Explicit non-secret env vars allowed into pod. "
            f"At most {MOST_ENV_BYTES} bytes together; what looks like a secret is refused",
            json_schema_extra={"additionalProperties": False, "propertyNames": {"maxLength": LONGEST_ENV_NAME}},
        ),
        AfterValidator(_is_env),
    ] = Field(default_factory=dict)
    resources: ResourceLimits
    network_policy_profile: Annotated[
        NetworkProfile,
        Field(
            strict=False,
            description="`deny-all` and `dns-only` are the contract's, and always known. The others are ours, refused "
            "with 403 unless the policy allows them",
        ),
    ]
    workflow_context: Annotated[
        dict[str, Any],
        AfterValidator(_is_context),
        Field(
            description="Whatever the caller wants to find again at the run: at most "
            f"{MOST_CONTEXT_BYTES} bytes as JSON, and {DEEPEST_CONTEXT} levels",
            json_schema_extra={"additionalProperties": True},
        ),
    ] = Field(default_factory=dict)
    max_attempts: Annotated[
        int,
        Field(
            ge=1,
            le=MOST_ATTEMPTS,
            description="Beyond the contract. How often it may be begun, where an attempt ended without the command's "
            "own doing: its node was lost. What ended by itself is never run again",
        ),
        WHOLE,
    ] = 1


# --- what is answered --------------------------------------------------------------------------------------


class DenialEvidence(WireModel):
    """What was found out about an image before it was refused."""

    model_config = ConfigDict(extra="ignore", strict=False)

    registry_allowed: Annotated[bool, Field(description="Whether the policy allows the image's registry")]
    signature_verified: Annotated[bool, Field(description="Whether a signature by somebody trusted was found")]
    verifier: Annotated[
        str | None, ABSENT_NOT_NULL, Field(examples=["cosign"], description="What checked the signature, if anything")
    ] = None
    identity: Annotated[str | None, Field(description="Who signed, as the signature's certificate says")] = None
    resolved_digest: Annotated[
        Digest | None, ABSENT_NOT_NULL, Field(description="What the reference meant; absent where that is not known")
    ] = None
    denial_reason: Annotated[str | None, Field(description="Why it was refused; null: it was not")] = None
    image: Annotated[
        str | None, ABSENT_NOT_NULL, Field(description="Beyond the contract, as all that follows: what was asked for")
    ] = None
    policy: Annotated[str | None, ABSENT_NOT_NULL, Field(description="The policy that decided")] = None
    rule: Annotated[str | None, ABSENT_NOT_NULL, Field(description="Its rule that was met")] = None
    signature: Annotated[str | None, ABSENT_NOT_NULL, Field(description="What is known of the signature")] = None
    issuer: Annotated[str | None, ABSENT_NOT_NULL, Field(description="Who vouches for the identity")] = None
    key: Annotated[str | None, ABSENT_NOT_NULL, Field(description="The name of the key that verified it")] = None
    form: Annotated[str | None, ABSENT_NOT_NULL, Field(description="In which form the signature was found")] = None
    policy_sha256: Annotated[
        str | None, ABSENT_NOT_NULL, Field(description="Of the policy's file, if it is in one")
    ] = None
    detail: Annotated[str | None, ABSENT_NOT_NULL, Field(description="In words, for people")] = None
    decided_at: Annotated[str | None, ABSENT_NOT_NULL, Field(description="When it was decided")] = None


class PolicyEvidence(DenialEvidence):
    """What was decided about a run's image, and on what ground."""

    resolved_digest: Annotated[Digest, Field(description="The only thing that is ever run")]


class DeniedProblem(ProblemDetails):
    """A run that the policy does not allow, or that whoever asked may not create."""

    policy_evidence: Annotated[
        DenialEvidence | None,
        ABSENT_NOT_NULL,
        Field(description="What was found out until then; absent where the caller's key lacks the scope"),
    ] = None


class CreateRunResponse(WireModel):
    """A run that will be run, whatever happens to whoever said so."""

    run_id: Annotated[str, Field(description="The run's name from now on")]
    pod_name: Annotated[str, Field(description="Of the container or the pod that it will have: `run-` and its id")]
    status: Annotated[CreatedStatus, Field(strict=False, description="As it was when it was created: `queued`")]
    image_digest: Annotated[Digest, Field(description="What will be run, whatever becomes of a tag")]
    policy_evidence: PolicyEvidence


class GetRunResponse(WireModel):
    """A run as it is now."""

    run_id: Annotated[str, Field(description="The run's name")]
    status: Annotated[RunnerStatus, Field(strict=False, description="Where it stands; the last four are for good")]
    pod_name: Annotated[str, Field(description="Of its container or pod")]
    started_at: Annotated[UtcTime | None, Field(description="When its command was sent; null: it was not")]
    finished_at: Annotated[UtcTime | None, Field(description="When it ended")] = None
    exit_code: Annotated[int | None, Field(description="Of its command, where that ended with one")] = None
    reason: Annotated[
        RunReason | None, Field(strict=False, description="Why it ended as it did; null while it has not")
    ] = None
    policy_evidence: PolicyEvidence
    image_ref: Annotated[str, Field(description="Beyond the contract, as all that follows: what was asked for")]
    image_digest: Annotated[Digest, Field(description="What was run")]
    detail: Annotated[str | None, ABSENT_NOT_NULL, Field(description="The reason in words, where it failed")] = None
    attempt: Annotated[int, Field(ge=0, description="Which attempt this is, from 1; 0 before the first")] = 0
    created_at: Annotated[UtcTime | None, ABSENT_NOT_NULL, Field(description="When it was first looked at")] = None
    workflow_context: Annotated[
        dict[str, Any] | None, ABSENT_NOT_NULL, Field(description="As it was given, where it was")
    ] = None


class GetLogsResponse(WireModel):
    """What a run printed, or the last lines of it."""

    run_id: Annotated[str, Field(description="The run")]
    stdout: Annotated[str, Field(description="The last lines of it; bytes that are not UTF-8 are U+FFFD")]
    stderr: Annotated[str, Field(description="The same for the other stream")]
    truncated: Annotated[bool, Field(description="Whether anything of either stream is missing here")]


class RunListItem(WireModel):
    """A run in a list. `GET /runs/{run_id}` shows all of it."""

    run_id: Annotated[str, Field(description="The run's name")]
    status: Annotated[RunnerStatus, Field(strict=False, description="Where it stands")]
    pod_name: Annotated[str, Field(description="Of its container or pod")]
    image_ref: Annotated[str, Field(description="What was asked for")]
    image_digest: Annotated[str | None, Field(description="What was or will be run")]
    created_at: Annotated[UtcTime, Field(description="When it was first looked at: lists are sorted by this")]
    finished_at: Annotated[UtcTime | None, Field(description="When it ended")] = None
    exit_code: Annotated[int | None, Field(description="Of its command, where that ended with one")] = None
    reason: Annotated[RunReason | None, Field(strict=False, description="Why it ended as it did")] = None
    created_by: Annotated[str | None, ABSENT_NOT_NULL, Field(description="Who asked for it")] = None


class ListRunsResponse(WireModel):
    """A part of a list of runs, newest first."""

    runs: Annotated[list[RunListItem], Field(description="By `created_at`, newest first")]
    next: Annotated[str | None, Field(description="`cursor` for the next page; null where this is the last")] = None


class RunStreamEnd(WireModel):
    """The data of the event `end`: the run has ended, and everything was told."""

    run_id: Annotated[str, Field(description="The run")]
    status: Annotated[RunnerStatus, Field(strict=False, description="How it ended")]


def pod_name(run_id: str) -> str:
    return f"run-{run_id}"


def evidence_of(known: Mapping[str, Any]) -> PolicyEvidence:
    """The evidence of an admission, as it is shown."""
    return PolicyEvidence.model_validate(dict(known))
