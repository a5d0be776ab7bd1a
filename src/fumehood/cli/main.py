"""`fumehood`: the root of all commands, and the one place where an error becomes an exit code."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import fumehood
from fumehood.cli.exits import USAGE, CommandError
from fumehood.cli.parts import Parts
from fumehood.errors import FumehoodError

app = typer.Typer(
    name="fumehood",
    cls=Parts,
    help="Runs what agents write: untrusted code in locked-down containers, with results that are never a lie.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fumehood {fumehood.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options that stand before the command."""


def main() -> None:
    """Our own errors are a line for the person at the terminal, and at most one more with what to do; anything else is
    a fault and shows its trace."""
    try:
        app(prog_name="fumehood")  # however it was started
    except FumehoodError as error:
        print(f"fumehood: {error}", file=sys.stderr)
        sys.exit(error.exit_code if isinstance(error, CommandError) else USAGE)
