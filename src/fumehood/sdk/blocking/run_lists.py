# Made by scripts/derive-sync from sdk/aio/run_lists.py; edit that, not this.
"""`client.runs`: runs by their ids, and lists of them."""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from fumehood.sdk.blocking.image_runs import ImageOptions, ImageRun, body_of
from fumehood.sdk.blocking.runs import Run
from fumehood.sdk.blocking.transport import Query, Transport, part
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


class Runs:
    """Runs of workflows, and of single images."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    # --- of workflows ----------------------------------------------------------------------------------------

    def get(self, run_id: str) -> Run:
        """A run, as it is now. `client.workflows.run` starts one."""
        return Run(self._transport, self._transport.get(f"/v1/runs/{part(run_id)}"))

    def list(self, *, limit: int = LIMIT, **which: Unpack[RunFilter]) -> Generator[RunSummary, None]:
        """Runs, newest first, at most `limit` of them. A new run is in the list moments after it was started.

        for run in client.runs.list(status="failed", limit=20):
            print(run.id, run.error)
        """
        query: dict[str, Any] = {
            **which,
            "label": [f"{name}={value}" for name, value in which.get("labels", {}).items()],
        }
        query.pop("labels", None)
        for said in self._pages("/v1/runs", query, limit):
            yield RunSummary.of(said)

    # --- of single images ------------------------------------------------------------------------------------

    def start_image(
        self,
        image: str,
        command: str | Sequence[str] | None = None,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[ImageOptions],
    ) -> ImageRun:
        """Run an image in a sandbox. A text goes to a shell, a list is run as it is; without either, what the image
        says. It goes on whatever becomes of this program; the same `idempotency_key` again is the same run.

        `RunDeniedError` where the policy does not let it run: its `evidence` says on what ground.
        """
        body = body_of(image, command, options)
        key = idempotency_key or f"sdk-{secrets.token_hex(16)}"
        made = self._transport.post("/runs", body, idempotency_key=key, seconds=CREATE_SECONDS)
        return ImageRun(self._transport, made)

    def get_image(self, run_id: str) -> ImageRun:
        """A run of an image, as it is now."""
        return ImageRun(self._transport, self._transport.get(f"/runs/{part(run_id)}"))

    def list_images(
        self, *, status: str | None = None, image_digest: str | None = None, limit: int = LIMIT
    ) -> Generator[ImageRunSummary, None]:
        """Runs of images, newest first, at most `limit` of them."""
        for said in self._pages("/runs", {"status": status, "image_digest": image_digest}, limit):
            yield ImageRunSummary.of(said)

    def _pages(self, path: str, query: Mapping[str, Any], limit: int) -> Generator[dict[str, Any], None]:
        asked = {name: _written(value) for name, value in query.items()}
        while limit > 0:
            page: Query = {**asked, "limit": min(PAGE, limit)}
            answer = self._transport.get(path, page)
            yield from answer["runs"][:limit]
            limit -= len(answer["runs"])
            asked["cursor"] = answer.get("next")
            if asked["cursor"] is None:
                return


def _written(value: Any) -> Any:
    if not isinstance(value, dt.datetime):
        return value
    return (value if value.tzinfo is not None else value.astimezone()).isoformat()
