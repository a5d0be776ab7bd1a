"""The file in which a worker's credentials travel: `fumehood worker create` writes it, and the worker reads it."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import Field

from fumehood.wire.base import WireModel

FILE_NAME = "worker-credentials.json"


class WorkerCredentials(WireModel):
    """Who a worker is, and how it proves that."""

    worker_id: str
    worker_secret: Annotated[str, Field(repr=False)]

    def encode(self) -> str:
        return json.dumps({"worker_id": self.worker_id, "worker_secret": self.worker_secret}, indent=2) + "\n"
