"""Sessions in this process, over the real engine: what a worker does for a command, without the way to the worker."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from bench.sessions_exec import Way
from bench.world import SOCKET, BenchError, image
from fumehood.cli.admission import admitting
from fumehood.node.console.capabilities import FLOOR
from fumehood.sandbox.docker import DockerDriver, DockerOptions
from fumehood.sandbox.sessions.sessions import Sessions
from fumehood.sandbox.sessions.store import SessionStore
from fumehood.sandbox.sessions.values import ProcessWish, SessionName, SessionWish
from fumehood.sandbox.spec import End
from fumehood.settings import WorkerSettings

LEASE_MS = 1_800_000
SECONDS = 20.0


@asynccontextmanager
async def in_process(folder: Path) -> AsyncIterator[Way]:
    """A way into a session of one's own, with the limits that a worker gives it."""
    async with AsyncExitStack() as stack:
        images = await stack.enter_async_context(admitting(WorkerSettings()))
        driver = DockerDriver(
            DockerOptions(f"bench-{secrets.token_hex(4)}", state_dir=folder, socket=SOCKET, runtime="runc")
        )
        stack.push_async_callback(driver.close)
        store = await SessionStore.open(folder / "sessions")
        stack.push_async_callback(store.close)
        sessions = await stack.enter_async_context(Sessions.open(driver, images.admission, store))
        stack.push_async_callback(sessions.remove_all)
        name = SessionName("default", "bench")
        await sessions.create(SessionWish(name, image("python"), LEASE_MS, limits=FLOOR))
        yield _way(sessions, name)


def _way(sessions: Sessions, name: SessionName) -> Way:
    numbers = itertools.count()

    async def run(command: tuple[str, ...]) -> bytes:
        command_id = f"bench-{next(numbers)}"
        await sessions.start(name, ProcessWish(command_id, command))
        facts = await sessions.ended(command_id, SECONDS)
        captured = await sessions.captured(command_id)
        if facts.outcome is None or facts.outcome.end is not End.EXITED or facts.outcome.exit_code != 0:
            raise BenchError(f"{' '.join(command)} ended otherwise: {facts}")
        return captured.stdout

    return run
