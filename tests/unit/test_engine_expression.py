"""Expressions: what they are given, what they may cost, and that nobody can stop a decider with one."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fumehood.engine import content, cost, definition, expression, grammar
from fumehood.engine.content import ContentNeededError, Sight, Unavailable
from fumehood.engine.decide import Decision, decide
from fumehood.engine.expression import ExpressionError, Meter
from fumehood.engine.messages import Message, MessageType
from fumehood.engine.state import RunState
from fumehood.wire import blobref, strict_json
from fumehood.wire.protocol import EventType
from tests.conftest import TimeBounds
from tests.unit.decider_world import DeciderWorld

NAMES = ("a", "b", "c", "map", "size")
SECONDS = 1.0


# --- what an expression sees -------------------------------------------------------------------------------

scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.text("xy", max_size=3)
nested = st.recursive(
    scalars,
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inside, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(st.sampled_from(NAMES), nested, max_size=5)
all_values = st.fixed_dictionaries(
    {"input": nested, "steps": st.dictionaries(st.sampled_from(NAMES), objects, max_size=3), "item": nested}
)
fields = st.sampled_from([*(f".{name}" for name in NAMES), *(f"['{name}']" for name in NAMES), ' [ "a" ]', "[0]"])
paths = st.builds(
    lambda root, chain: root + "".join(chain), st.sampled_from(["input", "steps", "item"]), st.lists(fields, max_size=4)
)
wraps = st.sampled_from(
    [
        "{0}",
        "size({0})",
        "{0}.size()",
        "has({0}.a)",
        "{0} == {1}",
        "[{0}, {1}]",
        "{{'k': {0}}}",
        "'a' in {0}",
        "{0}.map(x, [x, {1}])",
        "{0}.filter(item, item != {1})",
        "{0}.all(x, x == {1})",
        "true ? {0} : {1}",
        "({0}).b",
        "{0}[{1}]",
        "!({0} == 'input.a')",
        "{0} // input.b\n",
    ]
)
texts = st.builds(lambda form, one, other: form.format(one, other), wraps, paths, paths)


def outcome(text: str, values: dict[str, Any], *, whole: bool) -> Any:
    program = expression.compiled(text)
    try:
        seen = values if whole else expression.pruned(values, program.named)
        result = program.code.execute(seen)
    except Exception as error:  # noqa: BLE001 - whatever the binding says, it says it of both
        return type(error), str(error)
    return json.dumps(result, sort_keys=True)


@settings(max_examples=400)
@given(texts, all_values)
def test_an_expression_over_what_it_names_gives_what_it_gives_over_everything(text: str, values: Any) -> None:
    if ".map(" in text or ".filter(" in text:  # an object's keys come in any order
        values = json.loads(json.dumps(values), object_hook=lambda found: dict(list(found.items())[:1]))
        values = {"input": None, "steps": {}, "item": None} | values
    assert outcome(text, values, whole=False) == outcome(text, values, whole=True)


@settings(max_examples=400)
@given(texts, all_values)
def test_a_bare_path_is_passed_on_as_the_binding_would(text: str, values: Any) -> None:
    program = expression.compiled(text)
    bound = outcome(text, values, whole=True)
    if program.path is not None and isinstance(bound, str):
        assert json.dumps(expression.evaluate(text, values), sort_keys=True) == bound


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("input.a.b", {"input": {"a": {"b": None}}}),
        ("steps['x'].output.y.size()", {"steps": {"x": {"output": {"y": None}}}}),
        ("input.a.b + input.a", {"input": {"a": None}}),
        ("input.a + input.a.b", {"input": {"a": None}}),
        ("steps[input.name].output", {"steps": None, "input": {"name": None}}),
        ("has(input.x)", {"input": {"x": None}}),
        ("input.list[0].name", {"input": {"list": None}}),
        ("input.list.map(x, x.a + item.b)", {"input": {"list": None}, "item": {"b": None}}),
        ("input.list.map(item, item.b)", {"input": {"list": None}}),
        ("'input.a' == \"steps.b\"", {}),
        (r"input['a\'b\\c']", {"input": {r"a'b\c": None}}),
        (r"input['\x61']", {"input": None}),
        ("input.a // steps.b", {"input": {"a": None}}),
        ("(input).a", {"input": {"a": None}}),
        ("index", {"index": None}),
    ],
)
def test_what_an_expression_names(text: str, named: Any) -> None:
    assert expression.compiled(text).named == named


def test_a_key_that_is_not_there_is_missed_by_name() -> None:
    for text in ("input.b", "input.b + 1", "input['b'].c"):
        with pytest.raises(ExpressionError, match="there is no b"):
            expression.evaluate(text, {"input": {"a": 1}})
    assert expression.evaluate("has(input.b)", {"input": {"a": 1}}) is False


@pytest.mark.parametrize(
    "text",
    ["Some{a: 1}", "((((((((((" * 4 + "1" + "))))))))))" * 4, "'", "a b", "[1", "input.`a`", "\u00e9", "f(", "1 ? 2"],
)
def test_what_is_not_understood_is_not_compiled(text: str) -> None:
    with pytest.raises(ExpressionError):
        expression.compiled(text)


@pytest.mark.parametrize("macro", sorted(grammar.MACROS))
def test_no_macro_stands_inside_another(macro: str) -> None:
    with pytest.raises(ExpressionError, match="not stand inside each other"):
        expression.compiled(f"input.filter(x, input.{macro}(y, true) == x)")
    expression.compiled(f"input.filter(x, x != ')' && x != '.map(').{macro}(y, true)")


# --- what it may cost --------------------------------------------------------------------------------------


def records(count: int) -> list[dict[str, Any]]:
    return [{"s": "a", "id": index, "name": "x" * 20, "kind": "y" * 20} for index in range(count)]


TEXT = "a" * 100_000
EXCESSIVE = [
    ("input.map(x, input)", list(range(1500))),
    ("input.filter(x, x.s == 'a')", records(10_000)),
    ("input.filter(x, !(x in input)).size()", [f"id-{index}" for index in range(4000)]),
    ("+".join(["input"] * 500), TEXT),
    ("input" + ".map(x, [x, x, x, x, x, x, x, x])" * 40, [1, 2, 3]),
    ("input.l.all(x, size(input.d) > 0)", {"l": list(range(500)), "d": list(range(50_000))}),
    ("size(input)", [["abc"] * 1000] * 10_000),
    (r"input.filter(x, x.matches('(\\pL{50}){20}'))", ["a"] * 100),
    (r"input.filter(x, x.matches('\\w{100}'))", ["a"] * 100),
    ("input.filter(x, x.matches(x))", ["(a{50}){50}"] * 100),
]


@pytest.mark.parametrize(("text", "value"), EXCESSIVE, ids=[text[:40] for text, _ in EXCESSIVE])
def test_what_would_take_too_long_is_refused_at_once(text: str, value: Any, time_bounds: TimeBounds) -> None:
    began = time.process_time()
    with pytest.raises(ExpressionError, match="let a task do it"):
        expression.evaluate(text, {"input": value})
    time_bounds.check(time.process_time() - began, SECONDS)


ORDINARY = [
    ("input.filter(x, x.s == 'a')", records(300)),
    ("input.filter(x, x.s == 'a').map(x, x.id)", records(300)),
    ("input.items.filter(x, x.s == input.want).size() > 0", {"items": records(300), "want": "a"}),
    ("input.all(x, x.s == 'a')", records(5000)),
    ("input.filter(x, !(x in ['a', 'b']))", [f"id-{index}" for index in range(800)]),
    (r"input.filter(x, x.matches('^\\d{4}-\\d{2}$'))", ["2024-01"] * 100),
    ("size(input)", "a" * 8_000_000),
    ("'Dear ' + input.name + ', ' + input.text", {"name": "x", "text": TEXT}),
]


@pytest.mark.parametrize(("text", "value"), ORDINARY, ids=[text[:40] for text, _ in ORDINARY])
def test_ordinary_use_is_allowed_and_takes_little(text: str, value: Any, time_bounds: TimeBounds) -> None:
    began = time.process_time()
    expression.evaluate(text, {"input": value})
    time_bounds.check(time.process_time() - began, SECONDS)


@settings(max_examples=200)
@given(texts, all_values, st.integers(1, 40))
def test_the_bound_holds_for_what_comes_out(text: str, values: Any, copies: int) -> None:
    """A result is never larger than the bound says: what is not counted cannot be bounded."""
    program = expression.compiled(text)
    values = {**values, "input": [values["input"]] * copies}
    seen = expression.pruned(values, program.named)
    try:
        result = program.code.execute(seen)
    except Exception:  # noqa: BLE001 - no result, nothing to compare
        return
    weights = cost.Weights()
    for value in seen.values():
        weights.add(value)
    assert cost.Bound(seen, weights).size(program.tree).parts >= cost.Weights().add(result)


def test_all_expressions_of_a_decision_share_one_bound() -> None:
    meter = Meter(2 * cost.ONCE)
    assert expression.evaluate("1 + 1", {}, meter) == 2
    with pytest.raises(ExpressionError, match="together"):
        expression.evaluate("1 + 1", {}, meter)


# --- what may come out -------------------------------------------------------------------------------------


def nest(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("text", ["input.deep", "[input.deep]", "size(input.deep)"])
def test_nesting_without_end_is_an_error_of_ours(text: str) -> None:
    with pytest.raises(ExpressionError):
        expression.evaluate(text, {"input": {"deep": nest(5000)}})


def test_two_values_of_the_greatest_depth_may_stand_inside_each_other_and_no_more() -> None:
    levels = expression.RESULT_LEVELS
    assert expression.evaluate("input", {"input": nest(levels)}) == nest(levels)
    with pytest.raises(ExpressionError, match="levels"):
        expression.evaluate("input", {"input": nest(levels + 1)})


def test_a_result_has_at_most_so_many_bytes() -> None:
    with pytest.raises(ExpressionError, match="bytes of JSON"):
        expression.evaluate("input", {"input": "\u00e4" * (expression.RESULT_BYTES // 2)})
    assert expression.evaluate("input", {"input": "a" * 1_000_000}) == "a" * 1_000_000


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 2**70])
def test_a_number_of_more_than_64_bits_is_not_quietly_another(number: int) -> None:
    with pytest.raises(ExpressionError, match="64 bits"):
        expression.evaluate("input.n + 1 > 0", {"input": {"n": number}})
    assert expression.evaluate("input.n", {"input": {"n": number}}) == number, "passed on as it is"


# --- in a decision -----------------------------------------------------------------------------------------


def start(text: str, given_input: Any) -> Message:
    read = definition.parse(text)
    body = {"definition": json.loads(read.canonical()), "digest": read.digest, "input": given_input}
    return Message("start", MessageType.START, body)


def begin(text: str, given_input: Any, contents: dict[str, Any] | None = None) -> Decision:
    return decide("run", None, [start(text, given_input)], 1, contents)


MAP = (
    "name: w\nsteps:\n- {id: m, map: {over: input.list, task: t}, with: {id: item.id, n: index + 1, who: input.name}}\n"
)


def test_a_map_takes_time_in_proportion_to_its_items(time_bounds: TimeBounds) -> None:
    began = time.process_time()
    decision = begin(MAP, {"list": records(2000), "name": "me"})
    time_bounds.check(time.process_time() - began, 2)
    assert decision.state is not None
    assert decision.state.steps["m--1999"].input == {"id": 1999, "n": 2000, "who": "me"}


def test_a_map_whose_inputs_are_too_large_together_fails() -> None:
    text = "name: w\nsteps:\n- {id: m, map: {over: input.list, task: t}, with: {all: input.list}}\n"
    decision = begin(text, {"list": records(2000)})
    assert decision.state is not None
    assert decision.state.failure is not None
    assert "bytes of JSON for one step" in decision.state.failure.message


REF = "sha256:" + "0" * 64
OTHER = "sha256:" + "1" * 64


def sight(given_input: Any, contents: dict[str, Any] | None = None) -> Sight:
    state = begin("name: w\nsteps:\n- {id: a, sleep: 1s}\n", given_input).state
    assert isinstance(state, RunState)
    return Sight(state, contents or {}, Meter())


def test_a_bare_path_passes_references_on() -> None:
    large = blobref.reference(REF, 200_000)
    assert sight(large).fill({"x": "input"}) == {"x": large}
    assert sight({"doc": [large]}).fill({"x": "input.doc"}) == {"x": [large]}
    assert sight(None).each({"x": "item", "n": "index"}, [large]) == [{"x": large, "n": 0}]
    assert sight([large]).listed("input") == [large]


def test_all_that_a_step_needs_is_asked_for_at_once() -> None:
    one, other = blobref.reference(REF, 200_000), blobref.reference(OTHER, 200_000)
    with pytest.raises(ContentNeededError) as needed:
        sight({"a": one, "b": other, "c": one}).fill({"x": "size(input.a)", "y": "input.b.name"})
    assert needed.value.refs == (REF, OTHER)
    with pytest.raises(ContentNeededError) as needed:
        sight(None).each({"x": "item.id"}, [one, other, one])
    assert needed.value.refs == (REF, OTHER)
    with pytest.raises(ContentNeededError):
        sight(one).listed("input")


def test_what_was_fetched_is_looked_into() -> None:
    contents = {REF: {"id": 7, "list": [1, 2]}}
    one = blobref.reference(REF, 200_000)
    assert sight(one, contents).fill({"x": "input.id", "y": "size(input.list)"}) == {"x": 7, "y": 2}
    assert sight(None, contents).each({"x": "item.id + index"}, [one, one]) == [{"x": 7}, {"x": 8}]
    assert sight({"of": one}, contents).listed("input.of.list") == [1, 2]
    assert content.whole(one, contents) == contents[REF]
    with pytest.raises(ExpressionError, match="gone"):
        sight(one, {REF: Unavailable("gone")}).truth("input.id == 7")


def test_only_the_steps_that_are_named_are_looked_at() -> None:
    assert sight(None).fill("steps.a.status") == "sleeping"
    assert sight(None).truth("size(steps) == 1")
    with pytest.raises(ExpressionError, match="there is no b"):
        sight(None).fill("steps.b.output")


# --- in a decider ------------------------------------------------------------------------------------------

TWO = "name: w\nsteps:\n- {id: m, map: {over: input, task: t}}\n- {id: b, task: t, needs: [m], when: '%s'}\n"


async def answered(condition: str, documents: list[bytes]) -> tuple[DeciderWorld, list[str]]:
    """A map whose items gave these documents, and which of them were fetched for the condition after it."""
    world = DeciderWorld()
    await world.start(TWO % condition, list(range(len(documents))))
    await world.tasks()
    fetched = []
    kind = type(world.broker.blobs())
    get = kind.get

    async def counted(self: Any, ref: str, *, limit: int) -> bytes:
        fetched.append(ref)
        return await get(self, ref, limit=limit)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "get", counted)
        for index, document in enumerate(documents):
            ref = await world.broker.blobs().put(document)
            await world.say(EventType.COMPLETED, f"m--{index}", blobref.reference(ref, 1), attempt=1)
    return world, fetched


async def test_what_a_decision_may_have_fetched_is_bounded_over_all_references() -> None:
    documents = [json.dumps(f"{index}{TEXT}" * 15).encode() for index in range(6)]
    world, fetched = await answered("size(steps.m.output) > 0", documents)
    failure = (await world.state()).failure
    assert failure is not None
    assert "bytes that the expressions of a decision may look at" in failure.message
    assert not fetched, "sizes are asked for first"


async def test_content_within_the_bound_is_fetched() -> None:
    documents = [json.dumps(f"{index}{TEXT}").encode() for index in range(3)]
    world, fetched = await answered("size(steps.m.output[2]) > 100", documents)
    assert len(fetched) == 3
    assert [task["step_id"] for task in await world.tasks()][-1] == "b"


async def test_content_that_is_too_deep_fails_the_step_and_says_so() -> None:
    deep = b"[" * (strict_json.DEEPEST + 1) + b"]" * (strict_json.DEEPEST + 1)
    world, _ = await answered("size(steps.m.output[0]) > 0", [deep])
    failure = (await world.state()).failure
    assert failure is not None
    assert "levels" in failure.message


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("!input.a", False),
        ("!!input.a", True),
        ("! (input.a)", False),
        ("-input.n", -3),
        ("- -input.n", 3),
        ("!steps.a.output", False),
        ("input.list[-input.minus]", "y"),
    ],
)
def test_a_sign_is_no_part_of_a_path(text: str, wanted: Any) -> None:
    """A bare path is passed on as it is; one with a sign in front of it has to be worked out."""
    values = {"input": {"a": True, "n": 3, "minus": -1, "list": ["x", "y"]}, "steps": {"a": {"output": True}}}
    assert expression.compiled(text).path is None
    assert expression.evaluate(text, values) == wanted
