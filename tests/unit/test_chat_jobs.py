"""The three job types by a model: what is asked, what is made of the answer, and that no answer breaks a promise."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fumehood.errors import JobFailedError
from fumehood.jobs.analysis.constraints import enforce
from fumehood.jobs.base import JobRequest, JobResponse, JobType, Workbench
from fumehood.jobs.chat.analysis import ChatAnalysis
from fumehood.jobs.chat.judge import ChatJudge
from fumehood.jobs.chat.rerank import MAX_CALLS, ChatRerank
from fumehood.jobs.types import candidate_judge, code_chunk_analysis, retrieval_rerank
from fumehood.jobs.types.candidate_judge import JudgeResponse
from fumehood.jobs.types.code_chunk_analysis import ChunkAnalysisRequest, ChunkAnalysisResponse
from fumehood.jobs.types.retrieval_rerank import RerankCandidate, RerankRequest, RerankResponse
from fumehood.wire.canonical import json_sha256
from tests.chat_server import ChatServer, chat_server, says
from tests.unit.chat_world import Worker, analysis, bench, forget, rerank, verdict


@pytest.fixture(scope="module")
def running() -> Iterator[ChatServer]:
    with chat_server() as server:
        yield server


@pytest.fixture
def server(running: ChatServer) -> ChatServer:
    forget(running)
    return running


def shown(server: ChatServer, call: int = 0) -> Any:
    """What the model was given as data."""
    return json.loads(server.asked[call]["messages"][1]["content"])


async def analyse(server: ChatServer, request: ChunkAnalysisRequest) -> ChunkAnalysisResponse:
    return await ChatAnalysis.make(bench(server)).run(request, Worker())


async def order(server: ChatServer, request: RerankRequest, **options: Any) -> RerankResponse:
    return await ChatRerank.make(bench(server, **options)).run(request, Worker())


# --- analysis ------------------------------------------------------------------------------------------------------


async def test_an_analysis_has_the_lines_of_the_file(server: ChatServer) -> None:
    found = await analyse(server, analysis())
    assert [(one.name, one.kind, one.line) for one in found.symbols] == [("run", "def", 13), ("Vault", "class", 16)]
    assert [(one.line, one.severity) for one in found.suspected_faults] == [(14, "high"), (17, "high")]
    assert found.symbols[0].description is None
    assert [one.path for one in found.recommended_next_probes] == ["os"]


async def test_limits_are_told(server: ChatServer) -> None:
    await analyse(server, analysis(max_symbols=1, max_summary_length=20))
    assert shown(server)["limits"] == {"max_symbols": 1, "max_summary_length": 20}
    assert "user_task" not in shown(server)


async def test_what_can_be_understood_is_kept_and_the_rest_dropped(server: ChatServer) -> None:
    said = {
        "summary": "  It runs commands. ",
        "symbols": [
            {"name": "run", "kind": "function", "line": "13", "description": ""},
            {"name": "nowhere", "kind": "function", "line": "the first"},
            {"name": "before", "kind": "function", "line": 10},
            {"name": "behind", "kind": "function", "line": 18},
            {"name": "true", "kind": "function", "line": True},
            {"name": "", "kind": "function", "line": 13},
            "run",
        ],
        "suspected_faults": [
            {"line": 14.0, "severity": "CRITICAL", "description": "shell"},
            {"line": 15, "severity": "odd", "description": "what?"},
            {"line": 16, "severity": "minor", "description": "style"},
            {"line": 17, "severity": "high"},
        ],
        "recommended_next_probes": [{"path": "a.py", "reason": "r", "priority": None}, None],
        "confidence": "85%",
    }
    server.script = [says(server, json.dumps(said))]
    found = enforce(analysis(), await analyse(server, analysis()))
    assert found.summary == "It runs commands."
    assert [one.name for one in found.symbols] == ["run"]
    assert [(one.line, one.severity) for one in found.suspected_faults] == [(14, "high"), (15, "medium"), (16, "low")]
    assert [(one.path, one.priority) for one in found.recommended_next_probes] == [("a.py", "medium")]
    assert found.confidence == 0.85


# --- reranking -----------------------------------------------------------------------------------------------------


async def test_few_candidates_take_one_call(server: ChatServer) -> None:
    found = await order(server, rerank(5, k=3))
    assert [one.id for one in found.topk] == ["id-3", "id-0", "id-1"]
    assert [one.rank for one in found.topk] == [1, 2, 3]
    assert found.topk[0].score == 0.3333
    assert len(server.asked) == 1


async def test_the_model_sees_numbers_and_no_identifiers(server: ChatServer) -> None:
    await order(server, rerank(5))
    assert [one["number"] for one in shown(server)["candidates"]] == [1, 2, 3, 4, 5]
    assert "id-3" not in json.dumps(server.asked)


async def test_the_best_of_many_is_carried_to_the_top(server: ChatServer) -> None:
    """From the end to the front, in windows of twenty that overlap by ten."""
    found = await order(server, rerank(55, k=10))
    assert found.topk[0].id == "id-53"
    assert len(found.topk) == 10
    assert [len(shown(server, call)["candidates"]) for call in range(5)] == [20, 20, 20, 20, 15]
    assert len(server.asked) == 5
    assert found.provenance.tokens is not None
    assert found.provenance.tokens.input > 5 * 400


async def test_the_search_s_own_order_comes_first(server: ChatServer) -> None:
    candidates = tuple(RerankCandidate(id=str(at), content="same", original_score=at / 10) for at in range(4))
    found = await order(server, RerankRequest(user_task="anything else", candidates=candidates))
    assert [one.id for one in found.topk] == ["3", "2", "1", "0"]


async def test_nothing_to_order_takes_no_call(server: ChatServer) -> None:
    found = await order(server, rerank(0))
    assert found.topk == ()
    assert found.provenance.tokens is None
    assert server.asked == []


async def test_candidates_that_the_model_leaves_out_are_not_ranked(server: ChatServer) -> None:
    ranking = [
        {"number": 2, "score": 0.4, "why": None},
        {"number": 3, "score": 0.9, "why": "w" * 9999},
        {"number": 2, "score": 1, "why": None},
        {"number": 77, "score": 1, "why": None},
    ]
    server.script = [says(server, json.dumps({"ranking": ranking}))]
    found = await order(server, rerank(4))
    assert [(one.id, one.score) for one in found.topk] == [("id-1", 0.4), ("id-2", 0.4)]
    assert found.topk[1].why == "w" * 500


async def test_long_candidates_make_small_windows(server: ChatServer) -> None:
    candidates = tuple(RerankCandidate(id=str(at), content="x" * 4000) for at in range(9))
    await order(server, RerankRequest(user_task="task", candidates=candidates), max_input_chars=22_000)
    assert [len(shown(server, call)["candidates"]) for call in range(4)] == [4, 4, 4, 3]


@pytest.mark.parametrize(("count", "room"), [(3, 10_000), (400, 14_000)])
async def test_what_takes_too_much_is_refused_before_it_costs(server: ChatServer, count: int, room: int) -> None:
    candidates = tuple(RerankCandidate(id=str(at), content="x" * 4000) for at in range(count))
    with pytest.raises(JobFailedError) as caught:
        await order(server, RerankRequest(user_task="task", candidates=candidates), max_input_chars=room)
    assert caught.value.reason == "input_too_large"
    assert server.asked == []
    assert MAX_CALLS == 128


# --- judging -------------------------------------------------------------------------------------------------------


async def test_a_judge_gives_an_index_and_a_reason(server: ChatServer) -> None:
    found = await ChatJudge.make(bench(server)).run(verdict(), Worker())
    assert (found.index, found.reason) == (1, "Number 2 says the most.")
    assert [one["number"] for one in shown(server)["candidates"]] == [1, 2, 3]


@pytest.mark.parametrize("number", [0, 4, -1, 10**30, None, "second"])
async def test_a_candidate_that_is_not_there_is_asked_about_once(server: ChatServer, number: object) -> None:
    server.script = [says(server, json.dumps({"number": number, "reason": "because"}))]
    found = await ChatJudge.make(bench(server)).run(verdict(), Worker())
    assert found.index == 1
    assert len(server.asked) == 2
    server.script = [says(server, json.dumps({"number": number, "reason": "because"}))] * 2
    with pytest.raises(JobFailedError) as caught:
        await ChatJudge.make(bench(server)).run(verdict(), Worker())
    assert (caught.value.reason, caught.value.again) == ("model_answer_invalid", True)


# --- a model that is against us ------------------------------------------------------------------------------------

LONG = st.integers(1, 6000).map(lambda times: "x" * times)
HUGE = st.integers(300, 500).map(lambda digits: 10**digits)
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.sampled_from(["13", "</think>", "```json", "\x00", "🧪", -0.0]),
    HUGE,
    LONG,
)
JSON = st.recursive(ODD, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner))
WORDS = st.text(min_size=1, max_size=20) | LONG


def an_answer(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Good but for one field at most: what is wrong everywhere is refused as a whole, and tries nothing."""

    def spoilt(drawn: tuple[dict[str, Any], str | None, Any]) -> dict[str, Any]:
        made, name, bad = drawn
        return made | ({name: bad} if name is not None else {})

    return st.tuples(st.fixed_dictionaries(fields), st.sampled_from([None, None, None, *fields]), ODD).map(spoilt)


