"""The Runner API at its door: each line of the contract, and each decision where it is silent."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from fumehood.broker.ports import Bucket
from fumehood.control import runner_view
from fumehood.control.http import streams
from fumehood.errors import (
    DigestResolutionError,
    LeaseLostError,
    RegistryContentError,
    RegistryUnavailableError,
)
from fumehood.images import Admission, DevelopmentPolicy, ImageReference
from fumehood.images.egress import EgressRules
from fumehood.wire.runner_api import RunnerStatus
from fumehood.wire.sandbox import RUN_WORKFLOW, RunEnd, RunReason
from tests.contract.runner_harness import IMAGE, Door, report, wish
from tests.contract.server_api_harness import YAML, Api, ScriptedRegistry, digest_of
from tests.unit.key_world import Outage

DIGEST = re.compile(r"sha256:[a-f0-9]{64}")


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    api = Api()
    async with api.client() as client:
        yield Door(api, client)


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert found["type"] == f"urn:fumehood:problem:{code}"
    return found


# --- creating ----------------------------------------------------------------------------------------------


async def test_a_run_is_created_with_its_digest_and_the_evidence(door: Door) -> None:
    answer = await door.create()
    assert answer.status_code == 201
    said = answer.json()
    evidence = said.pop("policy_evidence")
    run_id = said.pop("run_id")
    assert said == {"pod_name": f"run-{run_id}", "status": "queued", "image_digest": digest_of(IMAGE)}
    assert (evidence["registry_allowed"], evidence["signature_verified"]) == (True, False)
    assert (evidence["identity"], evidence["denial_reason"]) == (None, None)
    assert evidence["resolved_digest"] == digest_of(IMAGE)
    assert "verifier" not in evidence


async def test_the_run_is_one_step_that_runs_the_digest_with_what_was_asked(door: Door) -> None:
    run_id = await door.created(
        command=["/bin/sh", "-c"],
        args=["echo"],
        env_allowlist={"A": "b"},
        network_policy_profile="dns-only",
        max_attempts=3,
    )
    leased = await door.node.take()
    assert leased.task.run_id == run_id
    assert leased.task.sandbox == {
        "image": f"127.0.0.1:5055/team/tool@{digest_of(IMAGE)}",
        "command": ["/bin/sh", "-c"],
        "args": ["echo"],
        "env": {"A": "b"},
        "timeout_ms": 30_000,
        "cpu_millis": 500,
        "memory_mib": 128,
        "network": "dns-only",
        "must_succeed": True,
    }
    shown = (await door.client.get(f"/v1/runs/{run_id}")).json()
    assert shown["workflow"] == RUN_WORKFLOW


async def test_an_empty_command_is_the_images_own(door: Door) -> None:
    await door.created(command=[], args=[])
    sandbox = (await door.node.take()).task.sandbox
    assert sandbox is not None
    assert sandbox.keys() & {"command", "args"} == set()


async def test_a_tag_that_moves_later_changes_nothing(door: Door) -> None:
    run_id = await door.created()
    door.api.registry.digests[IMAGE] = digest_of("moved")
    sandbox = (await door.node.take()).task.sandbox
    assert sandbox is not None
    assert sandbox["image"].endswith(digest_of(IMAGE))
    assert (await door.get(run_id))["image_digest"] == digest_of(IMAGE)


async def test_a_reference_with_a_digest_asks_no_registry(door: Door) -> None:
    digest = digest_of("x")
    answer = await door.create(image_ref=f"127.0.0.1:5055/team/tool@{digest}")
    assert answer.json()["image_digest"] == digest
    assert door.api.registry.asked == []


LIMITS = {"cpu_millis": 500, "memory_mb": 128, "timeout_seconds": 30}


@pytest.mark.parametrize(
    "changes",
    [
        {"resources": LIMITS | {"cpu_millis": 49}},
        {"resources": LIMITS | {"cpu_millis": 8001}},
        {"resources": LIMITS | {"memory_mb": 63}},
        {"resources": LIMITS | {"memory_mb": 16385}},
        {"resources": LIMITS | {"timeout_seconds": 0}},
        {"resources": LIMITS | {"timeout_seconds": 3601}},
        {"resources": LIMITS | {"timeout_seconds": 1.5}},
        {"resources": LIMITS | {"timeout_seconds": "30"}},
        {"resources": LIMITS | {"disk_mb": 1}},
        {"resources": {"cpu_millis": 500, "memory_mb": 128}},
        {"resources": None},
        {"network_policy_profile": "allow-all"},
        {"network_policy_profile": "none"},
        {"network_policy_profile": None},
        {"image_ref": ""},
        {"image_ref": 1},
        {"command": "sh"},
        {"command": ["a\0b"]},
        {"args": [1]},
        {"args": ["x" * 131_072]},
        {"args": [""] * 4097},
        {"args": ["x" * 100_000] * 11},
        {"env_allowlist": {"A-B": "1"}},
        {"env_allowlist": {"1A": "1"}},
        {"env_allowlist": {"": "1"}},
        {"env_allowlist": {"A\n": "1"}},
        {"env_allowlist": {"A=B": "1"}},
        {"env_allowlist": {"A": 1}},
        {"env_allowlist": {"A": "a\0"}},
        {"env_allowlist": {f"A{number}": "" for number in range(129)}},
        {"env_allowlist": {"A": "x" * 32 * 1024}},
        {"env_allowlist": {"A": "é" * 16 * 1024}},
        {"env_allowlist": {"A": "AKIA" + "A" * 16}},
        {"workflow_context": []},
        {"workflow_context": {"a": "x" * 16 * 1024}},
        {"workflow_context": {"a": {"$blob": "sha256:" + "0" * 64, "size": 1}}},
        {"max_attempts": 0},
        {"max_attempts": 6},
        {"privileged": True},
        {"version": 1},
        {"version": 2},
    ],
)
async def test_what_is_out_of_bounds_or_unknown_is_400_and_asks_no_registry(
    door: Door, changes: dict[str, Any]
) -> None:
    answer = await door.create(**changes)
    code = "unsupported-version" if changes.get("version") == 2 else "invalid-request"
    assert "AKIA" not in problem(answer, 400, code)["detail"]
    assert door.api.registry.asked == []


@pytest.mark.parametrize("missing", ["image_ref", "resources", "network_policy_profile"])
async def test_what_the_contract_requires_is_required(door: Door, missing: str) -> None:
    body = {name: value for name, value in wish().items() if name != missing}
    assert missing in problem(await door.client.post("/runs", json=body), 400, "invalid-request")["detail"]


@pytest.mark.parametrize(
    "changes",
    [
        {"resources": {"cpu_millis": 8000, "memory_mb": 16384, "timeout_seconds": 3600}},
        {"resources": {"cpu_millis": 50, "memory_mb": 64, "timeout_seconds": 1}},
        {"network_policy_profile": "dns-only"},
        {"env_allowlist": {f"A{number}": "" for number in range(128)}},
        {"env_allowlist": {"_": "x" * (32 * 1024 - 1)}},
        {"workflow_context": {"ticket": 7, "nested": {"a": [1, None, "x"]}}},
        {"args": ["x" * 131_071]},
    ],
)
async def test_bounds_are_the_contracts_and_ours(door: Door, changes: dict[str, Any]) -> None:
    assert (await door.create(**changes)).status_code == 201


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"image_ref": "a", "image_ref": "b"}', b"\xff"])
async def test_a_malformed_body_is_400_never_422(door: Door, body: bytes) -> None:
    answer = await door.client.post("/runs", content=body, headers={"content-type": "application/json"})
    problem(answer, 400, "invalid-request")


async def test_a_context_is_bounded_in_its_depth(door: Door) -> None:
    context: dict[str, Any] = {}
    for _ in range(16):
        context = {"a": context}
    problem(await door.create(workflow_context=context), 400, "invalid-request")
    assert (await door.create(workflow_context=context["a"])).status_code == 201


# --- denials -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason", "resolved"),
    [
        ({"image_ref": "UPPER/case"}, "invalid_image_ref", False),
        ({"image_ref": "https://user:hunter2@127.0.0.1/x"}, "invalid_image_ref", False),
        ({"image_ref": "example.com/tool:1"}, "registry_not_allowed", False),
        ({"network_policy_profile": "full"}, "network_not_allowed", True),
        ({"network_policy_profile": "restricted"}, "network_not_allowed", True),
    ],
)
async def test_a_denial_is_403_with_evidence(door: Door, changes: dict[str, Any], reason: str, resolved: bool) -> None:
    answer = await door.create(**changes)
    said = problem(answer, 403, "policy-denied")
    evidence = said["policy_evidence"]
    assert evidence["denial_reason"] == reason
    assert evidence["signature_verified"] is False
    assert evidence["registry_allowed"] is resolved
    assert ("resolved_digest" in evidence) is resolved
    assert "hunter2" not in answer.text
    assert "retry-after" not in answer.headers


async def test_unsigned_images_are_denied_where_there_is_no_trust() -> None:
    api = Api()
    admission = Admission(DevelopmentPolicy(allow_unsigned=False), api.registry)
    api = Api(registry=api.registry, admission=admission)
    async with api.client() as client:
        said = problem(await Door(api, client).create(image_ref="docker.io/library/tool:1"), 403, "policy-denied")
    evidence = said["policy_evidence"]
    assert (evidence["denial_reason"], evidence["registry_allowed"]) == ("trust_not_configured", True)
    assert DIGEST.fullmatch(evidence["resolved_digest"])


async def test_a_registry_that_says_no_is_a_denial_and_one_that_is_away_may_be_asked_again(door: Door) -> None:
    public = "docker.io/library/tool:1"
    door.api.registry.error = DigestResolutionError("no such tag")
    answer = await door.create(image_ref=public)
    assert "no such tag" in answer.json()["detail"]
    assert problem(answer, 403, "policy-denied")["policy_evidence"]["denial_reason"] == "digest_resolution_failed"
    assert "retry-after" not in answer.headers
    door.api.registry.error = RegistryUnavailableError("it does not answer", retry_after_seconds=7)
    answer = await door.create(image_ref=public)
    said = problem(answer, 403, "policy-denied")
    assert said["policy_evidence"]["denial_reason"] == "digest_resolution_failed"
    assert "resolved_digest" not in said["policy_evidence"]
    assert "later" in said["detail"]
    assert answer.headers["retry-after"] == "7"


@pytest.mark.parametrize("host", ["127.0.0.1:22", "localhost:8222", "[::1]:9000", "127.1.2.3:5000"])
async def test_nobody_learns_from_denials_what_listens_on_the_servers_machine(door: Door, host: str) -> None:
    """Whatever the port did, the answer is the same; the server's log has it."""
    said = []
    for error in (
        RegistryUnavailableError("the connection failed: it was refused, nothing listens there"),
        RegistryUnavailableError("it fell silent", retry_after_seconds=30),
        RegistryContentError("the registry's answer is not a manifest of a type that we asked for"),
        DigestResolutionError("the registry answered 404 (no such repository or tag)"),
    ):
        door.api.registry.error = error
        with capture_logs() as logs:
            answer = await door.create(image_ref=f"{host}/x:1")
        found = problem(answer, 403, "policy-denied")
        assert found["policy_evidence"].pop("decided_at")
        assert found.pop("instance")
        said.append((found, answer.headers.get("retry-after")))
        assert error.detail in [line.get("detail") for line in logs]
    assert all(one == said[0] for one in said)
    assert said[0][0]["policy_evidence"]["denial_reason"] == "digest_resolution_failed"
    assert "the server's own machine" in said[0][0]["detail"]


