"""Who is measured, what each of them promises, and how writes reach the disk while they are."""

from __future__ import annotations

from dataclasses import dataclass

from bench.field.rows import OURS as OWN
from bench.field.rows import PEER

OURS, OURS_SDK, DBOS, TASKIQ = "fumehood", "fumehood-sdk", "dbos", "taskiq"


@dataclass(frozen=True, slots=True)
class Row:
    """One side of the comparison."""

    whose: str
    what: str
    promise: str


ROWS = {
    OURS: Row(
        OWN,
        "fumehood, worker of the bare wire protocol",
        "durable steps: every decision is in the run's journal before the next task goes out, every step's result is "
        "recorded once; a worker in any process takes the tasks",
    ),
    OURS_SDK: Row(
        OWN,
        "fumehood, worker of its Python library",
        "the same; and each task is leased, so that a worker that dies is noticed and one that was too late is refused",
    ),
    DBOS: Row(
        PEER,
        "dbos on PostgreSQL",
        "durable steps: the workflow, its end and every step's result are rows that are committed; a step's result is "
        "recorded once; steps run in the process of their workflow",
    ),
    TASKIQ: Row(
        PEER,
        "taskiq on NATS JetStream",
        "at least once: each task is a stored message that is acknowledged after its function has sent the next one; "
        "no journal, no results, nothing that makes a step's effect be recorded once",
    ),
}

WHY_FASTER = {
    TASKIQ: "A step of taskiq is one stored message. A step of ours is three: the task, what its worker says of it, "
    "and the decider's record, without which the next step is not begun. That record is why a run goes on after a "
    "crash, and why a step's result counts once. The decider spends about 0.6 ms of processor time on each step.",
}
"""Why a peer has more runs a second than we have, for the page."""

FLUSHED, LAZY = "flushed", "lazy"


@dataclass(frozen=True, slots=True)
class Mode:
    """How a write is kept before it is acknowledged, the same for everybody."""

    what: str
    sync_always: bool
    """Of a nats-server: `sync_interval: always`."""
    synchronous_commit: str
    """Of PostgreSQL. `fsync` is on in any case."""


MODES = {
    FLUSHED: Mode("on disk before it is acknowledged (the default in production)", True, "on"),
    LAZY: Mode("acknowledged first, flushed later (can be lost with the machine)", False, "off"),
}
