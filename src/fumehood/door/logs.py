"""How our processes write their logs: one JSON object a line, a constant event name, no secrets, no text of strangers.

Exceptions are written as their class and the functions they passed through. Their text is left out unless they
are our own, whose `detail` is made to be shown: a foreign one may quote a path, a request or a token.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, TextIO

import structlog
from opentelemetry import trace

from fumehood.errors import FumehoodError

_SECRET = re.compile(r"token|secret|password|passwd|authorization|credential|cookie|api_?key", re.IGNORECASE)
REDACTED = "[redacted]"

Event = MutableMapping[str, Any]


def configure_logging(json: bool = True, *, level: str | None = None, stream: TextIO | None = None) -> None:
    """Set up structlog, and the standard library's loggers (uvicorn's) to write the same lines. The level is `info`
    unless another one is given."""
    least = logging.getLevelNamesMapping()[(level or "info").upper()]
    out = stream if stream is not None else sys.stderr
    shared = _processors()
    renderer = structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer(colors=out.isatty())
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )
    _configure_standard_library(out, least, shared, renderer)


def _processors() -> list[structlog.typing.Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add_trace,
        compact_exception,
        redact,
    ]


def _configure_standard_library(
    out: TextIO, level: int, shared: list[structlog.typing.Processor], renderer: structlog.typing.Processor
) -> None:
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.WARNING))


def add_trace(_: object, __: str, event: Event) -> Event:
    """Name the span in which a line was written, so that a trace leads to its lines and back."""
    span = trace.get_current_span().get_span_context()
    if span.is_valid:
        event["trace_id"] = trace.format_trace_id(span.trace_id)
        event["span_id"] = trace.format_span_id(span.span_id)
    return event


def redact(_: object, __: str, event: Event) -> Event:
    """The last net, not the rule: nobody should hand a secret to a logger in the first place."""
    for key in event:
        if key != "event" and _SECRET.search(key) and isinstance(event[key], str | bytes):
            event[key] = REDACTED
    return event


def compact_exception(_: object, __: str, event: Event) -> Event:
    """Replace `exc_info` by the exception's class, its way, and its detail where it is one of ours."""
    info = event.pop("exc_info", None)
    error = _exception(info)
    if error is not None:
        event["exception"] = type(error).__name__
        event["way"] = _way(error)
        if isinstance(error, FumehoodError):
            event["code"], event["detail"] = error.code, error.detail
        elif isinstance(error, OSError) and error.strerror:
            event["detail"] = error.strerror
    return event


def _exception(info: object) -> BaseException | None:
    if isinstance(info, BaseException):
        return info
    if isinstance(info, tuple):
        return info[1] if isinstance(info[1], BaseException) else None
    return sys.exc_info()[1] if info else None


def _way(error: BaseException) -> list[str]:
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{Path(frame.filename).stem}:{frame.name}:{frame.lineno}" for frame in frames[-8:]]