async def test_image_and_wish_are_judged_by_one_policy() -> None:
    """A policy that is replaced while the registry is asked changes nothing for who asked before."""
    before = DevelopmentPolicy()
    after = DevelopmentPolicy(egress=EgressRules.parse(["example.com:443"]))

    class Source:
        trouble = None
        policy = before

        def current(self) -> DevelopmentPolicy:
            return self.policy

    class Replaces(ScriptedRegistry):
        async def resolve(self, reference: ImageReference) -> str:
            source.policy = after
            return await super().resolve(reference)

    source, registry = Source(), Replaces()
    api = Api(registry=registry, admission=Admission(source, registry))
    async with api.client() as client:
        door = Door(api, client)
        said = problem(await door.create(network_policy_profile="restricted"), 403, "policy-denied")
        assert said["policy_evidence"]["denial_reason"] == "network_not_allowed"
        assert (await door.create(network_policy_profile="restricted")).status_code == 201


async def test_a_policy_file_that_is_wrong_is_a_second_line_of_readiness() -> None:
    class Source:
        trouble: str | None = "the policy file is wrong"

        def current(self) -> DevelopmentPolicy:
            return DevelopmentPolicy()

    source = Source()
    async with Api(admission=Admission(source, ScriptedRegistry())).client(None) as client:
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.text) == (200, "ready\nthe policy file is wrong\n")
        source.trouble = None
        assert (await client.get("/readyz")).text == "ready"


