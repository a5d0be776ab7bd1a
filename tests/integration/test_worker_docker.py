"""Contract 5, sentence by sentence: what a worker does with its commands, on a real engine."""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fumehood.node.console.leases import LeaseRule
from tests.integration.worker_world import CommandError, Console, Machine, machine_in, running
from tests.python_image import push_python
from tests.receipt_check import checked, sha256
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMIT = 1_048_576
HOLD = "echo begun; sleep 600"


@pytest.fixture(scope="module")
def image(python_image: str) -> str:
    return push_python(python_image)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, docker_socket: Path, image: str) -> Iterator[Machine]:
    with machine_in(tmp_path_factory.mktemp("worker"), docker_socket, image) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def console(machine: Machine) -> AsyncIterator[Console]:
    """One worker for all tests that leave nothing behind but sessions."""
    async with machine.life() as made:
        yield made
        await made.duties.end_all()
        await made.sessions.remove_all()
        assert machine.containers() == []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def session(console: Console) -> str:
    """One that is shared: nobody may end it, nor hold it when its test is over."""
    made = await console.run("terminalExec", {"command": "true", "lease_ttl_sec": 1800})
    return str(made["session_id"])


@pytest.fixture
def alone(tmp_path: Path, docker_socket: Path, image: str) -> Iterator[Machine]:
    """A machine for tests that count containers."""
    with machine_in(tmp_path, docker_socket, image) as made:
        yield made


async def refusal(console: Console, capability: str, payload: dict[str, Any] | bytes, **more: Any) -> str:
    with pytest.raises(CommandError) as caught:
        await console.run(capability, payload, **more)
    assert caught.value.message, "people are told what was wrong"
    return caught.value.code


async def begun(console: Console, command_id: str) -> None:
    """Until a command has written something."""

    async def wrote() -> bool:
        try:
            return console.sessions.process(command_id).stdout_bytes > 0
        except Exception:  # noqa: BLE001 - it is not there yet, whatever that looks like
            return False

    await until(wrote, what="the command has begun")


# --- echo --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [b'"hello"', b'{"b": 1,  "a":[ ]}\n', b"", b"not json \xff\x00", '"\\u00e9 é 𝄞"'.encode(), b"1e5"]
)
async def test_echo(console: Console, text: bytes) -> None:
    """When receiving an `echo` command, worker returns the exact input string unchanged."""
    assert (await console.raw("echo", text)).payload_json == text


# --- pythonExec --------------------------------------------------------------------------------------------


async def test_the_receipt_of_a_program_is_of_all_that_it_printed(console: Console, machine: Machine) -> None:
    """Also where that is more than its answer holds."""
    code = "import sys; sys.stdout.write('x' * 3_000_000); sys.stderr.write('oh')"
    result = await console.raw("pythonExec", {"code": code})
    said = json.loads(result.payload_json)
    assert said["output_truncated"]
    found = checked(json.loads(result.receipt), machine.folder, machine.node_id)
    assert found.digest_of("stdout") == sha256(b"x" * 3_000_000)
    assert found.digest_of("stdout.returned") == sha256(said["output"].encode())
    assert found.digest_of("stderr") == sha256(b"oh")
    assert found.digest_of("result") == sha256(result.payload_json)
    claim = found.predicate
    assert claim.image is not None
    assert claim.image.digest.startswith("sha256:")
    assert claim.image.evidence["resolved_digest"] == claim.image.digest
    assert (claim.observed["limits"]["pids"], claim.observed["isolation"]["runtime"]) == (128, "runc")


async def test_python_exec_answers_three_fields(console: Console, machine: Machine) -> None:
    """`pythonExec` result always uses JSON payload: `{"output":"...","stderr":"...","exit_code":0}`."""
    result = await console.raw("pythonExec", {"code": "import sys; print('out'); print('err', file=sys.stderr)"})
    assert json.loads(result.payload_json) == {"output": "out\n", "stderr": "err\n", "exit_code": 0}


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("raise SystemExit(3)", 3),
        ("1/0", 1),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("x = bytearray(2**30)", 137),  # more memory than it may have
    ],
)
async def test_a_non_zero_python_exit_code_is_no_error(console: Console, code: str, exit_code: int) -> None:
    """Non-zero Python exit code is returned in `exit_code` and does not become command error by itself."""
    assert (await console.run("pythonExec", {"code": code}))["exit_code"] == exit_code


