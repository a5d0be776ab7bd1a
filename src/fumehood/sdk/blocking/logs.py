# Made by scripts/derive-sync from sdk/aio/logs.py; edit that, not this.
"""The output of sandboxes in runs, as it is kept and as it appears."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from fumehood.sdk.blocking import here
from fumehood.sdk.blocking.transport import Transport
from fumehood.sdk.run_values import LogPiece, RunLogs


def read_logs(transport: Transport, path: str, tail: int) -> RunLogs:
    """The last lines of each stream."""
    said = transport.get(path, {"tail_lines": tail})
    return RunLogs(str(said["stdout"]), str(said["stderr"]), bool(said["truncated"]))


def follow_logs(transport: Transport, path: str) -> Generator[LogPiece, None]:
    """From the beginning, until it has ended for good."""
    attempt, cuts = 1, set[tuple[Any, ...]]()
    with here.closing(transport.events(f"{path}/stream", patient=True)) as events:
        for event in events:
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
