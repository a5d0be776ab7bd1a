"""A world in which everything goes wrong, the same way each time for the same seed.

The real decider, the real engine and the in-memory broker run under a scheduler that crashes processes at any call,
loses requests and answers, and delays, doubles, reorders and drops deliveries. Time moves only when nobody can. After
every append the journal is folded anew and held against what must never happen.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from fumehood.broker.clock import ManualClock
from fumehood.broker.handout import Handouts, Leased
from fumehood.broker.lease import Lease
from fumehood.broker.memory import Faults, MemoryBroker, MemoryServer, Verdict
from fumehood.broker.ports import Bucket
from fumehood.control import intake, loading
from fumehood.control.decider import Decider
from fumehood.engine import definition
from fumehood.engine.events import Record, StepCompleted
from fumehood.engine.fold import fold
from fumehood.engine.messages import MessageType
from fumehood.engine.state import RunState, RunStatus, StepState
from fumehood.errors import BrokerError, LeaseLostError

LONGEST_MS = 7 * 86_400_000
SNAPSHOT_EVERY = 6
CANCEL_MS = 300_000
"""When a cancel has surely arrived, in any weather."""
TASK_TYPES = ["t", "llm", "dead", definition.SANDBOX_TASK]


class Crashed(BaseException):
    """This process is gone, at whatever line it was."""


class BrokenError(AssertionError):
    """Something that must never happen happened."""


@dataclass
class Chaos:
    """How bad the weather is."""

    crash: float = 0.004
    lost: float = 0.02
    unanswered: float = 0.02
    late: float = 0.1
    doubled: float = 0.1
    dropped: float = 0.03
    cut_off: float = 0.001


class StormyFaults(Faults):
    """One process's connection in bad weather."""

    def __init__(self, draw: random.Random, chaos: Chaos, clock: ManualClock) -> None:
        self._draw = draw
        self._chaos = chaos
        self._clock = clock
        self._cut_off_until = 0.0

    async def call(self, operation: str, subject: str) -> Verdict:
        for _ in range(self._draw.randint(0, 3)):
            await asyncio.sleep(0)
        if self._clock.now() < self._cut_off_until:
            return Verdict.LOST
        if self._draw.random() < self._chaos.cut_off:
            self._cut_off_until = self._clock.now() + self._draw.random() * 60
            return Verdict.LOST
        luck = self._draw.random()
        if luck < self._chaos.crash:
            raise Crashed
        if luck < self._chaos.crash + self._chaos.lost:
            return Verdict.LOST
        if luck < self._chaos.crash + self._chaos.lost + self._chaos.unanswered:
            return Verdict.UNANSWERED
        return Verdict.OK

    def arrivals(self, consumer: str, message_id: str) -> Sequence[float]:
        luck = self._draw.random()
        if luck < self._chaos.dropped:
            return ()
        if luck < self._chaos.dropped + self._chaos.doubled:
            return (0.0, self._draw.random() * 5)
        if luck < self._chaos.dropped + self._chaos.doubled + self._chaos.late:
            return (self._draw.random() * 10,)
        return (0.0,)

    def order(self, consumer: str, waiting: int) -> Sequence[int]:
        numbers = list(range(waiting))
        self._draw.shuffle(numbers)
        return numbers


@dataclass
class Report:
    """What happened in one world."""

    statuses: list[str] = field(default_factory=list)
    crashes: int = 0
    conflicts: int = 0
    decisions: int = 0
    rederived: int = 0
    poisoned: int = 0
    lost: int = 0
    faults: int = 0
    virtual_seconds: float = 0.0


