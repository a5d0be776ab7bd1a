"""What one server remembers of where all sessions are: told by a watch, so moments late, and free to look at."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set

from fumehood.control.console.places import Found


class SessionTable:
    """By key, and by worker."""

    def __init__(self) -> None:
        self.whole = False
        """Whether it has everything that there was when the watch began."""
        self._found: dict[str, Found] = {}
        self._of_worker: defaultdict[str, set[str]] = defaultdict(set)

    def get(self, key: str) -> Found | None:
        return self._found.get(key)

    def keys_of(self, worker: str) -> Set[str]:
        return self._of_worker.get(worker, frozenset())

    def put(self, key: str, found: Found) -> None:
        """What is older than what is known changes nothing: own writes are known before the watch tells them."""
        known = self._found.get(key)
        if known is not None:
            if known.revision > found.revision:
                return
            self._forget(key)
        self._found[key] = found
        self._of_worker[found.place.worker].add(key)

    def remove(self, key: str, revision: int) -> None:
        known = self._found.get(key)
        if known is not None and known.revision <= revision:
            self._forget(key)

    def caught_up(self, seen: Set[str]) -> None:
        for key in self._found.keys() - seen:
            self._forget(key)
        self.whole = True

    def _forget(self, key: str) -> None:
        worker = self._found.pop(key).place.worker
        keys = self._of_worker[worker]
        keys.discard(key)
        if not keys:
            del self._of_worker[worker]
