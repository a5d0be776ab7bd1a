"""The Worker API, contract 1: run one job in one sandbox and answer with how it ended."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from fumehood.wire import strict_json
from fumehood.wire.base import (
    ABSENT_NOT_NULL,
    ENV_NAME,
    NO_NUL,
    NO_NUL_NOT_EMPTY,
    NOT_NULL,
    WHOLE,
    UtcTime,
    Uuid,
    Version,
    WireModel,
    validate,
)

RUN_JOB_PATH = "/v1/worker/jobs:run"
RECEIPT_PATH = "/v1/worker/jobs/{job_id}/receipt"
EFFECTIVE_TIMEOUT_HEADER = "Fumehood-Effective-Timeout"
EXIT_REASON_HEADER = "Fumehood-Exit-Reason"


class NetworkPolicy(StrEnum):
    """Which network a sandbox sees. `restricted` is none, too, unless the node's operator allows some names."""

    RESTRICTED = "restricted"
    NONE = "none"


class JobStatus(StrEnum):
    """How a job ended. There is no status for "still running": the answer comes at the end."""

    COMPLETED = "completed"
    FAILED = "failed"
    TIMEOUT = "timeout"


class ExitReason(StrEnum):
    """Why a job ended as it did, where its status and exit code alone do not tell."""

    OOM = "oom"
    """The kernel killed the program for its memory; exit code 137."""
    NODE_LOST = "node_lost"
    """The engine or the machine went away under the job; exit code 137. Nothing is known of how it ended."""
    SANDBOX_LOST = "sandbox_lost"
    """The sandbox ended before its supervisor could say how the command did; exit code 137."""
    SIGNAL = "signal"
    """The program was ended by a signal; the exit code is 128 and its number."""
    NOT_STARTED = "not_started"
    """The program never ran; the exit code is 125, 126 or 127, the reason is on stderr."""


Argument = Annotated[str, Field(pattern=NO_NUL)]
EnvName = Annotated[str, Field(pattern=ENV_NAME)]
EnvValue = Annotated[str, Field(pattern=NO_NUL)]


def _describe_command(schema: dict[str, object]) -> None:
    """The program's name is not empty; only `prefixItems` can say this of the first item alone."""
    schema["prefixItems"] = [{"type": "string", "pattern": NO_NUL_NOT_EMPTY}]


def _array_to_tuple(value: object) -> object:
    """JSON has only lists; a frozen model wants a tuple."""
    return tuple(value) if isinstance(value, list) else value


def _names_a_program(command: tuple[str, ...]) -> tuple[str, ...]:
    if not command[0]:
        raise ValueError("the first item, the program's name, must not be empty")
    return command


class SandboxRequest(WireModel):
    """What to run, and in which image."""

    image: Annotated[
        str, Field(min_length=1, description="OCI image reference: `name:tag`, or `name@sha256:…` for one fixed image")
    ]
    command: Annotated[
        tuple[Argument, ...],
        Field(
            min_length=1,
            description="argv: the program, looked up in `PATH` unless it has a slash, and its arguments. No shell is "
            "involved. Items hold no NUL; one is at most 131,071 bytes, all of them and the environment about 2 MiB",
            json_schema_extra=_describe_command,
        ),
        BeforeValidator(_array_to_tuple),
        AfterValidator(_names_a_program),
    ]
    env: Annotated[
        dict[EnvName, EnvValue],
        Field(
            default_factory=dict,
            description="Added to the image's own environment and stronger than it. `HOME`, `CYNODE_TASK_ID`, "
            "`CYNODE_JOB_ID` and `CYNODE_WORKSPACE_DIR` are the node's: a value given for them is not used",
            json_schema_extra={"additionalProperties": False},
        ),
    ]
    timeout_seconds: Annotated[
        Annotated[int, Field(ge=1), WHOLE] | None,
        NOT_NULL,
        ABSENT_NOT_NULL,
        Field(
            description="Seconds that the program may run; absent: the node's default (300). More than the node's "
            "maximum (3600) is clamped to it, which the header `Fumehood-Effective-Timeout` shows"
        ),
    ] = None
    network_policy: Annotated[
        NetworkPolicy,
        Field(
            strict=False,
            description="No network in either case, unless the node's operator allows some names: then `restricted` "
            "reaches those, through the node's proxy",
        ),
    ] = NetworkPolicy.RESTRICTED


class RunJobRequest(WireModel):
    """One job. `job_id` is its identity: the same one again joins or replays it."""

    version: Annotated[Version, Field(description="Of this contract")]
    task_id: Annotated[
        Uuid, Field(description="What the job belongs to, in the caller's own books; any case, lower case in answers")
    ]
    job_id: Annotated[Uuid, Field(description="The job's identity; any case, lower case in answers")]
    sandbox: Annotated[SandboxRequest, Field(description="What to run")]


class Truncated(WireModel):
    """Which streams were longer than the node keeps (262,144 bytes of each, unless its settings say otherwise)."""

    stdout: Annotated[bool, Field(description="`stdout` is only the beginning")]
    stderr: Annotated[bool, Field(description="`stderr` is only the beginning")]


_EXIT_CODE_RULE: dict[str, Any] = {
    "if": {"properties": {"status": {"const": "timeout"}}},
    "then": {"not": {"required": ["exit_code"]}},
    "else": {"required": ["exit_code"]},
}


class RunJobResponse(WireModel):
    """How a job ended."""

    model_config = ConfigDict(json_schema_extra=_EXIT_CODE_RULE)

    version: Annotated[Version, Field(description="Of this contract")] = 1
    task_id: Annotated[Uuid, Field(description="The request's, in lower case")]
    job_id: Annotated[Uuid, Field(description="The request's, in lower case")]
    status: Annotated[
        JobStatus,
        Field(strict=False, description="`completed`: exit code 0. `timeout`: out of time. `failed`: any other end"),
    ]
    exit_code: Annotated[
        Annotated[int, Field(ge=0, le=255)] | None,
        ABSENT_NOT_NULL,
        Field(description="Absent on `timeout`, and only there"),
    ] = None
    stdout: Annotated[
        str, Field(description="What the program wrote, as UTF-8; bytes that are not become U+FFFD, one for each fault")
    ]
    stderr: Annotated[
        str, Field(description="The same; where the program never ran, the node's reason instead, after `fumehood: `")
    ]
    started_at: Annotated[
        UtcTime,
        Field(
            description="When the program began, by the warden's clock; where there was no program or no word of the "
            "warden, when the node took the job up"
        ),
    ]
    ended_at: Annotated[
        UtcTime,
        Field(description="When the program ended, by the same clock; where nobody saw that, when the node knew"),
    ]
    truncated: Annotated[Truncated, Field(description="Which streams were cut")]

    @model_validator(mode="after")
    def _exit_code_fits_status(self) -> Self:
        """A timeout has no exit code: any number there would be taken for the program's."""
        if (self.exit_code is None) != (self.status is JobStatus.TIMEOUT):
            raise ValueError("exit_code is there exactly when the status is not timeout")
        return self


def parse_run_job_request(body: bytes) -> RunJobRequest:
    """Read a request's body, or say what is wrong with it (`InvalidRequestError`)."""
    return validate(RunJobRequest, strict_json.loads(body))
