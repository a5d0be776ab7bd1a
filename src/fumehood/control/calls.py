"""Runs that start, stop and tell each other: a step that calls another workflow, and a run that goes on as a new one.

All of it are messages with ids that follow from the runs' states, so that sending one twice is sending it once. A run
that was called tells its end to whoever called it; a run that ends, or does not wait any more, tells those it called.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from fumehood.broker import values
from fumehood.broker.ports import Broker
from fumehood.control import intake, loading
from fumehood.control.callers import DEFAULT_TENANT
from fumehood.control.starting import ensure_started, send_start
from fumehood.control.workflows import Workflows
from fumehood.engine.desired import Child
from fumehood.engine.messages import Message, MessageType
from fumehood.engine.state import RunState, StepState, StepStatus
from fumehood.errors import BlobNotFoundError, InvalidRequestError, NotFoundError, PayloadTooLargeError

_INHERITED = ("tenant", "labels", "by")
CHECKED_BYTES = 16 * 1024 * 1024
"""Of an input that is held against the schema of the workflow that is called."""
ENGINE = "engine"
"""Who stops runs that nobody waits for."""
LEAST_LINK_MS = 1000
"""Between the beginnings of two runs that go on after one another: a chain without a pause could not be stopped."""


class Calls:
    def __init__(self, broker: Broker, workflows: Workflows, *, now_ms: Callable[[], int]) -> None:
        self._broker = broker
        self._workflows = workflows
        self._now_ms = now_ms

    async def call(self, state: RunState, child: Child, traceparent: str | None, *, again: bool) -> None:
        """Have a run do a step's work. One that cannot be started has failed."""
        try:
            stored = await self._workflows.definition(child.digest)
            if stored.input_schema is not None:
                stored.input_schema.check(await values.inline(child.input, self._broker.blobs(), limit=CHECKED_BYTES))
        except (NotFoundError, InvalidRequestError, PayloadTooLargeError, BlobNotFoundError) as error:
            failure = {"code": "not_started", "message": error.detail}
            said = {"step": child.step, "status": "failed", "failure": failure}
            await self._tell(state.run_id, child.run_id, 0, said)
            return
        parent = {"run_id": state.run_id, "step": child.step, "attempt": child.attempt}
        more = {"parent": parent, "depth": int(state.meta.get("depth") or 0) + 1}
        body = _start(state, stored.document, stored.digest, child.input, more, traceparent)
        await self._send(child.run_id, body, traceparent, again=again)

    async def stop(self, state: RunState, child_id: str) -> None:
        """Nobody waits for it any more. What somebody made of it since, by a retry, is not meant."""
        reason = f"the run that called it, {state.run_id}, does not wait for it any more"
        body = {"reason": reason, "by": ENGINE, "tenant": state.meta.get("tenant") or DEFAULT_TENANT, "try": 0}
        await self._broker.mailboxes.send(child_id, f"{child_id}.stop", intake.encode(MessageType.CANCEL, body))

    async def go_on(self, state: RunState, traceparent: str | None, *, again: bool) -> None:
        """Start the run that continues one which has succeeded."""
        if state.continued_as is None:
            return
        document = json.loads(state.definition.canonical())
        more = {"continued_from": state.run_id, "depth": state.meta.get("depth")}
        body = _start(state, document, state.digest, state.continued_input, more, traceparent)
        at = state.started_at + LEAST_LINK_MS
        if self._now_ms() < at:
            data, run_id = intake.encode(MessageType.START, body), state.continued_as
            await self._broker.timers.set(run_id, "start", at, f"{run_id}.start", data)
        else:
            await self._send(state.continued_as, body, traceparent, again=again)

    async def pass_on(self, state: RunState, cancel: Message) -> None:
        """A cancel that came when its run had just ended, and another one goes on: that one is meant, too. It is kept
        for a run that has not begun. `test_a_cancel_between_two_links_reaches_the_next`"""
        if state.continued_as is None:
            return
        run_id, given = state.continued_as, cancel.id.rpartition(".")[2]
        data = intake.encode(MessageType.CANCEL, {**cancel.body, "try": 0})
        await self._broker.mailboxes.send(run_id, f"{run_id}.cancel.{given}", data)

    async def is_wanted(self, run_id: str, start: Message) -> bool:
        """Whether a run that is to begin was called by one that still waits for it: its start may come from somebody
        who slept since."""
        parent = (start.body.get("meta") or {}).get("parent")
        if not isinstance(parent, dict):
            return True
        state, _ = await loading.load(self._broker, str(parent.get("run_id")))
        step = state.steps.get(str(parent.get("step"))) if state is not None else None
        return step is not None and step.status is StepStatus.CALLING and step.child == run_id

    async def tell_parent(self, state: RunState) -> None:
        """Whoever called this run learns how it ended."""
        parent = state.meta.get("parent")
        if not isinstance(parent, dict):
            return
        failure = state.failure
        said = {
            "step": parent["step"],
            "status": state.status.value,
            "output": state.output,
            "failure": {"code": failure.code, "message": failure.message} if failure is not None else None,
        }
        await self._tell(str(parent["run_id"]), state.run_id, state.tries, said)

    async def stop_all(self, state: RunState) -> None:
        """Those that a run called and that nobody waits for, whoever failed to tell them before."""
        for step in state.steps.values():
            for child_id in (*step.former, *((step.child,) if step.child is not None else ())):
                if is_unwanted(step, child_id):
                    await self.stop(state, child_id)

    async def _tell(self, run_id: str, child_id: str, tries: int, said: Mapping[str, Any]) -> None:
        data = intake.encode(MessageType.CHILD_ENDED, {"child": child_id, **said})
        await self._broker.mailboxes.send(run_id, f"{child_id}.ended.{tries}", data)

    async def _send(self, run_id: str, body: Mapping[str, Any], traceparent: str | None, *, again: bool) -> None:
        send = ensure_started if again else send_start
        await send(self._broker, run_id, body, traceparent)


def is_unwanted(step: StepState, child_id: str) -> bool:
    """Whether nobody waits for a run that a step called, and its end was not what the step ended with."""
    if child_id != step.child:
        return True
    answered = step.status is StepStatus.COMPLETED and step.override is None
    return step.status is not StepStatus.CALLING and not answered


def _start(
    state: RunState,
    document: Mapping[str, Any],
    digest: str,
    given: Any,
    more: Mapping[str, Any],
    traceparent: str | None,
) -> dict[str, Any]:
    meta = {name: state.meta.get(name) for name in _INHERITED} | dict(more) | {"traceparent": traceparent}
    return {
        "definition": document,
        "digest": digest,
        "input": given,
        "meta": {name: value for name, value in meta.items() if value},
        "pins": dict(state.pins),
    }
