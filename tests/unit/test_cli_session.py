"""`fumehood session` without a worker: what it asks, what it prints of what comes, how it exits, and how it leaves the
terminal.

The commands here are played by the test; real ones are in `tests/e2e/test_session_shell.py`.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fumehood.cli import session_calls, session_pump, session_terminal
from fumehood.cli.client import Api
from fumehood.cli.exits import NoAnswerError, UnknownEndError
from fumehood.cli.main import main
from fumehood.cli.parts import loaded
from fumehood.cli.session_commands import SIGNALS
from fumehood.cli.session_files import There, is_name, placed
from fumehood.cli.session_view import end_of
from fumehood.control.http import sandboxes
from fumehood.wire.sandbox_api import (
    MAX_INPUT_BYTES,
    SANDBOXES_PATH,
    CreateSandboxRequest,
    FileInfo,
    RunCommandRequest,
    SandboxCommandStatus,
    SandboxCommandView,
    SandboxList,
    SandboxView,
    SignalCommandRequest,
)
from tests.conftest import TimeBounds
from tests.noise import Watch
from tests.unit.session_server import LISTED, SESSION, Command, Cut, SessionServer, info, session_server
from tests.waiting import wait_until

SECONDS = 30.0


@dataclass(frozen=True)
class Done:
    code: int
    out: bytes
    err: str


Cli = Callable[..., Done]


@pytest.fixture
def server() -> Iterator[SessionServer]:
    with session_server() as made:
        yield made


@pytest.fixture
def here(server: SessionServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in list(os.environ):
        if name.startswith("FUMEHOOD_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("FUMEHOOD_URL", server.url)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def fumehood(here: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Cli:
    def run(*words: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["fumehood", "session", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsysbinary.readouterr()
        code = ended.value.code
        return Done(code if isinstance(code, int) else 0, printed.out, printed.err.decode())

    return run


def bodies(server: SessionServer, method: str, path: str) -> list[Any]:
    return [json.loads(body) for verb, asked, body in server.asked if (verb, asked) == (method, path)]


# --- sessions ----------------------------------------------------------------------------------------------


def test_a_new_session_says_all_that_was_given(fumehood: Cli, server: SessionServer) -> None:
    words = "new base:1 --lease 10m --network dns-only --memory 1g --cpus 0.5 --env A=b=c --name mine"
    assert fumehood(*words.split()).out == b"s-1\n"
    (asked,) = bodies(server, "POST", "/v1/sandboxes")
    assert asked == {
        "sandbox_id": "mine", "image": "base:1", "lease_seconds": 600, "network": "dns-only", "memory_mib": 1024,
        "cpu_millis": 500, "env": {"A": "b=c"},
    }  # fmt: skip
    CreateSandboxRequest.model_validate(asked)


def test_a_session_whose_answer_was_lost_is_asked_for_by_the_same_name(
    fumehood: Cli, server: SessionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fumehood.cli.client.BACK_OFF_SECONDS", 0.0)
    lost = iter([True])

    def faults(when: str, method: str, path: str) -> int | None:
        if when == "after" and next(lost, False):
            raise Cut
        return None

    server.faults = faults
    assert fumehood("new").code == 0
    first, second = bodies(server, "POST", "/v1/sandboxes")
    assert first == second
    assert first["sandbox_id"].startswith("s-")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ls", "s-1      base:1"),
        ("show s-1", "running"),
        ("ps s-1", "exited 3  2026-01-02"),
        ("extend s-1 5m", "s-1 lives until 2126-01-02"),
        ("rm s-1 s-1", "s-1\ns-1\n"),
        ("exec s-1 -d -- sleep 1", "c-2"),
        ("logs s-1 c-1", "hello\n"),
        ("attach s-1 c-1", "hello\n"),
    ],
)
def test_what_a_command_tells_people_and_programs(
    fumehood: Cli, server: SessionServer, words: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    ended = server.add(command=["make", "all"])
    ended.print(b"hello\n")
    ended.ends(exit_code=3, ended_at="2026-01-02T12:00:05.000Z")
    done = fumehood(*words.split())
    assert said.encode() in done.out, done
    assert done.code == (3 if words.startswith("attach") else 0)
    done = fumehood(*words.split()[:2], "--json", *words.split()[2:])
    if not words.startswith("attach"):
        assert json.loads(done.out) is not None


def test_every_command_takes_the_same_options() -> None:
    for command in loaded("session").commands.values():
        assert {"server", "key_file", "as_json"} <= {param.name for param in command.params}, command.name


@pytest.mark.parametrize(
    ("argv", "hint"), [(["ls -la | wc"], "; `session exec --shell` gives it to the shell"), (["nosuch"], "")]
)
def test_a_command_line_in_place_of_a_program_is_told_about_the_shell(
    fumehood: Cli, server: SessionServer, argv: list[str], hint: str
) -> None:
    server.add(command=argv).ends(status="not_started", detail="no such file (exec)")
    done = fumehood("attach", "s-1", "c-1")
    assert done.err.endswith(f"c-1 did not start: no such file (exec){hint}\n")


def answering_posts(status: int | None) -> Callable[[str, str, str], int | None]:
    """With this status; None: the connection breaks."""

    def faults(when: str, method: str, path: str) -> int | None:
        if method == "POST" and status is None:
            raise Cut
        return status if method == "POST" else None

    return faults


@pytest.mark.parametrize("status", [None, 500, 504])
def test_a_command_whose_request_got_no_answer_may_run(
    fumehood: Cli, server: SessionServer, monkeypatch: pytest.MonkeyPatch, status: int | None
) -> None:
    monkeypatch.setattr("fumehood.cli.client.BACK_OFF_SECONDS", 0.0)

    server.faults = answering_posts(status)
    done = fumehood("exec", "s-1", "-n", "--", "true")
    assert (done.code, "`fumehood session ps s-1` shows whether it runs" in done.err) == (122, True), done.err


@pytest.mark.parametrize("status", [302, 403])
def test_a_command_whose_output_a_proxy_withholds_is_not_ended_by_that(
    fumehood: Cli, server: SessionServer, status: int
) -> None:
    server.faults = lambda when, method, path: status if path.endswith("/output") else None
    done = fumehood("exec", "s-1", "-n", "--", "true")
    assert (done.code, "c-1 was started, but its state could not be read" in done.err) == (122, True), done.err


def test_a_command_in_the_background_is_named_although_nothing_more_can_be_asked(
    fumehood: Cli, server: SessionServer
) -> None:
    server.faults = lambda when, method, path: 403 if method == "GET" else None
    done = fumehood("exec", "s-1", "-d", "--json", "--", "true")
    assert (done.code, json.loads(done.out)["command_id"]) == (0, "c-1"), done.err


def test_a_terminal_whose_command_cannot_be_asked_any_more_says_how_to_come_back() -> None:
    with closing(Api("http://127.0.0.1:1", None)) as api:
        command = session_calls.Command(session_calls.Session(api, "s-1"), "c-1")
        with pytest.raises(UnknownEndError, match="no answer; `fumehood session attach s-1 c-1` reconnects if"):
            session_terminal.told(session_terminal.Faulty(NoAnswerError("no answer")), command)


@pytest.mark.parametrize(("status", "code"), [(500, 1), (None, 3)])
def test_a_new_session_that_may_have_been_made_is_named(
    fumehood: Cli, server: SessionServer, monkeypatch: pytest.MonkeyPatch, status: int | None, code: int
) -> None:
    monkeypatch.setattr("fumehood.cli.client.BACK_OFF_SECONDS", 0.0)
    server.faults = answering_posts(status)
    done = fumehood("new", "base:1")
    names = {asked["sandbox_id"] for asked in bodies(server, "POST", "/v1/sandboxes")}
    assert (done.code, f"; if it was made, it is session {names.pop()}\n" in done.err, names) == (code, True, set())


def test_a_session_that_is_not_there_runs_nothing_although_the_list_of_sessions_cannot_be_read(
    fumehood: Cli, server: SessionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fumehood.cli.client.BACK_OFF_SECONDS", 0.0)
    server.faults = lambda when, method, path: 404 if method == "POST" else 502
    assert fumehood("exec", "s-1", "-n", "--", "true").code == 1


def test_a_known_end_is_told_although_its_session_is_gone(fumehood: Cli, server: SessionServer) -> None:
    server.on_start = lambda command: command.ends(status="oom")
    server.faults = lambda when, method, path: 404 if path.endswith("/commands/c-1") else None
    done = fumehood("exec", "s-1", "-n", "--json", "--", "hog")
    assert (done.code, json.loads(done.out)["status"]) == (137, "oom"), done.err


def test_a_signal_goes_to_what_runs_and_to_nothing_else(fumehood: Cli, server: SessionServer) -> None:
    running = server.add(command=["sleep", "60"])
    done = fumehood("kill", "s-1", "c-1", "-s", "sigusr1")
    assert (done.code, b"SIGUSR1 was sent to c-1" in done.out) == (0, True)
    running.ends(exit_code=3)
    late = fumehood("kill", "s-1", "c-1")
    assert (late.code, "c-1 has ended (exited)" in late.err) == (2, True), late


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("show s-2", "no such session: s-2; did you mean s-1?"),
        ("exec quite-another -- true", "no such session: quite-another; its lease may have expired, it may"),
        ("cp x.txt s-2:/tmp/", "no such session: s-2; did you mean s-1?"),
        ("logs s-1 c-7", "no such command: c-7; did you mean c-1?; `fumehood session ps s-1` shows them"),
        ("rm s-2 s-1", "no such session: s-2"),
    ],
)
def test_what_is_not_there_is_said_with_what_was_meant(
    fumehood: Cli, server: SessionServer, here: Path, words: str, said: str
) -> None:
    server.add()
    (here / "x.txt").write_text("x")
    done = fumehood(*words.split())
    assert (done.code, said in done.err) == (1, True), done
    assert done.out == (b"s-1\n" if words.startswith("rm") else b"")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["exec", "s-1"], "say behind -- what to run"),
        (["exec", "s-1", "--shell", "--", "a", "b"], "--shell takes one text"),
        (["exec", "s-1", "-t", "-d", "--", "a"], "--tty is for somebody"),
        (["shell", "s-1"], "needs a terminal"),
        (["shell", "s-1", "--detach-keys", "bla"], "--detach-keys"),
        (["kill", "s-1", "c-1", "-s", "WINCH"], "--signal: there are HUP"),
        (["new", "--lease", "soon"], "--lease"),
        (["cp", "a", "b"], "SESSION:PATH"),
        (["cp", "s-1:a", "s-1:b"], "SESSION:PATH"),
        (["cp", "--max-size", "x", "s-1:a", "b"], "--max-size: write MiB"),
        (["new", "--cpus", "abc"], "--cpus: write cores"),
    ],
)
def test_a_wrong_word_is_one_line_and_asks_nothing(
    fumehood: Cli, server: SessionServer, words: list[str], said: str
) -> None:
    done = fumehood(*words)
    assert (done.code, said in done.err, len(done.err.splitlines())) == (2, True, 1), done
    assert server.asked == []


def test_what_is_played_here_is_what_a_server_says() -> None:
    """The server of these tests speaks as the real one does."""
    SandboxView.model_validate_json(json.dumps(SESSION))
    SandboxList.model_validate_json(json.dumps({"sandboxes": [LISTED], "next": None}))
    SandboxCommandView.model_validate_json(json.dumps(Command("c-1", {"command": "x"}).view()))
    FileInfo.model_validate_json(json.dumps(info("a/b", b"x")))
    assert (session_calls.SANDBOXES, session_pump.PIECE) == (SANDBOXES_PATH, MAX_INPUT_BYTES)
    assert session_calls.PAGE <= sandboxes.MOST


@pytest.mark.parametrize("name", SIGNALS)
def test_signals_are_those_that_a_server_takes(name: str) -> None:
    assert SignalCommandRequest.model_validate({"signal": f"SIG{name}"}).number == signal.Signals[f"SIG{name}"]


# --- exec --------------------------------------------------------------------------------------------------


def test_both_streams_come_as_they_are_and_the_exit_code_is_ours(fumehood: Cli, server: SessionServer) -> None:
    def play(command: Command) -> None:
        command.print(b"\x00\xffout")
        command.print(b"err\n", "stderr")
        command.ends(exit_code=42)

    server.on_start = play
    done = fumehood("exec", "s-1", "--cwd", "/tmp", "-e", "A=b", "--timeout", "3s", "--", "prog", "-x", "a b")
    assert (done.code, done.out, done.err) == (42, b"\x00\xffout", "err\n")
    (asked,) = bodies(server, "POST", "/v1/sandboxes/s-1/commands")
    RunCommandRequest.model_validate(asked)
    assert re.fullmatch("cmd-[0-9a-f]{32}", asked.pop("command_id"))
    assert asked == {
        "command": ["prog", "-x", "a b"], "stdin": True, "cwd": "/tmp", "env": {"A": "b"}, "timeout_ms": 3000,
        "background": True,
    }  # fmt: skip


def test_an_answer_that_got_lost_does_not_run_a_command_twice(fumehood: Cli, server: SessionServer) -> None:
    lost = iter([True])

    def faults(when: str, method: str, path: str) -> int | None:
        if (when, method, path) == ("after", "POST", "/v1/sandboxes/s-1/commands") and next(lost, False):
            raise Cut
        return None

    server.faults = faults
    server.on_start = lambda command: command.ends(exit_code=7)
    assert fumehood("exec", "s-1", "-n", "--", "x").code == 7
    first, second = bodies(server, "POST", "/v1/sandboxes/s-1/commands")
    assert first == second
    assert len(server.commands) == 1


def test_a_text_for_the_shell_is_one_text(fumehood: Cli, server: SessionServer) -> None:
    server.on_start = lambda command: command.ends()
    assert fumehood("exec", "s-1", "-n", "--shell", "--", "echo $HOME | wc").code == 0
    (asked,) = bodies(server, "POST", "/v1/sandboxes/s-1/commands")
    del asked["command_id"]
    assert asked == {"command": "echo $HOME | wc", "stdin": False, "background": True}


def test_with_json_the_output_is_in_the_document(fumehood: Cli, server: SessionServer) -> None:
    def play(command: Command) -> None:
        command.print(b"x")
        command.ends(exit_code=5, stdout="x", stderr="")

    server.on_start = play
    done = fumehood("exec", "s-1", "--json", "--", "x")
    assert done.code == 5
    assert json.loads(done.out)["stdout"] == "x"


@pytest.mark.parametrize(
    ("status", "more", "code", "said"),
    [
        ("signaled", {"signal": 9}, 137, "SIGKILL"),
        ("signaled", {"signal": 40}, 168, "signal 40"),
        ("timed_out", {}, 124, "--timeout"),
        ("oom", {}, 137, "--memory"),
        ("not_started", {"detail": "no such\x1b program"}, 125, "did not start: no such  program"),
        ("sandbox_lost", {}, 122, "was lost"),
        ("melted", {}, 122, "ended as melted"),
    ],
)
def test_every_end_has_a_code_and_a_line(
    fumehood: Cli, server: SessionServer, status: str, more: dict[str, Any], code: int, said: str
) -> None:
    server.on_start = lambda command: command.ends(status, **more)
    done = fumehood("exec", "s-1", "--", "x")
    assert (done.code, said in done.err) == (code, True), done


def test_every_status_of_the_api_is_known() -> None:
    for status in set(SandboxCommandStatus) - {SandboxCommandStatus.RUNNING}:
        end = end_of({"command_id": "c", "status": status.value, "exit_code": 1, "signal": 1})
        assert "ended as" not in end.line


def test_a_session_that_goes_away_meanwhile_is_no_success(fumehood: Cli, server: SessionServer) -> None:
    def play(command: Command) -> None:
        command.print(b"x" * 10)
        server.cut_every = 10
        threading.Timer(0.0, server.commands.clear).start()

    server.on_start = play
    done = fumehood("exec", "s-1", "--", "x")
    assert (done.code, "its state could not be read" in done.err) == (122, True), done


# --- files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("s-1:/tmp/a", There("s-1", "/tmp/a")),
        ("s-1:", There("s-1", ".")),
        ("s-1:a:b", There("s-1", "a:b")),
        ("./a:b", "./a:b"),
        ("/x/a:b", "/x/a:b"),
        (":a", ":a"),
        ("-", "-"),
    ],
)
def test_what_is_here_and_what_is_there(text: str, found: There | str) -> None:
    assert placed(text) == found


def test_a_file_goes_there_and_comes_back(fumehood: Cli, server: SessionServer, here: Path) -> None:
    content = os.urandom(3_000_000)
    (here / "tool").write_bytes(content)
    (here / "tool").chmod(0o755)
    server.files["/tmp"] = {"kind": "folder"}
    assert fumehood("cp", "tool", "s-1:/tmp").code == 0
    assert server.files["/tmp/tool"] == content
    assert server.asked[-1][1].endswith("path=%2Ftmp%2Ftool&mode=0755")
    assert fumehood("cp", "s-1:/tmp/tool", "back").code == 0
    assert (here / "back").read_bytes() == content
    assert (here / "back").stat().st_mode & 0o777 == 0o666 & ~umask()
    assert json.loads(fumehood("cp", "--json", "s-1:/tmp/tool", ".").out) == {
        "files": 1, "bytes": len(content), "skipped": [],
    }  # fmt: skip
    assert fumehood("cp", "s-1:/tmp/tool", "-").out == content


def umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found


def test_stdin_becomes_a_file(fumehood: Cli, server: SessionServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"piped")))
    assert fumehood("cp", "-", "s-1:notes").code == 0
    assert server.files["notes"] == b"piped"


def test_a_folder_goes_there_without_what_is_no_file(fumehood: Cli, server: SessionServer, here: Path) -> None:
    (here / "src/deep").mkdir(parents=True)
    (here / "src/empty").mkdir()
    (here / "src/a").write_text("a")
    (here / "src/deep/b").write_text("b")
    (here / "src/link").symlink_to("/etc/passwd")
    (here / "src/\udcff").write_text("a name that is no text")
    assert (fumehood("cp", "src", "s-1:dst").code, server.files) == (2, {})
    done = fumehood("cp", "-r", "src", "s-1:dst")
    assert done.code == 0
    assert server.files == {"dst/a": b"a", "dst/deep/b": b"b", "dst/empty": {"kind": "folder"}}
    assert "left out src/link" in done.err
    assert "its name is no UTF-8" in done.err


def test_a_folder_from_there_cannot_reach_out(fumehood: Cli, server: SessionServer, here: Path) -> None:
    """Names, links and devices of a sandbox that would write elsewhere."""
    (here / "victim").write_text("mine")
    server.files |= {
        "out": {"kind": "folder"},
        "out/good": b"good",
        "out/x\x1b[31m": b"painted",
        "out/e1": {"kind": "file", "name": "../victim"},
        "out/e2": {"kind": "folder", "name": ".."},
        "out/e3": {"kind": "file", "name": "/etc/passwd"},
        "out/e4": {"kind": "link", "name": "link\x1b]0;title"},
        "out/e5": {"kind": "other", "name": "fifo"},
        "out/sub": {"kind": "folder"},
        "out/sub/deep": b"deep",
    }
    done = fumehood("cp", "-r", "s-1:out", "copy")
    assert done.code == 0, done
    assert (here / "victim").read_text() == "mine"
    assert {str(one.relative_to(here / "copy")) for one in (here / "copy").rglob("*")} == {
        "good", "x\x1b[31m", "sub", "sub/deep",
    }  # fmt: skip
    assert "\x1b" not in done.err
    assert done.err.count("left out") == 5
    assert sorted(one.name for one in here.iterdir()) == ["copy", "victim"]
    assert "is there already" in fumehood("cp", "-r", "s-1:out", "copy/sub/deep").err


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a\0b", "\udcff", None, 3])
def test_a_name_that_leads_elsewhere_is_none(name: object) -> None:
    assert not is_name(name)


def test_a_file_that_was_cut_off_leaves_what_was_there(
    fumehood: Cli, server: SessionServer, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "old").write_text("old")
    server.files["big"] = b"x" * 1000

    def faults(when: str, method: str, path: str) -> int | None:
        if path.endswith("/content") and when == "after":
            raise Cut
        return None

    server.faults = faults
    done = fumehood("cp", "s-1:big", "old")
    assert done.code == 3
    assert (here / "old").read_text() == "old"
    assert [one.name for one in here.iterdir()] == ["old"]


def test_a_copy_that_was_cut_off_begins_again(fumehood: Cli, server: SessionServer, here: Path) -> None:
    (here / "there").write_bytes(b"x" * 100_000)
    lost = iter([True, False, True, False])

    def faults(when: str, method: str, path: str) -> int | None:
        if path.endswith("/content") and when == "after" and next(lost):
            raise Cut
        return None

    server.faults = faults
    assert json.loads(fumehood("cp", "--json", "there", "s-1:f").out)["bytes"] == 100_000
    assert json.loads(fumehood("cp", "--json", "s-1:f", "back").out) == {"files": 1, "bytes": 100_000, "skipped": []}
    assert (here / "back").read_bytes() == (here / "there").read_bytes()


def test_a_file_without_an_end_is_not_taken_whole(fumehood: Cli, server: SessionServer, here: Path) -> None:
    server.files["big"] = b"x" * (1024 * 1024 + 1)
    done = fumehood("cp", "--max-size", "1", "s-1:big", "here")
    assert (done.code, "--max-size" in done.err) == (1, True)
    assert list(here.iterdir()) == []


def test_a_folder_that_is_not_there_is_named_and_no_draft(fumehood: Cli, server: SessionServer, here: Path) -> None:
    server.files["f"] = b"x"
    done = fumehood("cp", "s-1:f", "none/f")
    assert (done.code, done.err) == (1, f"fumehood: {here / 'none'} cannot be written: No such file or directory\n")


# --- a real terminal ---------------------------------------------------------------------------------------


class Screen:
    """A terminal with the command line in it."""

    def __init__(self, *words: str, rows: int = 24, columns: int = 80) -> None:
        self.near, far = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(far)
        self._far = far
        env = {**os.environ, "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            ["setsid", "--ctty", sys.executable, "-m", "fumehood", "session", *words],
            stdin=far, stdout=far, stderr=far, env=env,
        )  # fmt: skip
        self.seen = bytearray()

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.near, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self.near, keys)

    def until(self, wanted: bytes) -> None:
        self._read_until(lambda: wanted in self.seen)

    def _read_until(self, holds: Callable[[], bool]) -> None:
        def look() -> bool:
            self._read(0.05)
            return holds()

        wait_until(look, what=lambda: self.seen[-2000:], every=0)

    def _read(self, seconds: float) -> None:
        if select.select([self.near], [], [], seconds)[0]:
            self.seen += os.read(self.near, 1 << 20)

    def code(self) -> int:
        self._read_until(lambda: self.process.poll() is not None)
        self._read(0.1)
        return self.process.returncode

    def is_restored(self) -> bool:
        return termios.tcgetattr(self._far) == self.before

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.near)
        os.close(self._far)


@contextmanager
def terminal(server: SessionServer, *words: str) -> Iterator[tuple[Screen, Command]]:
    screen = Screen(*words)
    try:
        if words[0] == "attach":
            played = next(iter(server.commands.values()))
        else:
            assert server.started.acquire(timeout=SECONDS)
            played = list(server.commands.values())[-1]
        yield screen, played
    finally:
        screen.close()


def echoing(command: Command, data: bytes) -> None:
    command.print(b"<" + data + b">")


@pytest.fixture
def shell(server: SessionServer, here: Path) -> Iterator[tuple[Screen, Command]]:
    def play(command: Command) -> None:
        command.on_input = echoing
        command.print(b"\x1b[32mprompt\x1b[0m$ ")

    server.on_start = play
    with terminal(server, "shell", "s-1") as made:
        made[0].until(b"\x1b[32mprompt\x1b[0m$ ")
        yield made


def test_a_shell_is_asked_for_with_the_terminal_as_it_is(shell: tuple[Screen, Command]) -> None:
    screen, played = shell
    assert played.asked["terminal"] == {"rows": 24, "columns": 80}
    assert played.asked["env"] == {"TERM": "xterm-256color"}
    assert played.asked["command"][:2] == ["sh", "-c"]
    RunCommandRequest.model_validate(played.asked)
    played.ends(exit_code=9)
    assert screen.code() == 9
    assert screen.is_restored()


def test_every_key_goes_to_the_program(shell: tuple[Screen, Command]) -> None:
    screen, played = shell
    keys = b"\x03\x04\x1a\x1c\x13\x11\r\n\x7f\t\xc3\xa4"
    screen.type(keys)
    played.until(lambda command: bytes(command.stdin) == keys)
    screen.until(b"\xc3\xa4>")
    screen.type(b"\x10")
    played.until(lambda command: bytes(command.stdin) == keys + b"\x10")


def test_a_new_size_is_told(shell: tuple[Screen, Command]) -> None:
    screen, played = shell
    screen.resize(50, 132)
    played.until(lambda command: (50, 132) in command.sizes)


def test_the_detach_keys_leave_it_running(shell: tuple[Screen, Command]) -> None:
    screen, played = shell
    played.print(b"\x1b[?1049h\x1b[?25l full screen")
    screen.until(b"full screen")
    screen.type(b"last words\x10\x11never typed")
    assert screen.code() == 0
    assert bytes(played.stdin) == b"last words"
    assert b"\r\nfumehood: left c-1" in screen.seen
    assert b"fumehood session attach s-1 c-1" in screen.seen
    assert b"\x1b[?25h\x1b[?1049l\x1b[0m" in screen.seen, "the other screen is left, and the cursor is back"
    assert screen.is_restored()


def test_who_comes_back_sees_what_was_there_and_types_on(server: SessionServer, here: Path) -> None:
    played = server.add(command=["sh"], terminal={"rows": 24, "columns": 80})
    played.print(b"x" * 70_000 + b"\nlast line\n$ ")
    played.stdin += b"typed before"
    played.on_input = echoing
    with terminal(server, "attach", "s-1", "c-1") as (screen, _):
        screen.until(b"last line\r\n$ " if b"\r\n" in played.stdout else b"last line\n$ ")
        assert len(screen.seen) < 70_000
        played.until(lambda command: command.sizes == [(24, 79), (24, 80)])
        screen.type(b"more")
        played.until(lambda command: bytes(command.stdin) == b"typed beforemore")
        played.ends()
        assert screen.code() == 0


def test_a_line_that_breaks_and_a_server_that_restarts_are_not_seen(
    server: SessionServer, shell: tuple[Screen, Command]
) -> None:
    """Nothing lost, nothing twice, and no word about it."""
    screen, played = shell
    server.cut_every = 1000
    flaky = iter([True, False] * 1000)

    def faults(when: str, method: str, path: str) -> int | None:
        if path.endswith("/stdin") and next(flaky, False):
            raise Cut
        return None

    server.faults = faults
    wanted = b"".join(b"%05d|" % n for n in range(1500))
    played.on_input = lambda command, data: None
    played.print(wanted)
    for n in range(5):
        screen.type(b"%d" % n)
    played.until(lambda command: bytes(command.stdin) == b"01234")
    screen.until(b"01499|")
    assert wanted in screen.seen
    assert b"fumehood" not in screen.seen


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_the_terminal_as_it_was(shell: tuple[Screen, Command], number: int) -> None:
    screen, _ = shell
    assert not screen.is_restored()
    screen.process.send_signal(number)
    assert screen.code() == 128 + number
    assert screen.is_restored()
    assert b"session attach" in screen.seen


def test_a_terminal_that_is_closed_leaves_nobody_behind(shell: tuple[Screen, Command]) -> None:
    screen, played = shell
    os.close(screen.near)
    screen.near = os.open(os.devnull, os.O_RDWR)
    assert screen.process.wait(SECONDS) != 0
    assert played.end is None


def test_any_command_may_have_a_terminal(server: SessionServer, here: Path) -> None:
    server.on_start = lambda command: command.print(b"\x1b[1mdrawn")
    with terminal(server, "exec", "s-1", "-t", "--cwd", "/tmp", "--", "vim", "-u", "NONE") as (screen, played):
        screen.until(b"\x1b[1mdrawn")
        assert (played.asked["command"], played.asked["cwd"]) == (["vim", "-u", "NONE"], "/tmp")
        assert played.asked["terminal"] == {"rows": 24, "columns": 80}
        played.ends(exit_code=1)
        assert screen.code() == 1


def test_a_session_that_is_gone_leaves_the_terminal_as_it_was(
    server: SessionServer, shell: tuple[Screen, Command]
) -> None:
    screen, played = shell
    server.commands.clear()
    server.cut_every = 1  # the stream that is open breaks with the next byte
    played.print(b"x")
    assert screen.code() == 122
    assert screen.is_restored()
    assert b"there is no such thing" in screen.seen


def test_ten_megabytes_come_quickly_and_whole(shell: tuple[Screen, Command], time_bounds: TimeBounds) -> None:
    screen, played = shell
    wanted = b"".join(b"%08d\n" % n for n in range(10 * 1024 * 1024 // 9))
    played.print(wanted)
    began = Watch()
    played.print(b"<done>")
    screen._read_until(lambda: screen.seen.endswith(b"<done>"))
    assert wanted in screen.seen
    time_bounds.check(began.seconds, 15)


# --- Ctrl-C of a command without a terminal ----------------------------------------------------------------


def test_ctrl_c_goes_to_the_command_and_the_second_one_leaves_it(server: SessionServer, here: Path) -> None:
    server.on_start = lambda command: command.print(b"begun\n")
    with terminal(server, "exec", "s-1", "--", "sleep", "60") as (screen, played):
        screen.until(b"begun")
        screen.type(b"\x03")
        screen.until(b"passing SIGINT on to c-1")
        played.until(lambda command: command.signals == [signal.SIGINT])
        screen.type(b"\x03")
        assert screen.code() == 130
        assert played.signals == [signal.SIGINT]
        assert b"c-1 any more; it runs on" in screen.seen


def test_a_command_that_heeds_ctrl_c_ends_as_it_likes(server: SessionServer, here: Path) -> None:
    def play(command: Command) -> None:
        command.on_signal = lambda one, number: one.ends("signaled", signal=number)
        command.print(b"begun\n")

    server.on_start = play
    with terminal(server, "exec", "s-1", "--", "sleep", "60") as (screen, _):
        screen.until(b"begun")
        screen.type(b"\x03")
        assert screen.code() == 130


def test_orders_to_the_terminal_are_made_visible_without_one(server: SessionServer, here: Path) -> None:
    def play(command: Command) -> None:
        command.print("\x1b[31mrot ä\n".encode())
        command.ends()

    server.on_start = play
    with terminal(server, "exec", "s-1", "--", "x") as (screen, _):
        assert screen.code() == 0
        assert b"\x1b" not in screen.seen
        assert "␛[31mrot ä".encode() in screen.seen


def test_stdin_of_any_length_arrives(server: SessionServer, here: Path) -> None:
    content = os.urandom(5_000_000)

    def ending(command: Command) -> None:
        command.until(lambda one: one.eof)
        command.ends()

    def got(command: Command, data: bytes) -> None:
        if len(command.stdin) == len(content):
            threading.Thread(target=ending, args=(command,)).start()

    def play(command: Command) -> None:
        command.on_input = got

    server.on_start = play
    done = subprocess.run(
        [sys.executable, "-m", "fumehood", "session", "exec", "s-1", "--", "cat"],
        input=content, capture_output=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    (played,) = server.commands.values()
    assert bytes(played.stdin) == content
