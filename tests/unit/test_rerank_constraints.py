"""Whatever a provider answers, what goes out keeps to the request; and several answers make one, in any order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fumehood.jobs.rerank.constraints import MAX_WHY, enforce
from fumehood.jobs.rerank.merge import merge
from fumehood.jobs.types.retrieval_rerank import RankedCandidate, RerankCandidate, RerankRequest, RerankResponse
from fumehood.wire.jobs import Provenance

IDS = st.sampled_from("abcdefgh")
REQUESTS = st.builds(
    lambda ids, k: RerankRequest(
        user_task="find it", candidates=tuple(RerankCandidate(id=one, content=one) for one in ids), k=k
    ),
    st.lists(IDS, unique=True, max_size=6),
    st.integers(1, 8),
)
ENTRIES = st.builds(
    lambda rank, name, score, why: RankedCandidate(rank=rank, id=name, score=score, **why),
    st.integers(1, 1000),
    IDS,
    st.floats(0, 1),
    st.just({}) | st.text(max_size=5).map(lambda text: {"why": text}),
)
RESPONSES = st.lists(ENTRIES, max_size=10).map(
    lambda topk: RerankResponse(topk=tuple(topk), provenance=Provenance(model_id="any"))
)


def ranked(*names: str) -> RerankResponse:
    topk = tuple(RankedCandidate(rank=place, id=name, score=1 / place) for place, name in enumerate(names, start=1))
    return RerankResponse(topk=topk, provenance=Provenance(model_id="any"))


def request(names: str, k: int = 10) -> RerankRequest:
    candidates = tuple(RerankCandidate(id=one, content=one) for one in names)
    return RerankRequest(user_task="find it", candidates=candidates, k=k)


def keeps_to(asked: RerankRequest, response: RerankResponse) -> bool:
    ids = [one.id for one in response.topk]
    scores = [one.score for one in response.topk]
    return (
        len(ids) == len(set(ids)) <= asked.k
        and set(ids) <= {one.id for one in asked.candidates}
        and [one.rank for one in response.topk] == list(range(1, len(ids) + 1))
        and scores == sorted(scores, reverse=True)
        and all(0 <= score <= 1 for score in scores)
    )


# --- enforce ---------------------------------------------------------------------------------------------------


@given(asked=REQUESTS, response=RESPONSES)
def test_what_goes_out_keeps_to_the_request(asked: RerankRequest, response: RerankResponse) -> None:
    assert keeps_to(asked, enforce(asked, response))


@given(asked=REQUESTS, response=RESPONSES)
def test_once_is_enough(asked: RerankRequest, response: RerankResponse) -> None:
    once = enforce(asked, response)
    assert enforce(asked, once) == once


@given(asked=REQUESTS, response=RESPONSES)
def test_no_place_is_made_up_and_no_two_change_places(asked: RerankRequest, response: RerankResponse) -> None:
    kept = [one.id for one in enforce(asked, response).topk]
    given_order = [one.id for one in sorted(response.topk, key=lambda one: one.rank)]
    places = [given_order.index(name) for name in kept]
    assert places == sorted(places)


def test_what_is_right_is_left_alone() -> None:
    response = ranked("b", "a")
    assert enforce(request("abc"), response) == response


def test_one_that_ranked_only_some_says_no_more() -> None:
    assert [one.id for one in enforce(request("abc"), ranked("b", "x")).topk] == ["b"]


def test_scores_beyond_their_bounds_are_clamped() -> None:
    wild = RankedCandidate.model_construct(rank=1, id="a", score=7.0, why="y" * 5000)
    low = RankedCandidate.model_construct(rank=2, id="b", score=-1.0, why=None)
    response = RerankResponse.model_construct(topk=(wild, low), provenance=Provenance(model_id="any"))
    found = enforce(request("ab"), response).topk
    assert [one.score for one in found] == [1.0, 0.0]
    assert found[0].why is not None
    assert len(found[0].why) == MAX_WHY


# --- merge -----------------------------------------------------------------------------------------------------


@given(asked=REQUESTS, responses=st.lists(RESPONSES, max_size=4), data=st.data())
def test_a_merged_ranking_keeps_to_the_request_in_any_order(
    asked: RerankRequest, responses: list[RerankResponse], data: st.DataObject
) -> None:
    merged = merge(asked, responses)
    assert keeps_to(asked, merged)
    assert enforce(asked, merged) == merged
    assert merge(asked, data.draw(st.permutations(responses))) == merged
    assert merged.provenance.model_id == "merge"


def test_what_all_put_first_comes_first_with_1() -> None:
    merged = merge(request("abc"), [ranked("c", "a", "b"), ranked("c", "b", "a")])
    assert [(one.id, one.rank) for one in merged.topk] == [("c", 1), ("a", 2), ("b", 3)]
    assert merged.topk[0].score == 1.0
    assert merged.topk[1].score == merged.topk[2].score, "a tie, in the order of the request"
    assert merged.topk[1].why == "ranked by 2 of 2, at 2, 3"


def test_what_two_rank_comes_before_what_one_ranks_first() -> None:
    merged = merge(request("abcd"), [ranked("a", "d"), ranked("b", "d"), ranked("c", "d")])
    assert merged.topk[0].id == "d"
