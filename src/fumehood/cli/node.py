"""`fumehood node`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fumehood.settings import NodeSettings

CONFIG = typer.Option("--config", help="A TOML file with settings; FUMEHOOD_* variables and flags win over it.")
STATE = typer.Option("--state", help="Where the node keeps its ledger, id, receipt key and warden.")


def node(
    config: Annotated[Path | None, CONFIG] = None,
    state: Annotated[Path | None, STATE] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes any free one.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="A file (mode 0600) with the Worker API's token.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="No token at all. Loopback only.")] = False,
    nats: Annotated[
        list[str] | None, typer.Option(help="Address of the broker; without one the node takes no tasks.")
    ] = None,
    nats_user: Annotated[str | None, typer.Option(help="The node's user at the broker.")] = None,
    nats_password_file: Annotated[Path | None, typer.Option(help="A file (mode 0600) with its password.")] = None,
    ready_file: Annotated[
        Path | None, typer.Option(help="Receives one JSON object when the node can run containers.")
    ] = None,
    json_logs: Annotated[bool, typer.Option("--json", help="Log as JSON lines.")] = False,
) -> None:
    """Run this machine's node: the Worker API, and the sandboxes behind it."""
    from fumehood.cli import node_process  # takes a second, which `--help` does not need

    settings = NodeSettings.load(
        config_file=config,
        state_dir=state,
        host=host,
        port=port,
        worker_api_token_file=token_file,
        insecure=insecure or None,
        nats_servers=tuple(nats) if nats else None,
        nats_user=nats_user,
        nats_password_file=nats_password_file,
    )
    node_process.run(settings, ready_file, json_logs=json_logs)
