"""Tenants: what one has, another cannot see, stop or guess; and a run is pinned to all that it can reach."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fumehood.broker.memory import MemoryBroker, MemoryServer, Verdict
from fumehood.broker.ports import Bucket
from fumehood.control import runs as module
from fumehood.control.callers import ADMIN, DEFAULT_TENANT, Caller, Scope
from fumehood.control.decider import Decider
from fumehood.control.owners import tenant_of
from fumehood.control.runs import Queued, Start
from fumehood.control.service import Service, now_ms
from fumehood.engine.state import RunState
from fumehood.errors import BrokerUnavailableError, ConflictError, InvalidRequestError, NotFoundError
from fumehood.wire import run_api
from tests.unit.test_runs import Loses

SMALL = b"name: w\nsteps:\n  - {id: a, sleep: 1h}\n"
ALICE = Caller("acme", "k1/alice", frozenset({Scope.RUNS_WRITE}))
GRETA = Caller("globex", "k2/greta", frozenset({Scope.RUNS_WRITE}))


async def ready(server: MemoryServer) -> Service:
    service = Service(MemoryBroker(server))
    for caller in (ADMIN, ALICE, GRETA):
        await service.workflows.apply("w", SMALL, is_json=False, tenant=caller.tenant)
    return service


async def decided(server: MemoryServer) -> None:
    await Decider(MemoryBroker(server), now_ms=now_ms).turn(0, timeout=0.01)


async def told(server: MemoryServer, run_id: str) -> dict[str, Any]:
    data = await MemoryBroker(server).mailboxes.last(run_id)
    assert data is not None
    message: dict[str, Any] = json.loads(data)
    return message


# --- whose a run is ----------------------------------------------------------------------------------------


async def test_a_start_says_for_whom_and_by_whom_it_is() -> None:
    server = MemoryServer()
    service = await ready(server)
    run_id, _ = await service.runs.start(Start("w", labels={"team": "a"}), ALICE)
    assert (await told(server, run_id))["meta"] == {"tenant": "acme", "by": "k1/alice", "labels": {"team": "a"}}
    run_id, _ = await service.runs.start(Start("w"), ADMIN)
    assert (await told(server, run_id))["meta"] == {"by": "admin"}


async def test_there_is_no_run_of_another_tenants_workflow() -> None:
    service = Service(MemoryBroker(MemoryServer()))
    await service.workflows.apply("w", SMALL, is_json=False, tenant="acme")
    for caller in (GRETA, ADMIN):
        with pytest.raises(NotFoundError):
            await service.runs.start(Start("w"), caller)


async def hidden(service: Service, run_id: str, caller: Caller) -> None:
    """In every way as if there were none."""
    for one in (run_id, "run-nobody"):
        for call in (
            service.runs.check(one, caller),
            service.runs.get(one, caller),
            service.runs.history(one, caller, after=0, limit=1),
            service.runs.content(one, "sha256:" + "0" * 64, caller),
            service.orders.cancel(one, caller),
            service.orders.signal(one, caller, "s", None),
        ):
            with pytest.raises(NotFoundError) as caught:
                await call
            assert caught.value.detail == "there is no such run"


@pytest.mark.parametrize("stage", ["queued", "cancelled while queued", "begun", "summarised"])
async def test_another_tenants_run_is_none_whatever_is_known_of_it(stage: str) -> None:
    server = MemoryServer()
    service = await ready(server)
    run_id, _ = await service.runs.start(Start("w"), ALICE)
    if stage == "cancelled while queued":
        await service.orders.cancel(run_id, ALICE)
    if stage in ("begun", "summarised"):
        await decided(server)
    if stage == "begun":  # the line is written after the journal
        await MemoryBroker(server).bucket(Bucket.SUMMARIES).delete(run_id)
    for _ in range(2):  # the second time from memory
        await hidden(service, run_id, GRETA)
        await hidden(service, run_id, ADMIN)
        assert isinstance(await service.runs.get(run_id, ALICE), RunState | Queued)
    fresh = Service(MemoryBroker(server))
    await hidden(fresh, run_id, GRETA)
    await fresh.runs.check(run_id, ALICE)


async def test_a_run_of_before_there_were_tenants_is_the_default_ones() -> None:
    server = MemoryServer()
    service = await ready(server)
    await MemoryBroker(server).bucket(Bucket.SUMMARIES).put("run-old", b'{"workflow": "w", "status": "succeeded"}')
    await service.runs.check("run-old", ADMIN)
    with pytest.raises(NotFoundError):
        await service.runs.check("run-old", ALICE)


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"{}", b"null"])
async def test_a_damaged_line_gives_a_run_to_nobody_else(damage: bytes) -> None:
    server = MemoryServer()
    service = await ready(server)
    run_id, _ = await service.runs.start(Start("w"), ALICE)
    await decided(server)
    await MemoryBroker(server).bucket(Bucket.SUMMARIES).put(run_id, damage)
    fresh = Service(MemoryBroker(server))
    await hidden(fresh, run_id, ADMIN)
    await fresh.runs.check(run_id, ALICE)


@pytest.mark.parametrize(
    ("message", "tenant"),
    [
        ({"type": "start", "meta": {"tenant": "acme"}}, "acme"),
        ({"type": "start", "meta": {"by": "admin"}}, DEFAULT_TENANT),
        ({"type": "start"}, DEFAULT_TENANT),
        ({"type": "cancel", "tenant": "acme"}, "acme"),
        ({"type": "cancel"}, None),
        ({"type": "timer"}, None),
    ],
)
def test_what_does_not_tell_whose_a_run_is_is_nobodys(message: dict[str, Any], tenant: str | None) -> None:
    assert tenant_of(message) == tenant


# --- idempotency -------------------------------------------------------------------------------------------


async def test_an_idempotency_key_is_a_tenants_own() -> None:
    service = await ready(MemoryServer())
    ids = {(await service.runs.start(Start("w", {"n": 1}, "k"), one))[0] for one in (ADMIN, ALICE, GRETA)}
    assert len(ids) == 3
    for caller in (ADMIN, ALICE, GRETA):
        run_id, created = await service.runs.start(Start("w", {"n": 1}, "k"), caller)
        assert (run_id in ids, created) == (True, False)


@pytest.mark.parametrize("workflow", ["acme\nw", "\nacme\nw", "acme.w", "w\nk"])
async def test_no_spelling_of_a_name_reaches_into_another_tenant(workflow: str) -> None:
    service = await ready(MemoryServer())
    await service.runs.start(Start("w", None, "k"), ALICE)
    for key in ("k", "w\nk", ""):
        with pytest.raises(NotFoundError):
            await service.runs.start(Start(workflow, None, key), ADMIN)


async def test_an_archived_run_is_not_started_again_by_its_key() -> None:
    """Nothing but its line is left."""
    server = MemoryServer()
    service = await ready(server)
    run_id, _ = await service.runs.start(Start("w", None, "k"), ALICE)
    await decided(server)
    await MemoryBroker(server).journal.purge(run_id, upto=2**31)
    assert await service.runs.start(Start("w", None, "k"), ALICE) == (run_id, False)
    assert await MemoryBroker(server).mailboxes.last(run_id) is None


async def test_a_key_with_other_labels_is_a_conflict() -> None:
    service = await ready(MemoryServer())
    first = await service.runs.start(Start("w", None, "k", labels={"a": "1"}), ALICE)
    assert await service.runs.start(Start("w", None, "k", labels={"a": "1"}), ALICE) == (first[0], False)
    for labels in ({}, {"a": "2"}, {"a": "1", "b": ""}):
        with pytest.raises(ConflictError):
            await service.runs.start(Start("w", None, "k", labels=labels), ALICE)


# --- labels ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "labels",
    [
        {"": "x"},
        {"-a": "x"},
        {"a b": "x"},
        {"a=b": "x"},
        {"a\n": "x"},
        {"a" * 65: "x"},
        {"a": "x" * 257},
        {f"l{number}": "" for number in range(17)},
        {f"l{number}": "\U0001f4a1" * 256 for number in range(4)},
    ],
)
async def test_labels_have_bounds(labels: dict[str, str]) -> None:
    service = await ready(MemoryServer())
    with pytest.raises(InvalidRequestError, match=r"^labels: "):
        await service.runs.start(Start("w", labels=labels), ALICE)


@settings(max_examples=200, deadline=None)
@given(
    labels=st.dictionaries(
        st.text("aZ0_-.=\n", max_size=6) | st.sampled_from(["a" * 64, "a" * 65]),
        st.sampled_from(["", "x", "é" * 256, "x" * 257]),
        max_size=18,
    )
)
def test_requests_and_use_cases_hold_labels_to_the_same_bounds(labels: dict[str, str]) -> None:
    def fits() -> bool:
        try:
            run_api.check_labels(labels)
        except InvalidRequestError:
            return False
        return True

    try:
        run_api.StartRunRequest.model_validate({"labels": labels})
    except ValueError:
        assert not fits()
    else:
        assert fits()


# --- pins --------------------------------------------------------------------------------------------------


def calling(name: str, *others: str) -> bytes:
    steps = [f"  - {{id: s{number}, sub_workflow: {{workflow: {other}}}}}\n" for number, other in enumerate(others)]
    return f"name: {name}\nsteps:\n{''.join(steps) or '  - {id: a, task: t}'}\n".encode()


async def pins(service: Service, server: MemoryServer, workflow: str, caller: Caller) -> dict[str, str]:
    run_id, _ = await service.runs.start(Start(workflow), caller)
    found: dict[str, str] = (await told(server, run_id)).get("pins", {})
    return found


async def test_a_run_is_pinned_to_all_that_it_can_reach_in_its_own_tenant() -> None:
    server = MemoryServer()
    service = Service(MemoryBroker(server))
    graph = {"a": ("b", "c"), "b": ("d",), "c": ("d", "a"), "d": ()}
    for name, others in graph.items():
        await service.workflows.apply(name, calling(name, *others), is_json=False, tenant="acme")
    await service.workflows.apply("d", SMALL.replace(b"name: w", b"name: d"), is_json=False, tenant="globex")
    found = await pins(service, server, "a", ALICE)
    digests = {name: (await service.workflows.current(name, tenant="acme")).digest for name in graph}
    assert found == digests
    assert await pins(service, server, "d", ALICE) == {}


async def test_a_workflow_that_is_missing_far_down_is_named() -> None:
    server = MemoryServer()
    service = Service(MemoryBroker(server))
    await service.workflows.apply("a", calling("a", "b"), is_json=False, tenant="acme")
    await service.workflows.apply("b", calling("b", "gone"), is_json=False, tenant="acme")
    await service.workflows.apply("gone", calling("gone"), is_json=False, tenant="globex")
    for key in (None, "k"):
        with pytest.raises(InvalidRequestError, match="'gone'"):
            await service.runs.start(Start("a", None, key), ALICE)
    assert await MemoryBroker(server).bucket(Bucket.IDEMPOTENCY).keys() == []


async def test_a_start_that_is_sent_again_has_the_pins_of_the_first() -> None:
    server = MemoryServer()
    service = Service(MemoryBroker(server))
    for body in (calling("a", "b"), calling("b")):
        name = body.split()[1].decode()
        await service.workflows.apply(name, body, is_json=False, tenant="acme")
    old = (await service.workflows.current("b", tenant="acme")).digest
    dying = Service(MemoryBroker(server, faults=Loses("mailboxes.send", Verdict.LOST)))
    with pytest.raises(BrokerUnavailableError):
        await dying.runs.start(Start("a", None, "k"), ALICE)
    await service.workflows.apply("b", calling("b", "a"), is_json=False, tenant="acme")
    run_id, created = await service.runs.start(Start("a", None, "k"), ALICE)
    assert not created
    assert (await told(server, run_id))["pins"] == {"b": old}


async def test_a_run_reaches_only_so_many_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PINS", 3)
    server = MemoryServer()
    service = Service(MemoryBroker(server))
    for number in range(5):
        others = (f"w{number + 1}",) if number < 4 else ()
        body = calling(f"w{number}", *others)
        await service.workflows.apply(f"w{number}", body, is_json=False, tenant="acme")
    assert len(await pins(service, server, "w1", ALICE)) == 3
    with pytest.raises(InvalidRequestError, match="more than 3"):
        await service.runs.start(Start("w0"), ALICE)
