"""The MCP server at the server's door, asked by the protocol's own client over a real socket."""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import suppress
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fumehood.broker.memory import MemoryBroker
from fumehood.control.callers import Scope
from fumehood.errors import InvalidRequestError
from fumehood.mcp.door import DoorBounds
from fumehood.mcp.toolbox import TOOLS
from fumehood.wire.console.sessions import CommandStatus
from tests.contract.console_worker import Process
from tests.contract.mcp_harness import MODES, Served, refused, said, serving, text
from tests.contract.server_api_harness import ADMIN, Api
from tests.waiting import past, until

FILE = {"path": "/workspace/a", "content": "a"}


@pytest.mark.parametrize("mode", MODES)
async def test_tools_are_listed_and_called(mode: str) -> None:
    async with serving() as served, served.client(mode=mode) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == [tool.name for tool in TOOLS]
        answer = said(await client.call_tool("run_command", {"command": "echo hi; err oh; exit 3", "session": "s1"}))
        assert (answer["status"], answer["exit_code"], answer["stdout"], answer["stderr"]) == (
            "exited",
            3,
            "hi\n",
            "oh\n",
        )
        assert (answer["session"], answer["session_kept"], answer["truncated"]) == ("s1", True, False)


async def test_a_call_that_fails_says_that_it_made_the_session() -> None:
    async with serving() as served, served.client() as client:
        asked = {"session": "new", "path": "/workspace", "content": "x"}
        assert "this call made the session new" in refused(await client.call_tool("write_file", asked))["detail"]
        assert "made the session" not in refused(await client.call_tool("write_file", asked))["detail"]


async def test_a_session_keeps_its_files_until_it_is_ended() -> None:
    async with serving() as served, served.client() as client:
        made = said(await client.call_tool("write_file", {"path": "/workspace/a.txt", "content": "grüße\n"}))
        session = made["session"]
        assert made["session_created"]
        again = said(await client.call_tool("run_command", {"session": session, "command": "echo"}))
        assert not again["session_created"]
        other = said(await client.call_tool("start_command", {"session": "misspelt", "command": "echo"}))
        assert other["session_created"]
        said(await client.call_tool("end_session", {"session": "misspelt"}))
        read = said(await client.call_tool("read_file", {"session": session, "path": "/workspace/a.txt"}))
        assert (read["content"], read["exact"], read["more"]) == ("grüße\n", True, False)
        listed = said(await client.call_tool("list_files", {"session": session}))
        assert [one["name"] for one in listed["files"]] == ["a.txt"]
        sessions = said(await client.call_tool("sessions", {}))
        assert [one["session"] for one in sessions["sessions"]] == [session]
        said(await client.call_tool("end_session", {"session": session}))
        assert refused(await client.call_tool("list_files", {"session": session}))["code"] == "session-not-found"


@pytest.mark.parametrize("path", ["/proc/cpuinfo", "/sys/devices/cpu"])
async def test_a_file_of_the_kernel_is_read_whatever_size_it_says(path: str) -> None:
    async with serving() as served, served.client() as client:
        asked, text = {"session": "s1", "path": path}, "processor: 0\n" * 30
        said(await client.call_tool("write_file", {**asked, "content": text}))
        whole = said(await client.call_tool("read_file", asked))
        assert (whole["content"], whole["size_bytes"], whole["more"]) == (text, 390, False)
        first = said(await client.call_tool("read_file", {**asked, "limit": 256}))
        rest = said(await client.call_tool("read_file", {**asked, "offset": first["next_offset"]}))
        assert (first["content"] + rest["content"], first["more"], rest["more"]) == (text, True, False)


async def test_python_runs_in_a_sandbox_of_its_own_that_goes() -> None:
    async with serving() as served, served.client() as client:
        answer = said(await client.call_tool("run_python", {"code": "print(6 * 7)"}))
        assert (answer["status"], answer["session_kept"]) == ("exited", False)

        async def gone() -> bool:
            return not served.worker.sessions

        await until(gone)


