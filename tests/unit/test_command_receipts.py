"""Receipts of commands and of commands in sessions: what a worker signs, and that it is kept with the result."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fumehood.images.admission import Admission
from fumehood.images.development import DevelopmentPolicy
from fumehood.node.console import capabilities
from fumehood.node.console.capabilities import Programs, Rules
from fumehood.node.console.command_receipts import CommandReceipts
from fumehood.node.console.duties import Duties
from fumehood.node.console.duty_store import DutyStore
from fumehood.node.console.outbox import Outbox
from fumehood.node.console.session_calls import SessionCalls
from fumehood.node.receipts import Receipts
from fumehood.node.signing import ReceiptKeys, rotate
from fumehood.sandbox.sessions.sessions import Sessions
from fumehood.sandbox.sessions.store import SessionStore
from fumehood.verify.receipt import Kind, Statement, check
from fumehood.wire.canonical import json_sha256
from fumehood.wire.console.console_pb2 import Dispatch, Result
from fumehood.wire.receipts import decoded
from tests.receipt_check import key_list, sha256
from tests.unit.session_world import IMAGE, NAME, NoRegistry, World, command, wish
from tests.waiting import until

RULES = Rules(python_image=IMAGE, terminal_image=IMAGE)
DIGEST = IMAGE.partition("@")[2]


@pytest.fixture(autouse=True)
def no_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake machine has words of its own."""
    monkeypatch.setattr(capabilities, "SHELL", ())
    monkeypatch.setattr(capabilities, "PYTHON", ())


class Worker:
    def __init__(self, world: World, sessions: Sessions, duties: Duties) -> None:
        self.world, self.sessions, self.duties = world, sessions, duties
        self.outbox: Outbox = duties.begin()
        self.numbers = 0

    async def do(self, capability: str, payload: bytes | dict[str, Any], **more: Any) -> Result:
        self.numbers += 1
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        dispatch = Dispatch(
            command_id=f"c{self.numbers}", capability=capability, owner="acme", payload_json=data, **more
        )
        self.duties.take(dispatch)
        async with asyncio.timeout(60):
            return await self.outbox.next()

    def checked(self, result: Result) -> Statement:
        return check(decoded(result.receipt), key_list(self.world.folder, "w1"))


@contextlib.asynccontextmanager
async def life(world: World) -> AsyncIterator[Worker]:
    signing = CommandReceipts(Receipts(ReceiptKeys.load(world.folder), "w1"))
    store = await SessionStore.open(world.folder)
    duty_store = await DutyStore.open(world.folder / "duties.db")
    admission = Admission(DevelopmentPolicy(), NoRegistry())
    options = replace(world.options, clock=world.clock, steady=world.clock.steady)
    opening = Sessions.open(world.driver(), admission, store, options, sign=signing.of_session_command)
    try:
        async with opening as sessions:
            signing.sessions = sessions
            handlers = {**Programs(sessions, RULES).handlers(), **SessionCalls(sessions, RULES).handlers()}
            duties = Duties(duty_store, handlers, sign=signing.of_command)
            await duties.recover()
            yield Worker(world, sessions, duties)
            await duties.close()
    finally:
        await duty_store.close()
        await store.close()


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[Worker]:
    async with life(World(tmp_path)) as made:
        yield made


# --- commands ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [b'"hi"', b'{"b" : 1,\n"a":[1.10, 12345678901234567890123]}', b"null"])
async def test_an_echo_is_signed_and_stays_what_it_was_byte_for_byte(worker: Worker, payload: bytes) -> None:
    result = await worker.do("echo", payload)
    assert result.payload_json == payload
    found = worker.checked(result)
    asked = json_sha256({"capability": "echo", "payload_sha256": sha256(payload)})
    claim = found.predicate
    assert (claim.kind, claim.task, claim.worker.id) == (Kind.COMMAND, {"command_id": "c1"}, "w1")
    assert (claim.request.sha256, claim.request.type, claim.request.tenant) == (asked, "echo", "acme")
    assert {one.name: one.digest.sha256 for one in found.subject} == {"result": sha256(payload)}
    assert (claim.outcome.status, claim.image) == ("succeeded", None)


