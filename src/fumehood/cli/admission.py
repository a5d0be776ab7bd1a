"""Admission as the settings of a process say it: its registries, and its policy file or the development policy."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fumehood.errors import ConfigurationError
from fumehood.images.access import RegistryAccess
from fumehood.images.admission import Admission
from fumehood.images.development import PUBLIC_REGISTRIES, DevelopmentPolicy
from fumehood.images.registry import RegistryClient
from fumehood.settings import RegistryCredentials

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class ImageSettings(Protocol):
    """What a node and a server are both told about images."""

    @property
    def policy_file(self) -> Path | None: ...

    @property
    def unsigned_public_images(self) -> bool: ...

    @property
    def registries(self) -> tuple[RegistryCredentials, ...]: ...


@dataclass(frozen=True, slots=True)
class Admitting:
    """A process's admission, and what it was made of."""

    admission: Admission
    accesses: Mapping[str, RegistryAccess]
    """By host; an engine that pulls needs the same credentials."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """How often a policy file was `loaded` and `refused`; empty without one."""

    def engine_auth(self, host: str) -> Mapping[str, str] | None:
        """What an engine is told that pulls from a registry."""
        access = self.accesses.get(host)
        if access is None or access.username is None or access.password is None:
            return None
        return {"username": access.username, "password": access.password, "serveraddress": host}


@contextlib.asynccontextmanager
async def admitting(settings: ImageSettings, log: FilteringBoundLogger | None = None) -> AsyncIterator[Admitting]:
    """`ConfigurationError` where the policy file, a password file or a CA is wrong. Without a log nothing is said."""
    accesses = {credentials.host: _access(credentials) for credentials in settings.registries}
    async with RegistryClient(accesses.values()) as registry:
        if settings.policy_file is None:
            development = _development(settings, accesses)
            if log is not None:
                log.warning("admission.development_policy", notice=development.notice)
            yield Admitting(Admission(development, registry), accesses)
        else:  # what reads policies and signatures takes long to load, and is of no use without a policy file
            from fumehood.images.policy_source import PolicyFile
            from fumehood.images.signatures import Verifier

            file = PolicyFile(settings.policy_file, Verifier(registry))
            policy = file.current()
            if log is not None:
                log.info("admission.policy_file", policy=policy.name, sha256=policy.sha256)
            yield Admitting(Admission(file, registry), accesses, file.counts)


def _development(settings: ImageSettings, accesses: Mapping[str, RegistryAccess]) -> DevelopmentPolicy:
    """An operator who gives credentials for a registry means to use it."""
    hosts = PUBLIC_REGISTRIES | accesses.keys()
    return DevelopmentPolicy(registries=hosts, allow_unsigned=settings.unsigned_public_images)


def _access(credentials: RegistryCredentials) -> RegistryAccess:
    password = None
    if credentials.password_file is not None:
        try:
            password = credentials.password_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            what = f"the password file {credentials.password_file} of {credentials.host}"
            raise ConfigurationError(f"{what} cannot be read: {reason}") from error
    return RegistryAccess(
        host=credentials.host, username=credentials.username, password=password, ca_file=credentials.ca_file
    )
