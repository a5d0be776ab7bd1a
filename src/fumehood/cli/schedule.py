"""`fumehood schedule`: runs that start by the clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any

import typer

from fumehood.cli import completing, given, show
from fumehood.cli.client import Api, ApiError, part
from fumehood.cli.exits import UsageError
from fumehood.cli.options import Remote, grouped

app = typer.Typer(no_args_is_help=True)

MOST, PAGE = 100_000, 100
KEPT = ("workflow", "cron", "timezone", "input", "labels", "catch_up", "catch_up_limit")
"""What stays as it was where nothing else is said."""

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.", autocompletion=completing.schedules)]


class CatchUp(StrEnum):
    NONE = "none"
    LAST = "last"
    ALL = "all"


@app.command("ls")
@grouped
def ls(remote: Remote) -> None:
    """List schedules by name."""
    with remote.opened() as api:
        found, _ = api.listed("/v1/schedules", "schedules", most=MOST, page=PAGE)
    if remote.as_json:
        show.document({"schedules": found})
        return
    rows = [
        [
            one["name"],
            one["workflow"],
            one["cron"],
            one["timezone"],
            "paused" if one["paused"] else show.local(one.get("next_at")),
            _last(one),
        ]
        for one in found
    ]
    show.table(["name", "workflow", "cron", "timezone", "next", "last"], rows, whole=["name", "cron"])


def _last(one: dict[str, Any]) -> str:
    """Why there was no run says more than when there was one."""
    if one.get("last_error"):
        return show.failure(one["last_error"])
    return show.local(one["last"]["at"]) if one.get("last") else ""


@app.command("show")
@grouped
def show_schedule(
    name: Name,
    remote: Remote,
) -> None:
    """Show a schedule: when it starts what, and how far it has come."""
    with _opened(name, remote) as (api, path):
        found = api.get(path)
    _print(found, remote)


def _print(found: dict[str, Any], remote: Remote) -> None:
    if remote.as_json:
        show.document(found)
        return
    last, error = found.get("last"), found.get("last_error")
    limit = f", at most {found['catch_up_limit']}" if found["catch_up"] == CatchUp.ALL else ""
    show.pairs(
        {
            "name": found["name"],
            "workflow": found["workflow"],
            "cron": f"{found['cron']} in {found['timezone']}",
            "next": "paused" if found["paused"] else show.local(found.get("next_at")),
            "last": f"{show.local(last['at'])} {last['run_id']}" if last else None,
            "last error": f"{show.local(error['at'])} {show.failure(error)}" if error else None,
            "missed times": f"{found['catch_up']}{limit}",
            "labels": show.labels(found.get("labels")),
            "changed by": found.get("changed_by"),
        }
    )
    show.value("input", found.get("input"))


@app.command("set")
@grouped
def set_schedule(
    name: Name,
    *,
    workflow: Annotated[str | None, typer.Option(help="The workflow to start.")] = None,
    cron: Annotated[
        str | None,
        typer.Option(help="Minute, hour, day of month, month, day of week, as cron writes them; or @daily …"),
    ] = None,
    timezone: Annotated[
        str | None, typer.Option(help="Where the clock hangs, like Europe/Berlin; UTC at first.")
    ] = None,
    value: Annotated[
        str | None, typer.Option("--input", metavar="JSON", help="Of every run; @FILE, or - for stdin.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="NAME=VALUE", help="Of every run; repeat for more.")
    ] = None,
    catch_up: Annotated[
        CatchUp | None, typer.Option(help="Of times that were missed because no server was there; none at first.")
    ] = None,
    catch_up_limit: Annotated[int | None, typer.Option(min=1, help="How many `all` are at most.")] = None,
    remote: Remote,
) -> None:
    """Make a schedule, or change one: what is not given stays as it is."""
    wanted: dict[str, Any] = {
        "workflow": workflow,
        "cron": cron,
        "timezone": timezone,
        "labels": given.labels(label) or None,
        "catch_up": catch_up.value if catch_up is not None else None,
        "catch_up_limit": catch_up_limit,
    }
    body = {field: found for field, found in wanted.items() if found is not None}
    if value is not None:
        body["input"] = given.json_value(value, "--input")
    with remote.opened() as api:
        body = _present(api, name) | body
        if "workflow" not in body or "cron" not in body:
            raise UsageError(f"there is no schedule {name} yet: a new one needs --workflow and --cron")
        answer = api.put(_path(name), body)
    _print(answer, remote)


def _present(api: Api, name: str) -> dict[str, Any]:
    """What a schedule is now; nothing for one that is not there."""
    try:
        found = api.get(_path(name))
    except ApiError as error:
        if error.status == 404:
            return {}
        raise
    return {field: found[field] for field in KEPT if found.get(field) is not None}


@app.command("pause")
@grouped
def pause(name: Name, remote: Remote) -> None:
    """Let a schedule stand still. Times that pass meanwhile are not made up for."""
    _print(_told(name, "pause", remote), remote)


@app.command("resume")
@grouped
def resume(name: Name, remote: Remote) -> None:
    """Let a schedule go on, from now."""
    _print(_told(name, "resume", remote), remote)


@app.command("trigger")
@grouped
def trigger(name: Name, remote: Remote) -> None:
    """Start a run as the schedule would, now. Prints its id."""
    answer = _told(name, "trigger", remote)
    if remote.as_json:
        show.document(answer)
    else:
        typer.echo(answer["run_id"])


def _told(name: str, verb: str, remote: Remote) -> dict[str, Any]:
    with _opened(name, remote) as (api, path):
        answer: dict[str, Any] = api.post(f"{path}:{verb}")
    return answer


@app.command("rm")
@grouped
def rm(name: Name, remote: Remote) -> None:
    """Delete a schedule. Runs that it started go on."""
    with _opened(name, remote) as (api, path):
        api.delete(path)
    remote.tell({"name": name}, f"{name} is no more")


@contextmanager
def _opened(name: str, remote: Remote) -> Iterator[tuple[Api, str]]:
    """The server, and where it has this schedule, which is to be there."""
    with remote.opened() as api, given.named(api, "schedule", name, most=PAGE, page=PAGE):
        yield api, _path(name)


def _path(name: str) -> str:
    return f"/v1/schedules/{part(name)}"
