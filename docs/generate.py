"""Writes docs/reference/ from the code, and docs/explanation/speed.md from the newest records of the bench:
`python docs/generate.py`, and with `--check` only says what is stale.

What can be read off the code is never written by hand. `tests/examples/test_docs.py` fails while the committed pages
differ from what this makes.
"""

from __future__ import annotations

import ast
import dataclasses
import datetime as dt
import errno
import functools
import json
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer.main

from fumehood.cli.main import app
from fumehood.cli.parts import PARTS, loaded
from fumehood.control import telemetry as control_telemetry
from fumehood.control.decider import Counters
from fumehood.control.jobs import definition
from fumehood.door import problems
from fumehood.errors import (
    ConfigurationError,
    FileOperationError,
    FumehoodError,
    ImageError,
    SandboxError,
)
from fumehood.jobs.registry import AnyType, Registry
from fumehood.jobs.schemas import describe
from fumehood.node import result
from fumehood.node.jobs.sandbox import executor
from fumehood.node.telemetry import Metrics
from fumehood.sandbox import spec
from fumehood.sandbox.docker import plan, seccomp
from fumehood.sandbox.spec import End, Limits, Outcome, Stage
from fumehood.settings import (
    CONFIG_VARIABLE,
    ClientSettings,
    NodeSettings,
    ProviderSettings,
    RegistryCredentials,
    ServerSettings,
    WorkerSettings,
    variables,
)
from fumehood.wire import worker_api
from fumehood.wire.console.codes import RETRYABLE, Reason
from fumehood.wire.job_api import JobStatus, VerdictOutcome
from fumehood.wire.problem import problem_type

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"

if str(ROOT) not in sys.path:  # as a script it sees only its own folder
    sys.path.insert(0, str(ROOT))

from docs import events_page, grpc_page, sdk_page, speed_page  # noqa: E402
from docs.writing import attribute_docs, code, first_paragraph, page, prose, table  # noqa: E402

SETTINGS_HEAD = ["setting", "variable", "type", "default", "bounds", "what and why"]

# --- settings ----------------------------------------------------------------------------------------------


def settings_rows(kind: type[Any]) -> list[list[str]]:
    hints, docs = get_type_hints(kind), attribute_docs(kind)
    by_name = {name: code(variable) for variable, name in variables(kind).items()}
    return [
        [
            code(item.name),
            by_name.get(item.name, ""),
            _kind(hints[item.name]),
            _default(item),
            _bounds(item),
            docs[item.name],
        ]
        for item in dataclasses.fields(kind)
        if not item.metadata.get("derived")
    ]


def settings_page() -> str:
    registry_docs = attribute_docs(RegistryCredentials)
    registry_hints = get_type_hints(RegistryCredentials)
    registry_rows = [
        [
            code(item.name),
            _kind(registry_hints[item.name]),
            registry_docs.get(item.name, "")
            or {
                "host": "The registry as it stands in image references, with its port. Needed.",
                "username": "Together with `password_file`, or not at all.",
                "password_file": "A file that holds only the password.",
            }[item.name],
        ]
        for item in dataclasses.fields(RegistryCredentials)
    ]
    return page(
        "Settings",
        prose(
            f"""
            A value comes from, in falling order: a flag of the command line, a variable, the TOML file
            (`--config`, or the file that {code(CONFIG_VARIABLE)} names), the default. A name that nobody knows
            is an error in all of them. The unit is the end of the name: `_seconds`, `_mib`, `_bytes`, `_millis`
            (thousandths of a core).
            """
        ),
        prose(
            """
            Names that the server and the node share (`host`, `port`, `insecure` …) mean the same in both; each process
            passes over the names that only the other one has, so that one file may serve a machine with both.
            """
        ),
        "## Server",
        table(SETTINGS_HEAD, settings_rows(ServerSettings)),
        "## Node",
        table(SETTINGS_HEAD, settings_rows(NodeSettings)),
        "## Worker of the console",
        prose(
            """
            For `fumehood worker docker`. Their variables are those of the contract, and so is the unit `_sec`. Others
            may have variables that begin with `WORKER_`: one that nobody knows is no error, and told at the start.
            """
        ),
        table(SETTINGS_HEAD, settings_rows(WorkerSettings)),
        "## Provider of jobs",
        prose(
            """
            For `fumehood worker jobs`. What others have, too, has the name that it has there. A variable that begins
            with `PROVIDER_` and that nobody knows is no error, and told at the start.
            """
        ),
        table(SETTINGS_HEAD, settings_rows(ProviderSettings)),
        "## Command line",
        prose("For the commands that speak to a server."),
        table(SETTINGS_HEAD, settings_rows(ClientSettings)),
        "## `[[registries]]`",
        "Credentials, one table for each registry, in the TOML file only.",
        table(["key", "type", "what"], registry_rows),
        "## Fixed",
        "Not settings: these bounds of a sandbox are the same on every node.",
        table(["bound", "value"], _fixed()),
    )


def _fixed() -> list[list[str]]:
    limits = Limits()
    return [
        ["open files of each process", str(limits.open_files)],
        [
            "files and folders in `/workspace` and in `/tmp`, each",
            f"{limits.workspace_inodes:,} on runc; gVisor does not count them: there memory is the bound",
        ],
        ["largest single file", "`workspace_mib`"],
        ["`/dev/shm`", f"{limits.shm_bytes // spec.MIB} MiB"],
        ["each volume that the image declares", f"{plan.IMAGE_VOLUME_BYTES // spec.MIB} MiB, in memory"],
        ["PIDs beyond `pids` on gVisor, for its own threads", str(plan.OWN_KERNEL_THREADS)],
        ["core dumps", "0 bytes"],
        ["network, where none is asked for", "its own loopback ([others](../explanation/networks.md))"],
        ["user of a program", f"{spec.SANDBOX_USER.uid}:{spec.SANDBOX_USER.gid}, unless `run_as` says `image`"],
        ["user of the warden", str(spec.WARDEN_UID)],
    ]


