"""Workflows that workers alone carry through, with what they say to each task and with their ends, worked out by hand.

What people have a part in stands in `engine_people_cases.py`. Nothing here or there asks the engine what should happen.
What a run did is judged by its journal as plain JSON, not through the engine's own eyes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from fumehood.engine.messages import MessageType
from fumehood.wire.protocol import EventType, StepEvent, TaskPayload
from fumehood.wire.sandbox import SANDBOX_TASK

TASK_TYPES = ("t", "llm", SANDBOX_TASK)

Handed = tuple[str, int, int, int]
"""A step, its attempt, its iteration and its resumption."""
Event = dict[str, Any]


class Act(Enum):
    """What a worker does beside talking."""

    LEASE = "it takes a lease, as ours do"
    CANCEL_RUN = "somebody cancels the run that was begun"
    KEEP = "it neither answers nor acks"


@dataclass(frozen=True, slots=True)
class Say:
    """One event; a function makes its payload from the task."""

    type: EventType
    payload: Any = None

    def about(self, task: TaskPayload) -> StepEvent:
        said = self.payload(task) if callable(self.payload) else self.payload
        return StepEvent(
            type=self.type,
            run_id=task.run_id,
            step_id=task.step_id,
            attempt=task.attempt,
            iteration=task.iteration,
            resumption=task.resumption or 0,
            payload=said,
            worker_id="bare",
            proof=task.proof,
        )


def doubled(task: TaskPayload) -> Any:
    return {"doubled": 2 * task.input["x"]}


@dataclass(frozen=True, slots=True)
class Until:
    """A moment in the life of the run that was begun: its journal says something so many times."""

    event: str
    times: int = 1

    def met(self, events: list[Event]) -> bool:
        return [event["type"] for event in events].count(self.event) >= self.times


@dataclass(frozen=True, slots=True)
class Order:
    """Somebody tells the run that was begun something, at a moment of its life."""

    kind: MessageType
    body: Mapping[str, Any]
    at: Until

    def id_for(self, run_id: str) -> str:
        """Always the same, since who gives an order may have to give it again."""
        return f"{run_id}.{self.kind}.{self.at.event}.{self.at.times}"


Action = Say | Act | Until | Order
"""One thing that a worker does about a task."""

STARTED = Say(EventType.STARTED)
DOUBLED = Say(EventType.COMPLETED, doubled)


@dataclass(frozen=True, slots=True)
class Case:
    """A workflow, what workers say to each of its tasks, what people tell it, and how it must end.

    The runs that follow from the one that is begun, because it calls them or goes on as one of them, have their tasks
    in the same script.
    """

    name: str
    text: str
    given: Any
    """The input; a function makes it from the run's id, where runs at the same time must not share something."""
    script: Mapping[Handed, tuple[Action, ...]]
    ends: str
    """The last event of the journal."""
    output: Any = None
    failure: str | None = None
    completed: frozenset[str] = frozenset()
    """Steps and items that complete, each of them once."""
    may_miss: frozenset[Handed] = frozenset()
    """Tasks that the run's end may overtake before they are handed out."""
    people: tuple[Order, ...] = ()
    """What the run is told, one after the other."""
    calls: tuple[str, ...] = ()
    """Other workflows, which it calls."""
    said: Mapping[str, int] = field(default_factory=dict)
    """How often the journal has each of the events that come of people, keys and other runs."""
    lives: int = 1
    """How often it ends, once more for each time that it is taken up again."""
    relatives: tuple[str, ...] = ()
    """The last events of the runs that follow from it, in order."""

    def given_to(self, run_id: str) -> Any:
        return self.given(run_id) if callable(self.given) else self.given

    def is_over(self, events: list[Event]) -> bool:
        """Whether it has ended for the last time."""
        return sum(event["type"] in ENDS for event in events) >= self.lives

    def problems(self, events: list[Event], seen: Counter[Handed], relatives: Sequence[list[Event]] = ()) -> list[str]:
        """Everything about a finished run, and those that follow from it, that is not as it should be."""
        last = events[-1]
        done = Counter(event["step"] for event in events if event["type"] == "step.completed")
        ends = [event["type"] for event in events if event["type"] in ENDS]
        found = {
            "end": (last["type"], self.ends),
            "ends": (len(ends), self.lives),
            "said": (dict(Counter(event["type"] for event in events if event["type"] in COUNTED)), dict(self.said)),
            "relatives": (tuple(other[-1]["type"] for other in relatives), self.relatives),
            "output": (last.get("output"), self.output),
            "failure": ((last.get("failure") or {}).get("code"), self.failure),
            "completions": (dict(done), dict.fromkeys(self.completed, 1)),
            "tasks": (set(seen) | self.may_miss, set(self.script)),
        }
        return [f"{what}: {is_} instead of {should}" for what, (is_, should) in found.items() if is_ != should]


