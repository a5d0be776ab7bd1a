"""Whose a run is and what it runs, for whoever follows all runs and may see only some of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from fumehood.broker.ports import Broker
from fumehood.control import loading, summaries
from fumehood.control.callers import DEFAULT_TENANT
from fumehood.control.event_pulse import Line
from fumehood.engine.events import Event, RunStarted, UnknownFormatError
from fumehood.errors import BlobCorruptError, BlobNotFoundError

MOST = 20_000
"""Runs that are kept in mind: more than are under way at once, and a few megabytes."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What never changes about a run."""

    tenant: str
    workflow: str | None


class KnownRuns:
    """By a run's first record where that is in hand, else by its summary, else by its journal."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._known: OrderedDict[str, Facts] = OrderedDict()

    async def of(self, line: Line) -> Facts | None:
        """None: nobody knows any more, and so nobody is shown it."""
        facts = self._known.get(line.run_id) or _started(line.events) or await self._find(line.run_id)
        if facts is not None:
            self._known[line.run_id] = facts
            self._known.move_to_end(line.run_id)
            if len(self._known) > MOST:
                self._known.popitem(last=False)
        return facts

    async def _find(self, run_id: str) -> Facts | None:
        said, _ = await summaries.read(self._broker, run_id)
        if said.get("workflow"):  # one that cannot be read says nothing, not even that it is the default one's
            return Facts(str(said.get("tenant") or DEFAULT_TENANT), said["workflow"])
        try:
            state, _ = await loading.load(self._broker, run_id)
        except (BlobNotFoundError, BlobCorruptError, UnknownFormatError) as error:
            structlog.get_logger(run_id=run_id).warning("events.unreadable", exc_info=error)
            return None
        if state is None:
            return None
        return Facts(str(state.meta.get("tenant") or DEFAULT_TENANT), state.definition.name)


def _started(events: Iterable[Event]) -> Facts | None:
    for event in events:
        if isinstance(event, RunStarted):
            return Facts(str(event.meta.get("tenant") or DEFAULT_TENANT), event.definition.get("name"))
    return None