async def test_the_floor_of_docker_create(alone: Machine) -> None:
    """`docker create --label onlyboxes.managed=true --label onlyboxes.capability=pythonExec --label
    onlyboxes.runtime=worker-docker --memory 256m --cpus 1.0 --pids-limit 128 python:slim python -c <code>`; if command
    deadline/cancel happens during execution, worker still performs forced cleanup, then returns `deadline_exceeded`."""
    async with alone.life() as console:
        command_id = console.send("pythonExec", {"code": "print('begun', flush=True); import time; time.sleep(600)"})
        await begun(console, command_id)
        made = alone.inspect()
        assert made["Config"]["Labels"].items() >= {
            ("onlyboxes.managed", "true"),
            ("onlyboxes.capability", "pythonExec"),
            ("onlyboxes.runtime", "worker-docker"),
        }
        host = made["HostConfig"]
        assert (host["Memory"], host["MemorySwap"]) == (256 * 1024 * 1024, 256 * 1024 * 1024)
        assert (host["CpuQuota"], host["CpuPeriod"], host["PidsLimit"]) == (100_000, 100_000, 128)
        assert made["Config"]["Image"] == alone.image
        assert (host["NetworkMode"], host["ReadonlyRootfs"], host["Privileged"]) == ("none", True, False)
        argv = console.sessions.process(command_id).argv
        assert argv[:2] == ("python", "-c")
        console.duties.cancel(command_id)
        with pytest.raises(CommandError, match="deadline_exceeded"):
            await console.result(command_id)
        assert alone.containers() == []


async def test_a_deadline_leaves_no_container(alone: Machine) -> None:
    """If command deadline/cancel happens during execution, worker still performs forced cleanup …, then returns
    `deadline_exceeded`."""
    async with alone.life() as console:
        code = await refusal(console, "pythonExec", {"code": "import time; time.sleep(600)"}, timeout_ms=2500)
        assert code == "deadline_exceeded"
        assert alone.containers() == []


async def test_a_deadline_while_the_container_is_made(alone: Machine) -> None:
    """… also when it comes before anything runs."""
    async with alone.life() as console:
        for capability, payload in (("pythonExec", {"code": "1"}), ("terminalExec", {"command": "true"})):
            assert await refusal(console, capability, payload, timeout_ms=1) == "deadline_exceeded"
            assert alone.containers() == []


async def test_nothing_is_left_of_a_python_program(alone: Machine) -> None:
    """`docker rm -f <generated-name>` for unified cleanup."""
    mark = f"6{uuid.uuid4().int % 10**9:09}"
    async with alone.life() as console:
        child = f"import subprocess; subprocess.Popen(['setsid', 'sleep', '{mark}'])"
        assert (await console.run("pythonExec", {"code": child}))["exit_code"] == 0
        await until(lambda: alone.containers() == [], what="its container is removed")
        assert running(mark) == []


@pytest.mark.parametrize("more", [0, 1])
async def test_the_output_of_python_is_cut_at_the_byte(console: Console, more: int) -> None:
    """Bounded like `terminalExec`'s; the flags are there only when something was cut off."""
    code = f"import sys; sys.stdout.write('x' * {LIMIT + more}); sys.stderr.write('y' * {LIMIT + 1 - more})"
    answer = await console.run("pythonExec", {"code": code})
    assert (answer["output"], answer["stderr"]) == ("x" * LIMIT, "y" * LIMIT)
    flags = {"output_truncated": True} if more else {"stderr_truncated": True}
    assert answer == {"output": answer["output"], "stderr": answer["stderr"], "exit_code": 0, **flags}


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"[]", b'"code"', b"{}", b'{"code": 1}', b'{"code": ""}', b'{"code": "1", "timeout": 5}']
)
async def test_a_wrong_payload_of_python(console: Console, payload: bytes) -> None:
    """Worker expects `payload_json` with `{"code":"..."}`."""
    assert await refusal(console, "pythonExec", payload) == "invalid_payload"


