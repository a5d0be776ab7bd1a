"""Expressions made in Python: what they say is what the server's own engine makes of them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fumehood.engine import expression as engine
from fumehood.errors import InvalidDefinitionError
from fumehood.sdk.expressions import Expression, cel, expression, quoted, reads, template, text_of

INPUT = Expression("input")
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def evaluated(made: object, **values: Any) -> Any:
    return engine.evaluate(text_of(made), values)


# --- texts and values --------------------------------------------------------------------------------------


@given(TEXTS)
def test_a_text_is_that_text_whatever_stands_in_it(text: str) -> None:
    assert evaluated(text) == text
    assert engine.evaluate(quoted(text, '"'), {}) == text


@given(PLAIN)
def test_every_value_means_itself(value: Any) -> None:
    assert evaluated(value) == value


@given(PLAIN)
def test_a_template_without_expressions_gives_what_it_was(value: Any) -> None:
    made = template(value)
    results = {text: engine.evaluate(text, {"input": "a trap", "steps": {}}) for text in engine.texts(made)}
    assert engine.with_results(made, results) == value


@given(TEXTS)
def test_a_text_that_looks_like_an_expression_is_none(text: str) -> None:
    """Whoever types `input.secret` into a form gets these words back, and nothing of the run's input."""
    for typed in (text, "input.secret", "' + input.secret + '", "'\\' + input.secret + '"):
        made = template({"said": typed})
        assert engine.evaluate(made["said"], {"input": {"secret": 1}}) == typed
        assert not engine.compiled(made["said"]).named


@given(TEXTS, PLAIN)
def test_any_key_can_be_looked_up(key: str, value: Any) -> None:
    assert evaluated(INPUT[key], input={key: value}) == value
    assert evaluated(INPUT.outer[key], input={"outer": {key: value}}) == value


def test_an_expression_is_not_put_into_a_text() -> None:
    with pytest.raises(TypeError, match="is only known when it runs, and is not put into a text here"):
        _ = f"hello {INPUT['name']}"
    assert str("hello " + INPUT["name"]) == "'hello ' + input.name"


@pytest.mark.parametrize("name", ["size", "map", "contains", "has", "type", "in", "if", "null", "text", "namespace"])
def test_a_field_may_be_called_like_anything(name: str) -> None:
    assert evaluated(getattr(INPUT, name), input={name: 7}) == 7


def test_names_are_written_as_people_write_them() -> None:
    assert str(INPUT.a.b2) == "input.a.b2"
    assert str(INPUT["a"]["b-c"][0]) == 'input.a["b-c"][0]'
    assert str(INPUT[INPUT.key + 1]) == "input[input.key + 1]"
    assert repr(INPUT.a) == "<expression input.a>"


def test_a_name_that_is_pythons_own_is_no_field() -> None:
    with pytest.raises(AttributeError, match=r'\["_private"\]'):
        INPUT._private  # noqa: B018
    assert str(INPUT["_private"]) == "input._private"
    assert not hasattr(INPUT, "__wrapped__")
    assert str(copy.deepcopy(INPUT.a)) == "input.a"


# --- operators: what Python computes, the engine computes ---------------------------------------------------


def _numbers() -> st.SearchStrategy[tuple[Any, int]]:
    """Expressions with the number that they must give."""
    leaves = st.integers(-50, 50).map(lambda n: (INPUT[f"n{n}"], n)) | st.integers(-50, 50).map(lambda n: (n, n))
    steps: list[Callable[[Any, Any], Any]] = [lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b]

    def joined(inner: st.SearchStrategy[tuple[Any, int]]) -> st.SearchStrategy[tuple[Any, int]]:
        both = st.tuples(st.sampled_from(steps), inner, inner).map(
            lambda it: (it[0](expression(it[1][0]), it[2][0]), it[0](it[1][1], it[2][1]))
        )
        return both | inner.map(lambda it: (-expression(it[0]), -it[1]))

    return st.recursive(leaves, joined, max_leaves=8)


def _truths() -> st.SearchStrategy[tuple[Expression, bool]]:
    compare: list[Callable[[Any, Any], Any]] = [
        lambda a, b: a == b,
        lambda a, b: a != b,
        lambda a, b: a < b,
        lambda a, b: a <= b,
        lambda a, b: a > b,
        lambda a, b: a >= b,
    ]
    leaves = st.tuples(st.sampled_from(compare), _numbers(), _numbers()).map(
        lambda it: (it[0](expression(it[1][0]), it[2][0]), it[0](it[1][1], it[2][1]))
    )
    joins: list[Callable[[Any, Any], Any]] = [lambda a, b: a & b, lambda a, b: a | b, lambda a, b: a == b]

    def joined(inner: st.SearchStrategy[tuple[Expression, bool]]) -> st.SearchStrategy[tuple[Expression, bool]]:
        both = st.tuples(st.sampled_from(joins), inner, inner).map(
            lambda it: (it[0](it[1][0], it[2][0]), it[0](it[1][1], it[2][1]))
        )
        chosen = st.tuples(inner, inner, inner).map(
            lambda it: (cel.choose(it[0][0], it[1][0], it[2][0]), it[1][1] if it[0][1] else it[2][1])
        )
        return both | chosen | inner.map(lambda it: (~it[0], not it[1]))

    return st.recursive(leaves, joined, max_leaves=6)


VALUES = {f"n{n}": n for n in range(-50, 51)}


@settings(max_examples=300)
@given(_numbers())
def test_arithmetic_has_brackets_where_it_needs_them(made: tuple[Any, int]) -> None:
    assert evaluated(made[0], input=VALUES) == made[1]


