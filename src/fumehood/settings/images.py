"""Settings about images that several processes have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fumehood.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class RegistryCredentials:
    """How to reach one registry. Secrets stay in files of their own, so that this value can be logged."""

    host: str
    username: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    """Certificates that this registry's TLS is checked against; None: the system's."""

    def __post_init__(self) -> None:
        if not self.host:
            raise ConfigurationError("registries: host is empty")
        if (self.username is None) != (self.password_file is None):
            raise ConfigurationError("registries: username and password_file belong together")
