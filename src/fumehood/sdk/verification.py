"""What came of checking a receipt, or a whole job, against what its reader holds in his hands.

Offline: the pinned root, the list of keys that it signed, and the bytes. A bad receipt is an answer, not an error; an
error is only that nothing could be checked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeAlias

from fumehood.errors import UnverifiedError
from fumehood.sdk import receipt_keys
from fumehood.sdk.values import signal_name
from fumehood.verify import checking
from fumehood.verify.checking import LARGEST_JSON, Check, Findings, Output, Report, canonical_sha256
from fumehood.verify.keylist import KeyList
from fumehood.verify.receipt import Outcome, Statement
from fumehood.wire.canonical import json_sha256

PIECE = 1024 * 1024

Held: TypeAlias = bytes | str | Path
"""An output: its bytes, its text, or the file that it is in."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What a receipt has to be about, as far as whoever asks for it knows."""

    task: Mapping[str, str] = field(default_factory=dict)
    """Which hand-out: `command_id`, `run_id`, `step_id` …"""
    outputs: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """By their names in the receipt, whole."""
    parts: tuple[str, ...] = ()
    """Outputs that are not whole here, so that nothing can be said about them."""
    ended: Mapping[str, Any] = field(default_factory=dict)
    """How it ended: `exit_code`, `status` …; `shell_code` is the exit code, or 128 and the signal."""
    request: Mapping[str, Any] | None = field(default=None, repr=False)
    """What was asked for, as the receipt has its hash; None: it is not at hand."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What came of checking. It is true only where everything holds:

    result = sb.commands.run("echo hello")
    assert result.receipt.verify()
    found = result.receipt.verify(against="goodbye")
    assert not found and found.reason == "output_mismatch"
    """

    report: Report = field(repr=False)
    root: str
    """The root that was relied on, in hex."""
    keys_version: int
    """Of the list of keys."""
    keys_file: str = field(repr=False, default="")

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        if not self.ok:
            return f"refused: {self.detail or 'nothing was checked'} ({self.reason})"
        signers = ", ".join(dict.fromkeys(f"{one['worker']['id']}" for one in self.claims))
        return f"ok: signed by {signers}" if signers else "ok"

    @property
    def ok(self) -> bool:
        """Whether everything that was looked at is all right."""
        return self.report.ok

    @property
    def reason(self) -> str | None:
        """The stable word for the first thing that is not: `signature_invalid`, `unknown_key`, `output_mismatch` …"""
        return None if self.report.refusal is None else self.report.refusal.reason

    @property
    def detail(self) -> str:
        """That in words."""
        return "" if self.report.refusal is None else self.report.refusal.detail

    @property
    def checks(self) -> tuple[Check, ...]:
        """Everything that was looked at."""
        return self.report.checks

    @property
    def notes(self) -> tuple[str, ...]:
        """What this does not prove."""
        return self.report.notes

    @property
    def worker(self) -> str | None:
        """Who signed; None where that is not proven."""
        return None if self._claim is None else str(self._claim["worker"]["id"])

    @property
    def key_id(self) -> str | None:
        """With which key; None where that is not proven."""
        return None if self._claim is None else str(self._claim["worker"]["key_id"])

    @property
    def claims(self) -> tuple[dict[str, Any], ...]:
        """What was signed, of every receipt that holds: the request, the image, how it ended, the outputs' hashes."""
        return tuple(one.view() for one in self.report.chains)

    @property
    def _claim(self) -> dict[str, Any] | None:
        return self.report.chains[0].view() if self.report.chains else None

    def check(self) -> Self:
        """Itself where it is all right; else `UnverifiedError`, with the reason."""
        if self.report.refusal is not None or not self.ok:
            raise UnverifiedError(self.reason or "nothing_checked", self.detail or "nothing was checked").advise()
        return self

    def view(self) -> dict[str, Any]:
        """As `fumehood verify --json` prints it."""
        used = {"root": self.root, "version": self.keys_version, "file": self.keys_file}
        return {**self.report.view(), "keys": used}


