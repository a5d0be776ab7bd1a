"""Who may do what on the broker, and the server configuration that holds everybody to it.

Five roles. *Servers* (deciders included) are ours and may do everything in the engine's account. *Bridges* are ours
too, but only speak for workers: they take tasks, answer them, and keep leases, checkpoints and the directory, and may
ask for nothing else. A bridge that is taken over cannot decide, order or let anybody in by itself; but it is in the
engine's account, where reply subjects lead anywhere (see below), so that one would trust it as one trusts a server.
*Nodes* are ours as well, and run what nobody trusts: they take sandboxes off the queue, answer them, and say what they
print, for all tenants. *Providers* stand beside them: they take the executions of jobs. *Workers* are outsiders.

A worker has an account of its own (`WORKERS`), because permissions alone do not hold it: NATS does not check reply
subjects, so in one account a worker could ask for anything it may ask for and have the answer delivered into
`journal.…`. Between accounts an answer can only go back to where the question came from
(`test_a_worker_cannot_have_answers_delivered_into_the_journal`). What workers need is imported into their account,
subject by subject, and each worker's own permissions narrow that further.

A node has such an account, too (`NODES`), for the same reason: the machine that a sandbox breaks out to has nothing of
the engine's but what it was given, and no reply subject that leads anywhere. It is not the workers' account, so that
what only nodes write (output, the leases of sandboxes) is not even imported there, and no worker can have an answer
delivered to a node.

What nodes take (`fumehood.sandbox`) and what providers take (`fumehood.job.…`) nobody else may take: whoever has such a
task could answer it without having run anything. That is more than a rule of the queue. Everybody may write to any
run's history, so such a task bears a proof, and deciders drop what is said about one without it (`control/proofs.py`).
Its lease lies in a bucket, and its output in a tenant's blobs, that no worker may name.

What servers say to each other about workers that dial in (`switch.…`), and what the console keeps of these, is nobody
else's: such workers speak gRPC to a server and nothing to the broker. Messages are sealed, as journals are.

So what can be done by whoever has taken one of them over?

- A *worker* can end the steps of task types that are not its own, if it knows or learns the run: histories are shared.
  It can read and change all leases and checkpoints of workers, and read all blobs of its tenant, since the broker takes
  a wildcard in a question for one and permissions cannot tell: among them values of runs above 128 KiB, of all tenants
  of the API where it is of the tenant `default`. It cannot begin, answer or stop a sandbox, nor see more of one than
  such values.
- A *node* can do to all sandboxes what it could do to its own: take those that wait, or have the queue take them from
  other nodes, and answer them as it likes; read what they print and what they are given; change the leases of others,
  so that theirs end. What has been answered it cannot answer again. To histories it writes as a worker does. It takes
  no other tasks, and sees no leases, checkpoints or definitions of others.
- A *provider* can do to the executions of its job types what a node can do to sandboxes, and to the leases of both.
  What it answers counts only with a receipt of its own key (`control/jobs/`). It reads what was uploaded for jobs.
- A *bridge* can do all that its workers can, and read all blobs, with the kept output of sandboxes among them.
- A `trusted` worker lives in the engine's account, with a worker's permissions and those that make consumers, of which
  one may show it any task. Only for workers that one would also let run a server: for a developer's machine, and for
  plain NATS clients that ask the JetStream API for information, which is answered inside the account of the streams
  only.
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
from fumehood.broker.topology import BLOB_STREAM, GIB, KEPT_STREAM, LOG_STREAM, MAX_PAYLOAD, PROBE, TASK_STREAM
from fumehood.errors import ConfigurationError
from fumehood.wire.jobs import JOB_TYPES
from fumehood.wire.sandbox import SANDBOX_TASK
from fumehood.wire.sealed import ADJUDICATE_TASK, is_sealed, job_task

ENGINE, WORKERS, NODES = "FUMEHOOD", "WORKERS", "NODES"
_NEXT = f"$JS.API.CONSUMER.MSG.NEXT.{TASK_STREAM}"
_ACK = f"$JS.ACK.{TASK_STREAM}"
_SANDBOXES = names.consumer_of(SANDBOX_TASK)
_ROUTE_USER = "route"


class Role(StrEnum):
    SERVER = "server"
    BRIDGE = "bridge"
    NODE = "node"
    PROVIDER = "provider"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who may connect, by password (or its bcrypt hash) or by NKEY."""

    name: str
    role: Role
    password: str | None = field(default=None, repr=False)
    nkey: str | None = None
    task_types: tuple[str, ...] | None = None
    """Workers: the types they may take; None: all but what nodes take. Providers: their job types."""
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
            if self.account != ENGINE:
                raise ConfigurationError("only a trusted worker may have another inbox than its own")
        if self.tenant == names.NODES_TENANT:
            raise ConfigurationError(f"the tenant {names.NODES_TENANT} holds what all sandboxes print: give another")
        if self.role is Role.PROVIDER and not self.task_types:
            raise ConfigurationError("a provider has task_types: the job types that it may take")
        for kind in self.task_types or ():
            if is_sealed(kind):
                raise ConfigurationError(f"tasks of type {kind} are for nodes and providers: give the user such a role")

    @property
    def inbox_prefix(self) -> str:
        """Where answers to this user come in; nobody else may listen there."""
        own = "_INBOX" if self.role is Role.SERVER else f"_INBOX_{self.name}"
        return self.inbox or own

    @property
    def account(self) -> str:
        if self.role in (Role.NODE, Role.PROVIDER):
            return NODES
        return WORKERS if self.role is Role.WORKER and not self.trusted else ENGINE


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


