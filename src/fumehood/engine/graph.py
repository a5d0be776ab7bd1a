"""The shape of a workflow: who needs whom. Checked once, so that nothing later can wait for ever."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter


class GraphError(ValueError):
    """Something is wrong with who needs whom; `step` is where to look."""

    def __init__(self, step: str, message: str) -> None:
        super().__init__(message)
        self.step = step


def check(needs: Mapping[str, Sequence[str]], ids: Sequence[str]) -> None:
    """`GraphError` for an id that is there twice, a need that is not there, or a circle."""
    twice = {step for step in ids if ids.count(step) > 1} if len(set(ids)) != len(ids) else set()
    if twice:
        raise GraphError(sorted(twice)[0], f"there are two steps called {sorted(twice)[0]}")
    for step, needed in needs.items():
        for other in needed:
            if other not in needs:
                raise GraphError(step, f"step {step} needs {other}, which is not there")
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        circle = list(reversed(error.args[1]))
        raise GraphError(circle[0], f"steps need each other in a circle: {' -> '.join(circle)}") from error


def order(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Each step behind those that it needs; otherwise as they were written."""
    waiting = {step: len(set(needed)) for step, needed in needs.items()}
    followers: dict[str, list[str]] = {step: [] for step in needs}
    for step, needed in needs.items():
        for other in set(needed):
            followers[other].append(step)
    ready = [step for step, count in waiting.items() if not count]
    for step in ready:  # grows while it is gone through
        for follower in followers[step]:
            waiting[follower] -= 1
            if not waiting[follower]:
                ready.append(follower)
    return ready


def ancestors(needs: Mapping[str, Collection[str]], step: str) -> set[str]:
    """All that have ended when a step begins."""
    found: set[str] = set()
    waiting = list(needs[step])
    while waiting:
        other = waiting.pop()
        if other not in found:
            found.add(other)
            waiting.extend(needs[other])
    return found


def leaves(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Steps that nobody needs: the ends of the graph."""
    needed = {other for others in needs.values() for other in others}
    return [step for step in needs if step not in needed]
