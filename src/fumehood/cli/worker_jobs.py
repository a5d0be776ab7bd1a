"""`fumehood worker jobs`: a provider, which does executions of jobs and signs a receipt for each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fumehood.settings import ProviderSettings

CONFIG = typer.Option("--config", help="A TOML file with settings; variables and flags win over it.")


def jobs(
    config: Annotated[Path | None, CONFIG] = None,
    name: Annotated[str | None, typer.Option(help="Who it is; else its user at the broker.")] = None,
    state: Annotated[Path | None, typer.Option(help="Where the provider keeps its receipt key.")] = None,
    types: Annotated[
        list[str] | None, typer.Option("--type", help="A job type that it does; repeat for more. Else all it can.")
    ] = None,
    ways: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="TYPE=HANDLER", help="How it does a type, as in oa.retrieval_rerank.v1=openai."),
    ] = None,
    modules: Annotated[
        list[str] | None, typer.Option("--module", help="A Python module with a job type of your own.")
    ] = None,
    concurrency: Annotated[int | None, typer.Option(help="Executions at once; else one for each core.")] = None,
    nats: Annotated[list[str] | None, typer.Option(help="Address of the broker.")] = None,
    nats_user: Annotated[str | None, typer.Option(help="The provider's user at the broker.")] = None,
    nats_password_file: Annotated[Path | None, typer.Option(help="A file (mode 0600) with its password.")] = None,
    ready_file: Annotated[
        Path | None, typer.Option(help="Receives one JSON object when the provider takes executions.")
    ] = None,
    json_logs: Annotated[bool, typer.Option("--json", help="Log as JSON lines.")] = False,
) -> None:
    """Do executions of jobs, and sign a receipt for each.

    Settings are variables (PROVIDER_STATE_DIR, …). What a type needs and is not there (an engine, a package, an
    endpoint) leaves that type out, unless it was named. SIGINT and SIGTERM finish what runs.
    """
    from fumehood.cli import provider_process  # a second that whoever lists workers does not wait

    settings = ProviderSettings.load(
        config_file=config,
        provider_name=name,
        provider_state_dir=state,
        provider_job_types=tuple(types) if types else None,
        provider_handlers=tuple(ways) if ways else None,
        job_modules=tuple(modules) if modules else None,
        provider_concurrency=concurrency,
        nats_servers=tuple(nats) if nats else None,
        nats_user=nats_user,
        nats_password_file=nats_password_file,
    )
    provider_process.run([settings], ready_file, json_logs=json_logs)
