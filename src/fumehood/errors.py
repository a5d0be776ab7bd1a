"""Every error that Fumehood raises on purpose, on one screen.

Each class has a stable ``code`` (it appears in problem documents, metrics and logs and never changes its
meaning), says whether the same call may succeed later (``retryable``) and what to do about it (``remedy``). Nothing
here knows HTTP, gRPC or NATS: the doors translate, see ``door/problems.py``, and the SDK translates back, see
``sdk/problems.py``. A ``detail`` is shown to callers, so it never holds a secret, a token or a path of the host; only
that of a `ConfigurationError`, which no caller ever sees, names paths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self


class FumehoodError(Exception):
    """The root: catch it to catch all of ours, and nothing else."""

    code: str = "internal"
    retryable: bool = False
    remedy: str = "the log of the server tells more, under the id of the request"
    """What to do next, in one sentence."""
    request_id: str | None = None
    """Under which the server's log tells more; None where no server was asked."""
    retry_after_seconds: int | None = None
    """When to ask again, where somebody said so."""
    may_be_done: bool = False
    """For a client: whether what it asked for may have been done although no good answer came."""
    _advises: bool = False

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail

    def advise(self, remedy: str | None = None, *, request_id: str | None = None) -> Self:
        """The same for whoever called: what to do next becomes part of what it says. Inside of a server it is not:
        there the text goes into answers and logs, and the advice is for somebody else."""
        self._advises = True
        if remedy is not None:
            self.remedy = remedy
        if request_id is not None:
            self.request_id = request_id
        return self

    def __str__(self) -> str:
        return f"{self.detail}\n{self.remedy}" if self._advises and self.remedy else self.detail


class ConfigurationError(FumehoodError):
    """A setting, file or flag of the operator's is wrong; nothing was started. `detail` is for the operator alone."""

    code = "configuration"
    remedy = "correct the setting, file or flag that is named, and start again"


# --- what a caller did -------------------------------------------------------------------------------------


class InvalidRequestError(FumehoodError):
    """The request does not fit its contract."""

    code = "invalid-request"
    remedy = "correct what is named; the reference of the API says what may be asked"


class UnsupportedVersionError(InvalidRequestError):
    """The request names a version of the contract that we do not speak."""

    code = "unsupported-version"
    remedy = "bring the client and the server to the same version"


class UnauthenticatedError(FumehoodError):
    """No credentials, or wrong or expired ones."""

    code = "unauthenticated"
    remedy = "give a key with key=, FUMEHOOD_API_KEY or `fumehood login`"


class InvalidTokenError(UnauthenticatedError):
    """A token that was handed to somebody for one thing, and does not count (any more). Says no more than that."""


class ForbiddenError(FumehoodError):
    """Known, but not allowed."""

    code = "forbidden"
    remedy = "use a key that may do this, or ask whoever made yours"


class NotFoundError(FumehoodError):
    """There is no such thing."""

    code = "not-found"
    remedy = "list what is there, and look for a misspelt name or another tenant's key"


class ConflictError(FumehoodError):
    """The same identity was used before for something else."""

    code = "conflict"
    remedy = "take another name or key for another thing, or send what was sent first"


class PayloadTooLargeError(FumehoodError):
    """The body passed its bound while it was read."""

    code = "payload-too-large"
    remedy = "send less at once; large content goes into a file of a sandbox"


# --- what this process can take ----------------------------------------------------------------------------


class OverloadedError(FumehoodError):
    """All slots and the short queue are taken: come back later."""

    code = "overloaded"
    retryable = True
    remedy = "come back later: `retry_after_seconds` says when"

    retry_after_seconds: int

    def __init__(self, detail: str, *, retry_after_seconds: int) -> None:
        super().__init__(detail)
        self.retry_after_seconds = retry_after_seconds


class DrainingError(OverloadedError):
    """This process is going away and takes no new work."""

    code = "draining"


class QuotaExceededError(OverloadedError):
    """The tenant uses all that it may: come back when some of that is over."""

    code = "quota-exceeded"
    remedy = "wait until something of yours has ended, or ask for a larger quota"


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
    remedy = "see which images the policy admits with `fumehood image check IMAGE`"
    evidence: Mapping[str, object] | None = None
    """What admission had found out when it said no; `None` where the error is not admission's."""


class InvalidReferenceError(ImageError):
    """The image reference does not parse."""

    code = "invalid-image-ref"
    remedy = "write it like registry.example.com/team/image:tag or …@sha256:…"


class ImageDeniedError(ImageError):
    """Policy says no. ``reason`` is one of the contract's denial reasons."""

    code = "image-denied"
    remedy = "`fumehood image check IMAGE` says which rule it was; use an admitted image, or change the policy"

    def __init__(self, detail: str, *, reason: str) -> None:
        super().__init__(detail)
        self.reason = reason


