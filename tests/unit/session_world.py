"""Sessions over a machine in memory: a worker's life can end, and another one begin on the same machine."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from fumehood.errors import CommandFailedError
from fumehood.images.admission import Admission
from fumehood.images.development import DevelopmentPolicy
from fumehood.images.reference import ImageReference
from fumehood.sandbox.fake import FakeDriver, FakeEngine
from fumehood.sandbox.sessions.sessions import Sessions
from fumehood.sandbox.sessions.store import SessionStore
from fumehood.sandbox.sessions.values import ProcessWish, SessionName, SessionOptions, SessionWish
from tests.waiting import until

IMAGE = "127.0.0.1:5055/fake/image@sha256:" + "0" * 64
NAME = SessionName("acme", "s1")
MINUTE = 60_000


class NoRegistry:
    async def resolve(self, reference: ImageReference) -> str:
        raise AssertionError("a digest needs no registry")


class Clock:
    """The wall clock, which a test sets, and a steady one."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000
        self.steady_ms = 5_000_000

    def __call__(self) -> int:
        return self.now_ms

    def steady(self) -> int:
        return self.steady_ms

    def pass_ms(self, milliseconds: int) -> None:
        """Time goes by."""
        self.now_ms += milliseconds
        self.steady_ms += milliseconds


@dataclass
class World:
    folder: Path
    engine: FakeEngine = field(default_factory=FakeEngine)
    clock: Clock = field(default_factory=Clock)
    options: SessionOptions = field(default_factory=lambda: SessionOptions(janitor_seconds=0.01))

    def driver(self) -> FakeDriver:
        return FakeDriver(self.engine)

    @contextlib.asynccontextmanager
    async def life(self, driver: FakeDriver | None = None, **options: Any) -> AsyncIterator[Sessions]:
        """One process on this machine. Leaving it is a death: it does nothing about its sandboxes."""
        store = await SessionStore.open(self.folder)
        try:
            async with self.opened(driver or self.driver(), store, **options) as sessions:
                yield sessions
        finally:
            await store.close()

    def opened(
        self, driver: FakeDriver, store: SessionStore, **options: Any
    ) -> contextlib.AbstractAsyncContextManager[Sessions]:
        admission = Admission(DevelopmentPolicy(), NoRegistry())
        return Sessions.open(
            driver, admission, store, replace(self.options, clock=self.clock, steady=self.clock.steady, **options)
        )


def wish(name: SessionName = NAME, lease_ms: int = MINUTE, **changes: Any) -> SessionWish:
    return SessionWish(name, IMAGE, lease_ms, **changes)


def command(*argv: str, command_id: str = "", **changes: Any) -> ProcessWish:
    return ProcessWish(command_id or uuid4().hex, argv, **changes)


def refusal(call: Callable[[], object]) -> str:
    """Why a call is refused."""
    with pytest.raises(CommandFailedError) as error:
        call()
    return error.value.reason


async def rounds(sessions: Sessions, count: int = 3) -> None:
    """The janitor has gone round so often since now."""
    janitor, gone = sessions._janitor, 0
    real = janitor._round

    async def counted() -> None:
        nonlocal gone
        try:
            await real()
        finally:
            gone += 1

    janitor._round = counted  # type: ignore[method-assign]
    await until(lambda: gone >= count)
    janitor._round = real  # type: ignore[method-assign]
