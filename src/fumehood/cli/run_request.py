"""What somebody types for `fumehood run`, as the Runner API takes it. Bounds are the server's to say."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fumehood.cli import given
from fumehood.cli.exits import UsageError

NETWORKS: Final = ("deny-all", "dns-only", "localhost", "restricted", "full")
"""As the API names them; `wire` takes a tenth of a second to load, and these are all that is needed of it."""

_OPTIONS: Final = {
    "image_ref": "IMAGE",
    "resources.cpu_millis": "--cpu",
    "resources.memory_mb": "--memory",
    "resources.timeout_seconds": "--timeout",
    "network_policy_profile": "--network",
    "env_allowlist": "--env",
    "max_attempts": "--attempts",
    "image": "IMAGE",
    "cpu_millis": "--cpus",
    "memory_mib": "--memory",
    "network": "--network",
    "env": "--env",
    "sandbox_id": "--name",
    "lease_seconds": "--lease",
}
"""What the API calls them."""
_CPU: Final = re.compile(r"(\d{1,6}(?:\.\d{1,3})?|\.\d{1,3})|(\d{1,9})m")
_MEMORY: Final = re.compile(r"(\d{1,9})(?:([mg])(?:i?b?))?", re.IGNORECASE)


def cpu_millis(text: str, option: str = "--cpu") -> int:
    """`0.5` cores, or `500m`."""
    found = _CPU.fullmatch(text)
    if found is None:
        raise UsageError(f"{option}: write cores (2, 0.5) or thousandths of one (500m), not {text!r}")
    return int(found[2]) if found[2] else round(float(found[1]) * 1000)


def memory_mib(text: str, option: str = "--memory") -> int:
    """`512` MiB, or `512m`, `2g`."""
    found = _MEMORY.fullmatch(text)
    if found is None:
        raise UsageError(f"{option}: write MiB (512, 512m) or GiB (2g), not {text!r}")
    return int(found[1]) * (1024 if (found[2] or "").lower() == "g" else 1)


def timeout_seconds(text: str) -> int:
    """`30s`, `5m`; a bare number is seconds. What is no whole number of them is more, not less."""
    milliseconds = given.milliseconds(f"{text}s" if text.isdecimal() else text, "--timeout")
    assert milliseconds is not None
    return -(-milliseconds // 1000)


def network(text: str) -> str:
    if text in NETWORKS:
        return text
    nearest = difflib.get_close_matches(text, NETWORKS, n=1)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    raise UsageError(f"--network {text}: there are {', '.join(NETWORKS)}{hint}")


def environment(words: Sequence[str] | None) -> dict[str, str]:
    """Values are never shown: somebody may have put there what others must not see."""
    found: dict[str, str] = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"--env {name}: write it like NAME=VALUE; nothing of your own environment goes along")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UsageError(f"--env {name}=…: a name has letters, digits and _, and begins with no digit")
        if name in found:
            raise UsageError(f"--env {name} is there twice")
        found[name] = value
    return found


def body(
    image: str, words: Sequence[str], *, replaces_entrypoint: bool, limits: Mapping[str, int], **more: Any
) -> dict[str, Any]:
    """Words behind the image are the arguments of its entrypoint, as `docker run` and `kubectl run` have it."""
    if replaces_entrypoint and not words:
        raise UsageError("--command: say behind -- what to run instead of the image's entrypoint")
    said = {"command" if replaces_entrypoint else "args": list(words)} if words else {}
    return {"image_ref": image, **said, "resources": dict(limits), **more}


def in_options(detail: str) -> str:
    """What a server says about a field, said about the option that it comes from."""
    for field, option in _OPTIONS.items():
        if detail.startswith((f"{field}:", f"{field}.")):
            return f"{option}: {detail}"
    return detail
