"""What can be wrong with code: one entry for each meaning, whoever finds it and in whatever language.

A meaning is also what findings are compared by: two analysers that say the same of a line are one finding.
"""

# ruff: noqa: E501 - tables read best with one rule for each line

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Meaning:
    title: str
    severity: str
    topics: tuple[str, ...]
    """What a task may ask for: `security`, `bug`, `memory`, `concurrency`, `errors`."""
    description: str
    suggestion: str


SECURITY = ("security",)
BUG = ("bug",)
MEMORY = ("memory", "bug", "security")
CONCURRENCY = ("concurrency", "bug")
ERRORS = ("errors", "bug")

MEANINGS = {
    "assignment-in-condition": Meaning("Assignment in a condition", "high", BUG, "A condition assigns instead of comparing, so it no longer depends on the value.", "Compare, or assign in a statement of its own."),
    "async-void": Meaning("Async void", "medium", (*CONCURRENCY, "errors"), "An async void method: nobody can wait for it, and its exception ends the process.", "Return a Task."),
    "bad-typeof": Meaning("Wrong typeof", "medium", BUG, "typeof is compared with a text that it never gives.", "Correct the name of the type."),
    "blocking-in-async": Meaning("Blocking in async", "medium", CONCURRENCY, "A blocking call where others wait: the event loop stands still, or the task waits for itself (deadlock).", "Await the asynchronous form."),
    "buffer-overflow": Meaning("Buffer overflow", "high", MEMORY, "Writes into a buffer without a bound: longer input overflows it.", "Give the size of the target, and check it."),
    "changed-while-iterating": Meaning("Changed while iterating", "medium", BUG, "A collection is changed while a loop iterates over it.", "Iterate over a copy, or collect the changes first."),
    "code-injection": Meaning("Code injection", "high", SECURITY, "Data is run as code (eval, exec or the like).", "Parse the data, or choose from a table of what is allowed."),
    "command-injection": Meaning("Command injection", "high", SECURITY, "A command for a shell is made of data: whoever chooses the data can run commands.", "Pass the arguments as a list, without a shell."),
    "dangling": Meaning("Dangling reference (lifetime)", "high", MEMORY, "The address of a local is used after its lifetime.", "Return a value, or memory that lives longer."),
    "data-race": Meaning("Data race", "medium", CONCURRENCY, "State is shared between threads without a lock: a data race.", "Use a lock, an atomic, or hand the state over."),
    "debug-on": Meaning("Debug mode on", "medium", SECURITY, "Debug mode is on: it shows internals, and may run code for anybody.", "Turn it on by a setting for development only."),
    "defer-in-loop": Meaning("Defer in a loop", "medium", ("resources", "bug"), "defer inside a loop: nothing is released before the function ends.", "Put the body of the loop into a function of its own."),
    "deserialization": Meaning("Deserialization", "high", SECURITY, "Deserialization of data into any object that the data names can run code.", "Use a format that carries data only, such as JSON."),
    "double-free": Meaning("Double free", "high", MEMORY, "Memory is freed twice.", "Free it in one place, and set the pointer to null."),
    "duplicate-key": Meaning("Duplicate key", "medium", BUG, "A duplicate key: only the last value counts.", "Remove one of them."),
    "empty-catch": Meaning("Empty catch", "medium", ERRORS, "A catch that does nothing: the exception is swallowed.", "Handle it, log it, or catch only what is expected."),
    "fallthrough": Meaning("Falls through", "medium", BUG, "A case falls through into the next one.", "End it with break or return, or say that it is meant."),
    "file-inclusion": Meaning("File inclusion", "high", SECURITY, "A file is included whose name comes from outside: an attacker chooses what runs.", "Choose from a list of known files."),
    "floating-promise": Meaning("Floating promise", "medium", (*CONCURRENCY, "errors"), "Nobody awaits this promise: failures are lost, and the order is not what it seems.", "Await it, for example by Promise.all over map."),
    "format-string": Meaning("Format string", "high", MEMORY, "The format string is not a literal: whoever chooses it can read and write memory.", 'Use "%s" as the format.'),
    "hardcoded-secret": Meaning("Hard-coded secret", "high", SECURITY, "A secret (password, key or token) stands in the source.", "Read it from the environment or a secret store, and change it."),
    "identity": Meaning("Comparison of identity", "medium", BUG, "Identity of a string is compared (==, `is`) where equality is meant.", "Use equals(), or == where the language compares by value."),
    "ignored-error": Meaning("Ignored error", "medium", ERRORS, "An error or a return value that tells of one is ignored.", "Look at it, and return or log it."),
    "insecure-temp": Meaning("Insecure temporary file", "medium", SECURITY, "A temporary file with a name that others can guess or take first.", "Let mkstemp or its like make and open it."),
    "integer-overflow": Meaning("Integer overflow", "medium", MEMORY, "Arithmetic on sizes may wrap around (overflow or underflow).", "Check the range first, or use checked arithmetic."),
    "lock-this": Meaning("Lock on this", "low", CONCURRENCY, "A lock on an object that others can lock too.", "Lock a private object."),
    "loop-closure": Meaning("Loop closure", "medium", BUG, "A closure made in a loop sees the last value of the loop's variable.", "Bind the value as a default argument."),
    "lost-stack": Meaning("Lost stack", "low", ERRORS, "Throwing a caught exception anew loses its stack trace.", "Use a bare throw."),
    "memory-leak": Meaning("Memory leak", "medium", ("memory", "resources"), "Memory is not freed on every path: a leak.", "Free it before returning, or let an owner do it."),
    "mismatched-delete": Meaning("Mismatched delete", "high", MEMORY, "Memory is released in another way than it was made (mismatch of new[] and delete).", "Use the form that fits, or a smart pointer."),
    "mutable-default": Meaning("Mutable default", "medium", BUG, "A mutable default argument is shared by all calls.", "Default to None, and make the value inside."),
    "nan-compare": Meaning("Comparison with NaN", "medium", BUG, "NaN is equal to nothing, not even itself.", "Use isNaN."),
    "non-virtual-destructor": Meaning("Destructor not virtual", "medium", MEMORY, "A class with virtual methods has a destructor that is not virtual.", "Make the destructor virtual."),
    "null-deref": Meaning("Null dereference", "high", BUG, "A null (nil) value may be used here.", "Check it before it is used."),
    "open-redirect": Meaning("Open redirect", "medium", SECURITY, "A redirect to an address that the visitor chooses.", "Allow only paths of your own, or a list of hosts."),
    "out-of-bounds": Meaning("Out of bounds", "high", MEMORY, "An index may be out of bounds.", "Check it against the size."),
    "panic": Meaning("Panic", "low", ERRORS, "A panic ends the program, where an error could be returned.", "Return the error."),
    "path-traversal": Meaning("Path traversal", "high", SECURITY, "A path made of data from outside: with .. it leaves the folder (path traversal).", "Take the base name, or check the resolved path."),
    "permissions": Meaning("Wide permissions", "medium", SECURITY, "Permissions that let everybody write.", "Give only what is needed, such as 0750."),
    "prototype-pollution": Meaning("Prototype pollution", "high", SECURITY, "Keys from outside are copied into an object: __proto__ changes the prototype of all.", "Skip __proto__, constructor and prototype, or use a Map."),
    "remote-code": Meaning("Remote code", "high", SECURITY, "Code is downloaded and piped into an interpreter.", "Download, check a digest, then run."),
    "resource-leak": Meaning("Resource leak", "medium", ("resources", "bug"), "Something that was opened is not closed on every path: a leak.", "Use with, using, try-with-resources or defer."),
    "self-compare": Meaning("Self compare", "medium", BUG, "A value is compared with itself: the result is always the same.", "Compare with the other value that was meant."),
    "single-quotes": Meaning("Single quotes", "low", BUG, "Expressions do not expand in single quotes.", "Use double quotes."),
    "sql-injection": Meaning("SQL injection", "high", SECURITY, "SQL is made of data: whoever chooses the data can change the statement (SQL injection).", "Use placeholders, and pass the values apart."),
    "ssrf": Meaning("Server-side request forgery (URL)", "high", SECURITY, "A request to a URL that comes from outside (SSRF): internal services can be reached.", "Allow a list of hosts only."),
    "static-mut": Meaning("Mutable static", "medium", CONCURRENCY, "A static mut is shared by all threads: a data race.", "Use an atomic, a Mutex or OnceLock."),
    "subshell": Meaning("Subshell", "medium", BUG, "Changes made in a subshell are lost after it.", "Feed the loop by redirection."),
    "template-injection": Meaning("Template injection", "high", SECURITY, "A template is made of data from outside: the visitor's text is run as template code.", "Pass the data as a variable of a fixed template."),
    "tls-off": Meaning("TLS verification off", "high", SECURITY, "TLS certificates are not verified: anybody between can read and change what is sent.", "Leave verification on; add your own authority if needed."),
    "truncation": Meaning("Truncation", "low", BUG, "A cast to a smaller type may truncate the value.", "Use a checked conversion (try_into)."),
    "unfinished": Meaning("Unfinished", "medium", BUG, "Unfinished code (todo!, unimplemented!) panics when it is reached.", "Write it, or return an error."),
    "uninitialised": Meaning("Uninitialised", "high", MEMORY, "A variable may be used before it is initialised.", "Give it a value where it is declared."),
    "unquoted": Meaning("Unquoted expansion", "medium", BUG, "An expansion without quotes is split at spaces and globbed.", "Put it into double quotes."),
    "unreachable": Meaning("Unreachable", "low", BUG, "Unreachable code: it can never run.", "Remove it, or the jump before it."),
    "unsafe": Meaning("Unsafe", "medium", MEMORY, "An unsafe block: the compiler does not check memory here.", "Use a safe form, or say why it holds."),
    "unwrap": Meaning("Unwrap", "low", ERRORS, "unwrap or expect panics when there is no value.", "Pass the error on with ?, or give a default."),
    "use-after-free": Meaning("Use after free", "high", MEMORY, "Memory is used after it was freed.", "Free it last, and set the pointer to null."),
    "weak-cipher": Meaning("Weak cipher", "high", SECURITY, "A cipher or mode that is broken (DES, RC4, ECB).", "Use AES-GCM or ChaCha20-Poly1305."),
    "weak-hash": Meaning("Weak hash", "medium", SECURITY, "A weak hash (MD5 or SHA-1): collisions are cheap, and passwords are guessed fast.", "Use SHA-256; for passwords Argon2, scrypt or bcrypt."),
    "weak-random": Meaning("Weak random", "medium", SECURITY, "Random numbers that can be predicted, used where a secret is made.", "Use the system's secure source."),
    "word-splitting": Meaning("Word splitting", "medium", BUG, "The output of a command is iterated by words: names with spaces are split.", "Iterate over a glob, or read line by line."),
    "wrong-operator": Meaning("Wrong operator", "medium", BUG, "Strings are compared here, not numbers.", "Use the numeric operator."),
    "xss": Meaning("Cross-site scripting (HTML)", "high", SECURITY, "Text of others becomes HTML: it can carry script (XSS).", "Set text instead of HTML, or escape it."),
    "xxe": Meaning("XML external entities", "high", SECURITY, "An XML parser that may follow external entities.", "Forbid DTDs and external entities."),
    "zero-division": Meaning("Zero division", "high", BUG, "A division by zero.", "Check the divisor."),
}  # fmt: skip
