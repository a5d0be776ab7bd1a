"""Rules that belong to one language, as tree-sitter queries. A fault stands where `@at` does; the other captures are for
the conditions only."""

# ruff: noqa: E501 - tables read best with one rule for each line

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import QueryCursor

from fumehood.jobs.analysis.findings import Finding
from fumehood.jobs.analysis.syntax import Syntax, compiled, line_of

MATCH_LIMIT = 10_000
Rules = tuple[tuple[str, str | None, str], ...]
"""Meaning, severity if it is another than the catalogue's, query."""

_JS: Rules = (
    (
        "xss",
        None,
        r"""(assignment_expression left: (member_expression property: (property_identifier) @_p)
        right: [(binary_expression) (template_string (template_substitution)) (identifier) (member_expression) (call_expression)] (#match? @_p "^(innerHTML|outerHTML)$")) @at""",
    ),
    (
        "tls-off",
        None,
        r"""(pair key: [(property_identifier) (string)] @_k value: (false) (#match? @_k "rejectUnauthorized|strictSSL|verify_ssl|checkServerIdentity")) @at""",
    ),
    (
        "tls-off",
        None,
        r"""(assignment_expression left: (_) @_l right: (string) @_r (#match? @_l "NODE_TLS_REJECT_UNAUTHORIZED") (#match? @_r "0")) @at""",
    ),
    (
        "empty-catch",
        None,
        r"""(call_expression function: (member_expression property: (property_identifier) @_p @at)
        arguments: (arguments . (arrow_function body: (statement_block) @_b)) (#eq? @_p "catch") (#match? @_b "^[{]\\s*[}]$"))""",
    ),
)
_TS: Rules = (("null-deref", "low", r"""(member_expression object: (non_null_expression) @at)"""),)
QUERIES: dict[str, Rules] = {
    "javascript": _JS,
    "typescript": (*_JS, *_TS),
    "tsx": (
        *_JS,
        *_TS,
        ("xss", None, r"""(jsx_attribute (property_identifier) @_p (#eq? @_p "dangerouslySetInnerHTML")) @at"""),
    ),
    "python": (
        ("empty-catch", None, r"""(except_clause . (block (pass_statement)) ) @at"""),
        ("empty-catch", "low", r"""(except_clause value: (_) (block . (pass_statement) .)) @at"""),
        ("identity", None, r"""(comparison_operator operators: ["is" "is not"] (string)) @at"""),
        ("mutable-default", None, r"""(default_parameter value: [(list) (dictionary) (set)]) @at"""),
        ("mutable-default", None, r"""(typed_default_parameter value: [(list) (dictionary) (set)]) @at"""),
        ("tls-off", None, r"""(assignment left: (attribute attribute: (identifier) @_a) right: (_) @_v (#eq? @_a "verify_mode") (#match? @_v "CERT_NONE")) @at"""),
        ("changed-while-iterating", None, r"""(for_statement right: (_) @_xs body: (block (delete_statement (subscript value: (_) @_ys)) @at .) (#eq? @_xs @_ys))"""),
        ("changed-while-iterating", None, r"""(for_statement right: (_) @_xs body: (block (if_statement consequence: (block (delete_statement (subscript value: (_) @_ys)) @at .))) (#eq? @_xs @_ys))"""),
        ("changed-while-iterating", None, r"""(for_statement right: (call function: (attribute object: (_) @_xs attribute: (identifier) @_m)) body: (block (delete_statement (subscript value: (_) @_ys)) @at .) (#eq? @_xs @_ys) (#match? @_m "^(items|keys|values)$"))"""),
        ("changed-while-iterating", None, r"""(for_statement right: (call function: (attribute object: (_) @_xs attribute: (identifier) @_m)) body: (block (if_statement consequence: (block (delete_statement (subscript value: (_) @_ys)) @at .))) (#eq? @_xs @_ys) (#match? @_m "^(items|keys|values)$"))"""),
    ),
    "rust": (
        ("unsafe", None, r"""(unsafe_block) @at"""),
        ("static-mut", None, r"""(static_item (mutable_specifier)) @at"""),
        ("unwrap", None, r"""(call_expression function: (field_expression field: (field_identifier) @_f) (#match? @_f "^(unwrap|expect)$")) @at"""),
        ("ignored-error", None, r"""(let_declaration "_" value: (call_expression)) @at"""),
        ("truncation", None, r"""(type_cast_expression type: (primitive_type) @_t (#match? @_t "^(u8|i8|u16|i16)$")) @at"""),
    ),
    "go": (
        ("tls-off", None, r"""(keyed_element (literal_element) @_k (literal_element) @_v (#eq? @_k "InsecureSkipVerify") (#eq? @_v "true")) @at"""),
        ("defer-in-loop", None, r"""(for_statement body: (block (statement_list (defer_statement) @at)))"""),
        ("ignored-error", None, r"""(assignment_statement left: (expression_list) @_l right: (expression_list (call_expression)) (#match? @_l "^_(, *_)*$")) @at"""),
        ("ignored-error", None, r"""(short_var_declaration left: (expression_list (identifier) . (identifier) @_e .) right: (expression_list . (call_expression) .) (#eq? @_e "_")) @at"""),
        ("empty-catch", None, r"""(if_statement condition: (binary_expression left: (identifier) @_e right: (nil)) consequence: (block) @_b (#match? @_e "(?i)err") (#match? @_b "^[{]\\s*[}]$")) @at"""),
        ("data-race", None, r"""(go_statement (call_expression function: (func_literal body: (block (statement_list (expression_statement (call_expression function: (selector_expression field: (field_identifier) @_f)) @at))))) (#eq? @_f "Add"))"""),
    ),
    "java": (
        ("identity", None, r"""(binary_expression operator: ["==" "!="] right: (string_literal)) @at"""),
        ("identity", None, r"""(binary_expression left: (string_literal) operator: ["==" "!="]) @at"""),
        ("tls-off", None, r"""(method_declaration name: (identifier) @_n body: (block) @_b (#eq? @_n "checkServerTrusted") (#match? @_b "^[{]\\s*[}]$")) @at"""),
        ("tls-off", None, r"""(method_declaration name: (identifier) @_n body: (block . (return_statement (true)) .) (#eq? @_n "verify")) @at"""),
    ),
    "c": (
        ("format-string", None, r"""(call_expression function: (identifier) @_f arguments: (argument_list . [(identifier) (field_expression) (subscript_expression) (call_expression)] .) (#match? @_f "^(printf|vprintf|syslog)$")) @at"""),
        ("format-string", None, r"""(call_expression function: (identifier) @_f arguments: (argument_list . (_) . [(identifier) (field_expression) (subscript_expression)] .) (#match? @_f "^(fprintf|sprintf|dprintf|vfprintf)$")) @at"""),
    ),
    "csharp": (
        ("async-void", None, r"""(method_declaration (modifier) @_m returns: (predefined_type) @_t parameters: (parameter_list) @_p (#eq? @_m "async") (#eq? @_t "void") (#not-match? @_p "EventArgs")) @at"""),
        ("lock-this", None, r"""(lock_statement "this") @at"""),
        ("lost-stack", None, r"""(catch_clause (catch_declaration name: (identifier) @_a) body: (block (throw_statement (identifier) @_b) @at) (#eq? @_a @_b))"""),
        ("blocking-in-async", None, r"""(member_access_expression expression: (_) @_e name: (identifier) @_n (#match? @_e "(?i)(task|async.*[)])$") (#eq? @_n "Result")) @at"""),
        ("blocking-in-async", None, r"""(invocation_expression function: (member_access_expression expression: (_) @_e name: (identifier) @_n) (#match? @_e "(?i)(task|async.*[)])$") (#match? @_n "^(Wait|GetResult)$")) @at"""),
        ("tls-off", None, r"""(assignment_expression left: (_) @_l right: (lambda_expression body: (boolean_literal) @_b) (#match? @_l "CertificateValidationCallback|CertificateCustomValidationCallback") (#eq? @_b "true")) @at"""),
        ("tls-off", None, r"""(member_access_expression name: (identifier) @_n (#eq? @_n "DangerousAcceptAnyServerCertificateValidator")) @at"""),
    ),
    "ruby": (
        ("tls-off", None, r"""(scope_resolution name: (constant) @_n (#eq? @_n "VERIFY_NONE")) @at"""),
        ("empty-catch", None, r"""(rescue !body) @at"""),
        ("empty-catch", None, r"""(rescue body: (then . (nil) @at .))"""),
        ("command-injection", None, r"""(subshell (interpolation)) @at"""),
    ),
    "php": (
        ("file-inclusion", None, r"""[(include_expression (_) @_v) (include_once_expression (_) @_v) (require_expression (_) @_v) (require_once_expression (_) @_v) (#match? @_v "[$]_(GET|POST|REQUEST|COOKIE)")] @at"""),
        ("command-injection", None, r"""(shell_command_expression (variable_name)) @at"""),
    ),
    "bash": (
        ("remote-code", None, r"""(pipeline (command name: (command_name) @_a) . (command name: (command_name) @_b) @_x (#match? @_a "^(curl|wget)$") (#match? @_b "^(ba|z|da|k)?sh$|^python3?$|^perl$|^node$|^sudo$")) @at"""),
        ("insecure-temp", None, r"""((word) @at (#match? @at "^/tmp/"))"""),
        ("insecure-temp", None, r"""(concatenation (word) @_w (simple_expansion (special_variable_name) @_v) (#match? @_w "^/tmp/")) @at"""),
    ),
}  # fmt: skip
QUERIES["cpp"] = QUERIES["c"]


def find(syntax: Syntax) -> Iterator[Finding]:
    rules = QUERIES.get(syntax.language.name, ())
    if not rules:
        return
    query = compiled(syntax.language, "\n".join(text for _, _, text in rules))
    for number, captures in QueryCursor(query, match_limit=MATCH_LIMIT).matches(syntax.root):
        meaning, severity, _ = rules[number]
        for node in captures.get("at", [])[:1]:
            yield Finding.of(meaning, line_of(node), severity=severity)
