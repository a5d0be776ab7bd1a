"""What is defined in a chunk, and what it imports: tree-sitter queries, one set for each language.

A capture is named by the kind of the symbol; `@name` is its name, `@owner` whom it belongs to where the text says so.
`@impl` holds symbols and is none itself. A function within a class is a method.
"""

# ruff: noqa: E501 - tables read best with one rule for each line

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node, QueryCursor

from fumehood.jobs.analysis.syntax import Syntax, compiled, line_of

HOLDERS = frozenset({"class", "struct", "trait", "interface", "module", "enum", "impl"})
TYPES = HOLDERS - {"module"}
_LEFT_OUT = frozenset({"name", "owner"})
MATCH_LIMIT = 50_000

_JS = """
(function_declaration name: (identifier) @name) @function
(generator_function_declaration name: (identifier) @name) @function
(class_declaration name: (_) @name) @class
(method_definition name: (_) @name) @method
(program (lexical_declaration "const" (variable_declarator name: (identifier) @name value: (_) @_v) @constant))
(program (lexical_declaration "let" (variable_declarator name: (identifier) @name) @variable))
(program (variable_declaration (variable_declarator name: (identifier) @name) @variable))
(export_statement (lexical_declaration (variable_declarator name: (identifier) @name) @constant))
(variable_declarator name: (identifier) @name value: [(arrow_function) (function_expression)]) @function
(class_body (field_definition property: (_) @name value: [(arrow_function) (function_expression)]) @method)
"""
_TS = (
    _JS.replace("field_definition property:", "public_field_definition name:")
    + """
(interface_declaration name: (_) @name) @interface
(type_alias_declaration name: (_) @name) @type
(enum_declaration name: (_) @name) @enum
(abstract_class_declaration name: (_) @name) @class
(internal_module name: (_) @name) @module
(function_signature name: (_) @name) @function
(abstract_method_signature name: (_) @name) @method
(method_signature name: (_) @name) @method
"""
)
_C = """
(function_definition declarator: (function_declarator declarator: (_) @name)) @function
(function_definition declarator: (pointer_declarator declarator: (function_declarator declarator: (_) @name))) @function
(function_definition declarator: (pointer_declarator declarator: (pointer_declarator declarator: (function_declarator declarator: (_) @name)))) @function
(struct_specifier name: (_) @name body: (_)) @struct
(union_specifier name: (_) @name body: (_)) @struct
(enum_specifier name: (_) @name body: (_)) @enum
(type_definition declarator: (type_identifier) @name) @type
(type_definition declarator: (pointer_declarator declarator: (type_identifier) @name)) @type
(type_definition declarator: (function_declarator declarator: (parenthesized_declarator (pointer_declarator declarator: (type_identifier) @name)))) @type
(preproc_def name: (_) @name) @macro
(preproc_function_def name: (_) @name) @macro
(translation_unit (declaration declarator: (init_declarator declarator: (identifier) @name)) @variable)
(translation_unit (declaration declarator: (init_declarator declarator: (pointer_declarator declarator: (identifier) @name))) @variable)
(translation_unit (declaration declarator: (init_declarator declarator: (array_declarator declarator: (identifier) @name))) @variable)
(translation_unit (declaration declarator: (function_declarator declarator: (identifier) @name)) @function)
(translation_unit (declaration declarator: (pointer_declarator declarator: (function_declarator declarator: (identifier) @name))) @function)
"""
SYMBOLS = {
    "python": """
(function_definition name: (identifier) @name) @function
(class_definition name: (identifier) @name) @class
(module (expression_statement (assignment left: (identifier) @name) @variable))
(type_alias_statement left: (type (identifier) @name)) @type
""",
    "javascript": _JS,
    "typescript": _TS,
    "tsx": _TS,
    "rust": """
(function_item name: (identifier) @name) @function
(function_signature_item name: (identifier) @name) @function
(struct_item name: (_) @name) @struct
(union_item name: (_) @name) @struct
(enum_item name: (_) @name) @enum
(trait_item name: (_) @name) @trait
(impl_item type: (_) @name) @impl
(mod_item name: (_) @name) @module
(type_item name: (_) @name) @type
(const_item name: (_) @name) @constant
(static_item (mutable_specifier) name: (_) @name) @variable
(static_item "static" . name: (_) @name) @constant
(macro_definition name: (_) @name) @macro
""",
    "go": """
(function_declaration name: (_) @name) @function
(method_declaration receiver: (parameter_list (parameter_declaration type: (_) @owner)) name: (_) @name) @method
(method_elem name: (_) @name) @method
(type_spec name: (_) @name type: (struct_type)) @struct
(type_spec name: (_) @name type: (interface_type)) @interface
(type_spec name: (_) @name type: [(function_type) (map_type) (slice_type) (array_type) (channel_type) (type_identifier) (qualified_type) (pointer_type) (generic_type)]) @type
(type_alias name: (_) @name) @type
(source_file (const_declaration (const_spec name: (_) @name) @constant))
(source_file (var_declaration (var_spec name: (_) @name) @variable))
(source_file (var_declaration (var_spec_list (var_spec name: (_) @name) @variable)))
""",
    "java": """
(class_declaration name: (_) @name) @class
(record_declaration name: (_) @name) @class
(interface_declaration name: (_) @name) @interface
(annotation_type_declaration name: (_) @name) @interface
(enum_declaration name: (_) @name) @enum
(method_declaration name: (_) @name) @method
(constructor_declaration name: (_) @name) @method
(compact_constructor_declaration name: (_) @name) @method
(field_declaration (modifiers) @_m declarator: (variable_declarator name: (_) @name) (#match? @_m "static[^;]*final|final[^;]*static")) @constant
(field_declaration declarator: (variable_declarator name: (_) @name)) @variable
(constant_declaration declarator: (variable_declarator name: (_) @name)) @constant
""",
    "c": _C,
    "cpp": _C
    + """
(function_definition declarator: (reference_declarator (function_declarator declarator: (_) @name))) @function
(class_specifier name: (_) @name body: (_)) @class
(namespace_definition name: (_) @name) @module
(alias_declaration name: (_) @name) @type
(concept_definition name: (_) @name) @type
(field_declaration declarator: (function_declarator declarator: (_) @name)) @method
(field_declaration declarator: (pointer_declarator declarator: (function_declarator declarator: (_) @name))) @method
(field_declaration declarator: (reference_declarator (function_declarator declarator: (_) @name))) @method
(declaration declarator: (function_declarator declarator: (destructor_name) @name)) @method
(namespace_definition body: (declaration_list (declaration declarator: (init_declarator declarator: (identifier) @name)) @variable))
(namespace_definition body: (declaration_list (declaration declarator: (function_declarator declarator: (identifier) @name)) @function))
""",
    "ruby": """
(method name: (_) @name) @function
(singleton_method name: (_) @name) @function
(class name: (_) @name) @class
(module name: (_) @name) @module
(assignment left: (constant) @name) @constant
""",
    "bash": """
(function_definition name: (_) @name) @function
(program (variable_assignment name: (variable_name) @name) @variable)
(program (declaration_command "readonly" (variable_assignment name: (variable_name) @name) @constant))
(program (declaration_command ["export" "declare" "typeset"] (variable_assignment name: (variable_name) @name) @variable))
""",
    "csharp": """
(class_declaration name: (_) @name) @class
(record_declaration name: (_) @name) @class
(struct_declaration name: (_) @name) @struct
(interface_declaration name: (_) @name) @interface
(enum_declaration name: (_) @name) @enum
(delegate_declaration name: (_) @name) @type
(method_declaration name: (_) @name) @method
(constructor_declaration name: (_) @name) @method
(property_declaration name: (_) @name) @property
(namespace_declaration name: (_) @name) @module
(file_scoped_namespace_declaration name: (_) @name) @module
(field_declaration (modifier) @_m (variable_declaration (variable_declarator name: (_) @name)) (#eq? @_m "const")) @constant
(field_declaration (modifier) @_a (modifier) @_b (variable_declaration (variable_declarator name: (_) @name)) (#eq? @_a "static") (#eq? @_b "readonly")) @constant
""",
    "php": """
(function_definition name: (_) @name) @function
(class_declaration name: (_) @name) @class
(interface_declaration name: (_) @name) @interface
(trait_declaration name: (_) @name) @trait
(enum_declaration name: (_) @name) @enum
(method_declaration name: (_) @name) @method
(const_declaration (const_element . (name) @name) @constant)
(namespace_definition name: (_) @name) @module
""",
}
IMPORTS = {
    "python": """
(import_statement name: (dotted_name) @from)
(import_statement name: (aliased_import name: (dotted_name) @from))
(import_from_statement module_name: (_) @from)
""",
    "javascript": """
(import_statement source: (string) @from)
(export_statement source: (string) @from)
(call_expression function: (identifier) @_f arguments: (arguments (string) @from) (#match? @_f "^(require|import)$"))
(call_expression function: (import) arguments: (arguments (string) @from))
""",
    "rust": "(use_declaration argument: (_) @from) (mod_item name: (_) @mod !body) (extern_crate_declaration name: (_) @from)",
    "go": "(import_spec path: (_) @from)",
    "java": "(import_declaration (_) @from)",
    "c": "(preproc_include path: (string_literal) @near) (preproc_include path: (system_lib_string) @from)",
    "ruby": """
(call method: (identifier) @_m arguments: (argument_list (string) @from) (#match? @_m "^(require|load)$"))
(call method: (identifier) @_m arguments: (argument_list (string) @near) (#eq? @_m "require_relative"))
""",
    "bash": """(command name: (command_name) @_n argument: (_) @near (#match? @_n "^(source|[.])$"))""",
    "csharp": "(using_directive [(qualified_name) (identifier)] @from)",
    "php": """
(namespace_use_clause (qualified_name) @from)
(namespace_use_clause (name) @from)
(require_once_expression (_) @near) (require_expression (_) @near) (include_expression (_) @near) (include_once_expression (_) @near)
""",
}
IMPORTS.update(typescript=IMPORTS["javascript"], tsx=IMPORTS["javascript"], cpp=IMPORTS["c"])
_BETWEEN = {"rust": "::", "cpp": "::", "php": "::", "ruby": "::"}


