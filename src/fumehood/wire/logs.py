"""What the records of a sandbox's output say that are not output themselves. Both ends are ours."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, ValidationError

from fumehood.wire.base import UtcTime, WireModel
from fumehood.wire.sandbox import Cut, RunReason

Said = TypeVar("Said", bound="_Said")

Bytes = Annotated[int, Field(ge=0, le=2**53)]


class LogStream(StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"


class _Said(WireModel):
    """What a newer version adds is passed over."""

    model_config = ConfigDict(extra="ignore", strict=False)

    def encode(self) -> bytes:
        return self.model_dump_json().encode()

    @classmethod
    def decode(cls: type[Said], data: bytes) -> Said | None:
        """None for what cannot be read."""
        try:
            return cls.model_validate_json(data)
        except (ValidationError, RecursionError):
            return None


class LogStart(_Said):
    """The command was sent."""

    started_at: UtcTime
    node: str = ""
    container: str = ""


class LogCut(_Said):
    """No more of a stream is told before its end."""

    stream: LogStream
    kept: Bytes
    """Bytes of it that were told."""


class LogEnd(_Said):
    """Nothing comes any more."""

    reason: RunReason
    ended_at: UtcTime | None = None
    """When its command had ended, by whoever saw it end."""
    stdout: Bytes = 0
    stderr: Bytes = 0
    """Bytes that each stream had in all."""
    truncated: Cut = Field(default_factory=Cut)
    """Whether any of them is not in this log."""
    logs: str | None = None
    """The blob that holds what is kept of them, where it was stored before this: for a run whose report nobody took."""
    receipt: dict[str, Any] | None = None
    """What the node signed, for such a run alone; else its report has it."""
