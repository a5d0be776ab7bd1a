"""The console over a broker in memory: two servers, workers that say what the test wants."""

from __future__ import annotations

import asyncio
import json

import pytest

from fumehood.control.callers import ADMIN
from fumehood.control.console import console as console_module
from fumehood.control.console import presence as presence_module
from fumehood.control.console import record as record_module
from fumehood.control.console.record import LOST_SECONDS, Fate, fate
from fumehood.errors import CommandFailedError, ConflictError, PayloadTooLargeError
from fumehood.wire.command_api import CommandStatus
from fumehood.wire.console import sessions as wire
from fumehood.wire.console.console_pb2 import Dispatch, HeldSession, Result
from fumehood.wire.sandbox import NetworkProfile
from tests.unit.console_world import OTHER, connected, echo, failing, wish, world
from tests.waiting import until


@pytest.mark.parametrize("at", [0, 1], ids=["same server", "another server"])
async def test_an_echo_comes_back_byte_for_byte(at: int) -> None:
    async with world() as there:
        worker = await connected(there, at, answers=echo)
        done = await there.desks[0].commands.submit(wish("ä\u0000\n"), ADMIN)
        assert (done.status, done.result_json) == (CommandStatus.SUCCEEDED, json.dumps("ä\u0000\n"))
        await worker.until(lambda: worker.acknowledged == [done.command_id])
        assert (await there.desks[1].commands.get(done.command_id, ADMIN)).result_json == done.result_json
        assert not there.desks[at].console.streams["w1"].inflight


async def test_nobody_else_sees_a_command() -> None:
    async with world() as there:
        await connected(there, answers=echo)
        done = await there.desks[0].commands.submit(wish(), ADMIN)
        for ask in (there.desks[0].commands.get, there.desks[0].commands.cancel):
            with pytest.raises(CommandFailedError, match="no such command") as error:
                await ask(done.command_id, OTHER)
            assert error.value.reason == "command_not_found"


async def test_no_worker_and_no_capacity() -> None:
    async with world() as there:
        commands = there.desks[0].commands
        with pytest.raises(CommandFailedError) as nobody:
            await commands.submit(wish(wait_ms=50), ADMIN)
        worker = await connected(there, 1, capabilities={"echo": 1})
        running = await commands.submit(wish(wait_ms=0), ADMIN)
        assert running.status is CommandStatus.RUNNING
        with pytest.raises(CommandFailedError) as full:
            await there.desks[1].commands.submit(wish(wait_ms=50), ADMIN)
        waiting = asyncio.create_task(commands.submit(wish("second"), ADMIN))
        await worker.say(echo(worker.dispatched[0]))
        await worker.until(lambda: len(worker.dispatched) == 2)
        await worker.say(echo(worker.dispatched[1]))
        assert (await waiting).result_json == '"second"'
        assert (nobody.value.reason, full.value.reason) == ("no_worker", "no_capacity")


async def test_a_command_ends_once_and_is_run_once_under_its_key() -> None:
    async with world() as there:
        worker = await connected(there, 1, answers=echo)
        first = await there.desks[0].commands.submit(wish("a", idempotency_key="k"), ADMIN)
        again = await there.desks[1].commands.submit(wish("a", idempotency_key="k"), ADMIN)
        assert (first.command_id, first.result_json) == (again.command_id, again.result_json)
        assert len(worker.dispatched) == 1
        with pytest.raises(ConflictError):
            await there.desks[0].commands.submit(wish("b", idempotency_key="k"), ADMIN)
        theirs = await there.desks[0].commands.submit(wish("b", idempotency_key="k"), OTHER)
        assert theirs.command_id != first.command_id


async def test_a_worker_that_comes_back_goes_on_with_what_it_has() -> None:
    """Its stream breaks; it connects to the other server, names the command, and its result reaches whoever waits."""
    async with world() as there:
        worker = await connected(there, 0)
        submitted = asyncio.create_task(there.desks[0].commands.submit(wish("x"), ADMIN))
        await worker.until(lambda: bool(worker.dispatched))
        assert worker.held is not None
        await worker.held.gone()
        await worker.connect(there.desks[1], holding=[worker.dispatched[0].command_id])
        await worker.say(echo(worker.dispatched[0]))
        assert (await submitted).status is CommandStatus.SUCCEEDED
        await worker.until(lambda: worker.acknowledged == [worker.dispatched[0].command_id])
        assert len(worker.dispatched) == 1


