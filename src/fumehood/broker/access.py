"""Who may do what on the broker, and the server configuration that holds everybody to it.

Three roles. *Servers* (deciders included) are ours and may do everything in the engine's account. *Bridges* are ours
too, but only speak for workers: they take tasks, answer them, and keep leases, checkpoints and the directory, and may
ask for nothing else. A bridge that is taken over cannot decide, order or let anybody in by itself; but it is in the
engine's account, where reply subjects lead anywhere (see below), so that one would trust it as one trusts a server.
*Workers* are outsiders.

A worker has an account of its own (`WORKERS`), because permissions alone do not hold it: NATS does not check reply
subjects, so in one account a worker could ask for anything it may ask for and have the answer delivered into
`journal.…`. Between accounts an answer can only go back to where the question came from
(`test_a_worker_cannot_have_answers_delivered_into_the_journal`). What workers need is imported into their account,
subject by subject, and each worker's own permissions narrow that further.

A `trusted` worker lives in the engine's account, with the same permissions and those that make consumers. Only for
workers that one would also let run a server: for a developer's machine, and for plain NATS clients that ask the
JetStream API for information, which is answered inside the account of the streams only.
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from fumehood.broker import names
from fumehood.broker.ports import Bucket
from fumehood.broker.topology import BLOB_STREAM, GIB, MAX_PAYLOAD, PROBE, TASK_STREAM
from fumehood.errors import ConfigurationError

ENGINE, WORKERS = "FUMEHOOD", "WORKERS"
_NEXT = f"$JS.API.CONSUMER.MSG.NEXT.{TASK_STREAM}"
_ACK = f"$JS.ACK.{TASK_STREAM}"
_ROUTE_USER = "route"


class Role(StrEnum):
    SERVER = "server"
    BRIDGE = "bridge"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who may connect, by password (or its bcrypt hash) or by NKEY."""

    name: str
    role: Role
    password: str | None = field(default=None, repr=False)
    nkey: str | None = None
    task_types: tuple[str, ...] | None = None
    """Workers: the types they may take; None: all."""
    tenant: str = names.DEFAULT_TENANT
    trusted: bool = False
    inbox: str | None = None
    """Workers: where answers come in, instead of a place of their own. A trusted one may have `_INBOX`, which NATS
    clients use unless told otherwise: then it works with a URL alone, and could listen to others that do the same."""

    def __post_init__(self) -> None:
        names.token(self.name, "a user's name")
        names.token(self.tenant, "a tenant")
        if (self.password is None) == (self.nkey is None):
            raise ConfigurationError("a user of the broker has a password or an nkey")
        if self.inbox is not None:
            names.token(self.inbox, "an inbox prefix")
            if self.isolated:
                raise ConfigurationError("only a trusted worker may have another inbox than its own")

    @property
    def inbox_prefix(self) -> str:
        """Where answers to this user come in; nobody else may listen there."""
        own = "_INBOX" if self.role is Role.SERVER else f"_INBOX_{self.name}"
        return self.inbox or own

    @property
    def isolated(self) -> bool:
        return self.role is Role.WORKER and not self.trusted


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """One nats-server of a cell."""

    partitions: int
    store_dir: Path
    users: Sequence[User]
    host: str = "127.0.0.1"
    port: int = 4222
    name: str = "fumehood"
    storage: int = 8 * GIB
    sync_always: bool = False
    """Flush each write to disk before it is acknowledged. On in production: without it a write that was acknowledged
    can be lost when all machines lose power at once."""
    monitor_port: int | None = None
    cluster_port: int | None = None
    cluster_password: str | None = field(default=None, repr=False)
    """What the servers of a cluster know each other by. None: whoever reaches the port may join, and do everything."""
    routes: Sequence[str] = ()
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    tls_ca_file: Path | None = None


# --- permissions -------------------------------------------------------------------------------------------


