"""Workflows in Python: the same documents as YAML, by the server's own parser."""

from __future__ import annotations

import datetime as dt
import json
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from fumehood import Concurrency, Errand, Retry, Workflow, cel
from fumehood.control.workflows import _read
from fumehood.engine import definition
from fumehood.engine.definition import Definition
from fumehood.errors import InvalidDefinitionError

BY_HAND = """
name: review
description: looks at a change
deadline: 30m
input_schema: {type: object, required: [url]}
max_parallel: 5
concurrency: {key: input.repository, limit: 2, on_conflict: reject}
on_failure: {task: mail.send, with: {why: failure.message, to: "'team'"}, retry: {attempts: 2}, timeout: 1m}
continue_as_new: {when: output.more, input: {page: output.page + 1}}
steps:
  - id: fetch
    task: http.get
    with: {url: input.url, mode: "'fast'", tries: 3, deep: [1, "'x'", input.a]}
    retry: {attempts: 3, backoff: 2s, factor: 1.5, max_backoff: 1m, jitter: 0.5, non_retryable: [gone]}
    timeout: 5m
    start_within: 30s
    distinct: readers
    compensate: {task: forget, with: {id: steps.fetch.output.id}}
  - id: run-tests
    needs: [fetch]
    when: steps.fetch.output.size > 0 && !input.skip
    sandbox:
      image: python:3.12-slim
      command: [/bin/sh, -c, pytest -q]
      args: [x]
      env: {CI: "true"}
      timeout: 10m
      cpu_millis: 500
      memory_mib: 256
      network: restricted
      must_succeed: true
    with: steps.fetch.output.text
    concurrency: {key: "'one'"}
  - id: agent
    needs: [run-tests]
    agent_loop: {task: agent, max_iterations: 7}
    with: {said: 'steps["run-tests"].output.stdout'}
  - id: each
    needs: [fetch]
    map: {over: steps.fetch.output.files, task: lint, concurrency: 4}
    with: {file: item, number: index}
    on_failure: continue
  - {id: rest, sleep: 1h30m, needs: [each]}
  - {id: word, wait_signal: {name: go, timeout: 1d}, needs: [rest]}
  - {id: ask, approval: {message: "Merge it?", approvers: [ann, bob], timeout: 2d}, needs: [word, agent], with: {n: 1}}
  - {id: deploy, sub_workflow: {workflow: deploy}, needs: [ask], with: {by: steps.ask.output.by}}
output: {tests: 'steps["run-tests"].output.exit_code', failed: "steps.each.status == 'failed'"}
"""


def built() -> Workflow:
    wf = Workflow(
        "review",
        description="looks at a change",
        deadline="30m",
        input_schema={"type": "object", "required": ["url"]},
        max_parallel=5,
        concurrency=Concurrency(Workflow("any").input.repository, limit=2, on_conflict="reject"),
    )
    wf.set_on_failure(
        Errand("mail.send", {"why": wf.failure.message, "to": "team"}, retry=Retry(attempts=2), timeout="1m")
    )
    fetch = wf.task(
        "fetch",
        "http.get",
        with_={"url": wf.input.url, "mode": "fast", "tries": 3, "deep": [1, "x", wf.input.a]},
        retry=Retry(attempts=3, backoff="2s", factor=1.5, max_backoff="1m", jitter=0.5, non_retryable=["gone"]),
        timeout=dt.timedelta(minutes=5),
        start_within="30s",
        distinct="readers",
    )
    fetch.compensate("forget", with_={"id": fetch.output.id})
    test = wf.sandbox(
        "run-tests",
        "python:3.12-slim",
        "pytest -q",
        args=["x"],
        env={"CI": "true"},
        command_timeout="10m",
        cpu_millis=500,
        memory_mib=256,
        network="restricted",
        must_succeed=True,
        when=(fetch.output.size > 0) & ~wf.input.skip,
        with_=fetch.output.text,
        concurrency=Concurrency("one"),
    )
    agent = wf.agent_loop("agent", "agent", max_iterations=7, with_={"said": test.output.stdout})
    each = wf.map(
        "each",
        "lint",
        over=fetch.output.files,
        at_once=4,
        with_={"file": wf.item, "number": wf.index},
        on_failure="continue",
    )
    rest = wf.sleep("rest", dt.timedelta(minutes=90), needs=[each])
    word = wf.wait_signal("word", "go", timeout="1d", needs=["rest"])
    assert rest.id == "rest"
    ask = wf.approval("ask", "Merge it?", approvers=["ann", "bob"], timeout="2d", needs=[word, agent], with_={"n": 1})
    wf.sub_workflow("deploy", Workflow("deploy"), with_={"by": ask.output.by})
    wf.set_output({"tests": test.output.exit_code, "failed": each.status == "failed"})
    wf.set_continue_as_new(wf.output.more, {"page": wf.output.page + 1})
    return wf