class PolicyDeniedError(FumehoodError):
    """Policy does not let anything run like this, whatever the image: as this user, with this network, or so large.

    ``reason`` is `user_not_allowed`, `network_not_allowed` or `limits_not_allowed`.
    """

    code = "policy-denied"
    remedy = "ask for less, or change the policy of the node: `reason` says which rule it was"

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
    remedy = "try again later; if it lasts, see whether the node reaches the registry"

    retry_after_seconds: int

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
    remedy = "see whether the registry has this digest and lets the node read it"


class ImagePullUnavailableError(ImagePullError):
    """The engine could not fetch an admitted image, and nobody said that it never will."""

    code = "image-pull-unavailable"
    retryable = True


class NoCommandError(ImageError):
    """Neither the image nor whoever asked says which program to run."""

    code = "no-command"
    remedy = "say what to run"


# --- sandboxes ---------------------------------------------------------------------------------------------


class SandboxError(FumehoodError):
    """A sandbox could not be made, or is not what was asked for."""

    code = "sandbox"
    remedy = "try again; `fumehood doctor` on the node says whether it can make sandboxes"


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
    """A sandbox ended without its supervisor's word: nothing is known about how its command ended. `detail` says that
    much unless something more is known.

    `engine_lost` tells that the engine went away under it, not only the sandbox.
    """

    code = "sandbox-lost"
    remedy = "nobody knows how far it came: look at what it has changed before you run it again"

    def __init__(
        self, detail: str = "the sandbox has ended; its memory may have been full", *, engine_lost: bool = False
    ) -> None:
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
    """A command failed. In the SDK, `reason` is how it ended and `result` the whole of its `CommandResult`; in a
    server, `reason` is one of the codes of the console's protocol."""

    code = "command-failed"
    remedy = "look at its output and its status"

    def __init__(self, reason: str, detail: str, *, result: Any = None) -> None:
        super().__init__(detail)
        self.reason = reason
        self.result = result


class SetupFailedError(CommandFailedError):
    """A command of a template's `setup` failed, and the sandbox was removed. `result` has its output."""

    code = "setup-failed"
    remedy = "correct the command: `result` has what it printed; the sandbox was removed"


# --- jobs and receipts -------------------------------------------------------------------------------------


class JobFailedError(FumehoodError):
    """A job could not be done. `reason` is a stable word for it; `again` says that another try may do."""

    code = "job-failed"
    remedy = "`reason` says why; submit it again where another try may do"

    def __init__(self, reason: str, detail: str, *, again: bool = False) -> None:
        super().__init__(detail)
        self.reason = reason
        self.again = again


class NoKeyListError(FumehoodError):
    """No list of keys is published, so that no receipt could be checked: jobs are not taken."""

    code = "no-key-list"
    remedy = "publish a list of receipt keys: `fumehood receipts init`"


class UnverifiedError(FumehoodError):
    """A receipt, a list of keys or an output is not what it says it is. `reason` is a stable word for why."""

    code = "unverified"
    remedy = "do not rely on it: `reason` says what does not hold"

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class CannotVerifyError(FumehoodError):
    """Nothing can be checked: no root is pinned, or there is no list of keys. That is no word about the receipt."""

    code = "cannot-verify"
    remedy = (
        "pin the root with `fumehood receipts fetch --root HEX`, or set FUMEHOOD_RECEIPT_ROOT; HEX is what "
        "`fumehood receipts init` told whoever runs the servers"
    )


# --- workflows ---------------------------------------------------------------------------------------------


class InvalidDefinitionError(InvalidRequestError):
    """A workflow definition that does not hold together. `problems` has one line for each thing that is wrong."""

    code = "invalid-definition"
    remedy = "correct what `problems` names; `fumehood workflow graph FILE` looks without a server"

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else ""))
        self.problems = tuple(problems)


class RunFailedError(FumehoodError):
    """A run or a job has ended otherwise than well. `reason` is its code or its status, `run` what it was."""

    code = "run-failed"
    remedy = "look at its steps and what they printed; `retry()` takes up a workflow's run where it failed"

    def __init__(self, reason: str, detail: str, *, run: Any = None) -> None:
        super().__init__(detail)
        self.reason = reason
        self.run = run


class LeaseLostError(ConflictError):
    """The task is somebody else's by now, or nobody's: its run was cancelled, its time ran out, or it was answered."""

    code = "lease-lost"
    remedy = "throw this answer away: the task is not yours any more"


class ArchivedError(ConflictError):
    """The run was archived: it can be read, and takes no orders any more."""

    code = "archived"
    remedy = "read it, or start another run"


# --- the broker --------------------------------------------------------------------------------------------


class BrokerError(FumehoodError):
    """The broker refused, or answered something that it should not have."""

    code = "broker"
    remedy = "look at the server's log, and at its broker"


class BrokerUnavailableError(BrokerError):
    """No answer in time. A write may have been stored all the same: repeat it under the same id."""

    code = "broker-unavailable"
    retryable = True
    remedy = "try again; it is safe under the same id"


class BrokerFullError(BrokerError):
    """A stream has reached its limit and refuses rather than forgets."""

    code = "broker-full"
    retryable = True
    remedy = "try again later, or give the stream more room"


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