async def test_a_command_in_the_background_is_watched_and_stopped() -> None:
    async with serving() as served, served.client() as client:
        started = said(await client.call_tool("start_command", {"command": "echo begun; sleep", "session": "s1"}))
        place = {"session": "s1", "command_id": started["command_id"]}
        seen = said(await client.call_tool("command_output", place))
        assert (seen["status"], seen["stdout"], seen["stdout_bytes"]) == ("running", "begun\n", 6)
        again = said(await client.call_tool("command_output", {**place, "stdout_from": 6, "wait_seconds": 0.2}))
        assert (again["status"], again["stdout"]) == ("running", "")
        stopped = said(await client.call_tool("stop_command", place))
        assert stopped["status"] == "signaled"
        assert said(await client.call_tool("command_output", place))["signal"] == "SIGKILL"


async def test_it_waits_for_the_end_of_one_in_the_background() -> None:
    async with serving() as served, served.client() as client:
        started = said(await client.call_tool("start_command", {"command": "wait; exit 4", "session": "s1"}))
        place = {"session": "s1", "command_id": started["command_id"]}
        waiting = asyncio.create_task(client.call_tool("command_output", {**place, "wait_seconds": 60}))
        (await served.process("s1")).may_go_on.set()
        assert said(await waiting)["exit_code"] == 4


async def test_input_reaches_the_command() -> None:
    async with serving() as served, served.client() as client:
        answer = said(await client.call_tool("run_command", {"command": "cat", "session": "s1", "input": "hello"}))
        assert answer["stdout"] == "hello"


async def test_input_that_cannot_be_sent_is_the_answer_and_not_the_kill_behind_it() -> None:
    async with serving() as served, served.client() as client:
        served.worker.refuses_input = True
        answer = await client.call_tool("run_command", {"command": "cat", "session": "s1", "input": "hello"})
        assert refused(answer)["code"] == "execution-failed"
        assert refused(answer)["detail"].startswith("the input cannot be stored;")
        assert (await served.process("s1")).status is CommandStatus.SIGNALED


@pytest.mark.parametrize(
    ("tool", "more"), [("run_command", {"command": "echo"}), ("run_python", {"code": "1"}), ("write_file", FILE)]
)
async def test_a_session_is_never_taken_for_one_of_another_image_or_network(tool: str, more: dict[str, str]) -> None:
    async with serving() as served, served.client() as client:
        made = {"command": "echo", "session": "s1", "image": "base:1", "network": "full"}
        said(await client.call_tool("run_command", made))
        for name, other, own in (("network", "deny-all", "full"), ("image", "base:2", "base:1")):
            error = refused(await client.call_tool(tool, {**more, "session": "s1", name: other}))
            wanted = f"the session s1 has the {name} {own}, not {other}: leave out `{name}`, or use another session"
            assert error["detail"] == wanted
        said(await client.call_tool(tool, {**more, "session": "s1", "image": "base:1", "network": "full"}))


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (CommandStatus.TIMED_OUT, "timed_out: it took longer"),
        (CommandStatus.OOM, "oom: killed"),
        (CommandStatus.SANDBOX_LOST, "sandbox_lost: nothing is known"),
        (CommandStatus.NOT_STARTED, "not_started: it could not be started"),
    ],
)
async def test_each_end_is_told_as_what_it_is(status: CommandStatus, words: str) -> None:
    async with serving() as served, served.client() as client:
        call = asyncio.create_task(client.call_tool("run_command", {"command": "wait", "session": "s1"}))
        (await served.process("s1")).end(status)
        result = await call
        assert said(result)["status"] == status.value
        assert said(result)["exit_code"] is None
        assert said(result)["truncated"] == (status is CommandStatus.SANDBOX_LOST)
        assert text(result).startswith(f"status: {words}")


async def test_what_a_lost_sandbox_printed_is_never_all_of_it() -> None:
    async with serving() as served, served.client() as client:
        call = asyncio.create_task(client.call_tool("run_command", {"command": "wait", "session": "s1"}))
        process = await served.process("s1")
        del served.worker.sessions["default", "s1"]
        process.print(1, b"begun\n")
        answer = said(await call)
        assert (answer["status"], answer["session_kept"], answer["truncated"]) == ("sandbox_lost", False, True)


