"""Fumehood as an agent program meets it: the protocol's own client, a real `fumehood dev`, real containers."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from fumehood.mcp.toolbox import TOOLS
from tests.contract.mcp_harness import refused, said, text
from tests.dev_process import Dev
from tests.waiting import until

ROOT = Path(__file__).parents[2]
SECONDS = 90.0
WORKFLOW = "name: short\nsteps:\n  - {id: nap, sleep: 10ms}\n"
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
WAYS = ("stdio", "http")
MODES = (
    ("stdio", "auto"),
    ("http", "legacy"),
    pytest.param("stdio", "legacy", marks=pytest.mark.variant),
    pytest.param("http", "auto", marks=pytest.mark.variant),
)
"""Each way and each mode of the client; all pairs of them in `nox -s full`."""


@asynccontextmanager
async def connected(dev: Dev, way: str, mode: str = "auto") -> AsyncIterator[Client]:
    if way == "stdio":
        words = ["-m", "fumehood", "mcp"]
        server = StdioServerParameters(command=sys.executable, args=words, env=dev.env, cwd=str(ROOT))
        async with Client(server, mode=mode, read_timeout_seconds=SECONDS) as client:
            yield client
        return
    headers = {"authorization": f"Bearer {(dev.state / 'api.token').read_text().strip()}"}
    async with httpx2.AsyncClient(headers=headers, timeout=240) as http:
        transport = streamable_http_client(f"{dev.server_url}/mcp", http_client=http)
        async with Client(transport, mode=mode, read_timeout_seconds=SECONDS) as client:
            yield client


async def ended(client: Client, session: str) -> None:
    await client.call_tool("end_session", {"session": session})


@pytest.mark.parametrize(("way", "mode"), MODES)
async def test_an_agents_first_minutes(dev: Dev, way: str, mode: str) -> None:
    session = f"{way}-{mode}"
    async with connected(dev, way, mode) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == {tool.name for tool in TOOLS}
        alone = said(await client.call_tool("run_python", {"code": "print(6 * 7)"}))
        assert (alone["status"], alone["exit_code"], alone["stdout"]) == ("exited", 0, "42\n")
        assert not alone["session_kept"]
        said(await client.call_tool("write_file", {"session": session, "path": "n.txt", "content": "4\n8\n15\n"}))
        code = "print(sum(map(int, open('n.txt'))))"
        answer = said(await client.call_tool("run_python", {"session": session, "code": code}))
        assert answer["stdout"] == "27\n"
        receipt = said(await client.call_tool("get_receipt", {"session": session, "command_id": answer["command_id"]}))
        assert receipt["verification"] == "verified", receipt
        assert hashlib.sha256(b"27\n").hexdigest() in receipt["claim"]
        assert ("checked by the server" in receipt["detail"]) == (way == "http")
        await ended(client, session)


@pytest.mark.parametrize("way", WAYS)
async def test_ends_are_told_as_they_are(dev: Dev, way: str) -> None:
    session = f"ends-{way}"
    async with connected(dev, way) as client:

        async def run(command: str, **more: Any) -> dict[str, Any]:
            return said(await client.call_tool("run_command", {"session": session, "command": command, **more}))

        failed = await run("echo no >&2; exit 7")
        assert (failed["status"], failed["exit_code"], failed["stderr"]) == ("exited", 7, "no\n")
        killed = await run("kill -9 $$")
        assert (killed["status"], killed["signal"], killed["exit_code"]) == ("signaled", "SIGKILL", None)
        late = await run("sleep 60", timeout_seconds=1)
        assert (late["status"], late["exit_code"]) == ("timed_out", None)
        bad = refused(await client.call_tool("run_command", {"session": session, "command": "x", "cwd": "\0"}))
        assert bad["code"] == "invalid-request"
        await ended(client, session)


async def test_output_is_bounded_safe_and_whole_in_the_end(dev: Dev) -> None:
    program = "import sys\nsys.stdout.buffer.write(b'\\x1b[2J\\xff' + bytes(range(256)) * 2000)"
    expected = b"\x1b[2J\xff" + bytes(range(256)) * 2000
    async with connected(dev, "http") as client:
        result = await client.call_tool("run_python", {"code": program})
        answer = said(result)
        assert answer["truncated"]
        assert answer["session_kept"]  # so that the rest can be read
        assert len(text(result)) < 80_000
        assert not {char for char in text(result) if ord(char) < 32} - {"\n", "\t", "\r"}
        place = {"session": answer["session"], "command_id": answer["command_id"]}
        whole, more = b"", True
        while more:
            asked = {**place, "offset": len(whole), "limit": 131_072, "encoding": "base64"}
            page = said(await client.call_tool("read_output", asked))
            whole, more = whole + base64.b64decode(page["content"]), page["more"]
        assert whole == expected
        await ended(client, answer["session"])


@pytest.mark.parametrize(("way", "mode"), MODES)
async def test_progress_and_cancellation(dev: Dev, way: str, mode: str) -> None:
    session, running = f"cancel-{way}-{mode}", asyncio.Event()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        if message is not None and "begun" in message:
            running.set()

    async with connected(dev, way, mode) as client:
        asked = {"session": session, "command": "echo begun; sleep 600"}
        call = asyncio.create_task(client.call_tool("run_command", asked, progress_callback=hear))
        async with asyncio.timeout(SECONDS):
            await running.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        look = {"session": session, "command": "cat /proc/[0-9]*/comm 2>/dev/null | grep -cx sleep"}

        async def is_gone() -> bool:
            return bool(said(await client.call_tool("run_command", look))["stdout"] == "0\n")

        await until(is_gone, every=0.2)
        await ended(client, session)


async def test_a_workflow_runs_to_its_end(dev: Dev) -> None:
    (dev.home / "short.yaml").write_text(WORKFLOW)
    words = [sys.executable, "-m", "fumehood", "workflow", "apply", str(dev.home / "short.yaml")]
    await asyncio.to_thread(subprocess.run, words, env=dev.env, cwd=ROOT, check=True, capture_output=True)
    async with connected(dev, "stdio") as client:
        assert "short" in [one["name"] for one in said(await client.call_tool("list_workflows", {}))["workflows"]]
        run = said(await client.call_tool("start_workflow", {"workflow": "short"}))
        watched = said(await client.call_tool("watch_run", {"run_id": run["run_id"], "wait_seconds": 60}))
        assert (watched["status"], watched["ended"]) == ("succeeded", True)


async def test_stdout_carries_the_protocol_alone(dev: Dev) -> None:
    """Also where something is wrong from the beginning."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "fumehood", "mcp"],
        input=f"{json.dumps(HELLO)}\nno json at all\n",
        env=dev.env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[0]["result"]["serverInfo"]["name"] == "fumehood"
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


