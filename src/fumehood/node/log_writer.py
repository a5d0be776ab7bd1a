"""Tells a task's output to the broker as it appears. Never at the task's cost: a broker that is away is waited for, and
what could not be told while it ran is told at its end, or not at all; the kept copy goes with the answer.
"""

from __future__ import annotations

import asyncio

from fumehood.broker.ports import LogKind, LogName, LogPlace, LogRecord, RunLogs
from fumehood.broker.topology import LOG_PIECE
from fumehood.errors import BrokerError
from fumehood.node.task_output import LIVE_BYTES, TaskOutput
from fumehood.sandbox.capture import STDERR, STDOUT
from fumehood.sandbox.head_tail import TAIL_BYTES
from fumehood.wire.logs import LogCut, LogEnd, LogStart, LogStream

GATHER_SECONDS = 0.05
"""Small writes within this time are told together."""
RETRY_SECONDS = 1.0
FINISH_SECONDS = 8.0
"""How long a finished task waits to tell the rest: its answer is more urgent."""
_STREAMS = {STDOUT: (LogKind.OUT, LogStream.STDOUT), STDERR: (LogKind.ERR, LogStream.STDERR)}


class LogWriter:
    """One log, from wherever an earlier writer stopped."""

    def __init__(self, logs: RunLogs, name: LogName, output: TaskOutput) -> None:
        self._logs = logs
        self._name = name
        self._output = output
        self._at: LogPlace | None = None
        self._cut: set[int] = set()

    async def follow(self, start: LogStart) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._begin(start)
                while True:
                    self._output.changed.clear()
                    await self._tell_live()
                    await self._output.changed.wait()
                    await asyncio.sleep(GATHER_SECONDS)
            except BrokerError:
                self._at = None  # what was stored is found out anew
            await asyncio.sleep(RETRY_SECONDS)

    async def finish(self, start: LogStart, end: LogEnd) -> bool:
        """Tell the rest; whether there was time for all of it."""
        try:
            async with asyncio.timeout(FINISH_SECONDS):
                await self._begin(start)
                await self._tell_live()
                await self._tell_tails()
                assert self._at is not None
                await self._logs.append(self._name, LogRecord(LogKind.END, self._at, end.encode()))
        except (BrokerError, TimeoutError):
            return False
        return True

    async def _begin(self, start: LogStart) -> None:
        if self._at is not None:
            return
        last = await self._logs.last(self._name)
        if last is None:
            await self._logs.append(self._name, LogRecord(LogKind.START, LogPlace(), start.encode()))
        self._at = last.record.after if last is not None else LogPlace()

    async def _tell_live(self) -> None:
        for stream in _STREAMS:
            total = self._output.total(stream)
            await self._tell(stream, min(total, LIVE_BYTES))
            if total > LIVE_BYTES and stream not in self._cut:
                await self._append(LogKind.CUT, LogCut(stream=_STREAMS[stream][1], kept=LIVE_BYTES).encode())
                self._cut.add(stream)

    async def _tell_tails(self) -> None:
        for stream in _STREAMS:
            total = self._output.total(stream)
            if total > LIVE_BYTES and self._told(stream) < total - TAIL_BYTES:
                self._jump(stream, total - TAIL_BYTES)
            await self._tell(stream, total)

    async def _tell(self, stream: int, until: int) -> None:
        while (at := self._told(stream)) < until:
            data = await asyncio.to_thread(self._output.read, stream, at, min(LOG_PIECE, until - at))
            await self._append(_STREAMS[stream][0], data)

    async def _append(self, kind: LogKind, data: bytes) -> None:
        assert self._at is not None
        record = LogRecord(kind, self._at, data)
        await self._logs.append(self._name, record)
        self._at = record.after

    def _told(self, stream: int) -> int:
        assert self._at is not None
        return self._at.stdout if stream == STDOUT else self._at.stderr

    def _jump(self, stream: int, to: int) -> None:
        assert self._at is not None
        self._at = LogPlace(to, self._at.stderr) if stream == STDOUT else LogPlace(self._at.stdout, to)
