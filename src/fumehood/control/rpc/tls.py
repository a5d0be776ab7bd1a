"""Certificates of the gRPC door, from files that may be replaced while it is open."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import structlog

from fumehood.errors import ConfigurationError

_MARK = b"-----BEGIN "


@dataclass(slots=True)
class DoorTls:
    """In PEM. With `client_ca_file` a worker must show a certificate of that authority, beside its hello."""

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    _known: tuple[object, ...] = field(default=(), init=False)

    def credentials(self) -> grpc.ServerCredentials:
        """`ConfigurationError` where a file cannot be used."""
        self._known = self._state()
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(),
            self._renewed,  # type: ignore[arg-type]  # None is what it says where nothing is new
            require_client_authentication=self.client_ca_file is not None,
        )

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """Asked before each handshake; None: nothing is new. What cannot be used is said, and the old ones stay."""
        try:
            state = self._state()
            if state == self._known:
                return None
            made = self._configuration()
        except ConfigurationError as error:
            structlog.get_logger().error("grpc.certificates_unusable", detail=error.detail)
            return None
        self._known = state
        return made

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        pair = (_read(self.key_file), _read(self.cert_file))
        authority = _read(self.client_ca_file) if self.client_ca_file is not None else None
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=authority)

    def _state(self) -> tuple[object, ...]:
        files = (self.cert_file, self.key_file, self.client_ca_file)
        return tuple(_stamp(file) for file in files if file is not None)


def _stamp(file: Path) -> tuple[int, int, int]:
    try:
        found = file.stat()
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {os.strerror(error.errno or 0)}") from error
    return found.st_ino, found.st_mtime_ns, found.st_size


def _read(file: Path) -> bytes:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {os.strerror(error.errno or 0)}") from error
    if _MARK not in data:
        raise ConfigurationError(f"{file} holds nothing in PEM")
    return data
