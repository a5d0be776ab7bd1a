"""Signed images in, through the Runner API: what was admitted is what runs, and what was not never does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.cosign_world import MANIFEST, Cosign, Repository
from tests.runs_process import RESOURCES, Cell
from tests.unit.signing_world import compact
from tests.waiting import until

POLICY = """\
version: 1
name: production
rules:
  - match: "127.0.0.1:*/**"
    trust: release
trust:
  release: {{keys: [{{name: ci, file: {key}}}]}}
networks: [deny-all]
limits: {{memory_mib: 256, timeout_seconds: 600}}
"""


@pytest.fixture(scope="module")
def key(cosign: Cosign) -> Path:
    return cosign.key("release")


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory, key: Path) -> Iterator[Cell]:
    """All tests have one: each has images of its own."""
    folder = tmp_path_factory.mktemp("cell")
    policy = folder / "policy.yaml"
    policy.write_text(POLICY.format(key=key))
    env = {"FUMEHOOD_POLICY_FILE": str(policy)}
    with Cell(folder, env=env, server_env=env) as running:
        yield running


def push(repository: Repository, base: str, said: str, tag: str = "1") -> str:
    """The base image with a word of its own in its environment, under a tag; its digest."""
    registry, _, path = base.partition("/")
    name, _, digest = path.partition("@")
    with httpx.Client(base_url=f"http://{registry}/v2/{name}", trust_env=False) as source:
        manifest = source.get(f"/manifests/{digest}", headers={"Accept": MANIFEST}).raise_for_status().json()
        config = source.get(f"/blobs/{manifest['config']['digest']}", follow_redirects=True).raise_for_status().json()
        for layer in manifest["layers"]:
            repository.blob(source.get(f"/blobs/{layer['digest']}", follow_redirects=True).raise_for_status().content)
    config["config"]["Env"] = [*(config["config"].get("Env") or []), f"SAID={said}"]
    kept = repository.blob(compact(config), manifest["config"]["mediaType"])
    return str(repository.put(tag, {"config": kept, "layers": manifest["layers"]}, manifest["mediaType"])["digest"])


async def asked(cell: Cell, image: str, **more: Any) -> httpx.Response:
    body = {"image_ref": image, "command": ["sh", "-c", "echo $SAID"], "resources": RESOURCES}
    async with cell.client() as client:
        return await client.post("/runs", json={**body, "network_policy_profile": "deny-all", **more})


async def denied(cell: Cell, image: str, reason: str, **more: Any) -> dict[str, Any]:
    answer = await asked(cell, image, **more)
    assert answer.status_code == 403, answer.text
    evidence: dict[str, Any] = answer.json()["policy_evidence"]
    assert evidence["denial_reason"] == reason
    return evidence


@pytest.mark.parametrize("form", ["tag", "bundle"])
async def test_a_signed_image_runs_and_its_evidence_says_whose_signature_it_was(
    cell: Cell, repository: Repository, cosign: Cosign, key: Path, base_image: str, form: str
) -> None:
    digest = push(repository, base_image, "signed")
    cosign.sign(f"{repository.name}@{digest}", key, form=form)
    created = (await asked(cell, f"{repository.name}:1")).json()
    assert created["image_digest"] == digest
    run = await cell.until(created["run_id"])
    assert (run["status"], run["policy_evidence"]["signature_verified"]) == ("succeeded", True)
    assert run["policy_evidence"]["key"].startswith("ci (sha256:")
    assert (await cell.logs(created["run_id"]))["stdout"] == "signed\n"


async def test_a_tag_that_moves_after_admission_changes_nothing(
    cell: Cell, repository: Repository, cosign: Cosign, key: Path, base_image: str
) -> None:
    (node,) = cell.nodes
    await node.kill()
    first = push(repository, base_image, "admitted")
    cosign.sign(f"{repository.name}@{first}", key, form="bundle")
    run_id = (await asked(cell, f"{repository.name}:1")).json()["run_id"]
    second = push(repository, base_image, "moved")
    cosign.sign(f"{repository.name}@{second}", key, form="bundle")
    assert second != first
    await node.start()
    run = await cell.until(run_id)
    assert (run["status"], run["image_digest"]) == ("succeeded", first)
    assert (await cell.logs(run_id))["stdout"] == "admitted\n"


async def test_what_is_not_signed_as_the_policy_wants_never_runs(
    cell: Cell, repository: Repository, cosign: Cosign, key: Path, base_image: str
) -> None:
    (node,) = cell.nodes
    before = [line for line in node.logs() if line["event"] == "job.finished"]
    digest = push(repository, base_image, "unsigned")
    evidence = await denied(cell, f"{repository.name}:1", "signature_missing")
    assert (evidence["resolved_digest"], evidence["registry_allowed"]) == (digest, True)
    cosign.sign(f"{repository.name}@{digest}", cosign.key("stranger"), form="tag")
    await denied(cell, f"{repository.name}@{digest}", "signature_invalid")
    evidence = await denied(cell, "registry.example/x:1", "registry_not_allowed")
    assert (evidence["registry_allowed"], "resolved_digest" in evidence) == (False, False)
    evidence = await denied(cell, f"{repository.name}:absent", "digest_resolution_failed")
    assert "resolved_digest" not in evidence
    await denied(cell, f"http://user:pass@{repository.name}:1", "invalid_image_ref")
    assert [line for line in node.logs() if line["event"] == "job.finished"] == before


async def test_a_network_or_a_size_that_the_policy_does_not_allow_is_denied_too(
    cell: Cell, repository: Repository, cosign: Cosign, key: Path, base_image: str
) -> None:
    digest = push(repository, base_image, "signed")
    cosign.sign(f"{repository.name}@{digest}", key, form="bundle")
    image = f"{repository.name}@{digest}"
    await denied(cell, image, "network_not_allowed", network_policy_profile="dns-only")
    await denied(cell, image, "limits_not_allowed", resources={**RESOURCES, "memory_mb": 512})


async def test_a_step_of_a_workflow_is_admitted_by_its_node(
    cell: Cell, repository: Repository, cosign: Cosign, key: Path, base_image: str
) -> None:
    """No server has looked at its image; the node does, under its own policy."""
    digest = push(repository, base_image, "by a workflow")
    sandbox = {"image": f"{repository.name}:1", "command": ["sh", "-c", "cat; echo $SAID"]}
    async with cell.client() as client:

        async def run(**limits: int) -> dict[str, Any]:
            step = {"id": "a", "sandbox": {**sandbox, **limits}, "with": {"word": "input"}}
            definition = json.dumps({"name": "flow", "steps": [step]})
            (await client.put("/v1/workflows/flow", content=definition)).raise_for_status()
            made = (await client.post("/v1/workflows/flow/runs", json={"input": "hello"})).raise_for_status().json()
            return await _ended(client, made["run_id"])

        large = await run()
        assert large["status"] == "failed", "the node's own memory is more than the policy allows"
        assert "memory_mib 512 is above" in large["steps"]["a"]["error"]["message"]
        unsigned = await run(memory_mib=256)
        assert unsigned["status"] == "failed"
        assert unsigned["error"]["code"] == "image_error"
        evidence = unsigned["steps"]["a"]["error"]["details"]["evidence"]["admission"]
        assert (evidence["denial_reason"], evidence["resolved_digest"]) == ("signature_missing", digest)
        cosign.sign(f"{repository.name}@{digest}", key, form="bundle")
        signed = await run(memory_mib=256)
        assert signed["status"] == "succeeded"
        said = signed["steps"]["a"]["output"]
        assert said["stdout"] == '{"word": "hello"}by a workflow\n'
        assert said["evidence"]["admission"]["signature_verified"] is True


async def _ended(client: httpx.AsyncClient, run_id: str) -> dict[str, Any]:
    async def ended() -> dict[str, Any] | None:
        run: dict[str, Any] = (await client.get(f"/v1/runs/{run_id}")).raise_for_status().json()
        return None if run["status"] in ("queued", "running") else run

    return await until(ended, every=0.1)
