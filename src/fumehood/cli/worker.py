"""`fumehood worker`: who takes tasks and commands, what waits for them, how quickly it may go out, who is let in."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Any

import typer

from fumehood.cli import given, show, worker_credentials, worker_docker, worker_jobs, worker_standing
from fumehood.cli.client import Api, ApiError, part
from fumehood.cli.exits import UsageError
from fumehood.cli.options import Remote, grouped
from fumehood.wire.sandbox import POLICY, POLICY_SHA256, RECEIPT_KEY
from fumehood.wire.sealed import JOB_TASK

app = typer.Typer(no_args_is_help=True)
app.command("create")(worker_credentials.create)
app.command("revoke")(worker_credentials.revoke)
app.command("credentials")(worker_credentials.ls)
app.command("docker")(worker_docker.docker)
app.command("jobs")(worker_jobs.jobs)
app.command("standing")(worker_standing.standing)
app.command("set-aside")(worker_standing.set_aside)
app.command("restore")(worker_standing.restore)

MOST = 10_000
"""Workers and task types that are listed: more than a cell has, and no list without an end."""
PAGE = 200
NO_LIMIT = "none"
SHOWN = 12
"""Letters of a hash."""


@app.command("ls")
@grouped
def ls(remote: Remote) -> None:
    """List workers that are there, and types of tasks that wait or have a limit."""
    with remote.opened() as api:
        workers, _ = api.listed("/v1/workers", "workers", most=MOST, page=PAGE)
        types, _ = api.listed("/v1/task-types", "task_types", most=MOST, page=PAGE)
    if remote.as_json:
        show.document({"workers": workers, "task_types": types})
        return
    show.table(
        ["worker", "takes", "at once", "comes over", "language", "policy", "receipt key"],
        [_worker(one) for one in workers],
        whole=["worker"],
    )
    if types:
        typer.echo()
        show.table(["task type", "waiting", "limit"], [_type(one) for one in types], whole=["task type"])


def _worker(one: dict[str, Any]) -> list[str]:
    takes, most = ", ".join(name.removeprefix(JOB_TASK) for name in one["task_types"]), str(one["max_tasks"])
    said = one.get("metadata") or {}
    return [one["worker_id"], takes, most, one["transport"], one["language"], _policy(said), _key(said)]


def _policy(said: dict[str, str]) -> str:
    """By which a node decides, and as much of its file's hash as tells two apart; other workers have none."""
    file = said.get(POLICY_SHA256)
    return said.get(POLICY, "") + (f" ({file[:SHOWN]})" if file else "")


def _key(said: dict[str, str]) -> str:
    """As much of the key's id as tells two apart; --json has the key."""
    key = said.get(RECEIPT_KEY, "")
    return hashlib.sha256(bytes.fromhex(key)).hexdigest()[:SHOWN] if re.fullmatch("[0-9a-f]{64}", key) else ""


def _type(one: dict[str, Any]) -> list[str]:
    limit = one.get("limit")
    return [one["task_type"], str(one["waiting"]), _limit(limit) if limit else ""]


def _limit(limit: dict[str, Any]) -> str:
    return str(limit["rate"]) + (f", {limit['burst']} at once" if limit.get("burst", 1) > 1 else "")


@app.command("drain")
@grouped
def drain(
    worker: Annotated[str, typer.Argument(metavar="WORKER", help="The worker's id.")],
    remote: Remote,
) -> None:
    """Send a worker home that dialled in or came over HTTP: it gets nothing more, and finishes what it has."""
    with remote.opened() as api, given.named(api, "worker", worker, most=MOST, page=PAGE, field="worker_id"):
        answer = api.delete(f"/v1/workers/{part(worker)}")
    remote.tell(answer if answer is not None else {"worker_id": worker}, f"{worker} gets no more tasks")


@app.command("limit")
@grouped
def limit(
    task_type: Annotated[str, typer.Argument(metavar="TYPE", help="The type of tasks.")],
    rate: Annotated[str, typer.Argument(metavar="RATE", help="Like 10/s, 100/m or 1000/h; none takes a limit away.")],
    *,
    burst: Annotated[
        int | None, typer.Option(min=1, help="So many may go out at once after a pause; one, if not given.")
    ] = None,
    remote: Remote,
) -> None:
    """Bound how quickly tasks of a type go out, for all runs and servers together."""
    path = f"/v1/task-types/{part(task_type)}/limit"
    with remote.opened() as api:
        if rate == NO_LIMIT:
            if burst is not None:
                raise UsageError("--burst belongs to a rate, not to none")
            _clear(api, path)
            _say(task_type, None, remote)
            return
        answer = api.put(path, {"rate": rate} | ({"burst": burst} if burst is not None else {}))
    _say(task_type, answer, remote)


def _clear(api: Api, path: str) -> None:
    """None is none, also where there was none."""
    try:
        api.delete(path)
    except ApiError as error:
        if error.status != 404:
            raise


def _say(task_type: str, limit: dict[str, Any] | None, remote: Remote) -> None:
    remote.tell({"task_type": task_type, "limit": limit}, f"{task_type}: {_limit(limit) if limit else 'no limit'}")