async def test_a_program_that_goes_takes_its_command_along(dev: Dev) -> None:
    """It closes our stdin and says nothing more."""
    calling = {"name": "run_command", "arguments": {"session": "left", "command": "echo begun; sleep 600"}}
    asked = [
        HELLO,
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {**calling, "_meta": {"progressToken": 1}}},
    ]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fumehood", "mcp", cwd=ROOT, env=dev.env,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("".join(f"{json.dumps(one)}\n" for one in asked).encode())
    async with asyncio.timeout(SECONDS):
        while b"begun" not in await process.stdout.readline():
            pass
        process.stdin.close()
        assert await process.wait() == 0
    look = {"session": "left", "command": "cat /proc/[0-9]*/comm 2>/dev/null | grep -cx sleep"}
    async with connected(dev, "stdio") as client:
        assert said(await client.call_tool("run_command", look))["stdout"] == "0\n"
        await ended(client, "left")


async def test_no_server_is_an_answer_with_a_remedy(dev: Dev) -> None:
    env = {**dev.env, "FUMEHOOD_URL": "http://127.0.0.1:9"}
    server = StdioServerParameters(command=sys.executable, args=["-m", "fumehood", "mcp"], env=env, cwd=str(ROOT))
    async with Client(server, read_timeout_seconds=SECONDS) as client:
        error = refused(await client.call_tool("sessions", {}))
        assert error["code"] == "unreachable"
        assert "fumehood dev" in error["remedy"]