async def test_a_program_is_signed_with_its_image_its_streams_and_its_result(worker: Worker) -> None:
    result = await worker.do("pythonExec", {"code": "whoami"}, timeout_ms=5000)
    found, said = worker.checked(result), json.loads(result.payload_json)
    printed = said["output"].encode()
    assert printed
    assert {one.name: one.digest.sha256 for one in found.subject} == {
        "stdout": sha256(printed),
        "stderr": sha256(b""),
        "stdout.returned": sha256(printed),
        "stderr.returned": sha256(b""),
        "result": sha256(result.payload_json),
    }
    claim = found.predicate
    assert claim.task == {"command_id": "c1", "session_id": ".python-c1"}
    assert claim.image is not None
    assert (claim.image.digest, claim.image.evidence["policy"]) == (DIGEST, "development")
    assert claim.observed["isolation"]["runtime"] == "fake"
    assert (claim.observed["limits"]["timeout_ms"], claim.observed["limits"]["pids"]) == (5000, 128)
    assert (claim.outcome.reason, claim.outcome.exit_code) == ("exited", 0)
    assert claim.started_at is not None
    assert claim.started_at <= claim.finished_at


async def test_what_failed_is_signed_as_that(worker: Worker) -> None:
    found = worker.checked(await worker.do("terminalExec", {"command": "no-such-program", "session_id": "s", "x": 1}))
    assert (found.predicate.outcome.status, found.predicate.outcome.reason) == ("failed", "invalid_payload")
    assert found.subject == ()
    found = worker.checked(await worker.do("pythonExec", {"code": "no-such-program"}))
    assert (found.predicate.outcome.status, found.predicate.outcome.reason) == ("failed", "execution_failed")
    assert found.predicate.image is not None, "there was a sandbox for it"
    assert found.digest_of("result") is None


async def test_a_command_that_took_too_long_has_its_receipt(worker: Worker) -> None:
    found = worker.checked(await worker.do("pythonExec", {"code": "ignores"}, timeout_ms=200))
    assert (found.predicate.outcome.status, found.predicate.outcome.reason) == ("failed", "deadline_exceeded")
    assert found.predicate.observed["limits"]["timeout_ms"] == 200


async def test_a_result_that_was_not_acknowledged_comes_again_with_the_very_same_receipt(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with life(world) as before:
        result = await before.do("pythonExec", {"code": "env"})
    rotate(tmp_path)
    async with life(world) as after:
        async with asyncio.timeout(60):
            again = await after.outbox.next()
    assert again == result
    assert again.receipt == result.receipt != b""


# --- commands in sessions ----------------------------------------------------------------------------------


async def test_a_command_in_a_session_is_signed_when_it_ends(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with life(world) as worker:
        await worker.sessions.create(wish())
        begun = command("both", "out", "err", env={"A": "b"}, command_id="mine")
        await worker.sessions.start(NAME, begun)
        result = await worker.do("session.command", {"session_id": "s1", "command_id": "mine", "wait_ms": 5000})
    found = worker.checked(result)
    claim = found.predicate
    asked = {"argv": ["both", "out", "err"], "cwd": "/workspace", "env": {"A": "b"}, "stdin": False}
    assert claim.request.sha256 == json_sha256({**asked, "terminal": None, "timeout_ms": 0})
    assert claim.task == {"command_id": "mine", "session_id": "s1"}
    assert found.digest_of("stdout") == sha256(b"out")
    assert found.digest_of("stderr") == sha256(b"err")
    assert (claim.outcome.status, claim.outcome.exit_code) == ("exited", 0)
    assert claim.image is not None
    assert claim.image.evidence["policy"] == "development"
    assert claim.observed["isolation"]["runtime"] == "fake"
    async with life(world) as next_one:  # it was stored with the end
        again = await next_one.do("session.command", {"session_id": "s1", "command_id": "mine"})
    assert again.receipt == result.receipt


async def test_a_command_that_runs_has_none_yet(worker: Worker) -> None:
    await worker.sessions.create(wish())
    await worker.sessions.start(NAME, command("sleep", "60", command_id="mine"))
    result = await worker.do("session.command", {"session_id": "s1", "command_id": "mine"})
    assert result.receipt == b""


async def test_a_command_whose_session_went_is_signed_as_lost(worker: Worker) -> None:
    await worker.sessions.create(wish())
    await worker.sessions.start(NAME, command("sleep", "60", command_id="mine"))
    await worker.sessions.remove(NAME)
    facts = worker.sessions.process("mine")
    found = check(json.loads(facts.receipt), key_list(worker.world.folder, "w1"))
    assert found.predicate.outcome.status == "sandbox_lost"
    assert found.digest_of("stdout") is None, "nobody knows all that it printed"


async def test_a_command_that_a_dead_worker_left_is_signed_by_the_next_one(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with life(world) as worker:
        await worker.sessions.create(wish())
        await worker.sessions.start(NAME, command("sleep", "60", command_id="mine"))
        await until(lambda: worker.sessions.process("mine").stdout_bytes > 0)
    world.engine.boxes.clear()
    async with life(world) as worker:
        facts = worker.sessions.process("mine")
    found = check(json.loads(facts.receipt), key_list(tmp_path, "w1"))
    assert (found.predicate.outcome.status, found.predicate.image) == ("sandbox_lost", None)