async def test_a_server_without_a_policy_runs_nothing(door: Door) -> None:
    door.api.service.runner._admission = None
    said = problem(await door.create(), 403, "policy-denied")
    assert said["policy_evidence"]["denial_reason"] == "trust_not_configured"


async def test_a_denial_starts_nothing_and_claims_no_key(door: Door) -> None:
    door.api.registry.error = RegistryUnavailableError("it does not answer")
    problem(await door.create("k"), 403, "policy-denied")
    door.api.registry.error = None
    assert (await door.create("k")).status_code == 201


@pytest.mark.parametrize(
    ("image", "reason", "told"),
    [
        ("example.com/tool:1", "registry_not_allowed", "example.com/tool:1"),
        (
            "https://user:hunter2@127.0.0.1/x",
            "invalid_image_ref",
            "(not shown: it does not parse, and may hold credentials)",
        ),
    ],
)
async def test_what_was_created_denied_and_stopped_stands_in_the_audit_list(
    door: Door, image: str, reason: str, told: str
) -> None:
    await door.create(image_ref=image)
    run_id = await door.created()
    await door.stop(run_id)
    await door.stop(run_id)
    lines = [json.loads(entry.data) for entry in await door.api.service.broker.audit.tail(after=0, limit=10)]
    assert [line["action"] for line in lines] == ["run.created", "run.created", "run.stopped"]
    assert [line["target"] for line in lines] == ["", run_id, run_id]
    assert lines[0]["detail"] == {"outcome": "refused", "denied": reason, "image": told}
    assert lines[1]["detail"] == {"outcome": "done", "image_digest": digest_of(IMAGE), "replayed": "false"}


