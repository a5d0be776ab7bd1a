"""The shape of a workflow: who needs whom. Checked once, so that nothing later can wait for ever."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter


def check(needs: Mapping[str, Sequence[str]], ids: Sequence[str]) -> None:
    """`ValueError` for an id that is there twice, a need that is not there, or a circle."""
    twice = {step for step in ids if ids.count(step) > 1} if len(set(ids)) != len(ids) else set()
    if twice:
        raise ValueError(f"there are two steps called {sorted(twice)[0]}")
    for step, needed in needs.items():
        for other in needed:
            if other not in needs:
                raise ValueError(f"step {step} needs {other}, which is not there")
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        raise ValueError(f"steps need each other in a circle: {' -> '.join(reversed(error.args[1]))}") from error


def leaves(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Steps that nobody needs: the ends of the graph."""
    needed = {other for others in needs.values() for other in others}
    return [step for step in needs if step not in needed]
