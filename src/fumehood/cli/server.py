"""`fumehood server`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fumehood.settings import ServerSettings


def server(
    config: Annotated[
        Path | None, typer.Option(help="A TOML file with settings; FUMEHOOD_* variables and flags win over it.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes any free one.")] = None,
    grpc_host: Annotated[str | None, typer.Option(help="Address that workers dial in to, over gRPC.")] = None,
    grpc_port: Annotated[int | None, typer.Option(help="Port for that; 0 takes any free one.")] = None,
    nats: Annotated[
        list[str] | None, typer.Option(help="Address of the broker, without credentials; may be given several times.")
    ] = None,
    nats_user: Annotated[str | None, typer.Option(help="The server's user at the broker.")] = None,
    nats_password_file: Annotated[Path | None, typer.Option(help="A file (mode 0600) with its password.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="A file (mode 0600) with the administrator's token.")] = None,
    bridge_token_file: Annotated[Path | None, typer.Option(help="A file (mode 0600) with the workers' token.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="No token at all. Loopback only.")] = False,
    ready_file: Annotated[
        Path | None, typer.Option(help="Receives one JSON object when the server can take runs.")
    ] = None,
    json_logs: Annotated[bool, typer.Option("--json", help="Log as JSON lines.")] = False,
) -> None:
    """Run a server: the API, the console for workers that dial in, the bridge for HTTP workers, and the deciders. Any
    number of them may run side by side."""
    from fumehood.cli import server_process  # takes two seconds, which `--help` does not need

    settings = ServerSettings.load(
        config_file=config,
        host=host,
        port=port,
        grpc_host=grpc_host,
        grpc_port=grpc_port,
        nats_servers=tuple(nats) if nats else None,
        nats_user=nats_user,
        nats_password_file=nats_password_file,
        api_token_file=token_file,
        bridge_token_file=bridge_token_file,
        insecure=insecure or None,
    )
    server_process.run(settings, ready_file, json_logs=json_logs)
