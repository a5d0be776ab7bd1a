"""What people tell a run: to stop, to go on, that something happened, that somebody agrees.

An order is a message in the run's inbox: once the broker has it, it will be taken, and once. Whoever gave it is told
whether that has happened already: the journal names the messages that had an effect.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fumehood.broker import names, values
from fumehood.broker.ports import Broker
from fumehood.control import approval_tokens, intake, loading, records, summaries
from fumehood.control.approval_tokens import Claim
from fumehood.control.callers import Caller, Scope
from fumehood.control.runs import Queued, Runs
from fumehood.engine.events import OrderRefused, Record
from fumehood.engine.messages import Ignored, MessageType
from fumehood.engine.orders import can_override, can_retry, may_approve
from fumehood.engine.state import RunState, RunStatus, StepStatus
from fumehood.engine.workers import has_room_for_signals
from fumehood.errors import ArchivedError, ConflictError, ForbiddenError, InvalidRequestError, NotFoundError
from fumehood.wire import blobref, strict_json
from fumehood.wire.job_api import JOB_WORKFLOW
from fumehood.wire.order_api import LONGEST_SIGNAL

PATIENCE_SECONDS = 3.0
"""How long whoever gave an order is kept waiting for its effect."""
LONGEST_CHAIN = 10_000
"""Runs that go on after one another, which a cancel follows to the last."""
BEGINS_MS = 60_000
"""How long after a run's end the one that goes on after it may not have begun: a second, unless deciders are away."""
FIRST_LOOK, LAST_LOOK = 0.01, 0.2
"""Seconds between two looks."""


