"""Which broker a worker takes its tasks from, and as whom.

In falling order: what the caller says; the settings (`FUMEHOOD_NATS_SERVERS` and those beside it); one's own running
`fumehood dev`, unless a client would speak to another server.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fumehood.errors import ConfigurationError
from fumehood.sdk.access import Access
from fumehood.sdk.connection import find_connection
from fumehood.sdk.contexts import same_address
from fumehood.sdk.own_dev import own_dev
from fumehood.settings.base import check_rules, said_under
from fumehood.settings.broker import BrokerSettings, broker_rules

SETTINGS = "FUMEHOOD_NATS_"
_REMEDY = 'start `fumehood dev`, or name the broker: Worker("nats://USER@HOST:PORT", password_file=…)'


def find_broker(url: str | None, access: Access) -> tuple[str, Access]:
    """An address, and how to prove who we are there. `ConfigurationError` where nobody says which."""
    if url is not None:
        return url, access
    from_settings = _of_settings(said_under(SETTINGS))
    address, known = from_settings or _of_own_dev()
    return address, {**known, **access}


def _of_settings(env: Mapping[str, str]) -> tuple[str, Access] | None:
    settings = BrokerSettings.load(env=env)
    check_rules(broker_rules(settings))
    if not settings.nats_servers:
        return None
    access: Access = {}
    if settings.nats_user is not None:
        access["user"] = settings.nats_user
    files: Mapping[str, Path | None] = {
        "password_file": settings.nats_password_file,
        "nkey_seed_file": settings.nats_nkey_file,
        "credentials_file": settings.nats_credentials_file,
        "tls_ca_file": settings.nats_ca_file,
        "tls_cert_file": settings.nats_cert_file,
        "tls_key_file": settings.nats_key_file,
    }
    access.update({name: file for name, file in files.items() if file is not None})  # type: ignore[typeddict-item]
    return ",".join(settings.nats_servers), access


def _of_own_dev() -> tuple[str, Access]:
    own = own_dev()
    if own is None or own.broker is None:
        raise ConfigurationError("no broker is named, and no `fumehood dev` of yours runs here").advise(_REMEDY)
    meant = find_connection().url
    if not same_address(meant, own.url):
        raise ConfigurationError(
            f"no broker is named: the server that is meant here is {meant}, and your own `fumehood dev` is {own.url}"
        ).advise("name the broker of that server, or unset FUMEHOOD_URL and FUMEHOOD_CONTEXT")
    return own.broker.url, {"user": own.broker.user, "password_file": own.broker.password_file}
