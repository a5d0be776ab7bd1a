"""Runs: an accepted one is never lost, and one key is one run, whoever asks, however often, whatever dies."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fumehood.broker.memory import Faults, MemoryBroker, MemoryServer, Verdict
from fumehood.broker.ports import Bucket, Delivery
from fumehood.control.callers import ADMIN, DEFAULT_TENANT
from fumehood.control.decider import Decider
from fumehood.control.runs import Queued, Runs, Start
from fumehood.control.service import Service, now_ms
from fumehood.engine.state import RunState, RunStatus
from fumehood.errors import (
    BrokerUnavailableError,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
)
from fumehood.wire import blobref

SMALL = b"name: w\nsteps:\n  - {id: a, sleep: 1h}\n"
SCHEMA = b"name: w\ninput_schema: {type: object, required: [url]}\nsteps:\n  - {id: a, task: t}\n"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def ready(server: MemoryServer, definition: bytes = SMALL) -> Service:
    service = Service(MemoryBroker(server))
    await service.workflows.apply("w", definition, is_json=False, tenant=DEFAULT_TENANT)
    return service


async def inbox(server: MemoryServer) -> list[Delivery]:
    return await MemoryBroker(server).feed.pull(0, max_messages=256, timeout=0.01)


async def seen(runs: Runs, run_id: str) -> RunState:
    found = await runs.get(run_id, ADMIN)
    assert isinstance(found, RunState)
    return found


async def decided(server: MemoryServer) -> None:
    await Decider(MemoryBroker(server), now_ms=now_ms).turn(0, timeout=0.01)


class Loses(Faults):
    """Loses one call on its way there, or its answer on the way back."""

    def __init__(self, operation: str, verdict: Verdict) -> None:
        self.operation: str | None = operation
        self.verdict = verdict

    async def call(self, operation: str, subject: str) -> Verdict:
        if operation != self.operation:
            return Verdict.OK
        self.operation = None
        return self.verdict


# --- starting ----------------------------------------------------------------------------------------------


async def test_a_start_is_in_the_inbox_with_all_that_the_run_needs() -> None:
    server = MemoryServer()
    service = await ready(server)
    run_id, created = await service.runs.start(Start("w", {"x": 1}, traceparent=TRACE), ADMIN)
    assert created
    (delivery,) = await inbox(server)
    assert (delivery.run_id, delivery.message_id) == (run_id, f"{run_id}.start")
    assert delivery.headers["traceparent"] == TRACE
    stored, pointer = await service.workflows.show("w", tenant=DEFAULT_TENANT)
    assert json.loads(delivery.data) == {
        "type": "start",
        "definition": stored.document,
        "digest": pointer.digest,
        "input": {"x": 1},
        "meta": {"traceparent": TRACE, "by": "admin"},
    }


async def test_run_ids_are_safe_sortable_and_all_different() -> None:
    service = await ready(MemoryServer())
    ids = [(await service.runs.start(Start("w"), ADMIN))[0] for _ in range(50)]
    assert len(set(ids)) == 50
    assert all(len(one) == 36 for one in ids)
    assert sorted(one[:16] for one in ids) == [one[:16] for one in ids]


async def test_a_run_keeps_the_definition_that_it_was_started_with() -> None:
    server = MemoryServer()
    service = await ready(server)
    old = (await service.workflows.current("w", tenant=DEFAULT_TENANT)).digest
    run_id, _ = await service.runs.start(Start("w"), ADMIN)
    await service.workflows.apply("w", SMALL.replace(b"1h", b"2h"), is_json=False, tenant=DEFAULT_TENANT)
    await decided(server)
    state = await seen(service.runs, run_id)
    assert (state.digest, state.definition.digest) == (old, old)


async def test_there_is_no_run_of_a_workflow_that_is_not_there() -> None:
    server = MemoryServer()
    service = await ready(server)
    for start in (Start("v"), Start("v", idempotency_key="k"), Start("a.b"), Start("")):
        with pytest.raises(NotFoundError):
            await service.runs.start(start, ADMIN)
    assert await inbox(server) == []
    assert await MemoryBroker(server).bucket(Bucket.IDEMPOTENCY).keys() == []


@pytest.mark.parametrize(
    "given_input",
    [{"$blob": "x"}, [{"a": {"$blob": "sha256:" + "0" * 64, "size": 1}}], {"a": [[{"$blob": None, "b": 1}]]}],
)
async def test_a_reference_from_outside_is_refused(given_input: Any) -> None:
    service = await ready(MemoryServer())
    for key in (None, "k"):
        with pytest.raises(InvalidRequestError, match=r"\$blob"):
            await service.runs.start(Start("w", given_input, key), ADMIN)


async def test_an_input_without_end_is_refused() -> None:
    service = await ready(MemoryServer())
    deep: Any = None
    for _ in range(200):
        deep = [deep]
    with pytest.raises(InvalidRequestError, match="nested too deeply"):
        await service.runs.start(Start("w", deep), ADMIN)


async def test_a_large_input_travels_by_reference_and_is_shown_whole() -> None:
    server = MemoryServer()
    service = await ready(server)
    large = {"text": "x" * (blobref.INLINE_BYTES + 1)}
    run_id, _ = await service.runs.start(Start("w", large), ADMIN)
    (delivery,) = await inbox(server)
    assert len(delivery.data) < 1024
    ref = json.loads(delivery.data)["input"]
    assert blobref.ref_of(ref) is not None
    await delivery.nak()
    await decided(server)
    state = await seen(service.runs, run_id)
    assert state.input == ref
    assert await service.runs.shown({"input": state.input}) == {"input": large}


async def test_what_is_too_large_to_be_shown_stays_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    service = await ready(MemoryServer())
    data = blobref.encode("y" * 1000)
    ref = blobref.reference(await service.broker.blobs().put(data), len(data))
    gone = blobref.reference("sha256:" + "0" * 64, 5)
    assert await service.runs.shown([ref, gone, 1]) == ["y" * 1000, gone, 1]
    monkeypatch.setattr("fumehood.control.runs.SHOWN_BYTES", 1000)
    assert await service.runs.shown([ref, 1]) == [ref, 1]


async def test_the_input_must_fit_the_schema_and_no_value_is_repeated() -> None:
    service = await ready(MemoryServer(), SCHEMA)
    for key in (None, "k"):
        with pytest.raises(InvalidRequestError) as caught:
            await service.runs.start(Start("w", {"hush": "hush-hush"}, key), ADMIN)
        assert "input_schema" in caught.value.detail
        assert "hush" not in caught.value.detail
    await service.runs.start(Start("w", {"url": "x"}), ADMIN)


# --- idempotency -------------------------------------------------------------------------------------------


async def test_fifty_starts_with_one_key_make_one_run() -> None:
    """Each through a server of its own."""
    server = MemoryServer()
    await ready(server)
    services = [Service(MemoryBroker(server)) for _ in range(50)]
    answers = await asyncio.gather(*(service.runs.start(Start("w", {"n": 1}, "k"), ADMIN) for service in services))
    assert len({run_id for run_id, _ in answers}) == 1
    assert [created for _, created in answers].count(True) == 1
    assert len(await inbox(server)) == 1


async def test_the_same_key_with_another_input_is_a_conflict() -> None:
    service = await ready(MemoryServer())
    await service.runs.start(Start("w", {"n": 1}, "k"), ADMIN)
    with pytest.raises(ConflictError):
        await service.runs.start(Start("w", {"n": 2}, "k"), ADMIN)


async def test_the_order_of_keys_in_an_input_makes_no_difference() -> None:
    service = await ready(MemoryServer())
    first = await service.runs.start(Start("w", {"a": 1, "b": 2}, "k"), ADMIN)
    assert await service.runs.start(Start("w", {"b": 2, "a": 1}, "k"), ADMIN) == (first[0], False)


async def test_the_same_key_for_another_workflow_is_another_run() -> None:
    service = await ready(MemoryServer())
    await service.workflows.apply("v", SMALL.replace(b"name: w", b"name: v"), is_json=False, tenant=DEFAULT_TENANT)
    one, _ = await service.runs.start(Start("w", None, "k"), ADMIN)
    other, _ = await service.runs.start(Start("v", None, "k"), ADMIN)
    assert one != other


@settings(max_examples=50, deadline=None)
@given(names=st.lists(st.tuples(st.sampled_from(["w", "w1", "w11"]), st.text(max_size=4)), unique=True, max_size=8))
def test_no_two_pairs_of_workflow_and_key_meet(names: list[tuple[str, str]]) -> None:
    async def started() -> set[str]:
        service = await ready(MemoryServer())
        for name in ("w1", "w11"):
            await service.workflows.apply(
                name, SMALL.replace(b"name: w", f"name: {name}".encode()), is_json=False, tenant=DEFAULT_TENANT
            )
        return {(await service.runs.start(Start(name, None, key), ADMIN))[0] for name, key in names}

    assert len(asyncio.run(started())) == len(names)


@pytest.mark.parametrize("verdict", [Verdict.LOST, Verdict.UNANSWERED])
@pytest.mark.parametrize("operation", ["idempotency.create", "mailboxes.send"])
async def test_a_start_that_died_half_way_is_healed_by_the_same_key(operation: str, verdict: Verdict) -> None:
    server = MemoryServer()
    await ready(server)
    dying = Service(MemoryBroker(server, faults=Loses(operation, verdict)))
    with pytest.raises(BrokerUnavailableError):
        await dying.runs.start(Start("w", {"n": 1}, "k"), ADMIN)
    service = Service(MemoryBroker(server))
    run_id, _ = await service.runs.start(Start("w", {"n": 1}, "k"), ADMIN)
    assert (await service.runs.start(Start("w", {"n": 1}, "k"), ADMIN))[0] == run_id
    await decided(server)
    assert (await seen(service.runs, run_id)).status is RunStatus.RUNNING
    keys = await MemoryBroker(server).bucket(Bucket.IDEMPOTENCY).keys()
    assert len(keys) == 1


async def test_a_healed_start_has_the_definition_of_the_first_try() -> None:
    """Also where the workflow's newer schema would refuse the input."""
    server = MemoryServer()
    service = await ready(server)
    old = (await service.workflows.current("w", tenant=DEFAULT_TENANT)).digest
    dying = Service(MemoryBroker(server, faults=Loses("mailboxes.send", Verdict.LOST)))
    with pytest.raises(BrokerUnavailableError):
        await dying.runs.start(Start("w", {"n": 1}, "k"), ADMIN)
    await service.workflows.apply("w", SCHEMA, is_json=False, tenant=DEFAULT_TENANT)
    run_id, created = await service.runs.start(Start("w", {"n": 1}, "k"), ADMIN)
    assert not created
    await decided(server)
    assert (await seen(service.runs, run_id)).digest == old