@dataclass(frozen=True, slots=True)
class Defined:
    name: str
    kind: str
    line: int
    description: str


@dataclass(frozen=True, slots=True)
class Imported:
    what: str
    line: int
    kind: str
    """`from` a package or a path, `near` this file, `mod` of Rust."""


@dataclass(frozen=True, slots=True)
class _Found:
    kind: str
    name: str
    owner: str | None
    node: Node


def defined(syntax: Syntax) -> list[Defined]:
    """In the order of the text."""
    between = _BETWEEN.get(syntax.language.name, ".")
    holders: list[_Found] = []
    seen: dict[tuple[int, str], Defined] = {}
    for one in sorted(_found(syntax), key=lambda found: (found.node.start_byte, -found.node.end_byte, found.kind)):
        while holders and holders[-1].node.end_byte <= one.node.start_byte:
            holders.pop()
        if one.kind != "impl":
            symbol = _symbol(syntax, one, holders, between)
            earlier = seen.get((symbol.line, symbol.name))
            if earlier is None or _ORDER.get(symbol.kind, 5) < _ORDER.get(earlier.kind, 5):
                seen[symbol.line, symbol.name] = symbol
        holders.append(one)
    return sorted(seen.values(), key=lambda symbol: (symbol.line, symbol.name))


_ORDER = {"method": 0, "function": 1, "constant": 2, "variable": 3}
"""Where two queries name the same: `const f = () => 1` is a function first."""


