"""Many callers, one question: ask it once, without ever giving anybody a stale answer.

A fan-out starts a thousand tasks of one image at the same moment. A caller may share the work of another only if that
work *has not begun* when the caller arrives: so each answer was asked for after its caller's question, and somebody who
pushes a tag and then asks for it never gets the digest from before the push. At most one piece of work for a key is
under way, and one more waits for its turn.

Cancelling a caller ends nothing for the others; when the last caller is gone, so is the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

Turn = Callable[[], Awaitable[None]]
"""Awaited by the work before its first effect: returns when the work before it has ended, and closes the door."""


class WorkCancelledError(Exception):
    """The shared work was ended by `close`, not by its callers."""


class _Flight(Generic[Value]):
    """One piece of work, those who wait for it, and the piece that must end before it begins."""

    def __init__(self, before: _Flight[Value] | None, work: Callable[[Turn], Coroutine[Any, Any, Value]]) -> None:
        self.before = before
        self.begun = False
        self.callers = 0
        self.task = asyncio.create_task(work(self._turn))
        self.task.add_done_callback(_retrieve)

    @property
    def open(self) -> bool:
        """Whoever comes now may still join."""
        return not self.begun and not self.task.done()

    async def _turn(self) -> None:
        if self.before is not None:
            await asyncio.wait({self.before.task})
        self.before = None
        self.begun = True


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Look at the exception, so that one whose last caller left in the same moment is not reported as forgotten."""
    if not task.cancelled():
        task.exception()


class SingleFlight(Generic[Key, Value]):
    """Shares work between callers who ask for the same key at the same time."""

    def __init__(self) -> None:
        self._newest: dict[Key, _Flight[Value]] = {}
        self._tasks: set[asyncio.Task[Value]] = set()

    async def run(self, key: Key, work: Callable[[Turn], Coroutine[Any, Any, Value]]) -> Value:
        """Do the work, or join work for this key that has not begun. The work must await its turn first."""
        flight = self._newest.get(key)
        if flight is None or not flight.open:
            flight = self._take_off(key, flight, work)
        flight.callers += 1
        try:
            await asyncio.wait({flight.task})
        finally:
            flight.callers -= 1
            if flight.callers == 0 and not flight.task.done():
                self._abandon(key, flight)
        if flight.task.cancelled():
            raise WorkCancelledError
        return flight.task.result()

    async def close(self) -> None:
        """End all work; its callers get `WorkCancelledError`."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _take_off(
        self, key: Key, before: _Flight[Value] | None, work: Callable[[Turn], Coroutine[Any, Any, Value]]
    ) -> _Flight[Value]:
        flight = _Flight(before, work)
        self._newest[key] = flight
        self._tasks.add(flight.task)
        flight.task.add_done_callback(lambda task: self._land(key, flight))
        return flight

    def _land(self, key: Key, flight: _Flight[Value]) -> None:
        self._tasks.discard(flight.task)
        if self._newest.get(key) is flight:
            del self._newest[key]

    def _abandon(self, key: Key, flight: _Flight[Value]) -> None:
        """Nobody waits any more. The work before it, if still under way, is again what the next caller waits for."""
        flight.task.cancel()
        if self._newest.get(key) is not flight:
            return
        if flight.before is not None and not flight.before.task.done():
            self._newest[key] = flight.before
        else:
            del self._newest[key]
