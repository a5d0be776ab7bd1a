"""Sandboxes that live on, and the commands in them, at the server's door."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from fumehood.control.callers import Caller
from fumehood.control.console import running as running_command
from fumehood.control.console.ports_http import SandboxesPort
from fumehood.wire.console.codes import PIECE_BYTES, Reason
from fumehood.wire.console.sessions import (
    LONGEST_START_WAIT_MS,
    START_OUTPUT_BYTES,
    CommandStatus,
    CommandView,
    StartCommand,
)
from fumehood.wire.sandbox_api import MAX_TEXT_BYTES
from tests.contract.console_harness import Desk, desk
from tests.contract.console_worker import failed
from tests.contract.test_commands_http import problem
from tests.waiting import until

BYTES = {"content-type": "application/octet-stream"}


@pytest.fixture
async def there() -> AsyncIterator[Desk]:
    async with desk() as made:
        yield made


# --- sandboxes ---------------------------------------------------------------------------------------------


async def test_a_sandbox_is_made_as_it_was_wished(there: Desk) -> None:
    wish = {
        "sandbox_id": "mine",
        "image": "127.0.0.1:5055/team/tool:1",
        "lease_seconds": 120,
        "network": "dns-only",
        "memory_mib": 512,
        "cpu_millis": 1500,
        "env": {"A": "b"},
    }
    answer = await there.client.post("/v1/sandboxes", json=wish)
    assert answer.status_code == 201
    said = answer.json()
    assert said.pop("created_at") < said.pop("lease_expires_at")
    assert said == {
        "sandbox_id": "mine",
        "image": "127.0.0.1:5055/team/tool:1",
        "image_digest": "sha256:" + "1" * 64,
        "network": "dns-only",
        "runtime": "runc",
        "running_commands": 0,
        "worker_id": "w1",
        "created": True,
    }
    made = there.session("mine").wish
    assert (made.lease_ttl_sec, made.memory_mib, made.cpu_millis, made.env) == (120, 512, 1500, {"A": "b"})


async def test_without_a_name_each_one_is_new_and_with_one_it_is_the_same(there: Desk) -> None:
    names = {await there.sandbox() for _ in range(2)} | {await there.sandbox(sandbox_id="x") for _ in range(2)}
    assert len(names) == 3
    assert len(there.worker.sessions) == 3
    assert all(re.fullmatch("sbx-[0-9a-f]{32}|x", name) for name in names)


@pytest.mark.parametrize("wish", [{"sandbox_id": "mine"}, {}])
async def test_a_request_that_is_sent_again_still_says_that_it_made_the_sandbox(
    there: Desk, wish: dict[str, Any]
) -> None:
    first, again = [
        await there.client.post("/v1/sandboxes", json=wish, headers={"Idempotency-Key": "k"}) for _ in range(2)
    ]
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json()["created"]
    assert first.json() == again.json()
    named = {"sandbox_id": first.json()["sandbox_id"]}
    for headers in ({}, {"Idempotency-Key": "other"}):
        found = await there.client.post("/v1/sandboxes", json=named, headers=headers)
        assert (found.status_code, found.json()["created"]) == (200, False)
    assert len(there.worker.sessions) == 1
    path = f"/v1/sandboxes/{named['sandbox_id']}"
    assert (await there.client.delete(path, params={"idempotency_key": "other"})).status_code == 404
    assert len(there.worker.sessions) == 1
    assert (await there.client.delete(path, params={"idempotency_key": "k"})).status_code == 204
    assert there.worker.sessions == {}


async def test_a_worker_that_does_not_say_who_made_a_sandbox_is_not_spoken_for(there: Desk) -> None:
    await there.sandbox(sandbox_id="mine")
    session = there.session("mine")
    session.wish = session.wish.model_copy(update={"made_by": ""})
    found = await there.client.post("/v1/sandboxes", json={"sandbox_id": "mine"})
    assert (found.status_code, found.json()["created"]) == (200, None)


@pytest.mark.parametrize(
    "wish",
    [
        {"sandbox_id": ""},
        {"sandbox_id": "a.b"},
        {"sandbox_id": "x" * 129},
        {"sandbox_id": None},
        {"image": ""},
        {"image": "x" * 1025},
        {"lease_seconds": 0},
        {"lease_seconds": 86_401},
        {"lease_seconds": None},
        {"network": "none"},
        {"memory_mib": 31},
        {"cpu_millis": 49},
        {"env": {"A=B": "c"}},
        {"env": {"A": "c\0"}},
        {"env": {"A": 1}},
        {"env": {"A": "x" * 256 * 1024}},
        {"privileged": True},
    ],
)
async def test_wishes_out_of_bounds_are_400_and_ask_no_worker(there: Desk, wish: dict[str, Any]) -> None:
    problem(await there.client.post("/v1/sandboxes", json=wish), 400, "invalid-request")
    assert there.worker.calls == []


async def test_the_workers_own_bounds_are_its_own(there: Desk) -> None:
    answer = await there.client.post("/v1/sandboxes", json={"lease_seconds": 59})
    said = problem(answer, 400, "invalid-payload", "invalid_payload")
    assert said["detail"].startswith("lease_seconds: must be ")


async def test_sandboxes_are_listed_in_pages(there: Desk) -> None:
    for number in range(5):
        await there.sandbox(sandbox_id=f"s{number}")
    seen, after = [], ""
    while True:
        said = (await there.client.get("/v1/sandboxes", params={"limit": 2, "after": after})).json()
        seen += [one["sandbox_id"] for one in said["sandboxes"]]
        if (after := said["next"]) is None:
            break
    assert seen == ["s0", "s1", "s2", "s3", "s4"]
    assert said["sandboxes"][0].keys() == {"sandbox_id", "image", "created_at", "lease_expires_at", "worker_id"}


async def test_a_lease_is_extended_and_never_shortened(there: Desk) -> None:
    sandbox = await there.sandbox(lease_seconds=100)
    before = (await there.client.get(f"/v1/sandboxes/{sandbox}")).json()["lease_expires_at"]
    for seconds, longer in ((60, False), (1000, True)):
        answer = await there.client.post(f"/v1/sandboxes/{sandbox}:extend", json={"lease_seconds": seconds})
        assert answer.status_code == 200
        assert (answer.json()["lease_expires_at"] > before) is longer


async def test_a_removed_sandbox_is_gone(there: Desk) -> None:
    sandbox = await there.sandbox()
    answer = await there.client.delete(f"/v1/sandboxes/{sandbox}")
    assert (answer.status_code, answer.content) == (204, b"")
    problem(await there.client.get(f"/v1/sandboxes/{sandbox}"), 404, "session-not-found", "session_not_found")
    problem(await there.client.delete(f"/v1/sandboxes/{sandbox}"), 404, "session-not-found", "session_not_found")
    assert (await there.client.get("/v1/sandboxes")).json() == {"sandboxes": [], "next": None}


OF_ONE = [
    ("GET", "", None),
    ("DELETE", "", None),
    ("POST", ":extend", {"lease_seconds": 60}),
    ("POST", "/commands", {"command": "echo"}),
    ("GET", "/commands", None),
    ("GET", "/commands/{command}", None),
    ("GET", "/commands/{command}/output", None),
    ("POST", "/commands/{command}/stdin?offset=0", None),
    ("POST", "/commands/{command}:resize", {"rows": 1, "columns": 1}),
    ("POST", "/commands/{command}:signal", {"signal": 9}),
    ("GET", "/files/content?path=f", None),
    ("PUT", "/files/content?path=f", None),
    ("GET", "/files/list?path=/", None),
    ("GET", "/files/stat?path=f", None),
    ("DELETE", "/files?path=f", None),
    ("POST", "/files/folders?path=g", None),
]


@pytest.mark.parametrize(("method", "path", "body"), OF_ONE)
async def test_anothers_sandbox_is_told_apart_from_none_by_no_byte(
    there: Desk, method: str, path: str, body: Any
) -> None:
    sandbox = await there.sandbox()
    command, process = await there.background(sandbox, "sleep")
    there.session(sandbox).files["/workspace/f"] = b"secret"
    theirs = await there.as_tenant("globex") | {"x-request-id": "r"}
    if body is None and method in ("POST", "PUT"):
        theirs |= BYTES
    answers = []
    for one in (sandbox, "sbx-" + "0" * 32):
        url = f"/v1/sandboxes/{one}{path.format(command=command)}"
        answer = await there.client.request(method, url, json=body, headers=theirs)
        problem(answer, 404, "session-not-found", "session_not_found")
        answers.append((answer.content, sorted(answer.headers.items())))
    assert answers[0] == answers[1]
    assert process.status is CommandStatus.RUNNING
    url = f"/v1/sandboxes/a.b{path.format(command=command)}"
    problem(
        await there.client.request(method, url, json=body, headers=theirs),
        404,
        "session-not-found",
        "session_not_found",
    )


@pytest.mark.parametrize(("method", "path", "body"), [one for one in OF_ONE if "{command}" in one[1]])
@pytest.mark.parametrize("command", ["cmd-" + "0" * 32, "a.b", "x" * 65])
async def test_an_unknown_command_is_404(there: Desk, method: str, path: str, body: Any, command: str) -> None:
    sandbox = await there.sandbox()
    headers = BYTES if body is None and method == "POST" else {}
    url = f"/v1/sandboxes/{sandbox}{path.format(command=command)}"
    answer = await there.client.request(method, url, json=body, headers=headers)
    problem(answer, 404, "command-not-found", "command_not_found")


# --- running -----------------------------------------------------------------------------------------------


async def test_a_command_that_ends_is_answered_with_what_it_printed(there: Desk) -> None:
    sandbox = await there.sandbox()
    answer = await there.run(sandbox, "echo hällo; err oops; exit 3")
    assert answer.status_code == 200
    said = answer.json()
    assert re.fullmatch("cmd-[0-9a-f]{32}", said.pop("command_id"))
    assert said == {
        "sandbox_id": sandbox,
        "status": "exited",
        "exit_code": 3,
        "signal": None,
        "detail": "",
        "started_at": "2026-02-16T12:00:00.000Z",
        "ended_at": "2026-02-16T12:00:01.500Z",
        "command": ["sh", "-c", "echo hällo; err oops; exit 3"],
        "terminal": False,
        "stdout_bytes": 7,
        "stderr_bytes": 5,
        "stdin_bytes": 0,
        "stdout": "hällo\n",
        "stderr": "oops\n",
        "stdout_truncated": False,
        "stderr_truncated": False,
    }


async def test_a_list_is_a_program_and_its_arguments(there: Desk) -> None:
    sandbox = await there.sandbox()
    said = (await there.run(sandbox, ["echo", "a b", "$HOME"])).json()
    assert said["command"] == ["echo", "a b", "$HOME"]


@pytest.mark.parametrize(
    ("words", "calls"),
    [
        ("exit 0", ["session.start"]),
        ("echo a; err b", ["session.start"]),
        (f"print {START_OUTPUT_BYTES}; err b", ["session.start", "session.output"]),
    ],
)
async def test_a_quick_command_is_started_and_waited_for_in_one_call(there: Desk, words: str, calls: list[str]) -> None:
    sandbox = await there.sandbox()
    there.worker.calls.clear()
    assert (await there.run(sandbox, words)).status_code == 200
    assert there.worker.calls == calls


async def test_a_command_that_outlasts_the_wait_of_its_start_is_waited_for(there: Desk) -> None:
    sandbox = await there.sandbox()
    there.worker.calls.clear()
    running = asyncio.create_task(there.run(sandbox, "wait"))
    await until(lambda: "session.command" in there.worker.calls)
    next(iter(there.session(sandbox).processes.values())).may_go_on.set()
    assert (await running).json()["status"] == "exited"
    assert there.worker.calls == ["session.start", "session.command"]


async def test_a_command_is_waited_for_where_its_start_is_answered_at_once(
    there: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a worker of an older version, or one at which many starts wait."""
    start = there.worker.start

    async def at_once(owner: str, asked: StartCommand, data: bytes) -> tuple[CommandView, bytes]:
        return await start(owner, asked.model_copy(update={"wait_ms": 0}), data)

    monkeypatch.setattr(there.worker, "start", at_once)
    waited, waits = running_command.waited, []

    async def patiently(port: SandboxesPort, caller: Caller, view: CommandView, wait_ms: int) -> CommandView:
        waits.append(wait_ms)
        return await waited(port, caller, view, 20_000)

    monkeypatch.setattr(running_command, "waited", patiently)
    monkeypatch.setattr(running_command, "time", SimpleNamespace(monotonic=lambda: 0.0))
    sandbox = await there.sandbox()
    there.worker.calls.clear()
    running = asyncio.create_task(there.run(sandbox, "wait", wait_ms=LONGEST_START_WAIT_MS))
    await until(lambda: "session.command" in there.worker.calls or running.done())
    next(iter(there.session(sandbox).processes.values())).may_go_on.set()
    assert (await running).json()["status"] == "exited"
    assert there.worker.calls == ["session.start", "session.command"]
    assert waits == [LONGEST_START_WAIT_MS]


