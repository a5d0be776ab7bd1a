"""Files that others may rely on: made from the models, committed, and held to the models by a test, so that a change of
the contract shows in a review."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DIALECT = "https://json-schema.org/draft/2020-12/schema"
FOLDER = "contracts"


def texts(made: Mapping[str, Any]) -> dict[str, str]:
    """Each document as it stands in its file."""
    return {path: json.dumps(content, indent=2, ensure_ascii=False) + "\n" for path, content in made.items()}


def write(files: Mapping[str, str], folder: Path) -> None:
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


def folder_of(arguments: Sequence[str]) -> Path:
    """The one that a command was given, or where they are committed."""
    return Path(arguments[1] if len(arguments) > 1 else FOLDER)
