"""The screen of `runs watch`, as plain text at two widths, and what it is made of.

The screens are in `tests/unit/screens/`; after a change that is meant, look at what pytest shows and write it there.
"""

from __future__ import annotations

import datetime as dt
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from fumehood.cli.runs_view import Now, Times, View, view
from fumehood.cli.runs_watch import SYMBOLS, render
from fumehood.engine.definition import parse
from fumehood.engine.state import StepStatus

SCREENS = Path(__file__).parent / "screens"
NOW = Now(dt.datetime(2026, 1, 2, 12, 4, 0, tzinfo=dt.UTC), dt.UTC)

REVIEW = """
name: review
deadline: 30m
steps:
  - {id: fetch, task: http, retry: {attempts: 3}}
  - {id: lint, needs: [fetch], task: lint, retry: {attempts: 3}}
  - {id: test, needs: [fetch], sandbox: {image: "registry.example/python:3.12", command: [pytest]}}
  - {id: each, needs: [fetch], map: {over: input.items, task: read}}
  - {id: think, needs: [test], agent_loop: {task: llm, max_iterations: 8}}
  - {id: publish, needs: [think, lint, each], approval: {message: "to production?"}}
  - {id: told, needs: [publish], wait_signal: {name: merged}}
  - {id: rest, needs: [publish], sleep: 1h30m}
  - {id: sub, needs: [told, rest], sub_workflow: {workflow: other}}
"""
DEFINITION: dict[str, Any] = json.loads(parse(REVIEW).canonical())


def at(seconds: int) -> str:
    return f"2026-01-02T12:03:{seconds:02}.000Z"


def step(status: str, **more: Any) -> dict[str, Any]:
    return {"status": status, "attempt": 1, "iteration": 0, **more}


STEPS = {
    "fetch": step("completed", worker_id="w-1"),
    "lint": step("waiting", error={"code": "failed", "message": "no network"}, wake_at="2026-01-02T12:04:10.000Z"),
    "test": step("running", worker_id="node-7"),
    "each": step("mapping", items={"total": 10, "ended": 3}),
    "think": step("running", iteration=2, worker_id="gpu-1"),
    "publish": step("awaiting_approval", approval={"message": "to production?", "approvers": []}),
    "told": step("listening", signal="merged", wake_at="2026-01-03T12:00:00.000Z"),
    "rest": step("sleeping", wake_at="2026-01-02T13:30:00.000Z"),
    "sub": step("calling", child="run-0193ab0193ab0193ab0193ab0193ab02"),
    "fetch--undo": step("queued"),
    "--on-failure": step("failed", error={"code": "no_mail", "message": "nobody was told"}),
}
RUN: dict[str, Any] = {
    "run_id": "run-0193ab0193ab0193ab0193ab0193ab01",
    "workflow": "review",
    "status": "running",
    "started_at": at(1),
    "started_by": "key-1/ci",
    "deadline_at": "2026-01-02T12:33:01.000Z",
    "labels": {"team": "core", "env": "dev"},
    "tries": 1,
    "parent": {"run_id": "run-0193ab0193ab0193ab0193ab0193ab00", "step": "call"},
    "ending": {"status": "failed", "error": {"code": "failed", "message": "the disk is full"}},
    "steps": STEPS,
}
EVENTS: list[dict[str, Any]] = [
    {"type": "run.started", "at": at(1), "meta": {"by": "key-1/ci"}},
    {"type": "step.queued", "step": "fetch", "attempt": 1, "at": at(2)},
    {"type": "step.started", "step": "fetch", "attempt": 1, "worker_id": "w-1", "at": at(3)},
    {"type": "step.completed", "step": "fetch", "attempt": 1, "at": at(5)},
    {"type": "step.started", "step": "test", "attempt": 1, "worker_id": "node-7", "at": at(6)},
    {
        "type": "step.retrying",
        "step": "lint",
        "attempt": 1,
        "failure": {"code": "failed", "message": "no network"},
        "wake_at": 1767355450000,
        "at": at(7),
    },
    {"type": "approval.requested", "step": "publish", "attempt": 1, "at": at(8)},
]


def times(events: list[dict[str, Any]]) -> Times:
    found = Times()
    for event in events:
        found.take(event)
    return found


def seen(
    run: dict[str, Any],
    width: int,
    *,
    events: list[dict[str, Any]] = EVENTS,
    definition: dict[str, Any] | None = DEFINITION,
) -> View:
    return view(run, definition, times(events), events, NOW, width=width)


def as_text(screen: RenderableType, width: int, *, color: bool = False) -> str:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=color, color_system="standard" if color else None).print(screen)
    return out.getvalue()


# --- whole screens -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 200])
def test_a_screen_with_everything_in_it(width: int) -> None:
    text = as_text(render(seen(RUN, width), width), width)
    assert text == (SCREENS / f"everything-{width}.txt").read_text(encoding="utf-8"), f"\n{text}"
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("width", [80, 200])
def test_a_screen_of_a_run_that_failed(width: int) -> None:
    failed = {
        **RUN,
        "status": "failed",
        "ended_at": at(40),
        "ending": None,
        "failed_step": "test",
        "error": {"code": "exit_1", "message": "three of 240 tests failed, and it took a while to say so: " * 4},
        "steps": {
            "fetch": step("completed", worker_id="w-1"),
            "lint": step("skipped", override={"action": "skip", "by": "ada", "reason": "not today"}),
            "test": step("failed", error={"code": "exit_1", "message": "three of 240 tests failed"}),
            "each": step("cancelled", items={"total": 10, "ended": 3}),
        },
    }
    text = as_text(render(seen(failed, width), width), width)
    assert text == (SCREENS / f"failed-{width}.txt").read_text(encoding="utf-8"), f"\n{text}"