@dataclass(frozen=True, slots=True)
class Trust:
    """Whom the reader relies on; what is left out is found as `fumehood verify` finds it."""

    root: str | None = None
    keys_file: Path | None = None

    def found(self) -> tuple[bytes, KeyList, Path]:
        """`CannotVerifyError` where there is nobody."""
        root = receipt_keys.relied_on(self.root)
        keys, path = receipt_keys.keys_of(self.keys_file, root)
        return root, keys, path


def verified(envelope: Any, outputs: Iterable[Output], holding: Holding, trust: Trust) -> Verification:
    """One receipt, and what it has to be about."""
    root, keys, path = trust.found()
    findings = Findings()
    statement = checking.checked(envelope, keys, "", findings)
    if statement is not None:
        _check_holding(statement, holding, findings)
        checking.check_outputs(outputs, [statement], findings)
        findings.notes.append(checking.CLAIM_ONLY)
        checking.note_age(statement.predicate, keys, findings)
    return Verification(findings.report("receipt"), root.hex(), keys.version, str(path))


def verified_job(document: Any, outputs: Iterable[Output], trust: Trust) -> Verification:
    """All receipts of a job, and that its verdict follows from them."""
    from fumehood.verify.job_checking import check_job

    root, keys, path = trust.found()
    return Verification(check_job(document, keys, outputs), root.hex(), keys.version, str(path))


def _shell_code(outcome: Outcome) -> int | None:
    """As a shell tells it: the exit code, or 128 and the signal that ended it."""
    return outcome.exit_code if outcome.signal is None else 128 + outcome.signal


def _check_holding(statement: Statement, holding: Holding, findings: Findings) -> None:
    """A receipt that is good, and of something else, proves nothing."""
    claim = statement.predicate
    for name, value in holding.task.items():
        words = (f"is {value}", "task_mismatch", f"the receipt is about {claim.task.get(name)}, and not {value}")
        findings.same("task", name, claim.task.get(name), value, words)
    if holding.request is None:
        findings.notes.append("the request was not compared with the one that was sent")
    else:
        words = ("is the one that was sent", "request_mismatch", "the receipt is about another request")
        findings.same("request", "sha256", claim.request.sha256, json_sha256(holding.request), words)
    outcome = claim.outcome
    said = {**outcome.model_dump(), "signal": signal_name(outcome.signal), "shell_code": _shell_code(outcome)}
    for name, value in holding.ended.items():
        words = (f"is {value}", "outcome_mismatch", f"it was signed as {said.get(name)}, and this says {value}")
        findings.same("outcome", name, said.get(name), value, words)
    findings.notes += [f"{name} is not whole here, and was not checked" for name in holding.parts]
    for name, data in holding.outputs.items():
        if not data and statement.digest_of(name) is None:
            findings.notes.append(f"nothing is signed about {name}, which is empty here")
            continue
        output = Output(name, hashlib.sha256(data).hexdigest(), name)  # to the byte, also where it is JSON
        checking.check_outputs([output], [statement], findings)


# --- outputs -----------------------------------------------------------------------------------------------


def outputs_of(against: Held | Mapping[str, Held] | None) -> list[Output]:
    """What must be one of those signed; under its name, where it has one."""
    if against is None:
        return []
    if isinstance(against, Mapping):
        return [_output(held, name) for name, held in against.items()]
    return [_output(against, None)]


def _output(held: Held, subject: str | None) -> Output:
    if isinstance(held, Path):
        return hashed(held, subject)
    if not isinstance(held, bytes | str):
        raise TypeError("an output is given as bytes, as a text, or as a Path to the file that it is in")
    data = held.encode() if isinstance(held, str) else held
    return Output.of(subject or f"{len(data)} bytes", data, subject)


def hashed(path: Path, subject: str | None) -> Output:
    """In pieces, since an output may be larger than memory; the first of them are kept in case that they are all."""
    found, kept, size = hashlib.sha256(), bytearray(), 0
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            found.update(piece)
            size += len(piece)
            kept += piece if size <= LARGEST_JSON else b""
    as_json = canonical_sha256(bytes(kept)) if size <= LARGEST_JSON else None
    return Output(str(path), found.hexdigest(), subject, as_json)
