"""Writes what others may rely on: `python -m fumehood.control.http.openapi [FOLDER]`, by default `contracts`.

The files are committed and a test holds them to the models, so that a change of the contract shows in a review.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from fumehood.broker.memory import MemoryBroker
from fumehood.control.bridge import Bridge
from fumehood.control.http.app import create_app
from fumehood.control.service import Service
from fumehood.control.telemetry import Telemetry
from fumehood.door.tokens import TokenSource
from fumehood.engine import definition
from fumehood.settings import ServerSettings

DIALECT = "https://json-schema.org/draft/2020-12/schema"


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
    return {path: json.dumps(content, indent=2, ensure_ascii=False) + "\n" for path, content in made.items()}


def main(folder: Path) -> None:
    for path, text in files().items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "contracts"))
