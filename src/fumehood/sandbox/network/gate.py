"""May a sandbox go there? The proxy's whole judgement, and the connection that follows from it.

A name is looked up once, all its addresses are looked at, and the connection goes to one of those very addresses:
there is no second look-up that could say something else. An address that is public may still be this machine's own,
and what listens there on the host is none of a sandbox's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from fumehood.images.egress import EgressRules
from fumehood.sandbox.network.addresses import Address, is_public
from fumehood.sandbox.network.own import is_own
from fumehood.sandbox.network.relay import Stream, end_of
from fumehood.sandbox.network.targets import Target
from fumehood.sandbox.network.upstream import NoAddressError, Upstream

CONNECT_SECONDS: Final = 10.0
TRIED_ADDRESSES: Final = 4


class RefusedError(Exception):
    """The answer is no: a status and a sentence for the client. `denied`: because of what it asked for."""

    def __init__(self, status: int, sentence: str, *, denied: bool = False) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.denied = status, sentence, denied


class Gate:
    """What the operator allows now, and where names lead now."""

    def __init__(self, rules: Callable[[], EgressRules], upstream: Upstream) -> None:
        self._rules = rules
        self._upstream = upstream

    def rules(self) -> EgressRules:
        return self._rules()

    def allows(self, target: Target) -> bool:
        return self._rules().allows(target.host, target.port) is not None

    async def connect(self, target: Target) -> Stream:
        """A connection to what was judged, and to nothing else."""
        if not self.allows(target):
            raise RefusedError(403, f"{target} is not among the names that this node's policy allows", denied=True)
        try:
            addresses = await self._upstream.addresses(target.host)
        except NoAddressError:
            raise RefusedError(502, f"{target.host} was not found") from None
        if not all(map(is_public, addresses)):
            raise RefusedError(403, f"{target.host} leads to an address that is not public", denied=True)
        tried = addresses[:TRIED_ADDRESSES]
        try:
            leads_here = any(map(is_own, tried))
        except OSError:
            raise RefusedError(502, f"this machine has no way to {target}") from None
        if leads_here:
            raise _leads_here(target)
        for address in tried:
            if (stream := await _connection(address, target)) is not None:
                return stream
        raise RefusedError(502, f"{target} does not answer")


async def _connection(address: Address, target: Target) -> Stream | None:
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(str(address), target.port)
    except OSError:  # TimeoutError is one
        return None
    if end_of(writer, "sockname") != end_of(writer, "peername"):
        return reader, writer
    writer.transport.abort()  # the address became ours since we asked
    raise _leads_here(target)


def _leads_here(target: Target) -> RefusedError:
    return RefusedError(403, f"{target.host} leads to this machine itself", denied=True)