# --- terminalExec ------------------------------------------------------------------------------------------


async def test_a_missing_session_id_creates_a_session(console: Console) -> None:
    """Missing `session_id` creates a new container/session automatically; the result is `{"session_id", "created",
    "stdout", "stderr", "exit_code", "stdout_truncated", "stderr_truncated", "lease_expires_unix_ms"}`."""
    answer = await console.run("terminalExec", {"command": "echo out; echo err >&2; exit 3"})
    session_id, expires = answer.pop("session_id"), answer.pop("lease_expires_unix_ms")
    assert answer == {
        "created": True,
        "stdout": "out\n",
        "stderr": "err\n",
        "exit_code": 3,
        "stdout_truncated": False,
        "stderr_truncated": False,
    }
    facts = console.sessions.get(console.sessions.list()[-1].name)
    assert (facts.name.session_id, facts.lease_expires_ms) == (session_id, expires)
    await console.run("session.remove", {"session_id": session_id})


async def test_two_commands_without_a_session_id_get_two(console: Console) -> None:
    first, second = await asyncio.gather(*(console.run("terminalExec", {"command": "true"}) for _ in range(2)))
    assert first["session_id"] != second["session_id"]
    for one in (first, second):
        await console.run("session.remove", {"session_id": one["session_id"]})


async def test_the_same_session_keeps_its_files(console: Console, session: str) -> None:
    """Same `session_id` reuses the same container and keeps filesystem state."""
    await console.run("terminalExec", {"command": "echo kept > file; echo more > /tmp/other", "session_id": session})
    answer = await console.run("terminalExec", {"command": "cat file /tmp/other; pwd", "session_id": session})
    assert (answer["stdout"], answer["created"]) == ("kept\nmore\n/workspace\n", False)


async def test_an_unknown_session(console: Console) -> None:
    """Unknown `session_id` returns `session_not_found` …"""
    assert await refusal(console, "terminalExec", {"command": "true", "session_id": "nobody"}) == "session_not_found"


async def test_create_if_missing(console: Console) -> None:
    """… unless `create_if_missing=true`."""
    asked = {"command": "hostname > /dev/null; echo $$", "session_id": "made-here", "create_if_missing": True}
    first = await console.run("terminalExec", asked)
    again = await console.run("terminalExec", asked)
    assert (first["session_id"], first["created"], again["created"]) == ("made-here", True, False)
    await console.run("session.remove", {"session_id": "made-here"})
    assert await refusal(console, "terminalExec", {"command": "true", "session_id": "made-here"}) == "session_not_found"


async def test_a_session_of_another_owner(console: Console, session: str) -> None:
    """Session ids belong to the caller that created them: another tenant gets `session_not_found`."""
    for capability, payload in (
        ("terminalExec", {"command": "true", "session_id": session}),
        ("terminalResource", {"session_id": session, "file_path": "/etc/passwd"}),
        ("session.show", {"session_id": session}),
        ("session.read_file", {"session_id": session, "path": "/etc/passwd"}),
    ):
        assert await refusal(console, capability, payload, owner="mallory") == "session_not_found"


async def test_a_busy_session(console: Console) -> None:
    """Concurrent execution on the same `session_id` returns `session_busy`; terminalResource: concurrent operation on
    same `session_id` returns `session_busy`."""
    made = await console.run("terminalExec", {"command": "true"})
    busy = {"session_id": made["session_id"]}
    holding = console.send("terminalExec", {"command": HOLD, **busy})
    await begun(console, holding)
    assert await refusal(console, "terminalExec", {"command": "true", **busy}) == "session_busy"
    missing = {"command": "true", "create_if_missing": True, **busy}
    assert await refusal(console, "terminalExec", missing) == "session_busy"
    assert await refusal(console, "terminalResource", {"file_path": "/etc/passwd", **busy}) == "session_busy"
    console.duties.cancel(holding)
    with pytest.raises(CommandError):
        await console.result(holding)


