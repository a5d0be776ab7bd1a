"""Workflows: applied once however often, by compare-and-set, and never anything but what was written."""

from __future__ import annotations

import asyncio
import json

import pytest

from fumehood.broker.memory import Faults, MemoryBroker, MemoryServer, Verdict
from fumehood.broker.ports import Bucket
from fumehood.control.callers import DEFAULT_TENANT
from fumehood.control.workflows import Workflows
from fumehood.errors import InvalidDefinitionError, NotFoundError

SMALL = b"name: w\nsteps:\n  - {id: a, task: t}\n"
OTHER = b"name: w\nsteps:\n  - {id: b, task: t}\n"


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def __call__(self) -> int:
        self.now += 1
        return self.now


def workflows(server: MemoryServer | None = None) -> Workflows:
    return Workflows(MemoryBroker(server), now_ms=Clock())


async def refused(made: Workflows, body: bytes, *, name: str = "w", is_json: bool = False) -> tuple[str, ...]:
    with pytest.raises(InvalidDefinitionError) as caught:
        await made.apply(name, body, is_json=is_json, tenant=DEFAULT_TENANT)
    return caught.value.problems


async def test_a_definition_is_applied_and_shown_in_its_canonical_form() -> None:
    made = workflows()
    pointer, changed = await made.apply(
        "w", b"name: w\ndeadline: 5m\nsteps:\n  - {id: a, task: t}\n", is_json=False, tenant=DEFAULT_TENANT
    )
    assert (pointer.name, pointer.version, changed) == ("w", 1, True)
    stored, current = await made.show("w", tenant=DEFAULT_TENANT)
    assert current == pointer
    assert stored.digest == pointer.digest
    assert stored.document == {"name": "w", "deadline": 300_000, "steps": [{"id": "a", "task": "t"}]}


async def test_the_same_content_again_changes_nothing_however_it_is_written() -> None:
    made = workflows()
    first, _ = await made.apply("w", SMALL, is_json=False, tenant=DEFAULT_TENANT)
    again, changed = await made.apply(
        "w", b'{"steps": [{"task": "t", "id": "a"}], "name": "w"}', is_json=True, tenant=DEFAULT_TENANT
    )
    assert again == first
    assert not changed


async def test_another_content_is_another_version_and_the_old_one_stays() -> None:
    made = workflows()
    first, _ = await made.apply("w", SMALL, is_json=False, tenant=DEFAULT_TENANT)
    second, changed = await made.apply("w", OTHER, is_json=False, tenant=DEFAULT_TENANT)
    assert (second.version, changed) == (2, True)
    assert second.applied_at > first.applied_at
    stored, pointer = await made.show("w", first.digest, tenant=DEFAULT_TENANT)
    assert (stored.digest, pointer) == (first.digest, second)


async def test_going_back_is_a_version_too() -> None:
    made = workflows()
    first, _ = await made.apply("w", SMALL, is_json=False, tenant=DEFAULT_TENANT)
    await made.apply("w", OTHER, is_json=False, tenant=DEFAULT_TENANT)
    third, changed = await made.apply("w", SMALL, is_json=False, tenant=DEFAULT_TENANT)
    assert (third.version, third.digest, changed) == (3, first.digest, True)


async def test_of_many_who_apply_at_once_all_succeed_one_after_the_other() -> None:
    server = MemoryServer()
    bodies = [f"name: w\nsteps:\n  - {{id: s{number}, task: t}}\n".encode() for number in range(20)]
    results = await asyncio.gather(
        *(workflows(server).apply("w", body, is_json=False, tenant=DEFAULT_TENANT) for body in bodies)
    )
    assert sorted(pointer.version for pointer, _ in results) == list(range(1, 21))
    assert len({pointer.digest for pointer, _ in results}) == 20
    assert (await workflows(server).current("w", tenant=DEFAULT_TENANT)).version == 20


async def test_the_same_content_from_many_at_once_is_one_version() -> None:
    server = MemoryServer()
    results = await asyncio.gather(
        *(workflows(server).apply("w", SMALL, is_json=False, tenant=DEFAULT_TENANT) for _ in range(20))
    )
    assert {pointer.version for pointer, _ in results} == {1}
    assert [changed for _, changed in results].count(True) == 1


