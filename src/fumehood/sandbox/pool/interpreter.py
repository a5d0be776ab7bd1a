"""A Python interpreter that is started before its program is known, and then runs it as `python -c` would.

`BOOT` is what it is started with: `python -c BOOT`, its input open. It waits for one `message`, and the program in it
sees `/dev/null` as its input, and nothing of `BOOT`. It is for the image's own CPython, any from 3.8 to 3.14, and
imports nothing that was not there. Any other, and an input that ends before the whole message came, ends with
`NOTHING_RAN`, and without a word.

A code is an argument, here as there: bytes that the interpreter decodes as its locale says, without NUL, and no more
of them than the kernel takes in one piece. Half a surrogate pair has no bytes in UTF-8, and is refused here as there.

The program runs as a function without arguments whose body is the module, so that one frame is between it and the
ground, that of `BOOT`. CPython itself prints what was not caught. That one frame is taken off the traceback first;
before 3.11, where raising it again brings the frame back, a hook of ours takes it off what `sys.excepthook` is told.

What is left to tell the two apart:

- Whoever looks further down than the program's first frame finds one more: `inspect.stack()`, `sys._getframe(1)`,
  `traceback.print_stack()`, `faulthandler`, a warning whose `stacklevel` is too large, and a profiler that the program
  left on, which sees it return. Before 3.11 an own `sys.excepthook` that looks down finds ours.
- `sys.getrecursionlimit()` is larger by one, for that frame: the program gets exactly as deep as it would. Where it
  sets a limit of its own it gets one call less deep, and a thread gets one call deeper.
- `object.__subclasses__()` has `ast.AST`, since `compile` was called.
- `/proc/self/cmdline` has `BOOT` in it. `sys.orig_argv` has the code.
- It began earlier: the age of the process, the environment, the directory, and what `site` found on the disk.
"""

from __future__ import annotations

from typing import Final

LONGEST: Final = 131_071
"""Bytes of a code. The kernel takes no longer argument, and whoever waited must not take what others would not."""
NOTHING_RAN: Final = 125
_PREFIX: Final = 4

# All names are the program's as soon as it runs: `_boot` is gone before its code is compiled, and what is done about
# errors is made only then. `compile` is called once while it waits: the first call takes 2 ms.
# The versions: bytes are compiled before 3.10, where a coding that a comment declares counts; `python -c` shows lines
# of its code from 3.13 on, and dedents it from 3.14 on.
BOOT: Final = f"""\
def _boot():
    import posix, sys
    names, function, source = globals(), type(_boot), None
    if sys.implementation.name != "cpython" or not (3, 8) <= sys.version_info < (3, 15):
        posix._exit({NOTHING_RAN})

    def input_moved():
        pipe = posix.dup(0)
        try:
            empty = posix.open("/dev/null", posix.O_RDONLY | posix.O_CLOEXEC)
        except OSError:
            empty, end = posix.pipe()
            posix.close(end)
        posix.dup2(empty, 0)
        posix.close(empty)
        old = sys.stdin
        if old is sys.__stdin__:
            buffer = open(0, "rb", -1, None, None, None, False)
            buffer.raw.name = "<stdin>"
            new = type(old)(buffer, old.encoding, old.errors, "\\n", old.line_buffering, old.write_through)
            new.mode = "r"
            sys.stdin = sys.__stdin__ = new
        return pipe

    def take(size):
        data = b""
        while len(data) < size:
            more = posix.read(pipe, size - len(data))
            if not more:
                posix._exit({NOTHING_RAN})
            data += more
        return data

    def received():
        size = int.from_bytes(take({_PREFIX}), "big")
        if size > {LONGEST}:
            posix._exit({NOTHING_RAN})
        text = take(size).decode(sys.getfilesystemencoding(), "surrogateescape")
        posix.close(pipe)
        return text

    def dedented(text):
        lines = [line if line.strip(" \\t") else "" for line in text.split("\\n")]
        full = [line for line in lines if line]
        low, high = min(full, default=""), max(full, default="")
        size = 0
        while size < len(low) and low[size] in " \\t" and low[size] == high[size]:
            size += 1
        return "\\n".join([line[size:] for line in lines]) if size else text

    def given():
        nonlocal source
        try:
            source = received()
            del names["_boot"]
            if hasattr(sys, "orig_argv"):
                sys.orig_argv[-1] = source
            source += "\\n"
            try:
                data = source.encode()
            except UnicodeEncodeError:
                sys.stderr.write("Unable to decode the command from the command line:\\n")
                return source
            if sys.version_info >= (3, 14):
                source = dedented(source)
            return data if sys.version_info < (3, 10) else source
        except BaseException:
            posix._exit({NOTHING_RAN})

    def ready(code):
        if named:
            lines._register_code("<string>", source, "<string>")
        if coded:
            lines._register_code(code, source, "<string>")
        return function(code, names)

    try:
        pipe = input_moved()
        lines = sys.modules.get("linecache")
        named = lines and lines.cache.pop("<string>", None)
        coded = getattr(lines, "_interactive_cache", {{}}).copy()
        for key in coded:
            del lines._interactive_cache[key]
        sys.setrecursionlimit(sys.getrecursionlimit() + 1)
        compile("", "<string>", "exec", 0, True)
    except BaseException:
        posix._exit({NOTHING_RAN})
    return ready, given


_boot = _boot()
try:
    _boot[0](compile(_boot[1](), "<string>", "exec", 0, True))()
except SystemExit:
    raise
except BaseException as _boot:
    if hasattr(BaseException, "add_note"):
        BaseException.with_traceback(_boot, _boot.__traceback__.tb_next)
    else:

        def _boot():
            import sys

            base, leave, kind_of = BaseException, SystemExit, type
            trace = sys.exc_info()[2].tb_next
            there = [sys.excepthook] if hasattr(sys, "excepthook") else []

            def said(text):
                (sys.stderr or sys.__stderr__).write(text)

            def shown(error, trace):
                sys.__excepthook__(kind_of(error), base.with_traceback(error, trace), trace)

            def hook(kind, error, _):
                sys.last_traceback = trace
                base.with_traceback(error, trace)
                if not there:
                    del sys.excepthook
                    said("sys.excepthook is missing\\n")
                    return shown(error, trace)
                sys.excepthook = there[0]
                try:
                    there[0](kind, error, trace)
                except leave:
                    raise
                except base as other:
                    said("Error in sys.excepthook:\\n")
                    shown(other, other.__traceback__.tb_next)
                    said("\\nOriginal exception was:\\n")
                    shown(error, trace)

            sys.excepthook = hook

        _boot()
    raise
"""


def message(code: str) -> bytes:
    """What is to be written to the interpreter's input. `ValueError`: no interpreter could be given this code."""
    if "\0" in code:
        raise ValueError("a program's argument cannot hold a NUL")
    data = code.encode()
    if len(data) > LONGEST:
        raise ValueError(f"a program's argument has at most {LONGEST} bytes")
    return len(data).to_bytes(_PREFIX, "big") + data