class World:
    def __init__(self, seed: int, *, runs: int = 3, deciders: int = 2, workers: int = 2) -> None:
        self._draw = random.Random(seed)
        self._chaos = Chaos()
        self._clock = ManualClock()
        self._server = MemoryServer(self._clock, partitions=self._draw.choice([1, 4]))
        self._calm = MemoryBroker(self._server)
        self._deciders = deciders
        self._workers = workers
        self._runs = [f"run-{number}" for number in range(runs)]
        self._said: dict[tuple[str, str, int], list[Any]] = {}
        self._seen: dict[str, int] = {}
        self._states: dict[str, RunState] = {}
        self._cancelled: dict[str, int] = {}
        self.report = Report()

    # --- the whole -----------------------------------------------------------------------------------------

    async def live(self) -> Report:
        """Until every run has ended, and then until nothing moves any more."""
        began = self._clock.now()
        for run_id in self._runs:
            await self._start(run_id)
        processes = [asyncio.create_task(self._decider()) for _ in range(self._deciders)]
        processes += [asyncio.create_task(self._worker(number)) for number in range(self._workers)]
        try:
            while not self._all_ended():
                await self._settle()
                await self._check()
                for process in processes:
                    if process.done():
                        process.result()
                self._tick(began)
            self._calm_down()
            await self._tidy(began)
        finally:
            for process in processes:
                process.cancel()
            await asyncio.gather(*processes, return_exceptions=True)
        await self._check()
        self.report.virtual_seconds = self._clock.now() - began
        return self.report

    def _calm_down(self) -> None:
        for name in vars(self._chaos):
            setattr(self._chaos, name, 0.0)

    async def _tidy(self, began: float) -> None:
        """Good weather for an hour: whatever was left lying about must be gone by then."""
        until = self._clock.now() + 3600
        while (due := self._clock.next_at()) is not None and due < until:
            self._clock.advance_to(due)
            await self._settle()
        await self._check()
        for run_id in self._runs:
            await self._check_tidy(run_id)

    async def _check_tidy(self, run_id: str) -> None:
        if left := await self._calm.timers.pending(run_id):
            raise BrokenError(f"{run_id} has ended, and a timer is still set: {left}")
        if left_tasks := await self._calm.tasks.pending(run_id, TASK_TYPES):
            raise BrokenError(f"{run_id} has ended, and tasks of it are still in the queue: {left_tasks}")
        for entry in await self._calm.bucket(Bucket.LEASES).entries(run_id):
            lease = Lease.decode(entry)
            if lease is None or (lease.held and self._now_ms() < lease.expires_ms):
                raise BrokenError(f"{run_id} has ended, and somebody still holds a task of it: {lease}")
        state = self._states[run_id]
        asked = self._cancelled.get(run_id, self._now_ms())
        if (state.ended_at or 0) > asked + CANCEL_MS and state.status is not RunStatus.CANCELLED:
            raise BrokenError(f"{run_id} was to be cancelled, and went on")
        summary = await self._calm.bucket(Bucket.SUMMARIES).get(run_id)
        if summary is None or json.loads(summary.value)["status"] != self._states[run_id].status.value:
            raise BrokenError(f"{run_id} has ended, and its summary does not say so")

    def _tick(self, began: float) -> None:
        due = self._clock.next_at()
        if due is None:
            raise BrokenError("nothing moves and no timer is set: a run hangs")
        if (due - began) * 1000 > LONGEST_MS:
            raise BrokenError("a week has passed and a run has not ended")
        self._clock.advance_to(due)

    async def _settle(self) -> None:
        """Until nobody can move but by time: the loop has nothing ready any more."""
        ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        while ready:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)

    async def _start(self, run_id: str) -> None:
        read = definition.parse(random_workflow(self._draw))
        given = list(range(self._draw.randint(0, 4)))
        body = {"definition": json.loads(read.canonical()), "digest": read.digest, "input": given}
        await self._calm.mailboxes.send(run_id, f"{run_id}.start", intake.encode(MessageType.START, body))
        if self._draw.random() < 0.1:
            cancel = intake.encode(MessageType.CANCEL, {"reason": "no longer needed"})
            at = int(self._clock.now() * 1000) + self._draw.randint(0, 60_000)
            await self._calm.timers.set(run_id, "cancel", at, f"{run_id}.cancel", cancel)
            self._cancelled[run_id] = at

    def _all_ended(self) -> bool:
        ended = [state.status.value for state in self._states.values() if state.status.ended]
        self.report.statuses = ended
        return len(ended) == len(self._runs)

    # --- processes -----------------------------------------------------------------------------------------

    def _connect(self) -> MemoryBroker:
        return MemoryBroker(self._server, faults=StormyFaults(self._draw, self._chaos, self._clock))

    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)

    async def _decider(self) -> None:
        """A decider that is started again whenever it dies."""
        while True:
            decider = Decider(self._connect(), now_ms=self._now_ms, sleep=self._pause, pull_seconds=60.0)
            loops = [asyncio.create_task(self._serve(decider, number)) for number in range(self._server.partitions)]
            try:
                await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
                for loop in loops:
                    loop.cancel()
                ends = await asyncio.gather(*loops, return_exceptions=True)
                for end in ends:
                    if isinstance(end, Exception) and not isinstance(end, asyncio.CancelledError):
                        raise end
            finally:
                for loop in loops:
                    loop.cancel()
                self.report.conflicts += decider.counters.conflicts
                self.report.decisions += decider.counters.decisions
                self.report.rederived += decider.counters.rederived
                self.report.faults += decider.counters.failed
            await self._pause(self._draw.random() * 10)

    async def _serve(self, decider: Decider, partition: int) -> None:
        """One partition, until the process dies: then this simply returns, whatever it was doing."""
        try:
            await decider.work(partition)
        except Crashed:
            self.report.crashes += 1

    async def _worker(self, number: int) -> None:
        """A worker that is started again whenever it dies."""
        while True:
            handouts = Handouts(self._connect(), now_ms=self._now_ms)
            try:
                while True:
                    try:
                        await self._take(handouts, f"worker-{number}")
                    except BrokerError:
                        await self._pause(1.0)
            except Crashed:
                self.report.crashes += 1
                await self._pause(self._draw.random() * 20)
            self.report.poisoned += handouts.counts["poison"]

    async def _take(self, handouts: Handouts, worker_id: str) -> None:
        for leased in await handouts.take(TASK_TYPES, max_tasks=4, timeout=60.0, worker_id=worker_id):
            try:
                await self._do(handouts, leased)
            except LeaseLostError:
                self.report.lost += 1

    async def _pause(self, seconds: float) -> None:
        bell = asyncio.Event()
        self._clock.call_at(self._clock.now() + seconds, bell.set)
        await bell.wait()

    async def _do(self, handouts: Handouts, leased: Leased) -> None:
        mood = self._draw.random()
        if mood < 0.05 or leased.lease.task_type == "dead":
            return  # it never answers: the lease runs out
        lease = leased.lease
        if mood < 0.2:
            await self._pause(self._draw.random() * 30)
        if mood > 0.9:
            lease = await handouts.checkpoint(lease, {"at": self._now_ms()})
        if 0.85 < mood < 0.9 and not leased.task.resumption:
            await handouts.pause(lease, self._draw.randint(1, 60_000), {"left": True})
            return
        if leased.task.resumption and leased.task.checkpoint is None and await self._is_wanted(lease):
            raise BrokenError(f"{lease.task_id} went on after a pause without what was left there")
        await self._answer(handouts, lease)
        if self._draw.random() < 0.1:
            await self._answer(handouts, lease)

    async def _is_wanted(self, lease: Lease) -> bool:
        """Whether the run still waits for this task. One that was answered may be handed out once more, where its
        worker died between its answer and everything else."""
        state, _ = await loading.load(self._calm, lease.run_id)
        step = state.steps[lease.step_id] if state is not None else StepState()
        return step.status.handed_out and (step.attempt, step.iteration, step.resumption) == lease.age

    async def _answer(self, handouts: Handouts, lease: Lease) -> None:
        mood = self._draw.random()
        if mood < 0.15:
            await handouts.fail(lease, {"code": "unlucky", "message": "no"})
        elif mood < 0.3 and lease.step_id.startswith("loop"):
            await handouts.proceed(lease, {"more": True})
        else:
            output = {"drawn": self._draw.random()}
            self._said.setdefault((lease.run_id, lease.step_id, lease.attempt), []).append(output)
            await handouts.complete(lease, output)

    # --- what must never happen ----------------------------------------------------------------------------

    async def _check(self) -> None:
        for run_id in self._runs:
            entries = await self._calm.journal.read(run_id)
            if len(entries) < self._seen.get(run_id, 0):
                raise BrokenError(f"the journal of {run_id} became shorter")
            if entries and len(entries) != self._seen.get(run_id):
                self._seen[run_id] = len(entries)
                self._check_run(run_id, [Record.decode(entry.data) for entry in entries])

    def _check_run(self, run_id: str, records: list[Record]) -> None:
        completed: set[str] = set()
        state: RunState | None = None
        for record in records:
            if state is not None and state.status.ended:
                raise BrokenError(f"{run_id} went on after its end")
            for event in record.events:
                if isinstance(event, StepCompleted):
                    self._check_completion(run_id, event, completed)
            state = fold(run_id, [record], state)
        if state is None:
            raise BrokenError(f"{run_id} has a journal and no state")
        self._states[run_id] = state

    def _check_completion(self, run_id: str, event: StepCompleted, completed: set[str]) -> None:
        if event.step in completed:
            raise BrokenError(f"{run_id}: {event.step} completed twice")
        completed.add(event.step)
        if isinstance(event.output, dict) and "drawn" in event.output:
            said = self._said.get((run_id, event.step, event.attempt), [])
            if event.output not in said:
                raise BrokenError(f"{run_id}: {event.step} has an output that no worker of that attempt gave")


