"""New sessions: nobody keeps all places for them while others wait."""

from __future__ import annotations

import time
from collections import Counter

from fumehood.errors import CommandFailedError
from fumehood.node.console.shares import Shares
from fumehood.sandbox.sessions.sessions import Sessions
from fumehood.sandbox.sessions.values import SessionFacts, SessionWish
from fumehood.wire.console.codes import Reason


class Making:
    """`Sessions.create`, shared by all who ask for sessions."""

    def __init__(self, sessions: Sessions, most: int) -> None:
        self._sessions = sessions
        self._shares = Shares(most, time.monotonic)

    async def create(self, wish: SessionWish) -> SessionFacts:
        """Make a session, or find the one of this name."""
        owner = wish.name.owner
        self._check(wish)
        try:
            made = await self._sessions.create(wish)
        except CommandFailedError as error:
            if error.reason == Reason.NO_CAPACITY:
                self._shares.turned_away(owner)
            raise
        self._shares.served(owner)
        return made

    def _check(self, wish: SessionWish) -> None:
        is_new = self._sessions.made_by(wish.name) is None
        taken = Counter(facts.name.owner for facts in self._sessions.list())
        if is_new and not self._shares.is_fair(wish.name.owner, taken):
            raise CommandFailedError(
                Reason.NO_CAPACITY,
                f"others wait for a session on this worker, and you have {taken[wish.name.owner]}: remove one, or try "
                "again later",
            )
