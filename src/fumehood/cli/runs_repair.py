"""What people tell runs: signals, decisions, and repairs by hand. Each is recorded with who said it and why."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from fumehood.cli import given, show, watching
from fumehood.cli.client import Api, ApiError, part
from fumehood.cli.exits import CommandError
from fumehood.cli.options import Reason, Remote, Run, grouped

INDEX_SECONDS = 0.5
"""Between two looks at an index that is being made."""

Step = Annotated[str, typer.Argument(metavar="STEP", help="The step's id.")]
Asking = Annotated[
    str | None,
    typer.Argument(metavar="STEP", help="The step that asks, where several do."),
]
Comment = Annotated[str, typer.Option(help="A word about it; it stands in the run's history.")]


@grouped
def retry(
    run: Run,
    *,
    reason: Reason = "",
    watch: Annotated[bool, typer.Option("--watch", help="Follow it until it ends.")] = False,
    remote: Remote,
) -> None:
    """Take up a run again that has failed, at the step that failed. What was done is not done again."""
    with remote.opened() as api:
        answer = api.post(f"/v1/runs/{part(run)}:retry", {"reason": reason})
        if watch:
            watching.follow(api, run, as_json=remote.as_json)
    _told(answer, f"{run} goes on", remote)


@grouped
def signal(
    run: Run,
    name: Annotated[str, typer.Argument(metavar="SIGNAL", help="The signal's name.")],
    *,
    data: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="What the step that waits for it will give; @FILE, or - for stdin."),
    ] = None,
    ident: Annotated[
        str | None, typer.Option("--id", help="The same id again is the same signal, and is told once.")
    ] = None,
    remote: Remote,
) -> None:
    """Tell a run something that a step waits for, now or later."""
    body = {"data": given.json_value(data, "--data")} | ({"id": ident} if ident is not None else {})
    with remote.opened() as api:
        answer = api.post(f"/v1/runs/{part(run)}/signals/{part(name)}", body)
    _told(answer, f"{run} was told {name}", remote)


# --- approvals ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Decided:
    """What is decided about, and a word on it."""

    run: Run
    step: Asking = None
    comment: Comment = ""


@grouped
def approve(decided: Decided, remote: Remote) -> None:
    """Say yes to a step that waits for an approval."""
    _decide("approve", "approved", decided, remote)


@grouped
def reject(decided: Decided, remote: Remote) -> None:
    """Say no to a step that waits for an approval: it fails."""
    _decide("reject", "rejected", decided, remote)


def _decide(verb: str, done: str, decided: Decided, remote: Remote) -> None:
    run = decided.run
    with remote.opened() as api:
        step = decided.step if decided.step is not None else _asking(api, run)
        answer = _of_step(api, run, step, verb, {"comment": decided.comment})
    _told(answer, f"{step} of {run} is {done}", remote)


def _asking(api: Api, run: str) -> str:
    """The one step that waits for an approval."""
    steps: dict[str, Any] = watching.get_run(api, run).get("steps", {})
    found = [name for name, step in steps.items() if step["status"] == "awaiting_approval"]
    if len(found) != 1:
        which = f"several steps of {run} wait for an approval: name one of {', '.join(found)}"
        raise CommandError(which if found else f"no step of {run} waits for an approval")
    return found[0]


@grouped
def token(
    run: Run,
    step: Step,
    holder: Annotated[
        str, typer.Option("--for", metavar="NAME", help="Who will decide, as the history will name them.")
    ],
    *,
    expires: Annotated[str, typer.Option(metavar="DURATION", help="How long it can be used.")] = "1d",
    remote: Remote,
) -> None:
    """Make a one-time token with which somebody without a key can approve or reject a step."""
    body = {"for": holder, "expires_in_seconds": given.seconds(expires, "--expires")}
    with remote.opened() as api:
        answer = _of_step(api, run, step, "token", body)
    if remote.as_json:
        show.document(answer)
        return
    typer.echo(answer["token"])
    show.console(stderr=True).print(f"until {show.local(answer.get('expires_at'))}; it is not shown again")


# --- by hand -----------------------------------------------------------------------------------------------


@grouped
def skip(run: Run, step: Step, reason: Reason, remote: Remote) -> None:
    """Decide by hand that a step is not done; those that need it go on."""
    with remote.opened() as api:
        answer = _of_step(api, run, step, "skip", {"reason": reason})
    _told(answer, f"{step} of {run} is skipped", remote)


@grouped
def complete(
    run: Run,
    step: Step,
    reason: Reason,
    *,
    output: Annotated[
        str | None, typer.Option(metavar="JSON", help="What the step would have given; @FILE, or - for stdin.")
    ] = None,
    remote: Remote,
) -> None:
    """Decide by hand what a step has given; those that need it go on."""
    body = {"reason": reason, "output": given.json_value(output, "--output")}
    with remote.opened() as api:
        answer = _of_step(api, run, step, "complete", body)
    _told(answer, f"{step} of {run} is completed", remote)


def _of_step(api: Api, run: str, step: str, verb: str, body: dict[str, Any]) -> Any:
    """An order about a step; a name that it has not is told apart from a run that is not there."""
    try:
        return api.post(f"/v1/runs/{part(run)}/steps/{part(step)}:{verb}", body)
    except ApiError as error:
        if error.status == 404:
            known = watching.get_run(api, run).get("steps", {})
            if known and step not in known:
                raise given.no_such("step", step, known) from None
        raise


def _told(answer: Any, sentence: str, remote: Remote) -> None:
    """What was told may be safe with the broker, and still have its effect to come."""
    later = isinstance(answer, dict) and answer.get("done") is False
    remote.tell(answer, f"{sentence}, as soon as it is looked at" if later else sentence)


# --- the index ---------------------------------------------------------------------------------------------


class Source(StrEnum):
    SUMMARIES = "summaries"
    JOURNALS = "journals"


@grouped
def reindex(
    *,
    source: Annotated[
        Source,
        typer.Option("--from", help="journals: also where the runs' summaries were lost or damaged; takes minutes."),
    ] = Source.SUMMARIES,
    wait: Annotated[bool, typer.Option("--wait", help="Until it is made.")] = False,
    remote: Remote,
) -> None:
    """Make the index of runs of the server that answers anew. Lists are answered all the while."""
    with remote.opened() as api:
        state = api.post("/v1/index:rebuild", {"from": source.value})
        while wait and state["state"] != "ready":
            time.sleep(INDEX_SECONDS)
            state = api.get("/v1/index")
    ready = state["state"] == "ready"
    remote.tell(state, f"the index is ready: {state['runs']} runs" if ready else "the index is being made anew")
