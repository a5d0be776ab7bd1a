"""What goes on beside the output of a run that somebody waits for: a wish to stop it, and a long wait in the queue."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Self

from fumehood.cli.client import Api, ApiError, part
from fumehood.cli.exits import CommandError, NoAnswerError
from fumehood.cli.leaving import Interrupts, insist
from fumehood.cli.output import Screen
from fumehood.cli.pulse import Pulse
from fumehood.cli.run_end import ENDED
from fumehood.cli.stream import SHORTEST_WAIT_SECONDS, Patience

QUEUED_SECONDS = 10.0
"""Without a start, whoever waits is told why."""
SANDBOX_TASK = "fumehood.sandbox"
"""What nodes take."""
QUEUED = "queued: no node has taken it yet"
PHASES = {"queued": QUEUED, "starting": "starting: a node fetches its image, unless it has it", "running": "running"}
PHASE_SECONDS = 1.0
MOST, PAGE = 10_000, 200
"""Workers and task types that are looked through."""


def get_run(api: Api, run_id: str) -> dict[str, Any]:
    run: dict[str, Any] = api.get(f"/runs/{part(run_id)}")
    return run


def until_ended(api: Api, run_id: str, patience: Patience) -> dict[str, Any]:
    """The run, once it says of itself that it has ended."""
    while True:
        try:
            run = get_run(api, run_id)
        except NoAnswerError as error:
            patience.went_wrong(error)
            continue
        patience.went_well()
        if run["status"] in ENDED:
            return run
        patience.sleep(SHORTEST_WAIT_SECONDS)


def stopping(api: Api, run_id: str, screen: Screen) -> Interrupts:
    """The first Ctrl-C asks for the run's end."""

    def stop(_: int) -> None:
        screen.say(
            f"asking the server to stop {run_id}: its command gets SIGTERM, and SIGKILL 10 s later; "
            "Ctrl-C again does not wait for its end"
        )
        insist(lambda: api.post(f"/runs/{part(run_id)}/stop"), screen, f"{run_id} could not be stopped")

    return Interrupts(stop)


class Phase:
    """Says on the pulse where a run is, asking the server once a second until it runs. Where nobody looks, nothing is
    asked."""

    def __init__(self, api: Api, run_id: str, pulse: Pulse, *, seconds: float = PHASE_SECONDS) -> None:
        self._api, self._run_id, self._pulse, self._seconds = api, run_id, pulse, seconds
        self._over = threading.Event()

    def __enter__(self) -> Self:
        if self._pulse.is_shown:
            threading.Thread(target=self._ask, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def _ask(self) -> None:
        while not self._over.wait(self._seconds):
            try:
                status = get_run(self._api, self._run_id)["status"]
            except CommandError:
                continue  # whoever reads the output tells that the server is away
            self._pulse.phase(PHASES.get(status, status))
            if status not in PHASES:
                return


class QueueNotice:
    """Tells, once, why nothing begins."""

    def __init__(self, api: Api, run_id: str, screen: Screen, *, seconds: float = QUEUED_SECONDS) -> None:
        self._api, self._run_id, self._screen = api, run_id, screen
        self._timer = threading.Timer(seconds, self._tell)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over()

    def over(self) -> None:
        self._timer.cancel()

    def _tell(self) -> None:
        try:
            status = get_run(self._api, self._run_id)["status"]
            if status == "queued":
                self._screen.say(f"{self._run_id} is queued: {why_queued(self._api)}")
            elif status == "starting":
                self._screen.say(f"{self._run_id} is starting: a node has it, and gets its image ready")
        except CommandError:
            return  # whoever reads the output tells that the server is away


def why_queued(api: Api) -> str:
    """What the directory knows, where this key may see it."""
    try:
        workers, _ = api.listed("/v1/workers", "workers", most=MOST, page=PAGE)
        types, _ = api.listed("/v1/task-types", "task_types", most=MOST, page=PAGE)
    except ApiError:
        return "no node has taken it yet"
    slots = [one["max_tasks"] for one in workers if SANDBOX_TASK in one["task_types"]]
    if not slots:
        return "no node is connected; it waits for one (`fumehood node` runs one, `fumehood worker ls` shows them)"
    waiting = sum(one["waiting"] for one in types if one["task_type"] == SANDBOX_TASK)
    nodes = "1 node" if len(slots) == 1 else f"{len(slots)} nodes"
    return f"{nodes} with {sum(slots)} slots, and {waiting} waiting for one"
