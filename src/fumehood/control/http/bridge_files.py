"""Writes the wire protocol's JSON Schemas: `python -m fumehood.control.http.bridge_files [FOLDER]`, by default
`contracts`. The files are committed and a test holds them to the models, so that a change shows in a review.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from fumehood.wire import bridge, protocol

DIALECT = "https://json-schema.org/draft/2020-12/schema"

SCHEMAS: Mapping[str, tuple[TypeAdapter[Any], JsonSchemaMode]] = {
    "task-payload": (TypeAdapter(protocol.TaskPayload), "serialization"),
    "step-event": (TypeAdapter(protocol.StepEvent), "validation"),
    "worker-registration": (TypeAdapter(protocol.WorkerRegistration), "validation"),
    "connect-request": (TypeAdapter(bridge.ConnectRequest), "validation"),
    "stream-event": (TypeAdapter(bridge.StreamEvent), "serialization"),
    "poll-request": (TypeAdapter(bridge.PollRequest), "validation"),
    "poll-response": (bridge.PollResponse, "serialization"),
    "resolve-request": (bridge.ResolveRequest, "validation"),
    "resolve-response": (TypeAdapter(bridge.ResolveResponse), "serialization"),
    "checkpoint-response": (TypeAdapter(bridge.CheckpointResponse), "serialization"),
    "drain-response": (TypeAdapter(bridge.DrainResponse), "serialization"),
}
"""As others see it: what workers send is what we take, everything else is what we write."""


def files() -> dict[str, str]:
    """Every file that is made from the models, by its path."""
    made = {
        f"schemas/wire-protocol-{name}.json": {"$schema": DIALECT, **adapter.json_schema(mode=mode)}
        for name, (adapter, mode) in SCHEMAS.items()
    }
    return {path: json.dumps(content, indent=2, ensure_ascii=False) + "\n" for path, content in made.items()}


def main(folder: Path) -> None:
    for path, text in files().items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "contracts"))