def many(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    strangers = st.lists(JSON, max_size=1)
    return st.tuples(st.lists(an_answer(**fields), min_size=1, max_size=4), strangers).map(
        lambda both: both[0] + both[1]
    )


LINES = st.integers(9, 19)
LEVELS = st.sampled_from(["low", "medium", "high", "Critical", "meh"])
ANALYSES = an_answer(
    summary=WORDS,
    symbols=many(name=WORDS, kind=WORDS, line=LINES, description=WORDS),
    suspected_faults=many(line=LINES, severity=LEVELS, description=WORDS, suggestion=WORDS),
    recommended_next_probes=many(path=WORDS, reason=WORDS, priority=LEVELS),
    confidence=st.floats(-1, 2),
    provenance=JSON,
)
RANKINGS = an_answer(ranking=many(number=st.integers(-1, 7), score=st.floats(-1, 2), why=WORDS, id=WORDS))
CHOICES = an_answer(number=st.integers(0, 4), reason=WORDS)

FEW = 20

# One answer of each kind that becomes a response, whatever else is drawn.
ANALYSIS = {
    "summary": "It runs commands.",
    "symbols": [{"name": "run", "kind": "def", "line": 13, "description": "runs it"}],
    "suspected_faults": [{"line": 14, "severity": "high", "description": "a shell", "suggestion": "use a list"}],
    "recommended_next_probes": [{"path": "a.py", "reason": "it is called there", "priority": "low"}],
    "confidence": 0.5,
}
RANKING = {"ranking": [{"number": number, "score": 1 / number, "why": "it fits"} for number in (1, 2, 3, 4)]}
CHOICE = {"number": 2, "reason": "it says the most"}


def texts(answers: st.SearchStrategy[Any]) -> st.SearchStrategy[str]:
    garbage = st.one_of(JSON.map(json.dumps), st.text(max_size=30), st.just('{"summary": NaN}'))
    return st.tuples(st.integers(0, 5), answers.map(json.dumps), garbage).map(
        lambda drawn: drawn[1] if drawn[0] < 5 else drawn[2]
    )


def final(
    running: ChatServer, said: str, kind: JobType[Any, Any], make: Callable[[Workbench], Any], request: JobRequest
) -> Any:
    """As a worker does it: the handler, then what the type enforces. None where that ends in a failure with a name."""
    forget(running)
    running.says = lambda _: said
    try:
        response = asyncio.run(make(bench(running)).run(request, Worker()))
    except JobFailedError as error:
        if error.reason != "model_answer_invalid":
            raise
        return None
    held: JobResponse = response if kind.enforce is None else kind.enforce(request, response)
    json_sha256(held.typed())
    assert kind.response.model_validate_json(json.dumps(held.typed())) == held
    assert held.provenance.model_id.startswith("rules-1")
    return held


def test_no_answer_breaks_the_promises_of_an_analysis(running: ChatServer) -> None:
    request = analysis(max_summary_length=12, max_symbols=2, max_faults=1, max_next_probes=0)
    seen: list[ChunkAnalysisResponse] = []

    @settings(deadline=None, max_examples=FEW)
    @given(said=texts(ANALYSES))
    @example(said=json.dumps(ANALYSIS))
    def check(said: str) -> None:
        held = final(running, said, code_chunk_analysis.JOB_TYPE, ChatAnalysis.make, request)
        if held is not None:
            assert len(held.summary) <= 12
            assert len(held.symbols) <= 2
            assert len(held.suspected_faults) <= 1
            assert held.recommended_next_probes == ()
            assert all(11 <= one.line <= 17 for one in (*held.symbols, *held.suspected_faults))
            seen.append(held)

    check()
    assert any(one.symbols for one in seen)
    assert any(one.suspected_faults for one in seen)


def test_no_answer_breaks_the_promises_of_a_ranking(running: ChatServer) -> None:
    seen: list[RerankResponse] = []

    @settings(deadline=None, max_examples=FEW)
    @given(said=texts(RANKINGS))
    @example(said=json.dumps(RANKING))
    def check(said: str) -> None:
        held = final(running, said, retrieval_rerank.JOB_TYPE, ChatRerank.make, rerank(5, k=3))
        if held is not None:
            ids = [one.id for one in held.topk]
            assert 1 <= len(ids) == len(set(ids)) <= 3
            assert set(ids) <= {f"id-{number}" for number in range(5)}
            assert [one.rank for one in held.topk] == list(range(1, len(ids) + 1))
            scores = [one.score for one in held.topk]
            assert scores == sorted(scores, reverse=True)
            seen.append(held)

    check()
    assert seen


def test_no_answer_breaks_the_promises_of_a_judge(running: ChatServer) -> None:
    seen: list[JudgeResponse] = []

    @settings(deadline=None, max_examples=FEW)
    @given(said=texts(CHOICES))
    @example(said=json.dumps(CHOICE))
    def check(said: str) -> None:
        held = final(running, said, candidate_judge.JOB_TYPE, ChatJudge.make, verdict())
        if held is not None:
            assert held.index in (0, 1, 2)
            seen.append(held)

    check()
    assert seen
