"""Expressions of workflows as Python objects: `wf.input.url`, `fetch.output.text`, `(a > 3) & ~b`.

What a workflow's `when` and `with` hold is CEL, as text. Here it is built: names are spelled so that any will do, texts
are quoted, brackets are where they are needed. A Python text is always a text, and an expression always an object, so
that nothing that a user typed is ever taken for code. Pure: nothing is evaluated here; the server does that.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeAlias, Union

from fumehood.errors import InvalidDefinitionError

LONGEST: Final = 4096
"""Characters that the server takes in one expression."""
LARGEST_INTEGER: Final = 2**63
METHODS: Final = frozenset({"contains", "startsWith", "endsWith", "matches", "size"})
"""What can be called on a value."""
MACROS: Final = frozenset({"all", "exists", "exists_one", "filter", "map"})
"""What goes through a list with a function of one argument, which tells what is done with each item."""
ROOTS: Final = frozenset({"input", "steps", "item", "index", "failure", "output"})

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED = frozenset(
    ("as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let", "loop")
) | frozenset(("namespace", "null", "package", "return", "true", "var", "void", "while"))
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}

_CHOICE, _OR, _AND, _RELATION, _SUM, _PRODUCT, _UNARY, _WHOLE = range(8)
"""How tightly an expression holds together, from the loosest to one that needs no brackets anywhere."""

Value: TypeAlias = Union["Expression", bool, int, float, str, Sequence["Value"], Mapping[str, "Value"], None]
"""What an expression can be made with: expressions, and whatever JSON has."""


class Expression:
    """A value that is only known when a run meets it.

    Attributes and items are fields of it (`fetch.output.text`, `fetch.output["a-b"]`), comparisons and arithmetic give
    further expressions, and `&`, `|` and `~` are "and", "or" and "not". It has no attributes of its own; `str()` is
    the CEL text.

        wf = Workflow("review")
        assert str((wf.input.size > 3) & ~wf.input["is-draft"]) == 'input.size > 3 && !input["is-draft"]'
    """

    __slots__ = ("_cel", "_level", "_of", "_reads")
    _cel: str
    _level: int
    _of: tuple[Expression, str] | None
    _reads: tuple[str, ...]

    def __init__(
        self, text: str, level: int = _WHOLE, reads: Iterable[str] = (), of: tuple[Expression, str] | None = None
    ) -> None:
        self._cel, self._level, self._of = text, level, of
        self._reads = tuple(dict.fromkeys(reads))

    def __str__(self) -> str:
        return self._cel

    def __format__(self, form: str) -> NoReturn:
        raise TypeError(f"{self._cel} is only known when it runs, and is not put into a text here: write 'a ' + it")

    def __repr__(self) -> str:
        return f"<expression {self._cel}>"

    # --- what is inside of it ------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Expression:
        if name.startswith("_"):
            raise AttributeError(f'a field with this name is written ["{name}"]')
        return _field(self, name)

    def __getitem__(self, key: str | int | Expression) -> Expression:
        if isinstance(key, str):
            return _field(self, key)
        if isinstance(key, bool) or not isinstance(key, int | Expression):
            raise TypeError("an item is named by a text, a number or an expression")
        inside = expression(key)
        return Expression(f"{_within(self, _WHOLE)}[{inside._cel}]", reads=(*self._reads, *inside._reads))

    def __call__(self, *arguments: Value | Callable[[Expression], Value]) -> Expression:
        """`name.contains("x")`, `items.filter(lambda one: one.ok)`."""
        base, name = self._of or (None, "")
        if base is None or name not in METHODS | MACROS:
            known = ", ".join(sorted(METHODS | MACROS))
            raise TypeError(f"{self._cel} is no function: there are {known}, and those of `cel`")
        if name in MACROS:
            return _macro(base, name, arguments)
        given = [_argument(one) for one in arguments]
        inside = ", ".join(one._cel for one in given)
        return Expression(f"{_within(base, _WHOLE)}.{name}({inside})", reads=_all_reads(base, *given))

    # --- comparisons ---------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return _joined("==", _RELATION, self, other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return _joined("!=", _RELATION, self, other)

    def __lt__(self, other: Value) -> Expression:
        return _joined("<", _RELATION, self, other)

    def __le__(self, other: Value) -> Expression:
        return _joined("<=", _RELATION, self, other)

    def __gt__(self, other: Value) -> Expression:
        return _joined(">", _RELATION, self, other)

    def __ge__(self, other: Value) -> Expression:
        return _joined(">=", _RELATION, self, other)

    def __hash__(self) -> int:
        return hash(self._cel)

    # --- and, or, not --------------------------------------------------------------------------------------

    def __and__(self, other: Value) -> Expression:
        return _joined("&&", _AND, self, other)

    def __rand__(self, other: Value) -> Expression:
        return _joined("&&", _AND, other, self)

    def __or__(self, other: Value) -> Expression:
        return _joined("||", _OR, self, other)

    def __ror__(self, other: Value) -> Expression:
        return _joined("||", _OR, other, self)

    def __invert__(self) -> Expression:
        return Expression(f"!{_within(self, _WHOLE)}", _UNARY, self._reads)

    # --- arithmetic ----------------------------------------------------------------------------------------

    def __add__(self, other: Value) -> Expression:
        return _joined("+", _SUM, self, other)

    def __radd__(self, other: Value) -> Expression:
        return _joined("+", _SUM, other, self)

    def __sub__(self, other: Value) -> Expression:
        return _joined("-", _SUM, self, other)

    def __rsub__(self, other: Value) -> Expression:
        return _joined("-", _SUM, other, self)

    def __mul__(self, other: Value) -> Expression:
        return _joined("*", _PRODUCT, self, other)

    def __rmul__(self, other: Value) -> Expression:
        return _joined("*", _PRODUCT, other, self)

    def __truediv__(self, other: Value) -> Expression:
        return _joined("/", _PRODUCT, self, other)

    def __rtruediv__(self, other: Value) -> Expression:
        return _joined("/", _PRODUCT, other, self)

    def __mod__(self, other: Value) -> Expression:
        return _joined("%", _PRODUCT, self, other)

    def __rmod__(self, other: Value) -> Expression:
        return _joined("%", _PRODUCT, other, self)

    def __neg__(self) -> Expression:
        return Expression(f"-{_within(self, _WHOLE)}", _UNARY, self._reads)

    # --- what Python would take for an answer --------------------------------------------------------------

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"{self._cel} is only known when it runs: write & | ~ for and, or, not, with brackets around comparisons, "
            "and cel.choose() for if"
        )

    def __iter__(self) -> NoReturn:
        raise TypeError(f"{self._cel} is only known when it runs: a step made by wf.map() goes through a list")

    def __contains__(self, item: object) -> NoReturn:
        raise TypeError(f"{self._cel} is only known when it runs: write cel.is_in(item, list)")


# --- making them -------------------------------------------------------------------------------------------


def expression(value: object) -> Expression:
    """A value as an expression: one stays what it is, all else is written as CEL has it."""
    if isinstance(value, Expression):
        return value
    if value is None or isinstance(value, bool):
        return Expression({None: "null", True: "true", False: "false"}[value])
    if isinstance(value, str):
        return Expression(quoted(value))
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, Mapping):
        pairs = [(expression(_key(name)), expression(item)) for name, item in value.items()]
        inside = ", ".join(f"{name._cel}: {item._cel}" for name, item in pairs)
        return Expression(f"{{{inside}}}", reads=_all_reads(*(item for _, item in pairs)))
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        items = [expression(item) for item in value]
        return Expression(f"[{', '.join(item._cel for item in items)}]", reads=_all_reads(*items))
    raise TypeError(f"{type(value).__name__} is nothing that JSON has")


def template(value: object) -> Any:
    """A `with` or an `output`: its expressions as text, its texts in quotes, everything else as it is."""
    if isinstance(value, Expression | str):
        return text_of(value)
    if isinstance(value, Mapping):
        return {_key(name): template(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [template(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidDefinitionError([f"{value} is no number that JSON has"])
    if value is None or isinstance(value, bool | int | float):
        return value
    raise TypeError(f"{type(value).__name__} is nothing that JSON has")


def text_of(value: object) -> str:
    """The CEL text of what must be one expression."""
    text = expression(value)._cel
    if len(text) > LONGEST:
        raise InvalidDefinitionError(
            [f"an expression has at most {LONGEST} characters, and this one {len(text)}: let it come with the input"]
        )
    return text


def reads(value: object) -> tuple[str, ...]:
    """The steps that a value's expressions look at, in order."""
    if isinstance(value, Expression):
        return value._reads
    if isinstance(value, Mapping):
        return tuple(step for item in value.values() for step in reads(item))
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return tuple(step for item in value for step in reads(item))
    return ()


