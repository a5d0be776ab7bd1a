"""`fumehood login`, `logout` and `context`: what is asked, what is kept, and that a key is never seen."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fumehood.cli.main import main
from fumehood.sdk import own_dev
from fumehood.sdk.context_store import ContextStore
from tests.unit.api_server import Answer, ApiServer, Asked, api_server, problem

KEY = "fhk_abc_secret"
CALLER = {"name": "abc/ci", "tenant": "acme", "scopes": ["runs:read", "runs:write"], "expires_at": None}
PATIENCE = 60.0


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Done]


def as_a_server_does(asked: Asked) -> Answer:
    if asked.headers.get("authorization") != f"Bearer {KEY}":
        return problem(401, "unauthenticated", "a bearer token is needed")
    return Answer(CALLER)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with api_server() as made:
        made.answers["GET /v1/caller"] = as_a_server_does
        made.answers["GET /v1/runs"] = Answer({"runs": [], "next": None})
        yield made


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in list(os.environ):
        if name.startswith(("FUMEHOOD_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    return tmp_path


@pytest.fixture
def fumehood(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*words: str, stdin: str = "") -> Done:
        monkeypatch.setattr(sys, "argv", ["fumehood", *words])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        code = ended.value.code
        done = Done(code if isinstance(code, int) else 0, printed.out, printed.err)
        assert KEY not in done.out + done.err
        assert len(done.err.splitlines()) <= 3
        return done

    return run


def called(server: ApiServer) -> str:
    return re.sub(r"[^0-9.]+", "-", server.url.removeprefix("http://"))


# --- logging in --------------------------------------------------------------------------------------------


def test_what_is_kept_is_used_from_then_on(fumehood: Command, server: ApiServer, home: Path) -> None:
    done = fumehood("login", server.url, "--context", "prod", "--key-file", "-", stdin=f"{KEY}\n")
    assert done.code == 0, done
    assert done.out.splitlines() == [
        f"logged in to {server.url} as abc/ci of acme, which may runs:read runs:write",
        "context prod, key in a file that only you can read",
    ]
    for path in (home / ".config/fumehood").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert fumehood("runs", "ls").code == 0
    assert server.asked[-1].headers["authorization"] == f"Bearer {KEY}"
    assert fumehood("logout").code == 0
    assert [path for path in (home / ".config/fumehood").rglob("*") if path.is_file()] == [
        home / ".config/fumehood/contexts.json"
    ]


def test_it_tells_programs_the_same(fumehood: Command, server: ApiServer, home: Path) -> None:
    (home / "key").write_text(KEY)
    (home / "key").chmod(0o600)
    done = fumehood("login", server.url, "--key-file", str(home / "key"), "--json")
    assert done.json == {"context": called(server), "url": server.url, "key": "file", "caller": CALLER}
    again = fumehood("login", "--key-file", str(home / "key"), "--json")
    assert again.json == done.json
    (home / "key").chmod(0o644)
    refused = fumehood("login", server.url, "--key-file", str(home / "key"))
    assert (refused.code, "chmod 600" in refused.err) == (2, True)


def test_a_key_that_the_server_does_not_take_is_not_kept(fumehood: Command, server: ApiServer, home: Path) -> None:
    done = fumehood("login", server.url, "--key-file", "-", stdin="wrong\n")
    assert done.code == 1
    assert "rejected this key, and nothing was kept" in done.err
    assert "fumehood key create" in done.err
    assert not (home / ".config").exists()


def test_no_server_is_there(fumehood: Command, home: Path) -> None:
    done = fumehood("login", "http://127.0.0.1:1", "--key-file", "-", stdin=KEY)
    assert (done.code, "no server answers" in done.err) == (3, True)
    assert not (home / ".config").exists()


def test_a_server_that_does_not_tell_whose_key_it_is(fumehood: Command, server: ApiServer) -> None:
    del server.answers["GET /v1/caller"]
    done = fumehood("login", server.url, "--key-file", "-", stdin=KEY)
    assert (done.code, "does not tell as whom" in done.out) == (0, True)


def test_a_server_that_asks_for_no_key(fumehood: Command, server: ApiServer) -> None:
    done = fumehood("login", server.url, "--no-key")
    assert (done.code, "leave --no-key out" in done.err) == (1, True)
    server.answers["GET /v1/caller"] = Answer({**CALLER, "name": "admin", "scopes": ["*"]})
    done = fumehood("login", server.url, "--no-key")
    assert done.code == 0
    assert "as admin of acme, which may do everything" in done.out
    assert "without a key" in done.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fumehood.example"], "did you mean https://fumehood.example?"),
        (["127.0.0.1:8080"], "did you mean http://127.0.0.1:8080?"),
        (["localhost"], "did you mean http://localhost?"),
        (["https://user:pw@x"], "write it like https://HOST:PORT"),
        (["https://x", "--context", "a b"], "at most 64 letters"),
        (["https://x", "--key-file", "-"], "no key"),
        (["https://x"], "no terminal to ask for the key"),
        (["https://x", "--no-key", "--key-file", "f"], "give one of them"),
        (["http://x.example", "--key-file", "-"], "no key"),
    ],
)
def test_what_cannot_be_meant_is_told(fumehood: Command, words: list[str], said: str) -> None:
    done = fumehood("login", *words, stdin="two words\n")
    assert (done.code, said in done.err) == (2, True), done
    assert "pw" not in done.err


def test_a_key_is_not_tried_in_the_clear(fumehood: Command) -> None:
    done = fumehood("login", "http://x.example", "--key-file", "-", stdin=KEY)
    assert (done.code, "use https://" in done.err) == (2, True)


def test_ones_own_dev_needs_no_key(fumehood: Command, server: ApiServer, home: Path) -> None:
    state = home / ".local/state/fumehood"
    state.mkdir(parents=True)
    for name, text in ((own_dev.WORD, json.dumps({"url": server.url, "pid": os.getpid()})), ("api.token", KEY)):
        (state / name).write_text(text)
        (state / name).chmod(0o600)
    assert fumehood("login", "--context", "mine").code == 0
    assert ContextStore().read().current == "mine"


def test_what_counts_more_is_told(fumehood: Command, server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUMEHOOD_URL", server.url)
    done = fumehood("login", "--key-file", "-", stdin=KEY)
    assert done.code == 0
    assert done.err == "fumehood: FUMEHOOD_URL is set, and counts more than the current context\n"


def test_two_servers_of_one_host_have_two_names(fumehood: Command, server: ApiServer) -> None:
    server.answers["GET /a/v1/caller"] = as_a_server_does
    first = fumehood("login", server.url, "--key-file", "-", "--json", stdin=KEY).json["context"]
    second = fumehood("login", f"{server.url}/a", "--key-file", "-", "--json", stdin=KEY).json["context"]
    again = fumehood("login", server.url, "--key-file", "-", "--json", stdin=KEY).json["context"]
    assert (first, second, again) == (called(server), f"{called(server)}-2", called(server))


def typed(words: list[str], text: str) -> tuple[int, str]:
    """A command at a terminal of its own, answered once it asks."""
    terminal, side = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "fumehood", *words], stdin=side, stdout=side, stderr=side, start_new_session=True
    )
    os.close(side)
    seen, answered, end = b"", False, time.monotonic() + PATIENCE
    try:
        while time.monotonic() < end:
            if not select.select([terminal], [], [], 0.2)[0]:
                continue
            try:
                some = os.read(terminal, 4096)
            except OSError:  # the other side is closed
                break
            seen += some
            if not answered and b"Key for" in seen:
                os.write(terminal, f"{text}\n".encode())
                answered = True
        return process.wait(PATIENCE), seen.decode()
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def test_at_a_terminal_it_asks_without_showing(server: ApiServer) -> None:
    code, seen = typed(["login", server.url, "--context", "prod"], KEY)
    assert code == 0, seen
    assert f"Key for {server.url}:" in seen
    assert KEY not in seen
    assert ContextStore().read().named("prod").url == server.url
    assert [asked.path for asked in server.asked] == ["/v1/caller"]


# --- contexts ----------------------------------------------------------------------------------------------


@pytest.fixture
def two(server: ApiServer) -> ContextStore:
    store = ContextStore(ring=lambda: None)
    store.log_in("test", "https://test.example", "test-key", in_file=True)
    store.log_in("prod", server.url, KEY, in_file=True)
    return store


def test_contexts_are_listed_and_chosen(fumehood: Command, two: ContextStore, server: ApiServer) -> None:
    lines = [line.split() for line in fumehood("context", "ls").out.splitlines()]
    assert lines == [
        ["NAME", "SERVER", "KEY"], ["*", "prod", server.url, "file"], ["test", "https://test.example", "file"],
    ]  # fmt: skip
    assert fumehood("context", "use", "test").out == "test: https://test.example\n"
    assert fumehood("context", "ls", "--json").json == {
        "current": "test",
        "contexts": [
            {"name": "prod", "url": server.url, "key": "file", "insecure_http": False, "current": False},
            {"name": "test", "url": "https://test.example", "key": "file", "insecure_http": False, "current": True},
        ],
    }
    assert fumehood("context", "use", "--none", "--json").json == {"current": None}
    assert fumehood("context", "use", "prd").code == 2
    assert fumehood("context", "use").code == 2
    assert fumehood("context", "use", "prod", "--none").code == 2


def test_a_context_is_shown_without_its_key(fumehood: Command, two: ContextStore, server: ApiServer) -> None:
    shown = fumehood("context", "show").out
    assert "prod" in shown
    assert str(two.path) in shown
    assert server.asked == []
    asked = fumehood("context", "show", "prod", "--ask", "--json").json
    assert asked["caller"] == CALLER
    assert "runs:read runs:write" in fumehood("context", "show", "--ask").out


def test_an_option_and_a_variable_choose_for_one_command(
    fumehood: Command, two: ContextStore, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.use("test")
    assert fumehood("runs", "ls", "--context", "prod").code == 0
    assert server.asked[-1].headers["authorization"] == f"Bearer {KEY}"
    monkeypatch.setenv("FUMEHOOD_CONTEXT", "prod")
    assert fumehood("runs", "ls").code == 0
    assert len(server.asked) == 2
    assert "*  prod" in fumehood("context", "ls").out
    assert "counts more" in fumehood("context", "use", "test").err


def test_contexts_are_forgotten(fumehood: Command, two: ContextStore, home: Path) -> None:
    assert fumehood("context", "rm", "prod", "prd").code == 2
    assert len(two.read().entries) == 2
    assert fumehood("context", "rm", "prod", "test", "--json").json == {
        "forgotten": ["prod", "test"], "keys_left_in_keyring": [],
    }  # fmt: skip
    assert list((home / ".config/fumehood/keys").iterdir()) == []
    done = fumehood("logout")
    assert (done.code, "no context is the current one" in done.err) == (2, True)


def test_a_key_that_stays_in_the_keyring_is_no_success(
    fumehood: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.unit.test_contexts import MemoryRing

    ring = MemoryRing()
    ContextStore(ring=lambda: ring).log_in("prod", "https://prod.example", KEY)
    done = fumehood("logout", "prod", "--json")
    assert done.code == 1
    assert done.json == {"forgotten": ["prod"], "keys_left_in_keyring": ["prod"]}
    assert "could not be removed from the keyring" in done.err
