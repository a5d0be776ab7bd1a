"""Which of an engine's runtimes can have a network: asked of the engine, and of gVisor's own binary."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from fumehood.errors import NetworkUnavailableError
from fumehood.sandbox.docker.engine import Engine
from fumehood.sandbox.driver import Capabilities, RuntimeReport
from fumehood.sandbox.network.gvisor import GVISOR, RuntimeFacts, network_trouble, with_network
from fumehood.sandbox.network.nft import find_program
from fumehood.sandbox.spec import Network

VERSION_SECONDS: Final = 10.0


class NetworkRuntimes:
    def __init__(self, engine: Engine, report: Callable[[str], Awaitable[RuntimeReport]]) -> None:
        self._engine = engine
        self._report = report
        self._versions: dict[str, str] = {}

    async def troubles(self) -> dict[str, str | None]:
        """For each runtime: why it has no network, or `None`."""
        runtimes: Mapping[str, Any] = (await self._engine.info()).get("Runtimes") or {}
        return {name: network_trouble(await self._facts(name, runtime)) for name, runtime in runtimes.items()}

    async def choose(self, asked: str) -> str:
        """The runtime asked for, or another one of its kind that has a network and was tried."""
        chosen = with_network(asked, await self.troubles())
        if chosen != asked and not (report := await self._report(chosen)).usable:
            raise NetworkUnavailableError(f"runtime {chosen} would have a network, and is not usable: {report.detail}")
        return chosen

    async def reported(self, found: Capabilities, here: str | None) -> Capabilities:
        """What was found, with the networks of each runtime; `here`: why there can be none on this node."""
        troubles = await self.troubles()
        reports = [replace(one, networks=networks(here or troubles.get(one.name))) for one in found.runtimes]
        return replace(found, runtimes=reports)

    async def _facts(self, name: str, runtime: Mapping[str, Any]) -> RuntimeFacts:
        arguments = tuple(str(word) for word in runtime.get("runtimeArgs") or ())
        version = await self._version(str(runtime.get("path") or "")) if name.startswith(GVISOR) else ""
        return RuntimeFacts(name, arguments, version)

    async def _version(self, path: str) -> str:
        program = path if Path(path).is_absolute() else find_program(path)
        if not program:
            return ""
        if program not in self._versions:
            self._versions[program] = await _ask_version(program)
        return self._versions[program]


def networks(trouble: str | None) -> dict[str, str]:
    """For each network: nothing, or what stands in the way of it."""
    return {str(network): "" if network is Network.NONE else trouble or "" for network in Network}


async def _ask_version(program: str) -> str:
    """What the binary says; nothing when it cannot be asked from here."""
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            "--version",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return ""
    try:
        async with asyncio.timeout(VERSION_SECONDS):
            out, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        return ""
    return out.decode("utf-8", "replace")[:1000]