async def test_text_is_cut_at_its_bound_and_says_so(there: Desk) -> None:
    sandbox = await there.sandbox()
    for size, truncated in ((MAX_TEXT_BYTES, False), (MAX_TEXT_BYTES + 1, True), (3 * MAX_TEXT_BYTES, True)):
        said = (await there.run(sandbox, f"print {size}; err last")).json()
        assert (len(said["stdout"]), said["stdout_truncated"]) == (MAX_TEXT_BYTES, truncated)
        assert (said["stdout_bytes"], said["stderr"], said["stderr_truncated"]) == (size, "last\n", False)


async def test_what_was_not_kept_is_not_made_up(there: Desk) -> None:
    sandbox = await there.sandbox()
    command, process = await there.background(sandbox, "print 100; wait")
    process.forgotten = 10
    process.may_go_on.set()
    said = (await there.client.get(f"/v1/sandboxes/{sandbox}/commands/{command}?wait_ms=20000")).json()
    assert (said["stdout"], said["stdout_bytes"], said["stdout_truncated"]) == ("", 100, True)


async def test_one_that_takes_longer_is_202_and_can_be_waited_for(there: Desk) -> None:
    sandbox = await there.sandbox()
    answer = await there.run(sandbox, "echo a; wait", wait_ms=20)
    assert answer.status_code == 202
    said = answer.json()
    assert (said["status"], said["ended_at"], "stdout" in said) == ("running", None, False)
    path = answer.headers["location"]
    assert path == f"/v1/sandboxes/{sandbox}/commands/{said['command_id']}"
    assert (await there.client.get(path)).json()["status"] == "running"
    assert (await there.client.get(f"/v1/sandboxes/{sandbox}")).json()["running_commands"] == 1
    waiting = asyncio.create_task(there.client.get(path, params={"wait_ms": 20_000}, timeout=30))
    there.session(sandbox).processes[said["command_id"]].may_go_on.set()
    done = (await waiting).json()
    assert (done["status"], done["stdout"]) == ("exited", "a\n")
    listed = (await there.client.get(f"/v1/sandboxes/{sandbox}/commands")).json()["commands"]
    assert [(one["command_id"], one["status"], "stdout" in one) for one in listed] == [
        (said["command_id"], "exited", False)
    ]


