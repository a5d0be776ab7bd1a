"""Waiting for a job: until its verdict, with a word where nothing seems to happen."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any, Final

from fumehood.cli import show
from fumehood.cli.client import Api, part
from fumehood.cli.exits import CommandError, NoAnswerError
from fumehood.cli.leaving import Interrupts, insist
from fumehood.cli.output import Screen
from fumehood.cli.stream import Patience
from fumehood.cli.watching import Complaints

ENDED: Final = frozenset({"succeeded", "disputed", "failed", "timed_out", "cancelled"})
SHORT_SECONDS, LONG_SECONDS = 0.1, 1.0
"""Between two looks, at first and after a while."""
QUEUED_SECONDS: Final = 10.0
"""Without a beginning, whoever waits is told why."""


def until_ended(api: Api, job_id: str, screen: Screen) -> dict[str, Any]:
    """The job, once it says of itself that it has ended."""
    console = show.console(stderr=True)
    patience = Patience(Complaints.to(console))
    began, pause, is_told = time.monotonic(), SHORT_SECONDS, False
    with console.status(f"{job_id}: waiting for a provider") if console.is_terminal else nullcontext() as status:
        while True:
            try:
                job: dict[str, Any] = api.get(f"/v1/jobs/{part(job_id)}")
            except NoAnswerError as error:
                patience.went_wrong(error)
                continue
            patience.went_well()
            if job["status"] in ENDED:
                return job
            waited = time.monotonic() - began
            if job["status"] == "queued" and waited > QUEUED_SECONDS and not is_told:
                is_told = True
                screen.say(f"{job_id} is queued: {why_queued(api, job)}")
            if status is not None:
                status.update(f"{job_id}: {show.plain(job['status'])}, {show.lasted(waited)}")
            patience.sleep(pause)
            pause = min(pause * 1.5, LONG_SECONDS)


def why_queued(api: Api, job: dict[str, Any]) -> str:
    """What the directory knows, where this key may see it."""
    wanted = (job.get("verification") or {}).get("redundancy", 1)
    try:
        known = api.get("/v1/providers")["providers"]
    except CommandError:
        return "no provider has taken it yet"
    able = [one for one in known if one["present"] and not one.get("set_aside") and job["job_type"] in one["job_types"]]
    said = f"{len(able)} of the {wanted} distinct providers that it wants are there"
    return said if len(able) < wanted else f"{said}, and all of them are busy"


def asking(api: Api, job_id: str, screen: Screen) -> Interrupts:
    """The first Ctrl-C asks for the job's end."""

    def cancel(_: int) -> None:
        screen.say(f"asking the server to cancel {job_id}; Ctrl-C again does not wait for its end")
        insist(lambda: api.post(f"/v1/jobs/{part(job_id)}:cancel"), screen, f"{job_id} could not be cancelled")

    return Interrupts(cancel)
