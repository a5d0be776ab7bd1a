"""Finds what would make the gate depend on chance or on the speed of the machine, in every file below `tests/`.

    python -m tests.gate_rules [FILE…]

Each finding is a line `path:line: rule: message`, and any finding makes the exit code 1. The rules:

- `clock`: an assertion that a reading of a real clock is less than something, or the same. Ask for the fixture
  `time_bounds`. That something takes at least its time may be asserted: no machine is too slow for that.
- `sleep`: a pause of a fixed length. Wait for what must happen, with `tests/waiting.py`.
- `random`: a choice without a seed. Names made of `uuid` or `secrets` are no choice.
- `port`: a port that was free a moment ago. Hold its socket, or let the program that listens choose.

A test that the gate leaves out may do all of it: one with a mark on itself, its class, its module, or on every
`pytest.param` of one of its parameters; and so may a whole module of such tests. Elsewhere a comment on the line
allows it: `# gate: RULE REASON`.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
CLOCKS: Final = frozenset(
    f"time.{name}{unit}"
    for name in ("monotonic", "perf_counter", "time", "process_time", "thread_time")
    for unit in ("", "_ns")
) | {"resource.getrusage", "os.times"}
LOOP_CLOCK: Final = re.compile(r"(\w*loop|asyncio\.get_\w+_loop\(\))\.time")
ARITHMETIC: Final = frozenset(
    {"abs", "all", "any", "float", "int", "max", "min", "pytest.approx", "round", "sorted", "sum"}
)
SLEEPS: Final = frozenset({"time.sleep", "asyncio.sleep"})
SEEDED: Final = frozenset({"random.Random", "random.seed"})
RULES: Final = ("clock", "sleep", "random", "port")
WORTH_READING: Final = re.compile(r"sleep|random|getsockname|gate:|getrusage|time\(|times\(|monotonic|perf_counter")
ALLOWED: Final = re.compile(r"#\s*gate:\s*(\S*)\s*(.*)")

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Finding(NamedTuple):
    line: int
    rule: str
    message: str


def excluded_marks() -> frozenset[str]:
    """The marks that pytest's default options exclude."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        options: list[str] = tomllib.load(file)["tool"]["pytest"]["ini_options"]["addopts"]
    return frozenset(re.findall(r"\w+", options[options.index("-m") + 1])) - {"not", "or"}


MARKS: Final = excluded_marks()


def check(source: str) -> list[Finding]:
    """Everything in one file that is against the rules, and every comment that allows what is not there."""
    if not WORTH_READING.search(source):
        return []
    found = {(finding.line, finding.rule): finding for finding in violations(ast.parse(source))}
    for line, rule, reason in allowances(source):
        if rule not in RULES or not reason:
            found[line, "comment"] = Finding(line, "comment", "say `# gate: RULE REASON`, with one of the rules")
        elif found.pop((line, rule), None) is None:
            found[line, "comment"] = Finding(line, "comment", f"nothing here is against the rule `{rule}`")
    return sorted(found.values())


def violations(tree: ast.Module) -> Iterator[Finding]:
    if has_mark(value_of(tree, "pytestmark")):
        return
    tests = [node for node in tree.body if isinstance(node, Function) and node.name.startswith("test_")]
    if tests and all(is_excluded(test) for test in tests):
        return
    nodes = in_the_gate(tree)
    names = imported(nodes)
    end = 0
    for node in nodes:
        if isinstance(node, ast.Call):
            yield from sleep(node, names)
            yield from randomness(node, names)
        elif isinstance(node, Function) and node.lineno > end:  # not within the one before
            end = node.end_lineno or node.lineno
            below = in_the_gate(node)
            yield from clock(below, names)
            yield from port(below, names)


def sleep(call: ast.Call, names: dict[str, str]) -> Iterator[Finding]:
    if called(call, names) in SLEEPS and not (call.args and is_zero(call.args[0])):
        yield Finding(call.lineno, "sleep", "wait for what must happen (tests/waiting.py), not for a time")


def randomness(call: ast.Call, names: dict[str, str]) -> Iterator[Finding]:
    name = called(call, names)
    is_imported = dotted(call.func).partition(".")[0] in names  # `random` may be a parameter too
    is_seeded = name in SEEDED and (call.args or call.keywords)
    if re.fullmatch(r"random\.\w+", name) and is_imported and not is_seeded:
        yield Finding(call.lineno, "random", "choose with a `random.Random` that has a seed")


def clock(nodes: list[ast.AST], names: dict[str, str]) -> Iterator[Finding]:
    """Follows the readings of clocks through the names of one function and of the functions within it."""
    readings: set[str] = set()

    def is_reading(value: ast.AST) -> bool:
        if isinstance(value, ast.Call):
            name = called(value, names)
            if name in CLOCKS or LOOP_CLOCK.fullmatch(name):
                return True
            if name not in ARITHMETIC:
                return False
        return dotted(value) in readings or any(is_reading(child) for child in ast.iter_child_nodes(value))

    given = [(dotted(target), value) for node in nodes for target, value in assignments(node)]
    while found := {name for name, value in given if name and name not in readings and is_reading(value)}:
        readings |= found  # and once more: a name may be used above the line that assigns it
    for node in nodes:
        if isinstance(node, ast.Assert) and any(is_reading(part) for part in upper_bounded(node.test)):
            yield Finding(node.lineno, "clock", "assert no time here; the fixture `time_bounds` does in its timed twin")


def upper_bounded(test: ast.expr) -> Iterator[ast.expr]:
    """What an assertion compares with something that must be more; that it took at least so long is no chance."""
    for node in ast.walk(test):
        if isinstance(node, ast.Compare):
            for left, sign, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                if not isinstance(sign, ast.Gt | ast.GtE):
                    yield left
                if not isinstance(sign, ast.Lt | ast.LtE):
                    yield right