@pytest.mark.parametrize("refusal", [Reason.NO_CAPACITY, Reason.SESSION_NOT_FOUND])
async def test_a_start_that_may_have_happened_is_not_refused_afterwards(
    there: Desk, monkeypatch: pytest.MonkeyPatch, refusal: Reason
) -> None:
    sandbox = await there.sandbox()
    reasons = iter([Reason.WORKER_LOST, refusal])

    async def start(*_: object) -> None:
        raise failed(next(reasons))

    monkeypatch.setattr(there.worker, "start", start)
    problem(await there.run(sandbox, "true"), 503, "worker-lost", "worker_lost")
    assert next(reasons, None) is None


async def test_background_does_not_wait(there: Desk) -> None:
    sandbox = await there.sandbox()
    there.worker.calls.clear()
    answer = await there.run(sandbox, "sleep", background=True, wait_ms=60_000)
    assert answer.status_code == 202
    assert there.worker.calls == ["session.start"]


async def test_a_command_with_a_name_runs_once(there: Desk) -> None:
    """An answer that got lost is asked for again, and tells of the same command."""
    sandbox, name = await there.sandbox(), "chosen-0123456789"
    answers = [await there.run(sandbox, "echo a", command_id=name) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json() == answers[1].json()
    assert (answers[0].json()["command_id"], answers[0].json()["stdout"]) == (name, "a\n")
    assert list(there.session(sandbox).processes) == [name]


async def test_a_timeout_is_told_as_one(there: Desk) -> None:
    sandbox = await there.sandbox()
    said = (await there.run(sandbox, "echo a; sleep", timeout_ms=50)).json()
    assert (said["status"], said["exit_code"], said["stdout"]) == ("timed_out", None, "a\n")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"command": ""},
        {"command": []},
        {"command": ["a\0"]},
        {"command": "a\0"},
        {"command": "x" * 131_072},
        {"command": ["x" * 131_072]},
        {"command": ["x"] * 4097},
        {"command": 1},
        {"command": [1]},
        {"command": "a", "cwd": ""},
        {"command": "a", "cwd": "x" * 4097},
        {"command": "a", "timeout_ms": 0},
        {"command": "a", "timeout_ms": 86_400_001},
        {"command": "a", "terminal": {"rows": 0, "columns": 80}},
        {"command": "a", "terminal": {"rows": 24}},
        {"command": "a", "terminal": {"rows": 24, "columns": 1001}},
        {"command": "a", "input": 1},
        {"command": "a", "input": "é" * (PIECE_BYTES // 2 + 1)},
        {"command": "a", "input_base64": "?"},
        {"command": "a", "input_base64": base64.b64encode(b"x" * (PIECE_BYTES + 1)).decode()},
        {"command": "a", "input": "a", "input_base64": "YQ=="},
        {"command": "a", "wait_ms": 60_001},
        {"command": "a", "tty": True},
        {"command": "a", "command_id": None},
        {"command": "a", "command_id": "x" * 15},
        {"command": "a", "command_id": "x" * 65},
        {"command": "a", "command_id": "0123456789abcde/"},
    ],
)
async def test_commands_out_of_bounds_are_400(there: Desk, body: dict[str, Any]) -> None:
    sandbox = await there.sandbox()
    problem(await there.client.post(f"/v1/sandboxes/{sandbox}/commands", json=body), 400, "invalid-request")
    assert there.worker.calls == ["session.create"]


