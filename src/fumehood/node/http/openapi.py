"""Writes what others may rely on: `python -m fumehood.node.http.openapi [FOLDER]`, by default `contracts`.

The files are committed and a test holds them to the models, so that a change of the contract shows in a review.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from fumehood.door.tokens import TokenSource
from fumehood.node.http.app import create_app
from fumehood.node.service import JobAnswer, Readiness
from fumehood.node.telemetry import Telemetry
from fumehood.settings import NodeSettings
from fumehood.wire.base import WireModel
from fumehood.wire.problem import ProblemDetails
from fumehood.wire.worker_api import RunJobRequest, RunJobResponse

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Nobody:
    """A document needs no node."""

    async def run_job(self, request: RunJobRequest, body_sha256: str) -> JobAnswer:
        raise NotImplementedError

    async def receipt(self, job_id: str) -> bytes:
        raise NotImplementedError

    def readiness(self) -> Readiness:
        raise NotImplementedError


def document() -> dict[str, Any]:
    """The OpenAPI document."""
    settings = NodeSettings()
    app = create_app(_Nobody(), settings=settings, tokens=TokenSource(settings.worker_api), telemetry=Telemetry())
    return app.openapi()


def files() -> dict[str, str]:
    """Every file of the Worker API's contract that is made from the models, by its path."""
    made = {
        "openapi/worker-api.json": document(),
        "schemas/worker-api-run-job-request.json": _schema(RunJobRequest),
        "schemas/worker-api-run-job-response.json": _schema(RunJobResponse),
        "schemas/worker-api-problem.json": _schema(ProblemDetails),
    }
    return {path: json.dumps(content, indent=2, ensure_ascii=False) + "\n" for path, content in made.items()}


def _schema(model: type[WireModel]) -> dict[str, Any]:
    """As others see it: a request is what we take, everything else is what we write."""
    if model is RunJobRequest:
        return {"$schema": DIALECT, **model.model_json_schema(mode="validation")}
    return {"$schema": DIALECT, **model.model_json_schema(mode="serialization")}


def main(folder: Path) -> None:
    for path, text in files().items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "contracts"))
