"""How a process of ours reaches the broker: the same settings for servers and nodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from fumehood.settings.base import LogSettings, is_loopback


@dataclass(frozen=True, slots=True)
class BrokerSettings(LogSettings):
    """Where the broker is, and who we are there."""

    nats_servers: tuple[str, ...] = ()
    """Addresses of the broker, without credentials, since addresses appear in logs; in a variable separated by
    commas. Any one of a cluster is enough to find the others."""

    nats_user: str | None = None
    """This process's user at the broker, together with `nats_password_file`. None: another way, or none, is used."""

    nats_password_file: Path | None = None
    """A file that holds only that user's password, readable by its owner alone."""

    nats_nkey_file: Path | None = None
    """A file with the seed of an NKEY. None: another way is used."""

    nats_credentials_file: Path | None = None
    """A credentials file (JWT and seed), as NATS tools write it. None: another way is used."""

    nats_ca_file: Path | None = None
    """Certificates that the broker's TLS is checked against. None: no TLS, for a broker on this machine."""

    nats_cert_file: Path | None = None
    """This process's own certificate, where the broker asks for one."""

    nats_key_file: Path | None = None
    """The key of that certificate."""


def is_here(address: str) -> bool:
    """Whether a broker is on this machine."""
    try:
        return is_loopback(urlsplit(address).hostname or "")
    except ValueError:
        return False


def broker_rules(s: BrokerSettings) -> dict[str, bool]:
    ways = [s.nats_user, s.nats_nkey_file, s.nats_credentials_file]
    return {
        "nats_servers must be addresses like nats://HOST:PORT": all(
            address.startswith(("nats://", "tls://")) for address in s.nats_servers
        ),
        "nats_servers must hold no credentials: give nats_user and nats_password_file": not any(
            "@" in address for address in s.nats_servers
        ),
        "nats_user and nats_password_file belong together": (s.nats_user is None) == (s.nats_password_file is None),
        "give one of nats_user, nats_nkey_file and nats_credentials_file": sum(way is not None for way in ways) <= 1,
        "nats_cert_file and nats_key_file belong together": (s.nats_cert_file is None) == (s.nats_key_file is None),
        "nats_cert_file needs nats_ca_file": s.nats_cert_file is None or s.nats_ca_file is not None,
    }