def _kind(hint: Any) -> str:
    options = [part for part in get_args(hint) if part is not types.NoneType]
    if types.NoneType in get_args(hint):
        hint = options[0]
    if get_origin(hint) is Literal:
        return " or ".join(code(value) for value in get_args(hint))
    names: dict[Any, str] = {int: "integer", float: "number", bool: "true/false", str: "text", Path: "path"}
    names[tuple[str, ...]] = "list of texts"
    return names.get(hint, "list of tables")


def _default(item: dataclasses.Field[Any]) -> str:
    if item.default is None:
        return "none"
    if item.default == ():
        return "none"
    if isinstance(item.default, bool):
        return code(str(item.default).lower())
    if isinstance(item.default, tuple):
        return ", ".join(code(part) for part in item.default)
    return code(item.default)


def _bounds(item: dataclasses.Field[Any]) -> str:
    if "low" not in item.metadata:
        return ""
    return f"{item.metadata['low']:,} to {item.metadata['high']:,}"


# --- errors ------------------------------------------------------------------------------------------------


LATER = (FileOperationError,)
"""Errors of parts that this version does not open to anybody yet."""


def errors_page() -> str:
    found = {kind for kind in _subclasses(FumehoodError) if not issubclass(kind, LATER)} - {ImageError}
    answered = sorted((kind for kind in found if kind.code in problems.KINDS), key=lambda k: (_status(k.code), k.code))
    others = sorted((kind for kind in found if kind.code not in problems.KINDS), key=lambda kind: kind.code)
    extra = sorted(set(problems.KINDS) - {kind.code for kind in answered})
    rows = [[code(k.code), *_answer(k.code), _yes(k.retryable), first_paragraph(k.__doc__), k.remedy] for k in answered]
    rows += [[code(name), *_answer(name), *_of_a_command(name), ""] for name in extra]
    rows.sort(key=lambda row: (row[1], row[0], row[-2]))
    return page(
        "Errors",
        prose(
            """
            Every error has a stable code. *Retryable* means that the very same request, `job_id` included, may be
            sent again and may succeed then; the job never runs twice by that.
            """
        ),
        "## Answers over HTTP",
        prose(
            f"""
            Error bodies are RFC 9457 problem documents (`application/problem+json`): `type`, which is
            {code(problem_type(""))} and the code, `version`, `title`, `status`, `detail` and `instance`, which is
            the request id that stands in `X-Request-Id` and in the log. Answers with 503 have a `Retry-After`.
            `invalid-definition` has one member more, `problems`: a list with one text for each thing that is wrong.
            What is about a worker's command or a sandbox has two: `code`, which is the reason as workers and commands
            that failed have it (`session_not_found`), and `retryable`.
            """
        ),
        table(["code", "status", "title", "retryable", "meaning", "what to do"], rows),
        "## Errors that become something else",
        prose(
            """
            These have no status of their own. About an image or a sandbox they become the end of a job, which is
            answered with 200: *how* names the exit code and the header `Fumehood-Exit-Reason` (see
            [outcomes](outcomes.md)). A fault on our side is answered with 500 and the title "Internal error"; the
            same request may be sent again. The codes stand in the log.
            """
        ),
        table(["code", "how", "meaning"], [[code(k.code), _fate(k), first_paragraph(k.__doc__)] for k in others]),
    )


COMMANDS = {
    Reason.INVALID_PAYLOAD: "The worker does not take what it was asked like this; `detail` says why.",
    Reason.UNSUPPORTED_CAPABILITY: "No worker does this kind of command.",
    Reason.DEADLINE_EXCEEDED: "It took longer than it was given, or was cancelled. Nothing of it runs any more.",
    Reason.EXECUTION_FAILED: "The worker could not do it, or nothing is known of how it ended.",
    Reason.NO_WORKER: "No worker that could do it is connected.",
    Reason.NO_CAPACITY: "All workers that could do it have as much as they take.",
    Reason.WORKER_LOST: "Its worker is away, or went away and did not come back.",
    Reason.WORKER_REPLACED: "Another connection of its worker took over, and knows nothing of it.",
    Reason.SESSION_NOT_FOUND: "The caller has no such sandbox: it was removed, or its lease is over.",
    Reason.SESSION_BUSY: "Another command has the sandbox for itself.",
    Reason.COMMAND_NOT_FOUND: "The caller has no such command, or it was forgotten.",
    Reason.FILE_NOT_FOUND: "There is no such file in the sandbox.",
    Reason.PATH_IS_DIRECTORY: "A folder is where a file was asked for.",
    Reason.FILE_TOO_LARGE: "The file is longer than may be read or written like this.",
    Reason.FILE_ERROR: "The file could not be read, written or removed for another reason; `detail` names it.",
}


def _of_a_command(name: str) -> list[str]:
    """Whether it may be tried again, and what it means: a reason of the console's protocol, or the framework's own."""
    for reason, told in problems.REASONS.items():
        if told == name:
            return [_yes(reason in RETRYABLE), COMMANDS[Reason(reason)]]
    return ["no", "The path exists, with other methods."]


