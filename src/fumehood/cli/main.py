"""`fumehood`: the root of all commands, and the one place where an error becomes an exit code."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fumehood import __version__
from fumehood.cli import broker, dev, doctor, node, server
from fumehood.errors import FumehoodError

app = typer.Typer(
    name="fumehood",
    help="Runs what agents write: untrusted code in locked-down containers, with results that are never a lie.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
)
app.command("dev")(dev.dev)
app.command("server")(server.server)
app.command("node")(node.node)
app.command("doctor")(doctor.doctor)
_broker = typer.Typer(help="What the broker needs.", no_args_is_help=True, pretty_exceptions_enable=False)
_broker.command("config")(broker.config)
app.add_typer(_broker, name="broker")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fumehood {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options that stand before the command."""


def main() -> None:
    """Our own errors are one line for the person at the terminal; anything else is a fault and shows its trace."""
    try:
        app()
    except FumehoodError as error:
        print(f"fumehood: {error.detail}", file=sys.stderr)
        sys.exit(2)