async def test_another_server_sees_it_at_once() -> None:
    server = MemoryServer()
    pointer, _ = await workflows(server).apply("w", SMALL, is_json=False, tenant=DEFAULT_TENANT)
    assert (await workflows(server).show("w", tenant=DEFAULT_TENANT))[1] == pointer


async def test_workflows_are_listed_by_name_page_by_page() -> None:
    made = workflows()
    for name in ("c", "a", "b"):
        await made.apply(
            name, SMALL.replace(b"name: w", f"name: {name}".encode()), is_json=False, tenant=DEFAULT_TENANT
        )
    first, following = await made.list(limit=2, tenant=DEFAULT_TENANT)
    assert ([one.name for one in first], following) == (["a", "b"], "b")
    rest, end = await made.list(after="b", limit=2, tenant=DEFAULT_TENANT)
    assert ([one.name for one in rest], end) == (["c"], None)
    assert [one.name for one in (await made.list(limit=3, tenant=DEFAULT_TENANT))[0]] == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["nobody", "", "a b", "name.w", "*", ">", "x" * 200])
async def test_a_workflow_that_nobody_applied_is_not_found(name: str) -> None:
    made = workflows()
    await made.apply("w", SMALL, is_json=False, tenant=DEFAULT_TENANT)
    with pytest.raises(NotFoundError):
        await made.show(name, tenant=DEFAULT_TENANT)


async def test_a_definition_of_another_workflow_is_not_found_under_this_name() -> None:
    made = workflows()
    await made.apply("w", SMALL, is_json=False, tenant=DEFAULT_TENANT)
    other, _ = await made.apply("v", SMALL.replace(b"name: w", b"name: v"), is_json=False, tenant=DEFAULT_TENANT)
    with pytest.raises(NotFoundError):
        await made.show("w", other.digest, tenant=DEFAULT_TENANT)
    with pytest.raises(NotFoundError):
        await made.show("w", "sha256:" + "0" * 64, tenant=DEFAULT_TENANT)


async def test_the_name_must_be_the_definitions_own() -> None:
    (problem,) = await refused(workflows(), SMALL, name="v")
    assert problem == "name: it is 'w', but it was applied as 'v'"


async def test_yaml_problems_name_their_line() -> None:
    problems = await refused(workflows(), b"name: w\nsteps:\n  - id: a\n    tsk: t\n")
    assert any(problem.startswith("line 4: steps[0].tsk") for problem in problems)


async def test_json_problems_name_their_place() -> None:
    problems = await refused(workflows(), b'{"name": "w", "steps": [{"id": "a", "tsk": "t"}]}', is_json=True)
    assert any(problem.startswith("steps[0].tsk: ") for problem in problems)


@pytest.mark.parametrize(
    ("body", "is_json"),
    [
        (b"", False),
        (b"", True),
        (b"[]", True),
        (b"null", True),
        (b"\xff\xfe", False),
        (b'{"name": "w", "name": "w", "steps": [{"id": "a", "task": "t"}]}', True),
        (b"{" * 5000, True),
        (b"[" * 5000, False),
        (b"name: w\nsteps: [{id: a, task: t, with: .nan}]", False),
        (b"name: w\nsteps: [{id: a, task: t, with: !!binary gA==}]", False),
        (b'name: w\ndescription: "\\ud800"\nsteps: [{id: a, task: t}]', False),
        (b"name: w\ndescription: " + b"x" * 1024 * 1024 + b"\nsteps: [{id: a, task: t}]", False),
        (b'{"name":"w","steps":[{"id":"a","task":"t","with":' + b"[" * 500 + b"]" * 500 + b"}]}", True),
    ],
)
async def test_what_cannot_be_a_definition_is_refused_with_a_sentence(body: bytes, is_json: bool) -> None:
    problems = await refused(workflows(), body, is_json=is_json)
    assert problems
    assert all(problems)


