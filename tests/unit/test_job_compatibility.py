"""What may change in a job type within a major version, and what may not: every breaking change is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.jobs.compatibility import breaks
from fumehood.jobs.registry import Registry
from fumehood.jobs.schemas import contract

REGISTRY = Registry.load()

ITEM = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "maxLength": 10},
        "score": {"type": "number"},
        "inside": {"$ref": "#/$defs/Item"},
    },
    "required": ["id"],
}
SIDE: dict[str, Any] = {
    "$defs": {"Item": ITEM, "Kind": {"enum": ["a", "b"], "type": "string"}},
    "type": "object",
    "properties": {
        "items": {"type": "array", "items": {"$ref": "#/$defs/Item"}, "maxItems": 5},
        "kind": {"$ref": "#/$defs/Kind", "default": "a"},
        "count": {"type": "integer", "minimum": 1, "default": 3},
        "name": {"type": "string", "pattern": "^a"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "note": {"type": "string"},
    },
    "required": ["items"],
}
DOCUMENT = {
    "name": "oa.a_b.v1",
    "version": "1.4.2",
    "adjudications": ["majority_vote", "none"],
    "request_schema": SIDE,
    "response_schema": SIDE,
}


def later(*changes: tuple[str, Any], version: str = "1.5.0", **more: Any) -> dict[str, Any]:
    """The document with another value at some places; None takes away what is there."""
    new: dict[str, Any] = json.loads(json.dumps(DOCUMENT)) | {"version": version} | more
    for place, value in changes:
        *way, last = place.split("/")
        here: Any = new
        for part in way:
            here = here[part]
        if value is None:
            del here[last]
        else:
            here[last] = value
    return new


REQUEST, RESPONSE = "request_schema/properties", "response_schema/properties"
ITEMS = "$defs/Item/properties"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([(f"{REQUEST}/note", None)], "request.note: is gone"),
        ([(f"{RESPONSE}/note", None)], "response.note: is gone"),
        ([(f"request_schema/{ITEMS}/id", None)], "request.items[].id: is gone"),
        ([("request_schema/required", ["items", "note"])], "request.note: is now required"),
        ([("request_schema/$defs/Item/required", ["id", "score"])], "request.items[].score: is now required"),
        ([("response_schema/required", [])], "response.items: is no longer always there"),
        ([("response_schema/required", ["items", "note"])], "response.note: is now always there"),
        (
            [(f"{REQUEST}/new", {"type": "string"}), ("request_schema/required", ["items", "new"])],
            "request.new: is new, and",
        ),
        ([(f"{REQUEST}/new", {"type": "string", "default": ""})], "request.new: is new, and has a default"),
        ([(f"{RESPONSE}/new", {"type": "string", "default": ""})], "response.new: is new, and has a default"),
        (
            [(f"{RESPONSE}/new", {}), ("response_schema/required", ["items", "new"])],
            "response.new: is new, and required",
        ),
        ([(f"{REQUEST}/note/type", "integer")], "request.note: is of a narrower type"),
        ([(f"{REQUEST}/count/type", "string")], "request.count: is of a narrower type"),
        ([(f"request_schema/{ITEMS}/score/type", "integer")], "request.items[].score: is of a narrower type"),
        ([(f"{RESPONSE}/count/type", "number")], "response.count: is of another type"),
        ([(f"{RESPONSE}/note/type", None)], "response.note: is of another type"),
        ([("request_schema/$defs/Kind/enum", ["a"])], "request.kind: 'b' is gone"),
        ([("response_schema/$defs/Kind/enum", ["a"])], "response.kind: 'b' is gone"),
        ([("response_schema/$defs/Kind/enum", ["a", "b", "c"])], "response.kind: 'c' is new"),
        ([("response_schema/$defs/Kind/enum", None)], "response.kind: 'anything' is new"),
        ([(f"{REQUEST}/note/enum", ["x"])], "request.note: is now one of a few"),
        ([(f"{REQUEST}/count/minimum", 2)], "request.count: minimum was 1, and is 2"),
        ([(f"{REQUEST}/count/maximum", 9)], "request.count: maximum was None, and is 9"),
        ([(f"{REQUEST}/items/maxItems", 4)], "request.items: maxItems was 5, and is 4"),
        ([(f"request_schema/{ITEMS}/id/maxLength", 9)], "request.items[].id: maxLength was 10, and is 9"),
        ([(f"{RESPONSE}/items/maxItems", 6)], "response.items: maxItems was 5, and is 6"),
        ([(f"{RESPONSE}/items/maxItems", None)], "response.items: maxItems was 5, and is None"),
        ([(f"{REQUEST}/name/pattern", "^ab")], "request.name: pattern has changed"),
        ([(f"{REQUEST}/note/pattern", "^a")], "request.note: pattern has changed"),
        ([(f"{RESPONSE}/name/pattern", None)], "response.name: pattern has changed"),
        ([(f"{REQUEST}/count/default", 4)], "request.count: has another default"),
        ([(f"{REQUEST}/count/default", None)], "request.count: has another default"),
        ([(f"{REQUEST}/note/default", "")], "request.note: has another default"),
        ([(f"{REQUEST}/kind/default", "b")], "request.kind: has another default"),
        ([(f"{REQUEST}/labels/additionalProperties", False)], "request.labels.additionalProperties: has changed"),
        ([(f"{REQUEST}/labels/additionalProperties", {"type": "integer"})], "additionalProperties: is of a narrower"),
        ([("request_schema/additionalProperties", False)], "request.additionalProperties: has changed"),
        ([(f"{REQUEST}/labels/propertyNames", {"maxLength": 3})], "request.labels.propertyNames: maxLength"),
        ([(f"{REQUEST}/either/anyOf", [{"type": "string"}])], "request.either: anyOf has changed"),
        ([(f"{REQUEST}/note/not", {"const": "x"})], "request.note: not has changed"),
        ([("adjudications", ["none"])], "adjudications: majority_vote is gone"),
    ],
)
def test_a_breaking_change_is_found(changes: list[tuple[str, Any]], words: str) -> None:
    assert [problem for problem in breaks(DOCUMENT, later(*changes)) if words in problem]


@pytest.mark.parametrize(
    "changes",
    [
        [(f"{REQUEST}/new", {"type": "string"})],
        [(f"{RESPONSE}/new", {"type": "array", "items": {"type": "string"}})],
        [("request_schema/required", []), (f"{REQUEST}/items/default", [])],
        [("request_schema/$defs/Kind/enum", ["a", "b", "c"])],
        [(f"{REQUEST}/count/type", "number")],
        [(f"{REQUEST}/count/minimum", 0)],
        [(f"{REQUEST}/count/minimum", None)],
        [(f"{REQUEST}/items/maxItems", 6)],
        [(f"{REQUEST}/name/pattern", None)],
        [(f"{REQUEST}/labels/additionalProperties", True)],
        [("adjudications", ["judge_model", "majority_vote", "none"])],
    ],
)
def test_what_breaks_nobody_needs_a_new_minor_and_nothing_else(changes: list[tuple[str, Any]]) -> None:
    assert breaks(DOCUMENT, later(*changes)) == []
    (problem,) = breaks(DOCUMENT, later(*changes, version="1.4.3"))
    assert "needs a new minor" in problem


@pytest.mark.parametrize(
    ("version", "words"),
    [("1.4.1", "comes before 1.4.2"), ("1.3.9", "comes before 1.4.2"), ("2.0.0", "another type with another name")],
)
def test_a_version_never_goes_back_nor_changes_its_major(version: str, words: str) -> None:
    (problem,) = breaks(DOCUMENT, later(version=version))
    assert words in problem


def test_words_for_people_may_change() -> None:
    new = later((f"{REQUEST}/note/description", "better"), ("request_schema/title", "T"), version="1.4.2")
    assert breaks(DOCUMENT, new) == []


def test_a_field_called_like_a_keyword_is_a_field() -> None:
    old = later((f"{REQUEST}/title", {"type": "string"}), version="1.4.2")
    assert "request.title: is gone" in breaks(old, later())


@pytest.mark.parametrize("name", list(REGISTRY))
def test_a_type_breaks_nobody_who_has_the_same(name: str) -> None:
    assert breaks(contract(REGISTRY[name]), contract(REGISTRY[name])) == []


# --- any one change of a real contract ---------------------------------------------------------------------


def fields(schema: Any, way: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Where fields are, anywhere in a schema."""
    found = []
    for part in ("properties", "$defs"):
        for name, inside in schema.get(part, {}).items():
            here = (*way, part, name)
            found += ([here] if part == "properties" else []) + fields(inside, here)
    return found


