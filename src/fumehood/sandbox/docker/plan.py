"""What a container is asked to be: the floor of hardening, as one pure function.

Nothing here can be loosened by whoever asks for a sandbox. `tests/unit/test_docker_plan.py` pins the floor;
`observe` reads the same facts back from the engine, because what counts is what is really in force.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fumehood.errors import SandboxStartError
from fumehood.sandbox.docker import seccomp
from fumehood.sandbox.driver import Isolation
from fumehood.sandbox.network.attachment import Attachment
from fumehood.sandbox.spec import WORKSPACE, Limits, Network, User

WARDEN_TARGET = "/.fumehood/warden"
WARDEN_CAPABILITIES = ("KILL", "SETGID", "SETPCAP", "SETUID")
"""All that the warden needs to start programs under other users and to end them; programs get none of it. With SETPCAP
it empties the bounding set, so that none of these can ever come back, and then drops SETPCAP itself."""

CPU_PERIOD_US = 100_000
OWN_KERNEL_THREADS = 128
"""gVisor's own threads count against the same limit as the program's; with fewer to spare it falls over by itself."""

IMAGE_VOLUME_BYTES = 16 * 1024 * 1024

_RESERVED = frozenset({".fumehood", "proc", "sys", "dev"})
"""Where a volume would hide what a sandbox stands on."""

LABEL_NODE = "fumehood.node"
LABEL_SANDBOX = "fumehood.sandbox"
LABEL_NETWORK = "fumehood.network"

RESOLV_CONF = "/etc/resolv.conf"
_NETWORK_PREFIX = "fumehood-"


@dataclass(frozen=True, slots=True)
class Plan:
    """One container, fully decided."""

    image: str
    runtime: str
    warden: Path
    limits: Limits
    user: User
    network: Network
    read_only_root: bool
    labels: Mapping[str, str]
    volumes: tuple[str, ...] = ()
    """Paths that the image declares as volumes: made small tmpfs, else they would be unbounded folders of the host."""
    attachment: Attachment | None = None
    """The network of a plan that has one."""


def bounded_volumes(declared: Iterable[str]) -> tuple[str, ...]:
    """An image's volumes as the engine will see them, without those that are bounded anyway."""
    paths = {posixpath.normpath(path) for path in declared}
    for path in paths:
        if not path.startswith("/") or path.startswith("//") or path == "/" or path.split("/")[1] in _RESERVED:
            raise SandboxStartError(f"the image declares a volume at {path!r}, where a sandbox cannot have one")
    return tuple(sorted(paths - {WORKSPACE, "/tmp"}))


def network_name(node_id: str, profile: Network) -> str:
    """What the engine calls a node's network."""
    return f"{_NETWORK_PREFIX}{node_id}-{profile}"


def container_body(plan: Plan) -> dict[str, Any]:
    """The engine's `create` body for this plan."""
    if (plan.network is Network.NONE) != (plan.attachment is None):
        raise SandboxStartError(f"the network {plan.network} was asked for, and another one prepared")
    body = _body(plan)
    if plan.attachment is not None:
        _attach(body, plan.attachment)
    return body


def _attach(body: dict[str, Any], attachment: Attachment) -> None:
    """Give a container its network; everything else about it stays as it is without one."""
    resolv_conf = {"Type": "bind", "Source": str(attachment.resolv_conf), "Target": RESOLV_CONF, "ReadOnly": True}
    host = body["HostConfig"]
    host["NetworkMode"] = attachment.network
    host["Dns"] = [attachment.resolver]  # else the engine's own resolver asks the host's, from outside the sandbox
    host["Mounts"].append(resolv_conf)
    body["Env"] = list(attachment.env)


def _body(plan: Plan) -> dict[str, Any]:
    return {
        "Image": plan.image,
        "Entrypoint": [WARDEN_TARGET],
        "Cmd": [],
        "User": "0:0",  # the warden leaves root at once, see contracts/warden-protocol.md
        "WorkingDir": "/",
        "Hostname": "sandbox",
        "Labels": dict(plan.labels),
        "Healthcheck": {"Test": ["NONE"]},  # an image's health check would run beside the warden
        "Tty": False,
        "OpenStdin": True,
        "StdinOnce": False,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "HostConfig": _host_config(plan),
    }


