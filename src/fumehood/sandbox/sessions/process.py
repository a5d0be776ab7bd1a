"""A command of a session, as this process knows it."""

from __future__ import annotations

import asyncio
import datetime as dt
from dataclasses import dataclass, field, replace
from pathlib import Path

from fumehood.sandbox.capture import STDERR, STDOUT
from fumehood.sandbox.sessions.output import Output
from fumehood.sandbox.sessions.records import ProcessRecord
from fumehood.sandbox.sessions.spool import Bounds, Spool
from fumehood.sandbox.sessions.values import Captured, ProcessFacts, ProcessWish
from fumehood.sandbox.spec import WORKSPACE, Command, End, Outcome, Stage

TERM = "xterm-256color"
SIDE_EFFECT = "it was killed with everything that ran in the session: another command's time was over"


@dataclass(slots=True, eq=False)
class Process:
    """Runs while `over` is not set. Whatever a record says of its end was stored before."""

    record: ProcessRecord
    output: Output
    over: asyncio.Event = field(default_factory=asyncio.Event)
    input: asyncio.Lock = field(default_factory=asyncio.Lock)
    task: asyncio.Task[None] | None = None
    decided: bool = False
    """How it ended is known, and about to be stored."""
    joined: bool = False
    """An earlier life of this process may have sent it."""
    signalled: bool = False
    """On somebody's wish."""
    used: float = 0.0
    """When it ended, or was last asked for, by the loop's clock."""
    stdin_bytes: int = 0

    @classmethod
    def of(cls, record: ProcessRecord, spool: Path, limit: int) -> Process:
        timeout_ms = record.wish.timeout_ms if record.wish is not None else 0
        output = Output(Spool(spool / str(record.serial), Bounds(limit)), timeout_ms / 1000 if timeout_ms else None)
        process = cls(record, output, stdin_bytes=record.stdin_bytes, signalled=record.signalled)
        process.touch()
        if record.outcome is not None:
            process.decided = True
            process.over.set()
            output.end()
        return process

    @property
    def running(self) -> bool:
        return not self.over.is_set()

    @property
    def kept(self) -> int:
        """Bytes of its output on disk."""
        return self.output.spool.kept

    def touch(self) -> None:
        """Somebody needs it."""
        self.used = asyncio.get_running_loop().time()

    @property
    def totals(self) -> tuple[int, int]:
        """Bytes of stdout and stderr so far; of the whole streams once it has ended."""
        record = self.record
        return self.output.spool.written if self.running else (record.stdout_bytes, record.stderr_bytes)

    def facts(self) -> ProcessFacts:
        record, (out, err) = self.record, self.totals
        return ProcessFacts(
            command_id=record.command_id,
            name=record.name,
            argv=record.argv,
            terminal=record.terminal,
            started_ms=record.started_ms,
            stdin_bytes=self.stdin_bytes,
            stdout_bytes=out,
            stderr_bytes=err,
            outcome=record.outcome if not self.running else None,
            detail=record.detail if not self.running else "",
            receipt=record.receipt if not self.running else "",
        )

    def captured(self, limit: int) -> Captured:
        spool, totals = self.output.spool, self.totals
        heads = spool.head(STDOUT, limit), spool.head(STDERR, limit)
        gone = any(len(head) < min(total, limit) for head, total in zip(heads, totals, strict=True))
        return Captured(*heads, *totals, gone=gone)

    def ended_with(self, outcome: Outcome, detail: str) -> ProcessRecord:
        """Its record with its end, not stored yet."""
        written = self.output.spool.written
        out, err = (
            end.total_bytes if end is not None else wrote
            for end, wrote in zip((outcome.stdout, outcome.stderr), written, strict=True)
        )
        return replace(
            self.record,
            wish=None,
            outcome=outcome,
            detail=detail or self._explained(outcome),
            stdin_bytes=self.stdin_bytes,
            stdout_bytes=out,
            stderr_bytes=err,
        )

    def _explained(self, outcome: Outcome) -> str:
        return SIDE_EFFECT if outcome.killed_by_owner and not self.signalled else ""


def command_of(wish: ProcessWish, env: dict[str, str], *, sweep: bool) -> Command:
    """What the supervisor is told. `env` is the session's own."""
    own = {"HOME": WORKSPACE} | ({"TERM": TERM} if wish.terminal is not None else {})
    return Command(
        argv=wish.argv,
        env={**own, **env, **wish.env},
        cwd=wish.cwd,
        timeout_ms=wish.timeout_ms,
        sweep=sweep,
        pty=wish.terminal,
        open_stdin=wish.stdin,
    )


def lost(started_ms: int) -> Outcome:
    """Nothing is known of how it ended, but that it has."""
    now = dt.datetime.now(dt.UTC)
    return Outcome(End.SANDBOX_LOST, started_at=min(now, from_ms(started_ms)), ended_at=now)


def refused(number: int) -> Outcome:
    """It never began."""
    now = dt.datetime.now(dt.UTC)
    return Outcome(End.NOT_STARTED, started_at=now, ended_at=now, errno=number, stage=Stage.FORK)


def from_ms(milliseconds: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)
