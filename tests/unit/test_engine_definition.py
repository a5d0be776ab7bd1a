"""Definitions: what is accepted, what is refused, and that a refusal points at the line."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.engine import definition, duration, expression
from fumehood.engine.definition import Definition, parse
from fumehood.engine.expression import ExpressionError
from fumehood.errors import InvalidDefinitionError

REVIEW = """\
name: review
deadline: 30m
steps:
  - id: fetch
    task: http
    with: {url: input.url}
    retry: {attempts: 3, backoff: 2s, jitter: 0.2}
  - id: test
    needs: [fetch]
    sandbox: {image: "registry.example/python:3.12", command: ["pytest", "-q"], timeout: 5m}
  - id: think
    needs: [test]
    when: steps.test.output.exit_code != 0
    agent_loop: {task: llm, max_iterations: 8}
  - id: each
    needs: [fetch]
    map: {over: steps.fetch.output.items, task: llm.small, concurrency: 4}
    with: {text: item.text, number: index}
  - id: nap
    sleep: 1h30m
"""


def test_the_smallest_useful_form_of_every_kind() -> None:
    read = parse(REVIEW)
    assert [step.kind for step in read.steps] == ["task", "sandbox", "agent_loop", "map", "sleep"]
    assert read.deadline == 1_800_000
    assert read.step("fetch").retry.attempts == 3
    assert read.step("nap").sleep == 5_400_000
    assert [step.task_type for step in read.steps] == ["http", "fumehood.sandbox", "llm", "llm.small", None]


def test_the_same_definition_has_the_same_digest_however_it_is_written() -> None:
    read = parse(REVIEW)
    as_json = json.dumps(json.loads(read.canonical()), indent=3)
    assert parse(as_json).digest == read.digest
    assert Definition.model_validate(json.loads(read.canonical())) == read
    assert parse(REVIEW.replace("30m", "31m")).digest != read.digest


@pytest.mark.parametrize(
    ("change", "line", "said"),
    [
        (("task: http", "tsak: http"), 5, "tsak"),
        (("attempts: 3", "attempts: 0"), 7, "at least 1"),
        (("deadline: 30m", "deadline: soon"), 2, "not a duration"),
        (("needs: [test]", "needs: [tset]"), 11, "which is not there"),
        (("id: think", "id: test"), 11, "two steps called test"),
        (("when: steps.test.output.exit_code != 0", "when: steps.test.output. !="), 13, "when"),
        (("max_iterations: 8", "max_iteration: 8"), 14, "max_iteration"),
        (("  - id: fetch\n", "  - id: fetch\n    needs: [think]\n"), 4, "in a circle"),
        (("id: nap", "id: na--p"), 19, "id"),
        (("    sleep: 1h30m", "    sleep: 1h30m\n    task: x"), 19, "task and sleep"),
        (("name: review", "name: review\nname: other"), 2, "twice"),
        (("url: input.url", "url: 'input.l.map(x, input.l.map(y, y))'"), 6, "not stand inside"),
    ],
)
def test_a_mistake_is_named_with_its_line(change: tuple[str, str], line: int, said: str) -> None:
    with pytest.raises(InvalidDefinitionError) as caught:
        parse(REVIEW.replace(*change))
    problems = "\n".join(caught.value.problems)
    assert f"line {line}:" in problems
    assert said in problems


@pytest.mark.parametrize("text", ["", "[]", "1", "a: *b", "a: &b [*b]", "{", "name: x\nsteps: []", "\0", "- " * 5000])
def test_what_is_no_definition_is_refused_not_crashed_on(text: str) -> None:
    with pytest.raises(InvalidDefinitionError):
        parse(text)


def test_a_circle_is_refused_with_its_steps() -> None:
    text = "name: c\nsteps:\n- {id: a, task: t, needs: [b]}\n- {id: b, task: t, needs: [a]}\n"
    with pytest.raises(InvalidDefinitionError, match="circle"):
        parse(text)


@given(st.text(max_size=300))
def test_any_text_is_a_definition_or_a_sentence(text: str) -> None:
    with contextlib.suppress(InvalidDefinitionError):
        parse(text)


@pytest.mark.parametrize(("text", "ms"), [("1ms", 1), ("2s", 2000), ("1h30m", 5_400_000), ("7d", 604_800_000)])
def test_durations(text: str, ms: int) -> None:
    assert duration.parse(text) == ms


@pytest.mark.parametrize("text", ["", "5", "s", "-1s", "1.5s", "1s ", "0s", "400d", "1x", "1s1"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|between"):
        duration.parse(text)


@pytest.mark.parametrize("text", ["1 +", "x.y", "1/0", "b'x'", "timestamp('2020-01-01T00:00:00Z')", "[1][7]"])
def test_an_expression_gives_json_or_an_error_of_ours(text: str) -> None:
    with pytest.raises(ExpressionError):
        expression.evaluate(text, {})


def test_a_condition_must_be_a_boolean() -> None:
    assert expression.truth("1 < 2", {})
    with pytest.raises(ExpressionError, match="not a boolean"):
        expression.truth("1", {})


def test_the_published_schema_is_of_this_model() -> None:
    schema = definition.schema()
    words = {"name", "description", "deadline", "input_schema", "output", "steps"}
    words |= {"max_parallel", "concurrency", "on_failure", "continue_as_new"}
    assert set(schema["properties"]) == words


def test_a_wrong_step_is_one_problem() -> None:
    with pytest.raises(InvalidDefinitionError) as caught:
        parse("name: w\nsteps:\n- {id: a, tsak: t}\n")
    assert not any("at least 1" in problem for problem in caught.value.problems)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ("- {id: a, task: t, with: {x: inptu.x}}", "names inptu, which is not there"),
        ("- {id: a, task: t, with: {x: fast}}", "there are input, steps; literal text needs inner quotes: \"'fast'\""),
        ("- {id: a, task: t, with: {x: http://a.b}}", "'http://a.b': ':' where 'the end' should be (literal text"),
        ("- {id: a, task: t, with: {x: item.x}}", "names item, which is not there"),
        ("- {id: a, task: t, when: steps.nope.output == 1}", "the step nope, which is not there"),
        ("- {id: a, task: t}\n- {id: b, task: t, with: {x: steps.a.output}}", "the step a, which it does not need"),
    ],
)
def test_a_name_in_an_expression_that_means_nothing_is_an_error(steps: str, said: str) -> None:
    with pytest.raises(InvalidDefinitionError) as caught:
        parse(f"name: w\nsteps:\n{steps}\n")
    assert said in caught.value.problems[0]
    assert "line " in caught.value.problems[0]


def test_what_a_step_needs_through_another_one_may_be_read() -> None:
    steps = "- {id: a, task: t}\n- {id: b, needs: [a], task: t}\n"
    last = "- {id: c, needs: [b], task: t, with: {x: steps.a.output}}\n"
    assert parse(f"name: w\noutput: steps.a.output\nsteps:\n{steps}{last}").name == "w"
