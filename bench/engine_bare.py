"""The bare loop: appends, publishes, consumes and acks what the engine would, and decides nothing.

For each message: the next record behind the last one (with the expected sequence, so that the server checks as much),
then the next task, then the ack. It waits where the engine must wait too: the task goes out when the record is stored,
the ack when the task is.
"""

from __future__ import annotations

import asyncio

from nats.aio.msg import Msg

from bench.engine_wire import Pull, Wire
from bench.engine_work import STEPS, TASK_TYPE, Script, script

_EXPECTED = "Nats-Expected-Last-Subject-Sequence"
GROUP = "deciders"


class BareLoop:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._script: Script = script()
        self._runs: dict[str, tuple[int, int]] = {}
        """For each run, the number of its records and the sequence of the last one."""
        self._busy: set[asyncio.Task[None]] = set()
        self.decisions = 0

    async def start(self) -> None:
        for stream in ("RUN_0", "HISTORY_0"):
            await Pull(self._wire, stream, GROUP, self._receive, group=GROUP).start()

    async def _receive(self, message: Msg) -> None:
        task = asyncio.create_task(self._handle(message))
        self._busy.add(task)
        task.add_done_callback(self._busy.discard)

    async def _handle(self, message: Msg) -> None:
        run_id = message.subject.rpartition(".")[2]
        number, last = self._runs.get(run_id, (0, 0))
        record_id = f"{run_id}.{last}.0123456789abcdef"
        headers = {"Fumehood-Id": record_id, _EXPECTED: str(last)}
        seq = await self._wire.store(f"journal.0.{run_id}", self._script.record(run_id, number), headers)
        self.decisions += 1
        if number < STEPS:
            self._runs[run_id] = number + 1, seq
            await self._publish(run_id, number)
        else:
            del self._runs[run_id]
        await self._wire.publish(message.reply, b"+ACK")

    async def _publish(self, run_id: str, number: int) -> None:
        message_id = f"{run_id}.s{number}.a1.i0"
        headers = {"Fumehood-Id": message_id, "Nats-Msg-Id": f"{TASK_TYPE}/{run_id}/{message_id}"}
        await self._wire.store(f"task.{TASK_TYPE}.{run_id}", self._script.task(run_id, number), headers)