@pytest.mark.parametrize("kept", [True, False])
async def test_a_session_that_ended_with_its_memory_is_not_called_kept(kept: bool) -> None:
    async with serving() as served, served.client() as client:
        call = asyncio.create_task(client.call_tool("run_command", {"command": "wait", "session": "s1"}))
        process = await served.process("s1")
        process.end(CommandStatus.OOM)
        if not kept:
            served.worker.has_ended = True
        assert said(await call)["session_kept"] == kept


async def test_a_forgotten_command_is_no_lost_sandbox() -> None:
    async with serving() as served, served.client() as client:
        call = asyncio.create_task(client.call_tool("run_command", {"command": "wait", "session": "s1"}))
        process = await served.process("s1")
        served.session("s1").processes.clear()
        process.print(1, b"begun\n")
        error = refused(await call)
        assert error["code"] == "command-not-found"
        assert process.command_id in error["detail"]


async def test_one_that_is_over_at_once_is_not_called_running() -> None:
    async with serving() as served, served.client() as client:
        started = said(await client.call_tool("start_command", {"command": "exit 3", "session": "s1"}))
        assert started["status"] == "exited"


# --- output ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_large_output_is_bounded_and_can_be_read_on_to_the_byte(mode: str) -> None:
    async with serving() as served, served.client(mode=mode) as client:
        result = await client.call_tool(
            "run_command", {"command": "echo begin; print 300000; echo end", "session": "s1", "output_bytes": 1024}
        )
        answer = said(result)
        assert answer["truncated"]
        assert len(text(result)) < 2000
        assert answer["stdout"].startswith("begin\n")
        assert answer["stdout"].endswith("end\n")
        (left,) = answer["left_out"]
        assert left["stream"] == "stdout"
        assert left["bytes"] == answer["stdout_bytes"] - 1024
        place = {"session": "s1", "command_id": answer["command_id"], "encoding": "base64", "limit": 100_000}
        whole, offset = b"", 0
        while True:
            page = said(await client.call_tool("read_output", {**place, "offset": offset}))
            whole += base64.b64decode(page["content"])
            assert page["next_offset"] == len(whole)
            offset = page["next_offset"]
            if not page["more"]:
                break
        assert whole == b"begin\n" + b"x" * 300_000 + b"end\n"


async def test_output_that_nobody_kept_is_told() -> None:
    async with serving() as served, served.client() as client:
        started = said(await client.call_tool("start_command", {"command": "print 5000; wait", "session": "s1"}))
        process = await served.process("s1")
        await process.until(lambda: bool(process.printed[1]), 30)
        process.forgotten = 3000
        place = {"session": "s1", "command_id": started["command_id"]}
        page = said(await client.call_tool("read_output", {**place, "offset": 1000}))
        assert (page["offset"], page["lost_bytes"], page["next_offset"]) == (3000, 2000, 5000)
        seen = said(await client.call_tool("command_output", place))
        assert seen["truncated"]
        assert seen["left_out"] == [{"stream": "stdout", "offset": 0, "bytes": 3000}]


async def test_hostile_output_is_shown_and_not_obeyed() -> None:
    hostile = b"\x1b]0;owned\x07\xff\x00\xe2\x80\xae\xf3\xa0\x81\x81\n"
    async with serving() as served, served.client() as client:
        call = asyncio.create_task(client.call_tool("run_command", {"command": "wait", "session": "s1"}))
        process = await served.process("s1")
        process.print(1, hostile)
        process.may_go_on.set()
        result = await call
        answer = said(result)
        assert answer["stdout"] == "\\x1b]0;owned\\x07�\\x00\\u202e\\U000e0041\n"
        assert answer["stdout"] in text(result)
        place = {"session": "s1", "command_id": answer["command_id"]}
        page = said(await client.call_tool("read_output", place))
        assert not page["exact"]
        page = said(await client.call_tool("read_output", {**place, "encoding": "base64"}))
        assert base64.b64decode(page["content"]) == hostile


