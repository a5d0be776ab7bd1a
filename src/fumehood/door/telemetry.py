"""What every process tells about itself: metrics, spans and a log, each process with its own registry and tracer.

Nothing here is global, so that two nodes, or two tests, share nothing. Labels come from small closed sets; an id as
a label would be a time series for each job. Each kind of process adds its own metrics to these.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

METRICS_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
"""From one round trip to the longest job."""


class Metrics:
    """The metrics of one process (`node`, `server`), in a registry of its own."""

    def __init__(self, process: str) -> None:
        self.registry = CollectorRegistry()
        self._process = process
        self.http_requests = self.counter("http_requests", "HTTP answers", "route", "method", "status")
        self.http_seconds = self.histogram(
            "http_request_seconds", "From a request's head to the end of its answer, waiting included", "route"
        )

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"fumehood_{self._process}_{name}", text, labels, registry=self.registry)

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"fumehood_{self._process}_{name}", text, labels, registry=self.registry)

    def histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(f"fumehood_{self._process}_{name}", text, labels, registry=self.registry, buckets=SECONDS)


class Telemetry:
    """One process's metrics, tracer and logger."""

    metrics: Metrics

    def __init__(
        self, process: str, instance: str, metrics: Metrics | None = None, processor: SpanProcessor | None = None
    ) -> None:
        self.metrics = metrics if metrics is not None else Metrics(process)
        self._provider = TracerProvider(
            resource=Resource({"service.name": f"fumehood-{process}", "service.instance.id": instance}),
            shutdown_on_exit=False,
        )
        if processor is not None:
            self._provider.add_span_processor(processor)
        self.tracer: Tracer = self._provider.get_tracer(f"fumehood.{process}")
        self.log: FilteringBoundLogger = structlog.get_logger(**{f"{process}_id": instance})

    def close(self) -> None:
        """Send what is still to be sent. Blocks for as long as the collector needs: call it off the loop."""
        self._provider.shutdown()

    def exposition(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self.metrics.registry)

    @contextmanager
    def server_span(self, name: str, headers: Mapping[str, str]) -> Iterator[Span]:
        """A span for one request, a child of the caller's own where `traceparent` names it."""
        parent = TraceContextTextMapPropagator().extract(headers, context.Context())
        with self.tracer.start_as_current_span(
            name, context=parent, kind=SpanKind.SERVER, record_exception=False, set_status_on_exception=False
        ) as span:
            yield span


def current_traceparent() -> str | None:
    """The span under way, for whoever goes on elsewhere; None outside of any."""
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent")


def mark_failed(span: Span, error: BaseException) -> None:
    """The code or the class only: the text of a foreign exception may hold anything."""
    code = error.code if isinstance(error, FumehoodError) else type(error).__name__
    span.set_attribute("error.type", code)
    span.set_status(Status(StatusCode.ERROR, code))


def otlp_processor(endpoint: str | None) -> SpanProcessor | None:
    """Sends spans to a collector where there is one. The exporter is an extra dependency, needed only by who has."""
    if endpoint is None:
        return None
    try:
        exporter = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError as error:
        raise ConfigurationError(
            "otlp_endpoint is set, but opentelemetry-exporter-otlp-proto-http is not installed"
        ) from error
    return BatchSpanProcessor(exporter.OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces"))
