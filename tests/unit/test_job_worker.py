"""A provider over the in-memory broker: what it takes, what it answers, what it signs, and what it lets go."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from fumehood.broker import values
from fumehood.broker.handout import Handouts
from fumehood.broker.memory import MemoryBroker, MemoryServer
from fumehood.broker.ports import Bucket, MessageKind
from fumehood.errors import ConfigurationError, JobFailedError
from fumehood.jobs.base import Context, JobRequest, JobResponse, JobType, SchemaVersion, Workbench
from fumehood.jobs.registry import Registry
from fumehood.node import hold, registration
from fumehood.node.jobs import execution, standing, worker
from fumehood.node.jobs.execution import LARGEST_FACTS, Observing, _bounded
from fumehood.node.jobs.service import Provider, providing
from fumehood.node.jobs.serving import served
from fumehood.node.jobs.worker import JobWorker
from fumehood.node.signing import ReceiptKeys
from fumehood.verify import receipt
from fumehood.verify.dsse import SigningKey
from fumehood.verify.keylist import KeyList, ListedKey
from fumehood.wire.canonical import json_sha256
from fumehood.wire.jobs import Adjudication, Mode, Provenance, Verification
from fumehood.wire.protocol import EventType, StepEvent, TaskPayload
from fumehood.wire.sealed import job_task
from tests.waiting import until

NAME = "test.text_echo.v1"
SECRET = "nobody-may-read-this"


class EchoRequest(JobRequest):
    text: str
    verification: Verification = Verification(mode=Mode.OBJECTIVE, redundancy=1, adjudication=Adjudication.NONE)


class EchoResponse(JobResponse):
    text: str
    ignored: str = "told, and not compared"

    def declared(self) -> Any:
        return self.text


Run = Callable[[EchoRequest, Context], Awaitable[EchoResponse]]


def echoed(request: EchoRequest) -> EchoResponse:
    return EchoResponse(text=request.text, provenance=Provenance(model_id="echo/1"))


class Echo:
    """Does what a test says."""

    def __init__(self) -> None:
        self.running = self.most = self.calls = self.cancelled = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.what: Run = self._echo

    async def _echo(self, request: EchoRequest, context: Context) -> EchoResponse:
        context.prove("stdout/0", json_sha256(request.text))
        context.observe(image={"digest": "sha256:" + "0" * 64}, isolation={"runtime": "none"})
        return echoed(request)

    async def run(self, request: EchoRequest, context: Context) -> EchoResponse:
        self.calls += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.gate.wait()
            return await self.what(request, context)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1


def _short(request: EchoRequest, response: EchoResponse) -> EchoResponse:
    return response.model_copy(update={"text": response.text[:1_000_000]})


def _needs_more(_: Workbench) -> Echo:
    raise ConfigurationError("there is no engine")


def _not_installed(_: Workbench) -> Echo:
    raise ModuleNotFoundError("no module", name="torch")


def echo_type(**more: Any) -> JobType[EchoRequest, EchoResponse]:
    given: dict[str, Any] = {"handlers": {"plain": lambda _: Echo()}, **more}
    return JobType(
        name=NAME, version=SchemaVersion(1, 0, 0), about="", request=EchoRequest, response=EchoResponse, **given
    )


class World:
    def __init__(self, folder: Path) -> None:
        self.server = MemoryServer()
        self.broker = MemoryBroker(self.server)
        self.registry = Registry([echo_type()])
        self.folder = folder
        self.echo = Echo()
        self._runs = 0
        self._events: list[StepEvent] = []

    @contextlib.asynccontextmanager
    async def provider(
        self, name: str = "provider-1", *, at_once: int = 4, echo: Echo | None = None
    ) -> AsyncIterator[JobWorker]:
        keys = ReceiptKeys.load(self.folder / name)
        one = Provider(name, self.registry, {NAME: echo or self.echo}, keys, at_once)
        async with providing(one, MemoryBroker(self.server)) as working:
            yield working

    async def ask(self, text: str = "hi", **changed: Any) -> str:
        self._runs += 1
        run_id = f"run-{self._runs}"
        request = EchoRequest(text=text)
        said = {"job_type": NAME, "payload": request.typed(), "request_sha256": request.compute_hash()}
        said |= {"tenant": "acme", "asked_by": "ci", **changed}
        task = TaskPayload(
            task_id=f"{run_id}.execute-0",
            run_id=run_id,
            step_id="execute-0",
            input=await values.outline(said, self.broker.blobs()),
            proof="proof",
        )
        await self.broker.tasks.publish(job_task(NAME), run_id, f"{run_id}.task", task.encode())
        return run_id

    async def events(self, run_id: str) -> list[StepEvent]:
        for delivery in await self.broker.feed.pull(0, max_messages=100, timeout=0.01):
            if delivery.kind is MessageKind.HISTORY:
                self._events.append(StepEvent.model_validate_json(delivery.data))
            await delivery.ack()
        return [event for event in self._events if event.run_id == run_id]

    async def answer(self, run_id: str) -> StepEvent:
        found: list[StepEvent] = []

        async def is_there() -> bool:
            found[:] = [one for one in await self.events(run_id) if one.type is not EventType.STARTED]
            return bool(found)

        await until(is_there)
        (one,) = found
        return one

    async def failure(self, run_id: str) -> dict[str, Any]:
        event = await self.answer(run_id)
        assert event.type is EventType.FAILED
        error: dict[str, Any] = event.payload["error"]
        return error

    def keys(self, *names: str) -> KeyList:
        now = dt.datetime.now(dt.UTC)
        listed = []
        for name in names:
            key = ReceiptKeys.load(self.folder / name).current
            listed.append(ListedKey(key_id=key.key_id, public_key=key.public_key.hex(), worker=name, not_before=now))
        return KeyList(version=1, issued_at=now, keys=tuple(listed))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(worker, "PULL_SECONDS", 0.05)
    monkeypatch.setattr(worker, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(hold, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(standing, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(registration, "LOOK_SECONDS", 0.02)
    return World(tmp_path)


# --- answers -----------------------------------------------------------------------------------------------


async def test_an_answer_has_its_provenance_and_a_receipt_that_binds_it(world: World) -> None:
    async with world.provider():
        event = await world.answer(await world.ask("häh"))
    assert (event.type, event.proof, event.worker_id) == (EventType.COMPLETED, "proof", "provider-1")
    response, envelope = event.payload["response"], event.payload["receipt"]
    read = world.registry.response(NAME, response)
    hashed = EchoRequest(text="häh").compute_hash()
    key = ReceiptKeys.load(world.folder / "provider-1").current
    made = read.provenance
    assert (made.model_id, made.input_sha256, made.provider_pubkey) == ("echo/1", hashed, key.public_key.hex())
    assert made.output_sha256 == json_sha256({name: response[name] for name in ("text", "ignored")})
    assert made.executed_at is not None
    assert made.duration_ms is not None

    statement = receipt.check(envelope, world.keys("provider-1"))
    assert {one.name: one.digest.sha256 for one in statement.subject} == {
        "response": json_sha256(response),
        "outputs": made.output_sha256,
        "declared": json_sha256("häh"),
        "stdout/0": json_sha256("häh"),
    }
    claim = statement.predicate
    assert (claim.kind, claim.outcome.status, claim.worker.id) == (receipt.Kind.JOB, "answered", "provider-1")
    assert (claim.request.sha256, claim.request.type, claim.request.tenant, claim.request.by) == (
        hashed,
        NAME,
        "acme",
        "ci",
    )
    assert claim.task == {
        "run_id": event.run_id, "step_id": "execute-0", "attempt": 1, "iteration": 0, "lease_id": event.lease_id
    }  # fmt: skip
    assert claim.image is not None
    assert claim.observed == {"isolation": {"runtime": "none"}}


async def test_what_a_request_allows_holds_whoever_answers(world: World) -> None:
    world.registry = Registry([echo_type(enforce=_short)])

    async def long(request: EchoRequest, _: Context) -> EchoResponse:
        return EchoResponse(text="x" * 2_000_000, provenance=Provenance(model_id="m"))

    world.echo.what = long
    async with world.provider():
        event = await world.answer(await world.ask())
    whole = await values.inline(event.payload, world.broker.blobs())
    assert len(whole["response"]["text"]) == 1_000_000
    assert receipt.look(whole["receipt"]).digest_of("response") == json_sha256(whole["response"])


async def test_a_large_request_comes_from_the_blobs(world: World) -> None:
    async with world.provider():
        event = await world.answer(await world.ask("x" * 200_000))
    whole = await values.inline(event.payload, world.broker.blobs())
    assert whole["response"]["text"] == "x" * 200_000


async def test_a_key_that_was_rotated_meanwhile_signs(world: World) -> None:
    world.echo.gate.clear()
    async with world.provider():
        run_id = await world.ask()
        await until(lambda: world.echo.running)
        fresh = ReceiptKeys.load(world.folder / "provider-1").rotate()
        world.echo.gate.set()
        event = await world.answer(run_id)
    assert event.payload["receipt"]["signatures"][0]["keyid"] == fresh.key_id
    assert event.payload["response"]["provenance"]["provider_pubkey"] == fresh.public_key.hex()


# --- what cannot be done -----------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [True, False])
async def test_a_handler_says_why_it_cannot(world: World, again: bool) -> None:
    async def refuse(request: EchoRequest, _: Context) -> EchoResponse:
        raise JobFailedError("too_many_tokens", "more than the model takes", again=again)

    world.echo.what = refuse
    async with world.provider():
        error = await world.failure(await world.ask())
    assert error == {"code": "too_many_tokens", "message": "more than the model takes", "retryable": again}


async def test_a_handler_that_breaks_is_tried_elsewhere_and_shows_nothing(world: World) -> None:
    async def broken(request: EchoRequest, _: Context) -> EchoResponse:
        raise RuntimeError(f"could not do {request.text}")

    world.echo.what = broken
    async with world.provider():
        with capture_logs() as said:
            error = await world.failure(await world.ask(SECRET))
        assert error == {"code": "provider_error", "message": "the provider failed: RuntimeError", "retryable": True}
        world.echo.what = world.echo._echo
        assert (await world.answer(await world.ask())).type is EventType.COMPLETED, "it goes on"
    assert SECRET not in json.dumps(said, default=repr)


async def test_a_response_that_is_none_is_never_signed(world: World) -> None:
    async def wrong(request: EchoRequest, _: Context) -> Any:
        return EchoResponse.model_construct(text=cast("str", 3), provenance=Provenance(model_id="m"))

    world.echo.what = wrong
    async with world.provider():
        assert (await world.failure(await world.ask()))["code"] == "provider_error"


async def test_a_response_has_a_bound(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "LARGEST_RESPONSE", 500)
    async with world.provider():
        error = await world.failure(await world.ask("x" * 500))
    assert (error["code"], error["retryable"]) == ("response_too_large", False)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"request_sha256": "0" * 64}, "request_mismatch"),
        ({"payload": {"text": 3}}, "unreadable_task"),
        ({"payload": {}}, "unreadable_task"),
        ({"job_type": "no type"}, "unreadable_task"),
    ],
)
async def test_what_is_not_what_its_hash_says_is_not_run(world: World, changed: dict[str, Any], code: str) -> None:
    async with world.provider():
        error = await world.failure(await world.ask(**changed))
    assert (error["code"], error["retryable"], world.echo.calls) == (code, True, 0), "another one may read it"


# --- leases ------------------------------------------------------------------------------------------------


async def test_what_was_taken_back_is_cancelled_and_not_answered(world: World) -> None:
    world.echo.gate.clear()
    async with world.provider():
        run_id = await world.ask()
        await until(lambda: world.echo.running)
        await Handouts(world.broker).revoke(run_id, "execute-0", (1, 0, 0), task_type=job_task(NAME))
        await until(lambda: world.echo.cancelled)
        await until(lambda: not world.echo.running)
    assert [event.type for event in await world.events(run_id)] == [EventType.STARTED]


async def test_a_broker_that_is_away_for_long_ends_what_runs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold, "TOLERANCE_SECONDS", 0.0)

    async def silent(*_: Any) -> Any:
        raise TimeoutError

    world.echo.gate.clear()
    async with world.provider():
        run_id = await world.ask()
        await until(lambda: world.echo.running)
        with monkeypatch.context() as patch:
            patch.setattr(Handouts, "heartbeat", silent)
            await until(lambda: world.echo.cancelled)
        world.echo.gate.set()
        assert (await world.answer(run_id)).type is EventType.COMPLETED, "it was given back, and taken again"


async def test_draining_lets_what_runs_end(world: World) -> None:
    world.echo.gate.clear()
    async with world.provider() as working:
        run_id = await world.ask()
        await until(lambda: world.echo.running)
        draining = asyncio.create_task(working.drain(10))
        await asyncio.sleep(0)
        later = await world.ask()
        world.echo.gate.set()
        assert await draining
        assert (await world.answer(run_id)).type is EventType.COMPLETED
    assert world.echo.calls == 1, "nothing more was taken"
    async with world.provider("provider-2"):
        assert (await world.answer(later)).worker_id == "provider-2"


async def test_what_does_not_end_while_draining_is_given_to_others_at_once(world: World) -> None:
    world.echo.gate.clear()
    async with world.provider() as working:
        run_id = await world.ask()
        await until(lambda: world.echo.running)
        assert not await working.drain(0.01)
        assert world.echo.cancelled == 1
    async with world.provider("provider-2", echo=Echo()):
        event = await world.answer(run_id)
    assert (event.type, event.worker_id) == (EventType.COMPLETED, "provider-2")


# --- how much, and who -------------------------------------------------------------------------------------


async def test_no_more_is_taken_than_is_done_at_once(world: World) -> None:
    world.echo.gate.clear()
    async with world.provider(at_once=2):
        runs = [await world.ask() for _ in range(5)]
        await until(lambda: world.echo.running == 2)
        world.echo.gate.set()
        for run_id in runs:
            assert (await world.answer(run_id)).type is EventType.COMPLETED
    assert world.echo.most == 2


async def test_several_providers_share_what_there_is(world: World) -> None:
    world.echo.gate.clear()
    async with world.provider("p-1", at_once=1), world.provider("p-2", at_once=1), world.provider("p-3", at_once=1):
        runs = [await world.ask() for _ in range(3)]
        await until(lambda: world.echo.running == 3)
        world.echo.gate.set()
        by = {(await world.answer(run_id)).worker_id for run_id in runs}
    assert by == {"p-1", "p-2", "p-3"}


async def test_one_that_was_set_aside_takes_nothing_until_it_is_restored(world: World) -> None:
    bucket = world.broker.bucket(Bucket.PROVIDERS)
    await bucket.put("provider-1", json.dumps({"set_aside": {"reason": "lies"}}).encode())
    async with world.provider():
        run_id = await world.ask()
        async with world.provider("provider-2", echo=Echo()):
            assert (await world.answer(run_id)).worker_id == "provider-2"
        assert world.echo.calls == 0
        await bucket.put("provider-1", b"{}")
        assert (await world.answer(await world.ask())).worker_id == "provider-1"


@pytest.mark.parametrize("said", [b"", b"no json", b"[]", b'"set_aside"', b"\xff"])
async def test_a_standing_that_cannot_be_read_is_none(world: World, said: bytes) -> None:
    await world.broker.bucket(Bucket.PROVIDERS).put("provider-1", said)
    async with world.provider():
        assert (await world.answer(await world.ask())).type is EventType.COMPLETED


async def test_the_directory_tells_its_types_and_its_key(world: World) -> None:
    workers = world.broker.bucket(Bucket.WORKERS)

    async def listed() -> bool:
        return await workers.get("provider-1") is not None

    async with world.provider(at_once=3):
        await until(listed)
        entry = await workers.get("provider-1")
        assert entry is not None
        said = json.loads(entry.value)
    assert (said["task_types"], said["max_tasks"]) == ([job_task(NAME)], 3)
    key = ReceiptKeys.load(world.folder / "provider-1").public_key_hex
    assert (said["metadata"]["receipt_key"], said["metadata"]["job_types"]) == (key, NAME)
    assert not await listed()


# --- what is served ----------------------------------------------------------------------------------------


def test_what_cannot_be_served_is_left_out_unless_it_was_asked_for() -> None:
    other = JobType(
        name="test.other.v1",
        version=SchemaVersion(1, 0, 0),
        about="",
        request=EchoRequest,
        response=EchoResponse,
        handlers={"engine": _needs_more, "torch": _not_installed, "plain": lambda _: Echo()},
    )
    registry = Registry([echo_type(), other])
    found = served(registry, Workbench(), types=(), ways={})
    assert (list(found.handlers), dict(found.left_out)) == ([NAME], {"test.other.v1": "there is no engine"})
    assert "test.other.v1" in served(registry, Workbench(), types=(), ways={"test.other.v1": "plain"}).handlers
    with pytest.raises(ConfigurationError, match="no engine"):
        served(registry, Workbench(), types=("test.other.v1",), ways={})
    with pytest.raises(ConfigurationError, match="torch, which is not installed"):
        served(registry, Workbench(), types=(), ways={"test.other.v1": "torch"})
    with pytest.raises(ConfigurationError, match="there is engine, torch, plain"):
        served(registry, Workbench(), types=(), ways={"test.other.v1": "magic"})
    with pytest.raises(ConfigurationError, match=r"no job type test\.none\.v1"):
        served(registry, Workbench(), types=("test.none.v1",), ways={})
    with pytest.raises(ConfigurationError, match="can serve no job type"):
        served(Registry([other]), Workbench(), types=(), ways={})


@given(
    st.dictionaries(st.text(max_size=8), st.recursive(st.none() | st.booleans() | st.text(), st.lists, max_leaves=20))
)
def test_what_was_observed_is_kept_or_said_to_be_missing(facts: dict[str, Any]) -> None:
    assert _bounded(facts) == facts
    much = _bounded({**facts, "much": "x" * LARGEST_FACTS})
    assert much["much"] == {"left_out": "too large, or no JSON"}
    assert much.keys() == {*facts, "much"}


def test_a_handler_proves_no_more_than_a_receipt_bears() -> None:
    context = Observing("w", "t", "acme")
    for number in range(1000):
        context.prove(f"artifact/{number}", "0" * 64)
    assert len(context.proven) == execution.MOST_PROVEN
    assert SigningKey.generate().key_id  # what signs it is not a handler's to see: `Context` has none
    assert not hasattr(context, "key")