async def test_a_file_is_read_in_parts_to_the_byte() -> None:
    content = bytes(range(256)) * 1000
    async with serving() as served, served.client() as client:
        asked = {"session": "s1", "path": "/workspace/b", "encoding": "base64"}
        said(await client.call_tool("write_file", {**asked, "content": base64.b64encode(content).decode()}))
        whole, offset = b"", 0
        while True:
            page = said(await client.call_tool("read_file", {**asked, "offset": offset, "limit": 100_000}))
            whole += base64.b64decode(page["content"])
            offset = page["next_offset"]
            if not page["more"]:
                break
        assert whole == content


# --- progress and cancellation -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_progress_is_told_while_a_command_runs(mode: str) -> None:
    heard: list[tuple[float, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, message))

    async with serving() as served, served.client(mode=mode) as client:
        asked = {"command": "wait; exit 0", "session": "s1"}
        call = asyncio.create_task(client.call_tool("run_command", asked, progress_callback=hear))
        process = await served.process("s1")
        process.print(1, b"step one\n")

        async def told() -> bool:
            return any(message is not None and "9 bytes: step one" in message for _, message in heard)

        await until(told)
        process.may_go_on.set()
        assert said(await call)["status"] == "exited"
    assert [amount for amount, _ in heard] == sorted({amount for amount, _ in heard})


@pytest.mark.parametrize("mode", MODES)
async def test_a_cancelled_call_kills_its_command(mode: str) -> None:
    async with serving() as served, served.client(mode=mode) as client:
        call = asyncio.create_task(client.call_tool("run_command", {"command": "sleep", "session": "s1"}))
        process = await served.process("s1")
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await process.until(lambda: process.status is not CommandStatus.RUNNING, 30)
        assert process.signal == 9
        assert said(await client.call_tool("sessions", {}))["sessions"]  # the session stays


@pytest.mark.parametrize("mode", MODES)
async def test_a_cancelled_call_removes_its_own_sandbox(mode: str) -> None:
    async with serving() as served, served.client(mode=mode) as client:
        call = asyncio.create_task(client.call_tool("run_python", {"code": "; sleep"}))  # after `python3 -c`

        async def made() -> bool:
            assert not call.done(), call.result()
            return bool(served.worker.sessions)

        await until(made)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

        async def gone() -> bool:
            return not served.worker.sessions

        await until(gone)


async def test_a_background_command_outlives_the_call_and_the_client() -> None:
    async with serving() as served:
        async with served.client() as client:
            said(await client.call_tool("start_command", {"command": "sleep", "session": "s1"}))
        process = await served.process("s1")
        async with served.client() as client:
            seen = said(await client.call_tool("command_output", {"session": "s1", "command_id": process.command_id}))
            assert seen["status"] == "running"


@pytest.mark.parametrize("mode", MODES)
async def test_closing_the_door_ends_what_runs(mode: str) -> None:
    async with serving() as served, served.client(mode=mode) as client:
        call = asyncio.create_task(client.call_tool("run_command", {"command": "sleep", "session": "s1"}))
        process = await served.process("s1")
        await served.door.close(0.1)
        await process.until(lambda: process.status is not CommandStatus.RUNNING, 30)
        assert process.signal == 9
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


async def test_a_door_that_closes_waits_for_calls_and_not_for_streams() -> None:
    async with serving() as served, served.client() as client:  # it holds a stream on which nothing comes
        await client.list_tools()  # else it would ask for them when the answer has come
        call = asyncio.create_task(client.call_tool("run_command", {"command": "wait", "session": "s1"}))
        process = await served.process("s1")
        closing = asyncio.create_task(served.door.close(60))
        async with served.http() as http:

            async def is_shut() -> bool:
                return (await http.post("/mcp", json=HANDSHAKE, headers=ACCEPT)).status_code == 503

            await until(is_shut)
        process.may_go_on.set()
        assert said(await call)["status"] == "exited"
        async with asyncio.timeout(30):
            await closing