def worker_publishes(user: User) -> list[str]:
    """All that a worker may say. History is checked under its mapped name."""
    consumers = ["*"] if user.task_types is None else [names.consumer_of(kind) for kind in user.task_types]
    return [
        "history.*.*",
        f"$KV.{Bucket.WORKERS}.{user.name}",
        *(f"{_NEXT}.{consumer}" for consumer in consumers),
        *(f"{_ACK}.{consumer}.>" for consumer in consumers),
        # The wire protocol: a worker writes its checkpoints. Ours also take a lease before they begin.
        f"$KV.{Bucket.CHECKPOINTS}.*.*",
        f"$JS.API.DIRECT.GET.KV_{Bucket.CHECKPOINTS}.$KV.{Bucket.CHECKPOINTS}.>",
        f"$KV.{Bucket.LEASES}.>",
        f"$JS.API.DIRECT.GET.KV_{Bucket.LEASES}.$KV.{Bucket.LEASES}.>",
        f"blob.{user.tenant}.>",
        f"$JS.API.DIRECT.GET.{BLOB_STREAM}.blob.{user.tenant}.>",
    ]


def _trusted_publishes(user: User) -> list[str]:
    filters = [">"] if user.task_types is None else [names.task_filter(kind) for kind in user.task_types]
    return [
        *worker_publishes(user),
        *(f"$JS.API.CONSUMER.CREATE.{TASK_STREAM}.*.{subject}" for subject in filters),
        f"$JS.API.CONSUMER.DURABLE.CREATE.{TASK_STREAM}.*",
        f"$JS.API.CONSUMER.INFO.{TASK_STREAM}.*",
        f"$JS.API.STREAM.INFO.{TASK_STREAM}",
        f"$JS.API.STREAM.INFO.KV_{Bucket.WORKERS}",
        f"$JS.API.STREAM.INFO.KV_{Bucket.CHECKPOINTS}",
        "$JS.API.STREAM.NAMES",
        "$JS.API.INFO",
    ]


_BRIDGE_BUCKETS = (Bucket.WORKERS, Bucket.LEASES, Bucket.CHECKPOINTS)


def bridge_publishes() -> list[str]:
    """All that a bridge may say: what `control/bridge.py` and `handout.py` do over it, and not a subject more."""
    watched = f"KV_{Bucket.WORKERS}"
    return [
        "history.*.*",
        f"$JS.API.CONSUMER.LIST.{TASK_STREAM}",
        f"{_NEXT}.*",
        f"{_ACK}.>",
        *(f"$KV.{bucket}.>" for bucket in _BRIDGE_BUCKETS),
        *(f"$JS.API.STREAM.MSG.GET.KV_{bucket}" for bucket in _BRIDGE_BUCKETS),
        f"$JS.API.CONSUMER.CREATE.{watched}.*",
        f"$JS.API.CONSUMER.MSG.NEXT.{watched}.*",
        f"$JS.API.CONSUMER.DELETE.{watched}.*",
        "blob.>",
        f"$JS.API.STREAM.MSG.GET.{BLOB_STREAM}",
        f"$JS.API.DIRECT.GET.{BLOB_STREAM}.>",
    ]


EXPORTED = (
    "history.*.*",
    f"$KV.{Bucket.WORKERS}.*",
    f"$KV.{Bucket.CHECKPOINTS}.*.*",
    f"$KV.{Bucket.LEASES}.>",
    "blob.*.*.*",
    f"$JS.API.DIRECT.GET.KV_{Bucket.CHECKPOINTS}.>",
    f"$JS.API.DIRECT.GET.KV_{Bucket.LEASES}.>",
    f"$JS.API.DIRECT.GET.{BLOB_STREAM}.>",
    f"{_ACK}.>",
)
"""What crosses from the workers' account: questions with one answer."""
EXPORTED_STREAMING = (f"{_NEXT}.*",)
"""And those with many."""


# --- the file ----------------------------------------------------------------------------------------------


def _quoted(text: object) -> str:
    return json.dumps(str(text), ensure_ascii=False)  # nats-server does not know \\u


def _list(items: Sequence[str], indent: str = "      ") -> str:
    return "[\n" + "".join(f"{indent}  {item}\n" for item in items) + f"{indent}]"