# --- what a client finds -----------------------------------------------------------------------------------


class UnreachableError(FumehoodError):
    """No server answers at the address."""

    code = "unreachable"
    retryable = True
    remedy = "`fumehood dev` starts one here; url= or FUMEHOOD_URL names another one"


class UntrustedServerError(UnreachableError):
    """The server has a certificate that this machine does not trust."""

    code = "untrusted-server"
    retryable = False
    remedy = "those of an authority of your own are in the file that SSL_CERT_FILE names"


class NoAnswerError(FumehoodError):
    """The server was reached, and gave no whole answer. What was asked for may have been done all the same."""

    code = "no-answer"
    retryable = True
    remedy = "ask how it stands before you ask for it again"


class UnexpectedAnswerError(FumehoodError):
    """What answers at the address is no Fumehood server, or one that speaks otherwise."""

    code = "unexpected-answer"
    remedy = "look whether the address is right, and what stands between here and the server"


class ServerFaultError(FumehoodError):
    """The fault is the server's; its log tells more under the request's id."""

    code = "internal"


class RefusedError(FumehoodError):
    """The server said no for a reason that this version does not know; `code` and `detail` are its own words."""

    code = "refused"
    remedy = "read what it says; a client as new as the server knows more about it"


class ClientClosedError(FumehoodError):
    """The client was closed, and asks nothing any more."""

    code = "client-closed"
    remedy = "make another client, or close this one later"


class WaitTimeoutError(FumehoodError, TimeoutError):
    """It has not ended within the time that somebody wanted to wait. It goes on."""

    code = "wait-timeout"
    retryable = True
    remedy = "wait again, for longer, or end it"


class LimitExceededError(FumehoodError):
    """There is more of it than the caller wants to take."""

    code = "limit-exceeded"
    remedy = "say how much it may be, with the parameter that is named"


# --- what a client finds in sandboxes ----------------------------------------------------------------------


class InvalidPayloadError(InvalidRequestError):
    """The worker does not take what it was asked like this; `detail` says why."""

    code = "invalid-payload"


class UnsupportedCapabilityError(InvalidRequestError):
    """No worker does this kind of command."""

    code = "unsupported-capability"
    remedy = "start a worker that does: `fumehood worker --help`"


class SandboxGoneError(NotFoundError):
    """The caller has no such sandbox: it was removed, or its lease is over."""

    code = "session-not-found"
    remedy = "make another one; lease_seconds= and extend() let one live longer"


class CommandNotFoundError(NotFoundError):
    """The caller has no such command, or it was forgotten."""

    code = "command-not-found"
    remedy = "commands.list() shows those that are known"


class SandboxFileError(FumehoodError):
    """The file could not be read, written or removed; `detail` names why."""

    code = "file-error"
    remedy = "correct the path, or what stands in its way"


class SandboxFileNotFoundError(SandboxFileError, NotFoundError):
    """There is no such file in the sandbox."""

    code = "file-not-found"
    remedy = "files.list() shows what is there; paths begin at /workspace"


class IsFolderError(SandboxFileError):
    """A folder is where a file was asked for."""

    code = "path-is-directory"
    remedy = "files.list() shows what is in it, files.download() takes it all"


class FileTooLargeError(SandboxFileError):
    """The file is longer than may be read or written like this."""

    code = "file-too-large"
    remedy = "split it in the sandbox, and move the parts"


class SandboxBusyError(FumehoodError):
    """Another command has the sandbox for itself."""

    code = "session-busy"
    retryable = True
    remedy = "try again when that command has ended, or make another sandbox"


class ExecutionFailedError(FumehoodError):
    """The worker could not do it, or nothing is known of how it ended."""

    code = "execution-failed"
    remedy = "look at what it may have changed, and at the worker's log, before you ask again"


class ImageUnavailableError(ExecutionFailedError):
    """The worker cannot fetch the image: there is none, its registry does not answer, or the worker may not read it.
    Nothing was made."""

    code = "image-unavailable"
    remedy = "correct the image's name, or see that the worker reaches its registry and may read it"


class NoWorkerError(FumehoodError):
    """No worker that could do it is connected."""

    code = "no-worker"
    retryable = True
    remedy = "start one with `fumehood worker docker`, or use `fumehood dev`, which has one"


class NoCapacityError(FumehoodError):
    """All workers that could do it have as much as they take."""

    code = "no-capacity"
    retryable = True
    remedy = "try again when something has ended, or start more workers"


class WorkerLostError(FumehoodError):
    """Its worker is away, or went away and did not come back."""

    code = "worker-lost"
    retryable = True
    remedy = "try again in some seconds; a sandbox is gone when its worker stays away"


class WorkerReplacedError(WorkerLostError):
    """Another connection of its worker took over, and knows nothing of it."""

    code = "worker-replaced"


class CommandTimedOutError(FumehoodError):
    """It took longer than it was given, or was cancelled. Nothing of it runs any more."""

    code = "command-timed-out"
    remedy = "give it more time, or less to do"
