"""Every error that Fumehood raises on purpose, on one screen.

Each class has a stable ``code`` (it appears in problem documents, metrics and logs and never changes its
meaning) and says whether the same call may succeed later (``retryable``). Nothing here knows HTTP, gRPC or
NATS: the doors translate, see ``door/problems.py``. A ``detail`` is shown to callers, so it never holds a
secret, a token or a path of the host; only that of a `ConfigurationError`, which no caller ever sees, names paths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar


class FumehoodError(Exception):
    """The root: catch it to catch all of ours, and nothing else."""

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class ConfigurationError(FumehoodError):
    """A setting, file or flag of the operator's is wrong; nothing was started. `detail` is for the operator alone."""

    code = "configuration"


# --- what a caller did -------------------------------------------------------------------------------------


class InvalidRequestError(FumehoodError):
    """The request does not fit its contract."""

    code = "invalid-request"


class UnsupportedVersionError(InvalidRequestError):
    """The request names a version of the contract that we do not speak."""

    code = "unsupported-version"


class UnauthenticatedError(FumehoodError):
    """No credentials, or wrong or expired ones."""

    code = "unauthenticated"


class InvalidTokenError(UnauthenticatedError):
    """A token that was handed to somebody for one thing, and does not count (any more). Says no more than that."""


class ForbiddenError(FumehoodError):
    """Known, but not allowed."""

    code = "forbidden"


class NotFoundError(FumehoodError):
    """There is no such thing."""

    code = "not-found"


class ConflictError(FumehoodError):
    """The same identity was used before for something else."""

    code = "conflict"


class PayloadTooLargeError(FumehoodError):
    """The body passed its bound while it was read."""

    code = "payload-too-large"


# --- what this process can take ----------------------------------------------------------------------------


class OverloadedError(FumehoodError):
    """All slots and the short queue are taken: come back later."""

    code = "overloaded"
    retryable = True

    def __init__(self, detail: str, *, retry_after_seconds: int) -> None:
        super().__init__(detail)
        self.retry_after_seconds = retry_after_seconds


class DrainingError(OverloadedError):
    """This process is going away and takes no new work."""

    code = "draining"


class QuotaExceededError(OverloadedError):
    """The tenant uses all that it may: come back when some of that is over."""

    code = "quota-exceeded"


class IndexUnavailableError(OverloadedError):
    """The index of runs is being built: a list now would lack some of them."""

    code = "index-unavailable"

    def __init__(self, detail: str, *, retry_after_seconds: int = 2) -> None:
        super().__init__(detail, retry_after_seconds=retry_after_seconds)


class LedgerError(FumehoodError):
    """The ledger could not be read or written; what was asked for did not happen."""

    code = "ledger"
    retryable = True


# --- images ------------------------------------------------------------------------------------------------


class ImageError(FumehoodError):
    """An image is not admitted, or cannot be had."""

    code = "image"
    evidence: Mapping[str, object] | None = None
    """What admission had found out when it said no; `None` where the error is not admission's."""


class InvalidReferenceError(ImageError):
    """The image reference does not parse."""

    code = "invalid-image-ref"


class ImageDeniedError(ImageError):
    """Policy says no. ``reason`` is one of the contract's denial reasons."""

    code = "image-denied"

    def __init__(self, detail: str, *, reason: str) -> None:
        super().__init__(detail)
        self.reason = reason


class PolicyDeniedError(FumehoodError):
    """Policy does not let anything run like this, whatever the image: as this user, with this network, or so large.

    ``reason`` is `user_not_allowed`, `network_not_allowed` or `limits_not_allowed`.
    """

    code = "policy-denied"

    def __init__(self, detail: str, *, reason: str) -> None:
        super().__init__(detail)
        self.reason = reason


class RunDeniedError(PolicyDeniedError):
    """A run that was asked for is not allowed. ``evidence`` is what was found out until then, as its caller sees it."""

    def __init__(
        self, detail: str, *, reason: str, evidence: Mapping[str, object], retry_after_seconds: int | None = None
    ) -> None:
        """`retry_after_seconds`: the answer may be another one by then."""
        super().__init__(detail, reason=reason)
        self.evidence = evidence
        self.retry_after_seconds = retry_after_seconds


class DigestResolutionError(ImageDeniedError):
    """The registry said no, or nothing that could be believed, when asked which digest a tag names."""

    code = "digest-resolution-failed"

    def __init__(self, detail: str) -> None:
        super().__init__(detail, reason="digest_resolution_failed")

    def again(self) -> DigestResolutionError:
        """The same once more: an error that several callers share would collect all their tracebacks and evidence."""
        return DigestResolutionError(self.detail)


class RegistryContentError(DigestResolutionError):
    """The registry sent something else than it was asked for: with another digest, or larger than it may be."""

    code = "registry-content"

    def again(self) -> RegistryContentError:
        return RegistryContentError(self.detail)


class RegistryUnavailableError(DigestResolutionError):
    """The registry could not be asked: no connection, no answer in time, or an answer that says "later"."""

    code = "registry-unavailable"
    retryable = True

    def __init__(self, detail: str, *, retry_after_seconds: int = 5) -> None:
        super().__init__(detail)
        self.retry_after_seconds = retry_after_seconds

    def again(self) -> RegistryUnavailableError:
        return RegistryUnavailableError(self.detail, retry_after_seconds=self.retry_after_seconds)


class ImageNotFoundError(ImageError):
    """An image that was named by its digest alone is in none of the repositories that the policy names for jobs."""

    code = "image-not-found"


