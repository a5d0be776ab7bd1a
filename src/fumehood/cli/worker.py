"""`fumehood worker`: who takes tasks, what waits for them, and how quickly it may go out."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fumehood.cli import given, show
from fumehood.cli.client import Api, ApiError, InsecureHttp, KeyFile, Server, opened, part
from fumehood.cli.exits import UsageError
from fumehood.cli.show import Json

app = typer.Typer(no_args_is_help=True)

MOST = 10_000
"""Workers and task types that are listed: more than a cell has, and no list without an end."""
PAGE = 200
NO_LIMIT = "none"


@app.command("ls")
def ls(
    server: Server = None, key_file: KeyFile = None, insecure_http: InsecureHttp = False, as_json: Json = False
) -> None:
    """List workers that are there, and types of tasks that wait or have a limit."""
    with opened(server, key_file, insecure_http) as api:
        workers, _ = api.listed("/v1/workers", "workers", most=MOST, page=PAGE)
        types, _ = api.listed("/v1/task-types", "task_types", most=MOST, page=PAGE)
    if as_json:
        show.document({"workers": workers, "task_types": types})
        return
    show.table(
        ["worker", "takes", "at once", "comes over", "language"],
        [
            [one["worker_id"], ", ".join(one["task_types"]), str(one["max_tasks"]), one["transport"], one["language"]]
            for one in workers
        ],
        whole=["worker"],
    )
    if types:
        typer.echo()
        show.table(["task type", "waiting", "limit"], [_type(one) for one in types], whole=["task type"])


def _type(one: dict[str, Any]) -> list[str]:
    limit = one.get("limit")
    return [one["task_type"], str(one["waiting"]), _limit(limit) if limit else ""]


def _limit(limit: dict[str, Any]) -> str:
    return str(limit["rate"]) + (f", {limit['burst']} at once" if limit.get("burst", 1) > 1 else "")


@app.command("drain")
def drain(
    worker: Annotated[str, typer.Argument(metavar="WORKER", help="The worker's id.")],
    server: Server = None,
    key_file: KeyFile = None,
    insecure_http: InsecureHttp = False,
    as_json: Json = False,
) -> None:
    """Send a worker home that came over HTTP: it gets nothing more, and finishes what it has."""
    with opened(server, key_file, insecure_http) as api:
        try:
            answer = api.delete(f"/v1/workers/{part(worker)}")
        except ApiError as error:
            raise _explained(api, worker, error) from None
    if as_json:
        show.document(answer if answer is not None else {"worker_id": worker})
    else:
        show.console().print(f"{worker} gets no more tasks")


def _explained(api: Api, worker: str, error: ApiError) -> Exception:
    if error.status != 404:
        return error
    known, _ = api.listed("/v1/workers", "workers", most=MOST, page=PAGE)
    return given.no_such("worker", worker, [one["worker_id"] for one in known])


@app.command("limit")
def limit(
    task_type: Annotated[str, typer.Argument(metavar="TYPE", help="The type of tasks.")],
    rate: Annotated[str, typer.Argument(metavar="RATE", help="Like 10/s, 100/m or 1000/h; none takes a limit away.")],
    burst: Annotated[
        int | None, typer.Option(min=1, help="So many may go out at once after a pause; one, if not given.")
    ] = None,
    server: Server = None,
    key_file: KeyFile = None,
    insecure_http: InsecureHttp = False,
    as_json: Json = False,
) -> None:
    """Bound how quickly tasks of a type go out, for all runs and servers together."""
    path = f"/v1/task-types/{part(task_type)}/limit"
    with opened(server, key_file, insecure_http) as api:
        if rate == NO_LIMIT:
            if burst is not None:
                raise UsageError("--burst belongs to a rate, not to none")
            _clear(api, path)
            _say(task_type, None, as_json)
            return
        answer = api.put(path, {"rate": rate} | ({"burst": burst} if burst is not None else {}))
    _say(task_type, answer, as_json)


def _clear(api: Api, path: str) -> None:
    """None is none, also where there was none."""
    try:
        api.delete(path)
    except ApiError as error:
        if error.status != 404:
            raise


def _say(task_type: str, limit: dict[str, Any] | None, as_json: bool) -> None:
    if as_json:
        show.document({"task_type": task_type, "limit": limit})
    else:
        show.console().print(f"{task_type}: {_limit(limit)}" if limit else f"{task_type}: no limit")
