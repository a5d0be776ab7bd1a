"""Any workflow, and anybody who says anything to it in any order: what must never happen does not, and it ends."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fumehood.engine.desired import desired
from fumehood.engine.events import Record
from fumehood.engine.messages import Message, MessageType
from fumehood.engine.state import StepStatus
from tests.simulation.watching import Watched
from tests.simulation.workflows import SIGNAL, plan
from tests.unit.run_world import RUN, RunWorld

WILD, MOST = 60, 2000
"""Moves in which anything is said, and in which the run must have come to its end when only its due is."""
_ANSWERS = [*[MessageType.STEP_COMPLETED] * 6, *[MessageType.STEP_FAILED] * 2, MessageType.STEP_STARTED]
_ANSWERS += [MessageType.STEP_CONTINUE, MessageType.STEP_PAUSED, MessageType.STEP_SIGNAL]


class Crowd:
    """Everybody who has a word to say."""

    def __init__(self, world: RunWorld, draw: random.Random) -> None:
        self._world = world
        self._draw = draw
        self._said: list[Message] = []

    def move(self) -> None:
        """Something, wanted or not."""
        wild: list[Callable[[], None]] = [self._again, self._signal, self._approve, self._by_hand, self._retry]
        wild += [self._cancel] if self._draw.random() < 0.05 else []
        if self._draw.random() < 0.6 or not self.go_on():
            self._draw.choice(wild)()

    def go_on(self) -> bool:
        """Something that the run waits for; whether there was anything."""
        found = desired(self._world.state)
        waits: list[Callable[[], None]] = [self._answer] * len(found.tasks)
        waits += [self._world.fire] if found.timers else []
        waits += [self._call_ends] if found.children else []
        waits += [self._let_in] if any(not claim.held for claim in found.claims) else []
        waits += [self._signal] if self._waits(StepStatus.LISTENING) else []
        waits += [self._approve] if self._waits(StepStatus.AWAITING_APPROVAL) else []
        if waits:
            self._draw.choice(waits)()
        return bool(waits)

    def _waits(self, status: StepStatus) -> bool:
        return any(step.status is status for step in self._world.run.steps.values())

    def _say(self, what: MessageType, **body: Any) -> None:
        message = Message(f"c{len(self._said)}-{self._draw.random()}", what, body)
        self._said.append(message)
        self._world.decide([message] * self._draw.choice([1, 1, 2]))

    def _tag(self) -> str:
        return f"tag-{self._draw.random()}"

    def _answer(self) -> None:
        task = self._draw.choice(sorted(self._world.tasks().values(), key=lambda task: task.key))
        body = {"step": task.step, "iteration": task.iteration, "resumption": task.resumption}
        body |= {"attempt": task.attempt - self._draw.choice([0, 0, 0, 1]), "name": "hello", "duration_ms": 1000}
        body["proven"] = True
        self._say(self._draw.choice(_ANSWERS), **body)

    def _call_ends(self) -> None:
        child = self._draw.choice(sorted(desired(self._world.state).children, key=lambda child: child.run_id))
        status = self._draw.choice(["succeeded", "succeeded", "failed", "cancelled"])
        self._say(MessageType.CHILD_ENDED, step=child.step, child=child.run_id, status=status, output="child")

    def _let_in(self) -> None:
        claims = [claim for claim in desired(self._world.state).claims if not claim.held]
        claim = self._draw.choice(sorted(claims, key=lambda claim: claim.gate))
        refused = not claim.queue and self._draw.random() < 0.3
        self._say(MessageType.GATE, step=claim.step, gate=claim.gate, **({"refused": "refused"} if refused else {}))

    def _again(self) -> None:
        if self._said:
            self._world.decide([self._draw.choice(self._said)])

    def _signal(self) -> None:
        self._say(MessageType.SIGNAL, name=SIGNAL, data=self._tag())

    def _approve(self) -> None:
        name = self._draw.choice(list(self._world.run.steps))
        attempt = self._world.run.steps[name].attempt - self._draw.choice([0, 0, 1])
        said = {"approved": self._draw.random() < 0.7, "by": self._draw.choice(["ann", "eve"]), "comment": self._tag()}
        self._say(MessageType.APPROVE, step=name, attempt=attempt, **said)

    def _by_hand(self) -> None:
        if self._draw.random() < 0.2:
            name, action = self._draw.choice(list(self._world.run.steps)), self._draw.choice(["skip", "complete"])
            self._say(MessageType.OVERRIDE, step=name, action=action, by="me", reason=self._tag())

    def _retry(self) -> None:
        self._say(MessageType.RETRY, by="me", reason=self._tag())

    def _cancel(self) -> None:
        self._say(MessageType.CANCEL, by="me", reason="enough", force=self._draw.random() < 0.5)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_whatever_is_said_a_run_ends_and_nothing_happens_twice(seed: int) -> None:
    draw = random.Random(seed)
    made = plan(draw, runs=2)
    definition, given_to_it = made.runs[0]
    pins = {name: called.digest for name, called in made.called.items()}
    world = RunWorld(definition.canonical().decode(), given_to_it, pins=pins)
    crowd = Crowd(world, draw)
    for number in range(MOST):
        if number < WILD:
            crowd.move()
        elif world.run.status.ended:
            break
        else:
            assert crowd.go_on(), "a run that waits for nothing"
    assert world.run.status.ended
    assert desired(world.state) == desired(None)
    watched = Watched(RUN, lambda *_: [])
    for data in world.journal:
        watched.take(Record.decode(data))
    watched.fold_anew()
    assert watched.state == world.state
