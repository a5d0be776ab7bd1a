"""What can be said of a receipt, and of the outputs that it is about, by whoever has only these and a list of keys.

Pure: no file, no network, no clock. A report has a line for each thing that was looked at; one that is not all right
says why with a stable word. What the keys do not prove is said too, in notes: silence would be taken for a promise.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fumehood.errors import FumehoodError, UnverifiedError
from fumehood.verify.dsse import json_value
from fumehood.verify.keylist import KeyList
from fumehood.verify.receipt import Claim, Statement, check
from fumehood.wire.canonical import json_sha256
from fumehood.wire.times import rfc3339

LARGEST_JSON = 16 * 1024 * 1024
"""Bytes of an output that is tried as JSON, too."""

CLAIM_ONLY = (
    "a receipt proves who claimed this, not that the machine was honest: for that, ask several workers (redundancy)"
)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    what: str
    """Stable: `receipt`, `output`, `job`, `request`, `distinct`, `judge`, `verdict`, `result`, `keys`."""
    about: str
    """Which one: an execution, an output's name, a file."""
    ok: bool
    detail: str
    reason: str = ""
    """A stable word, where it is not all right."""

    def view(self) -> dict[str, Any]:
        said = {"what": self.what, "about": self.about, "ok": self.ok, "detail": self.detail}
        return said | ({"reason": self.reason} if not self.ok else {})


@dataclass(frozen=True, slots=True)
class Chain:
    """One receipt that holds: from the hash of a request to the hashes of what came of it."""

    statement: Statement

    def view(self) -> dict[str, Any]:
        claim = self.statement.predicate
        return {
            "kind": claim.kind.value,
            "request": claim.request.model_dump(mode="json", exclude_none=True),
            "worker": claim.worker.model_dump(mode="json"),
            "task": dict(claim.task),
            "image": None if claim.image is None else claim.image.model_dump(mode="json", exclude_none=True),
            "observed": claim.observed,
            "outcome": claim.outcome.model_dump(mode="json", exclude_none=True),
            "started_at": None if claim.started_at is None else rfc3339(claim.started_at),
            "finished_at": rfc3339(claim.finished_at),
            "software": claim.software,
            "outputs": {one.name: one.digest.sha256 for one in self.statement.subject},
        }


