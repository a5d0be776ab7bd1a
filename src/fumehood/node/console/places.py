"""How much a worker does at once: so many commands of a kind, so many session calls, and of these a share for each."""

from __future__ import annotations

import time
from collections import Counter
from typing import Final

from fumehood.node.console.shares import Shares
from fumehood.wire.console.codes import MAX_INFLIGHT, MAX_SESSION_CALLS, SESSION_CALL
from fumehood.wire.console.console_pb2 import Dispatch
from fumehood.wire.console.sessions import Method

ONLY_WAIT: Final = frozenset({Method.OUTPUT.value, Method.COMMAND.value})
"""Calls that wait for news and change nothing: they end with the stream that asked."""
KEPT_PART: Final = 8
"""One part of so many of the places for session calls is not for those that only wait."""


def is_call(dispatch: Dispatch) -> bool:
    return dispatch.capability.startswith(SESSION_CALL)


class Places:
    """Counted by capability; all session calls share theirs."""

    def __init__(self, max_inflight: int = MAX_INFLIGHT, max_calls: int = MAX_SESSION_CALLS) -> None:
        self._max_inflight = max_inflight
        self._max_calls = max_calls
        self._taken: Counter[str] = Counter()
        self._callers: Counter[str] = Counter()
        """Owners, and how many session calls of each are under way."""
        self._waits = 0
        """Of these, calls that only wait."""
        self._shares = Shares(max_calls, time.monotonic)

    def taken(self, capability: str) -> int:
        return self._taken[_kind(capability)]

    def occupy(self, dispatch: Dispatch) -> None:
        self._taken[_kind(dispatch.capability)] += 1
        if is_call(dispatch):
            self._callers[dispatch.owner] += 1
            self._waits += dispatch.capability in ONLY_WAIT
            self._shares.served(dispatch.owner)

    def free(self, dispatch: Dispatch) -> None:
        self._taken[_kind(dispatch.capability)] -= 1
        if is_call(dispatch):
            self._callers[dispatch.owner] -= 1
            if not self._callers[dispatch.owner]:
                del self._callers[dispatch.owner]
            self._waits -= dispatch.capability in ONLY_WAIT

    def refusal(self, dispatch: Dispatch) -> str | None:
        """Why there is no place for it. Calls that only wait never take the last ones: those are for what is done at
        once."""
        if not is_call(dispatch):
            return _full(self._max_inflight) if self.taken(dispatch.capability) >= self._max_inflight else None
        most = self._max_calls
        waiting_is_full = self._waits >= most - most // KEPT_PART
        if self.taken(dispatch.capability) >= most or (dispatch.capability in ONLY_WAIT and waiting_is_full):
            self._shares.turned_away(dispatch.owner)
            return _full(most)
        if not self._shares.is_fair(dispatch.owner, self._callers):
            return "others wait for this worker, and you have more than your share of it: try again"
        return None


def _full(most: int) -> str:
    return f"this worker does {most} of these at once, and has as many as it takes"


def _kind(capability: str) -> str:
    return SESSION_CALL if capability.startswith(SESSION_CALL) else capability
