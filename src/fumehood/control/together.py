"""Many calls to the broker that belong together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fumehood.errors import BrokerUnavailableError

AT_ONCE = 64
"""Calls of one run under way together: a map hands out thousands of tasks in one decision."""


async def together(calls: Sequence[Coroutine[Any, Any, Any]]) -> None:
    """All of them, some at a time; the first error is raised in the end. Only a broker that is away ends the rest: each
    of them would wait for it. Nothing goes on once this has returned."""
    if len(calls) > 1:
        await _in_lanes(calls)
    elif calls:  # as most decisions have it
        await calls[0]


async def _in_lanes(calls: Sequence[Coroutine[Any, Any, Any]]) -> None:
    waiting = iter(calls)
    errors: list[Exception] = []

    async def lane() -> None:
        for call in waiting:
            try:
                await call
            except BrokerUnavailableError:
                raise
            except Exception as error:  # noqa: BLE001 - raised below, when the others are done
                errors.append(error)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(AT_ONCE, len(calls))):
                group.create_task(lane())
    except BaseExceptionGroup as group_of:
        raise group_of.exceptions[0] from None
    finally:
        for call in waiting:
            call.close()
    if errors:
        raise errors[0]


async def one_by_one(parts: Sequence[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    """One after the other, each of them whatever became of those before it; the first error is raised in the end."""
    errors: list[Exception] = []
    for part in parts:
        try:
            await part()
        except Exception as error:  # noqa: BLE001 - raised below, when the others are done
            errors.append(error)
    if errors:
        raise errors[0]
