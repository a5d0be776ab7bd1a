"""What people tell runs: signals, decisions, and repairs by hand. Each is recorded with who said it and why."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Annotated, Any

import typer

from fumehood.cli import given, show, watching
from fumehood.cli.client import Api, ApiError, InsecureHttp, KeyFile, Server, opened, part
from fumehood.cli.exits import CommandError
from fumehood.cli.show import Json

INDEX_SECONDS = 0.5
"""Between two looks at an index that is being made."""

Run = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
Step = Annotated[str, typer.Argument(metavar="STEP", help="The step's id.")]
Asking = Annotated[
    str | None,
    typer.Argument(metavar="STEP", help="The step that asks, where several do."),
]
Comment = Annotated[str, typer.Option(help="A word about it; it stands in the run's history.")]
Reason = Annotated[str, typer.Option(help="Why; it stands in the run's history.")]


def retry(
    run: Run,
    reason: Reason = "",
    watch: Annotated[bool, typer.Option("--watch", help="Follow it until it ends.")] = False,
    server: Server = None,
    key_file: KeyFile = None,
    insecure_http: InsecureHttp = False,
    as_json: Json = False,
) -> None:
    """Take up a run again that has failed, at the step that failed. What was done is not done again."""
    with opened(server, key_file, insecure_http) as api:
        answer = api.post(f"/v1/runs/{part(run)}:retry", {"reason": reason})
        if watch:
            watching.follow(api, run, as_json=as_json)
    _told(answer, f"{run} goes on", as_json)


def signal(
    run: Run,
    name: Annotated[str, typer.Argument(metavar="SIGNAL", help="The signal's name.")],
    data: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="What the step that waits for it will give; @FILE, or - for stdin."),
    ] = None,
    ident: Annotated[
        str | None, typer.Option("--id", help="The same id again is the same signal, and is told once.")
    ] = None,
    server: Server = None,
    key_file: KeyFile = None,
    insecure_http: InsecureHttp = False,
    as_json: Json = False,
) -> None:
    """Tell a run something that a step waits for, now or later."""
    body = {"data": given.json_value(data, "--data")} | ({"id": ident} if ident is not None else {})
    with opened(server, key_file, insecure_http) as api:
        answer = api.post(f"/v1/runs/{part(run)}/signals/{part(name)}", body)
    _told(answer, f"{run} was told {name}", as_json)


# --- approvals ---------------------------------------------------------------------------------------------


def approve(
    run: Run,
    step: Asking = None,
    comment: Comment = "",
    server: Server = None,
    key_file: KeyFile = None,
    insecure_http: InsecureHttp = False,
    as_json: Json = False,
) -> None:
    """Say yes to a step that waits for an approval."""
    _decide("approve", "approved", run, step, comment, server, key_file, insecure_http, as_json)


def reject(
    run: Run,
    step: Asking = None,
    comment: Comment = "",
    server: Server = None,
    key_file: KeyFile = None,
    insecure_http: InsecureHttp = False,
    as_json: Json = False,
) -> None:
    """Say no to a step that waits for an approval: it fails."""
    _decide("reject", "rejected", run, step, comment, server, key_file, insecure_http, as_json)


def _decide(
    verb: str,
    done: str,
    run: str,
    step: str | None,
    comment: str,
    server: Server,
    key_file: KeyFile,
    insecure_http: InsecureHttp,
    as_json: bool,
) -> None:
    with opened(server, key_file, insecure_http) as api:
        named = step if step is not None else _asking(api, run)
        answer = _of_step(api, run, named, verb, {"comment": comment})
    _told(answer, f"{named} of {run} is {done}", as_json)


def _asking(api: Api, run: str) -> str:
    """The one step that waits for an approval."""
    steps: dict[str, Any] = watching.get_run(api, run).get("steps", {})
    found = [name for name, step in steps.items() if step["status"] == "awaiting_approval"]
    if len(found) != 1:
        which = f"several steps of {run} wait for an approval: name one of {', '.join(found)}"
        raise CommandError(which if found else f"no step of {run} waits for an approval")
    return found[0]


def token(
    run: Run,
    step: Step,
    holder: Annotated[
        str, typer.Option("--for", metavar="NAME", help="Who will decide, as the history will name them.")
    ],
    expires: Annotated[str, typer.Option(metavar="DURATION", help="How long it can be used.")] = "1d",
    server: Server = None,
    key_file: KeyFile = None,
    insecure_http: InsecureHttp = False,
    as_json: Json = False,
) -> None:
    """Make a one-time token with which somebody without a key can approve or reject a step."""
    body = {"for": holder, "expires_in_seconds": given.seconds(expires, "--expires")}
    with opened(server, key_file, insecure_http) as api:
        answer = _of_step(api, run, step, "token", body)
    if as_json:
        show.document(answer)
        return
    typer.echo(answer["token"])
    show.console(stderr=True).print(f"until {show.local(answer.get('expires_at'))}; it is not shown again")


# --- by hand -----------------------------------------------------------------------------------------------

Needed = Annotated[str, typer.Option("--reason", help="Why; it stands in the run's history.")]


def skip(
    run: Run,
    step: Step,
    reason: Needed,
    server: Server = None,
    key_file: KeyFile = None,
    insecure_http: InsecureHttp = False,
    as_json: Json = False,
) -> None:
    """Decide by hand that a step is not done; those that need it go on."""
    with opened(server, key_file, insecure_http) as api:
        answer = _of_step(api, run, step, "skip", {"reason": reason})
    _told(answer, f"{step} of {run} is skipped", as_json)


def complete(
    run: Run,
    step: Step,
    reason: Needed,
    output: Annotated[
        str | None, typer.Option(metavar="JSON", help="What the step would have given; @FILE, or - for stdin.")
    ] = None,
    server: Server = None,
    key_file: KeyFile = None,
    insecure_http: InsecureHttp = False,
    as_json: Json = False,
) -> None:
    """Decide by hand what a step has given; those that need it go on."""
    body = {"reason": reason, "output": given.json_value(output, "--output")}
    with opened(server, key_file, insecure_http) as api:
        answer = _of_step(api, run, step, "complete", body)
    _told(answer, f"{step} of {run} is completed", as_json)


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


def _told(answer: Any, sentence: str, as_json: bool) -> None:
    """What was told may be safe with the broker, and still have its effect to come."""
    if as_json:
        show.document(answer)
        return
    later = isinstance(answer, dict) and answer.get("done") is False
    show.console().print(f"{sentence}, as soon as it is looked at" if later else sentence)


# --- the index ---------------------------------------------------------------------------------------------


class Source(StrEnum):
    SUMMARIES = "summaries"
    JOURNALS = "journals"


def reindex(
    source: Annotated[
        Source,
        typer.Option("--from", help="journals: also where the runs' summaries were lost or damaged; takes minutes."),
    ] = Source.SUMMARIES,
    wait: Annotated[bool, typer.Option("--wait", help="Until it is made.")] = False,
    server: Server = None,
    key_file: KeyFile = None,
    insecure_http: InsecureHttp = False,
    as_json: Json = False,
) -> None:
    """Make the index of runs of the server that answers anew. Lists are answered all the while."""
    with opened(server, key_file, insecure_http) as api:
        state = api.post("/v1/index:rebuild", {"from": source.value})
        while wait and state["state"] != "ready":
            time.sleep(INDEX_SECONDS)
            state = api.get("/v1/index")
    if as_json:
        show.document(state)
        return
    ready = state["state"] == "ready"
    show.console().print(f"the index is ready: {state['runs']} runs" if ready else "the index is being made anew")
