"""The warm pool: the driver contract over another driver, with sandboxes that were started before they are asked for.

`prepare` takes one out of stock where there is one like what is asked for: it is tied to its owner's id and labels in
one transaction, and everything after that goes to the inner driver. A sandbox is used once; nothing ever goes back.
Where there is none, it is made as without a pool. Whoever is above sees no difference but time.

What is in stock belongs to this process alone: `list` does not show it, and the next process finds none of it claimed,
so that it is nobody's there and removed as such.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import structlog

from fumehood.errors import LedgerError, SandboxError, SandboxLostError, SandboxNameTakenError, SandboxStartError
from fumehood.sandbox.driver import FEED_SECONDS, Capabilities, Driver, Files, Handle, Inspection, Phase, Sink
from fumehood.sandbox.pauses import pause_seconds
from fumehood.sandbox.pool import waiting
from fumehood.sandbox.pool.stock import Idle, Stock
from fumehood.sandbox.pool.store import PoolStore
from fumehood.sandbox.pool.values import LABEL_WARM, OURS, Claim, PoolOptions, own_labels
from fumehood.sandbox.pool.waiting import Waiting
from fumehood.sandbox.spec import Command, ImageCommand, Outcome, SandboxSpec, User

STORE = "pool.sqlite3"
LONGEST_PAUSE_SECONDS = 30.0
SWEEP_SECONDS = 60.0
"""Between two looks for sandboxes that are nobody's."""

_log = structlog.get_logger()


class Engine(Driver, Protocol):
    """A driver that can also prove that it works."""

    async def ping(self) -> None: ...

    async def check(self) -> None: ...


