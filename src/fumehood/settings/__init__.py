"""Every setting of every process; `base.py` reads them, and is the only reader of the environment."""

from fumehood.settings.base import (
    CONFIG_VARIABLE,
    PREFIX,
    Access,
    Settings,
    cores,
    environment_for,
    is_loopback,
    is_token,
    strays,
    variables,
)
from fumehood.settings.client import ClientSettings
from fumehood.settings.images import RegistryCredentials
from fumehood.settings.node import NodeSettings
from fumehood.settings.provider import ProviderSettings
from fumehood.settings.server import ServerSettings
from fumehood.settings.worker import WorkerSettings

__all__ = [
    "CONFIG_VARIABLE",
    "PREFIX",
    "Access",
    "ClientSettings",
    "NodeSettings",
    "ProviderSettings",
    "RegistryCredentials",
    "ServerSettings",
    "Settings",
    "WorkerSettings",
    "cores",
    "environment_for",
    "is_loopback",
    "is_token",
    "strays",
    "variables",
]
