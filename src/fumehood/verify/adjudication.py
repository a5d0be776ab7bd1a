"""From what several providers answered to what counts. Pure: no clock, no chance but the one that is given.

Every execution that answered is a candidate. One whose receipt does not hold is none that counts, and says why. What is
decided on is the hash of a candidate's declared outputs. A majority is more than half of all executions that were asked
for, not of those that came: silence and lies are no votes for anybody.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from fumehood.wire.jobs import Adjudication


class Outcome(StrEnum):
    SINGLE = "single"
    """One execution, which is believed as far as its receipt goes."""
    MAJORITY = "majority"
    JUDGED = "judged"
    MERGED = "merged"
    NO_MAJORITY = "no_majority"
    """They disagree: a result, with all that was said."""
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One execution, as far as deciding goes."""

    execution: int
    """From 0."""
    declared: str | None = None
    """The hash of its declared outputs; `None`: it gave none."""
    rejected: str | None = None
    """Why what it said does not count."""
    failed: str | None = None
    """Why it gave nothing: it never began, or failed for good."""
    worker: str = ""
    key_id: str = ""

    @property
    def counts(self) -> bool:
        return self.declared is not None and self.rejected is None and self.failed is None


@dataclass(frozen=True, slots=True)
class Decision:
    outcome: Outcome
    candidates: tuple[Candidate, ...]
    chosen: int | None = None
    """Which execution's answer is the result."""
    agreed: int = 0
    """How many said the same as the chosen one."""
    reason: str | None = None
    """Of an error: `too_few_workers`, `too_few_answers`, `no_valid_answer`, `judge_failed`, `merge_failed`."""
    needs_judge: bool = False
    needs_merge: bool = False


def with_distinct(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Nobody counts twice: of answers by one worker, or under one key, none counts, since nobody can say which."""
    standing = [one for one in candidates if one.counts]
    workers, keys = Counter(one.worker for one in standing), Counter(one.key_id for one in standing)
    return tuple(
        replace(one, rejected="not_distinct")
        if one.counts and (workers[one.worker] > 1 or keys[one.key_id] > 1)
        else one
        for one in candidates
    )


def decide(adjudication: Adjudication, redundancy: int, candidates: Sequence[Candidate]) -> Decision:
    """What the candidates come to, as far as it can be said without a judge or a merge."""
    known = with_distinct(candidates)
    if len(known) != redundancy:
        raise ValueError("there is one candidate for each execution")
    if any(one.failed == "not_started" for one in known):
        return Decision(Outcome.ERROR, known, reason="too_few_workers")
    standing = [one for one in known if one.counts]
    if not standing:
        failed = all(one.failed is not None for one in known)
        return Decision(Outcome.ERROR, known, reason="too_few_answers" if failed else "no_valid_answer")
    if adjudication is Adjudication.MAJORITY_VOTE or (adjudication is Adjudication.NONE and redundancy > 1):
        return _vote(redundancy, known, standing)
    if adjudication is Adjudication.NONE:
        return Decision(Outcome.SINGLE, known, chosen=standing[0].execution, agreed=1)
    return _beyond_votes(adjudication, redundancy, known, standing)


def _vote(redundancy: int, known: tuple[Candidate, ...], standing: Sequence[Candidate]) -> Decision:
    """The first of those that agree stands for all. Who failed, or lied, keeps nobody from having a majority."""
    (winner, votes), *_ = Counter(one.declared for one in standing).most_common(1)
    if votes * 2 <= redundancy:
        if any(one.failed is not None for one in known) or len({one.declared for one in standing}) == 1:
            return Decision(Outcome.ERROR, known, reason="too_few_answers")  # nobody disagrees: too few count
        return Decision(Outcome.NO_MAJORITY, known)
    chosen = next(one.execution for one in standing if one.declared == winner)
    return Decision(Outcome.MAJORITY, known, chosen=chosen, agreed=votes)


def _beyond_votes(
    adjudication: Adjudication, redundancy: int, known: tuple[Candidate, ...], standing: Sequence[Candidate]
) -> Decision:
    """Where all that came is asked of: a judge of fewer than were wanted would be told less than somebody paid for."""
    if len(standing) < redundancy:
        return Decision(Outcome.ERROR, known, reason="no_valid_answer" if redundancy == 1 else "too_few_answers")
    merge = adjudication is Adjudication.MERGE
    return Decision(Outcome.MERGED if merge else Outcome.JUDGED, known, needs_merge=merge, needs_judge=not merge)


def shuffled(decision: Decision, seed: str) -> list[int]:
    """The executions in the order in which a judge sees them: drawn from what nobody who answers can choose, and the
    same whenever it is asked for again."""
    counted = [one.execution for one in decision.candidates if one.counts]
    return sorted(counted, key=lambda at: hashlib.sha256(f"{seed}/{at}".encode()).digest())


def judged(decision: Decision, chosen: int) -> Decision:
    declared = {one.execution: one.declared for one in decision.candidates if one.counts}
    agreed = sum(1 for found in declared.values() if found == declared[chosen])
    return replace(decision, outcome=Outcome.JUDGED, chosen=chosen, agreed=agreed, needs_judge=False)


def judge_failed(decision: Decision) -> Decision:
    return replace(decision, outcome=Outcome.ERROR, reason="judge_failed", needs_judge=False)


def merge_failed(decision: Decision) -> Decision:
    return replace(decision, outcome=Outcome.ERROR, reason="merge_failed", needs_merge=False)


def standing_of(decision: Decision) -> dict[str, str]:
    """How each worker stands after this: `agreed`, `disagreed` or `rejected`, by its own signature; `failed`: what was
    said in its name, and perhaps by others, bore none. Where nothing was decided by a vote, nobody was wrong."""
    chosen = {one.execution: one.declared for one in decision.candidates}.get(
        decision.chosen if decision.chosen is not None else -1
    )
    said: dict[str, str] = {}
    for one in decision.candidates:
        if not one.worker:
            continue
        if not one.key_id:
            said.setdefault(one.worker, "failed")
        elif one.rejected is not None:
            said[one.worker] = "rejected"
        elif decision.outcome is Outcome.MAJORITY:
            said[one.worker] = "agreed" if one.declared == chosen else "disagreed"
        elif decision.outcome is Outcome.NO_MAJORITY:
            said[one.worker] = "disputed"
        else:
            said[one.worker] = "answered"
    return said
