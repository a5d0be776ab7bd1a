"""Which files are artifacts: globs, compared part by part while a tree is walked. Pure.

`*`, `?` and `[…]` stand for something within one name, `**` for any number of folders, none included, and at the end
for all that is in them. Names that begin with a dot are names like others.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from typing import Final

from fumehood.node.jobs.sandbox.refused import RefusedError, shown

ANY_DEPTH: Final = "**"
MOST_PARTS: Final = 64
"""More than folders are looked through."""

State = frozenset[tuple[int, int]]
"""Globs by their number, and how many of their parts were used up by the folders above."""


class Globs:
    """Walk with it: `start` at the top, `enter` for each folder, `takes` for each file in it."""

    def __init__(self, globs: tuple[str, ...]) -> None:
        self._parts = [_parts(glob) for glob in globs]

    def __bool__(self) -> bool:
        return any(self._parts)

    def start(self) -> State:
        return self._settled((number, 0) for number in range(len(self._parts)))

    def enter(self, state: State, name: str) -> State:
        """Empty: nothing in that folder can match."""
        return frozenset(one for one in self._step(state, name) if one[1] < len(self._parts[one[0]]))

    def takes(self, state: State, name: str) -> bool:
        return any(used == len(self._parts[number]) for number, used in self._step(state, name))

    def _step(self, state: State, name: str) -> State:
        moved = []
        for number, used in state:
            if used == len(self._parts[number]):
                continue
            part = self._parts[number][used]
            if part is None:
                moved.append((number, used))
            elif part.fullmatch(name):
                moved.append((number, used + 1))
        return self._settled(moved)

    def _settled(self, state: Iterable[tuple[int, int]]) -> State:
        """`**` may also stand for nothing."""
        found = set()
        for number, used in state:
            parts = self._parts[number]
            found.add((number, used))
            while used < len(parts) and parts[used] is None:
                used += 1
                found.add((number, used))
        return frozenset(found)


def _parts(glob: str) -> tuple[re.Pattern[str] | None, ...]:
    """`**/**` is `**`: however many there are, a name is compared with a few parts of each glob."""
    names = glob.split("/") if glob else []
    names = [name for name, before in zip(names, ["", *names], strict=False) if (name, before) != (ANY_DEPTH,) * 2]
    if sum(name != ANY_DEPTH for name in names) > MOST_PARTS:
        raise RefusedError(f"a glob leads through more than {MOST_PARTS} folders: {shown(glob)}")
    return tuple(map(_part, [*names, "*"] if names[-1:] == [ANY_DEPTH] else names))


def _part(part: str) -> re.Pattern[str] | None:
    """`None`: any number of folders."""
    return None if part == ANY_DEPTH else re.compile(fnmatch.translate(part))
