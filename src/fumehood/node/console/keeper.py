"""What the console is told of the sessions on this machine, and what this machine hears of them from the console."""

from __future__ import annotations

from collections.abc import Sequence

from fumehood.sandbox.sessions.sessions import Sessions
from fumehood.sandbox.sessions.values import SessionFacts, SessionName
from fumehood.wire.console.console_pb2 import HeldSession


class SessionKeeper:
    """Implements `Keeper` of the link."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def sessions(self) -> Sequence[HeldSession]:
        return [_held(facts) for facts in self._sessions.list()]

    async def leases(self, known: Sequence[HeldSession]) -> None:
        await self._sessions.leases(
            {SessionName(one.owner, one.session_id): one.lease_expires_unix_ms for one in known}
        )


def _held(facts: SessionFacts) -> HeldSession:
    return HeldSession(
        owner=facts.name.owner,
        session_id=facts.name.session_id,
        lease_expires_unix_ms=facts.lease_expires_ms,
        created_unix_ms=facts.created_ms,
        image=facts.image,
        image_digest=facts.image_digest,
        network=facts.network.value,
        runtime=facts.runtime,
    )