def parsed(wf: Workflow) -> Definition:
    """By JSON and by YAML, which must be the same."""
    by_json, _ = _read(json.dumps(wf.to_dict()).encode(), is_json=True)
    by_yaml = definition.parse(wf.to_yaml())
    assert by_json.digest == by_yaml.digest
    return by_json


def test_a_workflow_in_python_is_the_one_in_yaml() -> None:
    by_hand, made = definition.parse(BY_HAND), parsed(built())
    assert json.loads(made.canonical()) == json.loads(by_hand.canonical())
    assert made.digest == by_hand.digest


# --- every word of a definition can be said -----------------------------------------------------------------


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from _models(inner)


def _all_models(model: type[BaseModel], seen: set[type[BaseModel]]) -> set[type[BaseModel]]:
    if model not in seen:
        seen.add(model)
        for field in model.model_fields.values():
            for inner in _models(field.annotation):
                _all_models(inner, seen)
    return seen


def _words(model: type[BaseModel], said: Any, found: set[tuple[str, str]]) -> None:
    for name, field in model.model_fields.items():
        word = field.alias or name
        if not isinstance(said, Mapping) or word not in said:
            continue
        found.add((model.__name__, word))
        for inner in _models(field.annotation):
            for one in said[word] if isinstance(said[word], list) else [said[word]]:
                _words(inner, one, found)


def test_the_builder_says_every_word_that_a_definition_has() -> None:
    """A word that the server learns, and the builder does not, fails here."""
    wanted = {
        (model.__name__, field.alias or name)
        for model in _all_models(Definition, set())
        for name, field in model.model_fields.items()
    }
    assert ("Step", "with") in wanted
    assert ("Sandbox", "must_succeed") in wanted
    found = set[tuple[str, str]]()
    _words(Definition, built().to_dict(), found)
    assert wanted - found == set()


def test_the_kinds_of_steps_are_methods() -> None:
    for kind in definition._KINDS:
        assert callable(getattr(Workflow, kind))


# --- whatever is said, the server understands it as it was meant --------------------------------------------

NAMES = st.from_regex(r"\A[A-Za-z0-9_](-?[A-Za-z0-9_]){0,8}\Z").filter(lambda name: len(name) <= 20)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(TEXTS.filter(lambda k: k != "$blob"), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(NAMES, min_size=1, max_size=5, unique=True), st.data())
def test_any_workflow_of_any_names_and_texts_is_taken(names: list[str], data: st.DataObject) -> None:
    wf = Workflow("any", description=data.draw(TEXTS))
    made: list[Any] = []
    for name in names:
        seen = data.draw(st.lists(st.sampled_from(made), max_size=2)) if made else []
        key = data.draw(TEXTS)
        template = {"given": data.draw(PLAIN), "seen": [step.output[key] for step in seen]}
        when = data.draw(st.sampled_from([None, wf.input[key] == data.draw(TEXTS)]))
        options: dict[str, Any] = {"with_": template} | ({} if when is None else {"when": when})
        made.append(wf.task(name, "t", **options))
    found = parsed(wf)
    assert [step.id for step in found.steps] == names
    assert found.description == wf.to_dict().get("description", "")
    for step, said in zip(found.steps, wf.to_dict()["steps"], strict=True):
        assert step.with_ == said["with"]
        assert list(step.needs) == said.get("needs", [])


@pytest.mark.parametrize("mark", ["\x85", "\u2028", "\u2029", "\r", "\n", "\ufeff"])
def test_a_mark_that_only_some_take_for_a_line_break_stays_what_it_is(mark: str) -> None:
    wf = Workflow("w")
    wf.task("a", "t", with_={mark: f"a{mark}b", "text": [mark, f" {mark}"]})
    assert parsed(wf).steps[0].with_ == wf.to_dict()["steps"][0]["with"]