class PooledDriver:
    """Implements `fumehood.sandbox.driver.Driver`. Use `async with PooledDriver.open(…)`."""

    def __init__(self, driver: Engine, store: PoolStore, options: PoolOptions) -> None:
        self._driver = driver
        self._store = store
        self._stock = Stock(driver, options)
        self._claims: dict[str, Claim] = {}
        self._by_inner: dict[str, Claim] = {}
        self._waiting: dict[str, Waiting] = {}
        self._numbered: set[str] = set()
        """Sandboxes whose first command has its number."""
        self.on_given: Callable[[str], None] = lambda _: None
        """Hears of each sandbox that was asked for: `warm`, or `cold` where it had to be made."""

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, driver: Engine, folder: Path, options: PoolOptions) -> AsyncIterator[PooledDriver]:
        """What an earlier life claimed is known; what it had in stock is not. The inner driver is not closed."""
        store = await PoolStore.open(folder / STORE)
        try:
            pool = cls(driver, store, options)
            for claim in await store.all():
                pool._know(claim)
            pool._stock.spawn(pool._clear_up(set(pool._claims)))
            pool._stock.open()
            sweeping = asyncio.create_task(pool._sweep(), name="warm-pool-sweep")
            try:
                yield pool
            finally:
                sweeping.cancel()
                await asyncio.gather(sweeping, return_exceptions=True)
                await pool._stock.close()
                await pool._let_go()
        finally:
            await store.close()

    async def warm(self, spec: SandboxSpec) -> None:
        """Have one like this in stock, whether or not anybody asked for it yet."""
        await self._stock.made(spec)

    @property
    def idle(self) -> int:
        """Sandboxes that wait for somebody."""
        return self._stock.idle

    @property
    def making(self) -> int:
        return self._stock.making

    async def _let_go(self) -> None:
        """Programs that wait for their owners go on, and are the next process's to follow."""
        followed = list(self._waiting.values())
        for one in followed:
            one.give_up()
        await asyncio.gather(*(one.task for one in followed), return_exceptions=True)

    async def _clear_up(self, claimed_before: Collection[str]) -> None:
        """What an earlier life had in stock goes, and so does the memory of what is gone: a machine that was started
        anew has no containers. An engine that is away is waited for."""
        there = {handle.sandbox_id: handle for handle in await self._listed()}
        for sandbox_id in claimed_before:
            claim = self._claims.get(sandbox_id)
            if claim is not None and claim.inner.sandbox_id not in there:
                await self._forget(claim)
        self._remove_strays(there.values())

    async def _sweep(self) -> None:
        """An engine that took too long to make one may have made it after all, for nobody."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self._remove_strays(await self._listed())

    def _remove_strays(self, warm: Iterable[Handle]) -> None:
        """Whichever is somebody's, or will be, is known here before and after it is claimed."""
        for handle in warm:
            if handle.sandbox_id not in self._stock.ids and handle.sandbox_id not in self._by_inner:
                self._stock.remove(handle)

    async def _listed(self) -> list[Handle]:
        for attempt in itertools.count():
            try:
                return await self._driver.list({LABEL_WARM: "true"})
            except SandboxError:
                await asyncio.sleep(pause_seconds(attempt, longest=LONGEST_PAUSE_SECONDS))
        raise AssertionError("unreachable")

    # --- what is here --------------------------------------------------------------------------------------

    async def capabilities(self) -> Capabilities:
        return await self._driver.capabilities()

    async def ping(self) -> None:
        await self._driver.ping()

    async def check(self) -> None:
        await self._driver.check()

    # --- life of a sandbox ---------------------------------------------------------------------------------

    async def prepare(self, spec: SandboxSpec) -> Handle:
        self._stock.asked(spec)
        claim = await self._claimed(spec)
        how = "cold" if claim is None else "warm"
        _log.debug("pool.given", sandbox=spec.sandbox_id, how=how)
        self.on_given(how)
        if claim is not None:
            return claim.handle
        with self._stock.starting():
            return await self._driver.prepare(spec)

    async def _claimed(self, spec: SandboxSpec) -> Claim | None:
        """One out of stock. Its owner is in the store before it has its name, and hears of it after that."""
        idle = await self._stock.take(spec)
        if idle is None:
            return None
        claim = Claim(spec.sandbox_id, own_labels(spec), idle.handle, spec.waiting)
        try:
            await self._store.claim(claim)
            if spec.name is not None:
                await self._driver.rename(idle.handle, spec.name)
        except (LedgerError, SandboxStartError, SandboxLostError) as error:  # one that is made may do better
            self._put_away(idle, claim)
            if isinstance(error, SandboxNameTakenError):
                raise
            _log.warning("pool.not_claimed", code=error.code)
            return None
        except BaseException:
            self._put_away(idle, claim)
            raise
        self._know(claim)
        if idle.waiting is not None:
            self._waiting[claim.sandbox_id] = idle.waiting
        self._stock.given(idle)
        return claim

    def _put_away(self, idle: Idle, claim: Claim) -> None:
        """It was claimed, perhaps, and not given: nobody else gets it either."""
        self._stock.discard(idle)
        self._stock.spawn(self._release(claim))

    def _know(self, claim: Claim) -> None:
        self._claims[claim.sandbox_id] = claim
        self._by_inner[claim.inner.sandbox_id] = claim

    async def _forget(self, claim: Claim) -> None:
        waiting = self._waiting.pop(claim.sandbox_id, None)
        if waiting is not None:
            waiting.give_up()
        self._claims.pop(claim.sandbox_id, None)
        self._by_inner.pop(claim.inner.sandbox_id, None)
        self._numbered.discard(claim.sandbox_id)
        await self._release(claim)

    async def _release(self, claim: Claim) -> None:
        """A row that stays is in nobody's way: the next process sees that there is no such sandbox."""
        with contextlib.suppress(LedgerError):
            await self._store.release(claim.sandbox_id)

    def _inner(self, handle: Handle) -> Handle:
        claim = self._claims.get(handle.sandbox_id)
        return handle if claim is None else claim.inner

    async def start(self, handle: Handle) -> None:
        if handle.sandbox_id in self._claims:
            return  # it runs
        with self._stock.starting():
            await self._driver.start(handle)

    async def image_command(self, handle: Handle) -> ImageCommand:
        return await self._driver.image_command(self._inner(handle))

    async def attach(self, handle: Handle) -> None:
        await self._driver.attach(self._inner(handle))

    async def rename(self, handle: Handle, name: str) -> None:
        await self._driver.rename(self._inner(handle), name)

    async def inspect(self, handle: Handle) -> Inspection:
        return await self._driver.inspect(self._inner(handle))

    def traffic(self, handle: Handle) -> Mapping[str, object] | None:
        return self._driver.traffic(self._inner(handle))

    def files(self, handle: Handle, *, root: str, user: User | None = None) -> Files:
        return self._driver.files(self._inner(handle), root=root, user=user)

    async def kill(self, handle: Handle) -> None:
        await self._driver.kill(self._inner(handle))

    async def destroy(self, handle: Handle) -> None:
        await self._driver.destroy(self._inner(handle))
        claim = self._claims.get(handle.sandbox_id)
        if claim is not None:
            await self._forget(claim)

    async def list(self, labels: Mapping[str, str]) -> list[Handle]:
        """Each under its owner's name. One that an earlier life had in stock is shown as it is: it is nobody's."""
        foreign = {name: value for name, value in labels.items() if not name.startswith(OURS)}
        found = [self._seen(handle) for handle in await self._driver.list(foreign)]
        return [handle for handle in found if handle is not None and labels.items() <= handle.labels.items()]

    def _seen(self, inner: Handle) -> Handle | None:
        if inner.sandbox_id in self._stock.ids:
            return None
        claim = self._by_inner.get(inner.sandbox_id)
        return inner if claim is None else claim.handle

    async def close(self) -> None:
        """The stock goes with the pool's own block, and the inner driver with whoever made it."""

    # --- inside a sandbox ----------------------------------------------------------------------------------

    async def run(self, handle: Handle, command: Command, sink: Sink, *, command_id: int) -> Outcome:
        claim = self._claims.get(handle.sandbox_id)
        if claim is None or claim.waiting is None or command_id != waiting.NUMBER:
            return await self._driver.run(self._inner(handle), command, sink, command_id=command_id)
        return await waiting.run(self._driver, claim.inner, self._waiting.get(claim.sandbox_id), command, sink)

    async def begin(self, handle: Handle, command_id: int, timeout_ms: int) -> None:
        await self._driver.begin(self._inner(handle), command_id, timeout_ms)

    async def next_id(self, handle: Handle) -> int:
        """The first command of a sandbox in which an interpreter waits is that one."""
        claim = self._claims.get(handle.sandbox_id)
        if claim is not None and claim.waiting is not None and claim.sandbox_id not in self._numbered:
            self._numbered.add(claim.sandbox_id)
            return waiting.NUMBER
        return await self._driver.next_id(self._inner(handle))

    async def settle(self, handle: Handle, command_id: int) -> None:
        await self._driver.settle(self._inner(handle), command_id)

    async def disown(self, handle: Handle, keep: Collection[int]) -> None:
        """An interpreter that nobody has given anything to do goes, too, and is not there for the next command."""
        claim = self._claims.get(handle.sandbox_id)
        if claim is not None and claim.waiting is not None and waiting.NUMBER not in keep:
            with contextlib.suppress(LedgerError):  # the next process says it again, of one that is gone by then
                await self._store.nothing_waits(claim.sandbox_id)
            self._know(replace(claim, waiting=None))
        await self._driver.disown(self._inner(handle), keep)

    async def feed(
        self, handle: Handle, command_id: int, offset: int, data: bytes, *, seconds: float = FEED_SECONDS
    ) -> int:
        return await self._driver.feed(self._inner(handle), command_id, offset, data, seconds=seconds)

    async def end_input(self, handle: Handle, command_id: int) -> None:
        await self._driver.end_input(self._inner(handle), command_id)

    async def stdin_received(self, handle: Handle, command_id: int) -> int:
        return await self._driver.stdin_received(self._inner(handle), command_id)

    async def resize(self, handle: Handle, command_id: int, rows: int, columns: int) -> None:
        await self._driver.resize(self._inner(handle), command_id, rows, columns)

    async def signal(self, handle: Handle, command_id: int, signal: int, *, everything: bool = False) -> None:
        await self._driver.signal(self._inner(handle), command_id, signal, everything=everything)

    async def reached(self, handle: Handle, command_id: int, phase: Phase) -> None:
        await self._driver.reached(self._inner(handle), command_id, phase)
