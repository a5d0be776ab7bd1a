"""What a provider is told about the jobs that it does in sandboxes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fumehood.broker.ports import Blobs
from fumehood.sandbox.spec import MIB


@dataclass(frozen=True, slots=True)
class SandboxJobOptions:
    """Everything that the operator may choose, and all bounds."""

    worker_id: str
    work_dir: Path
    """For repositories on their way into a sandbox. This process's own; its workers have a folder in it each."""
    repo_roots: tuple[Path, ...] = ()
    """Folders whose repositories may be named by their path; without any, none may."""
    blobs: Blobs | None = None
    """Where uploaded bundles lie; `None`: this worker has no way to them."""
    dns_upstreams: tuple[str, ...] = ()
    """Who is asked for the addresses of git servers; empty: whom this machine asks."""
    ca_file: Path | None = None
    """Whose certificates git servers may have; `None`: whom this machine trusts."""
    fetch_seconds: float = 300.0
    """For a repository to be fetched, and looked through."""
    repo_bytes: int = 1024 * MIB
    """What a repository may take on this machine's disk, packed as it comes."""
    repo_files: int = 20_000
    """Files and links in the tree that is mounted."""
    bundle_bytes: int = 64 * MIB
    artifact_count: int = 1000
    artifact_bytes: int = 1024 * MIB
    """Of all artifacts together."""
    artifact_seconds: float = 300.0
    """For looking for them and hashing them, after the last command."""
    orphan_seconds: float = 30.0
    """For a sandbox to be removed, before whoever waits is told that the engine is not there."""

    @property
    def folder(self) -> Path:
        """This worker's, which `sweep` empties."""
        return self.work_dir / hashlib.sha256(self.worker_id.encode()).hexdigest()[:16]
