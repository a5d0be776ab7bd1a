"""The stock: idle sandboxes that this process made, kept at what demand asks for by one task in the background."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
import uuid
from collections import deque
from collections.abc import Collection, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import structlog

from fumehood.errors import FumehoodError, SandboxError, SandboxStartError
from fumehood.sandbox.driver import Driver, Handle
from fumehood.sandbox.pauses import pause_seconds
from fumehood.sandbox.pool import waiting
from fumehood.sandbox.pool.demand import Demand
from fumehood.sandbox.pool.values import Key, PoolOptions, key_of, stock_spec
from fumehood.sandbox.pool.waiting import Waiting
from fumehood.sandbox.spec import SandboxSpec

LOOK_SECONDS = 5.0
"""Between two looks at what became of demand, where nothing happens."""
ALIVE_SECONDS = 5.0
CHECK_SECONDS = 30.0
"""Between two looks at whether those in stock still live."""
CLOSE_SECONDS = 15.0
LAST_SECONDS = 5.0
LONGEST_AGAIN_SECONDS = 30.0
"""Between tries to remove one."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Idle:
    """One that waits for somebody."""

    handle: Handle
    waiting: Waiting | None = None


class Stock:
    def __init__(self, driver: Driver, options: PoolOptions) -> None:
        self._driver = driver
        self._options = options
        self._demand = Demand(options)
        self._idle: dict[Key, deque[Idle]] = {}
        self._making: dict[Key, int] = {}
        self._own: set[str] = set()
        self._starting = 0
        self._news = asyncio.Event()
        self._checked = time.monotonic()
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def ids(self) -> Collection[str]:
        """Of sandboxes that are nobody's yet, or are on their way out: nobody else needs to look after them."""
        return self._own

    @property
    def idle(self) -> int:
        return sum(len(shelf) for shelf in self._idle.values())

    @property
    def making(self) -> int:
        return sum(self._making.values())

    def open(self) -> None:
        if self._options.most > 0:
            self._keeper = asyncio.create_task(self._keep(), name="warm-pool")

    async def close(self) -> None:
        """Nothing of the stock stays; what cannot be removed in time ends for want of an owner."""
        self._closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        followed = [one.waiting.task for shelf in self._idle.values() for one in shelf if one.waiting is not None]
        for shelf in self._idle.values():
            while shelf:
                self.discard(shelf.popleft())
        await asyncio.gather(*followed, return_exceptions=True)
        await self._settled(CLOSE_SECONDS)
        for task in list(self._tasks):
            task.cancel()
        await self._settled(LAST_SECONDS)

    async def _settled(self, seconds: float) -> None:
        """What was being made meanwhile is removed by tasks that are not there yet."""
        until = time.monotonic() + seconds
        while self._tasks and (left := until - time.monotonic()) > 0:
            await asyncio.wait(self._tasks, timeout=left)
            await asyncio.sleep(0)  # those that have ended leave

    # --- taking --------------------------------------------------------------------------------------------

    def asked(self, spec: SandboxSpec) -> None:
        """Somebody wants one like this."""
        if self._keeper is not None:
            self._demand.asked(key_of(spec), spec, time.monotonic())
            self._news.set()

    async def take(self, spec: SandboxSpec) -> Idle | None:
        """One like this that lives, for whoever asks; it is out of stock from here on, whatever becomes of him."""
        shelf = self._idle.get(key_of(spec))
        while shelf:
            found = shelf.popleft()
            try:
                alive = await self._is_alive(found)
            except BaseException:
                self.discard(found)
                raise
            if alive:
                return found
            self.discard(found)
        return None

    async def _is_alive(self, idle: Idle) -> bool:
        if idle.waiting is not None and idle.waiting.ended:
            return False
        try:
            async with asyncio.timeout(ALIVE_SECONDS):
                await self._driver.attach(idle.handle)
        except (SandboxError, TimeoutError):
            return False
        return True

    def given(self, idle: Idle) -> None:
        """Somebody else looks after it now."""
        self._own.discard(idle.handle.sandbox_id)

    def discard(self, idle: Idle) -> None:
        """It is not to be used any more."""
        if idle.waiting is not None:
            idle.waiting.give_up()
        self.remove(idle.handle)

    def remove(self, handle: Handle) -> None:
        """Beside; until it is gone it is nobody's."""
        self._own.add(handle.sandbox_id)
        self.spawn(self._removed(handle))

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """While somebody waits for one of his own, only one is made for the stock."""
        self._starting += 1
        try:
            yield
        finally:
            self._starting -= 1
            self._news.set()

    # --- keeping -------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._news.wait()
            await asyncio.sleep(self._options.quiet_seconds)
            self._news.clear()
            try:
                await self._check()
                self._adapt()
            except Exception as error:  # noqa: BLE001 - sandboxes are made without a stock, too
                _log.warning("pool.failed", error=type(error).__name__)

    async def _check(self) -> None:
        """One that died lies in nobody's way: without this it would be missed only by whoever asks for it."""
        if time.monotonic() < self._checked + CHECK_SECONDS:
            return
        self._checked = time.monotonic()
        for shelf in list(self._idle.values()):
            for idle in list(shelf):
                if not await self._is_alive(idle) and idle in shelf:
                    shelf.remove(idle)
                    self.discard(idle)

    def _adapt(self) -> None:
        now = time.monotonic()
        targets = self._demand.targets(now)
        for key in list(self._idle):
            shelf = self._idle[key]
            while len(shelf) > targets.get(key, 0):
                self.discard(shelf.popleft())
            if not shelf and key not in targets:
                del self._idle[key]
        for key, target in targets.items():
            for _ in range(self._lacking(key, target)):
                if self._may_make(key, now):
                    self._make(key)

    def _lacking(self, key: Key, target: int) -> int:
        return target - len(self._idle.get(key, ())) - self._making.get(key, 0)

    def _may_make(self, key: Key, now: float) -> bool:
        most = 1 if self._starting else self._options.starts
        return self.making < most and self._demand.may_be_made(key, now)

    def _make(self, key: Key) -> None:
        spec = self._demand.spec_of(key)
        if spec is not None:
            self._making[key] = self._making.get(key, 0) + 1
            self.spawn(self._made(key, spec))

    async def made(self, wanted: SandboxSpec) -> None:
        """One like this, in stock when it returns, unless it could not be made."""
        key = key_of(wanted)
        self._making[key] = self._making.get(key, 0) + 1
        await self._made(key, wanted)

    async def _made(self, key: Key, wanted: SandboxSpec) -> None:
        try:
            if key.waiting is not None and not self._demand.is_fit(key):
                await self._try(key, wanted)
            began = time.monotonic()
            idle = await self._started(wanted, key.waiting)
        except FumehoodError as error:
            self._demand.failed(key, time.monotonic())
            _log.info("pool.not_made", code=error.code)
        else:
            self._demand.made(key, time.monotonic() - began)
            if self._closed:
                self.discard(idle)
            else:
                self._idle.setdefault(key, deque()).append(idle)
        finally:
            self._making[key] -= 1
            if not self._making[key]:
                del self._making[key]
            self._news.set()

    async def _try(self, key: Key, wanted: SandboxSpec) -> None:
        """What an owner is told must be his program's doing: an image whose interpreter cannot stand in for `python -c`
        is found out before anybody gets one."""
        idle = await self._started(wanted, key.waiting)
        assert idle.waiting is not None
        try:
            fit = await waiting.is_fit(self._driver, idle.handle, idle.waiting)
        finally:
            self.discard(idle)
        self._demand.tried(key, fit=fit)
        if not fit:
            raise SandboxStartError("the image's interpreter cannot wait for a program")

    async def _started(self, wanted: SandboxSpec, kind: str | None) -> Idle:
        spec = stock_spec(wanted, uuid.uuid4().hex)
        self._own.add(spec.sandbox_id)
        try:
            handle = await self._driver.prepare(spec)
        except BaseException:
            self._own.discard(spec.sandbox_id)  # if something was made of it, it is found as nobody's
            raise
        try:
            await self._driver.start(handle)
            return Idle(handle, None if kind is None else await waiting.begun(self._driver, handle, kind))
        except BaseException:
            self.remove(handle)
            raise

    async def _removed(self, handle: Handle) -> None:
        """However long it takes, while this process lives: nobody else would."""
        try:
            for attempt in itertools.count():
                try:
                    return await self._driver.destroy(handle)
                except SandboxError as error:
                    _log.info("pool.not_removed", code=error.code)
                    await asyncio.sleep(pause_seconds(attempt, longest=LONGEST_AGAIN_SECONDS))
        finally:
            self._own.discard(handle.sandbox_id)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Something that is done beside, and at the latest when the pool closes."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