# --- leases ------------------------------------------------------------------------------------------------


async def test_a_lease_only_grows(console: Console, machine: Machine) -> None:
    """Lease extension is monotonic: shorter `lease_ttl_sec` does not reduce current expiry. `terminalResource` does not
    extend a lease. Terminal lease default: `60s`."""
    start = machine.clock()
    made = await console.run("terminalExec", {"command": "true"})
    assert start + 60_000 <= made["lease_expires_unix_ms"] <= machine.clock() + 60_000
    session = {"session_id": made["session_id"]}
    longer = await console.run("terminalExec", {"command": "true", "lease_ttl_sec": 1800, **session})
    assert longer["lease_expires_unix_ms"] >= start + 1_800_000
    shorter = await console.run("terminalExec", {"command": "true", "lease_ttl_sec": 60, **session})
    assert shorter["lease_expires_unix_ms"] == longer["lease_expires_unix_ms"]
    await console.run("terminalResource", {"file_path": "/etc/passwd", **session})
    shown = await console.run("session.show", session)
    assert shown["lease_expires_unix_ms"] == longer["lease_expires_unix_ms"]
    await console.run("session.remove", session)


@pytest.mark.parametrize("seconds", [59, 1801, 0, -1, 10**12])
async def test_a_lease_out_of_bounds(console: Console, seconds: int) -> None:
    """Terminal lease min/max: `60s` / `1800s`; outside of it `invalid_payload`, before the session is looked up."""
    asked = {"command": "true", "session_id": "nobody", "lease_ttl_sec": seconds}
    assert await refusal(console, "terminalExec", asked) == "invalid_payload"


async def test_an_idle_session_is_reaped(alone: Machine) -> None:
    """Idle sessions are reaped after lease expiry by an internal janitor loop. An expired session is never revived. One
    with a running command is not idle."""
    async with alone.life() as console:
        idle = await console.run("terminalExec", {"command": "true"})
        busy = console.send("terminalExec", {"command": "echo begun; sleep 1.5; echo done", "session_id": "b",
                                             "create_if_missing": True})  # fmt: skip
        await begun(console, busy)
        alone.clock.ahead_ms += 61_000
        gone = {"session_id": idle["session_id"]}
        assert await refusal(console, "terminalExec", {"command": "true", **gone}) == "session_not_found"
        assert await refusal(console, "session.extend", {"lease_ttl_sec": 60, **gone}) == "session_not_found"
        await until(lambda: len(alone.containers()) == 1, what="the idle session's container is gone")
        assert json.loads((await console.result(busy)).payload_json)["stdout"] == "begun\ndone\n"
        again = await console.run("terminalExec", {"command": "ls", "create_if_missing": True, **gone})
        assert (again["created"], again["stdout"]) == (True, "")


async def test_a_running_command_keeps_its_session(alone: Machine) -> None:
    """The lease is renewed while its command runs: a session is used until that has ended."""
    async with alone.life(LeaseRule(1, 1800, 60)) as console:
        made = await console.run("terminalExec", {"command": "sleep 5; echo done", "lease_ttl_sec": 4})
        assert (made["stdout"], made["lease_expires_unix_ms"] >= alone.clock()) == ("done\n", True)
        again = {"command": "echo here", "session_id": made["session_id"], "lease_ttl_sec": 1}
        assert (await console.run("terminalExec", again))["stdout"] == "here\n"
        await until(lambda: alone.containers() == [], what="it is reaped once it is idle")


