"""Runs of a single image (`fumehood run`) among the commands for runs: what they print, and their end."""

from __future__ import annotations

from typing import Any

from fumehood.cli import show
from fumehood.cli.client import Api, ApiError, part
from fumehood.cli.exits import UsageError
from fumehood.cli.output import Printed, Screen
from fumehood.cli.run_watch import get_run, until_ended
from fumehood.cli.stream import Patience
from fumehood.cli.watching import Complaints

OF_WORKFLOWS = "run-"
"""How the ids of runs of workflows begin, and those of single images do not."""
LINES = 500


def is_single(api: Api, run_id: str) -> bool:
    """Whether somebody ran an image, and no workflow. What is neither is left to whoever looks for it next."""
    if run_id.startswith(OF_WORKFLOWS):
        return False
    try:
        get_run(api, run_id)
    except ApiError as error:
        if error.status == 404:
            return False
        raise
    return True


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
    for event in Printed(api, run_id, Patience(Complaints(show.console(stderr=True)))).events():
        if as_json:
            show.line(event)
        else:
            screen.show(event)


def stop(api: Api, run_id: str, *, wait: bool) -> dict[str, Any]:
    """The run as it stands when this is over."""
    api.post(f"/runs/{part(run_id)}/stop")
    return until_ended(api, run_id, Patience()) if wait else get_run(api, run_id)