# --- what is wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "arguments", "word"),
    [
        ("run_command", {}, "command: is missing"),
        ("run_command", {"command": "x", "sesion": "s"}, "sesion: there is no such argument, did you mean session?"),
        ("run_command", {"command": "x", "timeout_seconds": 0}, "timeout_seconds: "),
        ("run_command", {"command": "x", "session": "no spaces"}, "session: "),
        ("read_output", {"session": "s", "command_id": "c", "limit": 10**9}, "limit: "),
        ("read_file", {"session": "s", "path": "p", "encoding": "latin"}, "encoding: "),
        ("write_file", {"path": "p", "content": "§", "encoding": "base64"}, "content: is not base64"),
        ("get_receipt", {"session": "s"}, "session and command_id belong together"),
        ("run_python", {"code": "x" * 200_000}, "code: must have at most"),
    ],
)
async def test_wrong_arguments_are_told_by_name(tool: str, arguments: dict[str, Any], word: str) -> None:
    async with serving() as served, served.client() as client:
        error = refused(await client.call_tool(tool, arguments))
        assert error["code"] == "invalid-request"
        assert word in error["detail"]
        assert not served.worker.sessions


async def test_what_is_not_there_is_told_with_what_to_do() -> None:
    async with serving() as served, served.client() as client:
        error = refused(await client.call_tool("command_output", {"session": "nope", "command_id": "c"}))
        assert error["code"] == "session-not-found"
        assert "sessions" in error["remedy"]
        said(await client.call_tool("run_command", {"command": "echo", "session": "s1"}))
        error = refused(await client.call_tool("read_file", {"session": "s1", "path": "/nope"}))
        assert error["code"] == "file-not-found"
        error = refused(await client.call_tool("watch_run", {"run_id": "nope"}))
        assert error["code"] == "not-found"


@settings(max_examples=15)
@given(
    st.dictionaries(
        st.sampled_from(["command", "session", "timeout_seconds", "env", "cwd", "other"]),
        st.recursive(
            st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=20), lambda x: st.lists(x, max_size=3)
        ),
    )
)
def test_whatever_the_arguments_are_the_answer_is_one(arguments: dict[str, Any]) -> None:
    tool = next(tool for tool in TOOLS if tool.name == "run_command")
    with suppress(InvalidRequestError):
        tool.parsed(arguments)


# --- workflows ---------------------------------------------------------------------------------------------


async def test_a_workflow_is_started_and_watched() -> None:
    heard: list[str | None] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message)

    sleeping = "name: w\nsteps:\n  - {id: a, sleep: 1ms}\n"
    async with serving() as served, served.http() as http, served.api.deciding(), served.client() as client:
        headers = {"content-type": "application/yaml"}
        applied = await http.put("/v1/workflows/w", content=sleeping, headers=headers)
        assert applied.is_success, applied.text
        assert said(await client.call_tool("list_workflows", {}))["workflows"][0]["name"] == "w"
        run = said(await client.call_tool("start_workflow", {"workflow": "w", "input": {"a": 1}}))
        asked = {"run_id": run["run_id"], "wait_seconds": 0.5}
        watched = said(await client.call_tool("watch_run", asked, progress_callback=hear))
        assert watched["run_id"] == run["run_id"]
        assert [step["step"] for step in watched["steps"]] == ["a"]
        cancelled = said(await client.call_tool("cancel_run", {"run_id": run["run_id"], "reason": "enough"}))
        assert cancelled["run_id"] == run["run_id"]


async def test_a_run_that_was_started_before_is_told_as_it_is() -> None:
    async with serving() as served, served.http() as http, served.api.deciding(), served.client() as client:
        content, headers = "name: w\nsteps:\n  - {id: a, sleep: 1ms}\n", {"content-type": "application/yaml"}
        await http.put("/v1/workflows/w", content=content, headers=headers)
        asked = {"workflow": "w", "idempotency_key": "k"}
        first = said(await client.call_tool("start_workflow", asked))
        said(await client.call_tool("cancel_run", {"run_id": first["run_id"]}))

        async def ended() -> bool:
            watched = await client.call_tool("watch_run", {"run_id": first["run_id"], "wait_seconds": 0.5})
            return bool(said(watched)["ended"])

        await until(ended)
        again = said(await client.call_tool("start_workflow", asked))
        assert again["run_id"] == first["run_id"]
        assert again["status"] in ("succeeded", "cancelled")