# --- idempotency -------------------------------------------------------------------------------------------


async def test_the_same_key_and_body_is_the_same_answer_with_200(door: Door) -> None:
    first = await door.create("k", workflow_context={"a": 1})
    door.api.registry.digests[IMAGE] = digest_of("moved")
    again = await door.create("k", workflow_context={"a": 1})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json()
    assert len(door.api.registry.asked) == 1, "nothing is decided twice"
    await door.node.complete(await door.node.begin(), report())
    assert (await door.create("k", workflow_context={"a": 1})).json() == first.json(), "also when it has ended"
    problem(await door.create("k", workflow_context={"a": 2}), 409, "conflict")
    other = await door.create("k2", workflow_context={"a": 1})
    assert (other.status_code, other.json()["run_id"] != first.json()["run_id"]) == (201, True)


async def test_defaults_that_are_written_out_are_the_same_body(door: Door) -> None:
    first = await door.create("k")
    again = await door.create("k", command=[], max_attempts=1, workflow_context={})
    assert (again.status_code, again.json()) == (200, first.json())


async def test_a_crash_between_claim_and_start_loses_nothing(door: Door) -> None:
    """Whoever comes again sends the start, under the digest that was admitted then."""
    outage = Outage()
    api = Api(memory=door.api.memory, faults=outage, registry=door.api.registry)
    outage.away.add("mailboxes.send")
    async with api.client() as client:
        problem(await Door(api, client).create("k"), 503, "broker-unavailable")
    (entry,) = await door.api.service.broker.bucket(Bucket.IDEMPOTENCY).entries()
    run_id = json.loads(entry.value)["run_id"]
    problem(await door.client.get(f"/runs/{run_id}"), 404, "not-found")
    door.api.registry.digests[IMAGE] = digest_of("moved")
    again = await door.create("k")
    assert (again.status_code, again.json()["run_id"]) == (200, run_id)
    assert again.json()["image_digest"] == digest_of(IMAGE)
    sandbox = (await door.node.take()).task.sandbox
    assert sandbox is not None
    assert sandbox["image"].endswith(digest_of(IMAGE))


