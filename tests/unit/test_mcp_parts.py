"""The parts of the MCP server that need no server: who may come, how the API is asked from inside, what is told."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fumehood.errors import ForbiddenError, SandboxGoneError
from fumehood.mcp.aftermath import Aftermath
from fumehood.mcp.file_tools import MOST_FILES, Folder, Listed
from fumehood.mcp.inside import InsideTransport, Message, Scope
from fumehood.mcp.origin import Origins
from fumehood.mcp.programs import PROGRAMS, Way
from fumehood.mcp.progress import Progress
from fumehood.mcp.tool import schema_of
from fumehood.mcp.toolbox import TOOLS
from fumehood.mcp.trouble import told

ROOT = Path(__file__).parents[2]
HOWTO = ROOT / "docs" / "howto" / "use-with-agents-mcp.md"


# --- origins -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("origins", "host", "origin", "fine"),
    [
        (Origins(local=True), "127.0.0.1:8080", None, True),
        (Origins(local=True), "localhost", None, True),
        (Origins(local=True), "[::1]:8080", None, True),
        (Origins(local=True), "127.0.0.1:8080", "http://127.0.0.1:8080", True),
        (Origins(local=True), "127.0.0.1:8080", "https://127.0.0.1:8080", True),
        (Origins(local=True), "127.0.0.1:8080", "https://localhost:5173", False),
        (Origins(local=True), "127.0.0.1:8080", "http://localhost:8080", False),
        (Origins(local=True), "127.0.0.1:8080", "http://127.0.0.1", False),
        (Origins(local=True, hosts=("localhost:5173",)), "127.0.0.1:8080", "http://localhost:5173", True),
        (Origins(local=True, hosts=("localhost:5173",)), "127.0.0.1:8080", "http://localhost:5174", False),
        (Origins(local=True), "evil.example:8080", None, False),
        (Origins(local=True), "evil.example:8080", "http://evil.example:8080", False),
        (Origins(local=True), "127.0.0.1:8080", "http://evil.example", False),
        (Origins(local=True), "127.0.0.1:8080", "null", False),
        (Origins(local=True), "127.0.0.1:8080", "file://", False),
        (Origins(local=True), "127.0.0.1:8080", "http://localhost@evil.example", False),
        (Origins(local=True), "127.0.0.1:8080", "http://localhost.evil.example", False),
        (Origins(local=True), "127.0.0.1:99999", None, False),
        (Origins(local=True), "", None, False),
        (Origins(local=True, hosts=("Fume.Example",)), "fume.example", None, True),
        (Origins(local=True, hosts=("fume.example",)), "fume.example:443", "https://fume.example:443", True),
        (Origins(local=True, hosts=("fume.example:443",)), "fume.example", None, False),
        (Origins(local=False), "fume.example", None, True),
        (Origins(local=False), "fume.example", "https://fume.example", True),
        (Origins(local=False), "fume.example", "https://evil.example", False),
        (Origins(local=False, hosts=("fume.example",)), "other.example", None, False),
    ],
)
def test_who_may_come_in_from_a_browser(origins: Origins, host: str, origin: str | None, fine: bool) -> None:
    assert (origins.trouble([host], [] if origin is None else [origin]) is None) == fine


def test_two_headers_are_one_too_many() -> None:
    assert Origins(local=True).trouble(["localhost", "localhost"], []) is not None
    assert Origins(local=True).trouble(["localhost"], ["http://localhost", "http://localhost"]) is not None
    assert Origins(local=True).trouble([], []) is not None


# --- the API from inside -----------------------------------------------------------------------------------


class App:
    """Answers as it is told, and knows how it went."""

    def __init__(self, *messages: Message, breaks: bool = False) -> None:
        self.messages = messages
        self.breaks = breaks
        self.scope: Scope = {}
        self.body = b""
        self.sent = 0
        self.left = False

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        self.scope = scope
        while (message := await receive())["type"] == "http.request":
            self.body += message.get("body", b"")
            if not message.get("more_body"):
                break
        try:
            for one in self.messages:
                await send(one)
                self.sent += 1
            if self.breaks:
                raise RuntimeError("broken")
            if self.messages[-1].get("more_body"):
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.left = True
            raise


def start(status: int = 200) -> Message:
    return {"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]}


def piece(data: bytes, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


def asking(app: App, **more: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=InsideTransport(app), base_url="http://inside", **more)


async def test_an_answer_comes_whole() -> None:
    app = App(start(201), piece(b"he"), piece(b"llo", more=False))
    async with asking(app, headers={"authorization": "Bearer k"}) as http:
        answer = await http.post("/a%2Fb", params={"q": "1"}, content=b"body")
    assert (answer.status_code, answer.content, app.body) == (201, b"hello", b"body")
    assert (app.scope["method"], app.scope["path"], app.scope["raw_path"]) == ("POST", "/a/b", b"/a%2Fb")
    assert app.scope["query_string"] == b"q=1"
    assert (b"authorization", b"Bearer k") in app.scope["headers"]


async def test_a_body_that_comes_in_pieces_is_taken_in_pieces() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"a"
        yield b"b"

    app = App(start(), piece(b"", more=False))
    async with asking(app) as http:
        await http.put("/", content=pieces())
    assert app.body == b"ab"


async def test_a_stream_comes_as_it_is_said_and_its_end_is_noticed() -> None:
    app = App(start(), piece(b"one"), piece(b"two"))
    async with asking(app) as http:
        async with http.stream("GET", "/") as answer:
            pieces = answer.aiter_bytes()
            assert await anext(pieces) == b"one"
            assert await anext(pieces) == b"two"
        assert app.left


async def test_whoever_does_not_read_is_waited_for() -> None:
    app = App(start(), *(piece(b"x") for _ in range(100)), piece(b"", more=False))
    async with asking(app) as http, http.stream("GET", "/") as answer:
        for _ in range(50):
            await asyncio.sleep(0)
        assert app.sent < 5
        assert len(await answer.aread()) == 100


@pytest.mark.parametrize("messages", [(start(), piece(b"half")), (start(),), ()])
async def test_an_application_that_breaks_is_a_broken_connection(messages: tuple[Message, ...]) -> None:
    app = App(*messages, breaks=True)
    async with asking(app) as http:
        with pytest.raises(httpx.RemoteProtocolError):
            await http.get("/")


async def test_every_wait_has_a_deadline() -> None:
    app = App(start(), piece(b"more to come"))
    async with asking(app, timeout=0.05) as http:
        with pytest.raises(httpx.ReadTimeout):
            await http.get("/")
    assert app.left


# --- progress and what is left to do ------------------------------------------------------------------------


async def test_progress_grows_and_is_not_told_too_often() -> None:
    heard: list[tuple[float, str]] = []

    async def hear(amount: float, message: str) -> None:
        heard.append((amount, message))

    progress = Progress(hear, pause_seconds=0)
    for amount in (5, 5, 3, 9):
        await progress.tell(amount, "x")
    assert [amount for amount, _ in heard] == sorted({amount for amount, _ in heard})
    heard.clear()
    slow = Progress(hear, pause_seconds=60)
    for amount in range(1000):
        await slow.tell(amount, "x")
    assert len(heard) == 1


async def test_silence_is_broken_now_and_then() -> None:
    heard = asyncio.Event()

    async def hear(amount: float, message: str) -> None:
        assert message.startswith("still there, ")
        heard.set()

    async with Progress(hear).ticking(lambda: "still there", seconds=0.05), asyncio.timeout(30):
        await heard.wait()


async def test_whoever_does_not_listen_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fumehood.mcp.progress.DEAF_SECONDS", 0.05)
    asked = 0

    async def deaf(amount: float, message: str) -> None:
        nonlocal asked
        asked += 1
        await asyncio.Event().wait()

    progress = Progress(deaf, pause_seconds=0)
    async with asyncio.timeout(30):
        for amount in range(10):
            await progress.tell(amount, "x")
    assert asked == 1


async def test_what_is_left_is_done_whatever_becomes_of_whoever_left_it() -> None:
    aftermath, done = Aftermath(), asyncio.Event()

    async def work() -> None:
        await asyncio.sleep(0)
        done.set()

    async def fails() -> None:
        raise SandboxGoneError("gone already")

    aftermath.leave(work(), "work")
    aftermath.leave(fails(), "work")
    assert len(aftermath) == 2
    await aftermath.close(30)
    assert done.is_set()
    aftermath.leave(asyncio.Event().wait(), "never")
    await aftermath.close(0.05)


# --- words -------------------------------------------------------------------------------------------------


def test_an_error_names_a_tool_that_helps() -> None:
    trouble = told(SandboxGoneError("no such sandbox"))
    assert (trouble.code, trouble.retryable) == ("session-not-found", False)
    assert "`sessions`" in trouble.remedy
    assert told(ForbiddenError("no\x1b[31m")).text().startswith("no\\x1b[31m (forbidden)\nremedy: ")


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: str(tool.name))
def test_every_tool_says_what_it_takes(tool: Any) -> None:
    taken = schema_of(tool.arguments)
    assert taken["type"] == "object"
    assert taken["additionalProperties"] is False
    for name, field in taken["properties"].items():
        assert "title" not in field
        text = json.dumps(field)
        assert "description" in text or name in ("run_id", "stream"), name
    assert schema_of(tool.answer, "serialization")["type"] == "object"
    assert len(tool.about) < 600
    assert not (tool.read_only and tool.destructive)


def test_the_page_has_every_tool_as_it_is() -> None:
    page = HOWTO.read_text(encoding="utf-8")
    for tool in TOOLS:
        assert f"| `{tool.name}` | {tool.about} |" in page
    for name in PROGRAMS:
        assert f"`{name}`" in page


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("url", [None, "https://fume.example/mcp"])
def test_no_configuration_has_a_key(name: str, url: str | None) -> None:
    way = Way(["/bin/fumehood", "mcp"], url)
    text = PROGRAMS[name].text(way)
    assert (tomllib if PROGRAMS[name].is_toml else json).loads(text) == PROGRAMS[name].document(way)
    document = json.dumps(PROGRAMS[name].document(way))
    if url is None or name == "claude-desktop":
        assert '"/bin/fumehood"' in document
        assert "Authorization" not in document
    else:
        assert url in document
        assert any(word in document for word in ("${", "YOUR_KEY", '"bearer_token_env_var": "FUMEHOOD_API_KEY"'))


def run(*words: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "FUMEHOOD_API_KEY": "fh_secret-of-mine"}
    return subprocess.run(
        [sys.executable, "-m", "fumehood", "mcp", *words],
        env=env,
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )


def test_the_command_prints_what_a_program_needs() -> None:
    done = run("config", "claude-code", "--context", "work")
    assert done.returncode == 0, done.stderr
    entry = json.loads(done.stdout)["mcpServers"]["fumehood"]
    assert (entry["type"], entry["args"]) == ("stdio", ["mcp", "--context", "work"])
    assert Path(entry["command"]).name == "fumehood"
    assert "secret-of-mine" not in done.stdout + done.stderr
    done = run("config", "vscode", "--http", "https://fume.example/", "--json")
    assert json.loads(done.stdout)["configuration"]["servers"]["fumehood"]["url"] == "https://fume.example/mcp"
    done = run("config", "notepad")
    assert done.returncode == 2
    assert "notepad" in done.stderr


def test_whoever_types_it_is_told_which_server_is_meant_and_whether_it_answers() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "fumehood", "mcp", "--server", "http://127.0.0.1:1"],
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stderr is not None
    first = process.stderr.readline()
    out, _ = process.communicate(timeout=120)
    assert "the server is http://127.0.0.1:1, and cannot be used: no server answers" in first
    assert (process.returncode, out) == (0, "")


def test_the_package_is_loaded_only_when_somebody_comes() -> None:
    """It takes a second, and most servers never need it."""
    code = "import sys, fumehood.cli.server_process, fumehood.cli.mcp; sys.exit('mcp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr


# --- lists -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "last"),
    [(2, "… and more: a larger limit shows them"), (MOST_FILES, f"… and more: at most {MOST_FILES} are listed")],
)
def test_a_list_that_is_cut_says_how_to_see_the_rest_only_where_that_is_possible(shown: int, last: str) -> None:
    files = [Listed(name=f"f{number}", kind="file", size_bytes=1, modified_at=None) for number in range(shown)]
    folder = Folder(session="s", path="/", files=files, total=1000, truncated=True)
    assert folder.text().splitlines()[-1] == last
    unnamed = folder.model_copy(update={"unnamed": 2, "truncated": False})
    assert unnamed.text().splitlines()[-1] == "… and 2 whose names are not UTF-8"