@dataclass(frozen=True, slots=True)
class Report:
    kind: str
    """`receipt`, `job` or `keys`."""
    checks: tuple[Check, ...]
    chains: tuple[Chain, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return bool(self.checks) and all(one.ok for one in self.checks)

    @property
    def refusal(self) -> Check | None:
        """The first thing that is not all right."""
        return next((one for one in self.checks if not one.ok), None)

    def view(self) -> dict[str, Any]:
        refusal = self.refusal
        return {
            "ok": self.ok,
            "kind": self.kind,
            "reason": None if refusal is None else refusal.reason,
            "checks": [one.view() for one in self.checks],
            "chains": [one.view() for one in self.chains],
            "notes": list(self.notes),
        }


@dataclass(slots=True)
class Findings:
    """A report that is being written."""

    checks: list[Check] = field(default_factory=list)
    chains: list[Chain] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def good(self, what: str, about: str, detail: str) -> None:
        self.checks.append(Check(what, about, True, detail))

    def bad(self, what: str, about: str, error: UnverifiedError) -> None:
        self.checks.append(Check(what, about, False, error.detail, error.reason))

    def same(self, what: str, about: str, found: object, wanted: object, words: tuple[str, str, str]) -> bool:
        """`words`: when they are equal, the reason when not, and the sentence then."""
        if found == wanted:
            self.good(what, about, words[0])
        else:
            self.bad(what, about, UnverifiedError(words[1], words[2]))
        return found == wanted

    def report(self, kind: str) -> Report:
        return Report(kind, tuple(self.checks), tuple(self.chains), tuple(self.notes))


# --- outputs -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Output:
    """What somebody has, and wants to know whether it is what was signed."""

    label: str
    """For people: the file's name."""
    sha256: str
    subject: str | None = None
    """Which output it must be; None: any."""
    json_sha256: str | None = None
    """Of its canonical form, where it is JSON."""

    @classmethod
    def of(cls, label: str, data: bytes, subject: str | None = None) -> Output:
        return cls(label, hashlib.sha256(data).hexdigest(), subject, canonical_sha256(data))

    def is_under(self, sha256: str) -> bool:
        return sha256 in (self.sha256, self.json_sha256)


def canonical_sha256(data: bytes) -> str | None:
    """Of the value that some bytes are, if they are JSON."""
    if len(data) > LARGEST_JSON:
        return None
    try:
        return json_sha256(json_value(data))
    except FumehoodError:
        return None


def check_outputs(outputs: Iterable[Output], statements: Sequence[Statement], findings: Findings) -> None:
    """Each is one of those that were signed: under its name, where it has one."""
    signed = [(one.name, one.digest.sha256) for statement in statements for one in statement.subject]
    for output in outputs:
        try:
            name = _signed_name(output, signed)
        except UnverifiedError as error:
            findings.bad("output", output.label, error)
        else:
            findings.good("output", output.label, f"is {name}, as it was signed")


def _signed_name(output: Output, signed: Sequence[tuple[str, str]]) -> str:
    if output.subject is None:
        found = next((name for name, sha256 in signed if output.is_under(sha256)), None)
        if found is None:
            raise UnverifiedError("output_mismatch", f"no output that was signed has its hash {output.sha256}")
        return found
    wanted = [sha256 for name, sha256 in signed if name == output.subject]
    if not wanted:
        raise UnverifiedError("no_such_output", _no_such(output.subject, [name for name, _ in signed]))
    if not any(output.is_under(sha256) for sha256 in wanted):
        raise UnverifiedError(
            "output_mismatch", f"{output.subject} was signed as {wanted[0]}, and this is {output.sha256}"
        )
    return output.subject


def _no_such(name: str, known: Sequence[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {nearest[0]}?" if nearest else f"; there are {', '.join(sorted(set(known))[:20])}"
    return f"no output is called {name}{hint}"


# --- receipts ----------------------------------------------------------------------------------------------


def check_receipt(envelope: Any, keys: KeyList, outputs: Iterable[Output] = ()) -> Report:
    """One receipt, and the outputs that it should be about."""
    findings = Findings()
    statement = checked(envelope, keys, "", findings)
    if statement is not None:
        check_outputs(outputs, [statement], findings)
        findings.notes.append(CLAIM_ONLY)
        note_age(statement.predicate, keys, findings)
    return findings.report("receipt")


def checked(envelope: Any, keys: KeyList, about: str, findings: Findings) -> Statement | None:
    """What a receipt says, where it holds."""
    try:
        statement = check(envelope, keys)
    except UnverifiedError as error:
        findings.bad("receipt", about, error)
        return None
    worker = statement.predicate.worker
    findings.good("receipt", about or worker.id, f"signed by {worker.id} with the key {worker.key_id[:16]}")
    findings.chains.append(Chain(statement))
    return statement


def note_age(claim: Claim, keys: KeyList, findings: Findings) -> None:
    """A list that is older than what it is used on cannot know of what happened to a key since."""
    if claim.finished_at > keys.issued_at:
        text = (
            f"the list of keys (version {keys.version}) is from {rfc3339(keys.issued_at)}, before this: "
            "`fumehood receipts fetch` gets a newer one, if there is one, which tells whether a key was revoked since"
        )
        if text not in findings.notes:
            findings.notes.append(text)


def check_keys(keys: KeyList) -> Report:
    """A list whose signature was checked when it was read."""
    findings = Findings()
    good = sum(1 for key in keys.keys if key.revoked_at is None)
    detail = f"version {keys.version} of {rfc3339(keys.issued_at)}: {len(keys.keys)} keys, {good} of them not revoked"
    findings.good("keys", "list", detail)
    return findings.report("keys")


def is_envelope(document: Any) -> bool:
    return isinstance(document, Mapping) and "payloadType" in document


def is_published(document: Any) -> bool:
    return isinstance(document, Mapping) and set(document) == {"root", "list"}


def is_job(document: Any) -> bool:
    return isinstance(document, Mapping) and "job_id" in document and "job_type" in document
