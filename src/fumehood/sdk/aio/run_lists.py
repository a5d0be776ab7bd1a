"""`client.runs`: runs by their ids, and lists of them."""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from fumehood.sdk.aio.image_runs import AsyncImageRun, ImageOptions, body_of
from fumehood.sdk.aio.runs import AsyncRun
from fumehood.sdk.aio.transport import AsyncTransport, Query, part
from fumehood.sdk.run_values import ImageRunSummary, RunSummary

PAGE = 200
"""The most that a server gives at once."""
LIMIT = 1000
CREATE_SECONDS = 120.0
"""An image is admitted first, which may mean asking its registry."""


class RunFilter(TypedDict, total=False):
    """Which runs."""

    workflow: str
    status: str
    labels: Mapping[str, str]
    started_after: dt.datetime
    started_before: dt.datetime
    parent: str
    schedule: str


class AsyncRuns:
    """Runs of workflows, and of single images."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    # --- of workflows ----------------------------------------------------------------------------------------

    async def get(self, run_id: str) -> AsyncRun:
        """A run, as it is now. `client.workflows.run` starts one."""
        return AsyncRun(self._transport, await self._transport.get(f"/v1/runs/{part(run_id)}"))

    async def list(self, *, limit: int = LIMIT, **which: Unpack[RunFilter]) -> AsyncGenerator[RunSummary, None]:
        """Runs, newest first, at most `limit` of them. A new run is in the list moments after it was started.

        async for run in client.runs.list(status="failed", limit=20):
            print(run.id, run.error)
        """
        query: dict[str, Any] = {
            **which,
            "label": [f"{name}={value}" for name, value in which.get("labels", {}).items()],
        }
        query.pop("labels", None)
        async for said in self._pages("/v1/runs", query, limit):
            yield RunSummary.of(said)

    # --- of single images ------------------------------------------------------------------------------------

    async def start_image(
        self,
        image: str,
        command: str | Sequence[str] | None = None,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[ImageOptions],
    ) -> AsyncImageRun:
        """Run an image in a sandbox. A text goes to a shell, a list is run as it is; without either, what the image
        says. It goes on whatever becomes of this program; the same `idempotency_key` again is the same run.

        `RunDeniedError` where the policy does not let it run: its `evidence` says on what ground.
        """
        body = body_of(image, command, options)
        key = idempotency_key or f"sdk-{secrets.token_hex(16)}"
        made = await self._transport.post("/runs", body, idempotency_key=key, seconds=CREATE_SECONDS)
        return AsyncImageRun(self._transport, made)

    async def get_image(self, run_id: str) -> AsyncImageRun:
        """A run of an image, as it is now."""
        return AsyncImageRun(self._transport, await self._transport.get(f"/runs/{part(run_id)}"))

    async def list_images(
        self, *, status: str | None = None, image_digest: str | None = None, limit: int = LIMIT
    ) -> AsyncGenerator[ImageRunSummary, None]:
        """Runs of images, newest first, at most `limit` of them."""
        async for said in self._pages("/runs", {"status": status, "image_digest": image_digest}, limit):
            yield ImageRunSummary.of(said)

    async def _pages(self, path: str, query: Mapping[str, Any], limit: int) -> AsyncGenerator[dict[str, Any], None]:
        asked = {name: _written(value) for name, value in query.items()}
        while limit > 0:
            page: Query = {**asked, "limit": min(PAGE, limit)}
            answer = await self._transport.get(path, page)
            for said in answer["runs"][:limit]:
                yield said
            limit -= len(answer["runs"])
            asked["cursor"] = answer.get("next")
            if asked["cursor"] is None:
                return


def _written(value: Any) -> Any:
    if not isinstance(value, dt.datetime):
        return value
    return (value if value.tzinfo is not None else value.astimezone()).isoformat()