FATES = {
    "sandbox": "failed job, 125, `not_started`; in a check of the node's own, what `/readyz` says",
    "sandbox-lost": "failed job, 137, `sandbox_lost` or `node_lost`",
    "sandbox-not-found": "failed job, 137, `node_lost`",
    "warden-protocol": "tried again; then failed job, 137, `sandbox_lost`",
    "command-refused": "tried again; then failed job, 137, `sandbox_lost`",
    "command-failed": "the answer of its reason, above; of a command that was submitted, its `error`",
    "job-failed": "`error` of a candidate in a [verdict](outcomes.md#why-an-execution-gave-nothing)",
    **dict.fromkeys(
        (
            "cannot-verify",
            "client-closed",
            "internal",
            "limit-exceeded",
            "no-answer",
            "refused",
            "run-failed",
            "setup-failed",
            "unexpected-answer",
            "unreachable",
            "untrusted-server",
            "wait-timeout",
        ),
        "raised by the [SDK](sdk.md#errors), where a program asks a server",
    ),
    "unverified": "`rejected` of a candidate in a [verdict](outcomes.md#why-an-answer-does-not-count), or a refusal of "
    "`fumehood verify`",
}


def _fate(kind: type[FumehoodError]) -> str:
    if kind.code in FATES:
        return FATES[kind.code]
    if issubclass(kind, ConfigurationError):
        return "the command ends with exit code 2"
    if kind.code in ("journal-conflict", "key-conflict"):
        return "read again and tried again, by itself"
    if issubclass(kind, ImageError | SandboxError):
        return "failed job, 125, `not_started`"
    return "500"


def _answer(name: str) -> tuple[str, str]:
    return str(problems.KINDS[name].status), problems.KINDS[name].title


def _status(name: str) -> int:
    return problems.problem(name, "", "x").status_code


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _subclasses(kind: type[FumehoodError]) -> Iterator[type[FumehoodError]]:
    for sub in kind.__subclasses__():
        if sub.__module__ in ("fumehood.errors", problems.__name__):  # others never leave their package
            yield sub
            yield from _subclasses(sub)


# --- outcomes ----------------------------------------------------------------------------------------------


def outcomes_page() -> str:
    reasons = attribute_docs(worker_api.ExitReason)
    listed = [[code(reason.value), reasons[reason.name]] for reason in worker_api.ExitReason]
    return page(
        "How jobs end",
        prose(
            """
            `status`, `exit_code` and the header `Fumehood-Exit-Reason`, for every way in which a job can end.
            The rows are made by the function that makes the answers.
            """
        ),
        table(["what happened", "`status`", "`exit_code`", "`Fumehood-Exit-Reason`"], _ends()),
        "## Reasons",
        "The header is there only where status and exit code do not say it all.",
        table(["reason", "meaning"], listed),
        "## A program that returns the same number",
        prose(
            """
            125, 126, 127 and 137 are also numbers that a program may return by itself. The header tells them
            apart: with `not_started` the program never ran; with `signal`, `oom`, `node_lost` or `sandbox_lost`
            something ended it; without the header the number is the program's own.
            """
        ),
        *_verified_jobs(),
    )


def _ends() -> list[list[str]]:
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)

    def outcome(end: End, **more: Any) -> Outcome:
        return Outcome(end, started_at=now, ended_at=now, **more)

    def not_started(stage: Stage, number: int) -> Outcome:
        return outcome(End.NOT_STARTED, stage=stage, errno=number)

    cases: list[tuple[str, Outcome]] = [
        ("the program returned 0", outcome(End.EXITED, exit_code=0)),
        ("the program returned another number, say 3", outcome(End.EXITED, exit_code=3)),
        ("a signal ended the program, say SIGTERM (15)", outcome(End.SIGNALED, signal=15)),
        ("the deadline passed", outcome(End.TIMED_OUT)),
        ("the kernel killed it for its memory", outcome(End.OOM)),
        ("there is no such program", not_started(Stage.EXEC, errno.ENOENT)),
        ("the file is not executable", not_started(Stage.EXEC, errno.EACCES)),
        ("the program could not be set up: no process, user or working directory", not_started(Stage.FORK, 11)),
        ("the sandbox ended before the warden could say how the program did", outcome(End.SANDBOX_LOST)),
    ]
    rows = [[what, *_said(result.verdict(ended))] for what, ended in cases]
    refused = ["the image was denied or could not be fetched, or the engine refused to start it"]
    lost = ["the engine or the machine went away under the job, or the node did and nothing was left to attach to"]
    rows.append([*refused, "`failed`", code(result.CANNOT_START), code(worker_api.ExitReason.NOT_STARTED)])
    rows.append([*lost, "`failed`", code(result.KILLED), code(worker_api.ExitReason.NODE_LOST)])
    return rows


def _said(verdict: result.Verdict) -> list[str]:
    number = "absent" if verdict.exit_code is None else code(verdict.exit_code)
    return [code(verdict.status), number, code(verdict.reason) if verdict.reason else "absent"]


