"""A workflow's graph as text, and what is said about an event."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.cli import graph, happened
from fumehood.engine import duration
from fumehood.engine.definition import parse
from fumehood.engine.events import KINDS

REVIEW = """
name: review
steps:
  - {id: fetch, task: http, retry: {backoff: 2s}}
  - {id: lint, needs: [fetch], task: lint, on_failure: continue}
  - id: test
    needs: [fetch]
    sandbox: {image: "registry.example/python:3.12", command: [pytest, -q]}
    timeout: 5m
    compensate: {task: clean}
  - {id: think, needs: [test], when: steps.test.output.exit_code != 0, agent_loop: {task: llm}}
  - {id: each, needs: [test], map: {over: input.items, task: read}}
  - {id: end, needs: [think, lint, each], approval: {timeout: 24h}}
  - {id: told, needs: [end], wait_signal: {name: merged}}
  - {id: rest, needs: [end], sleep: 1h30m}
  - {id: sub, needs: [told, rest], sub_workflow: {workflow: other}, concurrency: {key: input.customer, limit: 2}}
"""


def canonical(text: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(parse(text).canonical())
    return document


def test_the_graph_fits_a_terminal_of_80_columns() -> None:
    lines = graph.text(canonical(REVIEW), 80).plain.splitlines()
    assert lines == [
        "●      fetch  task http                             3 attempts",
        "├─●    lint   task lint                             may fail",
        "● │    test   sandbox registry.example/python:3.12  within 5m, undone by clean",
        "├─│─●  think  loop llm                              when steps.test.output.exit…",
        "● │ │  each   map read                              over input.items",
        "●─┴─╯  end    approval                              within 1d",
        "├─●    told   signal merged",
        "● │    rest   sleep 1h30m",
        "●─╯    sub    workflow other                        2 at once for each input.cu…",
    ]


def test_nothing_is_cut_where_there_is_room() -> None:
    text = graph.text(canonical(REVIEW), 200).plain
    assert "when steps.test.output.exit_code != 0" in text
    assert "…" not in text


def test_a_graph_that_is_too_wide_is_told_in_words() -> None:
    steps = [{"id": "a", "task": "t"}, *({"id": f"b{n}", "needs": ["a"], "task": "t"} for n in range(30))]
    steps.append({"id": "c", "needs": [f"b{n}" for n in range(30)], "task": "t"})
    lines = graph.text({"name": "wide", "steps": steps}, 80).plain.splitlines()
    assert lines[1].split() == ["●", "b0", "task", "t", "after", "a"]
    assert max(map(len, lines)) <= 80
    assert "┴" in graph.text({"name": "wide", "steps": steps}, 200).plain


def test_a_kind_of_a_later_version_has_no_words() -> None:
    assert graph.kind({"id": "a", "dream": {}}) == ""


def test_mermaid_is_not_confused_by_its_own_words() -> None:
    text = graph.mermaid(canonical(REVIEW))
    assert text.splitlines()[0] == "flowchart TD"
    assert '  s5["end<br/>approval"]' in text.splitlines()
    assert "  s3 --> s5" in text.splitlines()
    odd = {"name": "odd", "steps": [{"id": "a", "sandbox": {"image": 'x"]; click s0 "evil', "command": ["x"]}}]}
    assert graph.mermaid(odd).splitlines()[1] == '  s0["a<br/>sandbox x#34;#93;#59; click s0 #34;evil"]'


def test_graphviz_gets_every_edge() -> None:
    text = graph.dot(canonical(REVIEW))
    assert text.startswith('digraph "review" {')
    assert '  "fetch" [label="fetch\\ntask http"]' in text.splitlines()
    assert '  "each" -> "end"' in text.splitlines()
    assert text.count("->") == 11
    odd = {"name": "odd", "steps": [{"id": "a", "task": 'a"\\'}]}
    assert '  "a" [label="a\\ntask a\\"\\\\"]' in graph.dot(odd).splitlines()


@given(st.integers(1, duration.LONGEST_MS))
def test_a_duration_is_written_as_it_is_read(ms: int) -> None:
    assert duration.parse(graph.duration(ms)) == ms


# --- events ------------------------------------------------------------------------------------------------

AT = "2026-01-02T12:00:00.000Z"
LATER = 1767355450000
FAILURE = {"code": "no_disk", "message": "the disk is full"}


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (
            {"type": "run.started", "meta": {"by": "ada"}, "deadline_at": LATER},
            "started by ada with a deadline at 12:04:10",
        ),
        ({"type": "step.queued", "attempt": 2, "iteration": 3}, "queued, attempt 2, iteration 4"),
        ({"type": "step.started", "worker_id": "w"}, "started by w"),
        (
            {"type": "step.retrying", "attempt": 1, "failure": FAILURE, "wake_at": LATER},
            "attempt 1 failed: no_disk: the disk is full; again at 12:04:10",
        ),
        ({"type": "step.failed", "failure": FAILURE, "step": "a"}, "failed: no_disk: the disk is full"),
        ({"type": "run.failed", "failure": FAILURE, "step": "a"}, "failed in a: no_disk: the disk is full"),
        ({"type": "run.cancelled", "by": "ada", "reason": "enough"}, "cancelled by ada: enough"),
        ({"type": "run.succeeded", "continued_as": "run-2"}, "succeeded, and goes on as run-2"),
        ({"type": "step.overridden", "action": "skip", "by": "ada", "reason": "r"}, "skipped by hand by ada: r"),
        ({"type": "approval.given", "by": "ada", "comment": ""}, "approved by ada"),
        ({"type": "approval.refused", "by": "ada", "comment": "no"}, "rejected by ada: no"),
        ({"type": "step.listening", "signal": "go", "expires_at": LATER}, "waits for the signal go until 12:04:10"),
        ({"type": "step.calling", "child_run_id": "run-2"}, "is done by run-2"),
        ({"type": "map.expanded", "inputs": [1, 2]}, "2 items"),
        ({"type": "map.resumed", "step": "a"}, "goes on with the items that are not done"),
        (
            {"type": "order.refused", "run_id": "run-1", "order": "run-1.approve.0a", "reason": "not_asked"},
            "did not do what it was told, approve: not asked",
        ),
        ({"type": "gate.asked", "key": "eu"}, "waits for its turn with the concurrency key eu"),
        ({"type": "step.dreaming"}, "step dreaming"),
    ],
)
def test_an_event_in_words(event: dict[str, Any], said: str) -> None:
    assert happened.said({"at": AT, **event}, dt.UTC) == said


def test_every_event_of_the_engine_has_words() -> None:
    """And none needs a field that an older journal may lack."""
    for kind in KINDS:
        assert kind in happened._SENTENCES
        assert happened.said({"type": kind, "at": AT}, dt.UTC)
