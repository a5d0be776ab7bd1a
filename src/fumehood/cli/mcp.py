"""`fumehood mcp`: Fumehood's tools for an agent program, over stdin and stdout; and what to tell such a program."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from fumehood.cli import show
from fumehood.cli.client import InsecureHttp, KeyFile, Server
from fumehood.cli.exits import UsageError
from fumehood.cli.show import Json
from fumehood.mcp.programs import PROGRAMS, Way

app = typer.Typer()

Context = Annotated[
    str | None, typer.Option("--context", metavar="NAME", help="Whom to be where, as `fumehood login` keeps it.")
]


@app.callback(invoke_without_command=True)
def mcp(
    context: typer.Context,
    server: Server = None,
    key_file: KeyFile = None,
    name: Context = None,
    insecure_http: InsecureHttp = False,
    json_logs: Annotated[bool, typer.Option("--json", help="Log as JSON lines, to stderr.")] = False,
) -> None:
    """Serve Fumehood's tools to an agent program over stdin and stdout (MCP). It is started by that program: `fumehood
    mcp config` prints what to tell it. Logs go to stderr."""
    if context.invoked_subcommand is not None:
        return
    from fumehood.door.logs import configure_logging  # `config` needs none of these, and they take a second
    from fumehood.mcp.stdio import serve_stdio
    from fumehood.sdk.connection import find_connection

    found = find_connection(url=server, key_file=key_file, context=name, insecure_http=insecure_http or None)
    if sys.stdin.isatty():
        show.console(stderr=True).print(
            "this speaks MCP on stdin and stdout, for an agent program that starts it; `fumehood mcp config` says how"
        )
    configure_logging(json=json_logs)
    asyncio.run(serve_stdio(found))


@app.command()
def config(
    program: Annotated[
        str, typer.Argument(metavar="PROGRAM", help=f"One of {', '.join(PROGRAMS)}.", show_default=False)
    ] = "json",
    http: Annotated[
        str | None,
        typer.Option("--http", metavar="URL", help="Let the program come to a server's /mcp itself, with a key."),
    ] = None,
    context: Context = None,
    as_json: Json = False,
) -> None:
    """Print what an agent program must be told to have Fumehood's tools. No key is part of it."""
    if program not in PROGRAMS:
        raise UsageError(f"{program} is none of {', '.join(PROGRAMS)}; `json` is for all that are not named")
    chosen = PROGRAMS[program]
    words = [_ourselves(), "mcp", *(("--context", context) if context is not None else ())]
    url = None if http is None else f"{http.rstrip('/').removesuffix('/mcp')}/mcp"
    way = Way(words, url)
    if as_json:
        show.document({"program": program, "place": chosen.place, "configuration": chosen.document(way)})
        return
    screen = show.console(stderr=True)
    screen.print(f"{chosen.title}: {chosen.place}", soft_wrap=True)
    if chosen.note:
        screen.print(chosen.note, soft_wrap=True)
    typer.echo(chosen.text(way))


def _ourselves() -> str:
    """Programs with a desktop are started with another PATH than shells: the whole path finds us all the same."""
    beside = Path(sys.executable).with_name("fumehood")
    return str(beside) if beside.is_file() else shutil.which("fumehood") or "fumehood"
