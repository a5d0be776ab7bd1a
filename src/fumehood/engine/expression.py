"""Expressions in definitions: CEL, compiled once, over just those values that they name.

The language has no loops beyond its bounded macros, no I/O and no clock, but the binding has no bound on cost. What we
add: an expression is given only what stands under the paths that it names; what evaluating it can cost is known from
its form and from the sizes of these values before it begins (`cost`), and above a bound it is refused; and so is a
result that is too large or too deep. One `Meter` bounds all expressions of a decision together. A bare path is no
expression at all: its value is passed on as it is. Why this binding: docs/decisions/0011-expressions.md.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import cel

from fumehood.engine import cost, grammar
from fumehood.engine.grammar import At, Call, Chain, Field, Group, Macro, Name, Node, Postfix
from fumehood.wire import blobref, strict_json

LONGEST = 4096
RESULT_BYTES = 8 * 1024 * 1024
"""JSON that one expression may give."""
STEP_BYTES = 4 * RESULT_BYTES
"""JSON that all expressions of one step may give together, all items of a map counted."""
RESULT_LEVELS = strict_json.DEEPEST * 2
"""An expression may put one value inside another."""
DECISION_COPIES = 10_000_000
"""What all expressions of one decision may take together: some 1.5 s, or 10,000 items with five small ones each."""
PASSED_ON = cost.ONCE // 5

Path = tuple[str, ...]
Named = dict[str, Any]
"""A tree of what is named: below each name what is named inside it, or `None` for all of it."""


class ExpressionError(ValueError):
    """An expression that does not compile, or that failed on the values it met."""


class Meter:
    """What is left for the expressions of one decision."""

    def __init__(self, copies: int = DECISION_COPIES) -> None:
        self._left = copies

    def spend(self, copies: int) -> None:
        self._left -= copies
        if self._left < 0:
            raise ExpressionError("the expressions of this decision look at too much together; let a task do it")


@dataclass(frozen=True, slots=True)
class Program:
    """An expression, ready to be evaluated any number of times."""

    code: Any
    tree: Node
    named: Named
    path: Path | None
    """Where the expression is a bare path."""


@functools.lru_cache(maxsize=4096)
def compiled(text: str) -> Program:
    """The program of an expression; `ExpressionError` when it has none."""
    if len(text) > LONGEST:
        raise ExpressionError(f"longer than {LONGEST} characters")
    try:
        tree = grammar.parse(text)
        code = cel.compile(text)
    except Exception as error:
        raise ExpressionError(_first_line(error)) from error
    if _has_nested_macros(tree):
        raise ExpressionError("map, filter, all and exists may follow each other, but not stand inside each other")
    if not {*code.variables()} <= {*_names(tree)}:
        raise ExpressionError("is written in a way that is not understood")
    return Program(code, tree, _tree(_paths(tree, frozenset())), _bare(tree))


def evaluate(text: str, values: Mapping[str, Any], meter: Meter | None = None) -> Any:
    """The value of an expression as JSON; `ExpressionError` when it has none."""
    program = compiled(text)
    return measured(program, pruned(values, program.named), meter or Meter())[0]


def measured(program: Program, seen: Mapping[str, Any], meter: Meter) -> tuple[Any, int]:
    """The value of a program over what it sees, and the value's bytes of JSON."""
    if program.path is not None:
        try:
            found = functools.reduce(_field, program.path, seen)
        except LookupError:
            pass  # the binding says what is wrong with it
        else:
            meter.spend(PASSED_ON)
            return _plain(found)
    try:
        meter.spend(cost.bound(program.tree, seen))
        value, size = _plain(program.code.execute(dict(seen)))
        if blobref.is_made_up(value, seen):
            raise ExpressionError(f"gives the key {blobref.KEY}, which is not for definitions")
        return value, size
    except ExpressionError:
        raise
    except RecursionError:
        raise ExpressionError("a value is nested too deeply") from None
    except KeyError as error:
        raise ExpressionError(f"there is no {error.args[0] if error.args else 'such key'}") from error
    except Exception as error:
        raise ExpressionError(_first_line(error)) from error


def pruned(values: Mapping[str, Any], named: Named) -> dict[str, Any]:
    """Of these values only what is named. What is not there is left out, and missed by whoever looks for it."""
    return {name: below(values[name], inside) for name, inside in named.items() if name in values}


def below(value: Any, named: Named | None) -> Any:
    """Of one value only what is named in it."""
    if named is None or not isinstance(value, dict):
        return value
    return {name: below(value[name], inside) for name, inside in named.items() if name in value}


def truth(text: str, values: Mapping[str, Any]) -> bool:
    """A condition is a boolean or an error: no number, text or null is quietly taken for one."""
    return boolean(evaluate(text, values))