async def test_a_busy_sandbox_is_409(there: Desk) -> None:
    sandbox = await there.sandbox()
    there.worker.failing = Reason.SESSION_BUSY
    problem(await there.run(sandbox, "echo"), 409, "session-busy", "session_busy")


# --- input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "data"),
    [
        ({"input": "héllo"}, "héllo"),
        ({"input": ""}, ""),
        ({"input_base64": base64.b64encode(b"a\nb").decode()}, "a\nb"),
        ({"input": "x" * PIECE_BYTES}, "x" * PIECE_BYTES),
    ],
)
async def test_input_that_is_given_at_once_is_read_to_its_end(there: Desk, given: dict[str, Any], data: str) -> None:
    """The last one is more than a command takes before it reads."""
    sandbox = await there.sandbox()
    said = (await there.run(sandbox, "cat; echo .", **given, wait_ms=20_000)).json()
    assert (said["status"], said["stdout"]) == ("exited", f"{data}.\n")
    assert said["stdin_bytes"] == len(data.encode())


async def test_without_input_there_is_its_end(there: Desk) -> None:
    assert (await there.run(await there.sandbox(), "cat; exit 4")).json()["exit_code"] == 4


async def test_input_that_nobody_reads_does_not_hold_a_command_that_ends(there: Desk) -> None:
    said = (await there.run(await there.sandbox(), "exit 5", input="x" * PIECE_BYTES)).json()
    assert said["exit_code"] == 5


