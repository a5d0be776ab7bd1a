"""`fumehood receipts key` and `rotate`: the key of a node, a worker or a provider, on its own machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fumehood.cli import show
from fumehood.node import signing

State = Annotated[
    Path, typer.Option("--state", metavar="DIR", help="The state folder of the node, worker or provider.")
]


def key(*, state: State, as_json: show.Json = False) -> None:
    """Print the public key that a node, worker or provider signs with: for whoever enrolls it to compare."""
    found = signing.ReceiptKeys(state).current
    if as_json:
        show.document({"public_key": found.public_key.hex(), "key_id": found.key_id, "state": str(state)})
        return
    typer.echo(found.public_key.hex())


def rotate(*, state: State, as_json: show.Json = False) -> None:
    """Let a node, worker or provider sign with another key from now on. The public one is printed: enroll it at once.

    One that runs goes on with the new key by itself; what it tells of itself may be the old one until it is restarted.
    """
    before = signing.ReceiptKeys(state).current
    key = signing.rotate(state).current
    if as_json:
        show.document(
            {"public_key": key.public_key.hex(), "key_id": key.key_id, "retired": before.key_id, "state": str(state)}
        )
        return
    typer.echo(key.public_key.hex())
    show.console(stderr=True).print(
        f"the key {before.key_id} signs nothing any more; what it signed counts as long as it is listed. Put the new "
        "one on the list: fumehood receipts enroll NAME --key HEX"
    )