@pytest.mark.parametrize("height", [10, 16, 24])
def test_a_low_screen_keeps_what_is_under_way(height: int) -> None:
    steps = {f"s{number}": step("completed" if number < 40 else "pending") for number in range(60)}
    steps["s39"] = step("running")
    definition = {"name": "long", "steps": [{"id": name, "task": "t"} for name in steps]}
    screen = render(seen({**RUN, "steps": steps}, 80, definition=definition), 80, height)
    lines = as_text(screen, 80).splitlines()
    assert any("s39" in line and "running" in line for line in lines)
    assert any("more" in line for line in lines)
    assert len(lines) <= max(height, 17)


# --- what is said of a step --------------------------------------------------------------------------------


def note(status: str, **more: Any) -> str:
    (line,) = seen({**RUN, "steps": {"a": step(status, **more)}}, 80, definition=None).steps
    return line.note


def test_what_a_step_waits_for_is_said() -> None:
    assert note("awaiting_approval", wake_at=None) == "waits for somebody"
    assert note("listening", signal="merged") == "for the signal merged"
    assert note("blocked", blocked_on="deploy/eu") == "for its turn with the key deploy/eu"
    assert note("calling", child="run-1") == "run-1"
    assert note("sleeping", wake_at="2026-01-02T12:05:00.000Z") == "until 12:05:00 (in 1m)"
    assert note("waiting", wake_at="2026-01-02T12:03:00.000Z", error={"code": "x"}) == "again now; x"
    assert note("queued") == "no worker has it yet"
    assert note("mapping", items={"total": 0, "ended": 0}) == "░░░░░░░░░░ 0/0 items"


def test_a_status_of_a_later_version_is_shown_as_it_was_said() -> None:
    text = as_text(render(seen({**RUN, "steps": {"a": step("dreaming")}}, 80, definition=None), 80), 80)
    assert "? " in text
    assert "dreaming" in text


def test_every_status_of_the_engine_has_a_symbol() -> None:
    assert {status.value for status in StepStatus} <= SYMBOLS.keys()
    assert (
        len({symbol for status, symbol in SYMBOLS.items() if status not in ("mapping", "running")}) == len(SYMBOLS) - 2
    )


def test_a_run_without_its_definition_lists_its_steps() -> None:
    """A key that may see runs, but no workflows."""
    found = seen(RUN, 80, definition=None)
    assert [line.name for line in found.steps] == list(STEPS)
    assert {line.before + line.after for line in found.steps} == {""}


def test_a_run_that_is_only_queued_can_be_shown() -> None:
    queued: dict[str, Any] = {"run_id": "run-1", "workflow": None, "status": "queued", "steps": {}}
    assert "queued" in as_text(render(seen(queued, 80, events=[], definition=None), 80), 80)


def test_what_a_worker_says_moves_no_cursor() -> None:
    """Its messages are a stranger's: no character of theirs may be an order to the terminal."""
    evil = "\x1b[2J\x07\r\n\x9b31m\u202eoh"
    run = {
        **RUN,
        "error": {"code": evil, "message": evil},
        "steps": {evil: step("failed", error={"code": evil, "message": evil}, worker_id=evil)},
    }
    events = [{"type": "step.failed", "step": evil, "failure": {"code": evil, "message": evil}, "at": at(1)}]
    text = as_text(render(seen(run, 200, events=events, definition=None), 200), 200)
    assert {character for character in text if not character.isprintable()} == {"\n"}


def test_colour_is_only_for_terminals() -> None:
    screen = render(seen(RUN, 80), 80)
    assert "\x1b[" in as_text(screen, 80, color=True)
    assert "\x1b[" not in as_text(screen, 80)


# --- times -------------------------------------------------------------------------------------------------


def test_a_step_that_is_tried_again_with_its_run_begins_anew() -> None:
    story = [
        {"type": "step.queued", "step": "a", "at": at(1)},
        {"type": "step.completed", "step": "a", "at": at(2)},
        {"type": "step.queued", "step": "b", "at": at(3)},
        {"type": "step.failed", "step": "b", "at": at(4)},
        {"type": "run.failed", "step": "b", "at": at(4)},
        {"type": "run.retried", "by": "ada", "at": at(10)},
        {"type": "order.refused", "order": "x.signal.1", "reason": "not_asked", "at": at(11)},
        {"type": "map.resumed", "step": "b", "at": at(12)},
    ]
    found = times(story)
    assert found.began == {"a": at(1), "b": at(12)}
    assert found.last == {"a": at(2), "b": at(12)}


def test_a_step_under_way_has_taken_as_long_as_it_takes() -> None:
    run = {**RUN, "steps": {"a": step("running"), "b": step("completed"), "c": step("cancelled")}, "ended_at": at(30)}
    story = [{"type": "step.started", "step": name, "at": at(10)} for name in "abc"] + [
        {"type": "step.completed", "step": "b", "at": at(14)}
    ]
    lines = {line.name: line.took for line in seen(run, 80, events=story, definition=None).steps}
    assert lines == {"a": "50s", "b": "4.0s", "c": "20s"}