def _user(user: User) -> str:
    if user.nkey is not None:
        who = f"nkey: {_quoted(user.nkey)}"
    else:
        who = f"user: {_quoted(user.name)}, password: {_quoted(user.password)}"
    if user.role is Role.SERVER:
        return f"{{ {who} }}"
    allowed = ", ".join(map(_quoted, _publishes(user)))
    own = {f"_INBOX_{user.name}.>", f"{user.inbox_prefix}.>"}  # what our own SDK listens to is always among them
    listens = ", ".join(map(_quoted, sorted(own)))
    return f"{{ {who}, permissions: {{ publish: {{ allow: [{allowed}] }}, subscribe: {{ allow: [{listens}] }} }} }}"


def _publishes(user: User) -> list[str]:
    if user.role is Role.BRIDGE:
        return bridge_publishes()
    return _trusted_publishes(user) if user.trusted else worker_publishes(user)


def _mappings(partitions: int) -> str:
    one, two = "{{wildcard(1)}}", "{{wildcard(2)}}"
    part = f"{{{{partition({partitions},1)}}}}"
    plain = [f'"{name}.*": "{name}.{part}.{one}"' for name in ("history", "inbox", "journal", PROBE)]
    return _list([*plain, f'"timer.*.*": "timer.{part}.{one}.{two}"']).replace("[", "{", 1)[:-1] + "}"


def _accounts(options: ServerOptions) -> str:
    exports = [f'{{ service: "{subject}", accounts: [{WORKERS}] }}' for subject in EXPORTED]
    exports += [
        f'{{ service: "{subject}", response_type: stream, accounts: [{WORKERS}] }}' for subject in EXPORTED_STREAMING
    ]
    imports = [
        f'{{ service: {{ account: {ENGINE}, subject: "{subject}" }} }}' for subject in (*EXPORTED, *EXPORTED_STREAMING)
    ]
    ours = [_user(user) for user in options.users if not user.isolated]
    theirs = [_user(user) for user in options.users if user.isolated]
    mappings = _mappings(options.partitions)
    return f"""accounts {{
  {ENGINE} {{
    jetstream: enabled
    mappings: {mappings}
    exports: {_list(exports)}
    users: {_list(ours)}
  }}
  {WORKERS} {{
    mappings: {mappings}
    imports: {_list(imports)}
    users: {_list(theirs)}
  }}
}}
"""


def _tls(options: ServerOptions) -> str:
    if options.tls_cert_file is None:
        return ""
    lines = [f"cert_file: {_quoted(options.tls_cert_file)}", f"key_file: {_quoted(options.tls_key_file)}"]
    if options.tls_ca_file is not None:
        lines += [f"ca_file: {_quoted(options.tls_ca_file)}", "verify: true"]
    return "tls { " + ", ".join(lines) + " }\n"


def _cluster(options: ServerOptions) -> str:
    if options.cluster_port is None:
        return ""
    routes, lines = options.routes, [f'name: fumehood\n  listen: "{options.host}:{options.cluster_port}"']
    if options.cluster_password is not None:
        lines.append(f"authorization {{ user: {_ROUTE_USER}, password: {_quoted(options.cluster_password)} }}")
        known = f"://{_ROUTE_USER}:{urllib.parse.quote(options.cluster_password, safe='')}@"
        routes = [route.replace("://", known, 1) for route in routes]
    if options.tls_ca_file is not None:  # each server is a client of the others and has to know whom it trusts
        lines.append(_tls(options).rstrip())
    lines.append(f"routes: [{', '.join(_quoted(route) for route in routes)}]")
    return "cluster {\n" + "".join(f"  {line}\n" for line in lines) + "}\n"


def server_config(options: ServerOptions) -> str:
    """The configuration file of one nats-server. Holds passwords: write it for its owner alone."""
    sync = "  sync_interval: always\n" if options.sync_always else ""
    monitor = "" if options.monitor_port is None else f'http: "{options.host}:{options.monitor_port}"\n'
    return (
        f"server_name: {_quoted(options.name)}\n"
        f'listen: "{options.host}:{options.port}"\n'
        f"max_payload: {MAX_PAYLOAD}\n"
        f"{monitor}"
        f"jetstream {{\n  store_dir: {_quoted(options.store_dir)}\n  max_file_store: {options.storage}\n{sync}}}\n"
        f"{_cluster(options)}{_tls(options)}{_accounts(options)}"
    )