@pytest.mark.parametrize("key", ["", "x" * 257])
async def test_a_key_has_its_bounds(door: Door, key: str) -> None:
    problem(await door.create(key), 400, "invalid-request")


async def test_a_key_is_a_tenants_own(door: Door) -> None:
    first = await door.create("k")
    body = {"name": "k", "tenant": "acme", "scopes": ["runs:write", "runs:read"]}
    token = (await door.client.post("/v1/keys", json=body)).raise_for_status().json()["key"]
    async with door.api.client(token) as other:
        theirs = await Door(door.api, other).create("k")
        assert (theirs.status_code, theirs.json()["run_id"] != first.json()["run_id"]) == (201, True)
        problem(await other.get(f"/runs/{first.json()['run_id']}"), 404, "not-found")
        assert (await other.get(f"/runs/{theirs.json()['run_id']}")).status_code == 200


async def test_a_key_is_not_a_workflows(door: Door) -> None:
    await door.client.put("/v1/workflows/w", content="name: w\nsteps:\n  - {id: a, task: t}\n", headers=YAML)
    headers = {"idempotency-key": "k"}
    assert (await door.client.post("/v1/workflows/w/runs", json={}, headers=headers)).status_code == 201
    assert (await door.create("k")).status_code == 201
    entries = await door.api.service.broker.bucket(Bucket.IDEMPOTENCY).entries()
    assert len(entries) == 2


# --- seeing ------------------------------------------------------------------------------------------------


async def test_a_run_goes_from_queued_to_its_end(door: Door) -> None:
    run_id = await door.created(workflow_context={"ticket": 7})
    assert (await door.get(run_id))["status"] == "queued", "nobody has looked at it"
    await door.api.decide()
    found = await door.get(run_id)
    assert (found["status"], found["started_at"], found["workflow_context"]) == ("queued", None, {"ticket": 7})
    leased = await door.node.take()
    found = await door.get(run_id)
    assert (found["status"], found["started_at"]) == ("starting", None)
    await door.node.send(leased)
    found = await door.get(run_id)
    assert (found["status"], found["started_at"]) == ("running", "2026-02-16T12:00:00.000Z")
    assert (found["finished_at"], found["exit_code"], found["reason"]) == (None, None, None)
    await door.node.complete(leased, report())
    found = await door.get(run_id)
    assert (found["status"], found["exit_code"], found["reason"]) == ("succeeded", 0, "exit")
    assert found["started_at"] == "2026-02-16T12:00:00.000Z"
    assert found["finished_at"] == "2026-02-16T12:00:03.000Z"
    assert found["pod_name"] == f"run-{run_id}"
    assert found["policy_evidence"]["resolved_digest"] == digest_of(IMAGE)


@pytest.mark.parametrize(
    ("reason", "end", "exit_code", "status"),
    [
        (RunReason.EXIT, RunEnd.FAILED, 3, "failed"),
        (RunReason.OOM, RunEnd.FAILED, 137, "failed"),
        (RunReason.SIGNAL, RunEnd.FAILED, 139, "failed"),
        (RunReason.TIMEOUT, RunEnd.TIMED_OUT, None, "timed_out"),
        (RunReason.STOPPED, RunEnd.STOPPED, 143, "stopped"),
        (RunReason.IMAGE_ERROR, RunEnd.FAILED, None, "failed"),
        (RunReason.NODE_LOST, RunEnd.FAILED, None, "failed"),
        (RunReason.INTERNAL, RunEnd.FAILED, None, "failed"),
    ],
)
async def test_every_reason_has_its_status(
    door: Door, reason: RunReason, end: RunEnd, exit_code: int | None, status: str
) -> None:
    run_id = await door.created()
    leased = await door.node.begin()
    await door.node.fail(leased, reason.value, report(end, reason, exit_code=exit_code))
    found = await door.get(run_id)
    assert (found["status"], found["reason"], found["exit_code"]) == (status, reason.value, exit_code)
    assert (found["started_at"], found["finished_at"]) == ("2026-02-16T12:00:00.000Z", "2026-02-16T12:00:03.000Z")
    assert found["detail"] == f"it is {reason.value}"


