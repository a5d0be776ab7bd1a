"""The SDK's sandbox over a server that loses requests, answers and connections: each byte once, each command once, and
no end that nobody knows of."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from fumehood import (
    Client,
    ClientClosedError,
    CommandFailedError,
    ImageUnavailableError,
    NoAnswerError,
    NotFoundError,
    PolicyDeniedError,
    Receipt,
    Sandbox,
    SandboxGoneError,
    UnauthenticatedError,
    UnexpectedAnswerError,
    UnreachableError,
    WaitTimeoutError,
)
from fumehood.sdk import asking
from tests.conftest import TimeBounds
from tests.unit.api_server import Answer, ApiServer, api_server, problem
from tests.unit.session_server import SESSION, Command, Cut, SessionServer, session_server

PATIENCE = 120.0


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[SessionServer]:
    monkeypatch.setattr(asking, "SHORTEST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("fumehood.sdk.blocking.transport.BACK_OFF_SECONDS", 0.01)
    with session_server() as made:
        yield made


@pytest.fixture
def sandbox(server: SessionServer) -> Iterator[Sandbox]:
    with Sandbox.connect("s-1", url=server.url) as found:
        yield found


def prints(*pieces: bytes, **end: Any) -> Any:
    def play(command: Command) -> None:
        for piece in pieces:
            command.print(piece)
        command.ends(**end)

    return play


def asked_for(server: SessionServer, method: str, path: str) -> int:
    return sum(one == method and where.split("?")[0].endswith(path) for one, where, _ in server.asked)


# --- output ------------------------------------------------------------------------------------------------


def test_what_it_printed_and_how_it_ended(server: SessionServer, sandbox: Sandbox) -> None:
    server.on_start = prints(b"hello\n", exit_code=3)
    result = sandbox.commands.run("greet", cwd="/x", env={"A": "b"}, timeout=1.5)
    assert (result.stdout, result.stderr, result.status, result.exit_code, result.ok) == (
        "hello\n", "", "exited", 3, False,
    )  # fmt: skip
    assert not result.stdout_truncated
    (command,) = server.commands.values()
    assert command.asked == {
        "command": "greet", "cwd": "/x", "env": {"A": "b"}, "timeout_ms": 1500, "stdin": False, "background": True,
    }  # fmt: skip
    with pytest.raises(CommandFailedError, match="it exited with 3") as failed:
        result.check()
    assert failed.value.result is result
    assert repr(result) == "CommandResult(status='exited', exit_code=3, signal=None, stdout='hello\\n', stderr='')"


def test_a_list_is_a_program_and_a_text_is_for_the_shell(server: SessionServer, sandbox: Sandbox) -> None:
    server.on_start = prints()
    sandbox.commands.run("a b")
    sandbox.commands.run(["a", "b c"])
    assert [one.asked["command"] for one in server.commands.values()] == ["a b", ["a", "b c"]]


@pytest.mark.parametrize("overlap", [0, 700])
def test_each_byte_comes_once_however_often_the_connection_breaks(
    server: SessionServer, sandbox: Sandbox, overlap: int
) -> None:
    whole = bytes(range(256)) * 40
    server.cut_every, server.overlap = 1000, overlap
    server.on_start = prints(whole)
    result = sandbox.commands.run("print")
    assert result.stdout_bytes == whole
    assert not result.stdout_truncated
    assert asked_for(server, "GET", "/output") > 10
    assert len(server.commands) == 1


def test_a_command_whose_answer_got_lost_runs_once(server: SessionServer, sandbox: Sandbox) -> None:
    lost = iter([True, True])

    def faults(when: str, method: str, path: str) -> int | None:
        if when == "after" and method == "POST" and path.endswith("/commands") and next(lost, False):
            raise Cut
        return None

    server.faults = faults
    server.on_start = prints(b"once")
    assert sandbox.commands.run("charge").stdout == "once"
    assert len(server.commands) == 1
    assert asked_for(server, "POST", "/commands") == 3


def test_what_is_not_kept_any_more_is_told(server: SessionServer, sandbox: Sandbox) -> None:
    def play(command: Command) -> None:
        command.print(b"0123456789")
        command.kept_from["stdout"] = 4
        command.ends()

    server.on_start = play
    result = sandbox.commands.run("print")
    assert (result.stdout, result.stdout_truncated, result.stderr_truncated) == ("456789", True, False)
    (piece,) = sandbox.commands.attach("c-1").output()
    assert (piece.data, piece.offset, piece.lost) == (b"456789", 4, 4)


def test_more_than_is_wanted_is_cut_and_told(server: SessionServer, sandbox: Sandbox) -> None:
    server.on_start = prints("grüße".encode() * 100)
    heard: list[str] = []
    result = sandbox.commands.run("print", max_output_bytes=10, on_stdout=heard.append)
    assert (result.stdout, result.stdout_truncated) == ("grüßegr", True)
    assert "".join(heard) == "grüße" * 100


def test_a_character_that_is_split_between_pieces_is_one(server: SessionServer, sandbox: Sandbox) -> None:
    server.cut_every = 1
    server.on_start = prints("a€".encode() + b"\xff" + "€".encode()[:2])
    heard: list[str] = []
    result = sandbox.commands.run("print", on_stdout=heard.append)
    assert heard == ["a", "€", "�", "�"]
    assert result.stdout == "".join(heard)


def test_an_end_that_nobody_knows_is_no_success(server: SessionServer, sandbox: Sandbox) -> None:
    server.on_start = prints(b"so far", status="sandbox_lost", exit_code=None, detail="its worker is gone")
    result = sandbox.commands.run("work")
    assert (result.status, result.exit_code, result.ok) == ("sandbox_lost", None, False)
    with pytest.raises(CommandFailedError, match="nobody knows how far it came: its worker is gone"):
        sandbox.commands.run("work", check=True)


def test_a_sandbox_that_goes_while_its_command_is_followed_is_an_end() -> None:
    with api_server() as other:
        path = "/v1/sandboxes/s-1"
        other.answers = {
            f"GET {path}": Answer(SESSION),
            f"POST {path}/commands": Answer({"command_id": "c-1"}, 202),
            f"GET {path}/commands/c-1/output": [
                Answer(pieces=(_event("output", "stdout", 0, b"so far"),), whole=False),
                problem(404, "session-not-found", "there is no such session"),
            ],
        }
        with Sandbox.connect("s-1", url=other.url) as found:
            result = found.commands.run("work")
    assert (result.status, result.stdout, result.stdout_truncated) == ("sandbox_lost", "so far", True)
    assert result.detail == "there is no such session"


@pytest.mark.parametrize("end", [{"status": "exited_nicely"}, {"status": "running"}, {}])
def test_an_end_that_is_none_is_an_error(end: dict[str, Any]) -> None:
    """Of a later server, or of a broken one: nothing is guessed."""
    view = {"command_id": "c-1", "sandbox_id": "s-1", "command": [], **end}
    with api_server() as other:
        path = "/v1/sandboxes/s-1"
        other.answers = {
            f"GET {path}": Answer(SESSION),
            f"POST {path}/commands": Answer({"command_id": "c-1"}, 202),
            f"POST {path}/commands/c-1:signal": Answer(None, 204),
            f"GET {path}/commands/c-1/output": Answer(pieces=(_frame("end", view),)),
        }
        with Sandbox.connect("s-1", url=other.url) as found, pytest.raises((NoAnswerError, UnexpectedAnswerError)):
            found.commands.run("work")


def _event(name: str, stream: str, offset: int, data: bytes) -> bytes:
    return _frame(name, {"stream": stream, "offset": offset, "data": base64.b64encode(data).decode()})


def _frame(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


# --- leaving early -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_whoever_leaves_early_takes_the_command_along(
    server: SessionServer, sandbox: Sandbox, kind: type[BaseException]
) -> None:
    server.on_start = lambda command: command.print(b"begun")

    def heard(text: str) -> None:
        raise kind("enough")

    with pytest.raises(kind, match="enough"):
        sandbox.commands.run("sleep", on_stdout=heard)
    (command,) = server.commands.values()
    command.until(lambda one: one.signals == ["SIGKILL"])


def test_waiting_has_a_deadline_and_the_command_goes_on(
    server: SessionServer, sandbox: Sandbox, time_bounds: TimeBounds
) -> None:
    command = sandbox.commands.start("sleep")
    began = time.monotonic()
    with pytest.raises(TimeoutError) as late:
        command.wait(timeout=0.2)
    assert isinstance(late.value, WaitTimeoutError)
    took = time.monotonic() - began
    assert took > 0.15
    time_bounds.check(took, PATIENCE)
    assert server.commands["c-1"].signals == []
    server.commands["c-1"].print(b"done")
    server.commands["c-1"].ends()
    assert command.wait(timeout=PATIENCE).stdout == "done"


def test_a_server_that_is_away_is_waited_for(server: SessionServer, sandbox: Sandbox) -> None:
    command = sandbox.commands.start("sleep")
    away = iter([503, 503, 503, 503, 503, 503])
    server.faults = lambda when, method, path: next(away, None) if when == "before" else None
    server.commands["c-1"].ends()
    assert command.wait(timeout=PATIENCE).ok


def test_closing_a_client_wakes_whoever_reads(server: SessionServer) -> None:
    found = Sandbox.connect("s-1", url=server.url)
    command = found.commands.start("sleep")
    server.commands["c-1"].print(b"begun")
    told: list[BaseException] = []
    begun = threading.Event()

    def read() -> None:
        try:
            for _ in command.output():
                begun.set()
        except ClientClosedError as error:
            told.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(PATIENCE)
    found.close()
    reader.join(PATIENCE)
    assert not reader.is_alive()
    assert len(told) == 1
    with pytest.raises(ClientClosedError):
        found.info()


# --- input -------------------------------------------------------------------------------------------------


def test_input_goes_in_while_output_comes_out_whatever_gets_lost(server: SessionServer, sandbox: Sandbox) -> None:
    given = bytes(range(256)) * 8192  # four pieces
    lost = iter([False, True, False, True])

    def faults(when: str, method: str, path: str) -> int | None:
        if when == "after" and path.endswith("/stdin") and next(lost, False):
            raise Cut
        return None

    def echo(command: Command, data: bytes) -> None:
        command.print(data)
        if command.eof:
            command.ends()

    server.faults = faults
    server.on_start = lambda command: setattr(command, "on_input", echo)
    result = sandbox.commands.run("cat", input=given)
    assert result.stdout_bytes == given
    assert bytes(server.commands["c-1"].stdin) == given


def test_a_command_that_does_not_want_all_of_its_input_ends_all_the_same(
    server: SessionServer, sandbox: Sandbox
) -> None:
    def enough(command: Command, data: bytes) -> None:
        command.ends(exit_code=9)

    server.on_start = lambda command: setattr(command, "on_input", enough)
    assert sandbox.commands.run("head", input=b"x" * 2_000_000).exit_code == 9


def test_input_that_is_refused_is_no_success(server: SessionServer, sandbox: Sandbox) -> None:
    """The command would wait for the rest for ever: it is killed, and the reason told."""

    def faults(when: str, method: str, path: str) -> int | None:
        return 413 if path.endswith("/stdin") and when == "before" else None

    server.faults = faults
    server.on_start = lambda command: setattr(
        command, "on_signal", lambda one, number: one.ends("signaled", signal=9, exit_code=None)
    )
    with pytest.raises(Exception, match="not now"):
        sandbox.commands.run("cat", input="hello")


def test_an_empty_input_is_an_end(server: SessionServer, sandbox: Sandbox) -> None:
    command = sandbox.commands.start("cat", stdin=True)
    command.send("héllo")
    command.send(b"")
    command.close_stdin()
    there = server.commands["c-1"]
    assert (bytes(there.stdin), there.eof) == ("héllo".encode(), True)


def test_whoever_comes_back_goes_on_where_input_ended(server: SessionServer, sandbox: Sandbox) -> None:
    sandbox.commands.start("cat", stdin=True).send("one ")
    sandbox.commands.attach("c-1").send("two")
    assert bytes(server.commands["c-1"].stdin) == b"one two"


def test_a_server_that_is_away_is_waited_for_before_anything_is_sent(server: SessionServer, sandbox: Sandbox) -> None:
    """More often than one question is asked again."""
    command = sandbox.commands.start("cat", stdin=True)
    cuts = iter([True] * 10)

    def faults(when: str, method: str, path: str) -> int | None:
        if when == "before" and next(cuts, False):
            raise Cut
        return None

    server.faults = faults
    command.send("hello", timeout=PATIENCE)
    assert next(cuts, None) is None
    assert bytes(server.commands["c-1"].stdin) == b"hello"


@pytest.mark.parametrize("more", [{"input": "x"}, {"check": True}, {"on_stdout": print}, {"max_output_bytes": 1}])
def test_what_a_command_in_the_background_cannot_do_is_refused(
    server: SessionServer, sandbox: Sandbox, more: dict[str, Any]
) -> None:
    with pytest.raises(TypeError, match="in the background"):
        sandbox.commands.run("cat", background=True, **more)
    assert server.commands == {}


# --- the sandbox -------------------------------------------------------------------------------------------


def made(server: ApiServer, **answers: Any) -> dict[str, Any]:
    return {"POST /v1/sandboxes": Answer(SESSION, 201), "DELETE /v1/sandboxes/s-1": Answer(None, 204), **answers}


def test_leaving_the_block_removes_it_and_hides_nothing() -> None:
    with api_server() as server:
        server.answers = made(server)
        with pytest.raises(ZeroDivisionError), Sandbox.create("base:1", url=server.url) as sandbox:
            raise ZeroDivisionError
        assert sandbox.image_digest == SESSION["image_digest"]
        assert [one.method for one in server.asked] == ["POST", "DELETE"]
        assert server.asked[1].query == [("idempotency_key", server.asked[0].headers["idempotency-key"])]
        assert server.asked[0].json["image"] == "base:1"
        assert server.asked[0].json["lease_seconds"] == 300

        server.answers["DELETE /v1/sandboxes/s-1"] = problem(403, "forbidden", "not yours")
        with pytest.raises(ZeroDivisionError) as error, Sandbox.create(url=server.url):
            raise ZeroDivisionError
        assert error.value.__notes__ == ["and the sandbox s-1 could not be removed: not yours"]


def test_one_that_was_found_is_removed_whoever_made_it() -> None:
    with api_server() as server:
        server.answers = made(server, **{"GET /v1/sandboxes/s-1": Answer(SESSION)})
        assert Sandbox.connect("s-1", url=server.url).kill()
        assert server.asked[-1].query == []


def test_one_that_is_gone_already_is_removed() -> None:
    with api_server() as server:
        gone = problem(404, "session-not-found", "there is no such session")
        server.answers = made(server, **{"DELETE /v1/sandboxes/s-1": gone})
        with Sandbox.create(url=server.url) as sandbox:
            assert sandbox.kill() is False


@pytest.mark.parametrize(
    ("code", "removed"), [("overloaded", False), ("no-worker", False), ("worker-lost", True), ("draining", False)]
)
def test_a_removal_is_told_as_ours_only_where_an_earlier_request_may_have_done_it(code: str, removed: bool) -> None:
    with api_server() as server:
        later = replace(problem(503, code, "later"), headers={"retry-after": "0"})
        gone = problem(404, "session-not-found", "there is no such session")
        server.answers = made(server, **{"DELETE /v1/sandboxes/s-1": [later, gone]})
        assert Sandbox.create(url=server.url).kill() is removed


@pytest.mark.parametrize("mistake", [{"memory": 64}, {"netwrok": "full"}, {"contxt": "x", "nosuch": 1}])
def test_an_argument_that_nobody_knows_is_no_secret(server: SessionServer, mistake: dict[str, Any]) -> None:
    """A limit that was misspelt would else be believed to hold."""
    for call in (
        lambda: Sandbox.create("image", url=server.url, **mistake),
        lambda: Sandbox.connect("s-1", url=server.url, **mistake),
        lambda: Sandbox.list(url=server.url, **mistake),
    ):
        with pytest.raises(TypeError, match=", ".join(sorted(mistake))):
            call()
    assert server.asked == []


def test_one_that_was_found_is_left_alone(server: SessionServer) -> None:
    with Sandbox.connect("s-1", url=server.url):
        pass
    assert asked_for(server, "DELETE", "/s-1") == 0


def test_what_cannot_be_made_is_told_with_what_to_do(server: SessionServer) -> None:
    with pytest.raises(UnreachableError, match=r"no server answers at http://127.0.0.1:1 .*\n.*fumehood dev"):
        Sandbox.create(url="http://127.0.0.1:1")
    with api_server() as other:
        other.answers["POST /v1/sandboxes"] = problem(401, "unauthenticated", "no")
        with pytest.raises(UnauthenticatedError, match=r"rejected this key\n.*fumehood login"):
            Sandbox.create(url=other.url, key="secret-key")
        assert other.asked[0].headers["authorization"] == "Bearer secret-key"
        other.answers["POST /v1/sandboxes"] = problem(403, "policy-denied", "no rule for it")
        with pytest.raises(PolicyDeniedError, match="no rule for it\nask for what the worker's policy allows"):
            Sandbox.create(network="full", url=other.url)
        other.answers["POST /v1/sandboxes"] = problem(502, "image-unavailable", "no such tag")
        with pytest.raises(ImageUnavailableError, match="no such tag\ncorrect the image's name, or see"):
            Sandbox.create("base:1", url=other.url)
        with pytest.raises(ImageUnavailableError, match=r"name an image; .*WORKER_TERMINAL_EXEC_DOCKER_IMAGE"):
            Sandbox.create(url=other.url)
        other.answers["POST /v1/sandboxes"] = Answer(SESSION, 201)
        with pytest.raises(UnexpectedAnswerError, match="bring the server and its workers to the version of this SDK"):
            Sandbox.create(name="mine", url=other.url)
        other.answers["GET /v1/sandboxes/a%2Fb"] = problem(404, "session-not-found", "no")
        with pytest.raises(SandboxGoneError):
            Sandbox.connect("a/b", url=other.url)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"memory_mb": 128}, "a sandbox has no argument memory_mb; did you mean memory_mib?"),
        ({"template": "python:slim"}, "template= takes a Template"),
    ],
)
def test_a_wrong_argument_is_told_with_what_was_meant(given: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        Sandbox.create(**given)


def test_a_receipt_is_fetched_once_and_while_the_sandbox_is_there(server: SessionServer, sandbox: Sandbox) -> None:
    server.on_start = prints(exit_code=0)
    result = sandbox.commands.run("true")
    assert result.receipt is result.receipt
    with api_server() as other:
        other.answers["GET /receipt"] = problem(404, "session-not-found", "no")
        with (
            Client(url=other.url) as client,
            pytest.raises(SandboxGoneError, match="receipts go with their sandbox"),
        ):
            Receipt(client.transport, "/receipt").fetch()
        other.answers["GET /runs/r1/receipt"] = problem(404, "not-found", "no")
        with Client(url=other.url) as client, pytest.raises(NotFoundError, match="name a `step`"):
            client.receipts.of_run("r1").fetch()


def test_a_key_is_shown_by_nobody(server: SessionServer) -> None:
    with Sandbox.connect("s-1", url=server.url, key="very-secret") as found:
        for thing in (found, found.commands, found._transport):
            assert "very-secret" not in repr(thing) + str(vars(thing))


def test_several_threads_share_one(server: SessionServer, sandbox: Sandbox) -> None:
    server.on_start = lambda command: prints(command.asked["command"].encode())(command)
    said: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: said.append(sandbox.commands.run(f"say {n}").stdout)) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(said) == [f"say {n}" for n in range(8)]


def test_a_file_goes_in_and_comes_out(server: SessionServer, sandbox: Sandbox) -> None:
    sandbox.files.write("a.txt", "hello")
    assert server.files["a.txt"] == b"hello"
    assert sandbox.files.read("a.txt") == "hello"


def test_one_that_was_removed_has_closed_its_connections_and_says_that_it_is_gone() -> None:
    with api_server() as server:
        server.answers = made(server)
        sandbox = Sandbox.create(url=server.url)
        assert sandbox.kill() is True
        assert sandbox._transport._http.is_closed
        assert sandbox.kill() is False
        with pytest.raises(SandboxGoneError, match="the sandbox s-1 was removed"):
            sandbox.commands.run("true")
        assert [one.method for one in server.asked] == ["POST", "DELETE"]
