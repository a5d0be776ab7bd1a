"""Lines of runs as a test needs them, and an index over the in-memory broker."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fumehood.broker.memory import MemoryBroker, MemoryServer
from fumehood.broker.ports import Bucket
from fumehood.control.index import Index
from fumehood.control.index_query import RunFilter
from fumehood.wire import blobref
from fumehood.wire.times import rfc3339

BEGAN = 1_750_000_000_000
ALL = RunFilter()


def line(started_at: int = BEGAN, **changes: Any) -> dict[str, Any]:
    """A run that succeeded within a second, unless something else is said."""
    return {
        "workflow": "w",
        "definition": "sha256:" + "0" * 64,
        "status": "succeeded",
        "started_at": rfc3339(started_at),
        "ended_at": rfc3339(started_at + 1000),
        "tenant": "default",
        "labels": {},
        "by": "admin",
        "error": None,
        "failed_step": None,
        "tries": 0,
        "parent": None,
        "schedule": None,
        "continued_as": None,
        "events": 5,
        **changes,
    }


def running(started_at: int = BEGAN, **changes: Any) -> dict[str, Any]:
    return line(started_at, status="running", ended_at=None, **changes)


def failed(started_at: int = BEGAN, **changes: Any) -> dict[str, Any]:
    error = {"code": "boom", "message": "it broke"}
    return line(started_at, **{"status": "failed", "error": error, "failed_step": "a", **changes})


def encode(document: Mapping[str, Any]) -> bytes:
    return blobref.encode(document)


def inside(path: Path, pattern: str = "*") -> list[Path]:
    return sorted(path.glob(pattern))


class IndexWorld:
    """Use `async with world.index.working()`."""

    def __init__(self, path: Path, server: MemoryServer | None = None, **options: Any) -> None:
        self.path = path
        self.server = server or MemoryServer()
        self.broker = MemoryBroker(self.server)
        self.index = self.another(**options)

    def another(self, **options: Any) -> Index:
        broker = MemoryBroker(self.server)
        return Index(broker, now_ms=lambda: time.time_ns() // 1_000_000, base=self.path, **options)

    async def put(self, run_id: str, document: Mapping[str, Any]) -> None:
        await self.broker.bucket(Bucket.SUMMARIES).put(run_id, encode(document))

    async def ids(self, wanted: RunFilter = ALL, tenant: str = "default") -> list[str]:
        """All pages of a list, two runs each."""
        found: list[str] = []
        cursor = None
        while True:
            page = await self.index.runs(tenant, wanted, cursor=cursor, limit=2)
            assert len(page.runs) <= 2
            found += [run.run_id for run in page.runs]
            cursor = page.next
            if cursor is None:
                return found
