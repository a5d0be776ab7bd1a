"""A real node under a policy file: what its Worker API runs, and what it does when the file changes under it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cosign_world import Cosign
from tests.node_process import ROOT, NodeProcess

pytestmark = pytest.mark.timeout(600)

POLICY = """\
version: 1
name: production
rules:
  - match: "127.0.0.1:*/fumehood/base"
    {rule}
  - match: "127.0.0.1:*/fumehood/**"
    trust: release
trust:
  release: {{keys: [{{name: ci, file: ci.pub}}]}}
"""


@pytest.fixture
def policy(tmp_path: Path, cosign: Cosign) -> Path:
    """The base image may run as it is, everything else needs a signature."""
    (tmp_path / "ci.pub").write_bytes(cosign.key("ci").read_bytes())
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY.format(rule="unsigned: true"))
    return file


@pytest.fixture
def node(tmp_path: Path, policy: Path, docker_socket: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path, env={"FUMEHOOD_POLICY_FILE": str(policy)}) as running:
        yield running


def replace(file: Path, text: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(text)
    new.rename(file)


def lines(node: NodeProcess) -> list[str]:
    return node.log_file.read_text().splitlines()


async def denied(node: NodeProcess, image: str) -> str:
    answer = await node.run_job(["echo", "hi"], image=image)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert (body["status"], body["exit_code"], body["stdout"]) == ("failed", 125, "")
    return str(body["stderr"])


async def runs(node: NodeProcess, image: str) -> None:
    answer = await node.run_job(["echo", "hi"], image=image)
    assert answer.json()["stdout"] == "hi\n", answer.text


async def read(node: NodeProcess, path: str) -> str:
    answer = await node.get(path)
    assert answer.status_code == 200
    return answer.text


async def test_the_worker_api_runs_what_the_policy_admits(
    node: NodeProcess, base_image: str, python_image: str, registry: str
) -> None:
    await runs(node, base_image)
    assert "no signature of this digest was found" in await denied(node, python_image)
    assert f"no rule of the policy production is for {registry}/other/a" in await denied(node, f"{registry}/other/a:1")
    assert "no rule of the policy production is for docker.io/library/python" in await denied(node, "python:3")


async def test_the_file_changes_under_a_running_node(
    node: NodeProcess, policy: Path, base_image: str, python_image: str
) -> None:
    """Wrong: nothing changes, and it is said. Right again: it counts at once."""
    assert await read(node, "/readyz") == "ready"
    replace(policy, POLICY.format(rule="unsinged: true"))
    ready = await read(node, "/readyz")
    assert ready.splitlines()[0] == "ready"
    assert "the policy file is wrong" in ready
    assert str(policy.parent) not in ready
    assert "fumehood_node_policy_wrong 1.0" in await read(node, "/metrics")
    assert "fumehood_node_policies_refused 1.0" in await read(node, "/metrics")
    await runs(node, base_image)
    assert "no signature" in await denied(node, python_image)
    told = [json.loads(line) for line in lines(node) if "policy.refused" in line]
    assert [line["level"] for line in told] == ["error"]
    assert "line 5: rules[0].unsinged" in told[0]["reason"]
    replace(policy, POLICY.format(rule="trust: release"))
    assert await read(node, "/readyz") == "ready"
    assert "fumehood_node_policy_wrong 0.0" in await read(node, "/metrics")
    assert "no signature" in await denied(node, base_image)


def test_a_node_does_not_start_under_a_wrong_file(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("version: 1\nname: p\nrules:\n  - match: '*/**'\n    unsigned: true\n")
    done = subprocess.run(
        [sys.executable, "-m", "fumehood", "node", "--state", str(tmp_path / "state"), "--port", "0", "--insecure"],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "FUMEHOOD_POLICY_FILE": str(file)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 2
    assert f"fumehood: the policy file {file} is wrong: line 4: rules[0].match: a registry is named" in done.stderr
