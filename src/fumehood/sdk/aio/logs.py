"""The output of sandboxes in runs, as it is kept and as it appears."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from fumehood.sdk.aio import here
from fumehood.sdk.aio.transport import AsyncTransport
from fumehood.sdk.run_values import LogPiece, RunLogs


async def read_logs(transport: AsyncTransport, path: str, tail: int) -> RunLogs:
    """The last lines of each stream."""
    said = await transport.get(path, {"tail_lines": tail})
    return RunLogs(str(said["stdout"]), str(said["stderr"]), bool(said["truncated"]))


async def follow_logs(transport: AsyncTransport, path: str) -> AsyncGenerator[LogPiece, None]:
    """From the beginning, until it has ended for good."""
    attempt, cuts = 1, set[tuple[Any, ...]]()
    async with here.closing(transport.events(f"{path}/stream", patient=True)) as events:
        async for event in events:
            if event.event == "start":
                attempt = int(event.data["attempt"])
            elif event.event in ("stdout", "stderr"):
                yield LogPiece(event.event, str(event.data["text"]), attempt)
            elif event.event == "cut":
                stream = str(event.data["stream"])
                where = (attempt, stream, event.data["offset"], event.data.get("resumes_at"))
                if where not in cuts:  # a cut is repeated after a reconnection
                    cuts.add(where)
                    yield LogPiece(stream, "", attempt, cut=True)
