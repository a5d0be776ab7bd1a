"""What the analysers' own rules mean to us: which ones are asked, and under which meaning each counts.

Left out is what is taste (names, order, style), and what needs the whole project to be true: a chunk is a part of a
file, so "unused import" or "unused function" would mostly say that the rest is elsewhere.
"""

# ruff: noqa: E501 - tables read best with one rule for each line

from __future__ import annotations

RUFF_SELECT = (
    "F", "B", "S", "ASYNC", "PLE", "PLW0127", "PLW0128", "PLW0129", "PLW0131", "PLW0133", "PLW0245", "PLW0406", "PLW0602",
    "PLW0604", "PLW0642", "PLW0711", "PLW1501", "PLW1507", "PLW1508", "PLW1509", "PLW2101", "PLR0124", "PLR0133",
    "RUF006", "RUF008", "RUF009", "RUF012", "RUF016", "RUF018", "RUF028", "RUF040", "E711", "E712", "E713", "E722", "E741",
    "LOG", "G003", "SIM115", "PGH001",
)  # fmt: skip
RUFF_IGNORE = (
    "F401", "F403", "F405", "F541", "F841",
    "B004", "B007", "B008", "B009", "B010", "B011", "B024", "B027", "B028", "B034", "B904", "B905", "B911",
    "S101", "S105", "S106", "S107", "S610", "S611", "B903", "ASYNC110", "ASYNC119", "ASYNC116", "S310", "S311", "S403", "S404", "S405", "S406", "S407", "S408", "S409", "S410", "S411", "S412", "S413", "S415",
    "S401", "S402", "S603", "S606", "S607", "ASYNC109", "PLE0604", "PLE0605", "RUF012", "E712", "E713", "E741", "LOG015", "G",
)  # fmt: skip
RUFF_WHOLE_FILE = ("F821", "F822", "F811", "PLE0118")
"""Asked only when the chunk begins where the file does."""

RUFF = {
    "S608": "sql-injection", "S602": "command-injection", "S604": "command-injection", "S605": "command-injection",
    "S609": "command-injection", "S102": "code-injection", "S307": "code-injection", "S301": "deserialization",
    "S302": "deserialization", "S506": "deserialization", "S324": "weak-hash", "S303": "weak-hash", "S304": "weak-cipher", "S305": "weak-cipher",
    "S501": "tls-off", "S323": "tls-off", "S502": "tls-off", "S503": "tls-off", "S504": "tls-off", "S306": "insecure-temp",
    "S108": "insecure-temp", "S103": "permissions", "S201": "debug-on", "S202": "path-traversal", "S701": "xss",
    "S702": "xss", "S704": "xss", "S308": "xss", "S313": "xxe", "S314": "xxe", "S315": "xxe", "S316": "xxe", "S317": "xxe",
    "S318": "xxe", "S319": "xxe", "S320": "xxe", "S110": "empty-catch", "S112": "empty-catch", "E722": "empty-catch",
    "B001": "empty-catch", "B006": "mutable-default", "RUF008": "mutable-default",
    "B023": "loop-closure", "B909": "changed-while-iterating", "PLE4703": "changed-while-iterating", "F632": "identity",
    "PLR0124": "self-compare", "B015": "useless-compare", "F601": "duplicate-key", "F502": "bad-format",
    "SIM115": "resource-leak", "ASYNC251": "blocking-in-async", "ASYNC210": "blocking-in-async",
    "ASYNC220": "blocking-in-async", "ASYNC221": "blocking-in-async", "ASYNC222": "blocking-in-async",
    "ASYNC230": "blocking-in-async", "RUF006": "floating-promise", "B012": "lost-exception", "G003": "log-format",
}  # fmt: skip
RUFF_SEVERITY = {
    "S110": "low", "S112": "low", "S104": "low", "S108": "low", "S103": "medium", "S113": "medium", "S602": "high",
    "S605": "high", "E722": "medium", "F821": "high",
    "F823": "high", "F502": "medium", "B017": "low", "SIM115": "low", "E711": "low", "S701": "medium", "F811": "medium",
    "S301": "high", "S313": "medium", "S314": "medium", "S608": "high", "B018": "low", "B015": "low",
}  # fmt: skip

SHELLCHECK = {
    2086: "unquoted", 2046: "unquoted", 2068: "unquoted", 2206: "unquoted", 2207: "unquoted", 2048: "unquoted",
    2231: "unquoted", 2045: "word-splitting", 2044: "word-splitting", 2013: "word-splitting", 2012: "word-splitting",
    2164: "ignored-error", 2103: "ignored-error", 2155: "ignored-error", 2115: "rm-root", 2114: "rm-root", 2016: "single-quotes",
    2030: "subshell", 2071: "wrong-operator", 2122: "wrong-operator", 2170: "wrong-operator",
    2072: "wrong-operator", 2162: "read-backslash", 2294: "code-injection", 2157: "always", 2078: "always", 2161: "always",
    2317: "unreachable", 2015: "and-or", 2064: "trap-quotes", 2154: "unassigned", 2094: "same-file",
}  # fmt: skip
SHELLCHECK_IGNORE = frozenset({
    2034, 2154, 2317, 2329, 2155, 2148, 2250, 2292, 2002, 2006, 2196, 2197, 1090, 1091, 2129, 2001, 2126, 2162, 2312, 2181, 2009, 2219, 2031,
})  # fmt: skip
SHELLCHECK_SEVERITY = {
    2086: "medium",
    2115: "high",
    2114: "high",
    2045: "medium",
    2016: "low",
    2012: "low",
    2030: "medium",
    2071: "medium",
}

