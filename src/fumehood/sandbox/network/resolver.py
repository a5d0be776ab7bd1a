"""The node's resolver: what sandboxes with names may ask, on their bridge's own address.

A forwarder, and a narrow one: one ordinary question at a time, so many a second for each sandbox, answered by the
node's own upstream. An answer that mentions an address which is not public is not passed on: a name of somebody's
choosing must not lead to a neighbour (rebinding). Who is not known by its address gets no answer at all.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from fumehood.errors import NetworkUnavailableError
from fumehood.sandbox.network.accounts import Account, Accounts
from fumehood.sandbox.network.addresses import is_public
from fumehood.sandbox.network.dns_message import HEADER, MAX_QUERY, REFUSED, SERVFAIL, DnsError, Query, read_query
from fumehood.sandbox.network.relay import end_of, let_go
from fumehood.sandbox.network.ruleset import DNS_PORT
from fumehood.sandbox.network.upstream import Upstream

QUESTIONS_OF_ONE: Final = 32
QUESTIONS_OF_ALL: Final = 512
"""Under way at once; what comes beyond is dropped, and clients ask again."""
IDLE_SECONDS: Final = 10.0


class Resolver:
    """One listener on one address, UDP and TCP."""

    def __init__(self, accounts: Accounts, upstream: Upstream) -> None:
        self._accounts = accounts
        self._upstream = upstream
        self._tasks: set[asyncio.Task[None]] = set()
        self._udp: asyncio.DatagramTransport | None = None
        self._tcp: asyncio.Server | None = None

    async def start(self, address: str, port: int = DNS_PORT) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._udp, _ = await loop.create_datagram_endpoint(lambda: _Questions(self), local_addr=(address, port))
            self._tcp = await asyncio.start_server(self._connected, address, port, limit=MAX_QUERY)
        except OSError as error:
            await self.close()
            raise NetworkUnavailableError(
                f"the resolver of sandboxes cannot listen on {address} port {port} ({error.strerror}): "
                "another resolver that listens on all addresses must be told not to, or the node lacks the right to"
            ) from error

    async def close(self) -> None:
        if self._udp is not None:
            self._udp.close()
        if self._tcp is not None:
            self._tcp.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- UDP -----------------------------------------------------------------------------------------------

    def received(self, data: bytes, sender: tuple[str, int]) -> None:
        account = self._welcome(sender[0])
        if account is not None:
            self._track(account, asyncio.create_task(self._answer_datagram(account, data, sender)))

    async def _answer_datagram(self, account: Account, data: bytes, sender: tuple[str, int]) -> None:
        answer = await self._answer(account, data, over_tcp=False)
        if answer is not None and self._udp is not None and not self._udp.is_closing():
            self._udp.sendto(answer, sender)

    # --- TCP -----------------------------------------------------------------------------------------------

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        account = self._welcome(end_of(writer))
        if account is None:
            writer.transport.abort()
        else:
            self._track(account, asyncio.create_task(self._serve(account, reader, writer), name="resolver.connection"))

    async def _serve(self, account: Account, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(TimeoutError, OSError, asyncio.IncompleteReadError):
                await self._conversation(account, reader, writer)
        finally:
            await let_go(writer, IDLE_SECONDS)

    async def _conversation(self, account: Account, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            async with asyncio.timeout(IDLE_SECONDS):
                length = int.from_bytes(await reader.readexactly(2), "big")
                if length > MAX_QUERY:
                    return
                answer = await self._answer(account, await reader.readexactly(length), over_tcp=True)
                if answer is None:
                    return
                writer.write(len(answer).to_bytes(2, "big") + answer)
                await writer.drain()

    # --- both ----------------------------------------------------------------------------------------------

    def _welcome(self, address: str) -> Account | None:
        """A sandbox that we know, and that has not too much under way."""
        account = self._accounts.at(address)
        if account is None or len(account.tasks) >= QUESTIONS_OF_ONE or len(self._tasks) >= QUESTIONS_OF_ALL:
            return None
        return account

    def _track(self, account: Account, task: asyncio.Task[None]) -> None:
        for tasks in (account.tasks, self._tasks):
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _answer(self, account: Account, data: bytes, *, over_tcp: bool) -> bytes | None:
        if not account.may_ask(asyncio.get_running_loop().time()):
            account.deny("more name look-ups than it may make")
            return None
        try:
            query = read_query(data)
        except DnsError as error:
            account.deny("a name look-up that is not understood, or of a kind that is not passed on")
            return _complaint(data, error.rcode)
        address = query.reversed_address
        if address is not None and not is_public(address):
            account.deny(f"name {query.name}: it asks who has an address that is not public")
            return query.refusal(REFUSED)
        return await self._forward(account, query, over_tcp=over_tcp)

    async def _forward(self, account: Account, query: Query, *, over_tcp: bool) -> bytes:
        try:
            data, answer = await self._upstream.ask(query, over_tcp=over_tcp)
        except DnsError:
            return query.refusal(SERVFAIL)
        if not all(map(is_public, answer.mentioned)):
            account.deny(f"name {query.name}: it leads to an address that is not public")
            return query.refusal(REFUSED)
        account.allow()
        if not over_tcp and len(data) > query.room:
            return query.truncation()
        return query.identity.to_bytes(2, "big") + data[2:]


def _complaint(data: bytes, rcode: int) -> bytes | None:
    """An answer without a question to a question that could not be read."""
    if len(data) < HEADER.size or data[2] & 0x80:
        return None  # an answer, or noise: answering that could go on for ever
    return data[:2] + (0x8080 | rcode).to_bytes(2, "big") + bytes(8)


class _Questions(asyncio.DatagramProtocol):
    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._resolver.received(data, addr)
