"""How each registry is reached: with which credentials, which trust, and whether over plain HTTP. Pure."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from fumehood.errors import ConfigurationError, InvalidReferenceError
from fumehood.images.reference import DEFAULT_REGISTRY, check_registry, is_loopback_registry

_ENDPOINTS = {DEFAULT_REGISTRY: "registry-1.docker.io"}
"""Docker Hub's API is not at the name that its images bear."""


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """How to reach one registry. Registries that need nothing special need no entry."""

    host: str
    """As in references, with the port: `ghcr.io`, `127.0.0.1:5056`."""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    """Certificates (PEM) to trust for this host instead of the public ones."""
    insecure_http: bool = False
    """Plain HTTP although credentials or a CA are given; loopback only. A loopback registry without either gets plain
    HTTP anyway, as from Docker."""

    def __post_init__(self) -> None:
        try:
            check_registry(self.host)
        except InvalidReferenceError as error:
            raise ConfigurationError(f"registry access: {error.detail}") from None
        if (self.username is None) != (self.password is None):
            raise ConfigurationError(f"registry {self.host}: a username needs a password, and the other way round")
        if self.username is not None and ":" in self.username:
            raise ConfigurationError(f"registry {self.host}: a username cannot contain a colon")
        if self.insecure_http and not self.is_loopback:
            raise ConfigurationError(f"registry {self.host}: plain HTTP is for the loopback only")

    @property
    def is_loopback(self) -> bool:
        return is_loopback_registry(self.host)

    @property
    def plain(self) -> bool:
        """Decided once, from what is configured: see the module's docstring."""
        if self.insecure_http:
            return True
        return self.is_loopback and self.username is None and self.ca_file is None

    @property
    def basic(self) -> str | None:
        """The value of a Basic `Authorization` header."""
        if self.username is None:
            return None
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()

    @property
    def authority(self) -> str:
        """Host and port as they stand in the URLs of this registry, where HTTPS's own port is left out."""
        return httpx.URL(f"https://{self._endpoint}").netloc.decode("ascii")

    def url(self, path: str) -> httpx.URL:
        """An address below this registry's API."""
        return httpx.URL(f"{'http' if self.plain else 'https'}://{self._endpoint}/v2/{path}")

    @property
    def _endpoint(self) -> str:
        return _ENDPOINTS.get(self.host, self.host)
