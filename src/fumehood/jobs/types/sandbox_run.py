"""`oa.sandbox_run.v1`: commands in a sandbox, over a repository, with what they printed and made by its hashes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Protocol

from pydantic import Field

from fumehood.errors import ConfigurationError
from fumehood.jobs.base import Context, Handler, JobRequest, JobResponse, JobType, SchemaVersion, Workbench
from fumehood.wire.base import IMAGE_DIGEST_FORM, NO_NUL, NO_NUL_NOT_EMPTY, PLAIN_ENV_NAME, WHOLE, Sha256
from fumehood.wire.jobs import U64, Adjudication, JobModel, Mode, Number, Option, Verification

MAX_COMMANDS = 100
MAX_GLOBS = 64
MAX_VARIABLES = 256
PREVIEW_BYTES = 16 * 1024
PREPARING_SECONDS = 600
"""Beside the request's own time: for the image, the repository and the artifacts."""
TIMED_OUT = 124
"""The exit code of the command that was running when the time was over."""

Text = Annotated[str, Field(pattern=NO_NUL, max_length=131_071)]
Path = Annotated[str, Field(pattern=NO_NUL_NOT_EMPTY, max_length=4096)]


class NetworkPolicy(StrEnum):
    """What a sandbox reaches: nothing, itself, or whatever the policy of its machine allows."""

    NONE = "none"
    LOCALHOST = "localhost"
    FULL = "full"


class ResourceLimits(JobModel):
    """What the commands may use, all together."""

    memory_mb: Annotated[int, Field(ge=16, le=1_048_576), WHOLE] = 512
    """Memory, in MiB."""
    cpus: Annotated[Number, Field(ge=0.01, le=1024)] = 1.0
    """Processors, or parts of one."""
    timeout_secs: Annotated[int, Field(ge=1, le=86_400), WHOLE] = 60
    """For the whole request."""
    disk_mb: Option[Annotated[int, Field(ge=1, le=1_048_576), WHOLE]] = None
    """The size of the workspace, in MiB."""


class SandboxConfig(JobModel):
    """Where the commands run."""

    provider: Annotated[str, Field(min_length=1, max_length=64)] = "docker"
    """What makes the sandbox."""
    image_digest: Annotated[str, Field(pattern=IMAGE_DIGEST_FORM)]
    """Of the image, never a tag: looked up among the repositories that the policy names for jobs."""
    network_policy: Annotated[NetworkPolicy, Field(strict=False)] = NetworkPolicy.NONE
    """What it reaches."""
    resources: ResourceLimits = ResourceLimits()
    """What the commands may use, all together."""


class RepoMount(JobModel):
    """What the workspace holds when the commands begin."""

    source: Annotated[str, Field(pattern=NO_NUL, max_length=4096)] = ""
    """A path, a git URL, `bundle:sha256:…` that was uploaded, or nothing: then the workspace is empty."""
    git_ref: Option[Annotated[str, Field(min_length=1, max_length=256)]] = None
    """A branch, a tag or a commit."""
    mount_path: Path = "/workspace"
    """Where it is in the sandbox."""


class SandboxCommand(JobModel):
    """One command."""

    cmd: Annotated[str, Field(pattern=NO_NUL_NOT_EMPTY, max_length=131_071)]
    """For `sh -c`."""
    workdir: Option[Path] = None
    """Beneath the mount; unset: the mount itself."""
    continue_on_fail: bool = False
    """Whether the next one is run although this one failed."""


class SandboxRunRequest(JobRequest):
    """Commands, and where to run them."""

    sandbox: SandboxConfig
    """Where they run."""
    repo: RepoMount = RepoMount()
    """What they run over."""
    commands: Annotated[tuple[SandboxCommand, ...], Field(strict=False, min_length=1, max_length=MAX_COMMANDS)]
    """Run one after the other; the first that fails ends the list, unless it says otherwise."""
    env: Annotated[
        dict[Annotated[str, Field(pattern=PLAIN_ENV_NAME, max_length=256)], Text],
        Field(max_length=MAX_VARIABLES, json_schema_extra={"default": {}, "additionalProperties": False}),
    ] = Field(default_factory=dict)
    """Added to the image's own environment."""
    artifacts: Option[Annotated[tuple[Path, ...], Field(strict=False, max_length=MAX_GLOBS)]] = None
    """Globs beneath the mount. Ours; not hashed when unset."""
    verification: Verification = Verification(mode=Mode.OBJECTIVE, redundancy=1, adjudication=Adjudication.NONE)


