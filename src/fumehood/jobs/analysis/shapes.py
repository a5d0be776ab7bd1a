"""What calls, strings, assignments and the like are called in each grammar, so that a check is written once."""

from __future__ import annotations

from dataclasses import dataclass, field

NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Shape:
    calls: dict[str, tuple[tuple[str, ...], str]]
    """Type of a call: the fields that make its callee, and the field (or child) of its arguments."""
    strings: frozenset[str]
    """Literals …"""
    holes: frozenset[str]
    """… and what stands inside one that is put together of parts."""
    joins: frozenset[str]
    """Binary expressions that may join strings …"""
    join_signs: frozenset[str]
    names: frozenset[str]
    """Identifiers, as leaves."""
    assigns: dict[str, tuple[str, str]]
    """Type: the fields of what is set, and of the value. An empty field: the last child."""
    functions: frozenset[str]
    catches: frozenset[str] = NONE
    conditions: dict[str, str] = field(default_factory=dict)
    assigning: frozenset[str] = NONE
    """Expressions that assign, as they may stand in a condition by mistake."""
    jumps: frozenset[str] = NONE
    blocks: frozenset[str] = NONE
    """What holds statements one after the other."""
    comparisons: frozenset[str] = NONE
    loops: frozenset[str] = NONE
    formatting: str = ""
    """Callees (a pattern) that put values into a format."""


_JS = Shape(
    calls={
        "call_expression": (("function",), "arguments"),
        "new_expression": (("constructor",), "arguments"),
    },
    strings=frozenset({"string", "template_string"}),
    holes=frozenset({"template_substitution"}),
    joins=frozenset({"binary_expression"}),
    join_signs=frozenset({"+"}),
    names=frozenset({"identifier", "shorthand_property_identifier"}),
    assigns={
        "variable_declarator": ("name", "value"),
        "assignment_expression": ("left", "right"),
        "pair": ("key", "value"),
        "public_field_definition": ("name", "value"),
        "field_definition": ("property", "value"),
    },
    functions=frozenset(
        {"function_declaration", "function_expression", "arrow_function", "method_definition", "generator_function"}
    ),
    catches=frozenset({"catch_clause"}),
    conditions={"if_statement": "condition", "while_statement": "condition", "do_statement": "condition"},
    assigning=frozenset({"assignment_expression"}),
    jumps=frozenset({"return_statement", "throw_statement", "break_statement", "continue_statement"}),
    blocks=frozenset({"statement_block", "program", "switch_case", "switch_default"}),
    comparisons=frozenset({"binary_expression"}),
    loops=frozenset({"for_statement", "for_in_statement", "while_statement", "do_statement"}),
)
_C = Shape(
    calls={"call_expression": (("function",), "arguments")},
    strings=frozenset({"string_literal", "raw_string_literal", "concatenated_string"}),
    holes=NONE,
    joins=frozenset({"binary_expression"}),
    join_signs=frozenset({"+"}),
    names=frozenset({"identifier", "field_identifier"}),
    assigns={"init_declarator": ("declarator", "value"), "assignment_expression": ("left", "right")},
    functions=frozenset({"function_definition", "lambda_expression"}),
    catches=frozenset({"catch_clause"}),
    conditions={"if_statement": "condition", "while_statement": "condition", "do_statement": "condition"},
    assigning=frozenset({"assignment_expression"}),
    jumps=frozenset({"return_statement", "break_statement", "continue_statement", "goto_statement", "throw_statement"}),
    blocks=frozenset({"compound_statement"}),
    comparisons=frozenset({"binary_expression"}),
    loops=frozenset({"for_statement", "while_statement", "do_statement", "for_range_loop"}),
)

