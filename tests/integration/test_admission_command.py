"""`fumehood image check`: the decision in people's words, as evidence for programs, and as an exit code."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.integration.cosign_world import Cosign, Repository
from tests.typed import typed
from tests.unit.policy_world import GOOD


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "policy.yaml"
    file.write_text(
        """\
version: 1
name: production
rules:
  - match: "127.0.0.1:*/fumehood/*"
    unsigned: true
  - match: "127.0.0.1:*/**"
    trust: release
trust:
  release: {keys: [{name: ci, file: ci.pub}]}
"""
    )
    return file


def check(*words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return typed("image", "check", *words, folder=Path("/"), env={"PATH": "/usr/bin:/bin", **(env or {})})


def test_signed_unsigned_and_denied(repository: Repository, cosign: Cosign, policy: Path, base_image: str) -> None:
    key = cosign.key("ci")
    (policy.parent / "ci.pub").write_bytes(key.read_bytes())
    digest = repository.image()
    before = check(f"{repository.name}:1", "--policy", str(policy))
    assert before.returncode == 1, before.stderr
    assert before.stdout.splitlines()[1:] == [
        f"✓ reference  {repository.name}",
        "✓ rule       127.0.0.1:*/**",
        f"✓ digest     {digest}",
        "✗ signature  the trust release does not hold: no signature of this digest was found",
        "             → sign this digest: cosign sign --key KEY --use-signing-config=false --tlog-upload=false "
        f"{repository.name}@{digest}",
        "denied: signature_missing",
    ]
    cosign.sign(f"{repository.name}@{digest}", key, form="bundle")
    after = check(f"{repository.name}:1", "--policy", str(policy))
    assert after.returncode == 0, after.stderr
    assert after.stdout.splitlines()[4].startswith("✓ signature  of the key ci (sha256:")
    unsigned = check(base_image, "--policy", str(policy))
    assert unsigned.returncode == 0
    assert "✓ signature  not needed: the rule 127.0.0.1:*/fumehood/* lets images run" in unsigned.stdout


def test_json_is_the_evidence_and_nothing_else(repository: Repository, cosign: Cosign, policy: Path) -> None:
    (policy.parent / "ci.pub").write_bytes(cosign.key("json").read_bytes())
    digest = repository.image()
    done = check(f"{repository.name}:1", "--json", "--policy", str(policy))
    assert done.returncode == 1
    evidence = json.loads(done.stdout)
    assert evidence["denial_reason"] == "signature_missing"
    assert evidence["resolved_digest"] == digest
    assert done.stderr == ""


def test_the_policy_of_the_settings_counts_without_a_flag(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(GOOD)
    done = check("python:3", env={"FUMEHOOD_POLICY_FILE": str(file)})
    assert done.returncode == 1
    assert "✗ rule       no rule of the policy production is for docker.io/library/python" in done.stdout
    assert "→ use an image that a rule is for, or add a rule for this one to the policy" in done.stdout
    config = tmp_path / "node.toml"
    config.write_text(f'policy_file = "{file}"\n')
    assert check("python:3", "--config", str(config)).stdout == done.stdout


def test_without_a_policy_file_it_is_the_development_policy(base_image: str) -> None:
    done = check(base_image)
    assert done.returncode == 0
    assert "under the policy development" in done.stdout
    assert "not needed: the development policy looks at no signatures" in done.stdout


def test_a_name_that_is_none(policy: Path, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(GOOD)
    done = check("u:hunter2@registry.example/a", "--policy", str(file))
    assert done.returncode == 1
    assert "denied: invalid_image_ref" in done.stdout
    assert "hunter2" not in done.stdout + done.stderr


def test_a_registry_that_is_away_is_another_exit_code(tmp_path: Path) -> None:
    """Nothing was decided, and a script must be able to tell."""
    file = tmp_path / "p.yaml"
    file.write_text(GOOD)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        done = check(f"127.0.0.1:{unused.getsockname()[1]}/a:1", "--policy", str(file))
    assert done.returncode == 3
    assert done.stdout.splitlines()[-1] == "not decided"
    assert "? digest     cannot resolve" in done.stdout


def test_a_wrong_policy_file_is_said_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(GOOD.replace("unsigned: true", "unsinged: true"))
    done = check("python:3", "--policy", str(file))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"fumehood: the policy file {file} is wrong: line 7: rules[1].unsinged: unknown field; did you mean unsigned?\n"
    )
