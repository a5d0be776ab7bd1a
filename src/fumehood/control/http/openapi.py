"""Writes what others may rely on: `python -m fumehood.control.http.openapi [FOLDER]`, by default `contracts`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from fumehood.broker.memory import MemoryBroker
from fumehood.control.bridge import Bridge
from fumehood.control.http.app import create_app
from fumehood.control.service import Service
from fumehood.control.telemetry import Telemetry
from fumehood.door import contract_files
from fumehood.door.contract_files import DIALECT
from fumehood.door.tokens import TokenSource
from fumehood.engine import definition
from fumehood.settings import ServerSettings


def document() -> dict[str, Any]:
    """The OpenAPI document of a whole server."""
    settings, broker = ServerSettings(), MemoryBroker()
    app = create_app(
        Service(broker),
        Bridge(broker),
        settings=settings,
        tokens=TokenSource(settings.api),
        bridge_tokens=TokenSource(settings.bridge),
        telemetry=Telemetry(),
    )
    return app.openapi()


def files() -> dict[str, str]:
    """Every file of the server's contract that is made from the models, by its path."""
    made = {
        "openapi/server.json": document(),
        "schemas/workflow-definition.json": {"$schema": DIALECT, **definition.schema()},
    }
    return contract_files.texts(made)


def main(folder: Path) -> None:
    contract_files.write(files(), folder)


if __name__ == "__main__":
    main(contract_files.folder_of(sys.argv))
