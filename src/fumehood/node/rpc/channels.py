"""Where the console is, and how it is reached: TLS, or plain text that does not leave this machine."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from fumehood.errors import ConfigurationError
from fumehood.settings import is_loopback
from fumehood.wire.console.codes import MAX_FRAME_BYTES

DEFAULT_PORT: Final = 50051
KEEPALIVE_MS: Final = 5_000
KEEPALIVE_TIMEOUT_MS: Final = 4_000
"""A peer that vanished without a word is noticed when both are over."""
OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
    ("grpc.max_send_message_length", MAX_FRAME_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),  # else it is a minute, whatever the line above says
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_retries", 0),  # a hello counts once
    ("grpc.enable_http_proxy", 0),  # plain text must not leave this machine because of a variable
    ("grpc.use_local_subchannel_pool", 1),  # else a new channel inherits how long the last one was to wait
)
_ROOTS: Final = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
"""Where distributions keep them, should Python not know."""
_TARGET = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class Target:
    host: str
    """Without brackets."""
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM; read anew for every stream, so that they can be renewed."""

    ca_file: Path | None = None
    """Who vouches for the console; None: whom this machine trusts."""
    cert_file: Path | None = None
    key_file: Path | None = None
    """Both or neither: what a console wants to see that asks for it (mTLS)."""


@dataclass(frozen=True, slots=True)
class Route:
    """All that is needed to dial. Made by `route`, which refuses what would not be safe."""

    targets: tuple[Target, ...]
    tls: Tls | None

    def channel(self, target: Target) -> grpc.aio.Channel:
        if self.tls is None:
            return grpc.aio.insecure_channel(str(target), options=OPTIONS)
        return grpc.aio.secure_channel(str(target), _credentials(self.tls), options=OPTIONS)


def route(targets: Sequence[str], tls: Tls | None) -> Route:
    """`targets`: HOST:PORT each. `ConfigurationError` for what cannot be, or is not safe."""
    parsed = tuple(dict.fromkeys(_target(text.strip()) for text in targets))
    if not parsed:
        raise ConfigurationError("a worker needs to know where the console is: HOST:PORT")
    if tls is None:
        for target in parsed:
            if not is_loopback(target.host):
                raise ConfigurationError(
                    f"the console at {target} is not on this machine, and is dialled with TLS only: "
                    "everything that is sent to it could be read on the way"
                )
    else:
        _credentials(tls)
    return Route(parsed, tls)


def _target(text: str) -> Target:
    match = _TARGET.fullmatch(text)
    port = int(match["port"] or DEFAULT_PORT) if match else 0
    if match is None or not 0 < port < 65536:
        raise ConfigurationError(f"{text!r} is not where a console can be: HOST:PORT")
    return Target(match["host"].strip("[]"), port)


def _credentials(tls: Tls) -> grpc.ChannelCredentials:
    if (tls.cert_file is None) != (tls.key_file is None):
        raise ConfigurationError("a worker's certificate and its key belong together: name both files, or neither")
    return grpc.ssl_channel_credentials(
        root_certificates=_read(tls.ca_file or _machine_roots()),
        private_key=_read(tls.key_file),
        certificate_chain=_read(tls.cert_file),
    )


def _machine_roots() -> Path:
    """gRPC by itself would trust a list that came with it, and that no operator knows of."""
    known: str | None = ssl.get_default_verify_paths().cafile  # typeshed forgets that there may be none
    for name in (known, *_ROOTS):
        if name and Path(name).is_file():
            return Path(name)
    raise ConfigurationError("this machine has no list of whom it trusts: name the file of the console's authority")


def _read(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {os.strerror(error.errno or 0)}") from error
    if b"-----BEGIN " not in data:
        raise ConfigurationError(f"{path} holds nothing in PEM")
    return data
