"""What a node tells about itself: metrics, spans, and one canonical log line for each finished job.

`Telemetry.stage("pull")` is the one way to time a part of a job: it makes the span and feeds the histogram, so
that traces and dashboards never disagree.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.trace import Span

from fumehood.door import telemetry as door
from fumehood.door.telemetry import mark_failed, otlp_processor
from fumehood.errors import FumehoodError


@dataclass(frozen=True, slots=True)
class JobSummary:
    """What is said about a finished job: figures and names, never its command, environment or output."""

    job_id: str
    task_id: str
    status: str
    started_at: dt.datetime
    ended_at: dt.datetime
    exit_code: int | None = None
    exit_reason: str | None = None
    sandbox_id: str | None = None
    image_digest: str | None = None
    runtime: str | None = None
    stdout_bytes: int | None = None
    stderr_bytes: int | None = None
    queued_seconds: float | None = None
    recovered: bool = False

    @property
    def seconds(self) -> float:
        return (self.ended_at - self.started_at).total_seconds()


class Metrics(door.Metrics):
    """Every metric of a node."""

    def __init__(self) -> None:
        super().__init__("node")
        self.jobs = self.counter("jobs", "Finished jobs", "status", "reason")
        self.job_seconds = self.histogram("job_seconds", "From a job's start to its end", "status")
        self.replays = self.counter("replays", "Requests answered by a running or stored job")
        self.refusals = self.counter("refusals", "Jobs that were not taken", "code")
        self.running = self.gauge("running_jobs", "Jobs that hold a slot")
        self.waiting = self.gauge("waiting_jobs", "Jobs in line for a slot")
        self.ready = self.gauge("ready", "1 when a container can be run")
        self.stage_seconds = self.histogram("stage_seconds", "Stages of a job", "stage", "outcome")
        self.engine_errors = self.counter("engine_errors", "Failed operations on the engine", "operation", "code")
        self.reconciled = self.counter("sandboxes_reconciled", "Sandboxes set right", "action")
        self.recovered = self.counter("jobs_recovered", "Jobs found unfinished at a start", "state")
        self.sandboxes = self.counter("sandboxes", "Sandboxes given out: `warm`, or `cold` if made on request", "how")
        self.warm = self.gauge("warm_sandboxes", "Warm sandboxes: `idle`, and `making`", "state")
        self.policy_wrong = self.gauge("policy_wrong", "1 while the policy file is wrong, and the last good one counts")
        self.policies_loaded = self.gauge("policies_loaded", "Policy files that were read and taken since the start")
        self.policies_refused = self.gauge(
            "policies_refused", "Policy files that were read and refused since the start"
        )

    def watch_policy(self, counts: Mapping[str, int], wrong: Callable[[], bool]) -> None:
        """Look at the policy file when somebody asks."""
        self.policy_wrong.set_function(wrong)
        self.policies_loaded.set_function(lambda: counts.get("loaded", 0))
        self.policies_refused.set_function(lambda: counts.get("refused", 0))

    def watch_pool(self, idle: Callable[[], int], making: Callable[[], int]) -> None:
        """Look at the stock when somebody asks."""
        self.warm.labels("idle").set_function(idle)
        self.warm.labels("making").set_function(making)

    def watch_slots(self, taken: Callable[[], int], waiting: Callable[[], int]) -> None:
        """Read the slots when somebody asks instead of counting along, which could go astray."""
        self.running.set_function(taken)
        self.waiting.set_function(waiting)


class Telemetry(door.Telemetry):
    """One node's metrics, tracer and logger."""

    metrics: Metrics

    def __init__(self, *, node_id: str = "unnamed", processor: SpanProcessor | None = None) -> None:
        super().__init__("node", node_id, Metrics(), processor)

    @classmethod
    def create(cls, *, node_id: str, otlp_endpoint: str | None) -> Telemetry:
        """A node's telemetry, with spans sent to a collector where one is configured."""
        return cls(node_id=node_id, processor=otlp_processor(otlp_endpoint))

    @contextmanager
    def stage(self, name: str, **attributes: str | int | float | bool) -> Iterator[Span]:
        """Time one stage of a job: a span, and `fumehood_node_stage_seconds{stage, outcome}`."""
        began, outcome = time.monotonic(), "error"
        with self.tracer.start_as_current_span(
            name, attributes=attributes, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
                outcome = "ok"
            except BaseException as error:
                mark_failed(span, error)
                raise
            finally:
                self.metrics.stage_seconds.labels(name, outcome).observe(time.monotonic() - began)

    def job_finished(self, summary: JobSummary) -> None:
        """Count a job's end and write its canonical line. Once for each job, never for a replay."""
        self.metrics.jobs.labels(summary.status, summary.exit_reason or "none").inc()
        self.metrics.job_seconds.labels(summary.status).observe(max(0.0, summary.seconds))
        fields = {name: getattr(summary, name) for name in _LINE if getattr(summary, name) is not None}
        self.log.info("job.finished", seconds=round(summary.seconds, 6), **fields)

    def engine_error(self, operation: str, error: FumehoodError) -> None:
        """Count a failed operation on the engine."""
        self.metrics.engine_errors.labels(operation, error.code).inc()


_LINE = (
    "job_id",
    "task_id",
    "status",
    "exit_code",
    "exit_reason",
    "sandbox_id",
    "image_digest",
    "runtime",
    "stdout_bytes",
    "stderr_bytes",
    "queued_seconds",
    "recovered",
)