def _host_config(plan: Plan) -> dict[str, Any]:
    limits = plan.limits
    return {
        "Runtime": plan.runtime,
        "NetworkMode": "none",
        "CapDrop": ["ALL"],
        "CapAdd": list(WARDEN_CAPABILITIES),
        "SecurityOpt": ["no-new-privileges", f"seccomp={seccomp.profile(plan.runtime)}"],
        "Privileged": False,
        "ReadonlyRootfs": plan.read_only_root,
        "Memory": limits.memory_bytes,
        "MemorySwap": limits.memory_bytes,  # equal to memory: no swap
        "MemorySwappiness": 0,
        "CpuPeriod": CPU_PERIOD_US,
        "CpuQuota": limits.cpu_millis * CPU_PERIOD_US // 1000,
        "PidsLimit": limits.pids + (OWN_KERNEL_THREADS if seccomp.has_own_kernel(plan.runtime) else 0),
        "Ulimits": [
            {"Name": "nofile", "Soft": limits.open_files, "Hard": limits.open_files},
            {"Name": "fsize", "Soft": limits.file_bytes, "Hard": limits.file_bytes},
            {"Name": "core", "Soft": 0, "Hard": 0},
        ],
        "ShmSize": limits.shm_bytes,
        "Tmpfs": _memory_filesystems(plan),
        "Mounts": [{"Type": "bind", "Source": str(plan.warden), "Target": WARDEN_TARGET, "ReadOnly": True}],
        "IpcMode": "private",
        "LogConfig": {"Type": "none"},
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
        "Init": False,
    }


def _memory_filesystems(plan: Plan) -> dict[str, str]:
    limits = plan.limits
    owner = f"uid={plan.user.uid},gid={plan.user.gid}"
    workspace = f"size={limits.workspace_bytes},nr_inodes={limits.workspace_inodes},{owner},mode=0755"
    small = f"size={IMAGE_VOLUME_BYTES},nr_inodes={limits.workspace_inodes},{owner},mode=0755"
    mounts = {
        **dict.fromkeys(plan.volumes, small),
        WORKSPACE: workspace,
        "/tmp": f"size={limits.tmp_bytes},nr_inodes={limits.workspace_inodes},mode=1777",
    }
    return {path: f"rw,exec,nosuid,nodev,{options}" for path, options in mounts.items()}


def _observed_network(inspected: Mapping[str, Any]) -> dict[str, str]:
    """The one network that a container is really in. In several, or in none of ours: what the engine says."""
    mode = str(inspected["HostConfig"].get("NetworkMode"))
    joined = (inspected.get("NetworkSettings") or {}).get("Networks") or {}
    profile = next((one for one in Network if mode.startswith(_NETWORK_PREFIX) and mode.endswith(f"-{one}")), None)
    if profile is None or list(joined) != [mode]:
        return {"network": ", ".join(sorted(joined)) or mode}
    return {"network": str(profile), "network_name": mode, "network_address": str(joined[mode].get("IPAddress") or "")}


def observe(inspected: Mapping[str, Any]) -> Isolation:
    """What the engine says is in force on a container."""
    host = inspected["HostConfig"]
    security = host.get("SecurityOpt") or []
    runtime = str(host.get("Runtime"))
    ours = f"seccomp={seccomp.profile(runtime)}" in security
    named = next((item for item in security if item.startswith("seccomp=")), "seccomp=engine-default")
    memory = int(host.get("Memory") or 0)
    return Isolation(
        runtime=runtime,
        engine_image_id=str(inspected.get("Image")),
        **_observed_network(inspected),
        memory_bytes=memory,
        swap_bytes=max(0, int(host.get("MemorySwap") or 0) - memory),
        cpu_millis=int(host.get("CpuQuota") or 0) * 1000 // int(host.get("CpuPeriod") or CPU_PERIOD_US),
        pids=int(host.get("PidsLimit") or 0),
        read_only_root=bool(host.get("ReadonlyRootfs")),
        capabilities=tuple(sorted(host.get("CapAdd") or ())),
        no_new_privileges="no-new-privileges" in security,
        seccomp="fumehood" if ours else named[len("seccomp=") :][:40],
    )
