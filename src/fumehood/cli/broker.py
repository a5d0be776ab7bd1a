"""`fumehood broker config`: the configuration that makes a nats-server a broker of ours.

One file describes the whole cell, and every machine is configured from the same one (`--server` says which it is): who
may connect, and above all the number of partitions, must not differ between servers, and routes need not be written by
hand. Everything is checked before anything is written; what is written holds secrets and is for its owner alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fumehood.broker.access import server_config
from fumehood.cli import show
from fumehood.cli.broker_file import BrokerFile, ServerTable
from fumehood.cli.show import Json
from fumehood.errors import ConfigurationError, FumehoodError
from fumehood.settings.base import load_table
from fumehood.settings.token_file import write_private

EXAMPLE = """\
# A cell of three servers. Copy this file to all machines; it holds no secret.
partitions = 4              # as `partitions` of every `fumehood server`; for ever: another number loses runs
storage = "8GiB"            # on each server; `storage_bytes` of `fumehood server` must not be more (MiB, GiB, TiB)
store_dir = "/var/lib/nats"
# sync_always = true        # false is faster, and can lose acknowledged writes when all machines lose power
cluster_password_file = "cluster.password"  # who knows it may join; needed beyond one machine
# tls_cert_file = "/etc/nats/server.pem"    # on the broker's machine, for clients and for the other servers
# tls_key_file = "/etc/nats/server.key"
# tls_ca_file = "/etc/nats/ca.pem"          # clients need a certificate of it, too; a cluster with TLS needs it

[[servers]]                 # one table: no cluster
name = "n1"
host = "10.0.0.1"           # to listen on
# address = "n1.internal"   # where the other servers find it, if that is not `host`
# port = 4222
# cluster_port = 6222
# monitor_port = 8222       # asks nobody for a password; left out: none
# store_dir = "/data/nats"  # if not as above

[[servers]]
name = "n2"
host = "10.0.0.2"

[[servers]]
name = "n3"
host = "10.0.0.3"

[[users]]
name = "fumehood"
role = "server"             # server, bridge, node, provider or worker
password_file = "fumehood.password"  # mode 0600, beside this file; the password, or its bcrypt hash ($2a$…)

[[users]]                   # one for each machine that runs sandboxes
name = "node-1"
role = "node"
password_file = "node-1.password"

[[users]]                   # one for each process that does jobs
name = "provider-1"
role = "provider"
password_file = "provider-1.password"
# task_types = ["oa.sandbox_run.v1"]  # left out: all that come with the system

[[users]]
name = "billing-1"
role = "worker"
nkey = "UCUBIJSJ2ITQ7URFWRJL6D54WDRMMZCVOYKDJPLACJ5ULCUNBI27G5KQ"  # instead of a password: the public key
task_types = ["invoice"]    # left out: all but those of nodes
# tenant = "default"
# trusted = false           # true: in the engine's own account; see the documentation first
"""


def _example(wanted: bool) -> None:
    if wanted:
        typer.echo(EXAMPLE, nl=False)
        raise typer.Exit


def config(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The TOML file that describes the cell; --example prints one.")
    ],
    out: Annotated[str, typer.Option(help="Where to write, with mode 0600; - is the terminal. It holds passwords.")],
    server: Annotated[str | None, typer.Option(help="Which of the file's servers; may be left out for one.")] = None,
    as_json: Json = False,
    _: Annotated[
        bool, typer.Option("--example", callback=_example, is_eager=True, help="Print an example of FILE and exit.")
    ] = False,
) -> None:
    """Write the configuration of a nats-server: accounts, mappings, permissions, limits.

    The file has partitions, storage, store_dir, and if wanted sync_always, cluster_password_file, tls_cert_file,
    tls_key_file and tls_ca_file; a table in servers for each machine: name, host, and if wanted address, port,
    cluster_port, monitor_port, store_dir; and a table in users for everybody: name, role (server, bridge, node,
    provider or worker), password_file or nkey, and if wanted for a provider task_types, for a worker task_types,
    tenant, trusted. Passwords stand in files of their own, which only their owner may read.
    """
    text = made(file, server)
    if out != "-":
        _write(Path(out), text)
    if as_json:
        show.document({"file": None, "configuration": text} if out == "-" else {"file": out})
    elif out == "-":
        typer.echo(text)


def made(file: Path, server: str | None = None) -> str:
    """The configuration of one of the file's servers. Raises `ConfigurationError` for whatever is wrong with it."""
    cell = load_table(BrokerFile, file)
    chosen = _chosen(cell, server)
    try:
        options = cell.options(chosen, file.parent)
    except FumehoodError as error:
        raise ConfigurationError(f"the configuration file {file}: {error.detail}") from None
    return _comment(cell, chosen) + server_config(options)


def _chosen(cell: BrokerFile, wanted: str | None) -> ServerTable:
    found = [server for server in cell.servers if wanted in (None, server.name)]
    if len(found) != 1:
        raise ConfigurationError(f"--server must be one of {', '.join(server.name for server in cell.servers)}")
    return found[0]


def _comment(cell: BrokerFile, server: ServerTable) -> str:
    return (
        f"# The nats-server {server.name}, made by `fumehood broker config`. Holds secrets: for its owner alone.\n"
        f"# partitions = {cell.partitions} here must be the same on all servers of the broker and in the settings of\n"
        "# every `fumehood server`, for ever: with another number the events of a run go astray.\n"
        f"# `storage_bytes` of every `fumehood server` must be at most {cell.storage_bytes}.\n"
    )


def _write(path: Path, text: str) -> None:
    if path.exists() and not path.is_file():
        raise ConfigurationError(f"--out {path} is not a file")
    try:
        write_private(path, text)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error