async def test_a_node_that_is_lost_leaves_what_is_known(door: Door) -> None:
    run_id = await door.created()
    await door.node.fail(await door.node.begin(), "node_lost", retryable=True)
    found = await door.get(run_id)
    assert (found["status"], found["reason"], found["exit_code"]) == ("failed", "node_lost", None)
    assert found["started_at"] == "2026-02-16T12:00:00.000Z", "by the first record of its output"
    assert found["finished_at"] is not None


async def test_a_failure_of_the_engines_own_is_internal_and_an_expired_lease_a_lost_node(door: Door) -> None:
    for code, reason in (("unreadable_task", "internal"), ("lease_expired", "node_lost"), ("nonsense", "internal")):
        run_id = await door.created()
        await door.node.fail(await door.node.take(), code)
        found = await door.get(run_id)
        assert (found["status"], found["reason"], found["started_at"]) == ("failed", reason, None)


async def test_another_attempt_is_queued_again_and_told_apart(door: Door) -> None:
    run_id = await door.created(max_attempts=2)
    await door.node.fail(await door.node.begin(), "node_lost", retryable=True)
    found = await door.get(run_id)
    assert (found["status"], found["started_at"], found["attempt"]) == ("queued", None, 1)


async def test_an_image_that_never_ran_has_no_start(door: Door) -> None:
    run_id = await door.created()
    said = report(RunEnd.FAILED, RunReason.IMAGE_ERROR, exit_code=None, started_at=None, finished_at=None)
    await door.node.fail(await door.node.take(), "image_error", said)
    found = await door.get(run_id)
    assert (found["started_at"], found["exit_code"], found["reason"]) == (None, None, "image_error")
    assert found["finished_at"] is not None


async def test_a_report_that_is_kept_by_reference_is_read(door: Door) -> None:
    run_id = await door.created()
    await door.node.complete(await door.node.begin(), report(stdout="x" * 65_536, stderr="y" * 65_536))
    found = await door.get(run_id)
    assert (found["status"], found["exit_code"], found["started_at"]) == ("succeeded", 0, "2026-02-16T12:00:00.000Z")


async def test_a_step_that_somebody_completed_by_hand_is_no_lie(door: Door) -> None:
    run_id = await door.created()
    await door.node.fail(await door.node.take(), "exit", report(RunEnd.FAILED, exit_code=1))
    async with door.api.deciding():
        body = {"output": "done by hand", "reason": "it was fine"}
        answer = await door.client.post(f"/v1/runs/{run_id}/steps/run:complete", json=body)
    assert answer.is_success, answer.text
    found = await door.get(run_id)
    assert (found["status"], found["exit_code"], found["reason"]) == ("succeeded", None, None)


@pytest.mark.parametrize("path", ["", "/events", "/stop"])
@pytest.mark.parametrize("run_id", ["nobody", "run-" + "0" * 32, "a.b", "%20"])
async def test_an_unknown_run_is_404(door: Door, path: str, run_id: str) -> None:
    method = "POST" if path == "/stop" else "GET"
    problem(await door.client.request(method, f"/runs/{run_id}{path}"), 404, "not-found")


@pytest.mark.parametrize("path", ["", "/events", "/stop"])
@pytest.mark.parametrize("looked_at", [False, True])
async def test_a_workflows_run_is_none_of_these(door: Door, path: str, looked_at: bool) -> None:
    run_id = await door.api.started(door.client)
    if looked_at:
        await door.api.decide()
    method = "POST" if path == "/stop" else "GET"
    problem(await door.client.request(method, f"/runs/{run_id}{path}"), 404, "not-found")
    assert (await door.client.get(f"/v1/runs/{run_id}")).status_code == 200


async def test_the_name_of_these_runs_is_nobodys_workflow(door: Door) -> None:
    body = f"name: {RUN_WORKFLOW}\nsteps:\n  - {{id: a, task: t}}\n"
    answer = await door.client.put(f"/v1/workflows/{RUN_WORKFLOW}", content=body, headers=YAML)
    assert "is kept for" in problem(answer, 400, "invalid-definition")["detail"]
    problem(await door.client.post(f"/v1/workflows/{RUN_WORKFLOW}/runs", json={}), 404, "not-found")