ENDS = frozenset({"run.succeeded", "run.failed", "run.timed_out", "run.cancelled"})

COUNTED = frozenset(
    {
        "signal.received",
        "signal.taken",
        "step.listening",
        "step.calling",
        "step.overridden",
        "approval.requested",
        "approval.given",
        "approval.refused",
        "order.refused",
        "gate.asked",
        "gate.passed",
        "map.resumed",
        "run.ending",
        "run.retried",
    }
)
"""Events of which a run must have exactly as many as its case says."""

LARGE = 200_000
"""Letters of an answer that the engine keeps by reference, and hands on as one."""

CASES = (
    Case(
        "task",
        """
        name: w
        deadline: 7d
        output: {answer: steps.b.output.doubled}
        steps:
        - {id: a, task: t, with: {x: input.x}}
        - {id: b, task: t, needs: [a], with: {x: steps.a.output.doubled}}
        """,
        {"x": 21},
        {("a", 1, 0, 0): (STARTED, DOUBLED), ("b", 1, 0, 0): (DOUBLED,)},
        "run.succeeded",
        {"answer": 84},
        completed=frozenset({"a", "b"}),
    ),
    Case(
        "sandbox",
        """
        name: w
        steps:
        - {id: box, sandbox: {image: "registry/python:3", command: [python, -c, pass]}, with: {n: input}}
        """,
        7,
        {
            ("box", 1, 0, 0): (
                STARTED,
                Say(EventType.COMPLETED, lambda task: [(task.sandbox or {})["command"][-1], task.input["n"]]),
            )
        },
        "run.succeeded",
        {"box": ["pass", 7]},
        completed=frozenset({"box"}),
    ),
    Case(
        "sandbox_failed",
        """
        name: w
        steps:
        - id: box
          sandbox:
            image: "registry/python:3"
            args: ["-q"]
            env: {A: "1"}
            timeout: 1m
            cpu_millis: 500
            memory_mib: 64
            network: dns-only
            must_succeed: true
          on_failure: continue
          retry: {attempts: 2, backoff: 10ms}
        - {id: after, needs: [box], task: t, with: {x: steps.box.error.details.exit_code}}
        """,
        None,
        {
            ("box", 1, 0, 0): (STARTED, Say(EventType.FAILED, {"code": "node_lost", "message": "silent"})),
            ("box", 2, 0, 0): (
                STARTED,
                Say(
                    EventType.FAILED,
                    {"code": "exit", "message": "3", "retryable": False, "details": {"exit_code": 3}},
                ),
            ),
            ("after", 1, 0, 0): (DOUBLED,),
        },
        "run.succeeded",
        {"after": {"doubled": 6}},
        completed=frozenset({"after"}),
    ),
    Case(
        "agent_loop",
        """
        name: w
        steps:
        - {id: loop, agent_loop: {task: llm, max_iterations: 3}, with: {goal: input}}
        """,
        "tea",
        {
            ("loop", 1, 0, 0): (Say(EventType.CONTINUE, {"thought": "water"}),),
            ("loop", 1, 1, 0): (Say(EventType.CONTINUE, lambda task: {"thought": [task.input["previous"], "leaves"]}),),
            ("loop", 1, 2, 0): (Say(EventType.COMPLETED, lambda task: [task.input["goal"], task.input["previous"]]),),
        },
        "run.succeeded",
        {"loop": ["tea", {"thought": [{"thought": "water"}, "leaves"]}]},
        completed=frozenset({"loop"}),
    ),
    Case(
        "map",
        """
        name: w
        output: steps.each.output
        steps:
        - id: each
          map: {over: input, task: t, concurrency: 2}
          with: {x: item, at: index}
          retry: {attempts: 2, backoff: 100ms}
        """,
        [5, 6, 7],
        {
            ("each--0", 1, 0, 0): (DOUBLED,),
            ("each--1", 1, 0, 0): (Say(EventType.FAILED, "a text is a failure, too"),),
            ("each--1", 2, 0, 0): (DOUBLED,),
            ("each--2", 1, 0, 0): (DOUBLED,),
        },
        "run.succeeded",
        [{"doubled": 10}, {"doubled": 12}, {"doubled": 14}],
        completed=frozenset({"each", "each--0", "each--1", "each--2"}),
    ),
    Case(
        "empty map",
        """
        name: w
        output: steps.each.output
        steps:
        - {id: each, map: {over: input, task: t}}
        """,
        [],
        {},
        "run.succeeded",
        [],
        completed=frozenset({"each"}),
    ),
    Case(
        "sleep",
        """
        name: w
        steps:
        - {id: nap, sleep: 300ms}
        - {id: after, task: t, needs: [nap], with: {x: input}}
        """,
        4,
        {("after", 1, 0, 0): (DOUBLED,)},
        "run.succeeded",
        {"after": {"doubled": 8}},
        completed=frozenset({"nap", "after"}),
    ),
    Case(
        "retry",
        """
        name: w
        steps:
        - {id: a, task: t, with: {x: input}, retry: {attempts: 3, backoff: 100ms, jitter: 0}}
        """,
        4,
        {("a", 1, 0, 0): (Say(EventType.FAILED, {"code": "unlucky", "message": "no"}),), ("a", 2, 0, 0): (DOUBLED,)},
        "run.succeeded",
        {"a": {"doubled": 8}},
        completed=frozenset({"a"}),
    ),
    Case(
        "timeout",
        """
        name: w
        steps:
        - {id: a, task: t, with: {x: input}, timeout: 400ms, retry: {attempts: 2, backoff: 100ms}}
        """,
        4,
        {("a", 1, 0, 0): (Act.LEASE, STARTED, Act.KEEP), ("a", 2, 0, 0): (DOUBLED,)},
        "run.succeeded",
        {"a": {"doubled": 8}},
        completed=frozenset({"a"}),
    ),
    Case(
        "too late",
        """
        name: w
        steps:
        - {id: a, task: t, timeout: 400ms}
        """,
        None,
        {("a", 1, 0, 0): (Act.LEASE, STARTED, Act.KEEP)},
        "run.failed",
        failure="timeout",
    ),
    Case(
        "pause",
        """
        name: w
        steps:
        - {id: a, task: t, with: {x: input}}
        """,
        4,
        {
            ("a", 1, 0, 0): (STARTED, Say(EventType.PAUSED, {"duration_ms": 200})),
            ("a", 1, 0, 1): (DOUBLED,),
        },
        "run.succeeded",
        {"a": {"doubled": 8}},
        completed=frozenset({"a"}),
    ),
    Case(
        "signal",
        """
        name: w
        steps:
        - {id: a, task: t, with: {x: input}}
        """,
        4,
        {
            ("a", 1, 0, 0): (
                Say(EventType.SIGNAL, {"name": "progress", "data": 50, "id": "half"}),
                Until("signal.received"),
                DOUBLED,
            )
        },
        "run.succeeded",
        {"a": {"doubled": 8}},
        completed=frozenset({"a"}),
        said={"signal.received": 1},
    ),
    Case(
        "large",
        """
        name: w
        output: {size: size(steps.b.output), input: input}
        steps:
        - {id: a, task: t}
        - {id: b, task: t, needs: [a], with: {given: steps.a.output}}
        """,
        None,
        {
            ("a", 1, 0, 0): (Say(EventType.COMPLETED, "x" * LARGE),),
            ("b", 1, 0, 0): (Say(EventType.COMPLETED, lambda task: task.input["given"]),),
        },
        "run.succeeded",
        {"size": LARGE, "input": None},
        completed=frozenset({"a", "b"}),
    ),
    Case(
        "cancel",
        """
        name: w
        deadline: 7d
        steps:
        - {id: a, task: t, timeout: 1d}
        - {id: b, task: t, needs: [a]}
        """,
        None,
        {("a", 1, 0, 0): (Act.LEASE, STARTED, Act.CANCEL_RUN, Act.KEEP)},
        "run.cancelled",
    ),
    Case(
        "deadline",
        """
        name: w
        deadline: 1500ms
        steps:
        - {id: a, task: t}
        """,
        None,
        {("a", 1, 0, 0): (Act.LEASE, STARTED, Act.KEEP)},
        "run.timed_out",
        failure="deadline",
        may_miss=frozenset({("a", 1, 0, 0)}),
    ),
    Case(
        "when",
        """
        name: w
        steps:
        - {id: a, task: t, with: {x: input}}
        - {id: b, task: t, needs: [a], when: "steps.a.output.doubled > 100"}
        - {id: c, task: t, needs: [b], when: "steps.b.status == 'skipped'", with: {x: steps.a.output.doubled}}
        """,
        4,
        {("a", 1, 0, 0): (DOUBLED,), ("c", 1, 0, 0): (DOUBLED,)},
        "run.succeeded",
        {"c": {"doubled": 16}},
        completed=frozenset({"a", "c"}),
    ),
    Case(
        "failure",
        """
        name: w
        steps:
        - {id: slow, task: llm}
        - {id: gate, sleep: 400ms}
        - {id: a, task: t, needs: [gate], retry: {attempts: 5, non_retryable: [broken]}}
        """,
        None,
        {
            ("a", 1, 0, 0): (Say(EventType.FAILED, {"code": "broken", "message": "for good"}),),
            ("slow", 1, 0, 0): (Act.LEASE, STARTED, Act.KEEP),
        },
        "run.failed",
        failure="broken",
        completed=frozenset({"gate"}),
        may_miss=frozenset({("slow", 1, 0, 0)}),
    ),
)
