"""Dated records: what was measured when, on what, in a form that later runs can be compared with."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any, ClassVar, Protocol

FOLDER = Path(__file__).parent / "records"


class Report(Protocol):
    """What can be kept."""

    part: ClassVar[str]
    """What `python -m bench` calls it."""
    kind: str
    machine: dict[str, Any]
    versions: dict[str, str]

    def document(self) -> dict[str, Any]: ...

    def text(self) -> str: ...


def write(report: Report, name: str, folder: Path = FOLDER) -> Path:
    """`YYYY-MM-DD-NAME.json` and the same in words, `.md`. Another run on the same day replaces them."""
    now = dt.datetime.now(dt.UTC)
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{now:%Y-%m-%d}-{name}"
    document = {"name": name, "at": now.isoformat(timespec="seconds"), **report.document()}
    stem.with_suffix(".json").write_text(json.dumps(_rounded(document), indent=2, ensure_ascii=False) + "\n")
    page = stem.with_suffix(".md")
    page.write_text(f"# {now:%Y-%m-%d}: {name}\n\n{_facts(report)}\n\n{report.text()}")
    return page


def _facts(report: Report) -> str:
    machine = ", ".join(f"{name.replace('_', ' ')} {_short(value)}" for name, value in report.machine.items())
    versions = ", ".join(f"{name} {value}" for name, value in report.versions.items())
    made = f"Made by `python -m bench {report.part} --record` ({report.kind})."
    return f"{made}\n\n- Machine: {machine}\n- Versions: {versions}"


def _short(value: object) -> str:
    return " ".join(f"{item:.2f}" for item in value) if isinstance(value, list) else str(value)


def _rounded(value: object) -> object:
    """Four decimals are more than the clock and the machine give."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value
