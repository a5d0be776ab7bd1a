"""The way of git to a server: the egress proxy that restricted sandboxes have, for one name and one fetch.

So the same judgement counts: the operator's list of names, a look at every address that the name leads to, a connection
to one of these very addresses, and TLS that names the server that was asked for. Git itself never looks up a name.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from fumehood.images.egress import EgressRule, EgressRules
from fumehood.node.jobs.sandbox.sources import GitUrl
from fumehood.sandbox.network.accounts import Account, Accounts
from fumehood.sandbox.network.gate import Gate
from fumehood.sandbox.network.proxy import Proxy
from fumehood.sandbox.network.upstream import Upstream
from fumehood.sandbox.spec import Network

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class WayOut:
    proxy: str
    """An address for git."""
    account: Account

    @property
    def denial(self) -> str | None:
        """The last thing that was not allowed."""
        return self.account.denials[-1].partition(" ")[2] if self.account.denials else None


@contextlib.asynccontextmanager
async def way_to(url: GitUrl, rules: Callable[[], EgressRules], upstream: Upstream) -> AsyncIterator[WayOut]:
    """Open for as long as this lasts. It leads to one server, whatever else is allowed: where that sends git elsewhere,
    the answer is no."""

    def narrowed() -> EgressRules:
        allowed = rules().allows(url.host, url.port) is not None
        return EgressRules((EgressRule(url.host, url.port),)) if allowed else EgressRules()

    accounts = Accounts()
    account = accounts.enter("git", Network.RESTRICTED, LOOPBACK)
    proxy = Proxy(accounts, Gate(narrowed, upstream))
    await proxy.start(LOOPBACK, 0)
    try:
        yield WayOut(f"http://{LOOPBACK}:{proxy.port}", account)
    finally:
        await proxy.close()