CPPCHECK = {
    "memleak": "memory-leak", "memleakOnRealloc": "memory-leak", "leakNoVarFunctionCall": "memory-leak", "leakReturnValNotUsed": "memory-leak",
    "resourceLeak": "resource-leak", "deallocuse": "use-after-free", "deallocret": "use-after-free", "useClosedFile": "use-after-free",
    "doubleFree": "double-free", "mismatchAllocDealloc": "mismatched-delete", "uninitvar": "uninitialised",
    "legacyUninitvar": "uninitialised", "uninitdata": "uninitialised", "uninitStructMember": "uninitialised",
    "uninitMemberVar": "uninitialised", "nullPointer": "null-deref", "nullPointerRedundantCheck": "null-deref", "ctunullpointer": "null-deref",
    "nullPointerDefaultArg": "null-deref", "arrayIndexOutOfBounds": "out-of-bounds", "arrayIndexOutOfBoundsCond": "out-of-bounds",
    "negativeIndex": "out-of-bounds", "bufferAccessOutOfBounds": "buffer-overflow", "argumentSize": "buffer-overflow", "getsCalled": "buffer-overflow",
    "containerOutOfBounds": "out-of-bounds", "stlOutOfBounds": "out-of-bounds", "zerodiv": "zero-division", "zerodivcond": "zero-division",
    "returnDanglingLifetime": "dangling", "returnReference": "dangling", "returnTempReference": "dangling",
    "danglingLifetime": "dangling", "danglingTemporaryLifetime": "dangling", "danglingReference": "dangling", "autoVariables": "dangling", "returnAddressOfAutoVariable": "dangling",
    "invalidIterator1": "changed-while-iterating", "eraseDereference": "changed-while-iterating", "invalidContainer": "changed-while-iterating",
    "invalidContainerLoop": "changed-while-iterating", "virtualDestructor": "non-virtual-destructor", "integerOverflow": "integer-overflow",
    "integerOverflowCond": "integer-overflow", "duplicateExpression": "self-compare", "identicalConditionAfterEarlyExit": "self-compare",
    "unreachableCode": "unreachable", "assignIfError": "always", "shiftTooManyBits": "integer-overflow", "exceptThrowInDestructor": "throw-in-destructor",
}  # fmt: skip
CPPCHECK_IGNORE = frozenset({
    "syntaxError", "internalAstError", "internalError", "unknownMacro", "preprocessorErrorDirective", "noExplicitConstructor", "nullPointerOutOfMemory", "missingInclude",
    "missingIncludeSystem", "toomanyconfigs", "noCopyConstructor", "noOperatorEq", "noDestructor", "checkersReport", "nullPointerOutOfResources", "normalCheckLevelMaxBranches",
    "cppcheckError", "invalidPrintfArgType_sint", "invalidPrintfArgType_uint", "prohibitedgetsCalled",
})  # fmt: skip
CPPCHECK_UNREADABLE = frozenset(
    {"syntaxError", "internalAstError", "internalError", "unknownMacro", "preprocessorErrorDirective", "cppcheckError"}
)

OXLINT_RULES = (
    "no-cond-assign", "no-fallthrough", "no-self-compare", "no-new-func", "no-implied-eval", "no-script-url", "no-unreachable", "no-constant-condition", "no-dupe-keys",
    "no-empty", "eqeqeq", "array-callback-return", "no-promise-executor-return", "no-await-in-loop", "no-unsafe-finally", "no-loss-of-precision", "no-proto",
    "require-await", "no-return-assign", "no-throw-literal", "react/no-danger", "react/jsx-no-script-url", "typescript/no-non-null-asserted-optional-chain",
)  # fmt: skip
OXLINT_OFF = (
    "no-unused-vars", "no-unused-expressions", "no-useless-escape", "no-useless-rename", "no-unused-private-class-members", "no-useless-catch", "no-useless-constructor",
    "unicorn/no-empty-file", "unicorn/prefer-string-starts-ends-with", "unicorn/no-new-array", "unicorn/no-useless-spread", "unicorn/no-useless-fallback-in-spread",
    "no-await-in-loop", "require-await", "eqeqeq", "no-return-assign", "unicorn/no-thenable", "no-extra-boolean-cast", "no-unused-labels", "typescript/triple-slash-reference",
    "no-promise-executor-return", "no-empty-pattern", "no-unassigned-vars", "no-var", "react/no-this-in-sfc", "typescript/no-this-alias", "unicorn/no-single-promise-in-promise-methods",
)  # fmt: skip
OXLINT = {
    "no-cond-assign": "assignment-in-condition", "no-fallthrough": "fallthrough", "no-self-compare": "self-compare", "no-new-func": "code-injection",
    "no-eval": "code-injection", "no-implied-eval": "code-injection", "no-unreachable": "unreachable", "no-dupe-keys": "duplicate-key",
    "no-empty": "empty-catch", "use-isnan": "nan-compare", "valid-typeof": "bad-typeof", "no-danger": "xss", "no-script-url": "xss",
    "jsx-no-script-url": "xss", "no-constant-binary-expression": "always", "no-constant-condition": "always", "const-comparisons": "always",
    "no-async-promise-executor": "floating-promise", "no-unsafe-optional-chaining": "null-deref", "no-proto": "prototype-pollution",
}  # fmt: skip
OXLINT_SEVERITY = {
    "no-empty": "low",
    "array-callback-return": "low",
    "no-throw-literal": "low",
    "no-constant-condition": "low",
    "no-debugger": "low",
    "no-control-regex": "low",
}