# --- the end of commands -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["deadline", "cancel"])
async def test_a_command_that_takes_too_long(alone: Machine, how: str) -> None:
    """Command timeout/cancel triggers forced `docker rm -f` and drops the session. A child that ignores SIGTERM and has
    a session of its own is gone before anybody is told."""
    mark = f"7{uuid.uuid4().int % 10**9:09}"
    command = f"setsid sh -c 'trap \"\" TERM HUP; sleep {mark}; sleep {mark}' & echo begun; trap '' TERM; wait"
    async with alone.life() as console:
        asked = {"command": command, "session_id": "s", "create_if_missing": True}
        timeout_ms = 4000 if how == "deadline" else 0
        command_id = console.send("terminalExec", asked, timeout_ms=timeout_ms)
        await begun(console, command_id)
        await until(lambda: running(mark), what="the child runs")
        if how == "cancel":
            console.duties.cancel(command_id)
        with pytest.raises(CommandError, match="deadline_exceeded"):
            await console.result(command_id)
        assert running(mark) == []
        assert alone.containers() == []
        assert await refusal(console, "terminalExec", {"command": "true", "session_id": "s"}) == "session_not_found"


async def test_what_a_command_leaves_running_lives_on(console: Console, session: str) -> None:
    """Same `session_id` reuses the same container: a server that was started with `&` is there for the next command."""
    mark = f"8{uuid.uuid4().int % 10**9:09}"
    await console.run("terminalExec", {"command": f"sleep {mark} > /dev/null 2>&1 &", "session_id": session})
    assert len(running(mark)) == 1
    await console.run("terminalExec", {"command": f"pkill -f {mark} || kill %1 || true", "session_id": session})


async def test_shutdown_removes_all(alone: Machine) -> None:
    """Worker shutdown force-removes all managed terminal containers."""
    async with alone.life() as console:
        for _ in range(2):
            await console.run("terminalExec", {"command": "sleep 600 > /dev/null 2>&1 &"})
        holding = console.send("terminalExec", {"command": HOLD})
        await begun(console, holding)
        assert len(alone.containers()) == 3
        await console.duties.end_all()
        await console.sessions.remove_all()
        assert alone.containers() == []
        with pytest.raises(CommandError, match="worker_lost"):
            await console.result(holding)


async def test_text_of_an_engine_in_a_programs_output_decides_nothing(console: Console, session: str) -> None:
    """Decisions come from the engine's API, never from output text."""
    said = "Error: No such container: abc; is not running; OCI runtime exec failed"
    answer = await console.run(
        "terminalExec", {"command": f"echo '{said}' >&2; echo '{said}'; exit 1", "session_id": session}
    )
    assert (answer["exit_code"], answer["stderr"]) == (1, said + "\n")
    assert (await console.run("terminalExec", {"command": "echo here", "session_id": session}))["stdout"] == "here\n"


# --- truncation --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("out", "err"), [(LIMIT - 1, 0), (LIMIT, LIMIT), (LIMIT + 1, LIMIT), (LIMIT, LIMIT + 1), (4 * LIMIT, 4 * LIMIT)]
)
async def test_each_stream_is_cut_at_the_byte(console: Console, session: str, out: int, err: int) -> None:
    """`stdout` and `stderr` are individually truncated by `WORKER_TERMINAL_OUTPUT_LIMIT_BYTES` (`1048576`); truncation
    flags are exposed via `stdout_truncated` and `stderr_truncated`."""
    command = f"head -c {out} /dev/zero | tr '\\0' x; head -c {err} /dev/zero | tr '\\0' y >&2"
    answer = await console.run("terminalExec", {"command": command, "session_id": session})
    assert (answer["stdout"], answer["stderr"]) == ("x" * min(out, LIMIT), "y" * min(err, LIMIT))
    assert (answer["stdout_truncated"], answer["stderr_truncated"]) == (out > LIMIT, err > LIMIT)


async def test_output_that_is_no_text(console: Console, session: str) -> None:
    """A result is JSON: bytes that are no UTF-8 become U+FFFD, NUL stays."""
    answer = await console.run("terminalExec", {"command": "printf 'a\\377\\0é'", "session_id": session})
    assert answer["stdout"] == "a\ufffd\0é"