class SandboxStatus(StrEnum):
    """`success`: every command did. `failed`: one did not. `timeout`: the time was over. `error`: it could not be
    done."""

    SUCCESS = "success"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    ERROR = "error"


class EnvInfo(JobModel):
    """Where the commands ran."""

    image_digest: str
    hostname: Option[str] = None
    system_info: Option[str] = None


class CommandResult(JobModel):
    """How one command did."""

    cmd: str
    exit_code: Annotated[int, Field(ge=-(2**31), le=2**31 - 1), WHOLE]
    """124 for the one that was running when the time was over."""
    duration_ms: U64
    stdout_sha256: Sha256
    """Of all that it wrote, however long."""
    stderr_sha256: Sha256
    stdout_preview: Option[str] = None
    """The first 16 KiB, as far as they are UTF-8."""
    stderr_preview: Option[str] = None


class Artifact(JobModel):
    """A file that was asked for."""

    path: Path
    """Beneath the mount."""
    sha256: Sha256
    size_bytes: U64
    mime_type: Option[str] = None


class SandboxRunResponse(JobResponse):
    """What the commands gave."""

    env_info: EnvInfo
    """Where they ran."""
    runs: Annotated[tuple[CommandResult, ...], Field(strict=False)] = ()
    """In their order, without those that were never started."""
    artifacts: Annotated[tuple[Artifact, ...], Field(strict=False)] = ()
    """What the globs found, sorted by path."""
    status: Annotated[SandboxStatus, Field(strict=False)]
    """How it ended."""
    error: Option[str] = None
    """Why, where the status is `error`."""
    repo_commit: Option[str] = None
    """What `git_ref` stood for. Ours, as is the next."""
    repo_tree: Option[str] = None
    """Git's hash of the tree that was mounted, whatever it came from."""

    def declared(self) -> Any:
        """What the commands gave, and all that is shown of it: a right hash beside a wrong text would deceive whoever
        reads the text. Not how long it took, on which machine, or in which words it failed."""
        return {
            "image_digest": self.env_info.image_digest,
            "runs": [one.model_dump(mode="json", exclude_none=True, exclude={"duration_ms"}) for one in self.runs],
            "artifacts": [one.model_dump(mode="json", exclude_none=True) for one in self.artifacts],
            "status": self.status.value,
            "repo_commit": self.repo_commit,
            "repo_tree": self.repo_tree,
        }


class SandboxJobs(Protocol):
    """Whoever has sandboxes; `node/jobs/` has."""

    async def run(self, request: SandboxRunRequest, context: Context) -> SandboxRunResponse: ...


def _docker(workbench: Workbench) -> Handler[SandboxRunRequest, SandboxRunResponse]:
    if workbench.sandboxes is None:
        raise ConfigurationError("oa.sandbox_run.v1 needs an engine: this worker has none")
    jobs: SandboxJobs = workbench.sandboxes
    return jobs


JOB_TYPE = JobType(
    name="oa.sandbox_run.v1",
    version=SchemaVersion(1, 0, 0),
    about="Runs commands in a sandbox over a repository; what they give is hashed.",
    request=SandboxRunRequest,
    response=SandboxRunResponse,
    handlers={"docker": _docker},
    uploads=lambda request: [request.repo.source] if request.repo.source.startswith("bundle:") else [],
    seconds=lambda request: request.sandbox.resources.timeout_secs + PREPARING_SECONDS,
    allowed=frozenset({Adjudication.NONE, Adjudication.MAJORITY_VOTE}),
)