def node_publishes(user: User) -> list[str]:
    """All that a node may say: what `handout.py` does for one type of tasks, and the output of what it runs."""
    return [
        "history.*.*",
        f"$KV.{Bucket.WORKERS}.{user.name}",
        f"{_NEXT}.{_SANDBOXES}",
        f"{_ACK}.{_SANDBOXES}.>",
        f"$KV.{Bucket.NODE_LEASES}.*.*",
        f"$JS.API.DIRECT.GET.KV_{Bucket.NODE_LEASES}.$KV.{Bucket.NODE_LEASES}.*.*",
        f"blob.{names.DEFAULT_TENANT}.*.*",  # inputs and outputs of runs
        f"$JS.API.DIRECT.GET.{BLOB_STREAM}.blob.{names.DEFAULT_TENANT}.*.*",
        f"kept.{names.NODES_TENANT}.*.*",  # what sandboxes print
        f"$JS.API.DIRECT.GET.{KEPT_STREAM}.kept.{names.NODES_TENANT}.*.*",
        "log.*.*.*",
        f"$JS.API.DIRECT.GET.{LOG_STREAM}",
        f"$JS.API.DIRECT.GET.{LOG_STREAM}.log.>",
    ]


def provider_publishes(user: User) -> list[str]:
    """All that a provider may say: what `handout.py` does for its job types, what it needs for them, and no output."""
    consumers = [names.consumer_of(job_task(kind)) for kind in user.task_types or ()]
    return [
        "history.*.*",
        f"$KV.{Bucket.WORKERS}.{user.name}",
        *(f"{_NEXT}.{consumer}" for consumer in consumers),
        *(f"{_ACK}.{consumer}.>" for consumer in consumers),
        f"$KV.{Bucket.NODE_LEASES}.*.*",
        f"$JS.API.DIRECT.GET.KV_{Bucket.NODE_LEASES}.$KV.{Bucket.NODE_LEASES}.*.*",
        f"$JS.API.DIRECT.GET.KV_{Bucket.PROVIDERS}.$KV.{Bucket.PROVIDERS}.{user.name}",
        f"blob.{names.DEFAULT_TENANT}.*.*",  # inputs and outputs of runs
        f"$JS.API.DIRECT.GET.{BLOB_STREAM}.blob.{names.DEFAULT_TENANT}.*.*",
        f"$JS.API.DIRECT.GET.{KEPT_STREAM}.kept.{names.NODES_TENANT}.*.*",  # what was uploaded
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
        f"blob.{names.DEFAULT_TENANT}.*.*",
        f"$JS.API.STREAM.MSG.GET.{BLOB_STREAM}",
        f"$JS.API.DIRECT.GET.{BLOB_STREAM}.blob.{names.DEFAULT_TENANT}.*.*",
    ]