def quoted(text: str, quote: str = "'") -> str:
    """A text as CEL has it. What is no letter to anybody is written by its number, since it may be lost on the way."""
    said = (_ESCAPES.get(one) or (f"\\{one}" if one == quote else _numbered(one)) for one in text)
    return f"{quote}{''.join(said)}{quote}"


def _numbered(one: str) -> str:
    if one.isprintable():
        return one
    if "\ud800" <= one <= "\udfff":
        raise InvalidDefinitionError(["a text holds half a surrogate pair, which is no character"])
    number = ord(one)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _number(value: float) -> Expression:
    if isinstance(value, int) and not -LARGEST_INTEGER <= value < LARGEST_INTEGER:
        raise InvalidDefinitionError([f"{value} does not fit into the 64 bits that expressions have for a number"])
    if not math.isfinite(value):
        raise InvalidDefinitionError([f"{value} is no number that JSON has"])
    negative = math.copysign(1.0, value) < 0
    return Expression(repr(value), _UNARY if negative else _WHOLE)


def _key(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError("the keys of an object are texts")
    return name


def _field(base: Expression, name: str) -> Expression:
    inside = _within(base, _WHOLE)
    if _NAME.fullmatch(name) and name not in _RESERVED:
        return Expression(f"{inside}.{name}", reads=base._reads, of=(base, name))
    return Expression(f"{inside}[{quoted(name, chr(34))}]", reads=base._reads)


def _within(inner: Expression, level: int) -> str:
    return inner._cel if inner._level >= level else f"({inner._cel})"


def _joined(sign: str, level: int, left: object, right: object) -> Expression:
    """Operators of one level go from left to right, those that compare stand alone."""
    first, second = expression(left), expression(right)
    least = level + 1 if level == _RELATION else level
    text = f"{_within(first, least)} {sign} {_within(second, level + 1)}"
    return Expression(text, level, _all_reads(first, second))


def _argument(value: Value | Callable[[Expression], Value]) -> Expression:
    if callable(value) and not isinstance(value, Expression):
        raise TypeError("a function is only for all, exists, exists_one, filter and map")
    return expression(value)


def _macro(base: Expression, name: str, arguments: Sequence[Any]) -> Expression:
    """The function's own word for an item is the expression's, too."""
    if len(arguments) != 1 or isinstance(arguments[0], Expression) or not callable(arguments[0]):
        raise TypeError(f"{name} takes a function of one argument, like lambda one: one > 3")
    (variable,) = inspect.signature(arguments[0]).parameters
    if not _NAME.fullmatch(variable) or variable in _RESERVED | ROOTS:
        raise TypeError(f"{variable} means something else in an expression: give the function's argument another name")
    body = expression(arguments[0](Expression(variable)))
    text = f"{_within(base, _WHOLE)}.{name}({variable}, {body._cel})"
    return Expression(text, reads=_all_reads(base, body))


def _all_reads(*parts: Expression) -> tuple[str, ...]:
    return tuple(step for part in parts for step in part._reads)


class Cel:
    """CEL by hand, and its functions. `fumehood.cel` is the only one of it.

    wf = Workflow("review")
    who = cel.choose(cel.has(wf.input.name), wf.input.name, "nobody")
    assert str(who) == "has(input.name) ? input.name : 'nobody'"
    assert str(cel("input.a + input.b") * 2) == "(input.a + input.b) * 2"
    """

    def __call__(self, text: str) -> Expression:
        """An expression as it is written. What stands in it is taken as it is: never build it from what users type."""
        if not isinstance(text, str):
            raise TypeError("cel() takes the text of an expression")
        if not text.strip():
            raise InvalidDefinitionError(["cel() takes the text of an expression, and this one is empty"])
        return Expression(text, _CHOICE - 1)

    def has(self, field: Expression) -> Expression:
        """Whether there is such a field."""
        if field._of is None:
            raise TypeError(f"{field!s} is no field with a plain name: write cel.is_in('the-name', the_object)")
        return _called("has", field)

    def size(self, value: Value) -> Expression:
        """Characters of a text, items of a list or an object."""
        return _called("size", value)

    def string(self, value: Value) -> Expression:
        """A number as a text."""
        return _called("string", value)

    def int(self, value: Value) -> Expression:
        """A text or a number as a whole number."""
        return _called("int", value)

    def double(self, value: Value) -> Expression:
        """A text or a whole number as one with a fraction: CEL never mixes the two."""
        return _called("double", value)

    def is_in(self, item: Value, place: Value) -> Expression:
        """Whether a list has an item, or an object a key."""
        return _joined("in", _RELATION, item, place)

    def choose(self, test: Value, then: Value, otherwise: Value) -> Expression:
        """One value or another."""
        parts = [expression(one) for one in (test, then, otherwise)]
        said = [_within(one, _OR) for one in parts]
        return Expression(f"{said[0]} ? {said[1]} : {said[2]}", _CHOICE, _all_reads(*parts))


def _called(name: str, value: Value) -> Expression:
    inside = expression(value)
    return Expression(f"{name}({inside._cel})", reads=inside._reads)


cel = Cel()