class Orders:
    def __init__(
        self,
        broker: Broker,
        runs: Runs,
        *,
        now_ms: Callable[[], int],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._broker = broker
        self._runs = runs
        self._now_ms = now_ms
        self._sleep = sleep

    # --- whole runs ----------------------------------------------------------------------------------------

    async def cancel(self, run_id: str, caller: Caller, *, reason: str = "", force: bool = False) -> bool:
        """Ask a run to end. One that has ended stays as it is, and where others go on after it, the last of them is
        meant, also one that is only about to begin, and one that begins while this is on its way (`Calls.pass_on`); one
        that undoes what it did goes on with that, unless forced. Whether there was anybody to tell."""
        state = await self._runs.get(run_id, caller)
        for _ in range(LONGEST_CHAIN):
            if not isinstance(state, RunState) or state.continued_as is None:
                break
            state = await self._next_of(state, state.continued_as, caller)
        if isinstance(state, RunState) and state.status.ended:
            return False
        await self._send(state, caller, MessageType.CANCEL, {"reason": reason, "force": force})
        return True

    async def _next_of(self, state: RunState, next_id: str, caller: Caller) -> RunState | Queued:
        """The run that goes on after one that has ended; an order is kept for one that has not begun."""
        try:
            return await self._runs.get(next_id, caller)
        except NotFoundError:
            if self._now_ms() - state.updated_at > BEGINS_MS:
                raise
            return Queued(next_id, state.definition.name, state.digest)

    async def retry(self, run_id: str, caller: Caller, *, reason: str = "") -> bool:
        """Take a run up again where it failed: what is done stays done."""
        state = await self._begun(run_id, caller)
        if not can_retry(state):
            raise ConflictError(_why_no_retry(state))
        sent = await self._send(state, caller, MessageType.RETRY, {"reason": reason})
        return await self._took(sent, lambda now: now.tries > state.tries)

    async def signal(self, run_id: str, caller: Caller, name: str, data: Any, signal_id: str | None = None) -> bool:
        if not names.is_token(name):
            raise InvalidRequestError("a signal's name has 1 to 128 letters, digits, _ or -")
        _check(data, "data")
        if len(blobref.encode(data)) > LONGEST_SIGNAL:
            raise InvalidRequestError(f"data: a signal has at most {LONGEST_SIGNAL} bytes")
        state = await self._runs.get(run_id, caller)
        if isinstance(state, RunState):
            signal_id = _not_refused(state, signal_id) if signal_id is not None else None
            if signal_id is not None and order_name(run_id, MessageType.SIGNAL, signal_id) in state.consumed:
                return True
            if state.status.ended:
                raise ConflictError(f"the run has ended: {state.status.value}")
            if not has_room_for_signals(state, of_workers=False):
                raise ConflictError(_REFUSALS[Ignored.TOO_MANY.value])
        body = {"name": name, "data": await values.outline(data, self._broker.blobs())}
        sent = await self._send(state, caller, MessageType.SIGNAL, body, signal_id or "")
        return await self._took(sent, lambda now: now.status.ended)

    # --- steps ---------------------------------------------------------------------------------------------

    async def approve(self, run_id: str, step: str, caller: Caller, *, approved: bool, comment: str = "") -> bool:
        state = await self._begun(run_id, caller)
        if not may_approve(state, _asked(state, step), caller.name):
            raise ForbiddenError("somebody else is asked to decide about this step")
        return await self._decided(state, step, caller, {"approved": approved, "comment": comment})

    async def mint(self, run_id: str, step: str, caller: Caller, *, who: str, seconds: int) -> tuple[str, int]:
        """A token that lets somebody decide about a step; and when it ends (ms). Where the definition names who may
        decide, only one of those, or the administrator, makes one."""
        state = await self._begun(run_id, caller)
        named = may_approve(state, _asked(state, step), who)
        if not named or not (caller.may(Scope.ALL) or may_approve(state, step, caller.name)):
            raise ForbiddenError("somebody else is asked to decide about this step")
        expires_ms = self._now_ms() + seconds * 1000
        visit = state.steps[step].attempt
        claim = Claim(run_id, step, visit, who, caller.name, caller.tenant, expires_ms)
        return approval_tokens.mint(approval_tokens.key_of(self._broker), claim), expires_ms

    async def approve_with(self, token: str, *, approved: bool, comment: str = "") -> tuple[str, bool]:
        """What the bearer of a token decides; about which run."""
        claim = self.claim(token)
        bearer = Caller(claim.tenant, claim.who, frozenset())
        state = await self._begun(claim.run_id, bearer)
        _asked(state, claim.step)
        if state.steps[claim.step].attempt != claim.visit:
            raise ConflictError("the token is for an earlier time that this step was asked about")
        said = {"approved": approved, "comment": comment, "via": claim.via}
        return claim.run_id, await self._decided(state, claim.step, bearer, said)

    def claim(self, token: str) -> Claim:
        """What a token is for, and for whom; `InvalidTokenError` where it is for nothing."""
        return approval_tokens.read(approval_tokens.key_of(self._broker), token, self._now_ms())

    async def _decided(self, state: RunState, step: str, caller: Caller, said: Mapping[str, Any]) -> bool:
        attempt = state.steps[step].attempt
        sent = await self._send(state, caller, MessageType.APPROVE, {"step": step, "attempt": attempt, **said})
        return await self._took(sent, lambda now: now.status.ended)

    async def override(
        self, run_id: str, step: str, caller: Caller, *, action: str, reason: str, output: Any = None
    ) -> bool:
        """Decide about a step by hand; a run that failed over it goes on."""
        _check(output, "output")
        state = await self._begun(run_id, caller)
        if step not in state.steps:
            raise NotFoundError("this run has no such step")
        if state.definition.name == JOB_WORKFLOW:
            raise ConflictError("this run is a job: what it comes to is its providers' to say, and nobody else's")
        if state.status.ended and not can_retry(state):
            raise ConflictError(_why_no_retry(state))
        if not can_override(state, step):
            raise ConflictError(f"nothing can be decided about this step: it is {state.steps[step].status.value}")
        kept = await values.outline(output, self._broker.blobs())
        body = {"step": step, "action": action, "reason": reason, "output": kept}
        sent = await self._send(state, caller, MessageType.OVERRIDE, body)
        return await self._took(sent, lambda now: not can_override(now, step))

    # --- all of them ---------------------------------------------------------------------------------------

    async def _begun(self, run_id: str, caller: Caller) -> RunState:
        state = await self._runs.get(run_id, caller)
        if isinstance(state, Queued):
            raise ConflictError("the run has not begun yet")
        if state.status.ended and summaries.ARCHIVED in (await summaries.read(self._broker, run_id))[0]:
            raise ArchivedError("the run was archived: start a new one")
        return state

    async def _send(
        self, state: RunState | Queued, caller: Caller, kind: MessageType, body: Mapping[str, Any], given: str = ""
    ) -> _Sent:
        """Once this returns, the order will be taken."""
        run_id = state.run_id
        last = await self._broker.journal.last(run_id)
        order_id = order_name(run_id, kind, given or secrets.token_hex(8))
        tries = state.tries if isinstance(state, RunState) else 0
        said = {**body, "by": caller.name, "tenant": caller.tenant, "try": tries}
        await self._broker.mailboxes.send(run_id, order_id, intake.encode(kind, said))
        return _Sent(run_id, order_id, last.seq if last is not None else 0)

    async def _took(self, sent: _Sent, is_over: Callable[[RunState], bool]) -> bool:
        """Whether it has had its effect by now; a conflict where it will have none."""
        pause, waited, seen, blobs = FIRST_LOOK, 0.0, sent.after, self._broker.blobs()
        while waited < PATIENCE_SECONDS:
            for entry in await self._broker.journal.read(sent.run_id, after=seen):
                seen = entry.seq
                record = await records.decode(entry, blobs)
                if sent.order_id in record.consumed:
                    _check_taken(record, sent.order_id)
                    return True
                if record.ends and is_over(await self._loaded(sent.run_id)):
                    raise ConflictError(_TOO_LATE)
            await self._sleep(pause)
            waited, pause = waited + pause, min(2 * pause, LAST_LOOK)
        return False

    async def _loaded(self, run_id: str) -> RunState:
        state, _ = await loading.load(self._broker, run_id)
        if state is None:
            raise NotFoundError("there is no such run")
        return state


@dataclass(frozen=True, slots=True)
class _Sent:
    """An order on its way, and where in the journal to look for what becomes of it."""

    run_id: str
    order_id: str
    after: int


def order_name(run_id: str, kind: MessageType, given: str) -> str:
    return f"{run_id}.{kind.value}.{given}"


def _not_refused(state: RunState, given: str) -> str:
    """A signal that was refused is another one when it is sent again under its id: the first is known, and would be
    passed over. Callers' own ids have no dot."""
    name, count = given, 0
    while order_name(state.run_id, MessageType.SIGNAL, name) in state.refused:
        count += 1
        name = f"{given}.{count}"
    return name


def _check_taken(record: Record, order_id: str) -> None:
    for event in record.events:
        if isinstance(event, OrderRefused) and event.order == order_id:
            raise ConflictError(_REFUSALS.get(event.reason, _TOO_LATE))


_TOO_LATE = "somebody else was quicker: it is decided already"
_REFUSALS = {
    Ignored.TOO_MANY.value: "too many signals wait in this run",
    Ignored.NOT_ALLOWED.value: "somebody else is asked to decide about this step",
    Ignored.OTHER_TRY.value: "the run was taken up again meanwhile",
}


def _asked(state: RunState, step: str) -> str:
    found = state.steps.get(step)
    if found is None:
        raise NotFoundError("this run has no such step")
    if found.status is not StepStatus.AWAITING_APPROVAL:
        raise ConflictError(f"nobody is asked about this step: it is {found.status.value}")
    return step


def _check(value: Any, name: str) -> None:
    if not strict_json.is_flat(value):
        raise InvalidRequestError(f"{name}: it is nested too deeply")
    if blobref.mentions_blob(value):
        raise InvalidRequestError(f"{name}: the key {blobref.KEY} is not for callers")


def _why_no_retry(state: RunState) -> str:
    if not state.status.ended:
        return "the run is under way"
    if state.status is RunStatus.SUCCEEDED:
        return "the run has succeeded"
    return "what the run did was undone: start a new one"
