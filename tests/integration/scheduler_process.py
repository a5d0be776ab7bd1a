"""A scheduler in a process of its own, in a time that passes quickly, which may die at the worst moment.

Input, one JSON object: where the broker is, the clock, and after which start to die, by a real SIGKILL between the
start of a run and the word that its time is done with.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from fumehood.broker.broker import NatsBroker
from fumehood.broker.connection import ConnectionOptions
from fumehood.control.callers import Caller
from fumehood.control.runs import Runs, Start
from fumehood.control.scheduler import Scheduler
from fumehood.control.workflows import Workflows
from tests.integration.engine_world import shape
from tests.waiting import past


@dataclass(frozen=True)
class QuickClock:
    """The same for all who have it: so much quicker than the machine's since `origin`."""

    origin: float
    speed: float

    def now_ms(self) -> int:
        return int((self.origin + (time.time() - self.origin) * self.speed) * 1000)

    async def sleep(self, seconds: float) -> None:
        await past(seconds / self.speed)


class DyingRuns(Runs):
    """Dies after so many starts; None: never."""

    left: int | None = None

    async def start_as(self, run_id: str, wish: Start, caller: Caller) -> None:
        await super().start_as(run_id, wish, caller)
        if self.left is not None:
            self.left -= 1
            if self.left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)


def said(options: ConnectionOptions, clock: QuickClock, starts: int | None) -> bytes:
    """The input of one process."""
    where = {name: getattr(options, name) for name in ("servers", "user", "password", "inbox_prefix")}
    return json.dumps({"options": where, "clock": asdict(clock), "starts": starts}).encode()


async def main(given: dict[str, Any]) -> None:
    clock = QuickClock(**given["clock"])
    options = ConnectionOptions(**{**given["options"], "servers": tuple(given["options"]["servers"])})
    broker = await NatsBroker.open(options, shape(1))
    runs = DyingRuns(broker, Workflows(broker, now_ms=clock.now_ms), now_ms=clock.now_ms)
    runs.left = given["starts"]
    await Scheduler(broker, runs, now_ms=clock.now_ms, sleep=clock.sleep).work()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.stdin.read())))
