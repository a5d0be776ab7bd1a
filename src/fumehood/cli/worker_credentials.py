"""`fumehood worker create` and `revoke`: who may dial in as a worker."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from fumehood.cli import given, show
from fumehood.cli.client import Api, ApiError, part
from fumehood.cli.exits import CommandError
from fumehood.cli.once import new_file
from fumehood.cli.options import Remote, grouped
from fumehood.wire.console.credentials_file import FILE_NAME, WorkerCredentials

PATH = "/v1/worker-credentials"
NO_FILE = Path("-")
MOST = 10_000
PAGE = 200


@grouped
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The worker's id: letters, digits, - and _.")],
    *,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="What is true of it, whatever it says itself; repeat for more."),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Write them there, with mode 0600, if nothing is there; - for nowhere.")
    ] = Path(FILE_NAME),
    remote: Remote,
) -> None:
    """Let a worker dial in. Its credentials are shown once; the server keeps only what verifies them."""
    body = {"worker_id": name, "labels": given.labels(label)}
    with nullcontext() if out == NO_FILE else new_file(out) as file, remote.opened() as api:
        made = api.post(PATH, body)
        if file is not None:
            _write(file, out, made)
    if remote.as_json:
        show.document(made)
        return
    typer.echo(f"WORKER_ID={made['worker_id']}")
    typer.echo(f"WORKER_SECRET={made['worker_secret']}")
    where = "it is not shown again" if out == NO_FILE else f"written to {out}, and not shown again"
    show.console(stderr=True).print(f"{name} may dial in: {where}")


def _write(file: TextIO, out: Path, made: dict[str, Any]) -> None:
    said = WorkerCredentials(worker_id=made["worker_id"], worker_secret=made["worker_secret"])
    try:
        with file:
            file.write(said.encode())
    except OSError as error:
        raise CommandError(
            f"--out {out} cannot be written: {error.strerror}; the worker is made, and its secret lost: "
            f"revoke it with `fumehood worker revoke {show.plain(made['worker_id'])}`"
        ) from None


@grouped
def revoke(
    worker: Annotated[str, typer.Argument(metavar="WORKER", help="The worker's id.")],
    remote: Remote,
) -> None:
    """Let a worker dial in no more. Where it is connected, that ends at once."""
    with remote.opened() as api:
        try:
            answer = api.delete(f"{PATH}/{part(worker)}")
        except ApiError as error:
            known = [one["worker_id"] for one in _known(api)] if error.status == 404 else [worker]
            if worker in known:
                raise
            raise given.no_such("worker", worker, known) from None
    remote.tell(answer, f"{worker} is not let in any more")


@grouped
def ls(remote: Remote) -> None:
    """List workers that may dial in, whether they are there or not."""
    with remote.opened() as api:
        found = _known(api)
    if remote.as_json:
        show.document({"workers": found})
        return
    rows = [[one["worker_id"], _labels(one), show.local(one["created_at"]), one["created_by"]] for one in found]
    show.table(["worker", "labels", "made", "by"], rows, whole=["worker"])


def _known(api: Api) -> list[dict[str, Any]]:
    found, _ = api.listed(PATH, "workers", most=MOST, page=PAGE)
    return found


def _labels(one: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(one["labels"].items()))