def _found(syntax: Syntax) -> Iterator[_Found]:
    query = compiled(syntax.language, SYMBOLS[syntax.language.name])
    for _, captures in QueryCursor(query, match_limit=MATCH_LIMIT).matches(syntax.root):
        kinds = [name for name in captures if name not in _LEFT_OUT and not name.startswith("_")]
        if not kinds or "name" not in captures:
            continue
        owner = captures.get("owner")
        name = _clean(syntax.text(captures["name"][0]))
        if name:
            yield _Found(kinds[0], name, _clean(syntax.text(owner[0])) if owner else None, captures[kinds[0]][0])


def _clean(text: str) -> str:
    """Without type parameters, pointers and quotes."""
    return re.sub(r"<.*>|\[.*\]|[*&\"'\s]", "", text[:300], flags=re.DOTALL)[:200]


def _symbol(syntax: Syntax, one: _Found, holders: list[_Found], between: str) -> Defined:
    around = [holder for holder in holders if holder.kind in HOLDERS]
    functions = [holder for holder in holders if holder.kind in ("function", "method")]
    names = [
        holder.name for holder in around if holder.kind != "module" or syntax.language.name in ("rust", "cpp", "ruby")
    ]
    kind = one.kind
    if one.owner is not None:
        names = [one.owner]
    elif functions and kind == "function":
        names = [*names, functions[-1].name]
    if kind == "function" and around and not functions and around[-1].kind in TYPES:
        kind = "method"
    if kind == "function" and syntax.language.name == "cpp" and "::" in one.name:
        kind = "method"
    if kind in ("variable", "constant") and syntax.language.name != "bash":
        kind = _held(syntax, one, kind)
    return Defined(between.join([*names[-3:], one.name]), kind, _line(syntax, one), _signature(syntax, one.node))


