"""What a worker hands to a handler, for tests of handlers that run on this machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Bench:
    """A `Context` that keeps what it was told."""

    worker_id: str = "worker-1"
    task_id: str = "task-1"
    tenant: str = "default"
    proved: dict[str, str] = field(default_factory=dict)
    observed: dict[str, Any] = field(default_factory=dict)

    def prove(self, name: str, sha256: str) -> None:
        self.proved[name] = sha256

    def observe(self, **facts: Any) -> None:
        self.observed.update(facts)
