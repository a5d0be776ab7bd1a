"""An event loop that does not wait: where only timers are left to wait for, its clock moves on to the next of them.

The unit and contract suites run on it (`conftest.py` of each), so that no test of logic waits for the real clock, and a
slow machine changes nothing but the duration. Code takes no time, but each turn of the loop takes `TURN`: what goes on
until a time is reached does reach it.

Something outside of the loop may still have to happen: another thread works, a process was started, a socket or a pipe
is open. Then the loop waits as any other does, and its clock moves by the time that it waited.

`time.monotonic` and `time.time` show the same clock to code that runs in the loop, as the timeouts of this project are
counted with both. Other threads see the real ones, and `datetime.now` is always real.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import selectors
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from concurrent.futures.thread import _threads_queues
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from unittest import mock

T = TypeVar("T")

monotonic = time.monotonic
NANOSECONDS = 1_000_000_000
TURN = 1e-4
"""Seconds."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._now = monotonic()
        self._wall_clock_ahead = time.time() - self._now
        self._waits_for_processes = False
        self._executor: ThreadPoolExecutor | None = None
        self._in_executors: set[concurrent.futures.Future[Any]] = set()
        self._threads_before = frozenset(threading.enumerate())
        self._files = _Selector(self)
        super().__init__(self._files)
        self._clock_resolution = 1e-6  # a finer one is lost in the rounding of large times

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds

    def waits_for_others(self) -> bool:
        """Whether anything but a timer can give this loop something to do."""
        return (
            self._waits_for_processes
            or len(self._files.get_map()) > 1  # one is the loop's own, for calls from other threads
            or bool(self._in_executors)
            or any(
                thread not in self._threads_before and thread not in _threads_queues  # those of an executor may be idle
                for thread in threading.enumerate()
            )
        )

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        if executor is None:
            if self._executor is None:
                self._executor = ThreadPoolExecutor()
                self.set_default_executor(self._executor)
            executor = self._executor
        work = executor.submit(func, *args)
        future = asyncio.wrap_future(work, loop=self)
        self._in_executors.add(work)
        work.add_done_callback(self._forget)  # after the one that brings the result
        return future

    def _forget(self, work: concurrent.futures.Future[Any]) -> None:
        with suppress(RuntimeError):  # the loop may be closed
            self.call_soon_threadsafe(self._in_executors.discard, work)

    async def _make_subprocess_transport(self, *args: Any, **options: Any) -> Any:
        self._waits_for_processes = True
        return await super()._make_subprocess_transport(*args, **options)  # type: ignore[misc]

    def run_forever(self) -> None:
        with self._shown_as_the_clock():
            super().run_forever()

    @contextmanager
    def _shown_as_the_clock(self) -> Iterator[None]:
        thread = threading.get_ident()

        def shown(real: Callable[[], Any], virtual: Callable[[], Any]) -> Callable[[], Any]:
            return lambda: virtual() if threading.get_ident() == thread else real()

        with (
            mock.patch.object(time, "monotonic", shown(time.monotonic, self.time)),
            mock.patch.object(time, "monotonic_ns", shown(time.monotonic_ns, lambda: int(self._now * NANOSECONDS))),
            mock.patch.object(time, "time", shown(time.time, lambda: self._now + self._wall_clock_ahead)),
            mock.patch.object(
                time,
                "time_ns",
                shown(time.time_ns, lambda: int((self._now + self._wall_clock_ahead) * NANOSECONDS)),
            ),
        ):
            yield


class _Selector(selectors.EpollSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or (timeout > 0 and self._loop.waits_for_others()):
            began = monotonic()
            ready = super().select(timeout)
            self._loop.advance(monotonic() - began)
        else:
            ready = super().select(0)
            self._loop.advance(TURN if ready else max(timeout, TURN))
        return ready


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop of every test below the `conftest.py` that imports this."""
    return {"virtual": VirtualTimeLoop}