async def test_input_that_is_not_taken_is_told(there: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fumehood.control.console.running.FEED_SECONDS", 0.1)
    answer = await there.run(await there.sandbox(), "sleep", input="x" * PIECE_BYTES, background=True)
    assert (answer.status_code, answer.json()["stdin_bytes"]) == (202, 64 * 1024)


async def test_input_is_fed_by_its_place(there: Desk) -> None:
    sandbox = await there.sandbox()
    command, process = await there.background(sandbox, "cat; echo .", stdin=True, input="ab")
    path = f"/v1/sandboxes/{sandbox}/commands/{command}/stdin"

    async def feed(data: bytes, **query: Any) -> int:
        answer = await there.client.post(path, params=query, content=data, headers=BYTES)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["stdin_bytes"])

    await until(lambda: len(process.stdin) == 2)
    assert await feed(b"abc\xff", offset=0) == 4
    assert await feed(b"abc\xff", offset=0) == 4, "what was taken is skipped"
    assert await feed(b"d", offset=4, eof="true") == 5
    done = await there.client.get(f"/v1/sandboxes/{sandbox}/commands/{command}", params={"wait_ms": 20_000})
    assert done.json()["stdout"] == "abc\ufffdd.\n"


@pytest.mark.parametrize(
    "query", ["", "offset=-1", "offset=x", "offset=0&eof=yes", "offset=0&more=1", "offset=0&offset=1"]
)
async def test_input_without_a_place_is_400(there: Desk, query: str) -> None:
    sandbox = await there.sandbox()
    command, _ = await there.background(sandbox, "sleep")
    path = f"/v1/sandboxes/{sandbox}/commands/{command}/stdin?{query}"
    problem(await there.client.post(path, content=b"x", headers=BYTES), 400, "invalid-request")


