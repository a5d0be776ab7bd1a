"""What the expressions of a run see: values of its state, some of which are kept by reference.

The engine does no I/O. When an expression looks into a value that stands behind a reference, `decide` stops with
`ContentNeededError`, which names all that the step needs; whoever called it fetches that and calls again. Content is
named by its hash, so that the second call decides what the first would have. A value that is only passed on (a bare
path: `steps.a.output`, `item`, `input.document`) is passed on with the references that are in it, and nothing is
fetched beyond what the path itself leads through.

References are followed once: content that was fetched is taken as it is, whatever it looks like inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fumehood.engine import expression
from fumehood.engine.expression import ExpressionError, Meter, Named, Program
from fumehood.engine.state import RunState
from fumehood.wire import blobref

_OF_ITEM = frozenset({"item", "index"})


class ContentNeededError(Exception):
    """Decide again with the content of these references."""

    def __init__(self, refs: Iterable[str]) -> None:
        super().__init__("content is needed")
        self.refs = tuple(refs)


@dataclass(frozen=True, slots=True)
class Unavailable:
    """In the place of content that cannot be had, and why."""

    reason: str


def whole(value: Any, contents: Mapping[str, Any]) -> Any:
    """The value itself where a reference stands for the whole of it."""
    ref = blobref.ref_of(value)
    return value if ref is None else _known(ref, contents)


def _known(ref: str, contents: Mapping[str, Any]) -> Any:
    if ref not in contents:
        raise ContentNeededError([ref])
    if isinstance(contents[ref], Unavailable):
        raise ExpressionError(contents[ref].reason)
    return contents[ref]


class Sight:
    """What one step's expressions see, and what they may give together."""

    def __init__(self, state: RunState, contents: Mapping[str, Any], meter: Meter) -> None:
        self._state = state
        self._contents = contents
        self._meter = meter
        self._room = expression.STEP_BYTES
        self._missing: dict[str, None] = {}

    def truth(self, condition: str, local: Mapping[str, Any] | None = None) -> bool:
        return expression.boolean(self.fill(condition, local))

    def fill(self, template: Any, local: Mapping[str, Any] | None = None) -> Any:
        """A mapping of inputs with what its expressions give; `local` has what only this place can name."""
        return expression.with_results(template, self._results(expression.texts(template), local=local))

    def listed(self, text: str) -> Any:
        """What a map goes over: its items may be references, the list itself is needed."""
        return whole(self._results([text])[text], self._contents)

    def each(self, template: Any, items: Sequence[Any]) -> list[Any]:
        """The mapping of inputs for every item. What does not depend on the item is evaluated once."""
        texts = list(dict.fromkeys(expression.texts(template)))
        own = [text for text in texts if _OF_ITEM & expression.compiled(text).named.keys()]
        same = self._results([text for text in texts if text not in own], times=max(1, len(items)))
        seen = [self._seen(own, {"item": item, "index": index}) for index, item in enumerate(items)]
        self._complete()
        return [expression.with_results(template, same | self._evaluated(sees)) for sees in seen]

    def _results(
        self, texts: Iterable[str], *, times: int = 1, local: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        seen = self._seen(texts, local or {})
        self._complete()
        return self._evaluated(seen, times=times)

    def _evaluated(self, seen: Mapping[str, dict[str, Any]], *, times: int = 1) -> dict[str, Any]:
        results = {}
        for text, sees in seen.items():
            results[text], size = expression.measured(expression.compiled(text), sees, self._meter)
            self._room -= size * times
            if self._room < 0:
                raise ExpressionError(f"gives more than {expression.STEP_BYTES} bytes of JSON for one step")
        return results

    def _seen(self, texts: Iterable[str], local: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        return {text: self._sees(expression.compiled(text), local) for text in texts}

    def _sees(self, program: Program, local: Mapping[str, Any]) -> dict[str, Any]:
        values = {**self._state.values(program.named.get("steps", ())), **local}
        return {
            name: self._taken(values[name], below, passing=program.path is not None)
            for name, below in program.named.items()
            if name in values
        }

    def _taken(self, value: Any, below: Named | None, *, passing: bool) -> Any:
        """Of a value what is named, with the references replaced that stand in the way."""
        if below is not None and blobref.ref_of(value) is not None:
            return expression.below(self._replaced(value), below)
        if below is None or not isinstance(value, dict):
            return value if passing else self._replaced(value)
        return {
            name: self._taken(value[name], inside, passing=passing) for name, inside in below.items() if name in value
        }

    def _replaced(self, value: Any) -> Any:
        refs = blobref.refs(value)
        return blobref.replaced(value, {ref: self._content(ref) for ref in refs}) if refs else value

    def _content(self, ref: str) -> Any:
        try:
            return _known(ref, self._contents)
        except ContentNeededError:  # and whatever else is: all is asked for at once
            self._missing[ref] = None
            return None

    def _complete(self) -> None:
        if self._missing:
            raise ContentNeededError(self._missing)