JOB_STATUSES = {
    JobStatus.QUEUED: "No provider has begun it.",
    JobStatus.RUNNING: "One has, or its verdict is being made.",
    JobStatus.SUCCEEDED: "There is a `result`, decided on as the request wanted. What it says may well be a failure.",
    JobStatus.DISPUTED: "Its providers disagree; all that they said is in the verdict. There is no `result`.",
    JobStatus.FAILED: "Nothing could be decided; `error` says why.",
    JobStatus.TIMED_OUT: "It took longer than all its tries may take together.",
    JobStatus.CANCELLED: "Somebody cancelled it.",
}
VERDICTS = {
    VerdictOutcome.SINGLE: "One execution was asked for: believed as far as its receipt goes.",
    VerdictOutcome.MAJORITY: "More than half of the executions that were asked for declare the same.",
    VerdictOutcome.JUDGED: "A judge, who saw the answers without names, chose this one.",
    VerdictOutcome.MERGED: "Made of all answers by a rule of the type. Signed by nobody; `verify` computes it again.",
    VerdictOutcome.NO_MAJORITY: "All answered, and nobody has a majority: the job is `disputed`.",
    VerdictOutcome.ERROR: "Nothing could be decided: the job is `failed`.",
}
JOB_ERRORS = {
    "too_few_workers": "An execution was begun by nobody in time: there are fewer distinct providers with room than "
    "the job wants. The others decide nothing among themselves.",
    "too_few_answers": "Executions failed for good, and what is left is no majority, or not all that a judge or a "
    "merge must see.",
    "no_valid_answer": "There were answers, and none has a receipt that holds.",
    "judge_failed": "No judge began in time, or what it said does not hold; the message says which.",
    "merge_failed": "The rule of the type could not merge these answers.",
}
REJECTED = {
    "unknown_key": "The key that signed it is not on the list: its provider was not enrolled.",
    "revoked_key": "The key was revoked; the message has the reason.",
    "key_not_valid_then": "The key was not listed yet, or was retired, at the time that the receipt says.",
    "wrong_worker": "The key is listed for another worker than the receipt names.",
    "signature_invalid": "The signature does not match the content.",
    "weak_key": "A signature of such a key would fit other texts too.",
    "malformed": "It is no receipt of ours.",
    "task_mismatch": "The receipt is of another job, execution or attempt: an old answer sent again.",
    "request_mismatch": "The receipt is of another request.",
    "output_mismatch": "The answer is not the one that was signed.",
    "not_an_answer": "What came is no answer of a provider, does not fit its type, or holds what the request does not "
    "allow.",
    "set_aside": "Its provider was set aside by then.",
    "not_distinct": "Another answer is by the same worker, or under the same key: neither counts.",
}
"""Words of a candidate's `rejected`, and of `fumehood verify`."""
REFUSED = {
    "wrong_root": "The list of keys is by another root than the pinned one.",
    "older_list": "The list of keys is older than the one that is there.",
    "no_key_list": "A server finds no list of keys any more; in its log.",
    "no_such_output": "No output of that name was signed.",
    "no_receipt": "An answer counts, or a judge decided, and no receipt of that is shown.",
    "no_verdict": "The job has not ended, or ended without a verdict.",
    "no_result": "The receipts hold, and the job has no result: nothing was decided.",
    "verdict_mismatch": "The verdict does not follow from the receipts, or is not of what was asked.",
    "result_mismatch": "The result is not the answer that was chosen, or not what the answers are merged to.",
}
"""Words of `fumehood verify` and `fumehood receipts` alone."""
EXECUTIONS = {
    "analysis_failed": "The local analysis died, took too long or answered out of form.",
    "artifacts_unread": "The artifacts could not be read in time.",
    "bundle_unavailable": "What was uploaded could not be read now.",
    "engine_unavailable": "The container engine does not answer, or does not let go of a sandbox.",
    "git_unavailable": "Git could not be started on the provider's machine.",
    "image_unavailable": "The image could not be fetched, and nobody said that it never will.",
    "input_too_large": "Longer than the provider sends to its model, or than the model takes.",
    "invalid_request": "What a judge was to judge is no request of its type.",
    "model_answer_invalid": "The model's answer was no use, twice.",
    "model_not_found": "No such model; of a judge, another one than was asked for.",
    "model_refused": "The model, or a filter before it, said no.",
    "model_request_invalid": "The model service takes our request in no form.",
    "model_unauthorised": "The model service refuses the provider's key.",
    "model_unavailable": "The model service does not answer, or says that it cannot now.",
    "not_served": "The provider does not do this type (any more).",
    "other_judge": "This judge is not the `judge_model` that was asked for.",
    "provider_error": "The provider itself failed; its log has the rest.",
    "repo_unavailable": "The git server did not give the repository in time.",
    "repo_unreadable": "Git broke off while it read the repository.",
    "request_mismatch": "The provider reads another request than was hashed: its version of the type is another.",
    "response_too_large": "The response is larger than one may be.",
    "sandbox_lost": "The sandbox ended, and nothing is known of its commands.",
    "sandbox_start_failed": "The engine refused to start the sandbox.",
    "unreadable_task": "The provider cannot read what it was given: its version of the type is another.",
}
"""Words of providers, in the `error` of a candidate without an answer."""
OF_EVERY_STEP = [
    ["`not_started`", "no", "No provider began it within `job_wait_seconds`."],
    ["`timeout`", "no", "It took longer than its type gives it."],
    ["`node_lost`", "yes", "Its provider fell silent. Another one does it."],
    ["`lease_expired`", "yes", "Five providers took it, and none answered."],
]


