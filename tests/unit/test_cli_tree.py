"""The command line as a whole: every noun and verb is there, programs can read all of it, and wrong words are told
what was meant."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fumehood.cli import completing, exits
from fumehood.cli.main import main
from fumehood.cli.parts import PARTS, loaded
from fumehood.sdk.context_store import ContextStore
from tests.unit.api_server import Answer, ApiServer, api_server

WITHOUT_JSON = {
    "dev": "goes on until it is stopped; programs read its --ready-file",
}
"""Commands that have nothing to tell a program, and why."""

PROMISED = {
    "dev", "run", "workflow apply", "workflow run", "workflow watch", "runs ls", "runs show", "runs logs", "runs stop",
    "runs retry", "runs receipt", "worker create", "worker ls", "worker drain", "session new", "session ls",
    "session exec", "session shell", "session cp", "session rm", "job submit", "verify", "doctor", "login", "logout",
    "context ls", "context use", "context show", "context rm",
}  # fmt: skip
"""What people are told that there is."""


def tree(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
        return
    if getattr(command, "invoke_without_command", False):
        yield name, command
    for word, part in inner.items():
        yield from tree(f"{name} {word}", part)


def commands() -> dict[str, Any]:
    return {name: command for part in PARTS for name, command in tree(part, loaded(part))}


def options(command: Any) -> set[str]:
    return {word for param in command.params for word in param.opts}


def test_every_command_speaks_to_programs_or_is_excused() -> None:
    silent = {name for name, command in commands().items() if "--json" not in options(command)}
    assert silent == set(WITHOUT_JSON)


def test_what_was_promised_is_there() -> None:
    assert PROMISED - commands().keys() == set()
    assert "--attack" in options(loaded("doctor"))


def test_whoever_asks_a_server_can_name_a_context() -> None:
    asking = {name: options(command) for name, command in commands().items() if "--key-file" in options(command)}
    assert len(asking) > 50
    assert [name for name, known in asking.items() if "--context" not in known] == []


# --- wrong words -------------------------------------------------------------------------------------------

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["fumehood", *words])
        monkeypatch.setattr(sys, "stdin", io.StringIO(""))
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        printed = capsys.readouterr()
        return code if isinstance(code, int) else 0, printed.err if printed.err.strip() else printed.out

    return run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rnus"], "Did you mean 'runs'?"),
        (["runs", "lss"], "Did you mean 'ls'?"),
        (["context", "list"], "No such command"),
        (["runs", "ls", "--jsn"], "--json"),
        (["runs", "show"], "Missing argument 'RUN'"),
        (["runs", "ls", "--limit", "x"], "should be a valid integer"),
        (["--sever"], "No such option"),
        (["runs", "ls", "\x1b[31m"], "unexpected extra argument"),
    ],
)
def test_a_wrong_word_is_told_in_two_lines(told: Command, words: list[str], said: str) -> None:
    code, text = told(*words)
    assert code == exits.USAGE
    lines = text.splitlines()
    assert lines[0].startswith("fumehood: ")
    assert said in lines[0]
    assert lines[1].startswith("try `fumehood")
    assert lines[1].endswith(" --help`")
    assert (len(lines), "\x1b" in text) == (2, False)


@pytest.mark.parametrize("words", [["session", "exec", "lab", "ls", "-la"], ["run", "an/image", "ls", "-la"]])
def test_an_option_of_the_command_to_run_goes_behind_two_dashes(told: Command, words: list[str]) -> None:
    code, text = told(*words)
    assert code == exits.USAGE
    assert text.splitlines()[1].startswith("put -- before the command to run and its options, or try `fumehood ")


def test_an_unknown_option_before_two_dashes_is_only_unknown(told: Command) -> None:
    _, text = told("run", "an/image", "--frob", "--", "ls")
    assert text.splitlines()[1].startswith("try `fumehood ")


def test_a_group_without_a_word_shows_its_help(told: Command) -> None:
    code, text = told("context")
    assert code == exits.USAGE
    assert "Make a context the current one." in text


# --- completion --------------------------------------------------------------------------------------------


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in list(os.environ):
        if name.startswith(("FUMEHOOD_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with api_server() as made:
        made.answers |= {
            "GET /v1/workflows": Answer({"workflows": [{"name": "review"}, {"name": "release"}, {"name": "other"}]}),
            "GET /v1/runs": Answer({"runs": [{"run_id": "run-1"}, {"run_id": "run-2"}]}),
            "GET /v1/sandboxes": Answer({"sandboxes": [{"sandbox_id": "box-1"}, {"sandbox_id": "evil\x1b"}]}),
            "GET /v1/schedules": Answer({"schedules": [{"name": "nightly"}]}),
        }
        yield made


def completed(told_server: str | None, *words: str) -> list[str]:
    """What bash is offered for a line whose last word is being typed."""
    env = {**os.environ, "_FUMEHOOD_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(["fumehood", *words])}
    env |= {"COMP_CWORD": str(len(words))} | ({"FUMEHOOD_URL": told_server} if told_server is not None else {})
    code = "from fumehood.cli import completing; completing.SECONDS = 60; from fumehood.cli.main import main; main()"
    program = [sys.executable, "-c", code]  # patient: the machine may have much else to do
    done = subprocess.run(program, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["conte"], ["context"]),
        (["context", "u"], ["use"]),
        (["context", "use", "p"], ["prod"]),
        (["runs", "ls", "--context", ""], ["prod", "test"]),
        (["workflow", "run", "re"], ["review", "release"]),
        (["runs", "show", "run-"], ["run-1", "run-2"]),
        (["session", "exec", "b"], ["box-1"]),
        (["schedule", "show", ""], ["nightly"]),
    ],
    ids=" ".join,
)  # fmt: skip
def test_names_are_completed(home: Path, server: ApiServer, words: list[str], offered: list[str]) -> None:
    store = ContextStore(ring=lambda: None)
    store.log_in("test", "https://test.example", None)
    store.log_in("prod", "https://prod.example", None)
    assert completed(server.url, *words) == offered


def test_without_a_server_nothing_is_offered_and_nothing_is_said(home: Path) -> None:
    assert completed("http://127.0.0.1:1", "workflow", "run", "re") == []
    assert completed("no address", "workflow", "run", "re") == []


class _Line:
    """As much of a line that is being typed as completion looks at."""

    def __init__(self, **params: object) -> None:
        self.params = params


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completing, "SECONDS", 60.0)


@pytest.mark.usefixtures("patient")
def test_a_name_that_a_terminal_would_obey_is_not_offered(home: Path, server: ApiServer) -> None:
    assert completing.sessions(_Line(server=server.url), "") == ["box-1"]


def test_a_server_that_does_not_answer_is_not_waited_for(
    home: Path, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    answer = threading.Event()

    def late(_: object) -> Answer:
        answer.wait(120)
        return Answer({"runs": [{"run_id": "run-1"}]})

    server.answers["GET /v1/runs"] = late
    monkeypatch.setattr(completing, "SECONDS", 0.1)
    assert completing.runs(_Line(server=server.url), "") == []
    answer.set()


@pytest.mark.usefixtures("patient")
def test_the_key_of_a_context_goes_with_a_completion_to_its_server_alone(home: Path, server: ApiServer) -> None:
    ContextStore(ring=lambda: None).log_in("prod", server.url, "prod-key", in_file=True)
    assert completing.workflows(_Line(), "o") == ["other"]
    assert server.asked[-1].headers["authorization"] == "Bearer prod-key"
    with api_server() as other:
        completing.workflows(_Line(server=other.url), "")
        assert "authorization" not in other.asked[-1].headers


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how_to_ask(home: Path, shell: str) -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("fumehood")), "--show-completion", shell],
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, "_FUMEHOOD_COMPLETE" in done.stdout) == (0, True), done