KINDS = (
    ("s", "task: t, retry: {attempts: 4, backoff: 1s}"),
    ("s", "task: t, retry: {attempts: 3}, timeout: 20s"),
    ("box", "sandbox: {image: i, command: [c]}, retry: {attempts: 3}"),
    ("loop", "agent_loop: {task: llm, max_iterations: 5}, retry: {attempts: 3}"),
    ("each", "map: {over: input, task: t, concurrency: 2}, retry: {attempts: 4}"),
    ("nap", "sleep: 7s"),
    ("dead", "task: dead, retry: {attempts: 2, backoff: 1s}"),
    ("maybe", "task: t, when: 'size(input) > 1', retry: {attempts: 3}"),
)


WEIGHTS = [1 if prefix == "dead" else 8 for prefix, _ in KINDS]


def random_workflow(draw: random.Random) -> str:
    """A graph of all kinds."""
    names: list[str] = []
    lines = []
    for number in range(draw.randint(1, 6)):
        prefix, kind = draw.choices(KINDS, WEIGHTS)[0]
        needs = [other for other in names if draw.random() < 0.4]
        names.append(f"{prefix}{number}")
        lines.append(f"- {{id: {names[-1]}, needs: [{', '.join(needs)}], {kind}}}\n")
    head = "name: w\n" + draw.choice(["", "", "deadline: 10m\n"])
    return head + "steps:\n" + "".join(lines)


async def live(seed: int) -> Report:
    """One world. A failure names its seed: the same seed fails the same way. Snapshots are taken far more often than
    usual, so that they matter."""
    try:
        with mock.patch.object(loading, "EVERY", SNAPSHOT_EVERY):
            return await World(seed).live()
    except Exception as error:
        raise BrokenError(f"seed {seed}: {error}") from error
