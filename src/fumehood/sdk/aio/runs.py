"""Runs of workflows: followed, waited for, told things, and read."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import secrets
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Self

from fumehood.errors import InvalidRequestError, LimitExceededError, RunFailedError, UnverifiedError
from fumehood.sdk.aio import here
from fumehood.sdk.aio.logs import follow_logs, read_logs
from fumehood.sdk.aio.receipts import AsyncReceipt, AsyncReceipts
from fumehood.sdk.aio.transport import AsyncTransport, part
from fumehood.sdk.aio.waiting import AsyncWaiting
from fumehood.sdk.run_values import ENDED, Failure, LogPiece, RunEvent, RunLogs, RunStatus, RunStep, StepStatus, word
from fumehood.sdk.values import moment
from fumehood.wire import blobref
from fumehood.wire.runner_api import MOST_TAIL_LINES

MOST_VALUE_BYTES = 64 * 1024 * 1024
"""Of large values that are fetched for one value."""
MOST_VALUES = 1000
DEEPEST = 8
"""A large value may hold references to others."""


class AsyncRun(AsyncWaiting):
    """A run of a workflow. What it says of itself is as it was when it was last asked: by `refresh` or `wait`.

    run = await client.workflows.run("hello")
    await run.wait(timeout=60)
    assert run.status == "succeeded", run.error
    """

    def __init__(self, transport: AsyncTransport, said: dict[str, Any]) -> None:
        """Made by `client.workflows.run` and `client.runs.get`."""
        super().__init__(transport, f"/v1/runs/{part(str(said['run_id']))}", said)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self._said.get('status')}>"

    # --- what it says ---------------------------------------------------------------------------------------

    @property
    def status(self) -> RunStatus | str:
        """Where it stands; a word that only later servers have is a plain text."""
        return word(RunStatus, self._said["status"])

    @property
    def has_ended(self) -> bool:
        """Whether it had when it was last asked about."""
        if isinstance(self.status, RunStatus):
            return self.status in ENDED
        return self.ended_at is not None

    @property
    def ok(self) -> bool:
        """It has succeeded."""
        return self.status == RunStatus.SUCCEEDED

    @property
    def workflow(self) -> str | None:
        """The workflow's name; None while that is not known yet."""
        return self._said.get("workflow")

    @property
    def input(self) -> Any:
        """What it was started with."""
        return self._said.get("input")

    @property
    def output(self) -> Any:
        """What it gave, once it has succeeded; after `wait` with all that was large."""
        return self._said.get("output")

    @property
    def error(self) -> Failure | None:
        """Why it failed."""
        return Failure.of(self._said.get("error"))

    @property
    def failed_step(self) -> str | None:
        """The step that it failed over."""
        return self._said.get("failed_step")

    @property
    def steps(self) -> Mapping[str, RunStep]:
        """By their ids."""
        return {name: RunStep.of(name, said) for name, said in (self._said.get("steps") or {}).items()}

    @property
    def labels(self) -> Mapping[str, str]:
        """What it was given to be found by."""
        return dict(self._said.get("labels") or {})

    @property
    def started_at(self) -> dt.datetime | None:
        """When it was first looked at."""
        return moment(self._said.get("started_at"))

    @property
    def ended_at(self) -> dt.datetime | None:
        """When it ended."""
        return moment(self._said.get("ended_at"))

    @property
    def said(self) -> Mapping[str, Any]:
        """All that the server says of it."""
        return self._said

    # --- how it goes -----------------------------------------------------------------------------------------

    async def refresh(self) -> Self:
        """Ask how it stands now."""
        await self._look()
        return self

    async def wait(self, timeout: float | None = None) -> Self:
        """Until it has ended, well or not: `status` says how, `check()` raises unless it succeeded.

        `timeout` in seconds, None for as long as it takes; `WaitTimeoutError` leaves the run as it is. A server that
        is restarted meanwhile is waited for.
        """
        await self._until_ended(timeout)
        if blobref.refs(self.output):
            self._said["output"] = await self._value(self.output, whole=False)
        return self

    def check(self) -> Self:
        """Itself where it has succeeded; else `RunFailedError`, which says why not."""
        if self.ok:
            return self
        why, step = self.error, f" over {self.failed_step}" if self.failed_step else ""
        said = f"{self.id} is {str(self.status).replace('_', ' ')}{step}"
        said += f": {why.message or why.code}" if why is not None else ""
        failed, remedy = self.steps.get(self.failed_step or ""), None
        if failed is not None and failed.error is not None and failed.error.stderr_tail is not None:
            remedy = f"`run.logs({failed.id!r})` has what it printed; `retry()` takes the run up where it failed"
        raise RunFailedError(why.code if why is not None else str(self.status), said, run=self).advise(remedy)

    async def events(self, *, after: str | None = None) -> AsyncGenerator[RunEvent, None]:
        """All that happens in it, from the beginning or behind an event that was seen, until it has ended.

        run = await client.workflows.run("hello")
        told = [event.type async for event in run.events()]
        assert told[-1] == "run.succeeded"
        """
        told = self._transport.events(f"{self._path}/events", last_event_id=after)
        async with here.closing(told) as events:
            async for event in events:
                if event.event != "end":
                    yield RunEvent.of(event.id, event.event, event.data)

    # --- what its sandboxes print ----------------------------------------------------------------------------

    async def logs(self, step: str, tail: int = MOST_TAIL_LINES) -> RunLogs:
        """What a sandbox step has printed so far, in its newest attempt: the last lines of each stream."""
        return await read_logs(self._transport, self._logs(step), tail)

    def follow(self, step: str) -> AsyncGenerator[LogPiece, None]:
        """What a sandbox step prints, from the beginning, as it comes, until the step has ended for good."""
        return follow_logs(self._transport, self._logs(step))

    def _logs(self, step: str) -> str:
        return f"{self._path}/steps/{part(step)}/logs"

    # --- large values ----------------------------------------------------------------------------------------

    async def step_output(self, step: str) -> Any:
        """What a step gave, with all that was large. `run.steps` has it as it was told."""
        if step not in self.steps:
            raise InvalidRequestError(f"{self.id} has no step {step}").advise(f"it has {', '.join(self.steps)}")
        return await self.value(self.steps[step].output)

    async def value(self, value: Any) -> Any:
        """A value of this run with what its references stand for. Each is checked against its hash."""
        return await self._value(value, whole=True)

    async def _value(self, value: Any, *, whole: bool) -> Any:
        """`whole`: all of it, or `LimitExceededError`; else what is too large stays a reference."""
        room, number = MOST_VALUE_BYTES, MOST_VALUES
        for _ in range(DEEPEST):
            contents = {}
            for ref in blobref.refs(value):
                data = await self._content(ref, room) if number > 0 else None
                if data is None and whole:
                    raise LimitExceededError(f"the value has more than {MOST_VALUE_BYTES} bytes").advise(
                        "fetch its parts one by one with run.value(part)"
                    )
                if data is not None:
                    contents[ref], room, number = json.loads(data), room - len(data), number - 1
            if not contents:
                break
            value = blobref.replaced(value, contents)
        return value

    async def _content(self, ref: str, room: int) -> bytes | None:
        """None: there is more of it than there is room."""
        found = bytearray()
        async with self._transport.download(f"{self._path}/blobs/{part(ref)}") as pieces:
            async for piece in pieces:
                found += piece
                if len(found) > room:
                    return None
        if f"sha256:{hashlib.sha256(found).hexdigest()}" != ref:
            raise UnverifiedError("output_mismatch", f"the server sent something else than {ref}").advise()
        return bytes(found)

    # --- telling it things -----------------------------------------------------------------------------------

    async def cancel(self, reason: str = "", *, force: bool = False) -> None:
        """Ask it to end; what it did is undone first, where its steps say how, unless by `force`."""
        await self._transport.post(f"{self._path}:cancel", {"reason": reason, "force": force}, again=True)

    async def retry(self, reason: str = "") -> bool:
        """Take it up again where it failed; what was done is not done again. Like all orders, it gives whether it has
        had its effect; if not yet, it is safe with the server, and will have."""
        return _done(await self._transport.post(f"{self._path}:retry", {"reason": reason}))

    async def signal(self, name: str, data: Any = None, *, signal_id: str | None = None) -> bool:
        """Tell it something that a step waits for, now or later. With the same `signal_id` again it is told once."""
        body = {"data": data, "id": signal_id or secrets.token_hex(16)}
        return _done(await self._transport.post(f"{self._path}/signals/{part(name)}", body, again=True))

    async def approve(self, step: str | None = None, comment: str = "") -> bool:
        """Say yes to a step that waits for it; which one need not be said where only one does."""
        return await self._of_step(step or await self._asking(), "approve", comment=comment)

    async def reject(self, step: str | None = None, comment: str = "") -> bool:
        """Say no: the step fails."""
        return await self._of_step(step or await self._asking(), "reject", comment=comment)

    async def skip(self, step: str, reason: str) -> bool:
        """Decide that a step is not done; those that need it go on."""
        return await self._of_step(step, "skip", reason=reason)

    async def complete(self, step: str, reason: str, output: Any = None) -> bool:
        """Decide what a step has given; those that need it go on."""
        return await self._of_step(step, "complete", reason=reason, output=output)

    async def _asking(self) -> str:
        await self._look()
        found = [name for name, step in self.steps.items() if step.status == StepStatus.AWAITING_APPROVAL]
        if len(found) == 1:
            return found[0]
        which = f"several steps of {self.id} wait for an approval: {', '.join(found)}"
        raise InvalidRequestError(which if found else f"no step of {self.id} waits for an approval").advise(
            "name the step; `run.steps` shows how they stand"
        )

    async def _of_step(self, step: str, verb: str, **body: Any) -> bool:
        return _done(await self._transport.post(f"{self._path}/steps/{part(step)}:{verb}", body))

    def receipt(self, step: str) -> AsyncReceipt:
        """What the node signed about a step that ran in a sandbox."""
        return AsyncReceipts(self._transport).of_run(self.id, step)


def _done(answer: Any) -> bool:
    return isinstance(answer, dict) and bool(answer.get("done"))
