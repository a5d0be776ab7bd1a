"""`fumehood worker docker`: a worker that dials in to the console, and does its commands in containers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fumehood.settings import WorkerSettings

CONFIG = typer.Option("--config", help="A TOML file with settings; variables and flags win over it.")


def docker(
    config: Annotated[Path | None, CONFIG] = None,
    credentials: Annotated[
        Path | None, typer.Option(help="The file (mode 0600) that `fumehood worker create` wrote.")
    ] = None,
    console: Annotated[
        list[str] | None, typer.Option(help="HOST:PORT of the console; repeat it for its replicas.")
    ] = None,
    state: Annotated[Path | None, typer.Option(help="Where the worker keeps its sessions and commands.")] = None,
    ready_file: Annotated[
        Path | None, typer.Option(help="Receives one JSON object when the console has taken the worker.")
    ] = None,
    json_logs: Annotated[bool, typer.Option("--json", help="Log as JSON lines.")] = False,
) -> None:
    """Dial in to the console and do its commands in containers of this machine's engine.

    Settings are variables (WORKER_ID, WORKER_SECRET, …). SIGINT and SIGTERM end all that runs and remove all
    containers; SIGUSR2 leaves everything to the next worker on the same --state.
    """
    from fumehood.cli import worker_process  # a second that whoever lists workers does not wait

    settings = WorkerSettings.load(
        config_file=config,
        worker_credentials_file=credentials,
        worker_console_grpc_target=tuple(console) if console else None,
        worker_state_dir=state,
    )
    worker_process.run(settings, ready_file, json_logs=json_logs)