@settings(max_examples=300)
@given(_truths())
def test_conditions_have_brackets_where_they_need_them(made: tuple[Expression, bool]) -> None:
    assert evaluated(made[0], input=VALUES) is made[1]


def test_expressions_look_as_if_written_by_hand() -> None:
    a, b, c = INPUT.a, INPUT.b, INPUT.c
    assert str((a == "x") & (b > 1) & c) == "input.a == 'x' && input.b > 1 && input.c"
    assert str((a | b) & c) == "(input.a || input.b) && input.c"
    assert str(a | b & c) == "input.a || input.b && input.c"
    assert str(~(a == 1)) == "!(input.a == 1)"
    assert str(a - (b - c)) == "input.a - (input.b - input.c)"
    assert str("box " + cel.string(a + 1)) == "'box ' + string(input.a + 1)"
    assert str((a + b).size) == "(input.a + input.b).size"
    assert str(2 / a % 3) == "2 / input.a % 3"
    assert str(1 - a) == "1 - input.a"
    assert str(True & a | False) == "true && input.a || false"
    assert str(False | (True & a)) == "false || true && input.a"
    assert str(3 * a) == "3 * input.a"
    assert str(3 % a) == "3 % input.a"


def test_functions_and_macros() -> None:
    values = {"items": [{"n": 1}, {"n": 5}], "name": "fumehood", "rush": True}
    assert evaluated(INPUT.items.filter(lambda one: one.n > 3).map(lambda one: one.n), input=values) == [5]
    assert evaluated(INPUT.items.all(lambda one: one.n > 3), input=values) is False
    assert evaluated(INPUT.items.exists(lambda one: one.n > 3), input=values) is True
    assert evaluated(INPUT.items.exists_one(lambda one: one.n > 3), input=values) is True
    assert evaluated(INPUT.name.contains("hood"), input=values) is True
    assert evaluated(INPUT.name.startsWith("fume") & INPUT.name.endsWith("x"), input=values) is False
    assert evaluated(INPUT.name.matches("^f.*d$"), input=values) is True
    assert evaluated(INPUT.name.size() + cel.size(INPUT.items), input=values) == 10
    assert evaluated(cel.has(INPUT.rush) & ~cel.has(INPUT.slow), input=values) is True
    assert evaluated(cel.is_in("rush", INPUT), input=values) is True
    assert evaluated(cel.is_in(3, [1, INPUT.items[1].n]), input=values) is False
    assert evaluated(cel.int("7") + 1, input=values) == 8
    assert evaluated(cel.double(1) + 0.5, input=values) == 1.5
    assert evaluated({"n": INPUT.items[0].n, "all": [INPUT.name]}, input=values) == {"n": 1, "all": ["fumehood"]}


def test_an_expression_by_hand_keeps_to_itself() -> None:
    assert str(cel("input.a || input.b") & INPUT.c) == "(input.a || input.b) && input.c"
    assert str(cel("input.a")) == "input.a"
    with pytest.raises(TypeError, match="takes the text"):
        cel(None)  # type: ignore[arg-type]
    for empty in ("", " \n"):
        with pytest.raises(InvalidDefinitionError, match="empty"):
            cel(empty)


# --- mistakes ----------------------------------------------------------------------------------------------


def test_python_cannot_answer_for_a_run() -> None:
    with pytest.raises(TypeError, match=r"write & \| ~"):
        bool(INPUT.a)
    with pytest.raises(TypeError, match="only known when it runs"):
        assert 1 < INPUT.a < 3
    with pytest.raises(TypeError, match="only known when it runs"):
        assert INPUT.a == 1 and INPUT.b == 2  # noqa: PT018
    with pytest.raises(TypeError, match=r"wf\.map"):
        list(INPUT.items)
    with pytest.raises(TypeError, match=r"cel\.is_in"):
        1 in INPUT.items  # noqa: B015


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (INPUT.name.upper, "is no function"),
        (INPUT, "is no function"),
        (lambda: INPUT.name.filter("x"), "takes a function"),
        (lambda: INPUT.items.filter(lambda input: input), "means something else"),  # noqa: A006
        (lambda: INPUT.name.contains(lambda x: x), "a function is only for"),
        (lambda: cel.has(INPUT), "no field"),
        (lambda: cel.has(INPUT["a-b"]), "no field"),
        (lambda: INPUT[1.5], "named by"),  # type: ignore[index]
        (lambda: INPUT[True], "named by"),
        (lambda: template({1: "a"}), "keys of an object"),
        (lambda: template(b"bytes"), "nothing that JSON has"),
        (lambda: template({"a": object()}), "nothing that JSON has"),
        (lambda: expression({"a": {1, 2}}), "nothing that JSON has"),
    ],
)
def test_what_means_nothing_is_refused_where_it_is_written(wrong: Callable[[], object], why: str) -> None:
    with pytest.raises(TypeError, match=why):
        wrong()


@pytest.mark.parametrize("value", [math.nan, math.inf, 2**63, -(2**63) - 1, "\ud800", "x" * 4095])
def test_what_no_expression_can_hold_is_refused(value: Any) -> None:
    with pytest.raises(InvalidDefinitionError):
        text_of(value)


def test_what_an_expression_looks_at_is_known() -> None:
    one = Expression("steps.one", reads=["one"])
    two = Expression("steps.two", reads=["two"])
    assert reads((one.a == two.b) | one.c) == ("one", "two")
    assert reads({"a": [one.x, 1, "text"], "b": two[one.key]}) == ("one", "two", "one")
    assert reads(cel.choose(one, two, 1)) == ("one", "two")
    assert reads(INPUT.items.filter(lambda each: each == one.output)) == ("one",)
    assert reads(cel.size([one])) == ("one",)
    assert reads(~one & -two) == ("one", "two")
    assert hash(one.a) == hash(one.a)
