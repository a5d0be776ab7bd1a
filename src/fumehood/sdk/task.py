"""A task as its handler sees it, and the ways in which a handler ends one.

A handler that returns has completed its task, one that raises has failed it. What else there is to say is a value, to
be returned or raised, as it suits the code: `TaskFailed` with a code, `Pause`, `Continue`. Handlers that are
coroutines get a `Task`, plain functions run in a thread and get a `SyncTask`: the same words, blocking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

from fumehood.wire.protocol import LONGEST_PAUSE_MS, TaskPayload


class Ending(Exception):  # noqa: N818 - an end of a task, not always an error
    """Ends a task other than by its output. Return it, or raise it from wherever you are."""


class TaskFailed(Ending):
    """The attempt failed. `code` is for the step's retry policy, `message` for people; `retryable=False` means that
    another attempt cannot do better."""

    def __init__(self, code: str, message: str = "", *, retryable: bool | None = None) -> None:
        super().__init__(code, message)
        self.code, self.message, self.retryable = code, message, retryable


class Pause(Ending):
    """The same attempt again after some seconds, with `checkpoint` (if one is given) in the next handler's hands.
    Costs no attempt, and no worker while it lasts."""

    def __init__(self, seconds: float, checkpoint: Any = None) -> None:
        self.duration_ms = max(1, round(seconds * 1000))
        if seconds < 0 or self.duration_ms > LONGEST_PAUSE_MS:
            raise ValueError(f"a pause has 0 to {LONGEST_PAUSE_MS // 1000} seconds")
        super().__init__(seconds)
        self.checkpoint = checkpoint


class Continue(Ending):
    """An agent loop's next iteration, which finds `said` as `previous` in its input."""

    def __init__(self, said: Any = None) -> None:
        super().__init__()
        self.said = said


class Hands(Protocol):
    """What a task under way can do for its handler."""

    @property
    def cancelled(self) -> bool: ...
    async def save(self, data: Any) -> None: ...
    async def heartbeat(self) -> None: ...
    async def signal(self, name: str, data: Any) -> None: ...


class TaskFacts:
    """What both kinds of task have in common."""

    def __init__(self, payload: TaskPayload, task_type: str, headers: Mapping[str, str], hands: Hands) -> None:
        self.type = task_type
        self.input: Any = payload.input
        """References to large content are resolved."""
        self.id = payload.task_id
        self.run_id = payload.run_id
        self.step_id = payload.step_id
        self.attempt = payload.attempt
        """Counts from 1; grows when the engine tries again."""
        self.iteration = payload.iteration
        """Counts from 0; grows with each `again`."""
        self.checkpoint: Any = payload.checkpoint
        """What an earlier worker on this step saved last, or `None`."""
        self.headers = dict(headers)
        self.traceparent = payload.traceparent or self.headers.get("traceparent")
        self._hands = hands

    @property
    def cancelled(self) -> bool:
        """The task is not this worker's any more, or the worker is going away: stop, whatever is returned now is
        thrown away. Coroutines are cancelled as well; plain functions have to look."""
        return self._hands.cancelled

    def pause(self, seconds: float, checkpoint: Any = None) -> Pause:
        """`return task.pause(60, checkpoint=…)`"""
        return Pause(seconds, checkpoint)

    def again(self, said: Any = None) -> Continue:
        """`return task.again(said)`"""
        return Continue(said)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.type} {self.id} attempt {self.attempt} iteration {self.iteration}>"


class Task(TaskFacts):
    """For handlers that are coroutines."""

    async def save(self, data: Any) -> None:
        """Keep this for whoever takes the task up again. Raises `LeaseLostError` if the task is not ours any more."""
        await self._hands.save(data)

    async def heartbeat(self) -> None:
        """Ask for more time now. Rarely needed: it happens in the background while the event loop is free."""
        await self._hands.heartbeat()

    async def signal(self, name: str, data: Any = None) -> None:
        """Tell the run something while the task goes on."""
        await self._hands.signal(name, data)


class SyncTask(TaskFacts):
    """For handlers that are plain functions: the words of `Task`, blocking."""

    def __init__(self, payload: TaskPayload, task_type: str, headers: Mapping[str, str], hands: Hands) -> None:
        super().__init__(payload, task_type, headers, hands)
        self._loop = asyncio.get_running_loop()

    def _wait(self, call: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def save(self, data: Any) -> None:
        """Keep this for whoever takes the task up again. Raises `LeaseLostError` if the task is not ours any more."""
        self._wait(self._hands.save(data))

    def heartbeat(self) -> None:
        """Ask for more time now. Rarely needed: it happens beside the thread."""
        self._wait(self._hands.heartbeat())

    def signal(self, name: str, data: Any = None) -> None:
        """Tell the run something while the task goes on."""
        self._wait(self._hands.signal(name, data))
