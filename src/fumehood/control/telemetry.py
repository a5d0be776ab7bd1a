"""What a server tells about itself beside its requests: what its deciders did, and how its calls of the broker went."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from opentelemetry.sdk.trace import SpanProcessor
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from fumehood.control.decider import Counters
from fumehood.door import telemetry as door
from fumehood.door.telemetry import otlp_processor

Counts = Callable[[], Mapping[str, Mapping[str, int]]]
"""By part of the broker's client, then by kind."""


class Metrics(door.Metrics):
    """Every metric of a server that is counted as it happens."""

    def __init__(self) -> None:
        super().__init__("server")
        self.ready = self.gauge("ready", "1 when the last probe's write reached the broker; one is made every 5 s")
        self.broker_connected = self.gauge("broker_connected", "1 while there is a connection to the broker")
        self.polls = self.gauge("bridge_polls", "Polls of workers that wait at this server")
        self.streams = self.gauge("bridge_streams", "Workers whose stream is open at this server")
        self.console_streams = self.gauge("console_streams", "Workers that dialled in to this server and are there")
        self.event_streams = self.gauge("event_streams", "Streams of events that are open at this server")
        self.starts = self.counter("runs_started", "Starts that were accepted", "replayed")


class Telemetry(door.Telemetry):
    """One server's metrics, tracer and logger."""

    metrics: Metrics

    def __init__(self, *, server_id: str = "unnamed", processor: SpanProcessor | None = None) -> None:
        super().__init__("server", server_id, Metrics(), processor)

    @classmethod
    def create(cls, *, server_id: str, otlp_endpoint: str | None) -> Telemetry:
        """A server's telemetry, with spans sent to a collector where one is configured."""
        return cls(server_id=server_id, processor=otlp_processor(otlp_endpoint))

    def watch(self, decider: Counters, broker: Counts) -> None:
        """Read the counters of others when somebody asks, instead of counting along."""
        self.metrics.registry.register(Watched(decider, broker))


class Watched(Collector):
    """Counters that their owners keep."""

    def __init__(self, decider: Counters, broker: Counts) -> None:
        self._decider = decider
        self._broker = broker

    def collect(self) -> Iterator[CounterMetricFamily]:
        for name, text in DECIDER.items():
            yield CounterMetricFamily(f"fumehood_server_decider_{name}", text, value=getattr(self._decider, name))
        ignored = CounterMetricFamily("fumehood_server_decider_ignored", IGNORED, labels=["reason"])
        for reason, count in sorted(self._decider.ignored.items()):
            ignored.add_metric([reason], count)
        yield ignored
        ended = CounterMetricFamily("fumehood_server_runs_ended", ENDED, labels=["status"])
        for status, count in sorted(self._decider.ended.items()):
            ended.add_metric([status], count)
        yield ended
        events = CounterMetricFamily("fumehood_server_broker_events", EVENTS, labels=["part", "kind"])
        for part, counts in sorted(self._broker().items()):
            for kind, count in sorted(counts.items()):
                events.add_metric([part, kind], count)
        yield events


DECIDER = {
    "decisions": "Records appended to journals",
    "conflicts": "Decisions made again because another decider was first",
    "rederived": "Messages that came again, whose effects were done again",
    "refused": "Messages given back because the broker failed",
    "failed": "Decisions that met a fault of ours",
}
ENDED = "Runs whose end this server decided"
IGNORED = "Messages that had no effect"
EVENTS = "What happened to calls of the broker"
