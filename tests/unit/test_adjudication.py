"""What several answers come to, whatever they are."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.verify.adjudication import Candidate, Outcome, decide, judged, shuffled, standing_of
from fumehood.wire.jobs import Adjudication

CANDIDATES: st.SearchStrategy[list[dict[str, str | None]]] = st.lists(
    st.builds(
        dict,
        declared=st.sampled_from(["a", "b", "c", None]),
        rejected=st.sampled_from([None, None, None, "unknown_key"]),
        failed=st.sampled_from([None, None, None, None, "not_started", "timeout"]),
        worker=st.sampled_from(["p0", "p1", "p2", "p3", "p4", "p5", "p6"]),
    ),
    min_size=1,
    max_size=9,
)


def made(found: list[dict[str, str | None]]) -> list[Candidate]:
    return [
        Candidate(at, one["declared"], one["rejected"], one["failed"], one["worker"] or "", f"key of {one['worker']}")
        for at, one in enumerate(found)
    ]


@given(CANDIDATES, st.sampled_from([Adjudication.MAJORITY_VOTE, Adjudication.NONE]))
def test_a_result_has_more_than_half_of_all_that_were_asked_behind_it(
    found: list[dict[str, str | None]], adjudication: Adjudication
) -> None:
    candidates = made(found)
    decision = decide(adjudication, len(candidates), candidates)
    standing = [one for one in decision.candidates if one.counts]
    assert len({one.worker for one in standing}) == len(standing), "nobody counts twice"
    if decision.chosen is None:
        assert decision.outcome in (Outcome.NO_MAJORITY, Outcome.ERROR)
        return
    chosen = decision.candidates[decision.chosen]
    assert chosen.counts
    votes = Counter(one.declared for one in standing)
    assert decision.agreed == votes[chosen.declared]
    assert decision.agreed * 2 > len(candidates)


@given(CANDIDATES)
def test_what_nobody_began_is_an_error_whatever_the_others_say(found: list[dict[str, str | None]]) -> None:
    candidates = made(found)
    for adjudication in Adjudication:
        decision = decide(adjudication, len(candidates), candidates)
        if any(one.failed == "not_started" for one in candidates):
            assert (decision.outcome, decision.chosen) == (Outcome.ERROR, None)
            assert decision.reason == "too_few_workers"
        if decision.outcome is Outcome.ERROR:
            assert decision.reason is not None


@given(CANDIDATES)
def test_the_order_of_executions_decides_nothing(found: list[dict[str, str | None]]) -> None:
    one = decide(Adjudication.MAJORITY_VOTE, len(found), made(found))
    other = decide(Adjudication.MAJORITY_VOTE, len(found), made(found[::-1]))
    assert (one.outcome, one.agreed, one.reason) == (other.outcome, other.agreed, other.reason)
    if one.chosen is not None and other.chosen is not None:
        assert one.candidates[one.chosen].declared == other.candidates[other.chosen].declared


@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=9), st.text(max_size=8))
def test_a_judge_sees_each_once_in_an_order_that_is_always_the_same(said: list[str], seed: str) -> None:
    candidates = [Candidate(at, one, worker=f"p{at}", key_id=f"k{at}") for at, one in enumerate(said)]
    decision = decide(Adjudication.JUDGE_MODEL, len(said), candidates)
    assert decision.needs_judge
    order = shuffled(decision, seed)
    assert sorted(order) == list(range(len(said)))
    assert order == shuffled(decision, seed)
    assert judged(decision, order[0]).chosen == order[0]


def test_orders_differ_from_job_to_job() -> None:
    candidates = [Candidate(at, "a", worker=f"p{at}", key_id=f"k{at}") for at in range(5)]
    decision = decide(Adjudication.JUDGE_MODEL, 5, candidates)
    assert len({tuple(shuffled(decision, str(seed))) for seed in range(50)}) > 20


def test_a_judge_is_not_asked_about_fewer_than_were_wanted() -> None:
    candidates = [Candidate(0, "a", worker="p0", key_id="k0"), Candidate(1, "a", rejected="x", worker="p1")]
    for adjudication in (Adjudication.JUDGE_MODEL, Adjudication.MERGE):
        decision = decide(adjudication, 2, candidates)
        assert (decision.outcome, decision.reason) == (Outcome.ERROR, "too_few_answers")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (["a", "a", "b"], {"p0": "agreed", "p1": "agreed", "p2": "disagreed"}),
        (["a", "b", "c"], {"p0": "disputed", "p1": "disputed", "p2": "disputed"}),
    ],
)
def test_who_was_outvoted_is_remembered_and_where_nobody_was_nobody_is(
    said: list[str], expected: dict[str, str]
) -> None:
    candidates = [Candidate(at, one, worker=f"p{at}", key_id=f"k{at}") for at, one in enumerate(said)]
    assert standing_of(decide(Adjudication.MAJORITY_VOTE, 3, candidates)) == expected


def test_one_key_under_two_names_counts_for_neither() -> None:
    candidates = [
        Candidate(0, "lie", worker="p0", key_id="same"),
        Candidate(1, "lie", worker="p1", key_id="same"),
        Candidate(2, "true", worker="p2", key_id="other"),
    ]
    decision = decide(Adjudication.MAJORITY_VOTE, 3, candidates)
    assert (decision.outcome, decision.reason) == (Outcome.ERROR, "too_few_answers")
    assert [one.rejected for one in decision.candidates] == ["not_distinct", "not_distinct", None]


def test_who_fails_keeps_nobody_from_a_majority_and_who_is_missed_for_one_is_named() -> None:
    failed = Candidate(2, failed="cannot", worker="p2")
    two = [Candidate(0, "a", worker="p0", key_id="k0"), Candidate(1, "a", worker="p1", key_id="k1"), failed]
    assert (decide(Adjudication.MAJORITY_VOTE, 3, two).outcome, decide(Adjudication.MAJORITY_VOTE, 3, two).agreed) == (
        Outcome.MAJORITY,
        2,
    )
    split = [two[0], Candidate(1, "b", worker="p1", key_id="k1"), failed]
    decision = decide(Adjudication.MAJORITY_VOTE, 3, split)
    assert (decision.outcome, decision.reason) == (Outcome.ERROR, "too_few_answers")
