"""`fumehood verify`: is this what was signed, and does the verdict follow from it? Without asking anybody."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from fumehood.cli import receipt_files, show
from fumehood.cli.exits import UsageError
from fumehood.cli.receipt_files import RefusedError, Root
from fumehood.errors import UnverifiedError
from fumehood.sdk.verification import hashed
from fumehood.verify import checking
from fumehood.verify.checking import Chain, Output, Report
from fumehood.verify.dsse import LARGEST_FILE, from_file
from fumehood.verify.keylist import KeyList, read_published

STDIN = Path("-")
MOST_SHOWN = 40
"""Outputs of one receipt that a person is shown."""


def verify(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A receipt, a job as `job show --json` prints it, or a list of keys; - for stdin."
        ),
    ],
    *,
    against: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]FILE", help="An output that must be one of those signed; repeat for more."),
    ] = None,
    request: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The request of a job (JSON), as it was submitted.")
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The list of keys; else the one that was fetched last.")
    ] = None,
    root: Root = None,
    as_json: show.Json = False,
) -> None:
    """Check a receipt, or a whole job, and the outputs that came with it. Asks no server."""
    relied_on = receipt_files.relied_on(root)
    outputs = [_output(words) for words in against or ()]
    used: dict[str, Any] = {"root": relied_on.hex()}

    def listed() -> KeyList:
        found, path = receipt_files.keys_of(keys, relied_on)
        used.update(file=str(path), version=found.version)
        return found

    try:
        document = _document(file)
        report = _report(document, listed, relied_on, outputs, request)
    except UnverifiedError as error:
        findings = checking.Findings()
        findings.bad("file", str(file), error)
        report = findings.report("file")
    if as_json:
        show.document({**report.view(), "keys": used})
    else:
        _print(report, used)
    if report.refusal is not None:
        raise RefusedError(report.refusal.reason, report.refusal.detail)


def _report(
    document: Any, keys: Callable[[], KeyList], root: bytes, outputs: Sequence[Output], request: Path | None
) -> Report:
    is_job = checking.is_job(document)
    if request is not None and not is_job:
        raise UsageError("--request is for jobs, and the file holds none")
    if is_job:
        from fumehood.cli.verify_jobs import known_of  # models of all job types, which receipts do without
        from fumehood.verify.job_checking import check_job

        return check_job(document, keys(), outputs, known_of(document["job_type"], request))
    if checking.is_published(document):
        if outputs:
            raise UsageError("--against is for receipts and jobs, and the file is a list of keys")
        return checking.check_keys(read_published(document, root))
    if isinstance(document, Mapping) and not checking.is_envelope(document) and document.get("receipt"):
        document = document["receipt"]  # an answer that came with its receipt
    if not checking.is_envelope(document):
        raise UnverifiedError("malformed", "the file holds no receipt, no job and no list of keys")
    return checking.check_receipt(document, keys(), outputs)


# --- files -------------------------------------------------------------------------------------------------


def _document(file: Path) -> Any:
    if file == STDIN:
        return from_file(sys.stdin.buffer.read(LARGEST_FILE + 1))
    return receipt_files.document_in(file)


def _output(words: str) -> Output:
    """`FILE`, or `NAME=FILE` where no file is called like the whole."""
    name, equals, rest = words.partition("=")
    whole = Path(words)
    if not equals or whole.exists():
        return _hashed(whole, None)
    if not name or not rest:
        raise UsageError(f"--against {words}: write it like FILE or NAME=FILE")
    return _hashed(Path(rest), name)


def _hashed(path: Path, subject: str | None) -> Output:
    try:
        return hashed(path, subject)
    except OSError as error:
        raise UsageError(f"--against {path} cannot be read: {error.strerror}") from None


# --- for people --------------------------------------------------------------------------------------------


def _print(report: Report, used: Mapping[str, Any]) -> None:
    out = show.console()
    for check in report.checks:
        mark = Text("ok     ", "green") if check.ok else Text("REFUSED", "bold red")
        about = f"{check.what} {check.about}".strip()
        why = "" if check.ok else f" ({check.reason})"
        out.print(
            Text("  ").join([mark, Text(show.plain(about)), Text(show.plain(check.detail + why))]), soft_wrap=True
        )
    for chain in report.chains:
        out.print("")
        show.pairs(_rows(chain))
    by = f"checked against the root {used['root']}"
    notes = [f"note: {note}" for note in report.notes]
    notes.append(f"{by}, with version {used['version']} of the keys in {used['file']}" if "file" in used else by)
    out.print("")
    for note in notes:
        out.print(Text(show.plain(note), "dim"), soft_wrap=True)


def _rows(chain: Chain) -> dict[str, str]:
    """From the request to the outputs, in the order in which one follows from the other."""
    claim = chain.statement.predicate
    asked, image, ended = claim.request, claim.image, claim.outcome
    rows = {
        "request": _joined(
            f"sha256:{asked.sha256}", asked.type, asked.tenant and f"tenant {asked.tenant}", _by(asked.by)
        ),
        "worker": f"{claim.worker.id}, key {claim.worker.key_id}",
        "task": ", ".join(f"{name} {value}" for name, value in claim.task.items()),
        "image": _joined(image.digest, image.reference) if image is not None else "",
        "evidence": _facts(image.evidence) if image is not None else "",
        "observed": _facts(claim.observed),
        "outcome": _joined(ended.status, ended.reason, _numbered("exit code", ended.exit_code)),
        "finished": show.local(claim.finished_at.isoformat(), exact=True),
    }
    subjects = chain.statement.subject
    rows |= {f"output {one.name}": f"sha256:{one.digest.sha256}" for one in subjects[:MOST_SHOWN]}
    more = len(subjects) - MOST_SHOWN
    return rows | ({"more outputs": f"{more}; --json shows all"} if more > 0 else {})


def _joined(*words: str | None) -> str:
    return ", ".join(word for word in words if word)


def _by(name: str | None) -> str | None:
    return f"asked by {name}" if name else None


def _numbered(name: str, number: int | None) -> str | None:
    return None if number is None else f"{name} {number}"


def _facts(facts: Mapping[str, Any]) -> str:
    """On one line, cut: --json has the rest."""
    return show.plain(", ".join(f"{name} {_value(value)}" for name, value in facts.items()))[: show.LONGEST_LINE]


def _value(value: Any) -> str:
    return f"({_facts(value)})" if isinstance(value, Mapping) else str(value)
