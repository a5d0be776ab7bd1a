"""Runs of single images: one command, in one sandbox, with what it printed and what its node signed."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Self, TypedDict

from fumehood.errors import RunFailedError
from fumehood.sdk.aio.logs import follow_logs, read_logs
from fumehood.sdk.aio.receipts import AsyncReceipt
from fumehood.sdk.aio.transport import AsyncTransport, part
from fumehood.sdk.aio.waiting import AsyncWaiting
from fumehood.sdk.run_values import ENDED, LogPiece, RunLogs, RunStatus, word
from fumehood.sdk.values import moment
from fumehood.sdk.verification import Holding
from fumehood.sdk.workflow_parts import Network, command, environment
from fumehood.wire.runner_api import MOST_TAIL_LINES
from fumehood.wire.sandbox import RUN_STEP


class ImageOptions(TypedDict, total=False):
    """How an image is run."""

    args: Sequence[str]
    """Replaces the image's own arguments, and leaves its entrypoint."""
    env: Mapping[str, str]
    """No secrets: what looks like one is refused."""
    timeout: float
    """Seconds from the start of the command, rounded up to whole ones, then it is killed; 300 unless said otherwise."""
    memory_mib: int
    """512 unless said otherwise."""
    cpu_millis: int
    """Thousandths of a core; 1000 unless said otherwise."""
    network: Network
    """`deny-all` unless said otherwise."""
    context: Mapping[str, Any]
    """Whatever you want to find again at the run."""
    attempts: int
    """How often it may be begun, should a node be lost under it; once unless said otherwise."""


def body_of(image: str, words: str | Sequence[str] | None, options: ImageOptions) -> dict[str, Any]:
    """A request of the Runner API. A text goes to a shell, a list is run as it is."""
    limits = {
        "cpu_millis": options.get("cpu_millis", 1000),
        "memory_mb": options.get("memory_mib", 512),
        "timeout_seconds": math.ceil(options.get("timeout", 300)),
    }
    return {
        "image_ref": image,
        "command": command(words) or [],
        "args": list(options.get("args", ())),
        "env_allowlist": environment(options.get("env")) or {},
        "resources": limits,
        "network_policy_profile": options.get("network", "deny-all"),
        "workflow_context": dict(options.get("context", {})),
        "max_attempts": options.get("attempts", 1),
    }


class AsyncImageRun(AsyncWaiting):
    """A run of an image. What it says of itself is as it was when it was last asked: by `refresh` or `wait`.

    run = await client.runs.start_image("python:3.12-slim", "python3 -c 'print(6*7)'")
    await run.wait(timeout=120)
    assert (await run.logs()).stdout == "42\\n"
    assert await run.receipt().verify()
    """

    def __init__(self, transport: AsyncTransport, said: dict[str, Any]) -> None:
        """Made by `client.runs.start_image` and `client.runs.get_image`."""
        super().__init__(transport, f"/runs/{part(str(said['run_id']))}", said)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self._said.get('status')}>"

    @property
    def status(self) -> RunStatus | str:
        """Where it stands; a word that only later servers have is a plain text."""
        return word(RunStatus, self._said["status"])

    @property
    def has_ended(self) -> bool:
        """Whether it had when it was last asked about."""
        if isinstance(self.status, RunStatus):
            return self.status in ENDED
        return self.finished_at is not None

    @property
    def ok(self) -> bool:
        """It has succeeded: exit code 0."""
        return self.status == RunStatus.SUCCEEDED

    @property
    def exit_code(self) -> int | None:
        """Of its command, where that ended with one."""
        return self._said.get("exit_code")

    @property
    def reason(self) -> str | None:
        """Why it ended as it did: `exit`, `oom`, `signal`, `timeout`, `stopped`, `image_error`, `node_lost` …"""
        return self._said.get("reason")

    @property
    def detail(self) -> str:
        """That in words, where it failed."""
        return str(self._said.get("detail") or "")

    @property
    def image(self) -> str | None:
        """What was asked for."""
        return self._said.get("image_ref")

    @property
    def image_digest(self) -> str | None:
        """What was run."""
        return self._said.get("image_digest")

    @property
    def evidence(self) -> Mapping[str, Any]:
        """On what ground its image was let in."""
        return dict(self._said.get("policy_evidence") or {})

    @property
    def started_at(self) -> dt.datetime | None:
        """When its command was sent."""
        return moment(self._said.get("started_at"))

    @property
    def finished_at(self) -> dt.datetime | None:
        """When it ended."""
        return moment(self._said.get("finished_at"))

    @property
    def said(self) -> Mapping[str, Any]:
        """All that the server says of it."""
        return self._said

    async def refresh(self) -> Self:
        """Ask how it stands now."""
        await self._look()
        return self

    async def wait(self, timeout: float | None = None) -> Self:
        """Until it has ended, well or not. `WaitTimeoutError` leaves it as it is."""
        await self._until_ended(timeout)
        return self

    def check(self) -> Self:
        """Itself where it has succeeded; else `RunFailedError`, which says why not."""
        if self.ok:
            return self
        code = f" with exit code {self.exit_code}" if self.exit_code is not None else ""
        said = f"{self.id} is {str(self.status).replace('_', ' ')}{code}"
        said += f": {self.detail}" if self.detail else f" ({self.reason})" if self.reason else ""
        raise RunFailedError(self.reason or str(self.status), said, run=self).advise("`run.logs()` has what it printed")

    async def logs(self, tail: int = MOST_TAIL_LINES) -> RunLogs:
        """What it has printed so far: the last lines of each stream."""
        return await read_logs(self._transport, f"{self._path}/logs", tail)

    def follow(self) -> AsyncGenerator[LogPiece, None]:
        """What it prints, from the beginning to its end, as it comes.

        run = await client.runs.start_image("python:3.12-slim", "echo hello")
        assert "".join([piece.text async for piece in run.follow()]) == "hello\\n"
        """
        return follow_logs(self._transport, f"{self._path}/logs")

    async def cancel(self) -> None:
        """Ask it to end: its command gets SIGTERM, and SIGKILL ten seconds later."""
        await self._transport.post(f"{self._path}/stop", again=True)

    def receipt(self) -> AsyncReceipt:
        """What the node signed about it. Once the run has ended, its exit code is checked against that, too."""
        ended = {"exit_code": self.exit_code, "status": str(self.status)} if self.has_ended else {}
        holding = Holding(task={"run_id": self.id, "step_id": RUN_STEP}, ended=ended)
        return AsyncReceipt(self._transport, f"{self._path}/receipt", holding=holding)
