"""One run of the pure engine, its journal, and a clock that only tests move.

After every decision the state is held against the fold of the journal, against its own snapshot, and the effects
against what should be out before and after.
"""

from __future__ import annotations

import json
from typing import Any

from fumehood.engine import definition, snapshot
from fumehood.engine.decide import decide
from fumehood.engine.desired import Child, Claim, Effects, Task, Timer, desired, effects, is_former
from fumehood.engine.events import Event, Record
from fumehood.engine.fold import fold
from fumehood.engine.messages import Ignored, Message, MessageType
from fumehood.engine.state import Failure, RunState, StepStatus

RUN = "run-1"
PAST = 20
"""States that are kept."""


def steps(*lines: str, more: str = "") -> str:
    return "name: w\n" + more + "steps:\n" + "".join(f"- {{{line}}}\n" for line in lines)


class RunWorld:
    def __init__(self, text: str, given: Any = None, *, pins: dict[str, str] | None = None, **meta: Any) -> None:
        self.now = 1_000_000
        self.journal: list[bytes] = []
        self.state: RunState | None = None
        self._folded: RunState | None = None
        self.ignored: list[Ignored] = []
        self.done = Effects()
        """What the last decision led to."""
        self._ids = 0
        self._past: list[RunState] = []
        self._timers: set[str] = set()
        """All that were ever set."""
        read = definition.parse(text)
        body = {"definition": json.loads(read.canonical()), "digest": read.digest, "input": given}
        self.send(MessageType.START, **body, meta=meta, pins=pins)

    def send(self, what: MessageType, **body: Any) -> Message:
        """A message with an id of its own; it may be sent again."""
        self._ids += 1
        message = Message(f"m{self._ids}", what, body)
        self.decide([message])
        return message

    def decide(self, messages: list[Message]) -> None:
        before = self.state
        decision = decide(RUN, before, messages, self.now)
        self.ignored += [reason for _, reason in decision.ignored]
        if decision.record is not None:
            self.journal.append(decision.record.encode())
            self._folded = fold(RUN, [Record.decode(self.journal[-1])], self._folded)
            self.state = decision.state
        self._check(before)

    def _check(self, before: RunState | None) -> None:
        assert self._folded == self.state, "state is the fold of the journal, and nothing else"
        assert self.state is None or snapshot.decode(snapshot.encode(self.state)) == self.state
        self.done = effects(before, self.state)
        old, new = desired(before), desired(self.state)
        assert {*self.done.publish} == {*new.tasks} - {*old.tasks}
        assert {*self.done.revoke} <= {*old.tasks} - {*new.tasks}, "nothing is taken away that should be out"
        assert {*self.done.call} == {*new.children} - {*old.children}
        assert {*self.done.ask} == {*new.claims} - {*old.claims}
        assert {*self.done.leave} == {*old.claims} - {*new.claims}
        self._check_timers({timer.id for timer in new.timers})

    def _check_timers(self, wanted: set[str]) -> None:
        """Whoever heals a run from whatever state it has seen takes nothing away that is wanted now."""
        self._timers |= wanted
        if self.state is None or self.state.status.ended:
            return
        self._past = [*self._past[-PAST:], self.state]
        for state in self._past:
            assert not [name for name in wanted if is_former(state, name)], "a timer that is wanted"
        again = {f"sleep_{name}_0_0_0" for name, step in self.state.steps.items() if not step.status.ended}
        left = {name for name in self._timers - wanted - again if not is_former(self.state, name)}
        assert not left, f"timers of the past that nobody would find: {left}"

    # --- looking -------------------------------------------------------------------------------------------

    @property
    def run(self) -> RunState:
        assert self.state is not None
        return self.state

    @property
    def failure(self) -> Failure:
        assert self.run.failure is not None
        return self.run.failure

    def status(self, step: str) -> StepStatus:
        return self.run.steps[step].status

    def events(self, *kinds: type[Event]) -> list[Event]:
        """Of the whole journal, those of these kinds; all without one."""
        found = [event for data in self.journal for event in Record.decode(data).events]
        return [event for event in found if not kinds or isinstance(event, kinds)]

    def tasks(self) -> dict[str, Task]:
        return {task.step: task for task in desired(self.state).tasks}

    def timers(self) -> list[Timer]:
        return sorted(desired(self.state).timers, key=lambda timer: (timer.at, timer.id))

    def child(self, step: str) -> Child:
        return next(child for child in desired(self.state).children if child.step == step)

    def claims(self) -> dict[str, Claim]:
        """By step."""
        return {claim.step: claim for claim in desired(self.state).claims}

    # --- what workers say ----------------------------------------------------------------------------------

    def complete(self, step: str, output: Any = None, **more: Any) -> None:
        task = self.tasks().get(step)
        more = {"attempt": task.attempt, "iteration": task.iteration, **more} if task else more
        self.send(MessageType.STEP_COMPLETED, step=step, output=output, **more)

    def fail(self, step: str, code: str = "failed", **more: Any) -> None:
        self.send(MessageType.STEP_FAILED, step=step, code=code, **more)

    # --- what others say -----------------------------------------------------------------------------------

    def fire(self) -> None:
        """The next timer fires."""
        self.ring(self.timers()[0])

    def ring(self, timer: Timer) -> None:
        """This timer fires, wanted or not."""
        self.now = max(self.now, timer.at)
        self.send(MessageType.TIMER, **timer.body)

    def signal(self, name: str, data: Any = None) -> Message:
        return self.send(MessageType.SIGNAL, name=name, data=data, by="me")

    def approve(self, step: str, *, approved: bool = True, by: str = "me", **more: Any) -> Message:
        said = {"attempt": self.run.steps[step].attempt, "approved": approved, "by": by, **more}
        return self.send(MessageType.APPROVE, step=step, **said)

    def let_in(self, step: str = "", *, refused: str | None = None) -> Message:
        """The keeper of the concurrency key that was asked for answers."""
        said = {"refused": refused} if refused else {}
        return self.send(MessageType.GATE, step=step, gate=self.run.gate_id(step), **said)

    def child_ended(self, step: str, status: str = "succeeded", *, output: Any = None, failure: Any = None) -> Message:
        said = {"child": self.child(step).run_id, "status": status, "output": output, "failure": failure}
        return self.send(MessageType.CHILD_ENDED, step=step, **said)

    def cancel(self, **more: Any) -> Message:
        return self.send(MessageType.CANCEL, **{"reason": "changed my mind", "by": "me", **more})

    def retry(self) -> Message:
        return self.send(MessageType.RETRY, by="me", reason="mended")

    def override(self, step: str, action: str = "complete", output: Any = None) -> Message:
        return self.send(MessageType.OVERRIDE, step=step, action=action, output=output, by="me", reason="by hand")
