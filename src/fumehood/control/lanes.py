"""Messages on their way through a decider: one lane for each run, and a bound on all of them together.

A run's messages are handled one after the other, those that came meanwhile all at once; different runs do not wait for
each other. Whatever ends a lane, but for what its handler takes care of itself, ends the whole.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from fumehood.broker.ports import Delivery
from fumehood.errors import BrokerError

IN_HAND = 1024
"""Messages taken and not yet answered: well below what the broker lets out."""
STUCK = 30
"""Thirds of the broker's patience that a message is kept for at most."""
T = TypeVar("T")


class Lanes:
    def __init__(
        self,
        handle: Callable[[str, Sequence[Delivery]], Awaitable[None]],
        *,
        patience: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._handle = handle
        self._patience = patience
        self._sleep = sleep
        self._waiting: dict[str, list[Delivery]] = {}
        self._lanes: dict[str, asyncio.Task[None]] = {}
        self._handled: dict[str, list[Delivery]] = {}
        self._in_hand = 0
        self._news = asyncio.Event()
        self._busy = asyncio.Event()
        self._fault: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._keeping = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        """What takes long (a map hands out thousands of tasks) is not to be brought again meanwhile; but whoever is at
        it for much too long is stuck, and another decider should try."""
        ages: dict[Delivery, int] = {}
        while True:
            await self._busy.wait()
            await self._sleep(self._patience / 3)
            held = [one for some in (*self._handled.values(), *self._waiting.values()) for one in some]
            ages = {one: ages.get(one, 0) + 1 for one in held}
            for one in held:
                if 1 < ages[one] <= STUCK:
                    with contextlib.suppress(BrokerError):
                        await one.extend()

    async def add(self, deliveries: Sequence[Delivery]) -> None:
        """Begin with these; return when there is room for more."""
        for delivery in deliveries:
            self._waiting.setdefault(delivery.run_id, []).append(delivery)
            if delivery.run_id not in self._lanes:
                self._lanes[delivery.run_id] = asyncio.create_task(self._lane(delivery.run_id))
        self._in_hand += len(deliveries)
        if self._in_hand:
            self._busy.set()
        await self._until(lambda: self._in_hand < IN_HAND)

    async def beside(self, call: Coroutine[Any, Any, T]) -> T:
        """The call's answer, unless a lane ends the whole before."""
        task = asyncio.create_task(call)
        try:
            await asyncio.wait((task, self._fault), return_when=asyncio.FIRST_COMPLETED)
            if self._fault.done():
                self._fault.result()
            return await task
        finally:
            task.cancel()

    async def drained(self) -> None:
        await self._until(lambda: not self._in_hand)

    async def close(self) -> None:
        """What is under way is given up: unanswered messages come again."""
        lanes = (*self._lanes.values(), self._keeping)
        for lane in lanes:
            lane.cancel()
        await asyncio.gather(*lanes, return_exceptions=True)
        if self._fault.done():
            self._fault.exception()

    async def _lane(self, run_id: str) -> None:
        try:
            while deliveries := self._waiting.pop(run_id, None):
                self._handled[run_id] = deliveries
                await self._handle(run_id, deliveries)
                self._in_hand -= len(deliveries)
                if not self._in_hand:
                    self._busy.clear()
        except asyncio.CancelledError:
            raise
        except BaseException as fault:  # noqa: BLE001 - whatever it is, it is raised where the lanes are driven
            if not self._fault.done():
                self._fault.set_exception(fault)
        finally:
            self._lanes.pop(run_id, None)
            self._handled.pop(run_id, None)
            self._news.set()

    async def _until(self, enough: Callable[[], bool]) -> None:
        while not enough() and not self._fault.done():
            self._news.clear()
            await self._news.wait()
        if self._fault.done():
            self._fault.result()
