"""Definitions with the kinds that wait, call, undo and share: what is accepted, and what is refused with its line."""

from __future__ import annotations

import json

import pytest

from fumehood.engine.definition import Definition, parse
from fumehood.errors import InvalidDefinitionError

ORDER = """\
name: order
max_parallel: 4
concurrency: {key: input.customer, limit: 2, on_conflict: reject}
on_failure:
  task: tell
  with: {why: failure.message, made: steps.book.output}
continue_as_new:
  when: output.left > 0
  input: {left: output.left - 1, customer: input.customer}
output: {left: input.left}
steps:
  - id: book
    task: book
    concurrency: {key: input.flight}
    compensate:
      task: unbook
      with: {ref: steps.book.output.ref}
      retry: {attempts: 5}
      timeout: 1m
  - id: pay
    needs: [book]
    wait_signal: {name: paid, timeout: 1d}
    on_failure: continue
  - id: check
    needs: [pay]
    approval: {message: "Ship it?", approvers: [ann, bob], timeout: 2h}
    with: {why: steps.pay.error.code}
  - id: ship
    needs: [check]
    sub_workflow: {workflow: shipping}
    retry: {attempts: 2}
    timeout: 3h
"""


def test_the_smallest_useful_form_of_every_part() -> None:
    read = parse(ORDER)
    assert [step.kind for step in read.steps] == ["task", "wait_signal", "approval", "sub_workflow"]
    assert [step.task_type for step in read.steps] == ["book", None, None, None]
    assert (read.step("book--undo").task_type, read.step("--on-failure").task_type) == ("unbook", "tell")
    assert read.step("book--undo").retry.attempts == 5
    assert (read.step("pay").goes_on, read.step("ship").goes_on) == (True, False)


def test_it_is_the_same_definition_however_it_is_written() -> None:
    read = parse(ORDER)
    assert parse(json.dumps(json.loads(read.canonical()))).digest == read.digest
    assert Definition.model_validate(json.loads(read.canonical())) == read


@pytest.mark.parametrize(
    ("change", "line", "said"),
    [
        (("max_parallel: 4", "max_parallel: 0"), 2, "max_parallel"),
        (("limit: 2", "limit: 0"), 3, "concurrency.limit"),
        (("on_conflict: reject", "on_conflict: wait"), 3, "concurrency.on_conflict"),
        (("key: input.customer", "key: 'input.'"), 3, "concurrency.key"),
        (("  task: tell", "  tsak: tell"), 5, "on_failure"),
        (("failure.message", "failure.(message)"), 6, "on_failure.with"),
        (("  when: output.left > 0", "  when: output.left >"), 8, "continue_as_new.when"),
        (("left: output.left - 1", "left: output.left -"), 9, "continue_as_new.input"),
        (("key: input.flight", "kye: input.flight"), 14, "steps[0].concurrency"),
        (("task: unbook", "task: un book"), 16, "steps[0].compensate.task"),
        (("attempts: 5", "attempts: 0"), 18, "steps[0].compensate.retry.attempts"),
        (("timeout: 1m", "timeout: soon"), 19, "steps[0].compensate.timeout"),
        (("name: paid", "name: 'is paid'"), 22, "steps[1].wait_signal.name"),
        (("timeout: 1d", "timeout: -1d"), 22, "steps[1].wait_signal.timeout"),
        (("on_failure: continue", "on_failure: ignore"), 23, "steps[1].on_failure"),
        (("approvers: [ann, bob]", "approvers: ann"), 26, "steps[2].approval.approvers"),
        (("workflow: shipping", "workflow: 'ship it'"), 30, "steps[3].sub_workflow.workflow"),
        (("retry: {attempts: 2}", "task: t"), 28, "task and sub_workflow"),
    ],
)
def test_a_mistake_is_named_with_its_line(change: tuple[str, str], line: int, said: str) -> None:
    with pytest.raises(InvalidDefinitionError) as caught:
        parse(ORDER.replace(*change))
    problems = "\n".join(caught.value.problems)
    assert f"line {line}:" in problems
    assert said in problems


@pytest.mark.parametrize(
    ("change", "line", "said"),
    [
        (("key: input.customer", "key: steps.book.output"), 3, "concurrency: 'steps.book.output' names steps"),
        (("why: failure.message", "why: fialure.message"), 5, "on_failure: 'fialure.message' names fialure"),
        (("made: steps.book", "made: steps.boom"), 5, "on_failure: 'steps.boom.output' reads the step boom"),
        (("when: output.left > 0", "when: failure.left > 0"), 8, "continue_as_new: 'failure.left > 0' names failure"),
        (("{left: input.left}", "{left: output.left}"), 10, "output: 'output.left' names output"),
        (("key: input.flight", "key: steps.pay.output"), 12, "reads the step pay, which it does not need"),
        (("ref: steps.book.output.ref", "ref: steps.pay.output.ref"), 12, "reads the step pay"),
        (("ref: steps.book.output.ref", "ref: failure.code"), 12, "names failure"),
        (("why: steps.pay.error.code", "why: steps.ship.error.code"), 24, "reads the step ship"),
    ],
)
def test_a_name_that_means_nothing_is_named_with_its_line(change: tuple[str, str], line: int, said: str) -> None:
    with pytest.raises(InvalidDefinitionError) as caught:
        parse(ORDER.replace(*change))
    problems = "\n".join(caught.value.problems)
    assert f"line {line}:" in problems
    assert said in problems


@pytest.mark.parametrize("kind", ["wait_signal: {name: x}", "approval: {}"])
@pytest.mark.parametrize("more", ["timeout: 1m", "retry: {attempts: 2}"])
def test_what_waits_for_somebody_has_its_timeout_inside_and_is_not_tried_again(kind: str, more: str) -> None:
    with pytest.raises(InvalidDefinitionError, match="inside of"):
        parse(f"name: w\nsteps:\n- {{id: a, {kind}, {more}}}\n")
