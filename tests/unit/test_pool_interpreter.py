"""A program cannot tell whether its interpreter was started for it, or waited: each is run both ways, and compared."""

from __future__ import annotations

import functools
import itertools
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fumehood.sandbox.pool.interpreter import BOOT, LONGEST, NOTHING_RAN, message
from tests.unit.python_programs import ENDS, TABLE
from tests.waiting import wait_until

SECONDS = 120
PLACES = ("/usr/bin", "/usr/local/bin", *map(str, Path.home().glob(".pyenv/versions/*/bin")))
OTHERS = [
    str(path)
    for place in PLACES
    for path in sorted(Path(place).glob("python3.*"))
    if re.fullmatch(r"python3\.([89]|1[0-4])", path.name) and path.resolve() != Path(sys.executable).resolve()
]
TELLING = (
    "error",
    "context",
    "recursion without end",
    "syntax",
    "exit with text",
    "interrupt",
    "hook that fails",
    "all names gone",
    "last error",
    "fork, an error in the child",
    "input, what it is",
    "names",
    "modules",
    "cache of lines",
    "syntax, a bad coding",
    "indented",
    "no encoding",
)
"""Programs for which the versions differ, or are treated differently."""
OLD_BOOT = BOOT.replace('"add_note"', '"nothing_has_this"')
"""It believes that it runs before 3.11."""
NEW_BOOT = BOOT.replace("(3, 14)", "(3, 0)")
"""It believes that it runs in 3.14."""
SILENT = "", "", NOTHING_RAN


@dataclass(frozen=True)
class Ran:
    """All that anybody outside sees of a program."""

    stdout: str
    stderr: str
    code: int


def environment(env: Mapping[str, str] | None) -> dict[str, str]:
    kept = {"PATH": os.environ["PATH"], "HOME": tempfile.gettempdir(), "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
    return {**kept, **(env or {})}


def as_text(file: IO[bytes]) -> str:
    """Addresses are others each time."""
    file.seek(0)
    return re.sub(r"\b0x[0-9a-f]{6,}\b", "0x…", file.read().decode("utf-8", "backslashreplace"))


def cold(code: str, python: str = sys.executable, env: Mapping[str, str] | None = None) -> Ran:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, Path(os.devnull).open("rb") as nothing:
        argv = [python, "-c", code]
        process = subprocess.Popen(argv, stdin=nothing, stdout=out, stderr=err, env=environment(env))
        try:
            ended = process.wait(SECONDS)
        finally:
            process.kill()
        return Ran(as_text(out), as_text(err), ended)


@contextmanager
def waiting(
    python: str = sys.executable,
    env: Mapping[str, str] | None = None,
    boot: str = BOOT,
    out: IO[bytes] | int = subprocess.PIPE,
    err: IO[bytes] | int = subprocess.PIPE,
) -> Iterator[subprocess.Popen[bytes]]:
    argv = [python, "-c", boot]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=out, stderr=err, bufsize=0, env=environment(env))
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def feed(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    while data:
        data = data[process.stdin.write(data) or 0 :]


def told(
    pieces: Iterable[bytes], python: str = sys.executable, env: Mapping[str, str] | None = None, boot: str = BOOT
) -> Ran:
    """The input stays open until the program has ended."""
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        waiting(python, env, boot, out, err) as process,
    ):
        with suppress(BrokenPipeError):
            for piece in pieces:
                feed(process, piece)
        ended = process.wait(SECONDS)
        return Ran(as_text(out), as_text(err), ended)


def warm(code: str, python: str = sys.executable, env: Mapping[str, str] | None = None, boot: str = BOOT) -> Ran:
    return told([message(code)], python, env, boot)


def left(sent: bytes) -> tuple[str, str, int]:
    """What becomes of one whose input ends."""
    with waiting() as process:
        with suppress(BrokenPipeError):
            feed(process, sent)
        out, err = process.communicate(timeout=SECONDS)
        return out.decode(), err.decode(), process.returncode


def until_it_waits(process: subprocess.Popen[bytes]) -> None:
    """It has moved its input away, and sleeps."""
    place = Path(f"/proc/{process.pid}")
    wait_until(lambda: (place / "fd/0").readlink() == Path(os.devnull))
    wait_until(lambda: "State:\tS" in (place / "status").read_text())


# --- the same -----------------------------------------------------------------------------------------------


@functools.cache
def version_of(python: str) -> tuple[int, ...]:
    return tuple(map(int, cold("import sys; print(*sys.version_info[:2])", python).stdout.split()))


