"""Job types as others see them, and the files that they may rely on: `python -m fumehood.jobs.schemas [FOLDER]`, by
default `contracts`.

`job-types/NAME.json` is what this version says, `job-types/released/NAME.json` what the last release said. With
`--release` the second becomes the first, unless that would break somebody.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fumehood.errors import ConfigurationError
from fumehood.jobs.compatibility import breaks
from fumehood.jobs.registry import AnyType, Registry

DIALECT = "https://json-schema.org/draft/2020-12/schema"
FOLDER = "job-types"
RELEASED = f"{FOLDER}/released"


def describe(job_type: AnyType) -> dict[str, Any]:
    """All that there is to say of a type: for the API, the command line and the reference."""
    return {
        "name": job_type.name,
        "version": str(job_type.version),
        "about": job_type.about,
        "verification": job_type.verification.model_dump(mode="json"),
        "adjudications": sorted(job_type.adjudications),
        "handlers": list(job_type.handlers),
        "request_schema": {"$schema": DIALECT, **job_type.request.model_json_schema(mode="validation")},
        "response_schema": {"$schema": DIALECT, **job_type.response.model_json_schema(mode="serialization")},
    }


def contract(job_type: AnyType) -> dict[str, Any]:
    """What others may rely on; who does the work is not part of that."""
    return {name: said for name, said in describe(job_type).items() if name != "handlers"}


def files(registry: Registry) -> dict[str, str]:
    """Every file that is made from the models, by its path."""
    return {f"{FOLDER}/{name}.json": _text(contract(registry[name])) for name in registry}


def released(folder: Path) -> dict[str, dict[str, Any]]:
    """What the last release said, by the name of the type."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (folder / RELEASED).glob("*.json")}


def broken(registry: Registry, folder: Path) -> list[str]:
    """What would break whoever relies on the last release."""
    problems = []
    for name, before in sorted(released(folder).items()):
        faults = breaks(before, contract(registry[name])) if name in registry else ["is gone"]
        problems += [f"{name}: {fault}" for fault in faults]
    return problems


def release(registry: Registry, folder: Path) -> None:
    problems = broken(registry, folder)
    if problems:
        raise ConfigurationError("; ".join(problems))
    made = files(registry)
    _write(made | {path.replace(FOLDER, RELEASED, 1): text for path, text in made.items()}, folder)


def _text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _write(texts: Mapping[str, str], folder: Path) -> None:
    for path, text in texts.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    folder = Path(next((word for word in arguments if not word.startswith("--")), "contracts"))
    registry = Registry.load()
    try:
        release(registry, folder) if "--release" in arguments else _write(files(registry), folder)
    except ConfigurationError as error:
        print(error.detail, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
