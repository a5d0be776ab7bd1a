"""Fumehood runs what agents write: untrusted code in locked-down containers, with results that can be checked.

    from fumehood import Sandbox

    with Sandbox.create("python:3.12-slim") as sb:
        print(sb.commands.run("python3 -c 'print(6 * 7)'").stdout)

The names exported here are the SDK's public surface; everything else may move between releases. They are loaded when
they are first asked for: the command line does not wait for a client of NATS, nor for the version.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str

    from fumehood.errors import (
        ArchivedError,
        CannotVerifyError,
        ClientClosedError,
        CommandFailedError,
        CommandNotFoundError,
        CommandTimedOutError,
        ConfigurationError,
        ConflictError,
        DrainingError,
        ExecutionFailedError,
        FileTooLargeError,
        ForbiddenError,
        FumehoodError,
        ImageDeniedError,
        ImageError,
        ImageUnavailableError,
        IndexUnavailableError,
        InvalidDefinitionError,
        InvalidPayloadError,
        InvalidRequestError,
        IsFolderError,
        JobFailedError,
        LeaseLostError,
        LimitExceededError,
        NoAnswerError,
        NoCapacityError,
        NoKeyListError,
        NotFoundError,
        NoWorkerError,
        OverloadedError,
        PayloadTooLargeError,
        PolicyDeniedError,
        QuotaExceededError,
        RefusedError,
        RunDeniedError,
        RunFailedError,
        SandboxBusyError,
        SandboxFileError,
        SandboxFileNotFoundError,
        SandboxGoneError,
        SandboxLostError,
        ServerFaultError,
        SetupFailedError,
        UnauthenticatedError,
        UnexpectedAnswerError,
        UnreachableError,
        UnsupportedCapabilityError,
        UntrustedServerError,
        UnverifiedError,
        WaitTimeoutError,
        WorkerLostError,
        WorkerReplacedError,
    )
    from fumehood.sdk.aio.client import AsyncClient
    from fumehood.sdk.aio.command import AsyncCommand
    from fumehood.sdk.aio.image_runs import AsyncImageRun
    from fumehood.sdk.aio.jobs import AsyncJob
    from fumehood.sdk.aio.pty import AsyncTerminal
    from fumehood.sdk.aio.python import AsyncPythonResult
    from fumehood.sdk.aio.receipts import AsyncReceipt
    from fumehood.sdk.aio.results import AsyncCommandResult
    from fumehood.sdk.aio.runs import AsyncRun
    from fumehood.sdk.aio.sandbox import AsyncSandbox
    from fumehood.sdk.blocking.client import Client
    from fumehood.sdk.blocking.command import Command
    from fumehood.sdk.blocking.image_runs import ImageRun
    from fumehood.sdk.blocking.jobs import Job
    from fumehood.sdk.blocking.pty import Terminal
    from fumehood.sdk.blocking.python import PythonResult
    from fumehood.sdk.blocking.receipts import Receipt
    from fumehood.sdk.blocking.results import CommandResult
    from fumehood.sdk.blocking.runs import Run
    from fumehood.sdk.blocking.sandbox import Sandbox
    from fumehood.sdk.expressions import Expression, cel
    from fumehood.sdk.file_values import FileChange, FileEvent, FileInfo, FileKind, Listing, Transfer
    from fumehood.sdk.job_values import Candidate, JobStatus, JobType, Verdict, VerdictOutcome
    from fumehood.sdk.run_values import (
        Failure,
        ImageRunSummary,
        LogPiece,
        RunEvent,
        RunLogs,
        RunStatus,
        RunStep,
        RunSummary,
        StepStatus,
        WorkflowVersion,
    )
    from fumehood.sdk.task import Continue, Pause, SyncTask, Task, TaskFailed
    from fumehood.sdk.template import Template
    from fumehood.sdk.values import CommandInfo, CommandStatus, Output, SandboxInfo
    from fumehood.sdk.verification import Verification
    from fumehood.sdk.worker import Worker
    from fumehood.sdk.workflow import Step, Workflow
    from fumehood.sdk.workflow_parts import Concurrency, ContinueAsNew, Errand, Retry

__all__ = [
    "ArchivedError",
    "AsyncClient",
    "AsyncCommand",
    "AsyncCommandResult",
    "AsyncImageRun",
    "AsyncJob",
    "AsyncPythonResult",
    "AsyncReceipt",
    "AsyncRun",
    "AsyncSandbox",
    "AsyncTerminal",
    "Candidate",
    "CannotVerifyError",
    "Client",
    "ClientClosedError",
    "Command",
    "CommandFailedError",
    "CommandInfo",
    "CommandNotFoundError",
    "CommandResult",
    "CommandStatus",
    "CommandTimedOutError",
    "Concurrency",
    "ConfigurationError",
    "ConflictError",
    "Continue",
    "ContinueAsNew",
    "DrainingError",
    "Errand",
    "ExecutionFailedError",
    "Expression",
    "Failure",
    "FileChange",
    "FileEvent",
    "FileInfo",
    "FileKind",
    "FileTooLargeError",
    "ForbiddenError",
    "FumehoodError",
    "ImageDeniedError",
    "ImageError",
    "ImageRun",
    "ImageRunSummary",
    "ImageUnavailableError",
    "IndexUnavailableError",
    "InvalidDefinitionError",
    "InvalidPayloadError",
    "InvalidRequestError",
    "IsFolderError",
    "Job",
    "JobFailedError",
    "JobStatus",
    "JobType",
    "LeaseLostError",
    "LimitExceededError",
    "Listing",
    "LogPiece",
    "NoAnswerError",
    "NoCapacityError",
    "NoKeyListError",
    "NoWorkerError",
    "NotFoundError",
    "Output",
    "OverloadedError",
    "Pause",
    "PayloadTooLargeError",
    "PolicyDeniedError",
    "PythonResult",
    "QuotaExceededError",
    "Receipt",
    "RefusedError",
    "Retry",
    "Run",
    "RunDeniedError",
    "RunEvent",
    "RunFailedError",
    "RunLogs",
    "RunStatus",
    "RunStep",
    "RunSummary",
    "Sandbox",
    "SandboxBusyError",
    "SandboxFileError",
    "SandboxFileNotFoundError",
    "SandboxGoneError",
    "SandboxInfo",
    "SandboxLostError",
    "ServerFaultError",
    "SetupFailedError",
    "Step",
    "StepStatus",
    "SyncTask",
    "Task",
    "TaskFailed",
    "Template",
    "Terminal",
    "Transfer",
    "UnauthenticatedError",
    "UnexpectedAnswerError",
    "UnreachableError",
    "UnsupportedCapabilityError",
    "UntrustedServerError",
    "UnverifiedError",
    "Verdict",
    "VerdictOutcome",
    "Verification",
    "WaitTimeoutError",
    "Worker",
    "WorkerLostError",
    "WorkerReplacedError",
    "Workflow",
    "WorkflowVersion",
    "__version__",
    "cel",
]

_PLACES = {
    "fumehood.errors": (
        "ArchivedError",
        "CannotVerifyError",
        "ClientClosedError",
        "CommandFailedError",
        "CommandNotFoundError",
        "CommandTimedOutError",
        "ConfigurationError",
        "ConflictError",
        "DrainingError",
        "ExecutionFailedError",
        "FileTooLargeError",
        "ForbiddenError",
        "FumehoodError",
        "ImageDeniedError",
        "ImageError",
        "ImageUnavailableError",
        "IndexUnavailableError",
        "InvalidDefinitionError",
        "InvalidPayloadError",
        "InvalidRequestError",
        "IsFolderError",
        "JobFailedError",
        "LeaseLostError",
        "LimitExceededError",
        "NoAnswerError",
        "NoCapacityError",
        "NoKeyListError",
        "NoWorkerError",
        "NotFoundError",
        "OverloadedError",
        "PayloadTooLargeError",
        "PolicyDeniedError",
        "QuotaExceededError",
        "RefusedError",
        "RunDeniedError",
        "RunFailedError",
        "SandboxBusyError",
        "SandboxFileError",
        "SandboxFileNotFoundError",
        "SandboxGoneError",
        "SandboxLostError",
        "ServerFaultError",
        "SetupFailedError",
        "UnauthenticatedError",
        "UnexpectedAnswerError",
        "UnreachableError",
        "UnsupportedCapabilityError",
        "UntrustedServerError",
        "UnverifiedError",
        "WaitTimeoutError",
        "WorkerLostError",
        "WorkerReplacedError",
    ),
    "fumehood.sdk.aio.client": ("AsyncClient",),
    "fumehood.sdk.aio.command": ("AsyncCommand",),
    "fumehood.sdk.aio.image_runs": ("AsyncImageRun",),
    "fumehood.sdk.aio.jobs": ("AsyncJob",),
    "fumehood.sdk.aio.pty": ("AsyncTerminal",),
    "fumehood.sdk.aio.python": ("AsyncPythonResult",),
    "fumehood.sdk.aio.receipts": ("AsyncReceipt",),
    "fumehood.sdk.aio.results": ("AsyncCommandResult",),
    "fumehood.sdk.aio.runs": ("AsyncRun",),
    "fumehood.sdk.aio.sandbox": ("AsyncSandbox",),
    "fumehood.sdk.blocking.client": ("Client",),
    "fumehood.sdk.blocking.command": ("Command",),
    "fumehood.sdk.blocking.image_runs": ("ImageRun",),
    "fumehood.sdk.blocking.jobs": ("Job",),
    "fumehood.sdk.blocking.pty": ("Terminal",),
    "fumehood.sdk.blocking.python": ("PythonResult",),
    "fumehood.sdk.blocking.receipts": ("Receipt",),
    "fumehood.sdk.blocking.results": ("CommandResult",),
    "fumehood.sdk.blocking.runs": ("Run",),
    "fumehood.sdk.blocking.sandbox": ("Sandbox",),
    "fumehood.sdk.expressions": ("Expression", "cel"),
    "fumehood.sdk.job_values": ("Candidate", "JobStatus", "JobType", "Verdict", "VerdictOutcome"),
    "fumehood.sdk.run_values": (
        "Failure",
        "ImageRunSummary",
        "LogPiece",
        "RunEvent",
        "RunLogs",
        "RunStatus",
        "RunStep",
        "RunSummary",
        "StepStatus",
        "WorkflowVersion",
    ),
    "fumehood.sdk.task": ("Continue", "Pause", "SyncTask", "Task", "TaskFailed"),
    "fumehood.sdk.template": ("Template",),
    "fumehood.sdk.file_values": ("FileChange", "FileEvent", "FileInfo", "FileKind", "Listing", "Transfer"),
    "fumehood.sdk.values": ("CommandInfo", "CommandStatus", "Output", "SandboxInfo"),
    "fumehood.sdk.verification": ("Verification",),
    "fumehood.sdk.worker": ("Worker",),
    "fumehood.sdk.workflow": ("Step", "Workflow"),
    "fumehood.sdk.workflow_parts": ("Concurrency", "ContinueAsNew", "Errand", "Retry"),
}
_HOMES = {name: home for home, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        found = import_module("importlib.metadata").version("fumehood")
    elif name in _HOMES:
        found = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