class ImagePullError(ImageError):
    """The engine could not fetch an admitted image: its registry does not have it, or does not give it to us."""

    code = "image-pull-failed"


class ImagePullUnavailableError(ImagePullError):
    """The engine could not fetch an admitted image, and nobody said that it never will."""

    code = "image-pull-unavailable"
    retryable = True


class NoCommandError(ImageError):
    """Neither the image nor whoever asked says which program to run."""

    code = "no-command"


# --- sandboxes ---------------------------------------------------------------------------------------------


class SandboxError(FumehoodError):
    """A sandbox could not be made, or is not what was asked for."""

    code = "sandbox"


class SandboxStartError(SandboxError):
    """The engine refused to make or start the sandbox."""

    code = "sandbox-start-failed"


class SandboxNameTakenError(SandboxStartError):
    """Another sandbox, most likely a leftover on its way out, bears the name that was asked for."""

    code = "sandbox-name-taken"
    retryable = True


class NetworkUnavailableError(SandboxStartError):
    """The network that was asked for cannot be had on this node, and a weaker one is not given in its place."""

    code = "network-unavailable"


class SandboxNotFoundError(SandboxError):
    """The engine knows no such sandbox (any more)."""

    code = "sandbox-not-found"


class JobStoppedError(SandboxError):
    """Somebody stopped a job before its command was sent: nothing ran."""

    code = "job-stopped"


class SandboxLostError(SandboxError):
    """A sandbox ended without its supervisor's word: nothing is known about how its command ended.

    `engine_lost` tells that the engine went away under it, not only the sandbox.
    """

    code = "sandbox-lost"

    def __init__(self, detail: str, *, engine_lost: bool = False) -> None:
        super().__init__(detail)
        self.engine_lost = engine_lost


class EngineUnavailableError(SandboxError):
    """The container engine does not answer."""

    code = "engine-unavailable"
    retryable = True


class EngineStatusError(SandboxError):
    """The container engine answered with an error status. `message` is its own text: for logs, never for callers."""

    code = "engine-refused"

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the container engine answered with status {status}")
        self.status = status
        self.message = message


class DeadlineExceededError(SandboxError):
    """An operation on the engine or the warden took longer than its deadline."""

    code = "deadline-exceeded"
    retryable = True


class WardenProtocolError(SandboxError):
    """The warden said something that its protocol does not allow."""

    code = "warden-protocol"


class CommandRefusedError(SandboxError):
    """The warden refused a command."""

    code = "command-refused"


class FileOperationError(SandboxError):
    """A file operation inside a sandbox failed; ``errno`` is the sandbox's."""

    code = "file-operation-failed"

    def __init__(self, detail: str, *, errno: int) -> None:
        super().__init__(detail)
        self.errno = errno


# --- workers' commands -------------------------------------------------------------------------------------


class CommandFailedError(FumehoodError):
    """A command of a worker, or a call to a session, failed; `reason` is one of the codes of the console's protocol."""

    code = "command-failed"

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


# --- jobs and receipts -------------------------------------------------------------------------------------


class JobFailedError(FumehoodError):
    """A job could not be done. `reason` is a stable word for it; `again` says that another try may do."""

    code = "job-failed"

    def __init__(self, reason: str, detail: str, *, again: bool = False) -> None:
        super().__init__(detail)
        self.reason = reason
        self.again = again


class NoKeyListError(FumehoodError):
    """No list of keys is published, so that no receipt could be checked: jobs are not taken."""

    code = "no-key-list"


class UnverifiedError(FumehoodError):
    """A receipt, a list of keys or an output is not what it says it is. `reason` is a stable word for why."""

    code = "unverified"

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


# --- workflows ---------------------------------------------------------------------------------------------


class InvalidDefinitionError(InvalidRequestError):
    """A workflow definition that does not hold together. `problems` has one line for each thing that is wrong."""

    code = "invalid-definition"

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else ""))
        self.problems = tuple(problems)


class LeaseLostError(ConflictError):
    """The task is somebody else's by now, or nobody's: its run was cancelled, its time ran out, or it was answered."""

    code = "lease-lost"


class ArchivedError(ConflictError):
    """The run was archived: it can be read, and takes no orders any more."""

    code = "archived"


# --- the broker --------------------------------------------------------------------------------------------


class BrokerError(FumehoodError):
    """The broker refused, or answered something that it should not have."""

    code = "broker"


class BrokerUnavailableError(BrokerError):
    """No answer in time. A write may have been stored all the same: repeat it under the same id."""

    code = "broker-unavailable"
    retryable = True


class BrokerFullError(BrokerError):
    """A stream has reached its limit and refuses rather than forgets."""

    code = "broker-full"
    retryable = True


class BrokerDeniedError(BrokerError):
    """The credentials of this connection do not allow it."""

    code = "broker-denied"


class JournalConflictError(BrokerError):
    """Somebody else appended to this run's journal first: read again, decide again."""

    code = "journal-conflict"
    retryable = True


class KeyConflictError(BrokerError):
    """The key exists already, or has another revision than the one that was named."""

    code = "key-conflict"


class BlobNotFoundError(BrokerError):
    """No blob under this reference, or not yet a whole one."""

    code = "blob-not-found"


class BlobCorruptError(BrokerError):
    """What is stored under a reference does not have that hash."""

    code = "blob-corrupt"


class TopologyError(ConfigurationError):
    """Streams or buckets exist with another shape than this version declares."""

    code = "broker-topology"
