"""Checks that are the same in every language: each is written once, over the shapes of the grammars."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise

from tree_sitter import Node

from fumehood.jobs.analysis.code import Code
from fumehood.jobs.analysis.findings import Finding
from fumehood.jobs.analysis.syntax import inside, line_of

_SQL = re.compile(
    r"(?is)^\W*(select\b.+\bfrom\b|insert\s+into\b|replace\s+into\b|update\b.+\bset\b|delete\s+from\b|drop\s+(table|database)\b|alter\s+table\b|exec(ute)?\s+\w)"
)
_SECRET_NAME = re.compile(
    r"(?i)(pass(word|wd|phrase)?|secret|token|api_?key|access_?key|private_?key|signing_?key|secret_?key|credential|auth_?key|encryption_?key)(_?\d*)$"
)
_TOKEN = re.compile(
    r"(AKIA|ASIA)[A-Z0-9]{16}|gh[pousr]_[A-Za-z0-9]{30,}|xox[abprs]-[A-Za-z0-9-]{10,}|[sr]k_(live|test)_[A-Za-z0-9]{10,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----|AIza[A-Za-z0-9_-]{35}|glpat-[A-Za-z0-9_-]{20}"
)
_NO_SECRET = re.compile(
    r"(?i)^$|^\W+$|^(none|null|nil|true|false|password|passwd|secret|token|changeme|change-me|example|test|dummy|redacted|xxx+|\*+)$"
    r"|^[<{$%]|\$\{|\{\{|\s\S*\s|^(https?|file|postgres|redis)://|^[/.~]|^[a-z_]+(\.[a-z_]+)+$"
)
_MEANT = re.compile(r"(?i)fall.?s?.?through|fallthrough|no ?break")


def built_sql(code: Code) -> Iterator[Finding]:
    """A literal that begins like a statement, with data put into it."""
    done: set[int] = set()
    for node in code.syntax.of(*code.shape.strings):
        text = code.text(node)[:4000]
        if not _SQL.search(re.sub(r"^[A-Za-z@$]*[\"'`(]+", "", text)):
            continue
        whole = _whole(code, node)
        if whole.id not in done and code.is_built(whole):
            done.add(whole.id)
            yield Finding.of("sql-injection", line_of(node))


def _whole(code: Code, node: Node) -> Node:
    """The expression that a literal is a part of: joins and formats around it."""
    best, above, steps = node, node.parent, 0
    while above is not None and steps < 40:
        steps += 1
        if above.type in code.shape.joins:
            best = above
        elif above.type in code.shape.calls:
            if code.is_built(above):
                best = above if _formats(code, above) else best
            break
        elif above.type not in {
            "argument_list",
            "arguments",
            "argument",
            "parenthesized_expression",
            "token_tree",
            "attribute",
        }:
            break
        above = above.parent
    return best


def _formats(code: Code, node: Node) -> bool:
    fields, _ = code.shape.calls[node.type]
    callee = "".join(code.text(part) for name in fields if (part := node.child_by_field_name(name)) is not None)
    return bool(code.shape.formatting) and re.search(code.shape.formatting, callee) is not None


def secrets(code: Code) -> Iterator[Finding]:
    for node, target, value in code.assigned():
        text = code.literal(value)
        if text is None or not 6 <= len(text) <= 4096:
            continue
        name = re.split(r"[.\->:\s]+", target.strip("\"'$*& "))[-1]
        if _TOKEN.search(text) or (_SECRET_NAME.search(name) and _like_a_secret(text)):
            yield Finding.of("hardcoded-secret", line_of(node))


def _like_a_secret(text: str) -> bool:
    """Not the name of a field, a label, a path or a placeholder."""
    if _NO_SECRET.search(text):
        return False
    return any(one.isdigit() for one in text) or not text.replace("_", "").replace(".", "").isalpha()


def empty_catches(code: Code) -> Iterator[Finding]:
    """Not even a comment that says why."""
    for node in code.syntax.of(*code.shape.catches):
        body = node.child_by_field_name("body")
        if body is not None and not body.named_child_count:
            yield Finding.of("empty-catch", line_of(node))


def assigning_conditions(code: Code) -> Iterator[Finding]:
    """Of a literal, or of another plain name: `if (a = read())` is a habit, `if (a = 1)` is a mistake."""
    for node in code.syntax.of(*code.shape.conditions):
        condition = node.child_by_field_name(code.shape.conditions[node.type])
        while condition is not None and condition.type == "parenthesized_expression" and condition.named_child_count:
            condition = condition.named_children[0]
        if condition is None or condition.type not in code.shape.assigning:
            continue
        value = condition.child_by_field_name("right")
        if (
            value is not None
            and value.type not in code.shape.calls
            and value.type not in {"await_expression", "subscript_expression"}
        ):
            yield Finding.of("assignment-in-condition", line_of(condition))


def unreachable(code: Code) -> Iterator[Finding]:
    for block in code.syntax.of(*code.shape.blocks):
        statements = [one for one in block.named_children if one.type != "comment"]
        for before, after in pairwise(statements):
            if _jumps(code, before) and not _reached_otherwise(after):
                yield Finding.of("unreachable", line_of(after))
                break


def _jumps(code: Code, node: Node) -> bool:
    if node.type == "expression_statement" and node.named_child_count == 1:
        node = node.named_children[0]
    return node.type in code.shape.jumps


def _reached_otherwise(node: Node) -> bool:
    kinds = (
        "labeled",
        "function",
        "class",
        "case",
        "switch_label",
        "rescue",
        "else",
        "ensure",
        "empty",
        "end",
        "ERROR",
    )
    return node.has_error or node.type.startswith(kinds) or node.type.endswith(("_declaration", "_definition", "_item"))


def self_compares(code: Code) -> Iterator[Finding]:
    for node in code.syntax.of(*code.shape.comparisons):
        if node.named_child_count != 2 or not any(one.type in _COMPARING for one in node.children):
            continue
        left, right = node.named_children
        same = left.type == right.type and code.text(left) == code.text(right)
        if same and left.type not in code.shape.calls and not _holds_call(code, left) and "literal" not in left.type:
            yield Finding.of("self-compare", line_of(node))


_COMPARING = frozenset({"==", "===", "!=", "!==", "<", ">", "<=", ">=", "is", "<>"})


def _holds_call(code: Code, node: Node) -> bool:
    return any(one.type in code.shape.calls for one in code.walk(node)) or node.type in {"number", "integer", "string"}


def falls_through(code: Code) -> Iterator[Finding]:
    """A case with statements of its own that goes on into the next one, and nobody says that it is meant."""
    for kind, jumps in _CASES.get(code.syntax.language.name, {}).items():
        for case in code.syntax.of(kind):
            after = case.next_named_sibling
            body = [one for one in case.named_children[_labels(case) :] if one.type != "comment"]
            if after is None or after.type not in _NEXT or not body or _ends(body[-1], jumps):
                continue
            between = code.syntax.source[body[-1].start_byte : after.start_byte].decode(errors="replace")
            if not _MEANT.search(between):
                yield Finding.of("fallthrough", line_of(body[-1]))


def _labels(case: Node) -> int:
    return sum(one.type == "switch_label" for one in case.named_children) or 1


def _ends(node: Node, jumps: frozenset[str]) -> bool:
    """Whether control never goes beyond it."""
    for _ in range(20):
        if node.type in jumps or node.type == "ERROR":
            return True
        if (
            node.type in {"block", "statement_block", "compound_statement", "expression_statement"}
            and node.named_child_count
        ):
            node = node.named_children[-1]
        elif node.type == "if_statement":
            other = node.child_by_field_name("alternative")
            first = node.child_by_field_name("consequence") or node.child_by_field_name("body")
            if other is None or first is None or not _ends(first, jumps):
                return False
            node = other.named_children[-1] if other.type.startswith("else") and other.named_child_count else other
        elif node.type in {"while_statement", "for_statement", "try_statement", "switch_statement"}:
            return True
        elif node.type == "expression_statement" or "call" in node.type:
            return bool(re.match(rb"(process\.)?(exit|die|abort|_exit|fail|panic)\b", node.text or b""))
        else:
            return False
    return True


_JUMPS = frozenset(
    {
        "return_statement",
        "break_statement",
        "continue_statement",
        "throw_statement",
        "goto_statement",
        "throw_expression",
        "yield_statement",
        "exit_statement",
    }
)
_NEXT = frozenset(
    {"switch_case", "switch_default", "case_statement", "default_statement", "switch_block_statement_group"}
)
_CASES = {
    "javascript": {"switch_case": _JUMPS},
    "typescript": {"switch_case": _JUMPS},
    "tsx": {"switch_case": _JUMPS},
    "c": {"case_statement": _JUMPS},
    "cpp": {"case_statement": _JUMPS},
    "java": {"switch_block_statement_group": _JUMPS},
    "php": {"case_statement": _JUMPS},
}


def changed_in_loop(code: Code) -> Iterator[Finding]:
    """`for x in xs: xs.remove(x)`, unless the loop is left at once."""
    loops = code.shape.loops
    may = _ALLOWED if code.syntax.language.name in ("javascript", "typescript", "tsx") else frozenset()
    for call in code.calls:
        found = _CHANGES.match(call.callee)
        if found is None:
            continue
        loop = inside(call.node, loops | code.shape.functions)
        if loop is None or loop.type not in loops or _left_after(code, call.node):
            continue
        over = _iterated(code, loop)
        if over is not None and over == found.group(1) and found.group(2) not in may:
            yield Finding.of("changed-while-iterating", call.line)


_ALLOWED = frozenset({"delete", "add", "clear"})
"""Of a Map or a Set of JavaScript, at any time."""
_CHANGES = re.compile(
    r"^([\w.>$-]+?)(?:\.|->)(remove|removeAt|RemoveAt|Remove|erase|push_back|insert|append|add|Add|delete|pop|clear|splice|extend)$"
)


def _iterated(code: Code, loop: Node) -> str | None:
    """What a loop goes over: `xs`, of `for x in xs` and of `for (auto i = xs.begin(); …`."""
    for name in ("right", "value", "initializer"):
        part = loop.child_by_field_name(name)
        if part is not None:
            text = re.sub(r"\s+", "", code.text(part)[:400])
            begin = re.search(r"=([\w.>$-]+?)(?:\.|->)begin\(\)", text)
            if begin is not None:
                return begin.group(1)
            return re.sub(r"(\.|->)(items|keys|values|entries|keySet|entrySet)\(\)$", "", text)
    return None


def _left_after(code: Code, node: Node) -> bool:
    statement: Node | None = node
    while statement is not None and (statement.parent is None or statement.parent.type not in code.shape.blocks):
        statement = statement.parent
    if node.parent is not None and node.parent.type in {"assignment_expression", "init_declarator"}:
        return True
    after = statement.next_named_sibling if statement is not None else None
    return after is not None and _jumps(code, after)


CHECKS: tuple[Callable[[Code], Iterator[Finding]], ...] = (
    built_sql,
    secrets,
    empty_catches,
    assigning_conditions,
    unreachable,
    self_compares,
    falls_through,
    changed_in_loop,
)
