"""Where the warden's binary comes from, and where the engine finds it.

The wheel carries one static binary for each architecture. The engine mounts it from the host's file system, so
the node puts a copy, named by its content, into its state folder: an upgrade adds a new copy and sandboxes that
run under the old one keep it.
"""

from __future__ import annotations

import hashlib
import platform
import uuid
from importlib import resources
from pathlib import Path

from fumehood.errors import ConfigurationError

_NAMES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


def bundled(architecture: str | None = None) -> bytes:
    """The binary for an architecture, this machine's by default."""
    wanted = architecture or platform.machine()
    name = _NAMES.get(wanted.lower())
    if name is None:
        raise ConfigurationError(f"there is no warden for {wanted}")
    file = resources.files("fumehood.sandbox") / "warden_bin" / f"fumehood-warden-{name}"
    if not file.is_file():
        raise ConfigurationError(f"this installation has no warden for {name}: build the package with a C compiler")
    return file.read_bytes()


def install(state_dir: Path, architecture: str | None = None) -> Path:
    """Put the binary where the engine can mount it; the same content is put there once."""
    content = bundled(architecture)
    digest = hashlib.sha256(content).hexdigest()[:32]
    folder = state_dir / "warden"
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    target = folder / f"fumehood-warden-{digest}"
    if not target.exists() or target.read_bytes() != content:
        temporary = folder / f".{digest}.{uuid.uuid4().hex}"  # threads of one process come here at once, too
        temporary.write_bytes(content)
        temporary.chmod(0o555)
        temporary.replace(target)
    return target.resolve()