async def test_a_newer_stream_ends_the_older_one_and_what_it_does_not_hold() -> None:
    async with world() as there:
        worker = await connected(there, 0)
        submitted = asyncio.create_task(there.desks[0].commands.submit(wish("x"), ADMIN))
        await worker.until(lambda: bool(worker.dispatched))
        newer = await there.worker("unused")
        newer.worker_id, newer.secret = worker.worker_id, worker.secret
        await newer.connect(there.desks[1])
        await worker.until(lambda: worker.closed == "worker_replaced")
        done = await submitted
        assert (done.status, done.reason) == (CommandStatus.FAILED, "worker_replaced")
        assert worker.held is not None
        await worker.held.gone()
        assert there.desks[0].presence.of("w1") == there.desks[1].presence.of("w1") is not None


async def test_a_worker_that_stays_away_is_lost_when_nothing_of_it_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_module, "UNCLAIMED_SECONDS", 0.01)
    async with world() as there:
        worker = await connected(there, 0)
        running = await there.desks[1].commands.submit(wish("x", wait_ms=0, timeout_ms=1), ADMIN)
        assert worker.held is not None
        await worker.held.gone()
        monkeypatch.setattr(record_module, "OVERDUE_MS", 0)
        assert (await there.desks[1].commands.get(running.command_id, ADMIN)).status is CommandStatus.RUNNING
        await until(lambda: all(desk.presence.of("w1") is None for desk in there.desks))
        for desk in there.desks:
            monkeypatch.setattr(desk.presence, "clock", lambda: 1e12)
        done = await there.desks[1].commands.get(running.command_id, ADMIN, wait_ms=5000)
        assert (done.status, done.reason) == (CommandStatus.FAILED, "worker_lost")
        await worker.connect(there.desks[0], holding=[running.command_id])
        await worker.say(echo(worker.dispatched[0]))
        await worker.until(lambda: worker.acknowledged == [running.command_id])
        assert (await there.desks[0].commands.get(running.command_id, ADMIN)).reason == "worker_lost"


async def test_the_end_of_a_command_whose_server_died_is_stored_by_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_module, "UNCLAIMED_SECONDS", 0.01)
    async with world(3) as there:
        worker = await connected(there, 1)
        running = await there.desks[0].commands.submit(wish("x", wait_ms=0), ADMIN)
        await there.desks[0].commands.close()
        await worker.say(echo(worker.dispatched[0]))
        done = await there.desks[2].commands.get(running.command_id, ADMIN, wait_ms=5000)
        assert done.result_json == '"x"'
        await worker.until(lambda: worker.acknowledged == [running.command_id])


async def test_a_worker_cannot_answer_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_module, "UNCLAIMED_SECONDS", 0.01)
    async with world() as there:
        honest = await connected(there, 0)
        running = await there.desks[1].commands.submit(wish("x", wait_ms=0), ADMIN)
        liar = await there.worker("liar")
        await liar.connect(there.desks[1], holding=[running.command_id])
        await liar.say(Result(command_id=running.command_id, payload_json=b'"forged"'))
        await liar.until(lambda: liar.acknowledged == [running.command_id])
        await honest.say(echo(honest.dispatched[0]))
        done = await there.desks[1].commands.get(running.command_id, ADMIN, wait_ms=5000)
        assert done.result_json == '"x"'


async def test_cancelled_is_said_when_the_worker_has_ended_it() -> None:
    async with world() as there:
        worker = await connected(there, 1)
        running = await there.desks[0].commands.submit(wish("x", wait_ms=0), ADMIN)
        cancelling = asyncio.create_task(there.desks[1].commands.cancel(running.command_id, ADMIN))
        await worker.until(lambda: worker.cancelled == [running.command_id])
        assert not cancelling.done()
        await worker.say(failing("deadline_exceeded")(worker.dispatched[0]))
        assert (await cancelling).status is CommandStatus.CANCELLED


async def test_a_large_result_comes_back_whole() -> None:
    async with world() as there:
        large = json.dumps({"output": "x" * 3_000_000}).encode()
        await connected(there, 1, answers=lambda one: Result(command_id=one.command_id, payload_json=large))
        done = await there.desks[0].commands.submit(wish(), ADMIN)
        assert done.result_json is not None
        assert done.result_json.encode() == large
        again = await there.desks[1].commands.get(done.command_id, ADMIN)
        assert again.result_json == done.result_json


async def test_a_command_that_is_too_large_is_refused_before_anybody_has_it() -> None:
    async with world() as there:
        worker = await connected(there, 1, answers=echo)
        with pytest.raises(PayloadTooLargeError):
            await there.desks[0].commands.submit(wish("x" * 2_000_000), ADMIN)
        assert worker.dispatched == []


