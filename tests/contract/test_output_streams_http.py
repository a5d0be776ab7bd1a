"""What commands print, as it appears: over a real socket, by a client that knows the lines of Server-Sent Events."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from fumehood.control.callers import ADMIN as ADMINISTRATOR
from fumehood.control.console.output_streams import OutputOptions
from fumehood.wire.command_api import CommandView
from fumehood.wire.console.codes import Reason
from fumehood.wire.sandbox_api import SandboxCommandView
from tests.contract.console_harness import Desk, desk
from tests.contract.sse import EventSource, Sse, follow
from tests.contract.test_commands_http import problem
from tests.waiting import until

QUICK = OutputOptions(heartbeat_seconds=0.2, look_seconds=0.1, most_streams=4)


@pytest.fixture
async def there() -> AsyncIterator[Desk]:
    async with desk(real=True, options=QUICK) as made:
        yield made


def text(events: list[Sse], stream: str = "stdout") -> str:
    """Put together by places: what lies where."""
    found = bytearray()
    for event in events:
        if event.event == "output" and event.said["stream"] == stream:
            assert event.said["offset"] == len(found), "neither a gap nor a repetition"
            found += base64.b64decode(event.said["data"])
    return found.decode()


@asynccontextmanager
async def followed(there: Desk, words: str, **params: str) -> AsyncIterator[tuple[EventSource, str, str]]:
    sandbox = await there.sandbox()
    command, _ = await there.background(sandbox, words)
    path = f"/v1/sandboxes/{sandbox}/commands/{command}/output"
    async with follow(there.client, path, **params) as source:
        yield source, sandbox, command


async def test_output_is_told_as_it_appears_and_then_the_end(there: Desk) -> None:
    async with followed(there, "echo a; err b; wait; echo c; exit 3") as (source, sandbox, command):
        first = await source.take(2)
        assert [(one.event, one.id, one.said) for one in first] == [
            ("output", "2.0", {"stream": "stdout", "offset": 0, "data": "YQo="}),
            ("output", "2.2", {"stream": "stderr", "offset": 0, "data": "Ygo="}),
        ]
        there.session(sandbox).processes[command].may_go_on.set()
        rest = await source.rest()
    assert [(one.event, one.id) for one in rest] == [("output", "4.2"), ("end", "4.2.end")]
    end = SandboxCommandView.model_validate_json(rest[-1].data)
    assert (end.command_id, end.exit_code, end.stdout_bytes) == (command, 3, 4)
    assert source.retry is not None


async def test_a_reconnect_goes_on_behind_the_last_id_wherever_it_was(there: Desk) -> None:
    words = "; ".join(f"echo line {number}; err {number}" for number in range(6))
    async with followed(there, words) as (source, sandbox, command):
        whole = await source.rest()
    path = f"/v1/sandboxes/{sandbox}/commands/{command}/output"
    for number, event in enumerate(whole[:-1]):
        async with follow(there.client, path, event.id) as source:
            rest = await source.rest()
        assert text(whole[: number + 1] + rest) == text(whole)
        assert text(whole[: number + 1] + rest, "stderr") == text(whole, "stderr")
        assert rest[-1].event == "end"
        stdout, stderr = event.id.split(".")
        async with follow(there.client, path, stdout=stdout, stderr=stderr) as source:
            assert [(one.event, one.data) for one in await source.rest()] == [(one.event, one.data) for one in rest]
    seen = await there.client.get(path, headers={"last-event-id": whole[-1].id})
    assert (seen.status_code, seen.content) == (204, b"")


async def test_in_the_middle_of_a_piece_a_reader_goes_on_too(there: Desk) -> None:
    async with followed(there, "echo 0123456789", stdout="4") as (source, _, _):
        first = await source.next()
    assert first is not None
    assert first.said == {"stream": "stdout", "offset": 4, "data": base64.b64encode(b"456789\n").decode()}


async def test_what_is_gone_shows_in_the_offset(there: Desk) -> None:
    sandbox = await there.sandbox()
    command, process = await there.background(sandbox, "print 100")
    process.forgotten = 60
    async with follow(there.client, f"/v1/sandboxes/{sandbox}/commands/{command}/output") as source:
        first = await source.next()
    assert first is not None
    assert (first.said["offset"], first.id) == (60, "100.0")


async def test_much_output_comes_whole_in_pieces(there: Desk) -> None:
    size = 3 * 1024 * 1024
    async with followed(there, f"print {size}") as (source, _, _):
        events = await source.rest()
    assert text(events) == "x" * size
    assert max(len(event.data) for event in events) < 256 * 1024


async def test_a_silent_command_is_heard_of(there: Desk) -> None:
    async with followed(there, "wait") as (source, sandbox, command):
        waiting = asyncio.create_task(source.next())

        async def heard() -> bool:
            return len(source.comments) >= 3

        await until(heard)
        there.session(sandbox).processes[command].may_go_on.set()
        end = await waiting
    assert end is not None
    assert end.event == "end"


async def test_a_revoked_key_hears_no_more(there: Desk) -> None:
    async with there_keys(there):
        token = await there.key("acme")
        there.client.headers["authorization"] = f"Bearer {token}"
        sandbox = await there.sandbox()
        answer = await there.run(sandbox, "echo a; wait; echo b", background=True)
        command = answer.json()["command_id"]
        async with follow(there.client, f"/v1/sandboxes/{sandbox}/commands/{command}/output") as source:
            assert await source.next() is not None
            (key, *_), _ = await there.api.service.keys.list("acme", after="", limit=10)
            await there.api.service.keys.revoke(key.id, ADMINISTRATOR)
            assert await source.rest() == []


@asynccontextmanager
async def there_keys(there: Desk) -> AsyncIterator[None]:
    watching = asyncio.create_task(there.api.service.key_store.work())
    yield
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_a_server_that_leaves_lets_its_readers_go(there: Desk) -> None:
    async with followed(there, "echo a; sleep") as (source, sandbox, command):
        assert await source.next() is not None
        there.api.service.drain()
        try:
            assert await source.rest() == []
        except httpx.RemoteProtocolError:
            pytest.fail("it was cut off instead of ended")
    answer = await there.client.get(f"/v1/sandboxes/{sandbox}/commands/{command}/output")
    assert answer.status_code == 503


async def test_streams_have_a_bound_for_each_tenant(there: Desk) -> None:
    """Of four, one tenant gets one."""
    async with followed(there, "sleep") as (_, sandbox, command):
        answer = await there.client.get(f"/v1/sandboxes/{sandbox}/commands/{command}/output")
        problem(answer, 503, "overloaded")
        assert answer.headers["retry-after"]

    async def left() -> bool:
        path = f"/v1/sandboxes/{sandbox}/commands/{command}/output"
        async with there.client.stream("GET", path) as again:
            return again.status_code == 200

    await until(left)


async def test_a_stream_has_its_time() -> None:
    options = OutputOptions(heartbeat_seconds=0.05, look_seconds=0.05, stream_seconds=0.2)
    async with desk(real=True, options=options) as there, followed(there, "echo a; sleep") as (source, _, _):
        assert [event.event for event in await source.rest()] == ["output"]


async def test_a_slow_reader_holds_one_piece(there: Desk) -> None:
    sandbox = await there.sandbox()
    command, _ = await there.background(sandbox, f"print {16 * 1024 * 1024}")
    there.worker.calls.clear()
    path = f"/v1/sandboxes/{sandbox}/commands/{command}/output"
    async with there.client.stream("GET", path) as answer:
        await anext(answer.aiter_raw(1024))
        counts: list[int] = []

        async def quiet() -> bool:
            counts.append(there.worker.calls.count("session.output"))
            return len(counts) > 3 and len(set(counts[-3:])) == 1

        await until(quiet, every=0.05)
        assert counts[-1] < 100, "the rest is not asked for, and waits where it is"


async def test_a_worker_that_fails_ends_the_stream_and_tells_whoever_comes_back(there: Desk) -> None:
    async with followed(there, "echo a; wait; echo b") as (source, sandbox, command):
        assert await source.next() is not None
        there.worker.failing = Reason.EXECUTION_FAILED
        there.session(sandbox).processes[command].may_go_on.set()
        rest = await source.rest()
    assert [one.event for one in rest] in ([], ["output"])
    answer = await there.client.get(f"/v1/sandboxes/{sandbox}/commands/{command}/output")
    problem(answer, 502, "execution-failed", "execution_failed")


@pytest.mark.parametrize("given", ["x", "1", "1.2.3", "1.2.END", "-1.0", "1.2.end.end", "1" * 19 + ".0"])
async def test_an_id_that_is_none_is_refused(given: str) -> None:
    async with desk() as there:
        path = f"/v1/sandboxes/{await there.sandbox()}/commands/c/output"
        problem(await there.client.get(path, headers={"last-event-id": given}), 400, "invalid-request")
        problem(await there.client.get(path, params={"stdout": f"{given}."}), 400, "invalid-request")


# --- commands of workers -----------------------------------------------------------------------------------


async def test_a_commands_output_and_its_end(there: Desk) -> None:
    said = (await there.submit("pythonExec", {"code": "echo a; wait; err x\u2028y"}, wait_ms=0)).json()
    path = f"/v1/commands/{said['command_id']}/stream"
    async with follow(there.client, path) as source:
        first = await source.next()
        assert first is not None
        assert (first.event, first.id) == ("output", "2.0")
        there.worker.commands[said["command_id"]].may_go_on.set()
        rest = await source.rest()
    assert [one.event for one in rest] == ["output", "end"]
    assert rest[-1].data.isascii()
    assert json.loads(rest[-1].data) == (await there.client.get(f"/v1/commands/{said['command_id']}")).json()
    end = CommandView.model_validate_json(rest[-1].data)
    assert end.result == {"output": "a\n", "stderr": "x\u2028y\n", "exit_code": 0}
    seen = await there.client.get(path, headers={"last-event-id": rest[-1].id})
    assert (seen.status_code, seen.content) == (204, b"")


async def test_of_a_command_that_prints_nothing_the_end_is_told(there: Desk) -> None:
    body = b'{"capability": "echo", "payload": {"a":\n1.50}}'
    answer = await there.client.post("/v1/commands", content=body, headers={"content-type": "application/json"})
    path = f"/v1/commands/{answer.json()['command_id']}/stream"
    async with follow(there.client, path) as source:
        (end,) = await source.rest()
    assert (end.event, end.id) == ("end", "0.0.end")
    assert '"result":{"a": 1.50}' in end.data


async def test_a_command_that_is_cancelled_ends_its_stream(there: Desk) -> None:
    said = (await there.submit("pythonExec", {"code": "echo a; sleep"}, wait_ms=0)).json()
    async with follow(there.client, f"/v1/commands/{said['command_id']}/stream") as source:
        assert await source.next() is not None
        await there.client.post(f"/v1/commands/{said['command_id']}:cancel")
        rest = await source.rest()
    assert [(one.event, json.loads(one.data)["status"]) for one in rest] == [("end", "cancelled")]