FIELDS = [
    (name, side, way)
    for name in REGISTRY
    for side in ("request_schema", "response_schema")
    for way in fields(contract(REGISTRY[name])[side])
]


@given(st.sampled_from(FIELDS), st.sampled_from(["gone", "renamed", "retyped", "default", "needed"]))
def test_any_field_of_ours_is_watched(field: tuple[str, str, tuple[str, ...]], change: str) -> None:
    name, side, (*way, last) = field
    old = contract(REGISTRY[name])
    new = json.loads(json.dumps(old)) | {"version": "1.1.0"}
    parent = new[side]
    for part in way[:-1]:
        parent = parent[part]
    holder = parent["properties"]
    if change == "needed" and last in parent.get("required", ()):
        return
    match change:
        case "gone":
            del holder[last]
        case "renamed":
            holder[f"{last}_"] = holder.pop(last)
        case "retyped":
            holder[last] = {"type": "null"}
        case "default":
            holder[last]["default"] = "another"
            parent["required"] = [one for one in parent.get("required", ()) if one != last]
            old = json.loads(json.dumps(old))
            before = old[side]
            for part in way[:-1]:
                before = before[part]
            before["required"] = parent["required"]
        case "needed":
            parent["required"] = [*parent.get("required", ()), last]
    assert breaks(old, new), (field, change)


def test_the_released_files_are_contracts() -> None:
    folder = Path(__file__).parents[2] / "contracts" / "job-types" / "released"
    for path in folder.glob("*.json"):
        stored = json.loads(path.read_text(encoding="utf-8"))
        assert stored["name"] == path.stem
        assert breaks(stored, stored) == []