# --- terminalResource --------------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shelf(console: Console, session: str) -> str:
    """Files of many kinds."""
    command = f"""
        cd /workspace; mkdir -p folder; printf hello > a.txt; printf '{{}}' > data.json; printf 'plain é' > noname
        printf '\\0\\1\\2' > bytes; printf '' > empty; printf x > 'with blank.py'; ln -sf a.txt link; ln -sf / rootlink
        head -c {LIMIT} /dev/zero > just; head -c {LIMIT + 1} /dev/zero > toolarge; mkfifo pipe; printf x > noread
        chmod 0 noread; printf '\\377\\376' > bad; printf gz > a.tar.gz
    """
    answer = await console.run("terminalExec", {"command": command, "session_id": session})
    assert answer["exit_code"] == 0, answer["stderr"]
    return session


@pytest.mark.parametrize(
    ("path", "mime_type", "size"),
    [
        ("a.txt", "text/plain", 5),
        ("/workspace/a.txt", "text/plain", 5),
        ("folder/../a.txt", "text/plain", 5),
        ("../workspace/./a.txt", "text/plain", 5),
        ("data.json", "application/json", 2),
        ("with blank.py", "text/x-python", 1),
        ("a.tar.gz", "application/gzip", 2),
        ("noname", "text/plain", 8),
        ("empty", "text/plain", 0),
        ("bytes", "application/octet-stream", 3),
        ("bad", "application/octet-stream", 2),
        ("toolarge", "application/octet-stream", LIMIT + 1),
    ],
)
async def test_validate(console: Console, shelf: str, path: str, mime_type: str, size: int) -> None:
    """`action` defaults to `validate` when omitted; validate:
    `{"session_id":"...","file_path":"...","mime_type":"...","size_bytes":123}`."""
    asked = {"session_id": shelf, "file_path": path}
    expected = {**asked, "mime_type": mime_type, "size_bytes": size}
    assert await console.run("terminalResource", asked) == expected
    assert await console.run("terminalResource", {**asked, "action": "validate"}) == expected


@pytest.mark.parametrize(
    ("path", "content"),
    [("a.txt", b"hello"), ("empty", b""), ("bytes", b"\0\1\2"), ("bad", b"\xff\xfe"), ("just", bytes(LIMIT))],
)
async def test_read(console: Console, shelf: str, path: str, content: bytes) -> None:
    """`read` action returns file content as base64 JSON bytes in `blob`."""
    answer = await console.run("terminalResource", {"session_id": shelf, "file_path": path, "action": "read"})
    assert set(answer) == {"session_id", "file_path", "mime_type", "size_bytes", "blob"}
    assert base64.b64decode(answer["blob"], validate=True) == content
    assert answer["size_bytes"] == len(content)


@pytest.mark.parametrize("action", ["validate", "read"])
@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("nothing", "file_not_found"),
        ("nothing/at/all", "file_not_found"),
        ("a.txt/below", "file_not_found"),
        ("folder", "path_is_directory"),
        ("/", "path_is_directory"),
        ("../..", "path_is_directory"),
        ("link", "file_not_found"),
        ("rootlink/etc/passwd", "file_not_found"),
        ("pipe", "file_error"),
        ("/dev/null", "file_error"),
        ("x" * 300, "file_not_found"),
    ],
)
async def test_a_file_that_is_none(console: Console, shelf: str, path: str, code: str, action: str) -> None:
    """Target `file_path` must exist and must not be a directory: `file_not_found`, `path_is_directory`. No link is
    followed."""
    asked = {"session_id": shelf, "file_path": path, "action": action}
    assert await refusal(console, "terminalResource", asked) == code


async def test_a_file_that_is_too_large(console: Console, shelf: str) -> None:
    """`read` action rejects files larger than `WORKER_TERMINAL_OUTPUT_LIMIT_BYTES` with `file_too_large`."""
    asked = {"session_id": shelf, "file_path": "toolarge", "action": "read"}
    assert await refusal(console, "terminalResource", asked) == "file_too_large"


async def test_a_file_that_may_not_be_read(console: Console, shelf: str) -> None:
    asked = {"session_id": shelf, "file_path": "noread", "action": "read"}
    assert await refusal(console, "terminalResource", asked) == "file_error"


