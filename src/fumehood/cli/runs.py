"""`fumehood runs`: find runs, see how they stand, follow them, stop them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fumehood.cli import given, runs_repair, show, watching
from fumehood.cli.client import Api, InsecureHttp, KeyFile, Query, Server, opened, part
from fumehood.cli.runs_view import Now
from fumehood.cli.runs_watch import render
from fumehood.cli.show import Json
from fumehood.cli.stream import history

app = typer.Typer(no_args_is_help=True)

PAGE = 200
"""The most that a server gives at once."""

Run = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
Workflow = Annotated[str | None, typer.Option(help="Only runs of this workflow.")]
Status = Annotated[str | None, typer.Option(help="Only runs that stand so: running, succeeded, failed …")]
Labels = Annotated[
    list[str] | None, typer.Option("--label", metavar="NAME=VALUE", help="Only runs with this label; repeat for more.")
]
Since = Annotated[str | None, typer.Option(metavar="WHEN", help="Started at most so long ago (2h), or after a moment.")]
Until = Annotated[str | None, typer.Option(metavar="WHEN", help="Started at least so long ago, or before a moment.")]
Parent = Annotated[str | None, typer.Option(metavar="RUN", help="Only runs that this run called.")]
Schedule = Annotated[str | None, typer.Option(metavar="NAME", help="Only runs that this schedule started.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many.")]
Cursor = Annotated[str | None, typer.Option(help="Go on behind an earlier list: its `next`, as --json shows it.")]


@app.command("ls")
def ls(
    workflow: Workflow = None,
    status: Status = None,
    label: Labels = None,
    since: Since = None,
    until: Until = None,
    parent: Parent = None,
    schedule: Schedule = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    server: Server = None,
    key_file: KeyFile = None,
    insecure_http: InsecureHttp = False,
    as_json: Json = False,
) -> None:
    """List runs, newest first."""
    wanted = _filter(workflow, status, label, since, until, parent, schedule, cursor)
    with opened(server, key_file, insecure_http) as api:
        page = _list(api, "/v1/runs", wanted, limit)
    if as_json:
        show.document(page)
        return
    now = show.now()
    show.table(
        ["run", "workflow", "status", "started", "took", "labels"],
        [
            [
                run["run_id"],
                run["workflow"],
                show.status(run["status"]),
                show.local(run.get("started_at")),
                show.between(run.get("started_at"), run.get("ended_at"), now),
                show.labels(run.get("labels")),
            ]
            for run in page["runs"]
        ],
        whole=["run", "status"],
    )
    _more(page)


@app.command("dead-letters")
def dead_letters(
    workflow: Workflow = None,
    label: Labels = None,
    since: Since = None,
    until: Until = None,
    parent: Parent = None,
    schedule: Schedule = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    server: Server = None,
    key_file: KeyFile = None,
    insecure_http: InsecureHttp = False,
    as_json: Json = False,
) -> None:
    """List runs that failed or timed out, with the reason. `runs retry` takes one up again."""
    wanted = _filter(workflow, None, label, since, until, parent, schedule, cursor)
    with opened(server, key_file, insecure_http) as api:
        page = _list(api, "/v1/dead-letters", wanted, limit)
    if as_json:
        show.document(page)
        return
    show.table(
        ["run", "workflow", "ended", "step", "why"],
        [
            [
                run["run_id"],
                run["workflow"],
                show.local(run.get("ended_at")),
                run.get("failed_step"),
                show.failure(run.get("error")) or run["status"].replace("_", " "),
            ]
            for run in page["runs"]
        ],
        whole=["run"],
    )
    _more(page)


def _filter(
    workflow: str | None,
    status: str | None,
    label: list[str] | None,
    since: str | None,
    until: str | None,
    parent: str | None,
    schedule: str | None,
    cursor: str | None,
) -> Query:
    now = show.now()
    return {
        "workflow": workflow,
        "status": status,
        "label": [f"{name}={value}" for name, value in given.labels(label).items()],
        "started_after": given.moment(since, "--since", now),
        "started_before": given.moment(until, "--until", now),
        "parent": parent,
        "schedule": schedule,
        "cursor": cursor,
    }


def _list(api: Api, path: str, wanted: Query, limit: int) -> dict[str, Any]:
    found, following = api.listed(path, "runs", wanted, most=limit, page=PAGE, cursor="cursor")
    return {"runs": found, "next": following}


def _more(page: dict[str, Any]) -> None:
    if page["next"] is not None:
        show.console(stderr=True).print("there are more: --limit shows them, --since and --label choose among them")


@app.command("show")
def show_run(
    run: Run,
    server: Server = None,
    key_file: KeyFile = None,
    insecure_http: InsecureHttp = False,
    as_json: Json = False,
) -> None:
    """Show a run: its graph, where each step stands, what went in and what came out."""
    with opened(server, key_file, insecure_http) as api:
        found = watching.get_run(api, run)
        if as_json:
            show.document(found)
            return
        print_run(api, found)


def print_run(api: Api, run: dict[str, Any]) -> None:
    out = show.console()
    out.print(render(watching.whole_view(api, run, out.width, Now(show.now())), out.width))
    for name in ("input", "output"):
        show.value(name, run.get(name))


@app.command("watch")
def watch(
    run: Run,
    server: Server = None,
    key_file: KeyFile = None,
    insecure_http: InsecureHttp = False,
    as_json: Json = False,
) -> None:
    """Follow a run on a live screen until it ends. Exits with 0 where it succeeded, and with 1 where it did not.

    Where stdout is no terminal, each event is a line.
    """
    with opened(server, key_file, insecure_http) as api:
        watching.follow(api, run, as_json=as_json)


@app.command("logs")
def logs(
    run: Run,
    step: Annotated[str | None, typer.Argument(metavar="STEP", help="Only what is about this step.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    server: Server = None,
    key_file: KeyFile = None,
    insecure_http: InsecureHttp = False,
    as_json: Json = False,
) -> None:
    """Tell what happened in a run, a line for each event."""
    with opened(server, key_file, insecure_http) as api:
        if step is not None:
            _check_step(api, run, step)
        if follow:
            watching.print_events(api, run, as_json=as_json, step=step)
            return
        out = show.console()
        for event in history(api, run):
            if step is None or watching.belongs(event, step):
                watching.print_event(event, out, as_json=as_json)


def _check_step(api: Api, run: str, step: str) -> None:
    """A name that no step has would give nothing, which looks like an answer."""
    known = watching.get_run(api, run).get("steps", {})
    if known and step not in known:
        raise given.no_such("step", step, known)


@app.command("stop")
def stop(
    run: Run,
    reason: Annotated[str, typer.Option(help="Why; it stands in the run's history.")] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Also while it undoes what it did: what is left stays.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Until it has ended.")] = False,
    server: Server = None,
    key_file: KeyFile = None,
    insecure_http: InsecureHttp = False,
    as_json: Json = False,
) -> None:
    """Ask a run to end. One that has ended stays as it is."""
    body: dict[str, Any] = {"reason": reason} | ({"force": True} if force else {})
    with opened(server, key_file, insecure_http) as api:
        answer = api.post(f"/v1/runs/{part(run)}:cancel", body)
        if wait:
            answer = watching.wait(api, run)
    if as_json:
        show.document(answer)
    elif wait:
        show.console().print(f"{run} has ended: {answer['status'].replace('_', ' ')}")
    else:
        show.console().print(f"{run} was asked to end")


app.command("retry")(runs_repair.retry)
app.command("signal")(runs_repair.signal)
app.command("approve")(runs_repair.approve)
app.command("reject")(runs_repair.reject)
app.command("token")(runs_repair.token)
app.command("skip")(runs_repair.skip)
app.command("complete")(runs_repair.complete)
app.command("reindex")(runs_repair.reindex)
