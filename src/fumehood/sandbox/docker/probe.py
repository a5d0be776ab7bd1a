"""Which runtimes really work here, and what they really hold back: found by trying.

The probe runs the warden's own binary as a hostile program (`fumehood-warden probe`) in a sandbox made of an
empty image, so that it needs no registry and no shell. It is what `doctor` prints, what readiness rests on, and what
allows root or does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import tarfile
import uuid
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from fumehood.errors import (
    DeadlineExceededError,
    EngineStatusError,
    EngineUnavailableError,
    SandboxError,
    SandboxLostError,
    SandboxStartError,
    WardenProtocolError,
)
from fumehood.sandbox.capture import STDOUT, Capture
from fumehood.sandbox.docker import cgroups
from fumehood.sandbox.docker.engine import Engine
from fumehood.sandbox.docker.link import Link
from fumehood.sandbox.docker.oom import OomWatch
from fumehood.sandbox.docker.options import DockerOptions
from fumehood.sandbox.docker.plan import LABEL_NODE, LABEL_SANDBOX, WARDEN_TARGET, Plan, container_body
from fumehood.sandbox.driver import Capabilities, RuntimeReport
from fumehood.sandbox.spec import MIB, ROOT, SANDBOX_USER, Command, End, Limits, Network, User
from fumehood.sandbox.warden.outcome import wire_command

GVISOR = "runsc"
SCRATCH = "fumehood-scratch:1"
PROBE_SECONDS = 60
LABEL_PROBE = "fumehood.probe"

PID1_DOORS = ("signal", "ptrace", "read_mem", "write_fd0", "write_fd1", "read_fd0")
"""Attempts on the warden itself: through any of these a program could forge its own end. (Its environment and memory
map are readable on some versions of gVisor: there is nothing in them.)"""

KERNEL_DOORS = (
    "mount",
    "raw_socket",
    "io_uring",
    "bpf",
    "keyctl",
    "userfaultfd",
    "ptrace",
    "unshare_user",
    "write_root",
)

_FACTS = {
    "architecture": "Architecture",
    "kernel": "KernelVersion",
    "cgroup_version": "CgroupVersion",
    "cgroup_driver": "CgroupDriver",
    "storage": "Driver",
    "security": "SecurityOptions",
    "default_runtime": "DefaultRuntime",
}
"""What an engine says about itself that matters to isolation."""

SMALL = Limits(memory_bytes=256 * MIB, workspace_bytes=MIB, tmp_bytes=MIB, shm_bytes=MIB, pids=128)


class Prober:
    def __init__(self, engine: Engine, options: DockerOptions, warden: Callable[[], Awaitable[Path]]) -> None:
        self._engine = engine
        self._options = options
        self._warden = warden
        self._reports: dict[str, RuntimeReport] = {}
        self._chosen: str | None = None
        self._lock = asyncio.Lock()
        self.active: set[str] = set()
        """Sandboxes of probes under way: they belong to nobody else, and clean up after themselves."""

    async def chosen(self) -> str:
        """The runtime that the operator named, else gVisor where it works, else the engine's default."""
        if self._chosen is None:
            self._chosen = self._options.runtime or await self._choose()
        return self._chosen

    async def _choose(self) -> str:
        """Never a weaker one because the stronger one had a bad moment: then there is no choice, and no readiness."""
        info = await self._info()
        if GVISOR in (info.get("Runtimes") or {}):
            report = await self.report(GVISOR)
            if report.usable:
                return GVISOR
            if report.failed:
                raise SandboxStartError(
                    f"gVisor is installed and does not work ({report.detail}): mend or name a runtime"
                )
        return str(info.get("DefaultRuntime") or "runc")

    async def capabilities(self) -> Capabilities:
        info = await self._info()
        names = sorted(name for name in (info.get("Runtimes") or {}) if "." not in name)
        self._reports.clear()
        reports = [await self.report(name) for name in names]
        return Capabilities(
            engine="docker",
            engine_version=str(info.get("ServerVersion")),
            runtimes=reports,
            warnings=[str(warning) for warning in info.get("Warnings") or ()],
            facts={name: info.get(key) for name, key in _FACTS.items()},
        )

    async def report(self, runtime: str) -> RuntimeReport:
        async with self._lock:
            report = self._reports.get(runtime) or await self._try(runtime)
            if not report.failed:  # what failed may work the next time
                self._reports[runtime] = report
            return report

    async def check(self) -> None:
        """One whole life of a sandbox; raises what stands in the way, an open door to the warden included."""
        was_chosen, runtime = self._chosen is not None, await self.chosen()
        report = self._reports.get(runtime)
        if not was_chosen and report is not None and report.usable:
            return  # choosing the runtime has just run a sandbox in it
        try:
            doors = _open(await self._probe(runtime, SANDBOX_USER), PID1_DOORS)
        except EngineStatusError as error:
            known = ", ".join(sorted((await self._info()).get("Runtimes") or {}))
            detail = f"runtime {runtime} cannot run a sandbox (status {error.status}); the engine has {known}"
            raise SandboxStartError(detail) from error
        if doors:
            raise SandboxError(f"runtime {runtime} lets programs reach the warden: {', '.join(doors)}")

    async def _try(self, runtime: str) -> RuntimeReport:
        try:
            user = await self._probe(runtime, SANDBOX_USER)
        except (EngineUnavailableError, DeadlineExceededError):
            raise
        except SandboxError as error:
            return RuntimeReport(runtime, usable=False, root_allowed=False, failed=True, detail=error.detail)
        root = await self._probe_root(runtime)
        open_to_user = _open(user, (*PID1_DOORS, *KERNEL_DOORS))
        open_to_root = _open(root, PID1_DOORS)
        return RuntimeReport(
            runtime,
            usable=not _open(user, PID1_DOORS),
            root_allowed=not open_to_user and not open_to_root,
            detail=_sentence(open_to_user, open_to_root),
            probe={"user": user, "root": root},
            limits={**user.pop("cgroup", {}), **user.pop("limits", {})},
        )

    async def _probe_root(self, runtime: str) -> dict[str, Any]:
        """Where root can write into the warden's stream the probe tears its own connection: that is an answer, too."""
        try:
            return await self._probe(runtime, ROOT)
        except (SandboxLostError, WardenProtocolError) as error:
            return {"attempts": {}, "error": error.detail}

    async def _probe(self, runtime: str, user: User) -> dict[str, Any]:
        name = f"probe-{uuid.uuid4().hex}"
        self.active.add(name)
        try:
            plan = await self._plan(runtime, name)
            container = await self._engine.create(f"fumehood-{name}", container_body(plan))
            return await self._probe_in(container, runtime, user)
        finally:
            self.active.discard(name)

    async def _probe_in(self, container: str, runtime: str, user: User) -> dict[str, Any]:
        link = Link(
            engine=self._engine,
            oom=OomWatch(self._engine),
            container=container,
            user=SANDBOX_USER,
            image_env=(),
            orphan_seconds=self._options.orphan_seconds,
        )
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await link.start()
                report = await _run_probe(link, user)
                return {**report, "cgroup": cgroups.limits(container)}
        except TimeoutError:
            raise DeadlineExceededError(f"runtime {runtime} did not finish a probe in time") from None
        finally:
            link.close()
            with contextlib.suppress(SandboxError):  # the reconciler will find it by its label
                await self._engine.remove(container)

    async def _plan(self, runtime: str, name: str) -> Plan:
        return Plan(
            image=await self._scratch(),
            runtime=runtime,
            warden=await self._warden(),
            limits=SMALL,
            user=SANDBOX_USER,
            network=Network.NONE,
            read_only_root=True,
            labels={LABEL_NODE: self._options.node_id, LABEL_SANDBOX: name, LABEL_PROBE: "1"},
        )

    async def _scratch(self) -> str:
        """An image with nothing in it."""
        try:
            return str((await self._engine.image(SCRATCH))["Id"])
        except EngineStatusError as error:
            if error.status != 404:
                raise
        tar = io.BytesIO()
        with tarfile.open(fileobj=tar, mode="w") as archive:
            for folder in ("tmp", "workspace", ".fumehood"):
                entry = tarfile.TarInfo(folder)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(entry)
        return await self._engine.import_image(tar.getvalue(), SCRATCH)

    async def _info(self) -> dict[str, Any]:
        return await self._engine.info()


async def _run_probe(link: Link, user: User) -> dict[str, Any]:
    capture = Capture(64 * 1024)
    command = Command((WARDEN_TARGET, "probe"), user=user, cwd="/", timeout_ms=PROBE_SECONDS * 1000)
    outcome = await link.run_once(wire_command(command, user, ()), capture, b"")
    if outcome.end is not End.EXITED or outcome.exit_code != 0:
        raise SandboxError(f"the probe ended as {outcome.end} ({outcome.exit_code or outcome.signal or outcome.errno})")
    try:
        report: dict[str, Any] = json.loads(capture.kept(STDOUT))
    except ValueError:
        raise SandboxError("the probe printed something else than its report") from None
    return report


def _open(report: Mapping[str, Any], doors: tuple[str, ...]) -> list[str]:
    """Which of these doors are not known to be shut. What the probe does not mention counts as open."""
    attempts = report.get("attempts", report)
    return sorted({door for door in doors if attempts.get(door, "untried") in ("open", "untried")})


def _sentence(to_user: list[str], to_root: list[str]) -> str:
    parts = {"open to programs": to_user, "open to root, so root is refused": to_root}
    return "; ".join(f"{what}: {', '.join(doors)}" for what, doors in parts.items() if doors)