# --- who may come in ---------------------------------------------------------------------------------------


HANDSHAKE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
PING = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
ACCEPT = {"accept": "application/json, text/event-stream"}


@pytest.mark.parametrize("token", [None, "wrong"])
async def test_without_a_key_nobody_comes_in(token: str | None) -> None:
    async with serving() as served, served.http(token) as http:
        for method in ("POST", "GET", "DELETE", "PUT"):
            answer = await http.request(method, "/mcp", headers=ACCEPT)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith("Bearer")
        assert len(served.door) == 0


async def test_a_key_does_what_it_may_and_no_more() -> None:
    async with serving() as served:
        reader = await served.key(scopes=frozenset({Scope.SANDBOXES_READ}))
        async with served.client(reader) as client:
            assert said(await client.call_tool("sessions", {}))["sessions"] == []
            error = refused(await client.call_tool("run_command", {"command": "echo"}))
            assert error["code"] == "forbidden"
            assert "sandboxes" in error["detail"]
            assert refused(await client.call_tool("list_workflows", {}))["code"] == "forbidden"
        assert not served.worker.sessions


async def test_a_tenant_sees_its_own_and_nothing_else() -> None:
    async with serving() as served:
        ours, theirs = await served.key("acme"), await served.key("globex")
        async with served.client(ours) as client:
            made = said(await client.call_tool("run_command", {"command": "echo secret", "session": "s1"}))
        async with served.client(theirs) as client:
            assert said(await client.call_tool("sessions", {}))["sessions"] == []
            place = {"session": "s1", "command_id": made["command_id"]}
            assert refused(await client.call_tool("command_output", place))["code"] == "session-not-found"
            assert refused(await client.call_tool("read_output", place))["code"] == "session-not-found"
            assert refused(await client.call_tool("end_session", {"session": "s1"}))["code"] == "session-not-found"
        assert ("acme", "s1") in served.worker.sessions


async def test_a_session_of_the_protocol_is_its_keys_alone() -> None:
    async with serving() as served:
        ours, theirs = await served.key("acme"), await served.key("acme")
        async with served.http(ours) as one, served.http(theirs) as other:
            opened = await one.post("/mcp", json=HANDSHAKE, headers=ACCEPT)
            assert opened.status_code == 200
            session = {"mcp-session-id": opened.headers["mcp-session-id"], **ACCEPT}
            assert (await other.post("/mcp", json=PING, headers=session)).status_code == 404
            assert (await other.delete("/mcp", headers=session)).status_code == 404
            assert (await one.post("/mcp", json=PING, headers=session)).status_code == 200


async def test_a_revoked_key_is_out_at_once() -> None:
    async with serving() as served, served.http(await served.key()) as http:
        opened = await http.post("/mcp", json=HANDSHAKE, headers=ACCEPT)
        session = {"mcp-session-id": opened.headers["mcp-session-id"], **ACCEPT}
        assert (await http.post("/mcp", json=PING, headers=session)).status_code == 200
        (listed,), _ = await served.api.service.keys.list("acme", limit=10)
        async with served.http() as admin:
            revoked = await admin.delete(f"/v1/keys/{listed.id}")
            assert revoked.is_success, revoked.text
        assert (await http.post("/mcp", json=PING, headers=session)).status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://evil.example", "host": "evil.example"}, 403),
        ({"host": "evil.example"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"origin": "http://localhost:3000"}, 403),
        ({"origin": "http://localhost:8080", "host": "localhost:8080"}, 200),
        ({"host": "localhost:8080"}, 200),
        ({}, 200),
    ],
)
async def test_pages_of_others_are_refused(headers: dict[str, str], status: int) -> None:
    async with serving() as served, served.http() as http:
        answer = await http.post("/mcp", json=HANDSHAKE, headers={**ACCEPT, **headers})
        assert answer.status_code == status


async def test_a_body_that_is_too_long_is_refused() -> None:
    async with serving(DoorBounds(body_bytes=2048)) as served, served.http() as http:
        answer = await http.post("/mcp", json={**HANDSHAKE, "filler": "x" * 4096}, headers=ACCEPT)
        assert answer.status_code == 413