async def test_a_resource_of_an_unknown_session(console: Console) -> None:
    """Unknown `session_id` returns `session_not_found`."""
    asked = {"session_id": "nobody", "file_path": "a"}
    assert await refusal(console, "terminalResource", asked) == "session_not_found"


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"session_id": "s"},
        {"file_path": "a"},
        {"session_id": "s", "file_path": ""},
        {"session_id": "s", "file_path": "a", "action": "write"},
        {"session_id": "s", "file_path": "a\0b"},
    ],
)
async def test_a_wrong_payload_of_a_resource(console: Console, payload: dict[str, Any]) -> None:
    """Worker expects `{"session_id":"required","file_path":"required","action":"validate|read"}`."""
    assert await refusal(console, "terminalResource", payload) == "invalid_payload"


# --- another life ------------------------------------------------------------------------------------------


async def test_the_next_worker_goes_on_with_the_same_command(alone: Machine) -> None:
    """A command that a worker left behind is joined by the next one, and ends with its whole output, as if nothing had
    happened: it runs once, in the session that was made for it, and `created` is still true."""
    tick = "echo run >> /workspace/runs; i=0; while [ $i -lt 40 ]; do echo $i; i=$((i+1)); sleep 0.05; done"
    async with alone.life() as console:
        terminal = console.send("terminalExec", {"command": tick, "session_id": "t", "create_if_missing": True})
        script = "import time\nfor i in range(40): print(i, flush=True); time.sleep(0.05)"
        python = console.send("pythonExec", {"code": script})
        await asyncio.gather(begun(console, terminal), begun(console, python))
    assert len(alone.containers()) == 2
    async with alone.life() as console:
        assert set(console.duties.holding()) == {terminal, python}
        assert await refusal(console, "terminalExec", {"command": "true", "session_id": "t"}) == "session_busy"
        answers = [json.loads((await console.result(one)).payload_json) for one in (terminal, python)]
        whole = "".join(f"{number}\n" for number in range(40))
        assert (answers[0]["stdout"], answers[0]["created"], answers[1]["output"]) == (whole, True, whole)
        runs = await console.run("terminalExec", {"command": "cat runs", "session_id": "t"})
        assert runs["stdout"] == "run\n"
        await console.sessions.remove_all()
        assert alone.containers() == []


async def test_a_deadline_that_passes_between_two_lives(alone: Machine) -> None:
    """… and what is over by then is ended, with its session, before anybody is told."""
    mark = f"9{uuid.uuid4().int % 10**9:09}"
    async with alone.life() as console:
        command_id = console.send("terminalExec", {"command": f"echo begun; sleep {mark}"}, timeout_ms=3000)
        await begun(console, command_id)
    await until(lambda: not running(mark), what="the warden has ended it")
    async with alone.life() as console:
        with pytest.raises(CommandError, match="deadline_exceeded"):
            await console.result(command_id)
        assert alone.containers() == []


# --- gVisor ------------------------------------------------------------------------------------------------


@pytest.mark.gvisor
async def test_on_gvisor(tmp_path: Path, docker_socket: Path, image: str) -> None:
    """The same in a sandbox with a kernel of its own."""
    with machine_in(tmp_path, docker_socket, image, runtime="runsc") as machine:
        async with machine.life() as console:
            made = await console.run("terminalExec", {"command": "echo hi > f; head -c 2000000 /dev/zero"})
            assert (len(made["stdout"]), made["stdout_truncated"]) == (LIMIT, True)
            session = {"session_id": made["session_id"]}
            read = await console.run("terminalResource", {"file_path": "f", "action": "read", **session})
            assert base64.b64decode(read["blob"]) == b"hi\n"
            command = "setsid sh -c 'trap \"\" TERM; sleep 600' & trap '' TERM; wait"
            code = await refusal(console, "terminalExec", {"command": command, **session}, timeout_ms=3000)
            assert code == "deadline_exceeded"
            assert machine.containers() == []
            assert (await console.run("pythonExec", {"code": "print(1)"}))["output"] == "1\n"
