"""Workflows drawn by lot: graphs of all kinds, those they call, and what they are given.

Not every world has everything: each has the kinds that only workers are needed for, and a theme or two beside them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from fumehood.engine.definition import Definition, parse
from fumehood.wire.sandbox import SANDBOX_TASK

TASK_TYPES = ["t", "llm", "dead", "slow", "undo", "tell", SANDBOX_TASK]
RATED = "slow"
"""The task type that has a limit, in worlds that have one."""
SIGNAL = "go"

PLAIN = (
    ("s", "task: t, retry: {attempts: 4, backoff: 1s}"),
    ("s", "task: t, retry: {attempts: 3}, timeout: 20s"),
    ("box", "sandbox: {image: i, command: [c]}, retry: {attempts: 3}"),
    ("loop", "agent_loop: {task: llm, max_iterations: 5}, retry: {attempts: 3}"),
    ("each", "map: {over: input.items, task: t, concurrency: 2}, retry: {attempts: 4}"),
    ("nap", "sleep: 7s"),
    ("maybe", "task: t, when: 'size(input.items) > 1', retry: {attempts: 3}"),
    ("may", "task: t, on_failure: continue"),
    ("some", "map: {over: input.items, task: t}, on_failure: continue"),
    ("frail", "task: t"),
    ("dead", "task: dead, retry: {attempts: 2, backoff: 1s}"),
)
_WEIGHTS = [1 if prefix == "dead" else 8 for prefix, _ in PLAIN]
_WAITING = (
    ("go", f"wait_signal: {{name: {SIGNAL}, timeout: 10m}}"),
    ("soon", f"wait_signal: {{name: {SIGNAL}, timeout: 20s}}, on_failure: continue"),
    ("ok", "approval: {timeout: 10m}"),
    ("ask", "approval: {timeout: 15s, approvers: [ann, bob]}, on_failure: continue"),
)
_CALLING = (
    ("sub", "sub_workflow: {workflow: mid}, retry: {attempts: 2, backoff: 1s}"),
    ("sub", "sub_workflow: {workflow: mid}, timeout: 40s, on_failure: continue"),
    ("deep", "sub_workflow: {workflow: leaf}, retry: {attempts: 2, backoff: 1s}"),
    ("long", "sub_workflow: {workflow: endless}, timeout: 30s, on_failure: continue"),
)
_UNDONE = (
    ("un", "task: t, retry: {attempts: 3}, compensate: {task: undo, retry: {attempts: 4, backoff: 1s}}"),
    ("un", "sleep: 1s, compensate: {task: undo}"),
    ("un", "map: {over: input.items, task: t}, retry: {attempts: 4}, compensate: {task: undo, retry: {attempts: 3}}"),
    ("frail", "task: t"),
)
_RATED = (
    ("rate", f"task: {RATED}, retry: {{attempts: 3}}"),
    ("rates", f"map: {{over: input.items, task: {RATED}}}, retry: {{attempts: 3}}"),
)
_SHARED = ("key", "try")
"""Steps that have the same name in all runs, so that they compete."""
_THEMES = ("plain", "waiting", "calling", "keys", "undone", "rated", "chain")


@dataclass(frozen=True, slots=True)
class Plan:
    """What one world runs."""

    runs: tuple[tuple[Definition, Any], ...]
    """Each with its input."""
    called: dict[str, Definition] = field(default_factory=dict)
    themes: frozenset[str] = frozenset()

    def task_types(self) -> list[str]:
        """Of all tasks that may be handed out."""
        definitions = [*(definition for definition, _ in self.runs), *self.called.values()]
        steps = [step for one in definitions for step in one.steps]
        errands = [step.compensate for step in steps] + [one.on_failure for one in definitions]
        found = {step.task_type for step in steps} | {errand.task for errand in errands if errand is not None}
        return sorted(kind for kind in found if kind is not None)


def plan(draw: random.Random, runs: int = 4) -> Plan:
    themes = frozenset(draw.sample(_THEMES, draw.choice([1, 2, 2, 3])))
    kinds = _kinds(draw, themes)
    called: dict[str, Definition] = {}
    if "calling" in themes:
        runs -= 1
        called = {
            "leaf": parse(workflow(draw, PLAIN[:4], "leaf", most=2)),
            "endless": parse("name: endless\nsteps:\n- {id: nap, sleep: 2h}\n"),
        }
        inner = _head(draw, themes & {"undone"})
        below = tuple(kind for kind in kinds if kind[0] != "sub")
        called["mid"] = parse(workflow(draw, below, "mid", most=2, more=inner))
    head, most = _head(draw, themes), 3 if "chain" in themes else 5
    made = tuple((parse(workflow(draw, kinds, "w", most=most, more=head)), _given(draw)) for _ in range(runs))
    return Plan(made, called, themes)


def _given(draw: random.Random) -> dict[str, Any]:
    return {"n": draw.randint(0, 2), "items": list(range(draw.randint(0, 4)))}


def _kinds(draw: random.Random, themes: frozenset[str]) -> tuple[tuple[str, str], ...]:
    """Those of the themes, as often as all others together."""
    own: list[tuple[str, str]] = []
    own += _WAITING if "waiting" in themes else ()
    own += _CALLING if "calling" in themes else ()
    own += _UNDONE if "undone" in themes else ()
    own += _RATED if "rated" in themes else ()
    if "keys" in themes:
        limit = draw.choice([1, 2])
        own.append(("key", f"task: t, retry: {{attempts: 3}}, concurrency: {{key: \"'k'\", limit: {limit}}}"))
        refused = f"concurrency: {{key: \"'k'\", limit: {limit}, on_conflict: reject}}"
        own.append(("try", f"sleep: 3s, on_failure: continue, {refused}"))
    plain = draw.choices(PLAIN, _WEIGHTS, k=max(4, len(own)))
    return (*own, *plain)


def _head(draw: random.Random, themes: frozenset[str]) -> str:
    """The same for all runs of a world: they share what they compete for."""
    lines = draw.choice(["", "", "deadline: 10m\n"])
    if draw.random() < 0.2:
        lines += f"max_parallel: {draw.randint(1, 3)}\n"
    if "keys" in themes and draw.random() < 0.7:
        limit, conflict = draw.choice([1, 1, 2]), draw.choice(["queue", "queue", "reject"])
        lines += f"concurrency: {{key: string(input.n / 2), limit: {limit}, on_conflict: {conflict}}}\n"
    if "undone" in themes and draw.random() < 0.5:
        lines += "on_failure: {task: tell, retry: {attempts: 3, backoff: 1s}}\n"
    if "chain" in themes:
        lines += "continue_as_new: {when: input.n > 0, input: {n: input.n - 1, items: input.items}}\n"
    return lines


def workflow(
    draw: random.Random, kinds: tuple[tuple[str, str], ...], name: str, *, most: int = 6, more: str = ""
) -> str:
    """A graph of some of these kinds."""
    names: list[str] = []
    lines = []
    for number in range(draw.randint(1, most)):
        prefix, kind = draw.choice(kinds)
        needs = [other for other in names if draw.random() < 0.4]
        shared = prefix in _SHARED and prefix not in names
        names.append(prefix if shared else f"{prefix}{number}")
        lines.append(f"- {{id: {names[-1]}, needs: [{', '.join(needs)}], {kind}}}\n")
    if any(one.startswith("un") for one in names) and draw.random() < 0.5:
        lines.append(f"- {{id: sad, needs: [{', '.join(names)}], task: t, with: {{x: input.nothing}}}}\n")
    return f"name: {name}\n{more}steps:\n" + "".join(lines)
