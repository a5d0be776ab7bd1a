"""What a request means here: where its files go, where its commands run, how large its sandbox is. Pure."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Final

from fumehood.images.run_rules import RunWish
from fumehood.jobs.types.sandbox_run import NetworkPolicy, SandboxRunRequest
from fumehood.node.jobs.sandbox.globs import Globs
from fumehood.node.jobs.sandbox.refused import RefusedError, shown
from fumehood.sandbox.spec import MIB, WORKSPACE, Limits
from fumehood.wire.sandbox import NetworkProfile

PROVIDER: Final = "docker"
TMP: Final = "/tmp"
WRITABLE: Final = (WORKSPACE, TMP)
"""All that can be written to in a sandbox: the rest is the image's, and read-only."""
DEFAULT_WORKSPACE_MIB: Final = 256

_PROFILES: Final = {
    NetworkPolicy.NONE: NetworkProfile.DENY_ALL,
    NetworkPolicy.LOCALHOST: NetworkProfile.LOCALHOST,
    NetworkPolicy.FULL: NetworkProfile.FULL,
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that holds together."""

    mount: str
    workdirs: tuple[str, ...]
    """Of each command, from the root."""
    globs: Globs
    limits: Limits
    profile: NetworkProfile
    timeout_seconds: int

    @classmethod
    def of(cls, request: SandboxRunRequest) -> Asked:
        sandbox = request.sandbox
        if sandbox.provider != PROVIDER:
            raise RefusedError(
                f"this worker has no sandboxes of the provider {shown(sandbox.provider)}: only {PROVIDER}"
            )
        mount = _mount(request.repo.mount_path)
        return cls(
            mount=mount,
            workdirs=tuple(_workdir(mount, command.workdir) for command in request.commands),
            globs=Globs(tuple(_beneath(mount, glob, "the glob") for glob in request.artifacts or ())),
            limits=_limits(request),
            profile=_PROFILES[sandbox.network_policy],
            timeout_seconds=sandbox.resources.timeout_secs,
        )

    @property
    def base(self) -> str:
        """The folder of the sandbox that the mount lies in, and that is there from the beginning."""
        return TMP if _is_beneath(self.mount, TMP) else WORKSPACE

    @property
    def room(self) -> int:
        """Bytes that a repository may take where it is mounted."""
        return self.limits.tmp_bytes if self.base == TMP else self.limits.workspace_bytes

    @property
    def wish(self) -> RunWish:
        limits = self.limits
        return RunWish(
            network=self.profile,
            cpu_millis=limits.cpu_millis,
            memory_mib=limits.memory_bytes // MIB,
            timeout_seconds=self.timeout_seconds,
        )


def known(**fields: str | None) -> dict[str, str]:
    """What there is: a field of an answer that is unknown is left out, and never null."""
    return {name: value for name, value in fields.items() if value is not None}


def _limits(request: SandboxRunRequest) -> Limits:
    asked = request.sandbox.resources
    workspace = (asked.disk_mb or DEFAULT_WORKSPACE_MIB) * MIB
    return Limits(
        memory_bytes=asked.memory_mb * MIB,
        cpu_millis=max(10, round(asked.cpus * 1000)),
        file_bytes=workspace,
        workspace_bytes=workspace,
    )


def _normal(path: str) -> str:
    """One slash at the beginning: POSIX leaves two as they are."""
    return "/" + posixpath.normpath(path).lstrip("/")


def _is_beneath(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _mount(path: str) -> str:
    if not path.startswith("/"):
        raise RefusedError(f"the mount path {shown(path)} does not begin at the root")
    mount = _normal(path)
    if not any(_is_beneath(mount, folder) for folder in WRITABLE):
        raise RefusedError(
            f"nothing can be mounted at {shown(path)}: only {' and '.join(WRITABLE)} can be written to, and what is "
            "beneath them"
        )
    return mount


def _workdir(mount: str, workdir: str | None) -> str:
    return mount if workdir is None else posixpath.join(mount, _beneath(mount, workdir, "the working directory"))


def _beneath(mount: str, path: str, what: str) -> str:
    """The path from the mount on; empty for the mount itself. `..` is worked out on the words alone."""
    whole = _normal(posixpath.join(mount, path))
    if not _is_beneath(whole, mount):
        raise RefusedError(f"{what} {shown(path)} leads out of {mount}")
    return whole[len(mount) :].lstrip("/")