def assignments(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """What gets its value here, and from what; a list gets what is appended to it."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            return list(zip(targets, values, strict=False))
        case ast.Assign(targets=targets, value=value):
            return [(target, value) for target in targets]
        case (
            ast.AnnAssign(target=target, value=ast.expr() as value)
            | ast.AugAssign(target=target, value=value)
            | ast.NamedExpr(target=target, value=value)
            | ast.For(target=target, iter=value)
            | ast.comprehension(target=target, iter=value)
            | ast.Call(func=ast.Attribute(value=target, attr="append" | "extend"), args=[value])
        ):
            return [(target, value)]
    return []


def port(nodes: list[ast.AST], names: dict[str, str]) -> Iterator[Finding]:
    """Port 0 is bound, and its number is used after the socket was closed; a later assertion may still name it."""
    for name, end, inside in (closing for node in nodes for closing in closings(node)):
        bound = [node.lineno for node in nodes if isinstance(node, ast.expr) and is_bound_to_zero(node, name, names)]
        if not bound:
            continue
        read = f"{name}.getsockname()"
        given = [
            (target, value)
            for node in nodes
            for target, value in assignments(node)
            if not isinstance(value, ast.Call) or called(value, names) in ("int", "str")
        ]
        numbers = {read, *(dotted(target) for target, value in given if read in map(dotted, ast.walk(value)))}
        named = parts(nodes, ast.Assert) - parts(nodes, ast.Call)
        late = {node for node in nodes if getattr(node, "lineno", 0) > end} - named
        if not numbers.isdisjoint(map(dotted, late | parts(inside, ast.Return))):
            yield Finding(bound[0], "port", "another program can take it: hold the socket, or read the port back")


def closings(node: ast.AST) -> Iterator[tuple[str, int, list[ast.AST]]]:
    """What is closed here: its name, the line, and what lies in the block that closes it."""
    match node:
        case ast.With(items=items, end_lineno=int(end)):
            for name in (dotted(item.optional_vars) for item in items if item.optional_vars):
                yield name, end, list(ast.walk(node))
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="close"), lineno=line):
            yield name, line, []


def parts(nodes: list[ast.AST], kind: type[ast.AST]) -> set[ast.AST]:
    return {part for node in nodes if isinstance(node, kind) for part in ast.walk(node)}


def is_bound_to_zero(node: ast.expr, name: str, names: dict[str, str]) -> bool:
    match node:
        case ast.Call(args=[ast.Tuple(elts=[_, number, *_]), *_]):
            return is_zero(number) and called(node, names) in (f"{name}.bind", "socket.create_server")
    return False


def in_the_gate(node: ast.AST) -> list[ast.AST]:
    """The node and all below it, in their order, but for what has a mark that the gate leaves out."""
    found, next_ones = [], [node]
    while next_ones:
        one = next_ones.pop()
        if one is node or not (isinstance(one, Function | ast.ClassDef) and is_excluded(one)):
            found.append(one)
            next_ones.extend(reversed(list(ast.iter_child_nodes(one))))
    return found


def is_excluded(node: Function | ast.ClassDef) -> bool:
    if has_mark(value_of(node, "pytestmark")):
        return True
    for decorator in node.decorator_list:
        match decorator:
            case ast.Call(func=function, args=[_, ast.List(elts=sets) | ast.Tuple(elts=sets), *_]) if (
                dotted(function) == "pytest.mark.parametrize"
            ):
                if sets and all(isinstance(one, ast.Call) and has_mark(keyword(one, "marks")) for one in sets):
                    return True
            case _ if has_mark(decorator):
                return True
    return False


def has_mark(value: ast.AST | None) -> bool:
    """A mark, or a list with one, that the gate leaves out."""
    match value:
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return any(has_mark(part) for part in parts)
        case ast.Call(func=function):
            return has_mark(function)
        case ast.Attribute(attr=name):
            return dotted(value) == f"pytest.mark.{name}" and name in MARKS
    return False


def value_of(node: ast.Module | ast.ClassDef | Function, name: str) -> ast.AST | None:
    for line in node.body:
        if isinstance(line, ast.Assign) and any(isinstance(one, ast.Name) and one.id == name for one in line.targets):
            return line.value
    return None


def keyword(call: ast.Call, name: str) -> ast.AST | None:
    return next((word.value for word in call.keywords if word.arg == name), None)


def imported(nodes: list[ast.AST]) -> dict[str, str]:
    """What the names of a file stand for: `asleep` for `time.sleep`."""
    found: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {one.asname or one.name: one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    return found


def called(call: ast.Call, names: dict[str, str]) -> str:
    first, dot, rest = dotted(call.func).partition(".")
    return names.get(first, first) + dot + rest


def dotted(value: ast.AST) -> str:
    """`a.b().c` as it is written; nothing of other expressions."""
    match value:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=inner, attr=name):
            return f"{dotted(inner)}.{name}"
        case ast.Call(func=inner):
            return f"{dotted(inner)}()"
    return ""


def is_zero(value: ast.AST) -> bool:
    return isinstance(value, ast.Constant) and value.value == 0


def allowances(source: str) -> Iterator[tuple[int, str, str]]:
    if "gate:" in source:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT and (found := ALLOWED.search(token.string)):
                yield token.start[0], found[1], found[2]


def shown(path: Path) -> Path:
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def main(paths: list[Path]) -> int:
    bad = 0
    for path in paths or sorted((ROOT / "tests").rglob("*.py")):
        for finding in check(path.read_text(encoding="utf-8")):
            print(f"{shown(path)}:{finding.line}: {finding.rule}: {finding.message}")
            bad += 1
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main([Path(word) for word in sys.argv[1:]]))