SHAPES = {
    "python": Shape(
        calls={"call": (("function",), "arguments")},
        strings=frozenset({"string", "concatenated_string"}),
        holes=frozenset({"interpolation"}),
        joins=frozenset({"binary_operator"}),
        join_signs=frozenset({"+", "%"}),
        names=frozenset({"identifier"}),
        assigns={
            "assignment": ("left", "right"),
            "named_expression": ("name", "value"),
            "keyword_argument": ("name", "value"),
            "default_parameter": ("name", "value"),
            "typed_default_parameter": ("name", "value"),
            "pair": ("key", "value"),
        },
        functions=frozenset({"function_definition", "lambda"}),
        jumps=frozenset({"return_statement", "raise_statement", "break_statement", "continue_statement"}),
        blocks=frozenset({"block", "module"}),
        comparisons=frozenset({"comparison_operator"}),
        loops=frozenset({"for_statement", "while_statement"}),
        formatting=r"\.format$",
    ),
    "javascript": _JS,
    "typescript": _JS,
    "tsx": _JS,
    "rust": Shape(
        calls={"call_expression": (("function",), "arguments"), "macro_invocation": (("macro",), "token_tree")},
        strings=frozenset({"string_literal", "raw_string_literal"}),
        holes=NONE,
        joins=frozenset({"binary_expression"}),
        join_signs=frozenset({"+"}),
        names=frozenset({"identifier", "field_identifier"}),
        assigns={
            "let_declaration": ("pattern", "value"),
            "const_item": ("name", "value"),
            "static_item": ("name", "value"),
            "assignment_expression": ("left", "right"),
            "field_initializer": ("field", "value"),
        },
        functions=frozenset({"function_item", "closure_expression"}),
        jumps=frozenset({"return_expression", "break_expression", "continue_expression"}),
        blocks=frozenset({"block"}),
        comparisons=frozenset({"binary_expression"}),
        loops=frozenset({"for_expression", "while_expression", "loop_expression"}),
        formatting=r"^(format|write|writeln|format_args)$",
    ),
    "go": Shape(
        calls={"call_expression": (("function",), "arguments")},
        strings=frozenset({"interpreted_string_literal", "raw_string_literal"}),
        holes=NONE,
        joins=frozenset({"binary_expression"}),
        join_signs=frozenset({"+"}),
        names=frozenset({"identifier"}),
        assigns={
            "const_spec": ("name", "value"),
            "var_spec": ("name", "value"),
            "short_var_declaration": ("left", "right"),
            "assignment_statement": ("left", "right"),
            "keyed_element": ("key", "value"),
        },
        functions=frozenset({"function_declaration", "method_declaration", "func_literal"}),
        jumps=frozenset({"return_statement", "break_statement", "continue_statement", "goto_statement"}),
        blocks=frozenset({"statement_list", "block"}),
        comparisons=frozenset({"binary_expression"}),
        loops=frozenset({"for_statement"}),
        formatting=r"^fmt\.(Sprintf|Sprint|Appendf|Fprintf)$",
    ),
    "java": Shape(
        calls={
            "method_invocation": (("object", "name"), "arguments"),
            "object_creation_expression": (("type",), "arguments"),
        },
        strings=frozenset({"string_literal"}),
        holes=frozenset({"string_interpolation"}),
        joins=frozenset({"binary_expression"}),
        join_signs=frozenset({"+"}),
        names=frozenset({"identifier"}),
        assigns={"variable_declarator": ("name", "value"), "assignment_expression": ("left", "right")},
        functions=frozenset({"method_declaration", "constructor_declaration", "lambda_expression"}),
        catches=frozenset({"catch_clause"}),
        conditions={"if_statement": "condition", "while_statement": "condition", "do_statement": "condition"},
        assigning=frozenset({"assignment_expression"}),
        jumps=frozenset({"return_statement", "throw_statement", "break_statement", "continue_statement"}),
        blocks=frozenset({"block", "switch_block_statement_group"}),
        comparisons=frozenset({"binary_expression"}),
        loops=frozenset({"for_statement", "enhanced_for_statement", "while_statement", "do_statement"}),
        formatting=r"^String\.format$|\.formatted$",
    ),
    "c": _C,
    "cpp": _C,
    "ruby": Shape(
        calls={"call": (("receiver", "method"), "arguments")},
        strings=frozenset({"string", "subshell", "heredoc_body"}),
        holes=frozenset({"interpolation"}),
        joins=frozenset({"binary"}),
        join_signs=frozenset({"+", "%", "<<"}),
        names=frozenset({"identifier", "instance_variable"}),
        assigns={"assignment": ("left", "right"), "pair": ("key", "value"), "keyword_parameter": ("name", "value")},
        functions=frozenset({"method", "singleton_method", "lambda", "block", "do_block"}),
        conditions={"if": "condition", "unless": "condition", "while": "condition", "if_modifier": "condition"},
        assigning=frozenset({"assignment"}),
        jumps=frozenset({"return", "break", "next"}),
        blocks=frozenset({"body_statement", "then", "else", "program"}),
        comparisons=frozenset({"binary"}),
        loops=frozenset({"while", "until", "for"}),
        formatting=r"^(format|sprintf)$",
    ),
    "bash": Shape(
        calls={"command": (("name",), "argument")},
        strings=frozenset({"string", "raw_string"}),
        holes=frozenset({"simple_expansion", "expansion", "command_substitution"}),
        joins=NONE,
        join_signs=NONE,
        names=frozenset({"variable_name"}),
        assigns={"variable_assignment": ("name", "value")},
        functions=frozenset({"function_definition"}),
    ),
    "csharp": Shape(
        calls={
            "invocation_expression": (("function",), "arguments"),
            "object_creation_expression": (("type",), "arguments"),
        },
        strings=frozenset(
            {"string_literal", "verbatim_string_literal", "interpolated_string_expression", "raw_string_literal"}
        ),
        holes=frozenset({"interpolation"}),
        joins=frozenset({"binary_expression"}),
        join_signs=frozenset({"+"}),
        names=frozenset({"identifier"}),
        assigns={"variable_declarator": ("name", ""), "assignment_expression": ("left", "right")},
        functions=frozenset(
            {"method_declaration", "constructor_declaration", "lambda_expression", "local_function_statement"}
        ),
        catches=frozenset({"catch_clause"}),
        conditions={"if_statement": "condition", "while_statement": "condition", "do_statement": "condition"},
        assigning=frozenset({"assignment_expression"}),
        jumps=frozenset({"return_statement", "throw_statement", "break_statement", "continue_statement"}),
        blocks=frozenset({"block", "switch_section"}),
        comparisons=frozenset({"binary_expression"}),
        loops=frozenset({"for_statement", "foreach_statement", "while_statement", "do_statement"}),
        formatting=r"^(string|String)\.(Format|Concat)$",
    ),
    "php": Shape(
        calls={
            "function_call_expression": (("function",), "arguments"),
            "member_call_expression": (("object", "name"), "arguments"),
            "scoped_call_expression": (("scope", "name"), "arguments"),
            "object_creation_expression": (("name",), "arguments"),
        },
        strings=frozenset({"string", "encapsed_string", "heredoc", "nowdoc"}),
        holes=frozenset({"variable_name", "member_access_expression", "subscript_expression"}),
        joins=frozenset({"binary_expression"}),
        join_signs=frozenset({"."}),
        names=frozenset({"variable_name"}),
        assigns={
            "assignment_expression": ("left", "right"),
            "const_element": ("", ""),
            "property_element": ("name", "default_value"),
            "array_element_initializer": ("", ""),
        },
        functions=frozenset({"function_definition", "method_declaration", "anonymous_function", "arrow_function"}),
        catches=frozenset({"catch_clause"}),
        conditions={"if_statement": "condition", "while_statement": "condition", "do_statement": "condition"},
        assigning=frozenset({"assignment_expression"}),
        jumps=frozenset({"return_statement", "throw_expression", "break_statement", "continue_statement"}),
        blocks=frozenset({"compound_statement", "program", "case_statement"}),
        comparisons=frozenset({"binary_expression"}),
        loops=frozenset({"for_statement", "foreach_statement", "while_statement", "do_statement"}),
        formatting=r"^(sprintf|vsprintf)$",
    ),
}
