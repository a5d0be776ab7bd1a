"""The local reranker: what it answers, and what it is worth on the labelled set that the project ships."""

from __future__ import annotations

import asyncio
import math
from statistics import fmean

import pytest

from bench import rerank, rerank_set
from fumehood.errors import ConfigurationError
from fumehood.jobs.base import Workbench
from fumehood.jobs.embedding import minilm
from fumehood.jobs.rerank.constraints import enforce
from fumehood.jobs.rerank.local import LocalRerank
from fumehood.jobs.types.retrieval_rerank import JOB_TYPE, RerankCandidate, RerankRequest
from tests.unit.local_job_world import Bench

AUTH = (
    RerankCandidate(id="3", content="fn parse_config() { read_file(path) }", path="src/config.rs", original_score=0.82),
    RerankCandidate(id="2", content="fn create_session() { sessions.insert(user) }", path="src/session.rs"),
    RerankCandidate(id="1", content="fn login() { verify_password(user, password) }", path="src/auth.rs"),
)


def request(**fields: object) -> RerankRequest:
    said = {"user_task": "How does the authentication system work?", "candidates": AUTH, **fields}
    return RerankRequest.model_validate(said)


async def order(asked: RerankRequest) -> list[str]:
    return [one.id for one in (await LocalRerank().run(asked, Bench())).topk]


async def test_what_helps_comes_first_whatever_the_search_thought() -> None:
    assert await order(request()) == ["1", "2", "3"]


async def test_the_answer_keeps_to_the_request_and_says_why() -> None:
    asked, bench = request(user_task="check a user's passwords", k=2), Bench()
    response = await LocalRerank().run(asked, bench)
    assert enforce(asked, response) == response
    assert [one.rank for one in response.topk] == [1, 2]
    assert response.topk[0].why is not None
    assert "“passwords”" in response.topk[0].why
    assert "in meaning" in response.topk[0].why
    assert response.provenance.model_id.endswith("all-MiniLM-L6-v2")
    assert response.provenance.tokens is not None
    assert response.provenance.tokens.input > 0
    assert bench.observed["model"]["sha256"] == minilm.EXPECTED[minilm.WEIGHTS]


async def test_the_same_request_gives_the_same_answer() -> None:
    first, second = [await LocalRerank().run(request(), Bench()) for _ in range(2)]
    assert first == second


async def test_the_order_of_the_candidates_decides_only_between_equals() -> None:
    twins = (RerankCandidate(id="x", content="same"), RerankCandidate(id="y", content="same"))
    assert await order(request(candidates=(*AUTH, *twins))) == ["1", "2", "3", "x", "y"]
    assert await order(request(candidates=(*reversed(twins), *reversed(AUTH)))) == ["1", "2", "3", "y", "x"]


async def test_a_rubric_counts_less_than_the_task() -> None:
    asked = request(user_task="password", ranking_rubric="configuration files")
    assert (await order(asked))[0] == "1"
    response = await LocalRerank().run(asked, Bench())
    plain = await LocalRerank().run(request(user_task="password"), Bench())
    config, before = ({one.id: one.score for one in some.topk}["3"] for some in (response, plain))
    assert config > before


async def test_no_candidates_give_an_empty_answer() -> None:
    assert await order(request(candidates=())) == []


@pytest.mark.parametrize("content", ["", " ", "\u0000", "…" * 300, "x" * 65536, "中文" * 500])
async def test_candidates_may_hold_anything(content: str) -> None:
    odd = RerankCandidate(id="odd", content=content, original_score=-1e308)
    other = RerankCandidate(id="other", content="x", original_score=1e308)
    response = await LocalRerank().run(request(candidates=(odd, other, *AUTH)), Bench())
    assert len(response.topk) == 5
    assert all(math.isfinite(one.score) for one in response.topk)


async def test_it_can_be_cancelled() -> None:
    many = tuple(RerankCandidate(id=str(n), content=f"word{n} " * 200) for n in range(200))
    task = asyncio.create_task(LocalRerank().run(request(candidates=many), Bench()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_it_is_made_by_the_type_and_refused_without_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(JOB_TYPE.handlers["local"](Workbench()), LocalRerank)

    def absent() -> None:
        raise ConfigurationError(minilm.INSTALL)

    monkeypatch.setattr(minilm, "folder", absent)
    with pytest.raises(ConfigurationError, match="pip install"):
        JOB_TYPE.handlers["local"](Workbench())


# --- the labelled set ------------------------------------------------------------------------------------------


def test_the_set_is_large_enough_and_its_scores_are_computed() -> None:
    questions = rerank_set.load()
    assert len(questions) >= 40
    assert sum(one.held_out for one in questions) == len(questions) // 3
    for one in questions:
        scores = [candidate.original_score or 0.0 for candidate in one.request.candidates]
        assert len(scores) >= 12
        assert scores == sorted(scores, reverse=True)
        assert max(one.grades.values()) == 3
        assert set(one.grades) <= {candidate.id for candidate in one.request.candidates}


def test_ndcg_is_1_for_the_best_order_and_as_known_for_others() -> None:
    grades = {"a": 3, "b": 1}
    assert rerank_set.ndcg(["a", "b", "c"], grades) == 1.0
    assert rerank_set.ndcg(["c", "d"], grades) == 0.0
    best, swapped = 7 + 1 / math.log2(3), 1 + 7 / math.log2(3)
    assert rerank_set.ndcg(["b", "a"], grades) == pytest.approx(swapped / best)
    assert rerank_set.ndcg(["c"] * 10 + ["a"], grades) == 0.0


def test_it_beats_the_order_of_the_original_scores_on_questions_that_were_held_out() -> None:
    held_out = [one for one in rerank_set.load() if one.held_out]
    found = rerank.worth(held_out, rerank.Remembering())
    print({way: round(value, 3) for way, value in found.items()})
    by_score = fmean(
        rerank_set.ndcg([candidate.id for candidate in one.request.candidates], one.grades) for one in held_out
    )
    assert found["original order"] == pytest.approx(by_score)
    assert found["fused"] >= found["original order"] + rerank.FLOOR
    assert found["fused"] > found["BM25 alone"]