def _held(syntax: Syntax, one: _Found, kind: str) -> str:
    """Constant or variable, by the words before it or its name."""
    text = syntax.text(one.node)[:200]
    if syntax.language.name in ("c", "cpp"):
        return "constant" if re.match(r"(static\s+|inline\s+)*(constexpr|const\s+\w+\s+\w+\s*=)", text) else "variable"
    if syntax.language.name == "python":
        return "constant" if re.fullmatch(r"_*[A-Z][A-Z0-9_]*", one.name) else "variable"
    return kind


def _line(syntax: Syntax, one: _Found) -> int:
    """Where its name stands: decorators and modifiers may take lines before it."""
    for child in (one.node.child_by_field_name("name"), one.node.child_by_field_name("declarator")):
        if child is not None:
            return line_of(child)
    return line_of(one.node)


def _signature(syntax: Syntax, node: Node) -> str:
    """Up to where its body begins, on one line."""
    body = node.child_by_field_name("body")
    end = body.start_byte if body is not None else node.end_byte
    text = syntax.source[node.start_byte : min(end, node.start_byte + 800)].decode(errors="replace")
    line = " ".join(text.split()).rstrip("{:; =")
    return line if len(line) <= 160 else line[:159].rstrip() + "…"


def imported(syntax: Syntax) -> list[Imported]:
    text = IMPORTS.get(syntax.language.name)
    if text is None:
        return []
    query = compiled(syntax.language, text)
    found = {
        Imported(syntax.text(node)[:300], line_of(node), kind)
        for _, captures in QueryCursor(query, match_limit=MATCH_LIMIT).matches(syntax.root)
        for kind, nodes in captures.items()
        if not kind.startswith("_")
        for node in nodes
    }
    return sorted(found, key=lambda one: (one.line, one.what))


_DOC = re.compile(r"^[\s\"'#/*!<>=\-;:|]*|[\s\"'*/]*$")


def lead(syntax: Syntax) -> str | None:
    """The first sentence of the docstring or comment that a chunk begins with."""
    for node in syntax.root.named_children[:4]:
        text = syntax.text(node)[:2000]
        if "comment" in node.type or (
            node.type == "expression_statement" and text.lstrip("rRbB").startswith(('"""', "'''", '"'))
        ):
            if text.startswith("#!"):
                continue
            lines = [_DOC.sub("", line) for line in text.splitlines()]
            said = re.sub(r"</?\w+>", "", " ".join(line for line in lines if line))
            sentence = re.split(r"(?<=[.!?])\s", said, maxsplit=1)[0]
            return sentence[:300] or None
        if node.type not in {"php_tag", "hash_bang_line"}:
            return None
    return None
