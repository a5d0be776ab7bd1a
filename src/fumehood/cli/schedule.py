"""`fumehood schedule`: runs that start by the clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any

import typer

from fumehood.cli import given, show
from fumehood.cli.client import Api, ApiError, InsecureHttp, KeyFile, Server, opened, part
from fumehood.cli.exits import UsageError
from fumehood.cli.show import Json

app = typer.Typer(no_args_is_help=True)

MOST, PAGE = 100_000, 100
KEPT = ("workflow", "cron", "timezone", "input", "labels", "catch_up", "catch_up_limit")
"""What stays as it was where nothing else is said."""

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]


class CatchUp(StrEnum):
    NONE = "none"
    LAST = "last"
    ALL = "all"


@app.command("ls")
def ls(
    server: Server = None, key_file: KeyFile = None, insecure_http: InsecureHttp = False, as_json: Json = False
) -> None:
    """List schedules by name."""
    with opened(server, key_file, insecure_http) as api:
        found, _ = api.listed("/v1/schedules", "schedules", most=MOST, page=PAGE)
    if as_json:
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
def show_schedule(
    name: Name,
    server: Server = None,
    key_file: KeyFile = None,
    insecure_http: InsecureHttp = False,
    as_json: Json = False,
) -> None:
    """Show a schedule: when it starts what, and how far it has come."""
    with opened(server, key_file, insecure_http) as api, _named(api, name):
        found = api.get(f"/v1/schedules/{part(name)}")
    _print(found, as_json)


def _print(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
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
def set_schedule(
    name: Name,
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
    server: Server = None,
    key_file: KeyFile = None,
    insecure_http: InsecureHttp = False,
    as_json: Json = False,
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
    path = f"/v1/schedules/{part(name)}"
    with opened(server, key_file, insecure_http) as api:
        body = _present(api, path) | body
        if "workflow" not in body or "cron" not in body:
            raise UsageError(f"there is no schedule {name} yet: a new one needs --workflow and --cron")
        answer = api.put(path, body)
    _print(answer, as_json)


def _present(api: Api, path: str) -> dict[str, Any]:
    """What a schedule is now; nothing for one that is not there."""
    try:
        found = api.get(path)
    except ApiError as error:
        if error.status == 404:
            return {}
        raise
    return {field: found[field] for field in KEPT if found.get(field) is not None}


@app.command("pause")
def pause(
    name: Name,
    server: Server = None,
    key_file: KeyFile = None,
    insecure_http: InsecureHttp = False,
    as_json: Json = False,
) -> None:
    """Let a schedule stand still. Times that pass meanwhile are not made up for."""
    with opened(server, key_file, insecure_http) as api, _named(api, name):
        answer = api.post(f"/v1/schedules/{part(name)}:pause")
    _print(answer, as_json)


@app.command("resume")
def resume(
    name: Name,
    server: Server = None,
    key_file: KeyFile = None,
    insecure_http: InsecureHttp = False,
    as_json: Json = False,
) -> None:
    """Let a schedule go on, from now."""
    with opened(server, key_file, insecure_http) as api, _named(api, name):
        answer = api.post(f"/v1/schedules/{part(name)}:resume")
    _print(answer, as_json)


@app.command("trigger")
def trigger(
    name: Name,
    server: Server = None,
    key_file: KeyFile = None,
    insecure_http: InsecureHttp = False,
    as_json: Json = False,
) -> None:
    """Start a run as the schedule would, now. Prints its id."""
    with opened(server, key_file, insecure_http) as api, _named(api, name):
        answer = api.post(f"/v1/schedules/{part(name)}:trigger")
    if as_json:
        show.document(answer)
    else:
        typer.echo(answer["run_id"])


@app.command("rm")
def rm(
    name: Name,
    server: Server = None,
    key_file: KeyFile = None,
    insecure_http: InsecureHttp = False,
    as_json: Json = False,
) -> None:
    """Delete a schedule. Runs that it started go on."""
    with opened(server, key_file, insecure_http) as api, _named(api, name):
        api.delete(f"/v1/schedules/{part(name)}")
    if as_json:
        show.document({"name": name})
    else:
        show.console().print(f"{name} is no more")


@contextmanager
def _named(api: Api, name: str) -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        if error.status != 404:
            raise
        known = [one["name"] for one in api.listed("/v1/schedules", "schedules", most=PAGE, page=PAGE)[0]]
        if name in known:
            raise
        raise given.no_such("schedule", name, known) from None
