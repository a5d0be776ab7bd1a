"""Lists of the Runner API's runs: from this server's index, and for those under way from what their nodes left behind.

How a run ended is in the index. How far one has come that has not ended is written down nowhere, and looked up for each
of those on the page: a page that asks for such runs may hold fewer than it may, and still have others behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from fumehood.broker.ports import Broker
from fumehood.control.index import Index
from fumehood.control.index_query import RunFilter
from fumehood.control.index_rows import RunRow
from fumehood.control.runner_traces import NodeTraces
from fumehood.control.runner_view import ACTIVE, LONGEST_STOP_MS, is_stopping
from fumehood.wire.runner_api import ListRunsResponse, RunListItem, RunnerStatus, pod_name
from fumehood.wire.sandbox import RUN_WORKFLOW, RunReason
from fumehood.wire.times import moment

_AT_ONCE = 32
"""Runs that are looked up at the same time for one page."""


@dataclass(frozen=True, slots=True)
class ListWish:
    """Which runs are asked for; what is `None` does not matter."""

    status: RunnerStatus | None = None
    image_digest: str | None = None
    created_after: int | None = None
    """At this moment or later (ms)."""
    created_before: int | None = None
    """Earlier than this (ms)."""

    @property
    def filter(self) -> RunFilter:
        """Each of them is found along an index of its own: what only this API's runs have needs no name beside it."""
        outcome = None if self.status is None else self.status.value if self.status.ended else ACTIVE
        named = outcome is None and self.image_digest is None
        return RunFilter(
            workflow=RUN_WORKFLOW if named else None,
            outcome=outcome,
            image_digest=self.image_digest,
            started_after=self.created_after,
            started_before=self.created_before,
        )


class RunnerList:
    def __init__(self, broker: Broker, index: Index, *, now_ms: Callable[[], int]) -> None:
        self._index = index
        self._now_ms = now_ms
        self._traces = NodeTraces(broker)

    async def page(self, tenant: str, wish: ListWish, *, cursor: str | None, limit: int) -> ListRunsResponse:
        """A tenant's runs, newest first."""
        found = await self._index.runs(tenant, wish.filter, cursor=cursor, limit=limit)
        rows = [row for row in found.runs if row.outcome is not None]
        few = asyncio.Semaphore(_AT_ONCE)
        statuses = await asyncio.gather(*(self._status(row, few) for row in rows))
        told = zip(rows, statuses, strict=True)
        items = [_item(row, status) for row, status in told if wish.status in (None, status)]
        return ListRunsResponse(runs=items, next=found.next)

    async def _status(self, row: RunRow, few: asyncio.Semaphore) -> RunnerStatus:
        now = self._now_ms()
        if row.outcome == RunnerStatus.STOPPED and now - (row.ended_at or 0) < LONGEST_STOP_MS:
            async with few:
                stopping = is_stopping(row.ended_at, await self._traces.newest(row.run_id), now)
            return RunnerStatus.RUNNING if stopping else RunnerStatus.STOPPED
        if row.outcome in set(RunnerStatus):
            return RunnerStatus(row.outcome)
        async with few:
            return (await self._traces.of(row.run_id)).status


def _item(row: RunRow, status: RunnerStatus) -> RunListItem:
    return RunListItem(
        run_id=row.run_id,
        status=status,
        pod_name=pod_name(row.run_id),
        image_ref=row.image_ref or "",
        image_digest=row.image_digest,
        created_at=moment(row.started_at),
        finished_at=moment(row.ended_at) if row.ended_at is not None and status.ended else None,
        exit_code=row.exit_code,
        reason=RunReason(row.reason) if row.reason in set(RunReason) and status.ended else None,
        created_by=row.by or None,
    )
