"""The file that describes a broker: which servers it has, and who may connect to it.

Held to its rules as a whole when it is read, so that what is made from it works. It holds no secret, only the names of
files that do. Files that only the broker's machine has (certificates, the store) are named, not looked at.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fumehood.broker import names
from fumehood.broker.access import Role, ServerOptions, User
from fumehood.broker.topology import GIB
from fumehood.settings.base import check_bounds, check_rules, is_loopback, within
from fumehood.settings.token_file import TokenFile
from fumehood.wire.jobs import JOB_TYPES

_SIZES = {"MiB": GIB // 1024, "GiB": GIB, "TiB": 1024 * GIB}
_SIZE = re.compile(r"([0-9]{1,9}) ?([MGT]iB)")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}")
_NKEY = re.compile(r"U[A-Z2-7]{55}")
_SERVERS_OWN = "server"
"""`fumehood server` has its answers sent to `_INBOX_server`: no worker or node may listen there."""


@dataclass(frozen=True, slots=True)
class UserTable:
    name: str
    role: str
    password_file: Path | None = None
    nkey: str | None = None
    task_types: tuple[str, ...] | None = None
    tenant: str | None = None
    trusted: bool | None = None

    def __post_init__(self) -> None:
        workers_own = (self.task_types, self.tenant, self.trusted)
        worker, outside = self.role == Role.WORKER, self.role in (Role.WORKER, Role.NODE, Role.PROVIDER)
        check_rules(
            {
                "users.name must be letters, digits, - and _": names.is_token(self.name),
                f"users.role must be one of {', '.join(Role)}": self.role in tuple(Role),
                "users: give one of password_file and nkey": (self.password_file is None) != (self.nkey is None),
                "users.nkey must be a user's public key (U…)": self.nkey is None or bool(_NKEY.fullmatch(self.nkey)),
                "users: only a worker has tenant or trusted": worker or workers_own[1:] == (None, None),
                "users: only a worker or a provider has task_types": worker
                or self.role == Role.PROVIDER
                or self.task_types is None,
                "users.task_types must name at least one; leave it out for all": self.task_types != (),
                f"users.name of a worker or node must not be {_SERVERS_OWN}": not outside or self.name != _SERVERS_OWN,
            }
        )

    def user(self, folder: Path) -> User:
        password = (
            None if self.password_file is None else TokenFile(folder / self.password_file, noun="password").read()[0]
        )
        for kind in self.task_types or ():
            names.task_type(kind)
        tenant, trusted, kinds = self.tenant or names.DEFAULT_TENANT, self.trusted or False, self.task_types
        if self.role == Role.PROVIDER:
            kinds = kinds or JOB_TYPES
        return User(self.name, Role(self.role), password, self.nkey, kinds, tenant, trusted)


@dataclass(frozen=True, slots=True)
class ServerTable:
    name: str
    host: str
    address: str | None = None
    port: int = within(4222, 1, 65_535)
    cluster_port: int = within(6222, 1, 65_535)
    monitor_port: int | None = within(None, 1, 65_535)
    store_dir: Path | None = None

    def __post_init__(self) -> None:
        check_bounds(self)
        check_rules(
            {
                "servers.name must be letters, digits, - and _": names.is_token(self.name),
                "servers.host must be a host's name or address": _is_host(self.host),
                "servers.address must be a host's name or address": _is_host(self.reached_at),
            }
        )

    @property
    def reached_at(self) -> str:
        return self.host if self.address is None else self.address

    @property
    def route(self) -> str:
        return f"nats://{_bracketed(self.reached_at)}:{self.cluster_port}"


@dataclass(frozen=True, slots=True)
class BrokerFile:
    """A cell, as its operator describes it."""

    partitions: int
    storage: str
    store_dir: Path
    servers: tuple[ServerTable, ...]
    users: tuple[UserTable, ...]
    sync_always: bool = True
    cluster_password_file: Path | None = None
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    tls_ca_file: Path | None = None

    def __post_init__(self) -> None:
        tls = self.tls_cert_file, self.tls_key_file, self.tls_ca_file
        stores = [server.store_dir for server in self.servers]
        loopback = all(is_loopback(server.host) for server in self.servers)
        check_rules(
            {
                "partitions must be between 1 and 4096": 1 <= self.partitions <= 4096,
                "storage must be a size like 8GiB, from 1GiB to 1024TiB": GIB <= self.storage_bytes <= 1024**2 * GIB,
                "paths on the broker's machine must be absolute and printable": _are_paths(
                    self.store_dir, *stores, *tls
                ),
                "tls_cert_file and tls_key_file belong together": (tls[0] is None) == (tls[1] is None),
                "tls_ca_file needs tls_cert_file": tls[0] is not None or tls[2] is None,
                "a cluster with TLS needs tls_ca_file": not self.clustered or tls[0] is None or tls[2] is not None,
                "servers must be one, or at least three: of two, both are always needed": len(self.servers)
                not in (0, 2),
                "servers must differ in their names": _differ(server.name for server in self.servers),
                "servers must differ in their routes": _differ(server.route for server in self.servers),
                "a server that listens everywhere needs an address for the others": not self.clustered
                or not any(_is_everywhere(server.reached_at) for server in self.servers),
                "a cluster beyond one machine needs cluster_password_file": not self.clustered
                or loopback
                or self.cluster_password_file is not None,
                "users must differ in their names": _differ(user.name for user in self.users),
                "users must differ in their nkeys": _differ(user.nkey for user in self.users if user.nkey),
                "users must have one whose role is server": any(user.role == Role.SERVER for user in self.users),
            }
        )

    @property
    def clustered(self) -> bool:
        return len(self.servers) > 1

    @property
    def storage_bytes(self) -> int:
        found = _SIZE.fullmatch(self.storage)
        return int(found[1]) * _SIZES[found[2]] if found else 0

    def options(self, server: ServerTable, folder: Path) -> ServerOptions:
        secret = self.cluster_password_file if self.clustered else None
        return ServerOptions(
            self.partitions,
            server.store_dir or self.store_dir,
            tuple(user.user(folder) for user in self.users),
            host=_bracketed(server.host),
            port=server.port,
            name=server.name,
            storage=self.storage_bytes,
            sync_always=self.sync_always,
            monitor_port=server.monitor_port,
            cluster_port=server.cluster_port if self.clustered else None,
            cluster_password=None if secret is None else TokenFile(folder / secret, noun="password").read()[0],
            routes=tuple(one.route for one in self.servers if one is not server),
            tls_cert_file=self.tls_cert_file,
            tls_key_file=self.tls_key_file,
            tls_ca_file=self.tls_ca_file,
        )


def _is_address(text: str) -> bool:
    try:
        return "%" not in text and bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def _is_host(text: str) -> bool:
    return _is_address(text) or _HOST.fullmatch(text) is not None


def _is_everywhere(host: str) -> bool:
    return _is_address(host) and ipaddress.ip_address(host).is_unspecified


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _are_paths(*paths: Path | None) -> bool:
    return all(path.is_absolute() and str(path).isprintable() for path in paths if path is not None)


def _differ(items: Iterable[str]) -> bool:
    found = list(items)
    return len(set(found)) == len(found)