def refused(user: User) -> list[str]:
    """What is taken away again of all that a user may say: the tasks of nodes, of providers and of servers. Subjects
    cannot tell job types that are not named here; whoever takes one has no key whose receipt would count."""
    if user.account == NODES:
        return []
    kinds = (SANDBOX_TASK, ADJUDICATE_TASK, *map(job_task, JOB_TYPES))
    consumers = [names.consumer_of(kind) for kind in kinds]
    makes = [f"$JS.API.CONSUMER.CREATE.{TASK_STREAM}.*.{names.task_filter(kind)}" for kind in kinds]
    taken = [subject for consumer in consumers for subject in (f"{_NEXT}.{consumer}", f"{_ACK}.{consumer}.>")]
    return [*taken, *(makes if user.trusted else [])]


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
NODES_EXPORTED = (
    f"$KV.{Bucket.NODE_LEASES}.*.*",
    f"$JS.API.DIRECT.GET.KV_{Bucket.NODE_LEASES}.>",
    f"$JS.API.DIRECT.GET.KV_{Bucket.PROVIDERS}.>",
    "log.*.*.*",
    f"$JS.API.DIRECT.GET.{LOG_STREAM}.>",
    f"kept.{names.NODES_TENANT}.*.*",
    f"$JS.API.DIRECT.GET.{KEPT_STREAM}.>",
)
NODES_EXPORTED_STREAMING = (f"$JS.API.DIRECT.GET.{LOG_STREAM}",)
"""What crosses from the nodes' account alone."""
NODES_IMPORTED = (
    "history.*.*",
    f"$KV.{Bucket.WORKERS}.*",
    "blob.*.*.*",
    f"$JS.API.DIRECT.GET.{BLOB_STREAM}.>",
    f"{_ACK}.{_SANDBOXES}.>",
    f"{_NEXT}.{_SANDBOXES}",
    *NODES_EXPORTED,
    *NODES_EXPORTED_STREAMING,
)
"""All that does."""


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
    says = f"allow: [{', '.join(map(_quoted, _publishes(user)))}]"
    if denied := refused(user):
        says += f", deny: [{', '.join(map(_quoted, denied))}]"
    own = {f"_INBOX_{user.name}.>", f"{user.inbox_prefix}.>"}  # what our own SDK listens to is always among them
    listens = ", ".join(map(_quoted, sorted(own)))
    return f"{{ {who}, permissions: {{ publish: {{ {says} }}, subscribe: {{ allow: [{listens}] }} }} }}"


def _publishes(user: User) -> list[str]:
    if user.role is Role.BRIDGE:
        return bridge_publishes()
    if user.role is Role.NODE:
        return node_publishes(user)
    if user.role is Role.PROVIDER:
        return provider_publishes(user)
    return _trusted_publishes(user) if user.trusted else worker_publishes(user)


def _mappings(partitions: int) -> str:
    one, two = "{{wildcard(1)}}", "{{wildcard(2)}}"
    part = f"{{{{partition({partitions},1)}}}}"
    plain = [f'"{name}.*": "{name}.{part}.{one}"' for name in ("history", "inbox", "journal", PROBE)]
    return _list([*plain, f'"timer.*.*": "timer.{part}.{one}.{two}"']).replace("[", "{", 1)[:-1] + "}"


def _exports() -> list[str]:
    """Each subject once, and none within another that has other accounts: the server takes any that fits."""
    both, one = f"accounts: [{WORKERS}, {NODES}]", f"accounts: [{NODES}]"
    return [
        *(f'{{ service: "{subject}", {both} }}' for subject in EXPORTED),
        *(f'{{ service: "{subject}", response_type: stream, {both} }}' for subject in EXPORTED_STREAMING),
        *(f'{{ service: "{subject}", {one} }}' for subject in NODES_EXPORTED),
        *(f'{{ service: "{subject}", response_type: stream, {one} }}' for subject in NODES_EXPORTED_STREAMING),
    ]


def _imports(subjects: Sequence[str]) -> str:
    return _list([f'{{ service: {{ account: {ENGINE}, subject: "{subject}" }} }}' for subject in subjects])


def _taken_by_providers(users: Sequence[User]) -> list[str]:
    """The tasks of all job types that some provider has."""
    kinds = sorted({kind for user in users if user.role is Role.PROVIDER for kind in user.task_types or ()})
    consumers = [names.consumer_of(job_task(kind)) for kind in kinds]
    return [subject for consumer in consumers for subject in (f"{_ACK}.{consumer}.>", f"{_NEXT}.{consumer}")]


def _accounts(options: ServerOptions) -> str:
    mappings = _mappings(options.partitions)

    def users(account: str) -> str:
        return _list([_user(user) for user in options.users if user.account == account])

    return f"""accounts {{
  {ENGINE} {{
    jetstream: enabled
    mappings: {mappings}
    exports: {_list(_exports())}
    users: {users(ENGINE)}
  }}
  {WORKERS} {{
    mappings: {mappings}
    imports: {_imports((*EXPORTED, *EXPORTED_STREAMING))}
    users: {users(WORKERS)}
  }}
  {NODES} {{
    mappings: {mappings}
    imports: {_imports((*NODES_IMPORTED, *_taken_by_providers(options.users)))}
    users: {users(NODES)}
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
