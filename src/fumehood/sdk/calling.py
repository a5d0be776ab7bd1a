"""Calling handlers: coroutines as tasks of the loop, plain functions in threads.

Each plain function gets a thread of its own, not one of a pool: their number is bounded by the worker's room anyway,
and a pool's threads are joined when the interpreter ends, so that one handler that hangs would keep a worker from
ever going away.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fumehood.sdk.task import SyncTask, Task

T = TypeVar("T")

Handler = Callable[[Task], Awaitable[Any]] | Callable[[SyncTask], Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a handler returned or raised."""

    value: Any = None
    error: BaseException | None = None


def is_async(handler: Handler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


async def in_loop(handler: Callable[[Task], Awaitable[Any]], task: Task) -> Outcome:
    """Cancelling this cancels the handler, and what comes of it is its outcome."""
    try:
        return Outcome(await handler(task))
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - a handler may raise anything
        return Outcome(error=error)


def in_thread(handler: Callable[[SyncTask], Any], task: SyncTask) -> asyncio.Future[Outcome]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Outcome] = loop.create_future()
    context = contextvars.copy_context()

    def tell(outcome: Outcome) -> None:
        if not future.done():
            future.set_result(outcome)

    def run() -> None:
        try:
            outcome = Outcome(context.run(handler, task))
        except BaseException as error:  # noqa: BLE001 - `sys.exit` in a thread ends nothing, and must be told
            outcome = Outcome(error=error)
        try:
            loop.call_soon_threadsafe(tell, outcome)
        except RuntimeError:
            return  # the worker has gone meanwhile

    threading.Thread(target=run, name=f"task-{task.type}", daemon=True).start()
    return future
