"""Connecting to the broker, for processes that are started together with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fumehood.broker.connection import ConnectionOptions
from fumehood.errors import BrokerUnavailableError, ConfigurationError
from fumehood.settings.broker import BrokerSettings
from fumehood.settings.token_file import TokenFile

T = TypeVar("T")

BROKER_SECONDS = 60.0
"""How long a server waits for its broker: everything of a cell may be started at once."""


def connection(settings: BrokerSettings, name: str, inbox_prefix: str) -> ConnectionOptions:
    secret = settings.nats_password_file
    return ConnectionOptions(
        settings.nats_servers,
        name=name,
        inbox_prefix=inbox_prefix,
        user=settings.nats_user,
        password=TokenFile(secret, noun="password").read()[0] if secret is not None else None,
        nkey_seed_file=settings.nats_nkey_file,
        credentials_file=settings.nats_credentials_file,
        tls_ca_file=settings.nats_ca_file,
        tls_cert_file=settings.nats_cert_file,
        tls_key_file=settings.nats_key_file,
    )


async def waited_for(
    opened: Callable[[], Awaitable[T]], options: ConnectionOptions, log: Any, *, seconds: float = BROKER_SECONDS
) -> T:
    """A broker that is away is waited for."""
    until = time.monotonic() + seconds
    while True:
        try:
            return await opened()
        except ConfigurationError as error:
            raise _explained(error, options) from None
        except BrokerUnavailableError as error:
            if time.monotonic() > until:
                raise
            log.warning("broker.absent", detail=error.detail)
            await asyncio.sleep(1)


def _explained(error: ConfigurationError, options: ConnectionOptions) -> ConfigurationError:
    """Credentials that were not given cannot have been wrong."""
    given = options.user or options.nkey_seed_file or options.credentials_file or options.tls_cert_file
    if given or "credentials" not in error.detail:
        return error
    return ConfigurationError(
        "the broker asks for credentials and none were given: --nats-user and --nats-password-file, or one of the "
        "settings nats_nkey_file and nats_credentials_file"
    )
