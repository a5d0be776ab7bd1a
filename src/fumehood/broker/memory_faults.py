"""What goes wrong between the in-memory broker and its callers, and what all of its ports share because of that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from fumehood.errors import BrokerUnavailableError


class Verdict(Enum):
    """What becomes of one call."""

    OK = "ok"
    LOST = "lost"
    """It never arrived: nothing happened, and the caller sees `BrokerUnavailableError`."""
    UNANSWERED = "unanswered"
    """It was done, but the caller sees `BrokerUnavailableError`."""


class Faults:
    """What goes wrong for one connection: nothing. Override what a test needs."""

    async def call(self, operation: str, subject: str) -> Verdict:
        """Asked before each call; may wait, so that a scheduler can let others go first. `operation` is the port's
        and the method's name (`journal.append`), `subject` the run, key, task type or token."""
        return Verdict.OK

    def arrivals(self, consumer: str, message_id: str) -> Sequence[float]:
        """Seconds until each copy of one delivery arrives: `(0.0,)` at once, `()` lost until its ack wait is over,
        `(0.0, 0.0)` twice, `(2.5,)` late."""
        return (0.0,)

    def order(self, consumer: str, waiting: int) -> Sequence[int]:
        """In which order the waiting messages of a consumer are handed out."""
        return range(waiting)


NO_FAULTS = Faults()


class Port:
    """What all ports share: the faults of this connection."""

    name = ""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    async def _begin(self, operation: str, subject: str) -> Callable[[], None]:
        """Called when the work is done: raises if the answer gets lost."""
        verdict = await self._faults.call(f"{self.name}.{operation}", subject)
        if verdict is Verdict.LOST:
            raise BrokerUnavailableError("the request did not arrive in time")
        return _lose_the_answer if verdict is Verdict.UNANSWERED else _answer


def _answer() -> None:
    return None


def _lose_the_answer() -> None:
    raise BrokerUnavailableError("no answer in time")