async def test_what_is_no_json_is_no_result() -> None:
    async with world() as there:
        await connected(there, 1, answers=lambda one: Result(command_id=one.command_id, payload_json=b"\xff{"))
        done = await there.desks[0].commands.submit(wish(), ADMIN)
        assert (done.status, done.reason) == (CommandStatus.FAILED, "execution_failed")


# --- sessions ----------------------------------------------------------------------------------------------


def terminal(session: str, **more: object) -> dict[str, object]:
    return {"command": "true", "session_id": session, **more}


async def test_a_session_leads_to_its_worker_and_to_its_tenant_alone() -> None:
    """`create_if_missing` on one server, the next command on the other; another tenant finds nothing."""

    def ran(one: Dispatch) -> Result:
        said = {"session_id": "s", "created": True, "lease_expires_unix_ms": 2**45}
        return Result(command_id=one.command_id, payload_json=json.dumps(said).encode())

    async with world() as there:
        first = await connected(there, 0, "w1", answers=ran)
        second = await connected(there, 1, "w2", answers=ran)
        with pytest.raises(CommandFailedError) as unknown:
            await there.desks[0].commands.submit(wish(terminal("s"), "terminalExec"), ADMIN)
        await there.desks[0].commands.submit(wish(terminal("s", create_if_missing=True), "terminalExec"), ADMIN)
        for desk in there.desks * 3:
            await desk.commands.submit(wish(terminal("s"), "terminalExec"), ADMIN)
        with pytest.raises(CommandFailedError) as stolen:
            await there.desks[1].commands.submit(wish(terminal("s"), "terminalExec"), OTHER)
        assert unknown.value.reason == stolen.value.reason == "session_not_found"
        assert sorted([len(first.dispatched), len(second.dispatched)]) == [0, 7]


async def test_two_that_make_the_same_session_go_to_the_same_worker() -> None:
    async with world() as there:
        first, second = await connected(there, 0, "w1"), await connected(there, 1, "w2")
        wishes = [wish(terminal("s", create_if_missing=True), "terminalExec", wait_ms=0) for _ in range(2)]
        await asyncio.gather(*(desk.commands.submit(one, ADMIN) for desk, one in zip(there.desks, wishes, strict=True)))
        assert sorted([len(first.dispatched), len(second.dispatched)]) == [0, 2]


async def test_a_worker_takes_over_no_session_that_another_one_keeps() -> None:
    async with world() as there:
        mine = HeldSession(owner="default", session_id="s", lease_expires_unix_ms=2**45)
        worker, thief = await there.worker("w1"), await there.worker("w2")
        await worker.connect(there.desks[0], sessions=[mine])
        await thief.connect(there.desks[1], sessions=[mine])
        (listed,) = await there.desks[1].sandboxes.list(ADMIN)
        assert (listed.session_id, listed.worker) == ("s", "w1")
        assert await there.desks[1].sandboxes.list(OTHER) == []


async def test_a_call_is_made_again_when_its_stream_breaks() -> None:
    view = wire.SessionView(
        session_id="s",
        image="i",
        image_digest="d",
        created_unix_ms=1,
        lease_expires_unix_ms=2**45,
        network=NetworkProfile.DENY_ALL,
    )
    said = view.model_dump_json().encode()
    async with world() as there:
        worker = await there.worker("w1")
        mine = HeldSession(owner="default", session_id="s", lease_expires_unix_ms=2**45)
        await worker.connect(there.desks[0], sessions=[mine])
        asking = asyncio.create_task(there.desks[1].sandboxes.get(ADMIN, wire.SessionRef(session_id="s")))
        await worker.until(lambda: bool(worker.dispatched))
        assert worker.held is not None
        await worker.held.gone()
        worker.answers = lambda one: Result(command_id=one.command_id, payload_json=said)
        await worker.connect(there.desks[1], sessions=[mine])
        assert (await asking).worker == "w1"


async def test_an_entry_that_ran_out_under_a_broker_that_was_away_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(presence_module, "REFRESH_SECONDS", 0.05)
    async with world() as there:
        worker = await connected(there, 0)
        bucket = there.desks[1].presence._bucket
        before = await bucket.get("stream.w1")
        assert before is not None
        await bucket.delete("stream.w1")

        async def made_again() -> bool:
            now = await bucket.get("stream.w1")
            return now is not None and now.revision != before.revision

        await until(made_again)
        await until(lambda: there.desks[1].presence.of("w1") is not None)
        assert worker.closed is None


def test_what_becomes_of_a_command() -> None:
    assert fate("c", "e", None, LOST_SECONDS - 1, overdue=True) is Fate.WAIT
    assert fate("c", "e", None, LOST_SECONDS, overdue=False) is Fate.WAIT
    assert fate("c", "e", None, LOST_SECONDS, overdue=True) is Fate.LOST
