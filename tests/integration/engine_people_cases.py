"""Workflows in which people, concurrency keys and other runs have a part, as those in `engine_cases.py` are.

Orders have ids of their own and come at moments that the journal names, so that a run goes the same way each time.
"""

from __future__ import annotations

from typing import Any

from fumehood.engine.messages import MessageType
from fumehood.wire.protocol import EventType
from tests.integration.engine_cases import CASES, DOUBLED, STARTED, Act, Case, Order, Say, Until


def signal(name: str, data: Any, at: Until) -> Order:
    return Order(MessageType.SIGNAL, {"name": name, "data": data}, at)


def approve(step: str, at: Until, *, approved: bool = True, comment: str = "") -> Order:
    body = {"step": step, "attempt": 1, "approved": approved, "comment": comment}
    return Order(MessageType.APPROVE, body, at)


def cancel(at: Until, *, force: bool = False) -> Order:
    return Order(MessageType.CANCEL, {"reason": "no longer needed", "force": force}, at)


def override(step: str, at: Until, action: str, output: Any = None) -> Order:
    body = {"step": step, "action": action, "reason": "looked at it", "output": output}
    return Order(MessageType.OVERRIDE, body, at)


RETRY = Order(MessageType.RETRY, {"reason": "it was the weather"}, Until("run.failed"))
HELD = signal("held", None, Until("step.calling"))
"""Told by the worker of a run that was called: it has its concurrency key."""


def keyed(run_id: str) -> dict[str, str]:
    return {"key": run_id}


def calling_twice(workflow: str) -> str:
    """The second run is called when the first one has the key that both want; the nap gives it time to ask for it."""
    return f"""
        name: w
        output: {{one: steps.one.output, two: steps.two.status}}
        steps:
        - {{id: one, sub_workflow: {{workflow: {workflow}}}, with: {{key: input.key, n: 1}}}}
        - {{id: go, wait_signal: {{name: held}}}}
        - {{id: nap, needs: [go], sleep: 400ms}}
        - id: two
          needs: [go]
          sub_workflow: {{workflow: {workflow}}}
          with: {{key: input.key, n: 2}}
          on_failure: continue
        """


def narrow(name: str, on_conflict: str) -> str:
    return f"""
        name: {name}
        concurrency: {{key: input.key, on_conflict: {on_conflict}}}
        output: steps.inner.output.doubled
        steps:
        - {{id: inner, task: t, with: {{x: input.n}}}}
        """


