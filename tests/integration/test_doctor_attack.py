"""`fumehood doctor --attack` on the real engine: everything is held back here, and what is not would be told."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fumehood.cli import attacks
from fumehood.cli.attacks import ATTACKS, Attack, Result, attacked
from fumehood.errors import SandboxError
from fumehood.settings import NodeSettings

pytestmark = pytest.mark.timeout(600)


async def results(image: str, socket: Path) -> list[Result]:
    return [one async for one in attacked(NodeSettings(docker_socket=socket), image)]


@pytest.mark.hostile
async def test_every_attack_is_held_back(docker_socket: Path, base_image: str) -> None:
    found = await results(base_image, docker_socket)
    assert [one.attack for one in found] == list(ATTACKS)
    assert [one.to_dict() for one in found if not one.held] == []


async def test_what_is_not_held_back_is_told(
    docker_socket: Path, base_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report that could only say yes would be worth nothing."""
    by_name = {one.name: one for one in ATTACKS}
    succeeding = [
        dataclasses.replace(by_name["system files"], script="echo open /etc/passwd; echo done"),
        dataclasses.replace(by_name["disk"], script=f"echo {attacks.LIMITS.workspace_bytes + 1}"),
        dataclasses.replace(by_name["ignoring signals"], script="exit 0"),
        dataclasses.replace(by_name["posing as out of memory"], script="kill -9 $$"),
    ]
    monkeypatch.setattr(attacks, "ATTACKS", tuple(succeeding))
    found = await results(base_image, docker_socket)
    assert [(one.attack.name, one.held) for one in found] == [(one.name, False) for one in succeeding]
    assert found[0].saw == "exited with 0; said: open /etc/passwd, done"


async def test_an_image_without_a_shell_is_no_success(
    docker_socket: Path, base_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = Attack("nothing", "nothing", "exit 0", lambda *_: True)
    monkeypatch.setattr(attacks, "ATTACKS", (missing,))
    monkeypatch.setattr(attacks, "SHELL", "/no/such/shell")
    with pytest.raises(SandboxError, match="--image"):
        await results(base_image, docker_socket)
