"""How a job is shown: the result, the verdict in words, and who said what. Pure but for the printing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fumehood.cli import show
from fumehood.cli.exits import FAILED, INTERRUPTED, STOPPED, TIMED_OUT

DISPUTED: Final = 4
"""Its providers disagree: everything that they said is there, and none of it counts."""
SHOWN: Final = 12
"""Letters of a hash."""
_CODES: Final[Mapping[str, int]] = {"succeeded": 0, "disputed": DISPUTED, "timed_out": TIMED_OUT, "cancelled": STOPPED}


def exit_code(job: Mapping[str, Any], *, asked_to_stop: bool = False) -> int:
    if job["status"] == "cancelled" and asked_to_stop:
        return INTERRUPTED
    return _CODES.get(str(job["status"]), FAILED)


def shown(job: Mapping[str, Any], written: Sequence[Path] = ()) -> None:
    show.pairs(
        {
            "job": job["job_id"],
            "type": job["job_type"],
            "status": show.status(str(job["status"])),
            "verdict": verdict(job),
            "error": show.failure(job.get("error")),
            "request": str(job.get("request_sha256") or ""),
            "took": show.between(job.get("started_at"), job.get("ended_at"), show.now()),
        }
    )
    candidates = (job.get("verdict") or {}).get("candidates") or ()
    if candidates:
        show.console().print()
        show.table(["execution", "provider", "said", "found", "key"], [_candidate(one) for one in candidates])
    show.value("result", job.get("result"))
    if told := receipts(job, written):
        show.console().print(f"\n{told}", soft_wrap=True)


def _candidate(one: Mapping[str, Any]) -> list[str]:
    found = str(one.get("declared_sha256") or "")[:SHOWN]
    return [
        str(one["execution"]),
        str(one.get("worker") or "-"),
        _said(one),
        found,
        str(one.get("key_id") or "")[:SHOWN],
    ]


def _said(one: Mapping[str, Any]) -> str:
    if one["accepted"]:
        return "counts"
    return show.failure(one.get("error")) or str(one.get("rejected") or "no answer")


def verdict(job: Mapping[str, Any]) -> str:
    """In words. Nothing where there is none yet."""
    said = job.get("verdict")
    if not said:
        return ""
    many = f"{said['redundancy']} providers" if said["redundancy"] != 1 else "1 provider"
    who = _worker(said, said.get("chosen"))
    words = {
        "single": f"one provider, {who}: nobody compared its answer with another's, and its receipt binds it to it",
        "majority": f"{said['agreed']} of {many} came to the same; shown is what {who} gave",
        "judged": f"a judge chose what {who} gave out of the answers of {many}{_reason(said)}",
        "merged": f"merged out of what {many} gave",
        "no_majority": f"no majority among {many}: all that they said is below, and nothing of it counts",
        "error": "there is none",
    }
    return show.plain(words.get(str(said["outcome"]), str(said["outcome"])))


def _worker(said: Mapping[str, Any], chosen: int | None) -> str:
    for one in said.get("candidates") or ():
        if one["execution"] == chosen:
            return str(one.get("worker") or "an unnamed one")
    return "none"


def _reason(said: Mapping[str, Any]) -> str:
    judge = said.get("judge")
    return f" ({judge['worker']}: {judge['reason']})" if judge else ""


def receipts(job: Mapping[str, Any], written: Sequence[Path]) -> str:
    """Where they are, and how they are checked."""
    many = len(job.get("receipts") or ())
    if not many:
        return ""
    if written:
        return "receipts\n" + "\n".join(f"fumehood verify {path}" for path in written)
    noun = "1 receipt" if many == 1 else f"{many} receipts"
    name = job["job_id"]
    return f"{noun}; check them offline: fumehood job show {name} --json > {name}.json; fumehood verify {name}.json"


def shown_type(kind: Mapping[str, Any]) -> None:
    said = kind.get("verification") or {}
    show.pairs(
        {
            "job type": str(kind["name"]),
            "version": str(kind["version"]),
            "about": str(kind["about"]),
            "verified by": f"{said['redundancy']} providers, {said['adjudication']}, {said['mode']}" if said else "",
        }
    )
    out = show.console()
    for title, name in (("takes", "request_schema"), ("gives", "response_schema")):
        if fields := _fields(kind.get(name) or {}):
            out.print(f"\n{title}", style="bold")
            show.table(["field", "type", ""], fields, whole=["field"])
    out.print("\n--json shows the whole schemas")


def _fields(schema: Mapping[str, Any]) -> list[list[str]]:
    required = schema.get("required") or ()
    return [
        [name, _kind(part, schema), "required" if name in required else ""]
        for name, part in (schema.get("properties") or {}).items()
    ]


def _kind(part: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """A type in a word or two; what is nested has its own name."""
    if "$ref" in part:
        return str(part["$ref"]).rpartition("/")[2]
    for word in ("anyOf", "allOf", "oneOf"):
        if word in part:
            return " or ".join(_kind(one, schema) for one in part[word] if one.get("type") != "null")
    if part.get("type") == "array":
        return f"list of {_kind(part.get('items') or {}, schema)}"
    return str(part.get("type") or part.get("const") or "any")