PEOPLE_CASES = (
    Case(
        "wait_signal",
        """
        name: w
        output: {early: steps.early.output, late: steps.late.output}
        steps:
        - {id: a, task: t, with: {x: input}}
        - {id: early, needs: [a], wait_signal: {name: first}}
        - {id: late, needs: [early], wait_signal: {name: second, timeout: 1d}}
        """,
        4,
        {("a", 1, 0, 0): (Until("signal.received"), DOUBLED)},
        "run.succeeded",
        {"early": "tea", "late": {"cups": 2}},
        completed=frozenset({"a"}),
        people=(
            signal("first", "tea", Until("run.started")),
            signal("second", {"cups": 2}, Until("step.listening", 2)),
        ),
        said={"signal.received": 2, "step.listening": 2, "signal.taken": 2},
    ),
    Case(
        "approval",
        """
        name: w
        concurrency: {key: input.key}
        output: {by: steps.ok.output.by, why: steps.ok.output.comment, told: steps.more.output}
        steps:
        - {id: ok, approval: {message: "Go on?", approvers: [somebody], timeout: 1d}, with: {what: input.key}}
        - {id: more, needs: [ok], wait_signal: {name: more}}
        """,
        keyed,
        {},
        "run.succeeded",
        {"by": "somebody", "why": "I like tea", "told": 7},
        people=(
            approve("ok", Until("approval.requested"), comment="I like tea"),
            approve("ok", Until("approval.given"), approved=False, comment="too late"),
            signal("more", 7, Until("order.refused")),
        ),
        said={
            "gate.asked": 1,
            "gate.passed": 1,
            "approval.requested": 1,
            "approval.given": 1,
            "order.refused": 1,
            "signal.received": 1,
            "step.listening": 1,
            "signal.taken": 1,
        },
    ),
    Case(
        "undo",
        """
        name: w
        deadline: 7d
        on_failure: {task: t, with: {x: "size(failure.code)"}}
        steps:
        - {id: a, task: t, with: {x: input}, compensate: {task: t, with: {x: steps.a.output.doubled}}}
        - {id: b, needs: [a], task: t, with: {x: input}, compensate: {task: t, with: {x: steps.b.output.doubled}}}
        - {id: ok, needs: [b], approval: {}}
        - {id: c, needs: [ok], task: t}
        """,
        4,
        {
            ("a", 1, 0, 0): (DOUBLED,),
            ("b", 1, 0, 0): (DOUBLED,),
            ("b--undo", 1, 0, 0): (DOUBLED,),
            ("a--undo", 1, 0, 0): (DOUBLED,),
            ("--on-failure", 1, 0, 0): (DOUBLED,),
        },
        "run.failed",
        failure="rejected",
        completed=frozenset({"a", "b", "a--undo", "b--undo", "--on-failure"}),
        people=(approve("ok", Until("approval.requested"), approved=False, comment="not today"),),
        said={"approval.requested": 1, "approval.refused": 1, "run.ending": 1},
    ),
    Case(
        "forced",
        """
        name: w
        steps:
        - {id: a, task: t, with: {x: input}, compensate: {task: t, timeout: 1d}}
        - {id: wait, needs: [a], wait_signal: {name: never}}
        """,
        4,
        {("a", 1, 0, 0): (DOUBLED,), ("a--undo", 1, 0, 0): (Act.LEASE, STARTED, Act.KEEP)},
        "run.cancelled",
        completed=frozenset({"a"}),
        people=(cancel(Until("step.listening")), cancel(Until("step.started"), force=True)),
        said={"step.listening": 1, "run.ending": 1},
    ),
    Case(
        "expiry",
        """
        name: w
        steps:
        - {id: hear, wait_signal: {name: never, timeout: 300ms}, on_failure: continue}
        - {id: ok, needs: [hear], when: "steps.hear.error.code == 'signal_timeout'", approval: {timeout: 300ms}}
        """,
        None,
        {},
        "run.failed",
        failure="approval_timeout",
        said={"step.listening": 1, "approval.requested": 1},
    ),
    Case(
        "sub_workflow",
        """
        name: w
        output: {answer: steps.call.output + 1}
        steps:
        - {id: call, sub_workflow: {workflow: other}, with: {x: input}, timeout: 1d}
        """,
        20,
        {("inner", 1, 0, 0): (STARTED, DOUBLED)},
        "run.succeeded",
        {"answer": 41},
        completed=frozenset({"call"}),
        calls=(
            """
            name: other
            output: steps.inner.output.doubled
            steps:
            - {id: inner, task: t, with: {x: input.x}}
            """,
        ),
        said={"step.calling": 1},
        relatives=("run.succeeded",),
    ),
    Case(
        "called off",
        """
        name: w
        steps:
        - {id: call, sub_workflow: {workflow: slow}}
        """,
        None,
        {("inner", 1, 0, 0): (Act.LEASE, STARTED, Act.CANCEL_RUN, Act.KEEP)},
        "run.cancelled",
        calls=("{name: slow, steps: [{id: inner, task: t, timeout: 1d}]}",),
        said={"step.calling": 1},
        relatives=("run.cancelled",),
    ),
    Case(
        "queue",
        calling_twice("narrow"),
        keyed,
        {("inner", 1, 0, 0): (HELD, Until("step.completed"), DOUBLED)},
        "run.succeeded",
        {"one": 2, "two": "completed"},
        completed=frozenset({"one", "two", "nap"}),
        calls=(narrow("narrow", "queue"),),
        said={"step.calling": 2, "step.listening": 1, "signal.received": 1, "signal.taken": 1},
        relatives=("run.succeeded", "run.succeeded"),
    ),
    Case(
        "reject",
        calling_twice("strict"),
        keyed,
        {("inner", 1, 0, 0): (HELD, Until("step.failed"), DOUBLED)},
        "run.succeeded",
        {"one": 2, "two": "failed"},
        completed=frozenset({"one", "nap"}),
        calls=(narrow("strict", "reject"),),
        said={"step.calling": 2, "step.listening": 1, "signal.received": 1, "signal.taken": 1},
        relatives=("run.succeeded", "run.failed"),
    ),
    Case(
        "taken up",
        """
        name: w
        deadline: 7d
        concurrency: {key: input.key}
        output: steps.each.output
        steps:
        - id: each
          map: {over: "[5, 6]", task: t, concurrency: 1}
          with: {x: item}
          concurrency: {key: input.key, limit: 2}
        """,
        keyed,
        {
            ("each--0", 1, 0, 0): (DOUBLED,),
            ("each--1", 1, 0, 0): (Say(EventType.FAILED, {"code": "weather", "message": "not yet"}),),
            ("each--1", 2, 0, 0): (DOUBLED,),
        },
        "run.succeeded",
        [{"doubled": 10}, {"doubled": 12}],
        completed=frozenset({"each", "each--0", "each--1"}),
        people=(RETRY,),
        said={"gate.asked": 4, "gate.passed": 4, "run.retried": 1, "map.resumed": 1},
        lives=2,
    ),
    Case(
        "override",
        """
        name: w
        output: {a: steps.a.output, b: steps.b.status, c: steps.c.output.doubled}
        steps:
        - {id: a, task: t, timeout: 1d}
        - {id: b, needs: [a], wait_signal: {name: never, timeout: 1d}}
        - {id: c, needs: [b], task: t, with: {x: input}}
        """,
        4,
        {("a", 1, 0, 0): (Act.LEASE, STARTED, Act.KEEP), ("c", 1, 0, 0): (DOUBLED,)},
        "run.succeeded",
        {"a": "by hand", "b": "skipped", "c": 8},
        completed=frozenset({"c"}),
        people=(
            override("a", Until("step.started"), "complete", "by hand"),
            override("b", Until("step.listening"), "skip"),
        ),
        said={"step.overridden": 2, "step.listening": 1},
    ),
    Case(
        "continue_as_new",
        """
        name: w
        continue_as_new: {when: "input.x > 1", input: {x: input.x - 1}}
        steps:
        - {id: a, task: t, with: {x: input.x}}
        """,
        {"x": 2},
        {("a", 1, 0, 0): (DOUBLED,)},
        "run.succeeded",
        {"a": {"doubled": 4}},
        completed=frozenset({"a"}),
        relatives=("run.succeeded",),
    ),
)

ALL_CASES = (*CASES, *PEOPLE_CASES)
