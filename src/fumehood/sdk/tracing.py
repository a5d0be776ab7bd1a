"""One trace from the caller through the engine to the handler and back: the task's context goes on in the worker.

The process's own tracer is used, so that whoever set one up sees handlers in it. Without one nothing is recorded, and
the context is handed on as it came.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import context, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from fumehood.sdk.task import TaskFacts

_W3C = TraceContextTextMapPropagator()


@contextmanager
def task_span(task: TaskFacts, worker: str, provider: trace.TracerProvider | None) -> Iterator[Span]:
    """The span in which a handler runs."""
    carried = {name.lower(): value for name, value in task.headers.items()}
    if task.traceparent is not None:
        carried["traceparent"] = task.traceparent
    tracer = trace.get_tracer("fumehood.worker", tracer_provider=provider)
    attributes: dict[str, str | int] = {
        "run_id": task.run_id,
        "step_id": task.step_id,
        "attempt": task.attempt,
        "iteration": task.iteration,
        "worker": worker,
    }
    with tracer.start_as_current_span(
        f"task {task.type}",
        context=_W3C.extract(carried, context.Context()),
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        yield span


def traceparent_of(span: Span) -> str | None:
    """For the answer; `None` where there is no trace."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, trace.set_span_in_context(span, context.Context()))
    return carrier.get("traceparent")


def mark_failed(span: Span, code: str) -> None:
    span.set_attribute("error.type", code)
    span.set_status(Status(StatusCode.ERROR, code))
