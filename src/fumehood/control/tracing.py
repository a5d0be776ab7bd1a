"""One trace through a run: from the request that started it, through each decision, to the workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.trace import SpanKind, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from fumehood.engine.state import RunState

META = "traceparent"
"""Where a run's state keeps the context it was started under."""
_propagator = TraceContextTextMapPropagator()


@contextmanager
def deciding(tracer: Tracer, state: RunState) -> Iterator[str | None]:
    """A span around what follows from a decision; gives what its tasks carry. Nothing where nobody traces."""
    origin = state.meta.get(META)
    if not isinstance(origin, str):
        yield None
        return
    context = _propagator.extract({META: origin})
    with tracer.start_as_current_span("run.decide", context=context, kind=SpanKind.INTERNAL) as span:
        span.set_attribute("fumehood.run_id", state.run_id)
        span.set_attribute("fumehood.events", state.events)
        carrier: dict[str, str] = {}
        _propagator.inject(carrier)
        yield carrier.get(META, origin)