# --- seeing and ending -------------------------------------------------------------------------------------


async def test_a_run_is_queued_until_somebody_looks_at_it() -> None:
    server = MemoryServer()
    service = await ready(server)
    digest = (await service.workflows.current("w", tenant=DEFAULT_TENANT)).digest
    run_id, _ = await service.runs.start(Start("w"), ADMIN)
    assert await service.runs.get(run_id, ADMIN) == Queued(run_id, "w", digest)
    assert await service.runs.history(run_id, ADMIN, after=0, limit=10) == ([], None)
    await decided(server)
    assert (await seen(service.runs, run_id)).status is RunStatus.RUNNING


@pytest.mark.parametrize("run_id", ["run-nobody", "", "a.b", "*", ">", "a b", "x" * 129, "run-1\n"])
async def test_an_unknown_run_is_not_found_in_any_way(run_id: str) -> None:
    server = MemoryServer()
    service = await ready(server)
    for call in (
        service.runs.get(run_id, ADMIN),
        service.runs.history(run_id, ADMIN, after=0, limit=1),
        service.orders.cancel(run_id, ADMIN),
    ):
        with pytest.raises(NotFoundError):
            await call
    assert await inbox(server) == []


async def test_a_cancelled_run_ends_and_says_why() -> None:
    server = MemoryServer()
    service = await ready(server)
    run_id, _ = await service.runs.start(Start("w"), ADMIN)
    await decided(server)
    await service.orders.cancel(run_id, ADMIN, reason="enough")
    await service.orders.cancel(run_id, ADMIN, reason="once more")
    await decided(server)
    assert (await seen(service.runs, run_id)).status is RunStatus.CANCELLED
    await service.orders.cancel(run_id, ADMIN)
    records, _ = await service.runs.history(run_id, ADMIN, after=0, limit=100)
    last = json.loads(records[-1][1].encode())["events"][-1]
    assert (last["type"], last["reason"], last["by"]) == ("run.cancelled", "enough", "admin")


async def test_a_run_may_be_cancelled_while_it_is_queued() -> None:
    server = MemoryServer()
    service = await ready(server)
    run_id, _ = await service.runs.start(Start("w"), ADMIN)
    await service.orders.cancel(run_id, ADMIN)
    queued = await service.runs.get(run_id, ADMIN)
    assert isinstance(queued, Queued)
    await decided(server)
    assert (await seen(service.runs, run_id)).status is RunStatus.CANCELLED


async def test_history_comes_page_by_page() -> None:
    server = MemoryServer()
    service = await ready(server)
    run_id, _ = await service.runs.start(Start("w"), ADMIN)
    await decided(server)
    await service.orders.cancel(run_id, ADMIN)
    await decided(server)
    first, following = await service.runs.history(run_id, ADMIN, after=0, limit=1)
    assert following == first[0][0]
    second, end = await service.runs.history(run_id, ADMIN, after=following, limit=1)
    assert end is None
    assert next(event.type for _, record in (*first, *second) for event in record.events) == "run.started"
    assert await service.runs.history(run_id, ADMIN, after=second[0][0], limit=1) == ([], None)