def _verified_jobs() -> Iterator[str]:
    """How jobs of `/v1/jobs` end. Every word that the code has is here, and no other."""
    unverified, failed = _words_of("UnverifiedError"), _words_of("JobFailedError")
    for told, found in (
        (JOB_ERRORS, {reason for module, reason in _keywords("reason") if module == "adjudication"}),
        (REJECTED | REFUSED, unverified.keys()),
        (EXECUTIONS, failed.keys()),
    ):
        assert told.keys() == found, f"words without a line here, or lines without a word: {told.keys() ^ found}"
    again = {word: " or ".join(sorted(map(_yes, tries))) for word, tries in failed.items()}
    yield "## Verified jobs"
    yield prose(
        """
        Of jobs that are [submitted to a server](../howto/submit-jobs.md), `/v1/jobs`. They have a status, a verdict
        with an outcome, and for each execution a candidate in it. All these words are stable.
        """
    )
    yield table(["`status`", "meaning"], [[code(one.value), JOB_STATUSES[one]] for one in JobStatus])
    yield table(["`verdict.outcome`", "meaning"], [[code(one.value), VERDICTS[one]] for one in VerdictOutcome])
    yield "### Errors of a job"
    yield prose(
        """
        `error.code` of a job that failed. One that was cancelled or timed out has `cancelled` or `deadline`. A verdict
        that no server could make, however often, is `no_verdict`: a fault of ours, and in the log.
        """
    )
    yield table(["`error.code`", "meaning"], [[code(word), said] for word, said in JOB_ERRORS.items()])
    yield "### Why an answer does not count"
    yield prose(
        """
        `rejected` of a candidate, and the word in parentheses where `fumehood verify` refuses something. The last ones
        are said by `fumehood verify` and `fumehood receipts` alone.
        """
    )
    rows = [[code(word), "yes", said] for word, said in REJECTED.items()]
    rows += [[code(word), "no", said] for word, said in REFUSED.items()]
    yield table(["word", "in a verdict", "meaning"], rows)
    yield "### Why an execution gave nothing"
    yield prose(
        f"""
        `error.code` of a candidate that is neither accepted nor rejected. *Again*: it is done once more by a provider
        that may have it, {definition.ATTEMPTS} times in all; then it has failed for good. Types of your own may have
        words of their own.
        """
    )
    yield table(
        ["`error.code`", "again", "meaning"],
        [*OF_EVERY_STEP, *([code(word), again[word], said] for word, said in EXECUTIONS.items())],
    )


def _words_of(error: str) -> dict[str, set[bool]]:
    """The reasons that the code gives an error, or writes down where it would stand; each with whether another try may
    do."""
    found: dict[str, set[bool]] = {}
    for path, tree in _modules():
        constants = {ast.unparse(one.targets[0]): one.value for one in tree.body if isinstance(one, ast.Assign)}
        for node in ast.walk(tree):
            given = _reason(node, error, path)
            word = constants.get(given.id) if isinstance(given, ast.Name) else given
            if isinstance(word, ast.Constant):
                found.setdefault(str(word.value), set()).add("again=True" in ast.unparse(node))
    if error == "JobFailedError":
        return found | {reason: {True} for _, reason in executor._REASONS}
    return found | {word: {False} for module, word in _keywords("rejected") if module == "adjudication"}


PLACES = {
    ("JobFailedError", "JobFailedError"): 0,
    ("JobFailedError", "node/jobs: _failure"): 0,
    ("UnverifiedError", "UnverifiedError"): 0,
    ("UnverifiedError", "cli: RefusedError"): 0,
    ("UnverifiedError", "control/jobs: _rejected"): 1,
    ("UnverifiedError", "verify: words"): 1,
}
"""Which argument of a call, or part of a tuple, is a reason."""


def _reason(node: ast.AST, error: str, path: Path) -> ast.expr | None:
    """Where a reason stands in a piece of code, if it does."""
    parts: list[ast.expr] = []
    name = ""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        name, parts = node.func.id, node.args
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
        name, parts = ast.unparse(node.targets[0]), node.value.elts
    if not name:
        return None
    folder = path.parent.relative_to(ROOT / "src/fumehood").as_posix()
    at = PLACES.get((error, name), PLACES.get((error, f"{folder}: {name}")))
    return parts[at] if at is not None and at < len(parts) else None


def _keywords(name: str) -> Iterator[tuple[str, str]]:
    """Texts that are given under a name, with the modules where."""
    for path, tree in _modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg == name:
                yield from ((path.stem, text) for text in _texts(node.value))


def _texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@functools.cache
def _modules() -> list[tuple[Path, ast.Module]]:
    files = sorted((ROOT / "src/fumehood").rglob("*.py"))
    return [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in files]


# --- command line ------------------------------------------------------------------------------------------


def cli_page() -> str:
    parts = [_command("fumehood", typer.main.get_command(app))]
    for name in PARTS:
        parts += _commands(f"fumehood {name}", loaded(name))
    return page(
        "Command line",
        prose(
            """
            Exit codes: 0 success; 1 what was asked for did not come out: the server said no, a run that was waited
            for did not succeed, or `doctor` found that a node could not run jobs here; 2 wrong usage or a
            configuration error; 3 no server answered, or it said to come later. One line on stderr says which. A
            node that is told twice to stop and a `watch` that is interrupted exit with 130. `dev` ends as the first of
            its processes that ended by itself, with 128 and the number of a signal that killed it.
            """
        ),
        prose(
            """
            [Settings](settings.md) that have no option come from `FUMEHOOD_*` variables, for `dev` and `doctor` as
            for `server` and `node`. `fumehood --install-completion` and `--show-completion` are for the completion
            of words in your shell.
            """
        ),
        prose("Every command that speaks to a server ([how to](../howto/use-the-command-line.md)) has these, too:"),
        table(["option", "what"], [[names, what] for names, _, what in map(_option, _common())]),
        *parts,
    )


def _common() -> list[Any]:
    return [option for option in loaded("workflow").commands["ls"].params if option.name in COMMON]


COMMON = ("server", "key_file", "insecure_http", "as_json")


def _commands(name: str, command: Any) -> Iterator[str]:
    if not hasattr(command, "commands"):
        yield _command(name, command)
        return
    if command.invoke_without_command:
        yield _command(name, command)
    for inner, one in command.commands.items():
        yield _command(f"{name} {inner}", one)