async def test_input_has_a_bound_and_a_form(there: Desk) -> None:
    sandbox = await there.sandbox()
    command, _ = await there.background(sandbox, "sleep", stdin=True)
    path = f"/v1/sandboxes/{sandbox}/commands/{command}/stdin?offset=0"
    too_long = await there.client.post(path, content=b"x" * (PIECE_BYTES + 1), headers=BYTES)
    problem(too_long, 413, "payload-too-large")
    problem(await there.client.post(path, json={}), 415, "unsupported-media-type")


# --- terminals and signals ---------------------------------------------------------------------------------


async def test_a_terminal_has_its_size(there: Desk) -> None:
    sandbox = await there.sandbox()
    command, process = await there.background(sandbox, "sleep", terminal={"rows": 24, "columns": 80})
    assert process.terminal
    assert process.size == (24, 80)
    path = f"/v1/sandboxes/{sandbox}/commands/{command}:resize"
    answer = await there.client.post(path, json={"rows": 50, "columns": 132})
    assert (answer.status_code, answer.content, process.size) == (204, b"", (50, 132))
    problem(await there.client.post(path, json={"rows": 0, "columns": 1}), 400, "invalid-request")


@pytest.mark.parametrize(("given", "number"), [("SIGTERM", 15), ("SIGINT", 2), (9, 9), (64, 64)])
async def test_signals_have_names_and_numbers(there: Desk, given: str | int, number: int) -> None:
    sandbox = await there.sandbox()
    command, _ = await there.background(sandbox, "sleep")
    path = f"/v1/sandboxes/{sandbox}/commands/{command}"
    assert (await there.client.post(f"{path}:signal", json={"signal": given})).status_code == 204
    said = (await there.client.get(path)).json()
    assert (said["status"], said["signal"]) == ("signaled", number)


@pytest.mark.parametrize("given", [0, 65, "TERM", "SIGNOPE", None, True, 1.5])
async def test_other_signals_are_400(there: Desk, given: Any) -> None:
    sandbox = await there.sandbox()
    command, process = await there.background(sandbox, "sleep")
    answer = await there.client.post(f"/v1/sandboxes/{sandbox}/commands/{command}:signal", json={"signal": given})
    problem(answer, 400, "invalid-request")
    assert process.status is CommandStatus.RUNNING


# --- the audit list ----------------------------------------------------------------------------------------


async def test_deeds_are_in_the_audit_list_and_keystrokes_are_not(there: Desk) -> None:
    async with there.api.service.index.working():
        headers = await there.as_tenant("acme")
        there.client.headers.update(headers)
        sandbox = await there.sandbox(sandbox_id="mine", env={"TOKEN": "hunter2"})
        answer = await there.run(sandbox, "cat", stdin=True, background=True, terminal={"rows": 1, "columns": 1})
        command = answer.json()["command_id"]
        path = f"/v1/sandboxes/{sandbox}"
        for method, url, body in (
            ("POST", f"{path}/commands/{command}/stdin?offset=0", None),
            ("POST", f"{path}/commands/{command}:resize", {"rows": 2, "columns": 2}),
            ("POST", f"{path}/commands/{command}:signal", {"signal": "SIGKILL"}),
            ("PUT", f"{path}/files/content?path=f", None),
            ("POST", f"{path}/files/folders?path=g", None),
            ("DELETE", f"{path}/files?path=g", None),
            ("POST", f"{path}:extend", {"lease_seconds": 100}),
            ("GET", f"{path}/files/content?path=f", None),
            ("DELETE", path, None),
        ):
            done = await there.client.request(method, url, json=body, headers=BYTES if body is None else {})
            assert done.is_success, (url, done.text)
        admin = there.api.client()
        found: list[dict[str, Any]] = []

        async def told() -> bool:
            found[:] = (await admin.get("/v1/audit", params={"tenant": "acme"})).json()["entries"]
            return len(found) >= 8

        await until(told)
        assert [one["action"] for one in reversed(found)] == [
            "sandbox.created", "command.started", "command.signalled", "file.written", "folder.made", "file.removed",
            "sandbox.extended", "sandbox.removed",
        ]  # fmt: skip
        assert {one["target"] for one in found} == {"mine"}
        assert found[-2]["detail"]["command_id"] == command
        assert found[-4]["detail"]["path"] == "f"
        assert "hunter2" not in json.dumps(found)
