"""Session calls on a real engine: each can be made again, and none reaches into what is another's."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fumehood.wire.console.sessions import MAX_WRITE_BYTES, Method
from tests.integration.worker_world import CommandError, Console, Machine, machine_in
from tests.receipt_check import checked, sha256

pytestmark = pytest.mark.asyncio(loop_scope="module")

PIECE = 512 * 1024


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, docker_socket: Path, base_image: str) -> Iterator[Machine]:
    with machine_in(tmp_path_factory.mktemp("worker"), docker_socket, base_image) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def console(machine: Machine) -> AsyncIterator[Console]:
    async with machine.life() as made:
        yield made
        await made.sessions.remove_all()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def session(console: Console) -> str:
    await console.run("session.create", {"session_id": "shared", "lease_ttl_sec": 1800, "env": {"GREETING": "hi"}})
    return "shared"


async def refusal(console: Console, method: str, payload: dict[str, Any], **more: Any) -> str:
    with pytest.raises(CommandError) as caught:
        await console.run(method, payload, **more)
    return caught.value.code


async def started(console: Console, session: str, shell: str, **more: Any) -> dict[str, Any]:
    command_id = uuid.uuid4().hex
    asked = {"session_id": session, "command_id": command_id, "shell": shell, **more}
    await console.run("session.start", asked)
    return {"session_id": session, "command_id": command_id}


async def whole(console: Console, command: dict[str, Any]) -> tuple[bytes, bytes, dict[str, Any]]:
    """Both streams to their end, and what is told of it."""
    streams = {1: b"", 2: b""}
    while True:
        places = {"stdout": len(streams[1]), "stderr": len(streams[2])}
        result = await console.raw("session.output", {**command, **places, "wait_ms": 20_000})
        told, data = json.loads(result.payload_json), result.data
        for piece in told["pieces"]:
            assert piece["offset"] == len(streams[piece["stream"]]), "nothing is left out"
            streams[piece["stream"]] += data[: piece["length"]]
            data = data[piece["length"] :]
        assert data == b""
        if told["ended"] is not None:
            return streams[1], streams[2], told["ended"]


async def put(console: Console, session: str, path: str, content: bytes, upload_id: str = "", **more: Any) -> None:
    """Piece by piece, as a server does it."""
    upload_id, at = upload_id or uuid.uuid4().hex, 0
    while True:
        data = content[at : at + PIECE]
        asked = {"session_id": session, "path": path, "upload_id": upload_id, "offset": at, **more}
        told = await console.run("session.write_file", {**asked, "last": at + len(data) >= len(content)}, data=data)
        at = told["received"]
        if at >= len(content):
            return


async def test_every_method_has_a_handler(console: Console) -> None:
    for method in Method:
        assert await refusal(console, method.value, {}) == "invalid_payload"


async def test_a_session(console: Console, machine: Machine) -> None:
    """Made, found again (and prolonged), extended, removed. Under its name there is no other one."""
    asked = {"session_id": "one", "lease_ttl_sec": 60, "memory_mib": 128, "cpu_millis": 500}
    made = await console.run("session.create", {**asked, "made_by": "first"})
    again = await console.run("session.create", {**asked, "made_by": "second"})
    assert again["made_by"] == "first"
    assert again == await console.run("session.show", {"session_id": "one"})
    assert again.pop("lease_expires_unix_ms") >= made["lease_expires_unix_ms"]
    assert again == {name: value for name, value in made.items() if name != "lease_expires_unix_ms"}
    for other in (
        {"memory_mib": 256},
        {"network": "localhost"},
        {"env": {"A": "b"}},
        {"image": "registry.example/other:1"},
    ):
        assert await refusal(console, "session.create", {**asked, **other}) == "invalid_payload"
    assert (made["session_id"], made["image"], made["network"], made["runtime"]) == (
        "one", machine.image, "deny-all", "runc",
    )  # fmt: skip
    assert made["image_digest"] == machine.image.partition("@")[2]
    longer = await console.run("session.extend", {"session_id": "one", "lease_ttl_sec": 600})
    assert longer["lease_expires_unix_ms"] >= made["lease_expires_unix_ms"] + 500_000
    assert await console.run("session.extend", {"session_id": "one", "lease_ttl_sec": 60}) == longer
    bounds = machine.inspect()["HostConfig"]
    assert (bounds["Memory"], bounds["CpuQuota"], bounds["PidsLimit"]) == (128 * 2**20, 50_000, 128)
    second = {"session_id": "one", "made_by": "second"}
    assert await refusal(console, "session.remove", second) == "session_not_found"
    assert await console.run("session.show", {"session_id": "one"}) == longer
    assert await console.run("session.remove", {"session_id": "one", "made_by": "first"}) == {}
    assert await console.run("session.remove", {"session_id": "one"}) == {}
    assert await refusal(console, "session.show", {"session_id": "one"}) == "session_not_found"
    assert machine.containers() == []


@pytest.mark.parametrize("seconds", [59, 1801])
async def test_a_lease_out_of_bounds(console: Console, seconds: int) -> None:
    for method in ("session.create", "session.extend"):
        asked = {"session_id": "never", "lease_ttl_sec": seconds}
        assert await refusal(console, method, asked) == "invalid_payload"


async def test_an_image_that_is_not_admitted(console: Console) -> None:
    asked = {"session_id": "never", "image": "registry.invalid/x@sha256:" + "0" * 64}
    assert await refusal(console, "session.create", asked) == "policy_denied"


async def test_a_command(console: Console, session: str) -> None:
    """Begun once however often it is asked for; its output and its end can be had at any time."""
    asked = {
        "session_id": session,
        "command_id": "c1",
        "shell": 'echo once >> log; echo "$GREETING $MORE $PWD"; echo err >&2; exit 3',
        "env": {"MORE": "there"},
        "cwd": "/tmp",
    }
    for _ in range(2):
        begun = await console.run("session.start", {**asked, "cwd": "/workspace"})
        assert begun["command_id"] == "c1"
    ref = {"session_id": session, "command_id": "c1"}
    out, err, ended = await whole(console, ref)
    assert (out, err, ended["status"], ended["exit_code"]) == (b"hi there /workspace\n", b"err\n", "exited", 3)
    assert ended == await console.run("session.command", {**ref, "wait_ms": 1000})
    assert (await whole(console, {"command_id": "c1"}))[0] == out, "the session need not be named"
    out, _, _ = await whole(console, await started(console, session, "cat log"))
    assert out == b"once\n"
    listed = await console.run("session.commands", {"session_id": session})
    assert ended in listed["commands"]
    assert await refusal(console, "session.start", asked) == "invalid_payload", "another command of the same name"


async def test_a_program_that_is_not_there(console: Console, session: str) -> None:
    asked = {"session_id": session, "command_id": uuid.uuid4().hex, "argv": ["/no/such/program"]}
    await console.run("session.start", asked)
    told = await console.run("session.command", {key: asked[key] for key in ("session_id", "command_id")} | {
        "wait_ms": 20_000})  # fmt: skip
    assert told["status"] == "not_started"
    assert "No such file or directory" in told["detail"]


@pytest.mark.parametrize("words", [{}, {"argv": []}, {"argv": ["a"], "shell": "a"}])
async def test_a_command_is_a_program_or_words(console: Console, session: str, words: dict[str, Any]) -> None:
    asked = {"session_id": session, "command_id": "nothing", **words}
    assert await refusal(console, "session.start", asked) == "invalid_payload"


async def test_another_owner_sees_nothing(console: Console, session: str) -> None:
    """Neither a session nor a command of another can be told from one that is not there."""
    command = await started(console, session, "sleep 600")
    for method, more in (
        ("session.command", {}),
        ("session.output", {}),
        ("session.input", {"offset": 0}),
        ("session.resize", {"rows": 1, "columns": 1}),
        ("session.signal", {"signal": 9}),
    ):
        assert await refusal(console, method, {**command, **more}, owner="mallory") == "command_not_found"
        assert await refusal(console, method, {**command, **more, "session_id": "else"}) == "command_not_found"
    assert await refusal(console, "session.output", {"command_id": command["command_id"]}, owner="m") == (
        "command_not_found"
    )
    for method in ("session.show", "session.commands"):
        assert await refusal(console, method, {"session_id": session}, owner="mallory") == "session_not_found"
    await console.run("session.remove", {"session_id": session}, owner="mallory")
    asked = {**command, "shell": "true"}
    assert await refusal(console, "session.start", asked, owner="mallory") in ("invalid_payload", "session_not_found")
    assert (await console.run("session.command", command))["status"] == "running"
    await console.run("session.signal", {**command, "signal": 9})
    assert (await console.run("session.command", {**command, "wait_ms": 20_000}))["signal"] == 9


async def test_a_timeout_ends_a_command_and_leaves_the_session(console: Console, session: str) -> None:
    command = await started(console, session, "sleep 600", timeout_ms=300)
    assert (await console.run("session.command", {**command, "wait_ms": 20_000}))["status"] == "timed_out"
    assert (await whole(console, await started(console, session, "echo here")))[0] == b"here\n"


async def test_input(console: Console, session: str) -> None:
    """By offsets: what was taken is skipped, a gap is refused, and the end is the end."""
    command = await started(console, session, "cat", stdin=True)
    told = await console.run("session.input", {**command, "offset": 0}, data=b"hello ")
    assert told == {"stdin_bytes": 6}
    assert await refusal(console, "session.input", {**command, "offset": 7}, data=b"x") == "invalid_payload"
    told = await console.run("session.input", {**command, "offset": 3, "eof": True}, data=b"lo world\n")
    assert told == {"stdin_bytes": 12}
    out, _, ended = await whole(console, command)
    assert (out, ended["stdin_bytes"], ended["exit_code"]) == (b"hello world\n", 12, 0)


async def test_a_terminal(console: Console, session: str) -> None:
    shell = "stty size; read -r line; stty size; exit 4"
    command = await started(console, session, shell, stdin=True, terminal={"rows": 20, "columns": 70})
    assert await console.run("session.resize", {**command, "rows": 33, "columns": 99}) == {}
    await console.run("session.input", {**command, "offset": 0}, data=b"\n")
    out, _, ended = await whole(console, command)
    assert out.replace(b"\r", b"").strip().splitlines()[-1] == b"33 99"
    assert (ended["exit_code"], ended["terminal"]) == (4, True)


async def test_a_wait_for_output(console: Console, session: str) -> None:
    """It comes back with the first byte, or with nothing when the time is over."""
    command = await started(console, session, "read -r line; echo got", stdin=True)
    nothing = await console.run("session.output", {**command, "wait_ms": 100})
    assert (nothing["pieces"], nothing["ended"]) == ([], None)
    asking = asyncio.create_task(console.run("session.output", {**command, "wait_ms": 20_000}))
    await console.run("session.input", {**command, "offset": 0}, data=b"\n")
    assert (await asking)["pieces"] == [{"stream": 1, "offset": 0, "length": 4}]


async def test_files(console: Console, session: str) -> None:
    """Written in pieces, listed, looked at, read in pieces, removed."""
    content = bytes(range(256)) * 5000
    await put(console, session, "box/deep/data.bin", content, mode=0o600)
    at = {"session_id": session, "path": "/workspace/box/deep/data.bin"}
    stat = await console.run("session.stat_file", at)
    assert (stat["name"], stat["kind"], stat["size_bytes"], stat["mode"] & 0o777) == (
        "data.bin", "file", len(content), 0o600,
    )  # fmt: skip
    first = await console.raw("session.read_file", at)
    rest = await console.raw("session.read_file", {**at, "offset": len(first.data)})
    third = await console.raw("session.read_file", {**at, "offset": len(first.data) + len(rest.data)})
    assert (len(first.data), first.data + rest.data + third.data) == (PIECE, content)
    assert json.loads(third.payload_json)["size_bytes"] == len(content)
    behind = await console.raw("session.read_file", {**at, "offset": len(content) + 5})
    assert (behind.data, json.loads(behind.payload_json)["size_bytes"]) == (b"", len(content))
    await console.run("session.make_folder", {"session_id": session, "path": "box/empty"})
    listed = await console.run("session.list_files", {"session_id": session, "path": "box"})
    assert sorted((one["name"], one["kind"]) for one in listed["files"]) == [("deep", "folder"), ("empty", "folder")]
    box = {"session_id": session, "path": "box"}
    assert await refusal(console, "session.remove_file", box) == "file_error"
    await console.run("session.remove_file", {**box, "recursive": True})
    assert await refusal(console, "session.stat_file", box) == "file_not_found"


async def test_what_cannot_be_done_with_files(console: Console, session: str) -> None:
    await whole(
        console, await started(console, session, "mkdir -p d; ln -sfn / d/out; : > d/plain; mkfifo d/pipe || :")
    )
    for method, path, code in (
        ("session.read_file", "d", "path_is_directory"),
        ("session.read_file", "d/out/etc/passwd", "file_not_found"),
        ("session.read_file", "d/pipe", "file_error"),
        ("session.list_files", "d/plain", "file_not_found"),
        ("session.list_files", "d/none", "file_not_found"),
        ("session.read_file", "a\0b", "invalid_payload"),
    ):
        assert await refusal(console, method, {"session_id": session, "path": path}) == code, (method, path)
    with pytest.raises(CommandError, match="file_not_found"):
        await put(console, session, "d/out/tmp/escaped", b"x")
    with pytest.raises(CommandError, match="file_error"):
        await put(console, session, "/etc/new", b"x")


async def test_a_name_that_is_no_text(console: Console, session: str) -> None:
    """Nobody could ask for it by what is told: it is counted, and not listed under a name that is not its own."""
    await whole(console, await started(console, session, "mkdir -p odd; : > odd/$(printf 'a\\377'); : > odd/b"))
    listed = await console.run("session.list_files", {"session_id": session, "path": "odd"})
    assert ([one["name"] for one in listed["files"]], listed["unnamed"]) == (["b"], 1)


async def test_an_upload_is_there_whole_or_not_at_all(console: Console, session: str) -> None:
    """Pieces may come twice, and too early; until the last one is here there is no file."""
    at = {"session_id": session, "path": "up.txt", "upload_id": "u1"}
    first = {**at, "offset": 0, "last": False}
    for _ in range(2):
        assert await console.run("session.write_file", first, data=b"hello ") == {"received": 6}
    early = await console.run("session.write_file", {**at, "offset": 9, "last": True}, data=b"!")
    assert early == {"received": 6}
    assert await refusal(console, "session.stat_file", {"session_id": session, "path": "up.txt"}) == "file_not_found"
    last = {**at, "offset": 4, "last": True}
    for _ in range(2):
        assert await console.run("session.write_file", last, data=b"o world") == {"received": 11}
    read = await console.raw("session.read_file", {"session_id": session, "path": "up.txt"})
    assert read.data == b"hello world"
    assert json.loads(read.payload_json) == {"offset": 0, "size_bytes": 11, "mime_type": "text/plain"}
    await put(console, session, "empty", b"")
    assert (await console.run("session.stat_file", {"session_id": session, "path": "empty"}))["size_bytes"] == 0


async def test_an_upload_goes_on_in_another_life(tmp_path: Path, docker_socket: Path, base_image: str) -> None:
    at = {"session_id": "s", "path": "f", "upload_id": "u"}
    with machine_in(tmp_path, docker_socket, base_image) as machine:
        async with machine.life() as console:
            await console.run("session.create", {"session_id": "s"})
            await console.run("session.write_file", {**at, "offset": 0, "last": False}, data=b"one ")
        async with machine.life() as console:
            told = await console.run("session.write_file", {**at, "offset": 4, "last": True}, data=b"two")
            assert told == {"received": 7}
            assert (await console.raw("session.read_file", {"session_id": "s", "path": "f"})).data == b"one two"
            await console.sessions.remove_all()


async def test_a_file_that_is_too_large(console: Console, session: str) -> None:
    at = {"session_id": session, "path": "f", "upload_id": "large", "offset": MAX_WRITE_BYTES, "last": True}
    with pytest.raises(CommandError, match="file_too_large"):
        await console.run("session.write_file", at, data=b"x")


async def test_the_receipt_of_a_command_is_of_all_that_it_printed(
    console: Console, session: str, machine: Machine
) -> None:
    command = await started(console, session, "head -c 2000000 /dev/zero; echo oh >&2; exit 3")
    out, err, _ = await whole(console, command)
    result = await console.raw("session.command", command)
    found = checked(json.loads(result.receipt), machine.folder, machine.node_id)
    assert (len(out), found.digest_of("stdout"), found.digest_of("stderr")) == (2_000_000, sha256(out), sha256(err))
    assert (found.predicate.outcome.status, found.predicate.outcome.exit_code) == ("exited", 3)
    assert found.predicate.task == command
    assert found.predicate.image is not None
    assert found.predicate.observed["isolation"]["runtime"] == "runc"