async def test_numbers_mean_in_json_what_json_says() -> None:
    """In YAML `1e2` is a text."""
    made = workflows()
    body = b'{"name": "w", "output": null, "steps": [{"id": "a", "task": "t", "with": {"n": 1e2}}]}'
    await made.apply("w", body, is_json=True, tenant=DEFAULT_TENANT)
    assert (await made.show("w", tenant=DEFAULT_TENANT))[0].document["steps"][0]["with"] == {"n": 100.0}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"properties": []},
        {"$ref": "http://127.0.0.1:1/schema"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "#/absent"},
        {"pattern": "("},
    ],
)
async def test_an_input_schema_that_is_none_is_refused_when_it_is_applied(schema: dict[str, object]) -> None:
    body = json.dumps({"name": "w", "input_schema": schema, "steps": [{"id": "a", "task": "t"}]}).encode()
    (problem,) = await refused(workflows(), body, is_json=True)
    assert problem.startswith("input_schema")


async def test_a_refused_definition_leaves_nothing_behind() -> None:
    server = MemoryServer()
    await refused(workflows(server), SMALL, name="v")
    assert await MemoryBroker(server).bucket(Bucket.DEFINITIONS).keys() == []


# --- tenants -----------------------------------------------------------------------------------------------


async def test_a_name_is_a_tenants_own() -> None:
    made = workflows()
    await made.apply("w", SMALL, is_json=False, tenant=DEFAULT_TENANT)
    await made.apply("w", OTHER, is_json=False, tenant="acme")
    assert (await made.show("w", tenant=DEFAULT_TENANT))[0].document["steps"][0]["id"] == "a"
    assert (await made.show("w", tenant="acme"))[0].document["steps"][0]["id"] == "b"
    for tenant in (DEFAULT_TENANT, "acme"):
        assert [one.version for one in (await made.list(tenant=tenant))[0]] == [1]
    assert await made.list(tenant="globex") == ([], None)
    with pytest.raises(NotFoundError):
        await made.show("w", tenant="globex")


@pytest.mark.parametrize(
    ("owner", "stranger"), [("acme", "globex"), ("acme", DEFAULT_TENANT), (DEFAULT_TENANT, "acme")]
)
async def test_a_hash_alone_opens_nothing(owner: str, stranger: str) -> None:
    """Content is shared; who has not applied it does not see it, although it has a workflow of the same name."""
    made = workflows()
    mine, _ = await made.apply("w", SMALL, is_json=False, tenant=owner)
    await made.apply("w", OTHER, is_json=False, tenant=stranger)
    with pytest.raises(NotFoundError) as hidden:
        await made.show("w", mine.digest, tenant=stranger)
    with pytest.raises(NotFoundError) as unknown:
        await made.show("w", "sha256:" + "0" * 64, tenant=stranger)
    assert hidden.value.detail == unknown.value.detail


class Halts(Faults):
    """After so many calls, until it is told to go on."""

    def __init__(self, calls: int) -> None:
        self.left = calls
        self.reached, self.go = asyncio.Event(), asyncio.Event()

    async def call(self, operation: str, subject: str) -> Verdict:
        if self.left == 0:
            self.reached.set()
            await self.go.wait()
        self.left -= 1
        return Verdict.OK


@pytest.mark.parametrize("calls", range(6))
async def test_who_applies_the_same_between_two_steps_of_another_still_sees_it(calls: int) -> None:
    memory = MemoryServer()
    halts, quick = Halts(calls), workflows(memory)
    slow = Workflows(MemoryBroker(memory, faults=halts), now_ms=Clock())
    theirs = asyncio.create_task(slow.apply("w", SMALL, is_json=False, tenant="acme"))
    await halts.reached.wait()
    mine, _ = await quick.apply("w", SMALL, is_json=False, tenant=DEFAULT_TENANT)
    halts.go.set()
    await theirs
    for tenant in ("acme", DEFAULT_TENANT):
        await quick.apply("w", OTHER, is_json=False, tenant=tenant)
        assert (await quick.show("w", mine.digest, tenant=tenant))[0].digest == mine.digest


@pytest.mark.parametrize("first", ["acme", DEFAULT_TENANT])
async def test_the_same_definition_is_shown_to_each_tenant_that_applied_it(first: str) -> None:
    made = workflows()
    tenants = sorted(["acme", DEFAULT_TENANT], key=lambda tenant: tenant != first)
    for body in (SMALL, OTHER):
        for tenant in tenants:
            await made.apply("w", body, is_json=False, tenant=tenant)
    old = await workflows().apply("w", SMALL, is_json=False, tenant=DEFAULT_TENANT)
    for tenant in tenants:
        assert (await made.show("w", old[0].digest, tenant=tenant))[0].digest == old[0].digest