def differences(names: Iterable[str], python: str = sys.executable, boot: str = BOOT) -> dict[str, tuple[Ran, Ran]]:
    programs = {name: TABLE[name] for name in names if version_of(python) >= TABLE[name].since}
    ran = {
        name: (warm(each.code, python, each.env, boot), cold(each.code, python, each.env))
        for name, each in programs.items()
    }
    return {name: both for name, both in ran.items() if both[0] != both[1]}


@pytest.mark.parametrize("name", TABLE)
def test_a_program_does_the_same_in_an_interpreter_that_waited(name: str) -> None:
    assert differences([name]) == {}


@pytest.mark.parametrize("python", OTHERS)
def test_it_does_so_in_other_versions(python: str) -> None:
    assert differences(TELLING, python) == {}


@pytest.mark.record
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("python", OTHERS)
def test_every_program_does_so_in_other_versions(python: str) -> None:
    assert differences(TABLE, python) == {}


def test_the_way_of_older_versions_shows_the_same_errors() -> None:
    assert OLD_BOOT != BOOT
    shown = [name for name in ENDS if name.startswith(("error", "hook", "syntax", "interrupt", "exit", "last", "all"))]
    assert differences(shown, boot=OLD_BOOT) == {}


@pytest.mark.parametrize(
    ("code", "as_if"),
    [
        ("  x = 1\n  print(x)", "x = 1\nprint(x)"),
        ("\tif 1:\n\t\tprint(1)", "if 1:\n\tprint(1)"),
        ("  x = '''\n\n \n   a'''\n \t \n  print(repr(x))\n ", "x = '''\n\n\n a'''\n\nprint(repr(x))\n"),
        ("  \nprint(repr('''\n  '''))", "  \nprint(repr('''\n  '''))"),
        ("  print(1)\n\tprint(2)", "  print(1)\n\tprint(2)"),
        ("  print(1)\r\n\r\n  print(2)", "  print(1)\r\n\r\n  print(2)"),
        (" \n\t", ""),
        ("", ""),
    ],
)
def test_the_way_of_3_14_takes_away_what_all_lines_are_indented_by(code: str, as_if: str) -> None:
    assert NEW_BOOT != BOOT
    ran = warm(code, boot=NEW_BOOT)
    assert ran == cold(as_if)


NEW_LINES = """
import linecache
linecache._interactive_cache = {("<string>", "<module>", 1): (0, None, ["of BOOT"], "<string>")}
def _register_code(code, text, name):
    linecache._interactive_cache[getattr(code, "co_name", code)] = text, name
linecache._register_code = _register_code
"""


def test_lines_of_the_code_are_where_newer_versions_look_for_them(tmp_path: Path) -> None:
    """From some 3.13 on they are kept for each code object."""
    (tmp_path / "sitecustomize.py").write_text(NEW_LINES)
    code = "import linecache; print(linecache._interactive_cache)"
    lines = {"<module>": (f"{code}\n", "<string>")}
    assert warm(code, env={"PYTHONPATH": str(tmp_path)}) == Ran(f"{lines}\n", "", 0)


# --- a message ----------------------------------------------------------------------------------------------


@given(st.text())
def test_a_message_is_its_length_and_the_code(code: str) -> None:
    try:
        data = code.encode()
    except UnicodeEncodeError:
        data = b"\0"
    if b"\0" in data:
        with pytest.raises(ValueError, match=r"NUL|surrogates"):
            message(code)
    else:
        assert message(code) == len(data).to_bytes(4, "big") + data


@settings(max_examples=25)
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), st.lists(st.integers(0, 80)))
def test_a_code_arrives_as_it_is_in_whatever_pieces(text: str, cuts: list[int]) -> None:
    sent = message(f"print(ascii({text!r}))")
    edges = [0, *sorted(cuts), len(sent)]
    pieces = [sent[start:end] for start, end in itertools.pairwise(edges)]
    assert told(pieces) == Ran(ascii(text) + "\n", "", 0)


