"""A graph of steps as text, one line a step: which one leads to which is drawn to the left of their names.

    ●     fetch
    ├─●   lint
    ● │   test
    ●─╯   publish

A step has a rail for as long as one that needs it is still to come. A line that turns into a rail belongs to it; one
that only crosses it leaves it whole (`─│─`). No step stands right below another one that it does not need.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rail:
    """What stands left and right of a step's symbol."""

    step: str
    before: str
    after: str


def order(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Each step behind all that it needs; apart from that as they were written."""
    numbers = {step: number for number, step in enumerate(needs)}
    waiting = {step: len(needed) for step, needed in needs.items()}
    followers = _followers(needs)
    ready = [numbers[step] for step, count in waiting.items() if not count]
    heapq.heapify(ready)
    steps, found = list(needs), []
    while ready:
        step = steps[heapq.heappop(ready)]
        found.append(step)
        for follower in followers[step]:
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, numbers[follower])
    return found


def rails(needs: Mapping[str, Sequence[str]]) -> list[Rail]:
    """The lines, all of the same length."""
    left = {step: len(followers) for step, followers in _followers(needs).items()}
    lanes: list[str | None] = []
    above = -1
    drawn: list[tuple[str, int, str]] = []
    for step in order(needs):
        for need in needs[step]:
            left[need] -= 1
        joined = {lanes.index(need): not left[need] for need in needs[step]}
        ending = [lane for lane, ends in joined.items() if ends]
        own = min(ending) if ending else _free(lanes, above)
        drawn.append((step, own, _line(lanes, own, joined)))
        for lane in ending:
            lanes[lane] = None
        lanes[own] = step if left[step] else None
        above = own
    width = max((len(line) for _, _, line in drawn), default=0)
    return [Rail(step, line[: 2 * own], line[2 * own + 1 :].ljust(width - 2 * own - 1)) for step, own, line in drawn]


def _followers(needs: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {step: [] for step in needs}
    for step, needed in needs.items():
        for need in needed:
            found[need].append(step)
    return found


def _free(lanes: list[str | None], above: int) -> int:
    """A lane that nobody has, and in which no step stands in the line above."""
    for lane, owner in enumerate(lanes):
        if owner is None and lane != above:
            return lane
    lanes.append(None)
    return len(lanes) - 1


def _line(lanes: Sequence[str | None], own: int, joined: Mapping[int, bool]) -> str:
    low, high = min(own, *joined, own), max(own, *joined, own)
    cells = []
    for lane, owner in enumerate(lanes):
        cells.append("●" if lane == own else _cell(lane, joined.get(lane), owner is not None, (low, high)))
        cells.append("─" if low <= lane < high else " ")
    return "".join(cells).rstrip()


def _cell(lane: int, ends: bool | None, busy: bool, span: tuple[int, int]) -> str:
    low, high = span
    if ends is None:
        return "│" if busy else "─" if low < lane < high else " "
    goes_on, turns = {low: ("├", "╰"), high: ("┤", "╯")}.get(lane, ("┼", "┴"))
    return turns if ends else goes_on
