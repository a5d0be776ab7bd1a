"""How long a session may be asked for."""

from __future__ import annotations

from dataclasses import dataclass

from fumehood.errors import CommandFailedError
from fumehood.wire.console.codes import Reason


@dataclass(frozen=True, slots=True)
class LeaseRule:
    """Seconds."""

    shortest: int = 60
    longest: int = 1800
    default: int = 60

    def milliseconds(self, asked: int | None) -> int:
        """Of a new lease. A wish out of bounds is refused, whatever it is about: a caller who is given less than it
        asked for would find its session gone."""
        seconds = self.default if asked is None else asked
        if not self.shortest <= seconds <= self.longest:
            raise CommandFailedError(
                Reason.INVALID_PAYLOAD, f"lease_ttl_sec: must be between {self.shortest} and {self.longest}"
            )
        return seconds * 1000
