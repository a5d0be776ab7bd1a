"""The policy of `fumehood dev`: a file that a person can read, edit and learn from, instead of rules inside of us.

It begins as what is admitted without any file, and admits nothing more. While nobody has edited it, it follows the
settings and the version; an edited one is kept, whatever they say.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fumehood.errors import ConfigurationError
from fumehood.images.development import OWN_REPOSITORIES, PUBLIC_REGISTRIES
from fumehood.images.operator_files import OperatorFiles
from fumehood.images.policy_file import read_policy
from fumehood.images.reference import ImageReference, is_loopback_registry
from fumehood.images.signatures import Verification
from fumehood.images.trust import Trust
from fumehood.settings import Settings
from fumehood.settings.token_file import write_private

FILE: Final = "policy.yaml"
WRITTEN: Final = "policy.written.json"
"""The hash of what we wrote: a file that has another one was edited."""
VARIABLES: Final[Mapping[str, str]] = {
    "server": "FUMEHOOD_POLICY_FILE",
    "node": "FUMEHOOD_POLICY_FILE",
    "worker": "WORKER_POLICY_FILE",
    "providers": "FUMEHOOD_POLICY_FILE",
}
LOOPBACK: Final = ("127.0.0.1:*/**", "localhost:*/**", "[::1]:*/**")

_HEAD: Final = """\
# Which images `fumehood dev` lets run, and how: read by its server, its node, its worker and its providers.
# Edit it while they run: it counts from the next decision on. Your edit is kept; remove the file for a new one.
# A file that is wrong changes nothing: the last good one counts, and the log says which line it is.
# All of its words: docs/howto/admit-images.md. Try one out: fumehood image check IMAGE --policy THIS_FILE
version: 1
name: dev

# The first rule that matches an image counts; an image that none matches is denied.
rules:
  # Registries on this machine. Nobody looks for a signature.
"""
_PUBLIC: Final = "  # Well-known public registries, without a look at signatures: for a laptop, and for nothing else.\n"
_NO_PUBLIC: Final = "  # unsigned_public_images is false: no rule is for a public registry.\n"
_GIVEN: Final = "  # Registries that the configuration has credentials or a CA for.\n"
_TAIL: Final = """\

# Only what somebody signed whom you trust (instead of `unsigned: true`, and above a rule that matches more):
#   - match: "ghcr.io/your-team/**"
#     trust: team
# trust:
#   team:
#     keys: [{name: ci, file: cosign.pub}]      # beside this file; `cosign generate-key-pair` makes one

# As whom commands may run: `sandbox` is a user without rights, `image` whom the image names.
users: [sandbox, image]

# Which networks may be asked for. `restricted` leads to the names that egress allows, and nowhere else:
#   networks: [deny-all, dns-only, localhost, restricted]
#   egress: {allow: ["packages.example.com:443", "*.files.example.com:443"]}
networks: [deny-all, dns-only, localhost]

# The most that one run may have; without it, what the node has.
# limits: {cpu_millis: 2000, memory_mib: 2048, timeout_seconds: 600}

# Where an image is looked for that a job names by its digest alone.
jobs:
  repositories:
"""


@dataclass(frozen=True, slots=True)
class DevPolicy:
    """The file that counts for the processes of a `dev` that were given none of their own."""

    path: Path
    edited: bool
    ignored: bool
    """An edited file, beside settings that say something else: they do not count."""

    def environment(self, name: str, settings: Any) -> dict[str, str]:
        """What a process is told: nothing where it was given a policy file by somebody else."""
        return {VARIABLES[name]: str(self.path)} if settings.policy_file is None else {}


def kept(folder: Path, settings: Iterable[Settings]) -> DevPolicy:
    """The file as it is, or a new one, made of what the settings of all processes allow. A wrong one is told before
    anything is started with it."""
    path = (folder / FILE).absolute()
    found: list[Any] = list(settings)
    public = all(one.unsigned_public_images for one in found)
    given = set.intersection(*({credentials.host for credentials in one.registries} for one in found))
    hosts = {host for host in given - PUBLIC_REGISTRIES if not is_loopback_registry(host)}
    edited = path.exists() and _sha256(path) != _remembered(folder)
    if not edited:
        write_private(path, text(public=public, hosts=hosts).rstrip("\n"))
        write_private(folder / WRITTEN, json.dumps({"sha256": _sha256(path)}))
    try:
        read_policy(path, _Nobody(), OperatorFiles())
    except ConfigurationError as error:
        raise ConfigurationError(f"{error.detail}; correct it, or remove it: `fumehood dev` writes a new one") from None
    return DevPolicy(path, edited, ignored=edited and (not public or bool(hosts)))


def text(*, public: bool = True, hosts: Iterable[str] = ()) -> str:
    """The file, as it begins."""
    rules = _rules(LOOPBACK)
    rules += _PUBLIC + _rules(f"{host}/**" for host in sorted(PUBLIC_REGISTRIES)) if public else _NO_PUBLIC
    given = [f"{host}/**" for host in sorted(hosts)]
    rules += _GIVEN + _rules(given) if given and public else ""
    return _HEAD + rules + _TAIL + "".join(f"    - {name}\n" for name in OWN_REPOSITORIES)


def _rules(patterns: Iterable[str]) -> str:
    return "".join(f'  - {{match: "{pattern}", unsigned: true}}\n' for pattern in patterns)


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigurationError(f"the policy file {path} cannot be read: {error.strerror}") from None


def _remembered(folder: Path) -> str | None:
    try:
        return str(json.loads((folder / WRITTEN).read_text(encoding="utf-8"))["sha256"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


class _Nobody:
    """Reading a policy looks at no signature."""

    async def verify(self, reference: ImageReference, digest: str, trust: Trust) -> Verification:
        raise NotImplementedError
