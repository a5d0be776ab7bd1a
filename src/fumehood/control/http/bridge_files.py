"""Writes the wire protocol's JSON Schemas: `python -m fumehood.control.http.bridge_files [FOLDER]`, by default
`contracts`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from fumehood.door import contract_files
from fumehood.door.contract_files import DIALECT
from fumehood.wire import bridge, protocol

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
    return contract_files.texts(made)


def main(folder: Path) -> None:
    contract_files.write(files(), folder)


if __name__ == "__main__":
    main(contract_files.folder_of(sys.argv))