def _command(name: str, command: Any) -> str:
    remote = {option.name for option in command.params} >= set(COMMON)
    rows = [_option(option) for option in command.params if not (remote and option.name in COMMON)]
    rows = [row for row in rows if not row[0].startswith(("`--install-", "`--show-"))]
    lines = [f"## `{name}`", first_paragraph(command.help)]
    return "\n\n".join([*lines, *([table(["option", "default", "what"], rows)] if rows else [])])


def _option(option: Any) -> list[str]:
    if option.param_type_name == "argument":
        return [
            code(option.metavar or option.name),
            "" if option.required else "may be left out",
            str(option.help or ""),
        ]
    names = ", ".join(code(text) for text in (*option.opts, *option.secondary_opts))
    default = option.default
    shown = "" if default in (None, False, "") or callable(default) else code(default)
    return [names, shown, str(getattr(option, "help", "") or "")]


# --- HTTP --------------------------------------------------------------------------------------------------


def http_page() -> str:
    document: dict[str, Any] = json.loads((ROOT / "contracts/openapi/worker-api.json").read_text(encoding="utf-8"))
    schemas = document["components"]["schemas"]
    parts = [_operation(path, method, what) for path, ops in document["paths"].items() for method, what in ops.items()]
    models = [_model(name, schemas) for name in sorted(schemas) if "properties" in schemas[name]]
    return page(
        "Worker API",
        prose(
            f"""
            {document["info"]["description"]} The source of this page is
            [`contracts/openapi/worker-api.json`](../../contracts/openapi/worker-api.json); JSON Schemas of the
            bodies are in [`contracts/schemas/`](../../contracts/schemas), examples in
            [`contracts/golden/`](../../contracts/golden/worker-api).
            """
        ),
        prose(
            """
            Requests carry `Authorization: Bearer TOKEN`, but for `/healthz` and `/readyz`, and for `/metrics`
            where the node listens on a loopback address. Paths that do not exist need the token too. The node
            serves the OpenAPI document at `/openapi.json`.
            """
        ),
        *parts,
        "## The same request again",
        prose(
            """
            `job_id` is a job's identity for as long as its answer is kept (`result_retention_seconds`, a day). The
            same request again joins the job while it runs and gets the stored answer after that; another request
            under the same id is 409. Two requests are the same when they say the same: white space, the order of
            keys, the case of the ids and defaults that are written out make no difference; everything else does,
            `task_id`, a timeout that only spells out the node's default, and the order of arguments included.
            """
        ),
        "## Bodies",
        prose(
            """
            JSON in UTF-8. Unknown fields are refused, and so are the same key twice, `NaN` and half a surrogate
            pair. Nothing is guessed into another type: `"1"` is not 1, and `null` is not absent. Times are RFC 3339
            in UTC with milliseconds. They are the warden's, that is of the clock of the node's machine, and tell
            when the program began and ended, not when the request did.
            """
        ),
        *models,
    )


def api_page() -> str:
    document: dict[str, Any] = json.loads((ROOT / "contracts/openapi/server.json").read_text(encoding="utf-8"))
    schemas = document["components"]["schemas"]
    parts = [_brief(path, method, what) for path, ops in document["paths"].items() for method, what in ops.items()]
    models = [_model(name, schemas) for name in sorted(schemas) if "properties" in schemas[name]]
    return page(
        "Server API",
        prose(
            f"""
            {document["info"]["description"]} The source of this page is
            [`contracts/openapi/server.json`](../../contracts/openapi/server.json); the schema of definitions alone is
            [`contracts/schemas/workflow-definition.json`](../../contracts/schemas/workflow-definition.json).
            """
        ),
        prose(
            """
            Requests carry `Authorization: Bearer TOKEN`: the workers' token for `/v1/workers/` and `/v1/tasks/`, the
            administrator's for everything else, paths that do not exist included. `/healthz` and `/readyz` are open,
            and so is `/metrics` where the server listens on a loopback address. A token of the other kind is 403. The
            server serves the OpenAPI document at `/openapi.json`.
            """
        ),
        table(["header", "what"], [[code(name), _header(about)] for name, about in _headers(document).items()]),
        *parts,
        "## The same start again",
        prose(
            """
            A start is accepted once the broker has it, and a run that was accepted is run. Whoever does not hear the
            answer cannot know: with an idempotency key the same start may be sent again, to any server, for 7 days,
            and gives the same run. It is the same when it says the same workflow and input; another input under the
            same key is 409.
            """
        ),
        "## Bodies",
        prose(
            """
            JSON in UTF-8, definitions also as YAML. Unknown fields and query parameters are refused, and so are the
            same key twice, `NaN`, half a surrogate pair and more than 64 levels. Times are RFC 3339 in UTC with
            milliseconds. Values above 128 KiB are kept apart from the run; they are shown in their place up to 4 MiB
            an answer, and beyond as `{"$blob": …, "size": …}`.
            """
        ),
        *models,
    )


def _headers(document: dict[str, Any]) -> dict[str, Any]:
    """Of all answers together."""
    return {
        name: about
        for operations in document["paths"].values()
        for what in operations.values()
        for answer in what["responses"].values()
        for name, about in answer["headers"].items()
    }


def _brief(path: str, method: str, what: dict[str, Any]) -> str:
    """An operation of a document that has many."""
    rows = [
        [code(one["name"]), one["in"], _about(one | one["schema"])]
        for one in what.get("parameters", ())
        if one["in"] != "path"
    ]
    body = what.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    takes = [f"Body: {_named(body)}."] if body else []
    answers = [[status, _answered(answer)] for status, answer in sorted(what["responses"].items())]
    given = [table(["parameter", "in", "what"], rows)] if rows else []
    heading = [f"## `{method.upper()} {path}`", *([what["summary"] + "."] if "summary" in what else [])]
    return "\n\n".join([*heading, *takes, *given, table(["status", "answer"], answers)])


