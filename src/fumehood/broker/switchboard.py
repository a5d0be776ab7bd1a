"""What servers say to each other, on plain NATS: nothing is stored, and every message is sealed.

Who may publish is not enough, as with journals: whoever lives in the engine's account without being a server (a bridge,
a trusted worker) can have the answer to a question delivered to any subject, with headers of its own making.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from nats.aio.msg import Msg

from fumehood.broker.connection import Connection, header
from fumehood.broker.sealed import SEAL, seal
from fumehood.broker.topology import MAX_PAYLOAD, switch_subject
from fumehood.errors import BrokerDeniedError, PayloadTooLargeError

_LABEL = b"switchboard"


def check_size(data: bytes) -> None:
    if len(data) > MAX_PAYLOAD:
        raise PayloadTooLargeError(f"a message between servers has at most {MAX_PAYLOAD} bytes")


class NatsSwitchboard:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._secret = b""
        self.counts: Counter[str] = Counter()
        """`foreign`: what came in and no server had sent."""

    def unlock(self, secret: bytes) -> None:
        """Learn the cell's secret. What is used is made from it, so that no message could pass for anything else."""
        self._secret = hmac.new(secret, _LABEL, hashlib.sha256).digest()

    async def send(self, address: str, data: bytes) -> None:
        check_size(data)
        subject = switch_subject(address)
        await self._connection.publish(subject, data, headers={SEAL: self._seal(subject, data)})

    @asynccontextmanager
    async def listen(self, address: str, take: Callable[[bytes], None]) -> AsyncIterator[None]:
        subject = switch_subject(address)

        def hear(message: Msg) -> None:
            found = (header(message, SEAL) or "").encode(errors="replace")
            if hmac.compare_digest(found, self._seal(subject, message.data).encode()):
                take(message.data)
            else:
                self.counts["foreign"] += 1

        subscription = await self._connection.subscribe(subject, hear)
        try:
            await self._connection.round_trip()  # now the server knows that we listen
            yield
        finally:
            await self._connection.unsubscribe(subscription, drain=False)

    def _seal(self, subject: str, data: bytes) -> str:
        """Over the address, too: what was said to one is not said to another."""
        if not self._secret:
            raise BrokerDeniedError("this connection does not know the cell's secret")
        return seal(self._secret, subject, data)
