"""What a request allows, it gets; whatever a provider answers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.jobs.analysis.constraints import ELLIPSIS, RANK, enforce, normalise
from fumehood.jobs.analysis.merge import merge
from fumehood.jobs.types.code_chunk_analysis import ChunkAnalysisRequest, ChunkAnalysisResponse

LINES = st.integers(1, 60)
LEVELS = st.sampled_from(["low", "medium", "high"])
WORDS = st.text(alphabet="abc \n\u00e9\U0001f600", max_size=40)
SHARES = st.floats(0, 1)


def maybe(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


@st.composite
def requests(draw: st.DrawFn) -> ChunkAnalysisRequest:
    first = draw(LINES)
    last = first + draw(st.integers(0, 40))
    names = ("max_summary_length", "max_symbols", "max_faults", "max_next_probes")
    limits = draw(maybe(**dict.fromkeys(names, st.integers(0, 12))))
    chunk = {"path": "a.py", "start_line": first, "end_line": last, "content": ""}
    return ChunkAnalysisRequest.model_validate({"task": "look", "chunk": chunk, "output_constraints": limits})


@st.composite
def responses(draw: st.DrawFn) -> ChunkAnalysisResponse:
    name = st.sampled_from(["a", "b", "c"])
    symbol = st.fixed_dictionaries({"name": name, "kind": name, "line": LINES}, optional={"description": WORDS})
    fault = st.fixed_dictionaries(
        {"line": LINES, "severity": LEVELS, "description": WORDS}, optional={"suggestion": WORDS}
    )
    probe = st.fixed_dictionaries({"path": name, "reason": WORDS, "priority": LEVELS})
    return ChunkAnalysisResponse.model_validate(
        {
            "summary": draw(WORDS),
            "symbols": draw(st.lists(symbol, max_size=6)),
            "suspected_faults": draw(st.lists(fault, max_size=6)),
            "recommended_next_probes": draw(st.lists(probe, max_size=6)),
            "confidence": draw(SHARES),
            "provenance": {"model_id": "test"},
        }
    )


def assert_within(request: ChunkAnalysisRequest, found: ChunkAnalysisResponse) -> None:
    limits, first, last = request.output_constraints, request.chunk.start_line, request.chunk.end_line
    for items, most in (
        (found.summary, limits.max_summary_length),
        (found.symbols, limits.max_symbols),
        (found.suspected_faults, limits.max_faults),
        (found.recommended_next_probes, limits.max_next_probes),
    ):
        assert most is None or len(items) <= most
    assert all(first <= one.line <= last for one in found.symbols)
    assert all(first <= one.line <= last for one in found.suspected_faults)
    assert 0 <= found.confidence <= 1
    ChunkAnalysisResponse.model_validate(found.typed())


@given(requests(), responses())
def test_every_answer_is_held_to_what_was_asked_and_doing_it_twice_changes_nothing(
    request_: ChunkAnalysisRequest, response: ChunkAnalysisResponse
) -> None:
    once = enforce(request_, response)
    assert_within(request_, once)
    assert enforce(request_, once) == once
    assert once.provenance == response.provenance


@given(requests(), responses())
def test_the_gravest_faults_are_kept_in_their_order(
    request_: ChunkAnalysisRequest, response: ChunkAnalysisResponse
) -> None:
    first, last = request_.chunk.start_line, request_.chunk.end_line
    inside = [one for one in response.suspected_faults if first <= one.line <= last]
    kept = list(enforce(request_, response).suspected_faults)
    left = iter(inside)
    assert all(any(one == other for other in left) for one in kept), "a part of them, in the same order"
    ranks = sorted((RANK[one.severity] for one in inside), reverse=True)
    assert sorted((RANK[one.severity] for one in kept), reverse=True) == ranks[: len(kept)]


@pytest.mark.parametrize(
    ("most", "text"),
    [
        (0, ""),
        (1, ELLIPSIS),
        (5, f"one{ELLIPSIS}"),
        (7, f"one{ELLIPSIS}"),
        (8, f"one two{ELLIPSIS}"),
        (13, "one two three"),
        (99, "one two three"),
    ],
)
def test_a_summary_is_cut_after_a_word(most: int, text: str) -> None:
    chunk = {"path": "a", "start_line": 1, "end_line": 1, "content": ""}
    limits = {"max_summary_length": most}
    asked = ChunkAnalysisRequest.model_validate({"task": "t", "chunk": chunk, "output_constraints": limits})
    said = ChunkAnalysisResponse.model_validate(
        {"summary": "one two three", "confidence": 1.0, "provenance": {"model_id": "m"}}
    )
    assert enforce(asked, said).summary == text


def test_what_a_model_may_have_meant_is_understood() -> None:
    raw = {
        "summary": "s",
        "symbols": [{"name": "f", "kind": "function", "line": "12", "description": None}, {"name": "g", "kind": "x"}],
        "suspected_faults": [
            {"line": 3, "severity": "Critical", "description": "bad"},
            {"line": "line 4", "severity": "WARNING ", "description": "odd", "suggestion": 5},
            {"line": 5.0, "severity": None, "description": "unclear"},
            {"line": 0, "severity": "low", "description": "nowhere"},
            "not an item",
        ],
        "recommended_next_probes": None,
        "confidence": "85 %",
    }
    found = normalise(raw)
    assert found["symbols"] == [{"name": "f", "kind": "function", "line": 12}]
    assert [(one["line"], one["severity"]) for one in found["suspected_faults"]] == [
        (3, "high"),
        (4, "medium"),
        (5, "medium"),
    ]
    assert (found["recommended_next_probes"], found["confidence"]) == ([], 0.85)
    ChunkAnalysisResponse.model_validate({**found, "provenance": {"model_id": "m"}})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("name", "kind", "line", "severity", "priority", "description", "suggestion", "path", "reason")


@given(
    st.dictionaries(
        st.sampled_from(["summary", "symbols", "suspected_faults", "recommended_next_probes", "confidence", "more"]),
        JSON | st.lists(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6), max_size=4),
    )
)
def test_any_json_can_be_normalised_and_its_items_are_in_form(raw: dict[str, Any]) -> None:
    once = normalise(raw)
    items = {name: once[name] for name in ("symbols", "suspected_faults", "recommended_next_probes")}
    whole = {"summary": "s", "confidence": 0.5, "provenance": {"model_id": "m"}, **items}
    ChunkAnalysisResponse.model_validate(whole)
    assert repr(normalise(once)) == repr(once)  # NaN is not equal to itself


@given(requests(), st.lists(responses(), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_a_merge_does_not_depend_on_the_order_of_the_answers(
    request_: ChunkAnalysisRequest, answers: list[ChunkAnalysisResponse], random: Any
) -> None:
    merged = merge(request_, answers)
    shuffled = list(answers)
    random.shuffle(shuffled)
    assert merge(request_, shuffled) == merged
    assert_within(request_, merged)
    assert merged.provenance.model_id == "merge"


def test_a_merge_has_what_any_of_them_found() -> None:
    chunk = {"path": "a", "start_line": 1, "end_line": 9, "content": ""}
    asked = ChunkAnalysisRequest.model_validate({"task": "t", "chunk": chunk})

    def said(confidence: float, severity: str, description: str, name: str) -> ChunkAnalysisResponse:
        fault = {"line": 2, "severity": severity, "description": description}
        symbol = {"name": name, "kind": "function", "line": 1}
        whole = {"summary": name, "symbols": [symbol], "suspected_faults": [fault], "confidence": confidence}
        return ChunkAnalysisResponse.model_validate({**whole, "provenance": {"model_id": name}})

    found = merge(asked, [said(0.2, "low", "one", "f"), said(0.8, "high", "two", "g"), said(0.5, "low", "one", "f")])
    assert (found.summary, found.confidence) == ("g", 0.5)
    assert [(one.line, one.severity, one.description) for one in found.suspected_faults] == [(2, "high", "one / two")]
    assert [one.name for one in found.symbols] == ["f", "g"]


def test_nothing_cannot_be_merged() -> None:
    chunk = {"path": "a", "start_line": 1, "end_line": 9, "content": ""}
    with pytest.raises(ValueError, match="nothing"):
        merge(ChunkAnalysisRequest.model_validate({"task": "t", "chunk": chunk}), [])
