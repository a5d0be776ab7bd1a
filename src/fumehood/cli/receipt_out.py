"""Receipts as the command line gives them: one line, in the only form that they have as bytes; `verify` reads it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Annotated, Any

import typer

from fumehood.cli.client import Api, part
from fumehood.cli.exits import CommandError, UsageError
from fumehood.cli.output import Screen
from fumehood.wire.canonical import canonical_json

Out = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write it there, and not to the terminal.")
]


def give(receipt: Any, out: Path | None) -> None:
    """To a file, whole or not at all, or to stdout."""
    line = canonical_json(receipt) + b"\n"
    if out is None:
        typer.echo(line, nl=False)
        return
    draft = out.with_name(f".{secrets.token_hex(16)}")
    try:
        draft.write_bytes(line)
        draft.replace(out)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise UsageError(f"{out} cannot be written: {error.strerror}") from None


def clear_place(out: Path) -> None:
    """Before anything is run: it is known by then whether a file can be written there, and the receipt of an earlier
    run cannot pass for this run's."""
    if not out.parent.is_dir() or out.is_dir() or not os.access(out.parent, os.W_OK):
        raise UsageError(
            f"--receipt {out} cannot be written: its folder is not there or not yours to write to, or it is one itself"
        )
    try:
        out.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"--receipt {out} cannot be replaced: {error.strerror}") from None


def keep(api: Api, run_id: str, out: Path, screen: Screen) -> None:
    """The receipt of a run that has ended; where there is none, why."""
    try:
        give(api.get(f"/runs/{part(run_id)}/receipt"), out)
    except CommandError as error:  # the run has ended, and its exit code is what counts
        screen.say(f"{out} was not written: {error.detail}")
