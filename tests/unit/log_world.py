"""A run with one sandbox step whose journal and output a test writes itself, as an engine and a node would."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fumehood.broker.names import NODES_TENANT
from fumehood.broker.ports import Broker, LogKind, LogName, LogPlace, LogRecord
from fumehood.control import records
from fumehood.control.event_streams import EventOptions
from fumehood.control.events import Events
from fumehood.control.run_logs import RunLogReader, Shown
from fumehood.control.runs import Runs
from fumehood.control.workflows import Workflows
from fumehood.engine import definition
from fumehood.engine.events import (
    Event,
    Record,
    RunCancelled,
    RunFailed,
    RunStarted,
    RunSucceeded,
    StepCompleted,
    StepFailed,
    StepQueued,
    StepRetrying,
)
from fumehood.engine.state import Failure, RunState
from fumehood.sandbox.head_tail import HeadTail
from fumehood.sandbox.kept_logs import KeptLogs
from fumehood.wire.event_api import Message
from fumehood.wire.log_api import LogPosition
from fumehood.wire.logs import LogEnd, LogStart
from fumehood.wire.sandbox import RUN_STEP, RunEnd, RunReason, SandboxReport, StreamReport
from tests.unit.event_world import Reader, caller, reading

AT = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
START = LogRecord(LogKind.START, data=LogStart(started_at=AT, node="n1").encode())
_READ = definition.parse(f"name: w\nsteps:\n  - {{id: {RUN_STEP}, sandbox: {{image: a/b:c}}}}\n")
OUT, ERR = LogKind.OUT, LogKind.ERR

Pieces = Sequence[tuple[LogKind, bytes]]


def told(pieces: Pieces) -> list[LogRecord]:
    """The records of a log that was not cut."""
    made, at = [START], LogPlace()
    for kind, data in pieces:
        made.append(LogRecord(kind, at, data))
        at = made[-1].after
    return [*made, LogRecord(LogKind.END, at, LogEnd(reason=RunReason.EXIT).encode())]


def whole(pieces: Pieces, kind: LogKind) -> bytes:
    return b"".join(data for one, data in pieces if one is kind)


class LogWorld:
    def __init__(self, broker: Broker, run_id: str = "run-1", **options: Any) -> None:
        self.broker, self.run_id = broker, run_id
        self.runs = Runs(broker, Workflows(broker, now_ms=lambda: 0), now_ms=lambda: 0)
        self.events = Events(broker, self.runs, EventOptions(**options))
        self.reader = RunLogReader(broker, self.runs)

    async def write(self, *events: Event) -> None:
        """One more record of the journal."""
        last = await self.broker.journal.last(self.run_id)
        after = 0 if last is None else last.seq
        _, data = await records.keep(Record(1_700_000_000_000, events), self.broker.blobs())
        await self.broker.journal.append(self.run_id, records.name(self.run_id, after, data), data, expected=after)

    async def begin(self) -> None:
        await self.write(RunStarted(json.loads(_READ.canonical()), _READ.digest, None), StepQueued(RUN_STEP, 1, 0))

    async def retry(self, attempt: int) -> None:
        await self.write(StepRetrying(RUN_STEP, attempt, Failure("node_lost"), 0), StepQueued(RUN_STEP, attempt + 1, 0))

    async def print(self, *told: LogRecord, attempt: int = 1) -> None:
        for record in told:
            await self.broker.logs.append(LogName(self.run_id, RUN_STEP, attempt), record)

    async def end(
        self, pieces: Pieces = (), *, attempt: int = 1, fails: bool = False, stored: bool = True, **changes: Any
    ) -> None:
        """The node's report is taken."""
        kept = [HeadTail(), HeadTail()]
        for kind, data in pieces:
            kept[kind is ERR].push(data)
        logs = KeptLogs(kept[0].kept, kept[1].kept)
        report = SandboxReport(
            status=RunEnd.SUCCEEDED,
            reason=RunReason.EXIT,
            started_at=AT,
            node="n1",
            stdout=whole(pieces, OUT)[:8].decode(errors="replace"),
            stderr=whole(pieces, ERR)[:8].decode(errors="replace"),
            streams={
                "stdout": StreamReport(total_bytes=logs.stdout.total),
                "stderr": StreamReport(total_bytes=logs.stderr.total),
            },
            logs=await self.broker.blobs(NODES_TENANT).put(logs.encode()) if stored else None,
        )
        said = report.model_copy(update=changes).model_dump(mode="json", exclude_none=True)
        if fails:
            failure = Failure("exit", "", said)
            await self.write(StepFailed(RUN_STEP, attempt, failure), RunFailed(Failure("exit"), RUN_STEP))
        else:
            await self.write(StepCompleted(RUN_STEP, attempt, said), RunSucceeded(None))

    async def cancel(self) -> None:
        await self.write(RunCancelled())

    async def lose(self, attempt: int = 1) -> None:
        failure = Failure("node_lost")
        await self.write(StepFailed(RUN_STEP, attempt, failure), RunFailed(failure, RUN_STEP))

    async def shown(self, **given: Any) -> Shown:
        state = await self.runs.get(self.run_id, caller())
        return await self.reader.kept(self.run_id, state if isinstance(state, RunState) else None, **given)

    @asynccontextmanager
    async def following(self, after: str | None = None) -> AsyncIterator[Reader]:
        position = None if after is None else LogPosition.parse(after)
        stream = await self.events.of_logs(self.run_id, caller(), position)
        assert stream is not None
        async with reading(stream) as reader:
            yield reader

    async def follow(self, after: str | None = None) -> list[Message]:
        async with self.following(after) as reader:
            return await reader.rest()

    async def is_all_seen(self, after: str) -> bool:
        stream = await self.events.of_logs(self.run_id, caller(), LogPosition.parse(after))
        if stream is not None:
            await stream.close()
        return stream is None


class Client:
    """Puts together what it is told, and checks that every event goes on where the last one of its kind stopped."""

    def __init__(self) -> None:
        self.text = {"stdout": "", "stderr": ""}
        self.at = {"stdout": 0, "stderr": 0}
        self.cuts: list[tuple[str, int, int | None]] = []
        self.starts: list[int] = []
        self.last_id: str | None = None
        self.end: dict[str, Any] | None = None

    def take(self, message: Message) -> None:
        said = json.loads(message.data)
        assert message.event is not None
        if message.event == "end":
            self.end = said
            return
        assert message.id is not None
        attempt, stdout, stderr = (int(part) for part in message.id.split("."))
        self.last_id = message.id
        if message.event == "start":
            self.starts.append(said["attempt"])
            self.at = {"stdout": 0, "stderr": 0}
        elif message.event == "cut":
            self.cuts.append((said["stream"], said["offset"], said["resumes_at"]))
            assert said["offset"] == self.at[said["stream"]]
            self.at[said["stream"]] = said["resumes_at"] if said["resumes_at"] is not None else said["offset"]
        else:
            assert said["offset"] == self.at[message.event], "a gap, or a repetition"
            assert said["text"]
            self.text[message.event] += said["text"]
            self.at[message.event] = stdout if message.event == "stdout" else stderr
        assert (attempt, self.at["stdout"], self.at["stderr"]) == (self.starts[-1], stdout, stderr)
