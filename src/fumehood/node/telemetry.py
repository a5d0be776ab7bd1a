"""What a node tells about itself: metrics, spans, and one canonical log line for each finished job.

`Telemetry.stage("pull")` is the one way to time a part of a job: it makes the span and feeds the histogram, so
that traces and dashboards never disagree. Nothing here is global: each node, and each test, has its own registry
and its own tracer. Labels come from small closed sets; an id as a label would be a time series for each job.
"""

from __future__ import annotations

import datetime as dt
import importlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
from opentelemetry import context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from fumehood.errors import ConfigurationError, FumehoodError
from fumehood.node.logs import configure_logging

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

__all__ = ["METRICS_MEDIA_TYPE", "JobSummary", "Metrics", "Telemetry", "configure_logging"]

METRICS_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
"""From one warden round trip to the longest job."""


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


class Metrics:
    """Every metric of a node, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.jobs = self._counter("jobs", "Finished jobs", "status", "reason")
        self.job_seconds = self._histogram("job_seconds", "From a job's start to its end", "status")
        self.replays = self._counter("replays", "Requests answered by a running or stored job")
        self.refusals = self._counter("refusals", "Jobs that were not taken", "code")
        self.running = self._gauge("running_jobs", "Jobs that hold a slot")
        self.waiting = self._gauge("waiting_jobs", "Jobs in line for a slot")
        self.ready = self._gauge("ready", "1 when a container can be run")
        self.stage_seconds = self._histogram("stage_seconds", "Stages of a job", "stage", "outcome")
        self.engine_errors = self._counter("engine_errors", "Failed operations on the engine", "operation", "code")
        self.reconciled = self._counter("sandboxes_reconciled", "Sandboxes set right", "action")
        self.recovered = self._counter("jobs_recovered", "Jobs found unfinished at a start", "state")
        self.http_requests = self._counter("http_requests", "HTTP answers", "route", "method", "status")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"fumehood_node_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"fumehood_node_{name}", text, registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(f"fumehood_node_{name}", text, labels, registry=self.registry, buckets=_SECONDS)

    def watch_slots(self, taken: Callable[[], int], waiting: Callable[[], int]) -> None:
        """Read the slots when somebody asks instead of counting along, which could go astray."""
        self.running.set_function(taken)
        self.waiting.set_function(waiting)


class Telemetry:
    """One node's metrics, tracer and logger."""

    def __init__(self, *, node_id: str = "unnamed", processor: SpanProcessor | None = None) -> None:
        self.metrics = Metrics()
        self._provider = TracerProvider(
            resource=Resource({"service.name": "fumehood-node", "service.instance.id": node_id}),
            shutdown_on_exit=False,
        )
        if processor is not None:
            self._provider.add_span_processor(processor)
        self.tracer: Tracer = self._provider.get_tracer("fumehood.node")
        self.log: FilteringBoundLogger = structlog.get_logger(node_id=node_id)

    @classmethod
    def create(cls, *, node_id: str, otlp_endpoint: str | None) -> Telemetry:
        """A node's telemetry, with spans sent to a collector where one is configured."""
        return cls(node_id=node_id, processor=_otlp_processor(otlp_endpoint) if otlp_endpoint else None)

    def close(self) -> None:
        """Send what is still to be sent. Blocks for as long as the collector needs: call it off the loop."""
        self._provider.shutdown()

    def exposition(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self.metrics.registry)

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
                _mark_failed(span, error)
                raise
            finally:
                self.metrics.stage_seconds.labels(name, outcome).observe(time.monotonic() - began)

    @contextmanager
    def server_span(self, name: str, headers: Mapping[str, str]) -> Iterator[Span]:
        """A span for one request, a child of the caller's own where `traceparent` names it."""
        parent = TraceContextTextMapPropagator().extract(headers, context.Context())
        with self.tracer.start_as_current_span(
            name, context=parent, kind=SpanKind.SERVER, record_exception=False, set_status_on_exception=False
        ) as span:
            yield span

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


def _mark_failed(span: Span, error: BaseException) -> None:
    """The code or the class only: the text of a foreign exception may hold anything."""
    code = error.code if isinstance(error, FumehoodError) else type(error).__name__
    span.set_attribute("error.type", code)
    span.set_status(Status(StatusCode.ERROR, code))


def _otlp_processor(endpoint: str) -> SpanProcessor:
    """The exporter is an extra dependency, needed only by who has a collector."""
    try:
        exporter = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError as error:
        raise ConfigurationError(
            "otlp_endpoint is set, but opentelemetry-exporter-otlp-proto-http is not installed"
        ) from error
    return BatchSpanProcessor(exporter.OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces"))