async def test_sessions_of_a_key_are_bounded_and_others_have_their_own() -> None:
    async with serving(DoorBounds(sessions=2)) as served, served.http() as http:
        opened = [await http.post("/mcp", json=HANDSHAKE, headers=ACCEPT) for _ in range(3)]
        assert [answer.status_code for answer in opened] == [200, 200, 503]
        async with served.http(await served.key()) as other:
            assert (await other.post("/mcp", json=HANDSHAKE, headers=ACCEPT)).status_code == 200
        ended = await http.delete("/mcp", headers={"mcp-session-id": opened[0].headers["mcp-session-id"], **ACCEPT})
        assert ended.status_code == 200
        assert (await http.post("/mcp", json=HANDSHAKE, headers=ACCEPT)).status_code == 200


async def test_keys_and_requests_are_bounded() -> None:
    async with serving(DoorBounds(keys=1, requests=1)) as served, served.http() as http:
        assert (await http.post("/mcp", json=HANDSHAKE, headers=ACCEPT)).status_code == 200
        async with served.http(await served.key()) as other:
            refusal = await other.post("/mcp", json=HANDSHAKE, headers=ACCEPT)
            assert refusal.status_code == 503
            assert refusal.headers["retry-after"]
        async with served.client(ADMIN, "auto") as client:
            call = asyncio.create_task(client.call_tool("run_command", {"command": "wait", "session": "s1"}))
            process = await served.process("s1")
            assert (await http.post("/mcp", json=HANDSHAKE, headers=ACCEPT)).status_code == 503
            process.may_go_on.set()
            said(await call)


async def test_a_call_counts_until_it_is_over_whoever_hung_up() -> None:
    async with serving(DoorBounds(requests=2)) as served, served.http() as http:
        opened = await http.post("/mcp", json=HANDSHAKE, headers=ACCEPT)
        session = {"mcp-session-id": opened.headers["mcp-session-id"], **ACCEPT}
        await http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=session)
        left = [await _left_behind(served, http, name, session) for name in ("s1", "s2")]
        assert (await http.post("/mcp", json=PING, headers=session)).status_code == 503
        assert [process.status for process in left] == [CommandStatus.RUNNING] * 2
        left[0].may_go_on.set()

        async def free() -> bool:
            return (await http.post("/mcp", json=PING, headers=session)).status_code == 200

        await until(free)


async def _left_behind(served: Served, http: httpx.AsyncClient, name: str, headers: dict[str, str]) -> Process:
    """Asks for a command, and hangs up when it runs; the server has noticed."""
    wanted = {"name": "run_command", "arguments": {"command": "wait", "session": name}}
    asked = {"jsonrpc": "2.0", "id": name, "method": "tools/call", "params": wanted}
    call = asyncio.create_task(http.post("/mcp", json=asked, headers=headers))
    process = await served.process(name)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    (desk,) = served.door._desks.values()

    async def noticed() -> bool:
        return not desk._requests

    await until(noticed)
    return process


async def test_an_idle_session_is_over_and_its_desk_goes() -> None:
    async with serving(DoorBounds(idle_seconds=0.2)) as served, served.http() as http:
        opened = await http.post("/mcp", json=HANDSHAKE, headers=ACCEPT)
        session = {"mcp-session-id": opened.headers["mcp-session-id"], **ACCEPT}
        await past(0.5)
        assert (await http.post("/mcp", json=PING, headers=session)).status_code == 404


async def test_what_tools_change_stands_in_the_audit_list_under_the_keys_name() -> None:
    async with serving() as served:
        async with served.client(await served.key()) as client:
            said(await client.call_tool("run_command", {"command": "echo", "session": "s1"}))
        entries = await MemoryBroker(served.api.memory).audit.tail(after=0, limit=1000)
        done = [(line["tenant"], line["action"]) for line in (json.loads(entry.data) for entry in entries)]
        assert {("acme", "sandbox.created"), ("acme", "command.started")} <= set(done)


async def test_a_server_without_it_has_no_such_path() -> None:
    async with Api().client() as client:
        assert (await client.post("/mcp", json=HANDSHAKE)).status_code == 404
