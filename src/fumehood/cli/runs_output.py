"""Runs of a single image (`fumehood run`) among the commands for runs: what they print, and their end."""

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


def print_output(api: Api, run_id: str, *, follow: bool, tail: int | None, as_json: bool) -> None:
    if follow and tail is not None:
        raise UsageError("--follow shows everything from the beginning: leave --tail away")
    if follow:
        _follow(api, run_id, as_json=as_json)
        return
    logs = api.get(f"/runs/{part(run_id)}/logs", {"tail_lines": tail or LINES})
    if as_json:
        show.document(logs)
        return
    screen = Screen()
    for stream in ("stdout", "stderr"):
        screen.show({"event": stream, "text": logs[stream]})
    if logs["truncated"] and tail is None:
        screen.say("this is not all that it printed: --tail shows more lines, and --follow everything that is kept")


def _follow(api: Api, run_id: str, *, as_json: bool) -> None:
    screen = Screen()
    patience = Patience(Complaints.to(show.console(stderr=True)))
    for event in Printed(api, run_id, patience).events():
        if as_json:
            show.line(event)
        else:
            screen.show(event)
    if said := _how_it_ended(until_ended(api, run_id, patience)):
        screen.say(said)


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