def _answered(answer: dict[str, Any]) -> str:
    schema = answer.get("content", {}).get("application/json", {}).get("schema", {})
    return str(answer["description"]) + (f": {_named(schema)}" if "$ref" in schema else "")


def _named(schema: dict[str, Any]) -> str:
    """A model, or several that it may be, each with a link."""
    options = schema.get("oneOf", schema.get("anyOf", [schema]))
    names = [str(one["$ref"]).rpartition("/")[2] for one in options if "$ref" in one]
    return " or ".join(f"[{name}](#{name.lower()})" for name in names) or "any JSON"


def _operation(path: str, method: str, what: dict[str, Any]) -> str:
    rows = [
        [status, answer["description"], ", ".join(code(name) for name in answer.get("headers", {}))]
        for status, answer in sorted(what["responses"].items())
    ]
    headers = {name: about for answer in what["responses"].values() for name, about in answer["headers"].items()}
    return "\n\n".join(
        [
            f"## `{method.upper()} {path}`",
            table(["status", "answer", "headers"], rows),
            table(["header", "what"], [[code(name), _header(about)] for name, about in headers.items()]),
        ]
    )


def _header(about: dict[str, Any]) -> str:
    values = [code(value) for value in about["schema"].get("examples", ())]
    return str(about["description"]) + (f": {', '.join(values)}" if values else "")


def _model(name: str, schemas: dict[str, Any]) -> str:
    schema = schemas[name]
    needed = set(schema.get("required", ()))
    rows = [
        [code(field), _type(about, schemas), _yes(field in needed), _about(about)]
        for field, about in schema["properties"].items()
    ]
    return f"### {name}\n\n{first_paragraph(schema.get('description'))}\n\n" + table(
        ["field", "type", "always there", "what"], rows
    )


def _type(about: dict[str, Any], schemas: dict[str, Any]) -> str:
    if "$ref" in about:
        return _reference(str(about["$ref"]).rpartition("/")[2], schemas)
    if "const" in about:
        return code(json.dumps(about["const"]))
    options = [_type(one, schemas) for one in about.get("anyOf", about.get("oneOf", ()))]
    if options:
        return " or ".join(dict.fromkeys(options))
    kind = str(about.get("type", ""))
    if kind == "array":
        items = about.get("items", {})
        return f"array of {_type(items, schemas) if '$ref' in items else items.get('type', 'values')}"
    if kind == "object":
        return _object(about.get("additionalProperties"), schemas)
    return str(about.get("format", kind)) or "any JSON"


def _reference(name: str, schemas: dict[str, Any]) -> str:
    values = schemas[name].get("enum")
    return " or ".join(code(json.dumps(value)) for value in values) if values else f"[{name}](#{name.lower()})"


def _object(inside: object, schemas: dict[str, Any]) -> str:
    if isinstance(inside, dict) and "$ref" in inside:
        return f"object of {_type(inside, schemas)}"
    if isinstance(inside, dict) and "type" in inside:
        return f"object of {inside['type']}s"
    return "object" if inside is True else "object of strings"


def _about(about: dict[str, Any]) -> str:
    words = [str(about.get("description", ""))]
    if "minimum" in about and "maximum" in about:
        words.append(f"{about['minimum']} to {about['maximum']}")
    elif "minimum" in about:
        words.append(f"at least {about['minimum']}")
    if "default" in about:
        words.append(f"default {code(json.dumps(about['default']))}")
    return "; ".join(word for word in words if word)


# --- job types ---------------------------------------------------------------------------------------------


def job_types_page() -> str:
    registry = Registry.load()
    return page(
        "Job types",
        prose(
            """
            What the server knows without further modules; `fumehood job types` and `GET /v1/job-types` tell what
            yours knows. A type of your own is one module: [add a job type](../tutorial/add-a-job-type.md). As JSON
            Schemas they are in [contracts/job-types](../../contracts/job-types). What a request says beyond these
            fields is ignored; `null` is no value.
            """
        ),
        table(
            ["type", "version", "what", "verified, unless the request says otherwise"],
            [
                [f"[{name}](#{_anchor(name)})", str(one.version), one.about, _verified(one)]
                for name, one in registry.items()
            ],
        ),
        *(part for job_type in registry.values() for part in _job_type(job_type)),
        "## In every type",
        *_models_in_every_type(registry),
    )


def _anchor(heading: str) -> str:
    return heading.replace(".", "").lower()


def _verified(job_type: AnyType) -> str:
    usual = job_type.verification
    many = "1 provider" if usual.redundancy == 1 else f"{usual.redundancy} providers"
    return f"{usual.mode}, {many}, {code(usual.adjudication.value)}"


COMMON_MODELS = ("Verification", "Provenance", "Sampling", "Tokens")


def _job_type(job_type: AnyType) -> Iterator[str]:
    said = describe(job_type)
    yield f"## {job_type.name}"
    ways = ", ".join(code(way) for way in said["adjudications"])
    doers = ", ".join(code(name) for name in said["handlers"])
    yield prose(f"{job_type.about} Adjudication may be {ways}. Done by {doers}; the first is the default.")
    for side in ("request_schema", "response_schema"):
        schemas = _schemas(said[side])
        own = [name for name in schemas if "properties" in schemas[name] and name not in COMMON_MODELS]
        yield from (_job_model(name, schemas, asked=side == "request_schema") for name in own)