@given(st.timedeltas(dt.timedelta(milliseconds=1), dt.timedelta(days=366)))
def test_a_timedelta_is_the_duration_that_it_is(span: dt.timedelta) -> None:
    span = dt.timedelta(milliseconds=span // dt.timedelta(milliseconds=1))
    wf = Workflow("w")
    wf.sleep("a", span)
    assert parsed(wf).steps[0].sleep == span // dt.timedelta(milliseconds=1)


# --- needs ---------------------------------------------------------------------------------------------------


def test_what_a_step_looks_at_is_what_it_needs() -> None:
    wf = Workflow("w")
    a, b = wf.task("a", "t"), wf.task("b", "t")
    c = wf.task("c", "t", needs=[a], with_={"x": [a.output.y, b.output]})
    d = wf.task("d", "t", needs=[c], with_=a.output, when=b.status == "completed")
    e = wf.map("e", "t", over=d.output.items, concurrency=Concurrency(cel.string(a.output.n)))
    wf.task("f", "t", with_="steps.a.output")
    needs = [list(step.needs) for step in parsed(wf).steps]
    assert needs == [[], [], ["a", "b"], ["c"], ["d"], []]
    assert e.id == "e"
    assert list(wf.steps) == ["a", "b", "c", "d", "e", "f"]


def test_a_document_is_a_copy() -> None:
    wf = Workflow("w")
    wf.task("a", "t", with_={"x": [1]})
    wf.to_dict()["steps"][0]["with"]["x"].append(2)
    assert wf.to_dict()["steps"][0]["with"] == {"x": [1]}


def test_yaml_has_no_anchors_and_no_surprises() -> None:
    shared = ["yes", "2001-01-01", "1e3", "null", "on", "~", "a: b", "# c", "'", "\x85 \u2028"]
    wf = Workflow("w")
    wf.task("a", "t", with_={"x": shared, "y": shared})
    assert "&" not in wf.to_yaml()
    assert yaml.safe_load(wf.to_yaml()) == wf.to_dict()
    parsed(wf)


# --- mistakes ------------------------------------------------------------------------------------------------


def _other() -> Any:
    return Workflow("other").task("there", "t")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda wf: wf.task("a", "t"), "has a step a already"),
        (lambda wf: wf.task("b", "t", needs=["c"]), "no step c"),
        (lambda wf: wf.task("b", "t", needs=[_other()]), "of the workflow other"),
        (lambda wf: wf.task("b", "t", with_=_other().output), "no step there"),
        (lambda wf: wf.task("b", "t", compensate=Errand("u", _other().output)), "no step there"),
        (lambda wf: wf.set_output(_other().output), "no step there"),
        (lambda wf: wf.sleep("b", "5 minutes"), "not a duration"),
        (lambda wf: wf.sleep("b", dt.timedelta(0)), "whole number of milliseconds"),
        (lambda wf: wf.sleep("b", dt.timedelta(microseconds=1)), "whole number of milliseconds"),
        (lambda wf: Workflow("w").to_dict(), "has no steps"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_written(wrong: Callable[[Workflow], Any], why: str) -> None:
    wf = Workflow("w")
    wf.task("a", "t")
    with pytest.raises(InvalidDefinitionError, match=why):
        wrong(wf)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda wf: wf.task("b", "t", when="input.a"), "a condition is an expression"),
        (lambda wf: wf.task("b", wf.input.kind), "taken as it is"),
        (lambda wf: wf.task("b", "t", needs="a"), "a list of steps"),
        (lambda wf: wf.task("b", "t", timout="5m"), "has no timout"),
        (lambda wf: wf.task("b", "t", timeout=5), "a duration is written like"),
        (lambda wf: wf.sandbox("b", wf.input.image), "image is taken as it is"),
        (lambda wf: wf.sandbox("b", "i", wf.input.command), "command is taken as it is"),
        (lambda wf: wf.sandbox("b", "i", ["echo", wf.input.word]), "command is taken as it is"),
        (lambda wf: wf.sandbox("b", "i", args="x"), "a list of texts"),
        (lambda wf: wf.sandbox("b", "i", env={"A": 1}), "env is a text"),
        (lambda wf: wf.approval("b", wf.input.message), "message is taken as it is"),
    ],
)
def test_what_means_something_else_is_refused_where_it_is_written(wrong: Callable[[Any], Any], why: str) -> None:
    with pytest.raises(TypeError, match=why):
        wrong(Workflow("w"))


def test_a_command_is_for_a_shell_or_as_it_is() -> None:
    wf = Workflow("w")
    wf.sandbox("a", "i", "echo $HOME")
    wf.sandbox("b", "i", ["echo", "$HOME"])
    wf.sandbox("c", "i")
    said = [step["sandbox"] for step in wf.to_dict()["steps"]]
    assert said[0]["command"] == ["/bin/sh", "-c", "echo $HOME"]
    assert said[1]["command"] == ["echo", "$HOME"]
    assert said[2] == {"image": "i"}
    assert repr(wf) == "<workflow w of 3 steps>"
    assert repr(wf.steps["a"]) == "<step a of w>"
