"""A session does not end under somebody who sits in it: while he does, its lease is extended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from fumehood.cli.client import ApiError
from fumehood.cli.exits import CommandError, NoAnswerError
from fumehood.cli.session_calls import Session

LEASE_SECONDS = 300
EVERY_SECONDS = 20.0
"""A lease is a minute at least, so that the second try is in time, too; and a short command asks for nothing."""
LEAVE_SECONDS = 1.0


class Kept:
    """While the block runs."""

    def __init__(self, session: Session, say: Callable[[str], None], *, every: float = EVERY_SECONDS) -> None:
        self._session, self._say, self._every = session, say, every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(LEAVE_SECONDS)

    def _keep(self) -> None:
        while not self._over.wait(self._every):
            try:
                self._session.api.post(f"{self._session.path}:extend", {"lease_seconds": LEASE_SECONDS})
            except NoAnswerError:
                continue  # whoever shows the output tells that the server is away
            except CommandError as error:
                if not isinstance(error, ApiError) or error.status != 404:
                    self._say(f"the session's lease is not extended any more: {error.detail}")
                return
