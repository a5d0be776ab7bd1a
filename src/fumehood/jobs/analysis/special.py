"""Checks that need more than a pattern, and belong to one family of languages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from tree_sitter import Node

from fumehood.jobs.analysis.code import Code
from fumehood.jobs.analysis.findings import Finding
from fumehood.jobs.analysis.syntax import inside, line_of

_OPENED = re.compile(
    r"(File(Input|Output)Stream|FileReader|FileWriter|BufferedReader|BufferedWriter|PrintWriter|Scanner|(Server)?Socket"
    r"|RandomAccessFile|ZipFile|JarFile|FileStream|Stream(Reader|Writer)|SqlConnection|TcpClient)$"
)


def never_closed(code: Code) -> Iterator[Finding]:
    """Java and C#: opened into a local that is neither closed, nor given on, nor returned."""
    for node in code.syntax.of("local_variable_declaration", "local_declaration_statement"):
        text = code.text(node)[:600]
        found = re.match(r"(?:final\s+)?([\w.]+)(?:<[^>]*>)?\s+(\w+)\s*=\s*new\s+([\w.]+)", text)
        if found is None or not _OPENED.search(found.group(3)):
            continue
        function = inside(node, code.shape.functions)
        if function is None or node.end_byte > function.end_byte:
            continue
        rest = code.syntax.source[node.end_byte : function.end_byte].decode(errors="replace")[:20_000]
        if not _let_go(found.group(2), rest):
            yield Finding.of("resource-leak", line_of(node))


def _let_go(name: str, rest: str) -> bool:
    """Closed, returned, put into a field, or an argument of something else that may close it."""
    name = re.escape(name)
    closed = rf"\b{name}\s*\.\s*([cC]lose|[dD]ispose)\b|(using|try)\s*\(\s*{name}"
    given = rf"return\s+{name}\s*;|=\s*{name}\s*;|[(,]\s*{name}\s*[,)]"
    return re.search(f"{closed}|{given}", rest) is not None


def body_never_closed(code: Code) -> Iterator[Finding]:
    """Go: the answer to an HTTP request whose body nobody closes."""
    for call in code.calls:
        if not re.fullmatch(r"(http|\w*[cC]lient)\.(Get|Post|Head|Do|PostForm)", call.callee):
            continue
        statement = inside(call.node, frozenset({"short_var_declaration", "assignment_statement"}))
        function = inside(call.node, code.shape.functions)
        if statement is None or function is None:
            continue
        name = re.match(r"(\w+)\s*,", code.text(statement)[:200])
        body = code.text(function)[:20_000]
        if name is None or name.group(1) == "_":
            continue
        held = re.escape(name.group(1))
        if not re.search(rf"\b{held}\.Body\.Close\(|return\s+{held}\b|[(,]\s*{held}\s*[,)]", body):
            yield Finding.of("resource-leak", line_of(statement))


def merges_prototypes(code: Code) -> Iterator[Finding]:
    """JavaScript: a function that copies keys of one object into another and calls itself for those within."""
    for loop in code.syntax.of("for_in_statement"):
        key = loop.child_by_field_name("left")
        function = inside(loop, code.shape.functions)
        name = function.child_by_field_name("name") if function is not None else None
        if key is None or name is None or function is None:
            continue
        if re.search(r"__proto__|hasOwn\b|hasOwnProperty|Object\.create\(null\)", code.text(function)[:20_000]):
            continue
        place = rf"\w+\[{re.escape(code.text(key))}\]\s*=\s*[^;]*\b{re.escape(code.text(name))}\("
        for node in code.walk(loop):
            if node.type == "assignment_expression" and re.match(place, code.text(node)[:400], re.DOTALL):
                yield Finding.of("prototype-pollution", line_of(node))
                break


def made_late(code: Code) -> Iterator[Finding]:
    """Java and C#: a static that is made when it is first wanted, without a lock."""
    for node in code.syntax.of("if_statement"):
        found = re.match(r"if\s*\(\s*(\w+)\s*==\s*null\s*\)\s*\{?\s*\1\s*=\s*new\b", code.text(node)[:400])
        function = inside(node, code.shape.functions)
        if found is None or function is None or inside(node, frozenset({"synchronized_statement", "lock_statement"})):
            continue
        head = code.text(function)[:300].split("{", 1)[0]
        if re.search(r"\bstatic\b", head) and "synchronized" not in head and _is_static(code, found.group(1)):
            yield Finding.of("data-race", line_of(node))


def _is_static(code: Code, name: str) -> bool:
    fields = (code.text(one)[:300] for one in code.syntax.of("field_declaration"))
    return any(re.search(rf"\bstatic\b.*\b{re.escape(name)}\b", one, re.DOTALL) for one in fields)


def zero_divisors(code: Code) -> Iterator[Finding]:
    """A division by a literal zero, or by a local that was set to one and to nothing else."""
    for node in code.syntax.of(*code.shape.comparisons, *code.shape.joins):
        sign, right = node.child_by_field_name("operator"), node.child_by_field_name("right")
        if sign is None or right is None or code.text(sign) not in ("/", "%"):
            continue
        text = code.text(right)[:80]
        if re.fullmatch(r"0", text) or (re.fullmatch(r"\$?\w+", text) and _only_zero(code, node, text)):
            yield Finding.of("zero-division", line_of(node))


def _only_zero(code: Code, node: Node, name: str) -> bool:
    function = inside(node, code.shape.functions)
    if function is None:
        return False
    body = code.text(function)[:20_000]
    held = re.escape(name)
    sets = re.findall(rf"(?<![\w.]){held}\s*(?:[-+*/|&^%]|<<|>>)?:?=(?!=)\s*([^;\n,)]*)", body)
    touched = re.search(rf"&\s*{held}\b|(\+\+|--)\s*{held}\b|{held}\s*(\+\+|--)", body)
    return bool(sets) and not touched and all(re.fullmatch(r"0", one.strip()) for one in sets)


_OBJECTS = (never_closed, made_late, zero_divisors)
_JS = (merges_prototypes,)
SPECIAL: dict[str, tuple[Callable[[Code], Iterator[Finding]], ...]] = {
    "java": _OBJECTS,
    "csharp": _OBJECTS,
    "go": (body_never_closed, zero_divisors),
    "javascript": _JS,
    "typescript": _JS,
    "tsx": _JS,
    "c": (zero_divisors,),
    "cpp": (zero_divisors,),
    "php": (zero_divisors,),
}