def _schemas(schema: dict[str, Any]) -> dict[str, Any]:
    """A model, and those that it holds."""
    return {schema["title"]: schema, **schema.get("$defs", {})}


def _models_in_every_type(registry: Registry) -> Iterator[str]:
    first = next(iter(registry.values()))
    request, response = (_schemas(describe(first)[side]) for side in ("request_schema", "response_schema"))
    for name in COMMON_MODELS:
        yield _job_model(name, request if name in request else response, asked=name in request)


def _job_model(name: str, schemas: dict[str, Any], *, asked: bool) -> str:
    schema = schemas[name]
    needed = set(schema.get("required", ()))
    rows = [
        [code(field), _type(about, schemas), _yes(field in needed), _about(_told(about, asked=asked))]
        for field, about in schema["properties"].items()
    ]
    head = ["field", "type", "needed" if asked else "always there", "what"]
    return f"### {name}\n\n{first_paragraph(schema.get('description'))}\n\n{table(head, rows)}"


def _told(about: dict[str, Any], *, asked: bool) -> dict[str, Any]:
    """A field without the full stop of its sentence, and, where it is always there, without its default."""
    words = [str(about.get("description", "")).removesuffix("."), " or ".join(map(code, about.get("enum", ())))]
    kept = {name: said for name, said in about.items() if asked or name != "default"}
    return kept | {"description": "; ".join(filter(None, words))}


# --- seccomp -----------------------------------------------------------------------------------------------


def seccomp_page() -> str:
    groups = {
        "Files": seccomp.FILES,
        "Memory": seccomp.MEMORY,
        "Processes and signals": seccomp.PROCESSES,
        "Time and waiting": seccomp.WAITING,
        "Sockets, pipes and queues": seccomp.TALKING,
    }
    lists = [f"### {name}\n\n{' '.join(code(call) for call in sorted(text.split()))}" for name, text in groups.items()]
    families = ", ".join(str(number) for number in seccomp.SOCKET_FAMILIES)
    return page(
        "System calls",
        prose(
            """
            The seccomp profile of every sandbox is an allowlist. A call that is not here answers EPERM. The
            reasons are in [the module itself](../../src/fumehood/sandbox/docker/seccomp.py) and in [decision
            0004](../decisions/0004-seccomp-per-runtime.md).
            """
        ),
        f"## Allowed ({len(seccomp.ALLOWED)})",
        *lists,
        "## Allowed with conditions",
        table(
            ["call", "condition"],
            [
                ["`clone`", f"no flag that makes a namespace (mask `{seccomp.CLONE_NEW_ANYTHING:#x}`)"],
                ["`socket`", f"families {families}: UNIX, IPv4, IPv6, netlink"],
                ["`personality`", ", ".join(code(hex(value)) for value in seccomp.PERSONALITIES)],
            ],
        ),
        "## Refused with ENOSYS, so that libraries fall back",
        " ".join(code(name) for name in seccomp.FALLS_BACK),
        prose(
            f"""
            On runtimes with a kernel of their own
            ({", ".join(code(name) for name in sorted(seccomp.OWN_KERNEL_RUNTIMES))}) `clone3` goes through to
            that kernel.
            """
        ),
    )


# --- metrics -----------------------------------------------------------------------------------------------


def metric_rows(metrics: Any) -> list[list[str]]:
    rows = []
    for attribute in vars(metrics).values():
        described = getattr(attribute, "describe", None)
        if described is None or not hasattr(attribute, "_labelnames"):
            continue
        (family,) = attribute.describe()
        rows.append(_family(family, attribute._labelnames))
    return rows


def _family(family: Any, labels: Iterable[str]) -> list[str]:
    name = family.name + ("_total" if family.type == "counter" else "")
    return [code(name), family.type, ", ".join(code(label) for label in labels), family.documentation]


def metrics_page() -> str:
    watched = control_telemetry.Watched(Counters(), dict)
    server = metric_rows(control_telemetry.Metrics())
    server += [_family(family, family._labelnames) for family in watched.collect()]
    head = ["metric", "kind", "labels", "what"]
    return page(
        "Metrics",
        prose(
            """
            `GET /metrics`, in Prometheus' text format. What to do with them: [read the
            metrics](../howto/read-the-metrics.md). A series appears when its labels first have a value. `reason` is
            the `Fumehood-Exit-Reason` of a job, and `none` where it has none. `route` is a path's template, never the
            path itself.
            """
        ),
        "## Node",
        table(head, metric_rows(Metrics())),
        "## Server",
        table(head, server),
    )


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "errors.md": errors_page,
    "outcomes.md": outcomes_page,
    "cli.md": cli_page,
    "http.md": http_page,
    "api.md": api_page,
    "job-types.md": job_types_page,
    "seccomp.md": seccomp_page,
    "metrics.md": metrics_page,
    "grpc.md": grpc_page.make,
    "events.md": events_page.make,
    "sdk.md": sdk_page.make,
}


def pages() -> dict[Path, str]:
    """Every page of the reference, by its path."""
    return {REFERENCE / name: make() for name, make in PAGES.items()}


def made() -> dict[Path, str]:
    """Everything that is written here."""
    return {**pages(), **speed_page.files()}


def stale(files: Mapping[Path, str]) -> list[Path]:
    """Which of these are not on disk as the code and the records say now."""
    return [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]


def main(arguments: list[str]) -> int:
    if "--check" in arguments:
        wrong = stale(made())
        for path in wrong:
            print(f"stale: {path.relative_to(ROOT)}")
        return 1 if wrong else 0
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for path, text in made().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
