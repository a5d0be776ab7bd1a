"""`client.python`: some lines of Python, run by whichever worker can, in a sandbox that is gone afterwards."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from fumehood.errors import FumehoodError, WaitTimeoutError
from fumehood.sdk import problems
from fumehood.sdk.aio import here
from fumehood.sdk.aio.receipts import AsyncReceipt
from fumehood.sdk.aio.transport import AsyncTransport, part
from fumehood.sdk.asking import ANSWER_SECONDS, Patience
from fumehood.sdk.python_values import ENDED, PythonEnd, parts_of
from fumehood.sdk.verification import Holding
from fumehood.wire.command_api import COMMANDS_PATH
from fumehood.wire.console.codes import Capability

WAIT_SECONDS = 20.0
"""That one answer may wait for the end: shorter than any proxy is patient."""
LATE_SECONDS = 300.0
"""Beyond its own time: an image may have to be fetched, and a server may be away for a while."""


@dataclass(frozen=True, slots=True)
class AsyncPythonResult(PythonEnd):
    """How it ended, what it printed, and what its worker signed about that.

    result = await client.python.run("print(6 * 7)")
    assert (result.stdout, result.exit_code) == ("42\\n", 0)
    """

    transport: AsyncTransport = field(kw_only=True, repr=False, compare=False)

    @property
    def receipt(self) -> AsyncReceipt:
        """What the worker signed about it. How it ended and what it printed, as they stand here, are checked against
        that."""
        outputs = {}
        if self.exit_code is not None:
            outputs = {"stdout.returned": self.stdout.encode(), "stderr.returned": self.stderr.encode()}
        ended: dict[str, Any] = {"status": "succeeded" if self.status == "succeeded" else "failed"}
        if self.exit_code is not None:
            ended["shell_code"] = self.exit_code
        holding = Holding(task={"command_id": self.command_id}, outputs=outputs, ended=ended)
        return AsyncReceipt(self.transport, f"{COMMANDS_PATH}/{part(self.command_id)}/receipt", holding=holding)


class AsyncPython:
    """Python without a sandbox of one's own: what takes longer, or has files, wants `client.sandboxes`."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def run(
        self, code: str, *, timeout: float = 60.0, check: bool = False, idempotency_key: str | None = None
    ) -> AsyncPythonResult:
        """Run it in the worker's own image (`WORKER_PYTHON_EXEC_DOCKER_IMAGE` of the worker, `python:slim` unless
        set; `client.sandboxes` takes any other), and wait for its end; after `timeout` seconds everything of it is
        killed. The result says how it ended; with `check`, anything but exit code 0 is `CommandFailedError`. The same
        `idempotency_key` again is the same command, and runs once."""
        key = idempotency_key or f"sdk-{secrets.token_hex(16)}"
        body = {
            "capability": Capability.PYTHON_EXEC.value,
            "payload": {"code": code},
            "timeout_ms": max(1, round(timeout * 1000)),
            "wait_ms": round(WAIT_SECONDS * 1000),
        }
        seconds, until = WAIT_SECONDS + ANSWER_SECONDS, time.monotonic() + timeout + LATE_SECONDS
        said = await self._transport.post(COMMANDS_PATH, body, idempotency_key=key, seconds=seconds)
        patience, path = Patience(), f"{COMMANDS_PATH}/{part(str(said['command_id']))}"
        while said["status"] not in ENDED and said.get("ended_at") is None:
            if time.monotonic() > until:
                raise WaitTimeoutError(
                    f"{said['command_id']} has not ended within {timeout:g} s, nor soon after"
                ).advise("see whether a worker is there: `fumehood worker ls`")
            try:
                said = await self._transport.get(path, {"wait_ms": round(WAIT_SECONDS * 1000)}, seconds=seconds)
                patience.went_well()
            except FumehoodError as error:
                pause = patience.next_pause(time.monotonic(), error.retry_after_seconds or 0.0)
                if pause is None or not problems.is_passing(error):
                    raise
                await here.sleep(pause)
        result = AsyncPythonResult(**parts_of(said), transport=self._transport)
        return result.check() if check else result
