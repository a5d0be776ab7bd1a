"""What may change in a job type within its major version: whoever wrote to the last release is still understood.

A request is read by newer ones: what was allowed stays allowed. A response is read by older and by newer ones: what
it may hold stays as it was. What is new, on either side, is an option without a default: a default would be part of
every old request's typed form, and so change its hash.

Fails closed: a keyword of JSON Schema that this does not know must stay as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fumehood.jobs.base import SchemaVersion

Schema = Mapping[str, Any]

_LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_UPPER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_WORDS = frozenset({"title", "description", "examples", "deprecated", "$comment", "$schema", "$defs"})
"""Said to people."""
_LIMITS = frozenset({"pattern", "format", "const", "multipleOf", "uniqueItems"})
"""A request may do without; what else it may be, nobody can tell."""
_INSIDE = ("items", "propertyNames", "additionalProperties")
_LOOKED_AT = frozenset(
    {*_LOWER, *_UPPER, *_WORDS, *_INSIDE, "$ref", "type", "enum", "properties", "required", "default"}
)
_ANYTHING: Final[Schema] = {}


def breaks(old: Schema, new: Schema) -> list[str]:
    """What is wrong with `new` for those who rely on `old`; both are a type's contract (`jobs/schemas.py`)."""
    problems = list(_versions(old, new))
    problems += [f"adjudications: {way} is gone" for way in old["adjudications"] if way not in new["adjudications"]]
    problems += _Comparison(old["request_schema"], new["request_schema"], answers=False).problems("request")
    problems += _Comparison(old["response_schema"], new["response_schema"], answers=True).problems("response")
    return problems


def _versions(old: Schema, new: Schema) -> Iterator[str]:
    before, after = SchemaVersion.parse(old["version"]), SchemaVersion.parse(new["version"])
    changed = any(_bare(old[part]) != _bare(new[part]) for part in ("request_schema", "response_schema"))
    changed = changed or old["adjudications"] != new["adjudications"]
    if before.major != after.major:
        yield f"version: {after} is another major, and so another type with another name"
    elif after < before:
        yield f"version: {after} comes before {before}"
    elif changed and after.minor == before.minor:
        yield f"version: what a job may say has changed, so {after} needs a new minor"


def _bare(value: Any) -> Any:
    """Without what is said to people; the names of fields are no keywords."""
    if isinstance(value, list):
        return [_bare(one) for one in value]
    if not isinstance(value, Mapping):
        return value
    kept = {name: _bare(inside) for name, inside in value.items() if name not in _WORDS or name == "$defs"}
    for named in ("properties", "$defs"):
        if isinstance(value.get(named), Mapping):
            kept[named] = {name: _bare(inside) for name, inside in value[named].items()}
    return kept


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Two schemas, and who reads what they describe."""

    old: Schema
    new: Schema
    answers: bool

    def problems(self, place: str) -> list[str]:
        return list(self._compare(place, self.old, self.new, frozenset()))

    def _compare(self, place: str, old: Schema, new: Schema, above: frozenset[tuple[str, str]]) -> Iterator[str]:
        """`above` ends the way down a model that holds itself."""
        names = (str(old.get("$ref", "")), str(new.get("$ref", "")))
        if all(names) and names in above:
            return
        above |= {names}
        old, new = _resolved(self.old, old), _resolved(self.new, new)
        yield from self._kinds(place, old, new)
        yield from self._bounds(place, old, new)
        yield from self._fields(place, old, new, above)
        for inside in _INSIDE:
            yield from self._inside(f"{place}.{inside}" if inside != "items" else f"{place}[]", inside, old, new, above)
        for keyword in sorted((set(old) | set(new)) - _LOOKED_AT):
            loosened = keyword in _LIMITS and keyword not in new and not self.answers
            if _bare(old.get(keyword)) != _bare(new.get(keyword)) and not loosened:
                yield f"{place}: {keyword} has changed"

    def _kinds(self, place: str, old: Schema, new: Schema) -> Iterator[str]:
        before, after = _types(old), _types(new)
        if self.answers and before != after:
            yield f"{place}: is of another type"
        elif after and not (before and before <= after):
            yield f"{place}: is of a narrower type"
        gone = [one for one in old.get("enum", ()) if "enum" in new and one not in new["enum"]]
        yield from (f"{place}: {one!r} is gone" for one in gone)
        if "enum" in new and "enum" not in old:
            yield f"{place}: is now one of a few"
        if self.answers and "enum" in old:
            added = [one for one in new.get("enum", ("anything",)) if one not in old["enum"]]
            yield from (f"{place}: {one!r} is new, and older readers do not know it" for one in added)

    def _bounds(self, place: str, old: Schema, new: Schema) -> Iterator[str]:
        for keyword in (*_LOWER, *_UPPER):
            before, after = old.get(keyword), new.get(keyword)
            sign = 1 if keyword in _LOWER else -1
            narrower = after is not None and (before is None or sign * after > sign * before)
            if narrower or (self.answers and before != after):
                yield f"{place}: {keyword} was {before}, and is {after}"

    def _fields(self, place: str, old: Schema, new: Schema, above: frozenset[tuple[str, str]]) -> Iterator[str]:
        before, after = old.get("properties", {}), new.get("properties", {})
        needed_before, needed = set(old.get("required", ())), set(new.get("required", ()))
        for name in before:
            inside = f"{place}.{name}"
            if name not in after:
                yield f"{inside}: is gone"
                continue
            yield from self._compare(inside, before[name], after[name], above)
            if not self.answers and name in needed - needed_before:
                yield f"{inside}: is now required"
            if self.answers and (name in needed) != (name in needed_before):
                yield f"{inside}: {'is now' if name in needed else 'is no longer'} always there"
            fixed = name not in needed_before or self.answers
            if fixed and _default(before[name]) != _default(after[name]):
                yield f"{inside}: has another default, which changes hashes"
        for name in after.keys() - before.keys():
            if name in needed:
                yield f"{place}.{name}: is new, and required"
            elif _default(after[name]) != _default({}):
                yield f"{place}.{name}: is new, and has a default, which changes hashes"

    def _inside(
        self, place: str, keyword: str, old: Schema, new: Schema, above: frozenset[tuple[str, str]]
    ) -> Iterator[str]:
        before, after = old.get(keyword, _ANYTHING), new.get(keyword, _ANYTHING)
        before, after = (_ANYTHING if one is True else one for one in (before, after))
        if before is False or after is False:
            if (before is False) != (after is False) and (self.answers or after is False):
                yield f"{place}: has changed"
            return
        if before or after:
            yield from self._compare(place, before, after, above)


def _resolved(root: Schema, schema: Schema) -> Schema:
    """With what a reference stands for; what is said beside one counts."""
    seen: set[str] = set()
    while "$ref" in schema and schema["$ref"] not in seen:
        seen.add(schema["$ref"])
        target = root["$defs"][str(schema["$ref"]).removeprefix("#/$defs/")]
        schema = {**target, **{name: said for name, said in schema.items() if name != "$ref"}}
    return schema


def _types(schema: Schema) -> frozenset[str]:
    """Every integer is a number."""
    said = schema.get("type", ())
    found = {said} if isinstance(said, str) else set(said)
    return frozenset(found | {"integer"} if "number" in found else found)


def _default(schema: Schema) -> tuple[bool, Any]:
    return "default" in schema, schema.get("default")