@pytest.mark.parametrize(
    "code", ["a\0b", "\0", "\ud800", "print('\udcff')", "#" * (LONGEST + 1), "ä" * (LONGEST // 2 + 1)]
)
def test_what_no_interpreter_could_be_given_is_refused(code: str) -> None:
    with pytest.raises(ValueError, match=r"NUL|surrogates|at most"):
        message(code)
    with pytest.raises((ValueError, OSError)):
        subprocess.run([sys.executable, "-c", code.encode()], check=False)


def test_bytes_that_are_no_text_are_refused_as_an_argument_of_them_is() -> None:
    code = b"print('\xff')"
    sent = len(code).to_bytes(4, "big") + code
    assert told([sent]) == cold(os.fsdecode(code))


@pytest.mark.parametrize("kept", [0, 1, 3, 4, 5, 20, -1])
def test_of_a_message_that_is_not_whole_nothing_is_run(kept: int, tmp_path: Path) -> None:
    there = tmp_path / "there"
    sent = message(f"open({str(there)!r}, 'w')\n#")
    assert left(sent[:kept]) == SILENT
    assert not there.exists()
    assert left(sent) == ("", "", 0)
    assert there.exists()


def test_a_length_that_no_message_has_ends_it() -> None:
    assert left((LONGEST + 1).to_bytes(4, "big") + b"#" * 100) == SILENT


def test_what_comes_behind_a_message_is_not_the_programs_input() -> None:
    assert told([message("print(repr(input()))") + b"more\n"]) == cold("print(repr(input()))")


def test_one_that_is_interrupted_while_it_waits_says_nothing() -> None:
    with waiting() as process:
        until_it_waits(process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS)
        assert (out.decode(), err.decode(), process.returncode) == SILENT


def test_it_waits_as_long_as_nothing_comes_and_starts_faster_than_one_that_did_not_wait() -> None:
    code = "print(1, flush=True)"

    def first_word(process: subprocess.Popen[bytes], since: float) -> float:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        return time.perf_counter() - since

    def slow() -> float:
        since = time.perf_counter()
        with waiting(boot=code) as process:
            return first_word(process, since)

    def fast() -> float:
        with waiting() as process:
            until_it_waits(process)
            since = time.perf_counter()
            feed(process, message(code))
            return first_word(process, since)

    times = [(fast(), slow()) for _ in range(9)]
    assert statistics.median(fast for fast, _ in times) < statistics.median(slow for _, slow in times) / 2


# --- what is different, as the module's text says -------------------------------------------------------------


def numbers(code: str) -> tuple[list[int], list[int]]:
    """What a program prints where it waited, and where not."""
    code = textwrap.dedent(code)
    both = warm(code), cold(code)
    assert [ran.code for ran in both] == [0, 0], both
    return [int(word) for word in both[0].stdout.split()], [int(word) for word in both[1].stdout.split()]


def test_the_stack_has_one_frame_more() -> None:
    here, there = numbers("import inspect; print(len(inspect.stack()))")
    assert here == [there[0] + 1]
    below = "import sys\nprint(sys._getframe(1).f_code.co_name, sys._getframe(1).f_globals is globals())"
    assert warm(below).stdout == "<module> True\n"
    assert "call stack is not deep enough" in cold(below).stderr


def test_a_warning_about_what_is_below_the_program_names_that_frame() -> None:
    code = "import warnings; warnings.warn('x', stacklevel=2)"
    assert re.fullmatch(r"sys:1: UserWarning: x\n|<sys>:0: UserWarning: x\n", cold(code).stderr)
    assert re.fullmatch(r"<string>:\d+: UserWarning: x\n", warm(code).stderr)


def test_a_profiler_that_is_left_on_sees_one_return_more() -> None:
    code = "import sys\nsys.setprofile(lambda f, event, _: event == 'return' and print(1))"
    here, there = numbers(code)
    assert len(here) == len(there) + 1


def test_the_limit_of_recursion_is_one_more() -> None:
    here, there = numbers("import sys; print(sys.getrecursionlimit())")
    assert here == [there[0] + 1]


DEEP = """
    import sys, threading
    def f(n):
        try:
            return f(n + 1)
        except RecursionError:
            return n
"""


def test_under_a_limit_of_its_own_a_program_gets_one_call_less_deep() -> None:
    here, there = numbers(DEEP + "    sys.setrecursionlimit(500)\n    print(f(0))")
    assert here == [there[0] - 1]


def test_a_thread_gets_one_call_deeper() -> None:
    here, there = numbers(DEEP + "    t = threading.Thread(target=lambda: print(f(0)))\n    t.start(); t.join()")
    assert here == [there[0] + 1]


def test_the_types_of_syntax_trees_are_there_already() -> None:
    code = "print(sorted(t.__name__ for t in object.__subclasses__()))"
    assert warm(code).stdout.replace("'AST', ", "", 1) == cold(code).stdout
    assert warm(code).stdout != cold(code).stdout


def test_the_kernel_shows_what_it_was_started_with() -> None:
    code = "print(open('/proc/self/cmdline').read())"
    assert BOOT in warm(code).stdout
    assert code in cold(code).stdout