# --- stopping ----------------------------------------------------------------------------------------------


async def test_a_stop_is_202_every_time_and_empty(door: Door) -> None:
    run_id = await door.created()
    leased = await door.node.begin()
    for _ in range(3):
        answer = await door.stop(run_id)
        assert (answer.status_code, answer.content) == (202, b"")
    assert (await door.client.get(f"/v1/runs/{run_id}")).json()["status"] == "cancelled"
    found = await door.get(run_id)
    assert (found["status"], found["finished_at"]) == ("running", None), "its command has not ended yet"
    await door.node.print(leased, b"bye")
    found = await door.get(run_id)
    assert (found["status"], found["reason"], found["exit_code"]) == ("stopped", "stopped", None)
    assert found["started_at"] == "2026-02-16T12:00:00.000Z"
    assert found["finished_at"] == "2026-02-16T12:00:03.000Z"


async def test_a_stop_that_no_node_answers_is_believed_in_the_end(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node died just then: nothing of it runs any more."""
    run_id = await door.created()
    await door.node.begin()
    await door.stop(run_id)
    assert (await door.get(run_id))["status"] == "running"
    monkeypatch.setattr(runner_view, "LONGEST_STOP_MS", 0)
    assert (await door.get(run_id))["status"] == "stopped"


async def test_a_run_that_ended_by_itself_stays_as_it_ended(door: Door) -> None:
    run_id = await door.created()
    await door.node.complete(await door.node.begin(), report())
    assert (await door.stop(run_id)).status_code == 202
    assert (await door.get(run_id))["status"] == "succeeded"


async def test_a_run_is_stopped_before_anybody_looked_at_it(door: Door) -> None:
    run_id = await door.created()
    assert (await door.client.post(f"/runs/{run_id}/stop")).status_code == 202
    assert (await door.get(run_id))["status"] == "queued", "its start is still what tells of it"
    await door.api.decide()
    found = await door.get(run_id)
    assert (found["status"], found["reason"], found["started_at"]) == ("stopped", "stopped", None)


async def test_a_node_that_lost_its_lease_to_a_stop_cannot_change_the_end(door: Door) -> None:
    run_id = await door.created()
    leased = await door.node.begin()
    await door.stop(run_id)
    with pytest.raises(LeaseLostError):
        await door.node.handouts.heartbeat(leased.lease)
    await door.node.complete(leased, report())
    await door.node.print(leased)
    assert (await door.get(run_id))["status"] == "stopped"


# --- events ------------------------------------------------------------------------------------------------


async def test_the_events_of_a_run_end_in_the_contracts_words(door: Door) -> None:
    run_id = await door.created()
    await door.node.fail(await door.node.begin(), "timeout", report(RunEnd.TIMED_OUT, RunReason.TIMEOUT))
    answer = await door.client.get(f"/runs/{run_id}/events")
    assert answer.headers["content-type"].startswith(streams.SSE)
    events = [block for block in answer.text.split("\n\n") if "data: " in block]
    names = [re.search(r"^event: (.*)$", block, re.MULTILINE)[1] for block in events]  # type: ignore[index]
    assert names[0] == "run.started"
    assert names[-2:] == ["run.failed", "end"]
    assert json.loads(events[-1].partition("data: ")[2]) == {"run_id": run_id, "status": "timed_out"}
    place = re.search(r"^id: (.*)$", events[-2], re.MULTILINE)
    assert place is not None
    seen = await door.client.get(f"/runs/{run_id}/events", headers={"last-event-id": place[1]})
    assert (seen.status_code, seen.content) == (204, b"")
    first = re.search(r"^id: (.*)$", events[0], re.MULTILINE)
    assert first is not None
    rest = await door.client.get(f"/runs/{run_id}/events", params={"after": first[1]})
    assert [block for block in rest.text.split("\n\n") if "data: " in block] == events[1:]
    problem(await door.client.get(f"/runs/{run_id}/events?after=x"), 400, "invalid-request")


def test_the_contracts_states_are_all_there_are() -> None:
    known = ["queued", "starting", "running", "succeeded", "failed", "timed_out", "stopped"]
    assert [status.value for status in RunnerStatus] == known