def boolean(result: Any) -> bool:
    if not isinstance(result, bool):
        raise ExpressionError(f"is {type(result).__name__}, not a boolean")
    return result


def texts(template: Any) -> list[str]:
    """All expressions in a mapping of inputs: every text in it is one, everything else is taken as it is."""
    if isinstance(template, str):
        return [template]
    items = template.values() if isinstance(template, dict) else template if isinstance(template, list) else ()
    return [text for item in items for text in texts(item)]


def with_results(template: Any, results: Mapping[str, Any]) -> Any:
    """A mapping of inputs with every expression in it replaced by its result."""
    if isinstance(template, str):
        return results[template]
    if isinstance(template, dict):
        return {name: with_results(item, results) for name, item in template.items()}
    if isinstance(template, list):
        return [with_results(item, results) for item in template]
    return template


def _plain(value: Any) -> tuple[Any, int]:
    """Only what JSON can carry leaves an expression, and not too much of it."""
    if not strict_json.is_flat(value, RESULT_LEVELS):
        raise ExpressionError(f"gives a value of more than {RESULT_LEVELS} levels")
    try:  # sorted: the binding gives an object's keys in another order in each process
        data = json.dumps(value, allow_nan=False, sort_keys=True, ensure_ascii=False)
        size = len(data) if data.isascii() else len(data.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise ExpressionError("gives something that JSON cannot carry") from error
    if size > RESULT_BYTES:
        raise ExpressionError(f"gives {size} bytes of JSON; {RESULT_BYTES} are allowed")
    return json.loads(data), size


def _field(value: Any, name: str) -> Any:
    if not isinstance(value, Mapping):
        raise LookupError(name)
    return value[name]


# --- what a tree names -------------------------------------------------------------------------------------


def _children(node: Node) -> Iterator[Node]:
    if isinstance(node, Chain | Group):
        yield from node.parts
    elif isinstance(node, Postfix):
        yield node.base
        for operation in node.operations:
            if isinstance(operation, At):
                yield operation.key
            elif isinstance(operation, Call):
                yield from operation.arguments
            elif isinstance(operation, Macro):
                yield from operation.bodies


def _names(node: Node) -> Iterator[str]:
    if isinstance(node, Name):
        yield node.name
    if isinstance(node, Postfix):
        yield from (operation.variable for operation in node.operations if isinstance(operation, Macro))
    for child in _children(node):
        yield from _names(child)


def _has_nested_macros(node: Node, inside: bool = False) -> bool:
    """Macros inside macros multiply: 3,000 items squared took 18 s. One after the other they only add up."""
    operations = node.operations if isinstance(node, Postfix) else ()
    if inside and any(isinstance(operation, Macro) for operation in operations):
        return True
    bodies = {id(body) for operation in operations if isinstance(operation, Macro) for body in operation.bodies}
    return any(_has_nested_macros(child, inside or id(child) in bodies) for child in _children(node))


def _paths(node: Node, bound: frozenset[str]) -> Iterator[Path]:
    """All paths from a name that no macro binds, as far as the expression says where they lead."""
    if isinstance(node, Name) and node.name not in bound:
        yield (node.name,)
    elif isinstance(node, Postfix):
        if not isinstance(node.base, Name):
            yield from _paths(node.base, bound)
        elif node.base.name not in bound:
            yield _leading(node.base, node)
        for operation in node.operations:
            yield from _paths_of(operation, bound)
    else:
        for child in _children(node):
            yield from _paths(child, bound)


def _paths_of(operation: grammar.Operation, bound: frozenset[str]) -> Iterator[Path]:
    if isinstance(operation, Macro):
        for body in operation.bodies:
            yield from _paths(body, bound | {operation.variable})
    elif isinstance(operation, At):
        yield from _paths(operation.key, bound)
    elif isinstance(operation, Call):
        for argument in operation.arguments:
            yield from _paths(argument, bound)


def _leading(base: Name, node: Postfix) -> Path:
    """No longer than values are deep: what is named further down is in there, too."""
    names = [base.name]
    for operation in node.operations[: strict_json.DEEPEST]:
        if not isinstance(operation, Field) or not isinstance(operation.key, str):
            break
        names.append(operation.key)
    return tuple(names)


def _bare(tree: Node) -> Path | None:
    if isinstance(tree, Name):
        return (tree.name,)
    if isinstance(tree, Postfix) and isinstance(tree.base, Name):
        path = _leading(tree.base, tree)
        return path if len(path) == len(tree.operations) + 1 else None
    return None


def _tree(paths: Iterator[Path]) -> Named:
    """The paths as one tree; where one ends, all that is below belongs to it."""
    named: Named = {}
    for path in paths:
        here: Named | None = named
        for name in path[:-1]:
            here = here.setdefault(name, {}) if here is not None else None
        if here is not None:
            here[path[-1]] = None
    return named


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
