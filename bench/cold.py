"""One cold job: through the node, and bare, side by side.

Each pair runs both in random order, and the next one begins when nothing of the last one is left, so that neither pays
for the other's removal.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass

from bench.bare import Bare, BareRun
from bench.figures import Ratio, Summary, ratio, summary
from bench.ours import OurRun, Ours
from bench.world import BenchError, NodeProcess

COMMAND = ("python3", "-c", "print(1)")
OUTPUT = "1\n"
WARM_UP = 2
SETTLE_SECONDS = 0.02
"""Let the engine finish its own tidying between two measurements."""


@dataclass(frozen=True, slots=True)
class Cold:
    """All figures of cold jobs on one runtime."""

    ours_answered: Summary
    ours_gone: Summary
    bare_answered: Summary
    bare_gone: Summary
    bare_steps: dict[str, float]
    """Mean milliseconds of each bare call."""
    full_ratio: Ratio
    """Ours until the container is gone, over bare until it is gone: the one that is held to a bound."""
    answer_ratio: Ratio
    """Ours until the answer, over bare until it is gone: what a caller who cleans up himself would compare."""
    strict_ratio: Ratio
    """Ours until the answer, over bare until the answer, its removal left to somebody else."""
    stages: dict[str, float]
    """Mean milliseconds of each stage of a job, by the node's own metrics."""
    node_cpu_ms: float
    """Processor time of the node for each job, its background work in that time included."""


async def measure(node: NodeProcess, ours: Ours, bare: Bare, pairs: int, *, seconds: float) -> Cold:
    """Fewer pairs than asked for when the time is over, but never fewer than half of them."""
    until = time.monotonic() + seconds
    for _ in range(WARM_UP):
        await _ours(ours)
        await _bare(bare)
    stages, cpu = await ours.stages(), 0.0
    runs: list[tuple[OurRun, BareRun]] = []
    while len(runs) < pairs and (len(runs) < pairs / 2 or time.monotonic() < until):
        ours_first = random.random() < 0.5
        before = None if ours_first else await _bare(bare)
        used = node.cpu_seconds()
        mine = await _ours(ours)
        cpu += node.cpu_seconds() - used
        runs.append((mine, before if before is not None else await _bare(bare)))
    after = await ours.stages()
    return _figures(runs, _stage_means(stages, after), 1000 * cpu / len(runs))


async def _ours(ours: Ours) -> OurRun:
    run = await ours.run(COMMAND)
    if run.output != OUTPUT:
        raise BenchError(f"a wrong answer: {run.output!r}")
    await asyncio.sleep(SETTLE_SECONDS)
    return run


async def _bare(bare: Bare) -> BareRun:
    run = await bare.run(COMMAND)
    if run.output != OUTPUT.encode():
        raise BenchError(f"a wrong bare answer: {run.output!r}")
    await asyncio.sleep(SETTLE_SECONDS)
    return run


def _stage_means(before: dict[str, tuple[float, int]], after: dict[str, tuple[float, int]]) -> dict[str, float]:
    means = {}
    for stage, (seconds, count) in after.items():
        earlier_seconds, earlier_count = before.get(stage, (0.0, 0))
        if count > earlier_count:
            means[stage] = 1000 * (seconds - earlier_seconds) / (count - earlier_count)
    return means


def _figures(runs: list[tuple[OurRun, BareRun]], stages: dict[str, float], cpu_ms: float) -> Cold:
    ours_answered, ours_gone = [mine.answered for mine, _ in runs], [mine.gone for mine, _ in runs]
    bare_answered, bare_gone = [bare.answered for _, bare in runs], [bare.gone for _, bare in runs]
    steps = {
        "create": [bare.created for _, bare in runs],
        "attach": [bare.attached - bare.created for _, bare in runs],
        "start": [bare.started - bare.attached for _, bare in runs],
        "run and wait": [bare.answered - bare.started for _, bare in runs],
        "remove": [bare.gone - bare.answered for _, bare in runs],
    }
    return Cold(
        ours_answered=summary(ours_answered),
        ours_gone=summary(ours_gone),
        bare_answered=summary(bare_answered),
        bare_gone=summary(bare_gone),
        bare_steps={name: summary(times).mean for name, times in steps.items()},
        full_ratio=ratio(ours_gone, bare_gone),
        answer_ratio=ratio(ours_answered, bare_gone),
        strict_ratio=ratio(ours_answered, bare_answered),
        stages=stages,
        node_cpu_ms=cpu_ms,
    )
