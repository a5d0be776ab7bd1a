"""What threads do otherwise than coroutines. The twin in `aio` is written by hand, too; all else here is derived."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextlib import closing as _closing
from typing import Any, TypeVar

import httpx

T = TypeVar("T")

Lock = threading.Lock

BESIDE_SECONDS = 1.0
"""For what is done beside to notice that nobody needs it any more. A request that is under way is not waited for."""


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def closing(pieces: Generator[T, None, None]) -> AbstractContextManager[Generator[T, None, None]]:
    """A generator that is put away when the block ends."""
    return _closing(pieces)


def called(function: Callable[[Any], Any] | None, given: Any) -> None:
    """A callback of the caller's."""
    if function is not None:
        function(given)


@contextmanager
def beside(work: Callable[[], None]) -> Iterator[None]:
    """Does something else while the block runs. It sees for itself that it is to stop, and is not waited for long. What
    goes wrong in it is its own affair: it tells whoever wants to know."""
    thread = threading.Thread(target=work, name="fumehood-beside", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join(BESIDE_SECONDS)


def in_thread(function: Callable[..., T], *given: Any) -> T:
    """We are in one."""
    return function(*given)


def hang_up(answer: httpx.Response) -> None:
    """Wakes the thread that reads it: closing a socket alone does not."""
    stream = answer.extensions.get("network_stream")
    found = stream.get_extra_info("socket") if stream is not None else None
    if isinstance(found, socket.socket):
        with suppress(OSError):  # it went by itself
            found.shutdown(socket.SHUT_RDWR)


@contextmanager
def until(moment: float | None) -> Iterator[None]:
    """Nothing wakes a thread: what is read in the block has its own deadline."""
    yield
