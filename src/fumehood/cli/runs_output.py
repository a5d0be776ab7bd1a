"""The output of sandboxes, and runs of a single image (`fumehood run`), among the commands for runs."""

from __future__ import annotations

from typing import Any

from fumehood.cli import show
from fumehood.cli.client import Api, ApiError, part
from fumehood.cli.exits import UsageError
from fumehood.cli.output import Printed, Screen
from fumehood.cli.run_end import ENDED, end_of
from fumehood.cli.run_watch import get_run, until_ended
from fumehood.cli.stream import Patience
from fumehood.cli.watching import Complaints

OF_WORKFLOWS = "run-"
"""How the ids of runs of workflows begin, and those of single images do not."""
LINES = 500


def single(api: Api, run_id: str) -> dict[str, Any] | None:
    """The run, where somebody ran an image, and no workflow. What is neither is left to whoever looks for it next."""
    if run_id.startswith(OF_WORKFLOWS):
        return None
    try:
        return get_run(api, run_id)
    except ApiError as error:
        if error.status == 404:
            return None
        raise


def is_sandbox(api: Api, run_id: str, step: str) -> bool:
    """Whether the step is a sandbox."""
    try:
        api.get(_step_logs(run_id, step), {"tail_lines": 1})
    except ApiError as error:
        if error.status == 404:
            return False
        raise
    return True


def print_output(
    api: Api, run_id: str, step: str | None = None, *, follow: bool, tail: int | None, as_json: bool
) -> None:
    """The output of a run of a single image, or of a sandbox step in a run of a workflow."""
    path = f"/runs/{part(run_id)}/logs" if step is None else _step_logs(run_id, step)
    if follow and tail is not None:
        raise UsageError("--follow shows everything from the beginning: leave --tail away")
    screen = Screen()
    if follow:
        patience = Patience(Complaints.to(show.console(stderr=True)))
        for event in Printed(api, path, patience).events():
            if as_json:
                show.line(event)
            else:
                screen.show(event)
        if step is None and (said := _how_it_ended(until_ended(api, run_id, patience))):
            screen.say(said)
        return
    logs = api.get(path, {"tail_lines": tail or LINES})
    if as_json:
        show.document(logs)
        return
    for stream in ("stdout", "stderr"):
        screen.show({"event": stream, "text": logs[stream]})
    if logs["truncated"] and tail is None:
        screen.say("this is not all that it printed: --tail shows more lines, and --follow everything that is kept")


def _step_logs(run_id: str, step: str) -> str:
    return f"/v1/runs/{part(run_id)}/steps/{part(step)}/logs"


def _how_it_ended(run: dict[str, Any]) -> str:
    """Nothing for a success. The exit code, which says it all elsewhere, is not ours here."""
    if run["status"] == "succeeded":
        return ""
    end = end_of(run)
    return end.line or f"{run['run_id']} ended with exit code {end.code}"


def stop(api: Api, run: dict[str, Any], *, wait: bool) -> tuple[dict[str, Any], str]:
    """The run as it stands when this is over, and that in words. `run`: as it was before."""
    run_id = run["run_id"]
    if run["status"] in ENDED:
        return run, f"had ended already: {_words(run)}"
    api.post(f"/runs/{part(run_id)}/stop")
    if not wait:
        return get_run(api, run_id), "was asked to end"
    ended = until_ended(api, run_id, Patience())
    return ended, f"has ended: {_words(ended)}"


def _words(run: dict[str, Any]) -> str:
    return show.plain(str(run["status"])).replace("_", " ")
