"""Telemetry: one call for span and histogram, one line for each job, and never a secret."""

from __future__ import annotations

import datetime as dt
import io
import json
import logging
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fumehood.errors import ConfigurationError, EngineUnavailableError
from fumehood.node.telemetry import JobSummary, Telemetry

NOON = dt.datetime(2026, 2, 16, 12, tzinfo=dt.UTC)
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def telemetry(spans: InMemorySpanExporter) -> Telemetry:
    return Telemetry(node_id="n1", processor=SimpleSpanProcessor(spans))


def read(log: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


def value(telemetry: Telemetry, name: str, **labels: str) -> float | None:
    return telemetry.metrics.registry.get_sample_value(f"fumehood_node_{name}", labels)


def summary(**changes: Any) -> JobSummary:
    fields: dict[str, Any] = {"job_id": "j", "task_id": "t", "status": "completed", "started_at": NOON}
    return JobSummary(**fields | {"ended_at": NOON + dt.timedelta(seconds=2), "exit_code": 0} | changes)


def test_a_stage_is_a_span_and_an_observation(telemetry: Telemetry, spans: InMemorySpanExporter) -> None:
    with telemetry.stage("job"), telemetry.stage("pull", cached=True):
        pass
    inner, outer = spans.get_finished_spans()
    assert (inner.name, outer.name) == ("pull", "job")
    assert inner.parent is not None
    assert outer.context is not None
    assert inner.parent.span_id == outer.context.span_id
    assert dict(inner.attributes or {}) == {"cached": True}
    assert value(telemetry, "stage_seconds_count", stage="pull", outcome="ok") == 1


def test_a_failed_stage_says_the_code_and_not_the_text(telemetry: Telemetry, spans: InMemorySpanExporter) -> None:
    with pytest.raises(EngineUnavailableError), telemetry.stage("create"):
        raise EngineUnavailableError("the engine said hush")
    with pytest.raises(ValueError, match="hush"), telemetry.stage("start"):
        raise ValueError("hush")
    assert [dict(span.attributes or {})["error.type"] for span in spans.get_finished_spans()] == [
        "engine-unavailable",
        "ValueError",
    ]
    assert all("hush" not in span.to_json() for span in spans.get_finished_spans())
    assert value(telemetry, "stage_seconds_count", stage="create", outcome="error") == 1


def test_the_callers_trace_goes_on(telemetry: Telemetry, spans: InMemorySpanExporter) -> None:
    with telemetry.server_span("POST", {"traceparent": PARENT}), telemetry.stage("job"):
        pass
    assert {f"{span.context.trace_id:032x}" for span in spans.get_finished_spans() if span.context} == {
        "0af7651916cd43dd8448eb211c80319c"
    }


def test_a_broken_traceparent_starts_a_new_trace(telemetry: Telemetry, spans: InMemorySpanExporter) -> None:
    with telemetry.server_span("POST", {"traceparent": "00-nonsense"}):
        pass
    assert spans.get_finished_spans()[0].parent is None


def test_a_finished_job_is_counted_and_gets_one_line(telemetry: Telemetry, log: io.StringIO) -> None:
    telemetry.job_finished(summary(status="failed", exit_code=137, exit_reason="oom", stdout_bytes=7))
    assert value(telemetry, "jobs_total", status="failed", reason="oom") == 1
    assert value(telemetry, "job_seconds_count", status="failed") == 1
    (line,) = read(log)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "job.finished", "level": "info", "node_id": "n1", "job_id": "j", "task_id": "t", "status": "failed",
        "exit_code": 137, "exit_reason": "oom", "stdout_bytes": 7, "seconds": 2.0, "recovered": False,
    }  # fmt: skip


def test_lines_inside_a_span_name_it(telemetry: Telemetry, log: io.StringIO) -> None:
    with telemetry.server_span("POST", {"traceparent": PARENT}):
        telemetry.log.info("something.happened")
    assert read(log)[0]["trace_id"] == "0af7651916cd43dd8448eb211c80319c"


def test_a_secret_by_name_is_never_written(telemetry: Telemetry, log: io.StringIO) -> None:
    telemetry.log.info("something.happened", worker_api_token="hush", Authorization="hush", password=b"hush")
    assert "hush" not in log.getvalue()


def test_the_text_of_foreign_exceptions_is_left_out(telemetry: Telemetry, log: io.StringIO) -> None:
    try:
        raise ValueError("hush /var/lib/x")
    except ValueError:
        telemetry.log.exception("something.failed")
    (line,) = read(log)
    assert line["exception"] == "ValueError"
    assert line["way"][-1].startswith("test_telemetry:test_the_text_of_foreign")
    assert "hush" not in log.getvalue()
    assert "/" not in log.getvalue()


def test_the_standard_librarys_loggers_write_the_same_lines(log: io.StringIO) -> None:
    logging.getLogger("uvicorn.error").warning("something %s", "odd")
    (line,) = read(log)
    assert (line["event"], line["level"]) == ("something odd", "warning")


def test_the_exposition_names_every_metric(telemetry: Telemetry) -> None:
    telemetry.metrics.watch_slots(lambda: 3, lambda: 2)
    telemetry.engine_error("create", EngineUnavailableError("x"))
    text = telemetry.exposition().decode()
    assert "fumehood_node_running_jobs 3.0" in text
    assert "fumehood_node_waiting_jobs 2.0" in text
    assert 'fumehood_node_engine_errors_total{code="engine-unavailable",operation="create"} 1.0' in text


def test_two_nodes_in_one_process_share_nothing() -> None:
    one, other = Telemetry(), Telemetry()
    one.job_finished(summary())
    assert value(other, "jobs_total", status="completed", reason="none") is None


def test_a_collector_without_its_exporter_is_an_error_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", absent)
    with pytest.raises(ConfigurationError, match="not installed"):
        Telemetry.create(node_id="n", otlp_endpoint="http://localhost:4318")
    Telemetry.create(node_id="n", otlp_endpoint=None).close()
