"""`fumehood runs`: find runs, see how they stand, follow them, stop them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from fumehood.cli import given, receipt_out, runs_output, runs_repair, show, watching
from fumehood.cli.client import Api, Query, part
from fumehood.cli.exits import UsageError
from fumehood.cli.options import Limit, Reason, Remote, Run, grouped
from fumehood.cli.runs_view import Now
from fumehood.cli.runs_watch import render
from fumehood.cli.show import Cell
from fumehood.cli.stream import history
from fumehood.sdk.run_values import Failure

app = typer.Typer(no_args_is_help=True)

PAGE = 200
"""The most that a server gives at once."""

Workflow = Annotated[str | None, typer.Option(help="Only runs of this workflow.")]
Status = Annotated[str | None, typer.Option(help="Only runs that stand so: running, succeeded, failed …")]
Labels = Annotated[
    list[str] | None, typer.Option("--label", metavar="NAME=VALUE", help="Only runs with this label; repeat for more.")
]
Since = Annotated[str | None, typer.Option(metavar="WHEN", help="Started at most so long ago (2h), or after a moment.")]
Until = Annotated[str | None, typer.Option(metavar="WHEN", help="Started at least so long ago, or before a moment.")]
Parent = Annotated[str | None, typer.Option(metavar="RUN", help="Only runs that this run called.")]
Schedule = Annotated[str | None, typer.Option(metavar="NAME", help="Only runs that this schedule started.")]
Cursor = Annotated[str | None, typer.Option(help="Go on behind an earlier list: its `next`, as --json shows it.")]


# --- lists -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Which:
    """Which runs, and how many of them."""

    label: Labels = None
    since: Since = None
    until: Until = None
    parent: Parent = None
    schedule: Schedule = None
    limit: Limit = 50
    cursor: Cursor = None

    def query(self) -> Query:
        now = show.now()
        return {
            "label": [f"{name}={value}" for name, value in given.labels(self.label).items()],
            "started_after": given.moment(self.since, "--since", now),
            "started_before": given.moment(self.until, "--until", now),
            "parent": self.parent,
            "schedule": self.schedule,
            "cursor": self.cursor,
        }


@app.command("ls")
@grouped
def ls(*, workflow: Workflow = None, status: Status = None, which: Which, remote: Remote) -> None:
    """List runs, newest first."""
    found = _list("/v1/runs", {"workflow": workflow, "status": status}, which, remote)
    now = show.now()

    def row(run: dict[str, Any]) -> list[Cell]:
        return [
            run["run_id"],
            run["workflow"],
            show.status(run["status"]),
            show.local(run.get("started_at")),
            show.between(run.get("started_at"), run.get("ended_at"), now),
            show.labels(run.get("labels")),
        ]

    _print(found, ["run", "workflow", "status", "started", "took", "labels"], row, remote)


@app.command("dead-letters")
@grouped
def dead_letters(*, workflow: Workflow = None, which: Which, remote: Remote) -> None:
    """List runs that failed or timed out, with the reason. `runs retry` takes one up again."""

    def row(run: dict[str, Any]) -> list[Cell]:
        return [
            run["run_id"],
            run["workflow"],
            show.local(run.get("ended_at")),
            run.get("failed_step"),
            show.failure(run.get("error")) or run["status"].replace("_", " "),
        ]

    found = _list("/v1/dead-letters", {"workflow": workflow}, which, remote)
    _print(found, ["run", "workflow", "ended", "step", "why"], row, remote)


def _list(path: str, query: Query, which: Which, remote: Remote) -> dict[str, Any]:
    wanted = {**query, **which.query()}
    with remote.opened() as api:
        found, following = api.listed(path, "runs", wanted, most=which.limit, page=PAGE, cursor="cursor")
    return {"runs": found, "next": following}


def _print(found: dict[str, Any], head: list[str], row: Callable[[dict[str, Any]], list[Cell]], remote: Remote) -> None:
    if remote.as_json:
        show.document(found)
        return
    show.table(head, [row(run) for run in found["runs"]], whole=["run", "status"])
    if found["next"] is not None:
        show.console(stderr=True).print("there are more: --limit shows them, --since and --label choose among them")


# --- one run -----------------------------------------------------------------------------------------------


@app.command("show")
@grouped
def show_run(run: Run, remote: Remote) -> None:
    """Show a run: its graph, where each step stands, what went in and what came out."""
    with remote.opened() as api:
        found = watching.get_run(api, run)
        if remote.as_json:
            show.document(found)
            return
        print_run(api, found)


def print_run(api: Api, run: dict[str, Any]) -> None:
    out = show.console()
    out.print(render(watching.whole_view(api, run, out.width, Now(show.now())), out.width))
    for name in ("input", "output"):
        show.value(name, run.get(name))
    for name, step in run.get("steps", {}).items():
        failure = Failure.of(step.get("error"))
        if failure is not None and failure.stderr_tail:
            show.text(
                f"stderr of {name}, its last lines (all of it: fumehood runs logs {run['run_id']} {name})",
                failure.stderr_tail,
            )


@app.command("watch")
@grouped
def watch(run: Run, remote: Remote) -> None:
    """Follow a run on a live screen until it ends. Exits with 0 where it succeeded, and with 1 where it did not.

    Where stdout is no terminal, each event is a line.
    """
    with remote.opened() as api:
        watching.follow(api, run, as_json=remote.as_json)


@app.command("logs")
@grouped
def logs(
    run: Run,
    *,
    step: Annotated[str | None, typer.Argument(metavar="STEP", help="Only what is about this step.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run, or the sandbox, has ended.")
    ] = False,
    tail: Annotated[
        int | None,
        typer.Option("--tail", min=1, max=10_000, help="Of a sandbox: the last lines of each stream; else 500."),
    ] = None,
    remote: Remote,
) -> None:
    """Show the output of a run of an image or of a sandbox step. For other steps, and for whole runs of workflows, show
    what happened, a line for each event."""
    with remote.opened() as api:
        if step is None:
            is_sandbox = runs_output.single(api, run) is not None
        else:
            _check_step(api, run, step)
            is_sandbox = runs_output.is_sandbox(api, run, step)
        if is_sandbox:
            runs_output.print_output(api, run, step, follow=follow, tail=tail, as_json=remote.as_json)
            return
        if tail is not None:
            raise UsageError("--tail is for what a sandbox printed: name a step that is one")
        if follow:
            watching.print_events(api, run, as_json=remote.as_json, step=step)
            return
        out = show.console()
        for event in history(api, run):
            if step is None or watching.belongs(event, step):
                watching.print_event(event, out, as_json=remote.as_json)


def _check_step(api: Api, run: str, step: str) -> None:
    """A name that no step has would give nothing, which looks like an answer."""
    known = watching.get_run(api, run).get("steps", {})
    if known and step not in known:
        raise given.no_such("step", step, known)


@app.command("receipt")
@grouped
def receipt(
    run: Run,
    *,
    step: Annotated[
        str | None, typer.Argument(metavar="STEP", help="Of a workflow's run: the step that ran in a sandbox.")
    ] = None,
    out: receipt_out.Out = None,
    remote: Remote,
) -> None:
    """Give what the node signed about a run of an image, or about a sandbox step: `fumehood verify` checks it."""
    with remote.opened() as api:
        if step is None and runs_output.single(api, run) is None:
            raise UsageError(f"{run} is a run of a workflow, if there is one: name the step that ran in a sandbox, too")
        path = f"/runs/{part(run)}/receipt" if step is None else f"/v1/runs/{part(run)}/steps/{part(step)}/receipt"
        receipt_out.give(api.get(path), out)


@app.command("stop")
@grouped
def stop(
    run: Run,
    *,
    reason: Reason = "",
    force: Annotated[
        bool, typer.Option("--force", help="Also while it undoes what it did: what is left stays.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Until it has ended.")] = False,
    remote: Remote,
) -> None:
    """Ask a run to end. One that has ended stays as it is."""
    body: dict[str, Any] = {"reason": reason} | ({"force": True} if force else {})
    with remote.opened() as api:
        if not reason and not force and (single := runs_output.single(api, run)) is not None:
            answer, said = runs_output.stop(api, single, wait=wait)
        else:
            answer, said = api.post(f"/v1/runs/{part(run)}:cancel", body), "was asked to end"
            if wait:
                answer = watching.wait(api, run)
                said = f"has ended: {answer['status'].replace('_', ' ')}"
    remote.tell(answer, f"{run} {said}")


app.command("retry")(runs_repair.retry)
app.command("signal")(runs_repair.signal)
app.command("approve")(runs_repair.approve)
app.command("reject")(runs_repair.reject)
app.command("token")(runs_repair.token)
app.command("skip")(runs_repair.skip)
app.command("complete")(runs_repair.complete)
app.command("reindex")(runs_repair.reindex)
