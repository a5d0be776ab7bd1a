"""What a warm pool holds, and for whom. Plain values, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fumehood.sandbox.driver import Handle
from fumehood.sandbox.spec import MIB, Limits, Network, SandboxSpec, User

OURS = "fumehood."
"""Begins the labels that say whom a sandbox is for: of a claimed one they are in the pool's store, since a container's
own cannot change. Any other label is there for whoever looks at the engine, and so is a part of the key."""

LABEL_WARM = "fumehood.warm"
LABEL_SANDBOX = "fumehood.sandbox"

IDLE_BYTES = 16 * MIB
"""What an idle sandbox takes of the machine, its shim included, with some room: see `bench/README.md`."""
IDLE_GVISOR_BYTES = 64 * MIB
"""The same where a kernel of its own comes with it."""
INTERPRETER_BYTES = 16 * MIB
"""More, where an interpreter waits in it."""


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """How much may lie in stock."""

    most: int = 4
    """Idle sandboxes, of all kinds together; 0: none, and every sandbox is made when it is asked for."""
    memory_bytes: int = 512 * MIB
    """What all idle sandboxes together may take."""
    starts: int = 2
    """How many are made at once; one while somebody waits for a sandbox of his own."""
    keep_seconds: float = 600.0
    """How long a kind that nobody asks for stays in stock."""
    quiet_seconds: float = 0.1
    """Before one that was claimed is made anew: quick work is done by then, and has the machine for itself."""


@dataclass(frozen=True, slots=True)
class Key:
    """What cannot change once a sandbox was started. Two sandboxes of one key are the same to whoever gets one."""

    image: str
    limits: Limits
    user: User | None
    network: Network
    runtime: str | None
    read_only_root: bool
    waiting: str | None
    labels: tuple[tuple[str, str], ...]

    @property
    def idle_bytes(self) -> int:
        """An estimate. Where the runtime is the driver's choice, it may be the dearer one."""
        kernel = IDLE_BYTES if self.runtime == "runc" else IDLE_GVISOR_BYTES
        return kernel + (INTERPRETER_BYTES if self.waiting is not None else 0)


@dataclass(frozen=True, slots=True)
class Claim:
    """A sandbox out of stock that is somebody's now."""

    sandbox_id: str
    """By which its owner knows it."""
    labels: Mapping[str, str]
    """Its owner's."""
    inner: Handle
    """By which the driver knows it."""
    waiting: str | None = None
    """What waits in it, as command `FIRST`, for its owner's program."""

    @property
    def handle(self) -> Handle:
        """As its owner sees it: one of its own, made for nobody else."""
        inner = {name: value for name, value in self.inner.labels.items() if name != LABEL_WARM}
        named = {**inner, **self.labels, LABEL_SANDBOX: self.sandbox_id}
        return Handle(self.sandbox_id, self.inner.engine_id, named)


def key_of(spec: SandboxSpec) -> Key:
    return Key(
        image=spec.image.pinned,
        limits=spec.limits,
        user=spec.user,
        network=spec.network,
        runtime=spec.runtime,
        read_only_root=spec.read_only_root,
        waiting=spec.waiting,
        labels=tuple(sorted(foreign_labels(spec).items())),
    )


def foreign_labels(spec: SandboxSpec) -> dict[str, str]:
    return {name: value for name, value in spec.labels.items() if not name.startswith(OURS)}


def own_labels(spec: SandboxSpec) -> dict[str, str]:
    return {name: value for name, value in spec.labels.items() if name.startswith(OURS)}


def stock_spec(spec: SandboxSpec, sandbox_id: str) -> SandboxSpec:
    """One like it, for nobody yet."""
    labels = {**foreign_labels(spec), LABEL_WARM: "true"}
    return replace(spec, sandbox_id=sandbox_id, name=None, labels=labels, waiting=None)
