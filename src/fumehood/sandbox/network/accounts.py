"""What each sandbox did on its network: who it is by its address, what it was allowed and denied, and how much it may
ask.

In memory: a node that was restarted counts anew, and `since` says from when. Everything is bounded, whatever a
sandbox does.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from fumehood.sandbox.spec import Network

KEPT_DENIALS: Final = 20
DENIAL_CHARACTERS: Final = 300

QUESTIONS_A_SECOND: Final = 50.0
QUESTIONS_AT_ONCE: Final = 100.0
"""Name look-ups of one sandbox: above what package managers do, below what a tunnel through names would like."""


@dataclass(slots=True)
class Account:
    """One sandbox. The tasks that serve it end with it."""

    sandbox_id: str
    profile: Network
    address: str
    since: dt.datetime = field(default_factory=lambda: dt.datetime.now(dt.UTC))
    allowed: int = 0
    denied: int = 0
    denials: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_DENIALS))
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _tokens: float = QUESTIONS_AT_ONCE
    _filled_at: float = 0.0

    def allow(self) -> None:
        self.allowed += 1

    def deny(self, what: str) -> None:
        self.denied += 1
        self.denials.append(f"{dt.datetime.now(dt.UTC):%H:%M:%S} {what}"[:DENIAL_CHARACTERS])

    def may_ask(self, now: float) -> bool:
        """One more name look-up at this moment?"""
        refilled = self._tokens + (now - self._filled_at) * QUESTIONS_A_SECOND
        self._tokens, self._filled_at = min(QUESTIONS_AT_ONCE, refilled), now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def evidence(self) -> dict[str, object]:
        return {
            "profile": str(self.profile),
            "address": self.address,
            "since": self.since.isoformat(timespec="seconds"),
            "allowed": self.allowed,
            "denied": self.denied,
            "denials": list(self.denials),
        }


class Accounts:
    """All sandboxes that have a network now."""

    def __init__(self) -> None:
        self._by_sandbox: dict[str, Account] = {}
        self._by_address: dict[str, Account] = {}

    def enter(self, sandbox_id: str, profile: Network, address: str) -> Account:
        """From now on whoever comes from this address is this sandbox."""
        known = self._by_sandbox.get(sandbox_id)
        if known is not None and known.address == address:
            return known
        self.leave(sandbox_id)
        account = self._by_sandbox[sandbox_id] = self._by_address[address] = Account(sandbox_id, profile, address)
        return account

    def leave(self, sandbox_id: str) -> None:
        account = self._by_sandbox.pop(sandbox_id, None)
        if account is None:
            return
        if self._by_address.get(account.address) is account:
            del self._by_address[account.address]
        for task in account.tasks:
            task.cancel()

    def at(self, address: str) -> Account | None:
        return self._by_address.get(address)

    def of(self, sandbox_id: str) -> Account | None:
        return self._by_sandbox.get(sandbox_id)

    def all(self) -> list[Account]:
        return list(self._by_sandbox.values())
