"""How often the engine is asked to run a probe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fumehood.errors import SandboxError
from fumehood.sandbox.docker.options import DockerOptions
from fumehood.sandbox.docker.probe import GVISOR, KERNEL_DOORS, PID1_DOORS, Prober
from fumehood.sandbox.spec import ROOT, SANDBOX_USER, User


class Probes(Prober):
    """Every door is shut, but those that are named."""

    def __init__(self, runtimes: list[str], *open_doors: str) -> None:
        super().__init__(None, DockerOptions(node_id="n", state_dir=Path("/nowhere")), None)  # type: ignore[arg-type]
        self._runtimes, self._open = runtimes, open_doors
        self.made: list[tuple[str, User]] = []

    async def _info(self) -> dict[str, Any]:
        return {"Runtimes": {name: {} for name in self._runtimes}, "DefaultRuntime": "runc"}

    async def _probe(self, runtime: str, user: User) -> dict[str, Any]:
        self.made.append((runtime, user))
        doors = dict.fromkeys((*PID1_DOORS, *KERNEL_DOORS), "shut")
        return {"attempts": doors | dict.fromkeys(self._open, "open")}


async def test_gvisor_is_not_probed_again_when_it_was_just_chosen() -> None:
    prober = Probes([GVISOR, "runc"])
    await prober.check()
    assert prober.made == [(GVISOR, SANDBOX_USER), (GVISOR, ROOT)]
    await prober.check()
    assert prober.made[2:] == [(GVISOR, SANDBOX_USER)]


async def test_the_runtime_of_the_engine_is_probed_each_time() -> None:
    prober = Probes(["runc"])
    await prober.check()
    await prober.check()
    assert prober.made == [("runc", SANDBOX_USER)] * 2


async def test_an_open_door_to_the_warden_is_an_error() -> None:
    with pytest.raises(SandboxError, match="lets programs reach the warden: ptrace"):
        await Probes(["runc"], "ptrace").check()
