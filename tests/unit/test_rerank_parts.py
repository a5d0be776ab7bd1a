"""Words, BM25, what is read of long candidates, and how the parts of a score are put together."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.jobs.rerank.bm25 import bm25
from fumehood.jobs.rerank.ranking import fused
from fumehood.jobs.rerank.reading import MAX_CHARACTERS, STEP, WINDOW, allotted, readable, shortened, windows
from fumehood.jobs.rerank.terms import asked, spelled, stem, terms
from fumehood.jobs.types.retrieval_rerank import RerankCandidate

# --- words -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("parseConfig", ["pars", "config", "parseconfig"]),
        ("parse_config", ["pars", "config", "parseconfig"]),
        ("HTTPServer2", ["http", "server", "2", "httpserver2"]),
        ("src/auth/login.rs", ["src", "auth", "login", "rs"]),
        ("__init__", ["init"]),
        ("größe", ["größ"]),
        ("=> {} ;", []),
    ],
)
def test_names_are_taken_apart(text: str, found: list[str]) -> None:
    assert list(terms(text)) == found


@pytest.mark.parametrize(
    "same",
    [
        ("cache", "caches", "cached", "caching"),
        ("retry", "retries"),
        ("class", "classes"),
        ("run", "running", "runs"),
        ("password", "passwords"),
    ],
)
def test_forms_of_a_word_are_one(same: tuple[str, ...]) -> None:
    assert len({stem(word) for word in same}) == 1


def test_a_question_is_its_telling_words() -> None:
    assert asked("How does the cache of a cache work?") == ["cach", "work"]
    assert asked("how is it") == ["how", "is", "it"], "rather these than none"
    assert spelled("Where are Passwords hashed") == {
        "wher": "where",
        "are": "are",
        "password": "passwords",
        "hash": "hashed",
    }


# --- BM25 ------------------------------------------------------------------------------------------------------


def test_a_rare_word_counts_for_more_than_a_common_one() -> None:
    documents = [Counter(rare=1, file=1), Counter(file=2), Counter(file=1, other=1)]
    found = bm25({"rare": 1.0, "file": 1.0, "absent": 1.0}, documents)
    assert found[0].score > found[1].score > found[2].score
    assert found[0].terms == ("rare", "file")


def test_a_word_is_worth_less_each_time_it_comes_again() -> None:
    once, twice, often = bm25({"x": 1.0}, [Counter(x=1, y=9), Counter(x=2, y=8), Counter(x=9, y=1)])
    assert 0 < once.score < twice.score < often.score < 9 * once.score


def test_the_longer_of_two_pays_for_it() -> None:
    short, long = bm25({"x": 1.0}, [Counter(x=1, y=1), Counter(x=1, y=50)])
    assert short.score > long.score


def test_the_known_value() -> None:
    """By hand: ln(1 + 1.5/1.5) · 2.2 / (1 + 1.2 · (0.25 + 0.75 · 2 / 3))."""
    found = bm25({"x": 1.0}, [Counter(x=1, y=1), Counter(y=4)])
    assert found[0].score == pytest.approx(0.6931471805599453 * 2.2 / 1.9)
    assert found[1] == bm25({}, [Counter(y=4)])[0]


def test_no_documents_and_empty_ones() -> None:
    assert bm25({"x": 1.0}, []) == []
    assert [one.score for one in bm25({"x": 1.0}, [Counter(), Counter()])] == [0.0, 0.0]


# --- how much is read ------------------------------------------------------------------------------------------


@given(sizes=st.lists(st.integers(0, 1000), max_size=20), total=st.integers(0, 5000))
def test_no_more_is_given_than_there_is_and_no_short_one_pays_for_a_long_one(sizes: list[int], total: int) -> None:
    given_out = allotted(sizes, total)
    assert sum(given_out) <= total
    assert all(got <= size for got, size in zip(given_out, sizes, strict=True))
    if sum(sizes) <= total:
        assert given_out == sizes
    cut = [got for got, size in zip(given_out, sizes, strict=True) if got < size]
    assert not cut or max(cut) - min(cut) <= 1
    assert not cut or max(given_out) <= max(cut) + 1


@given(count=st.integers(0, 2000))
def test_windows_overlap_and_cover_all(count: int) -> None:
    pieces = list(range(count))
    found = windows(pieces)
    assert all(len(one) <= WINDOW for one in found)
    assert sorted({piece for one in found for piece in one}) == pieces
    assert all(before[STEP] == after[0] for before, after in pairwise(found))
    assert len(found) == 1 or all(len(one) > WINDOW - STEP for one in found), "none is only what the last one had"


def test_all_candidates_together_are_bounded() -> None:
    small = RerankCandidate(id="small", content="fn main() {}")
    large = [RerankCandidate(id=str(number), content="x" * 64 * 1024) for number in range(100)]
    found = shortened([small, *large])
    assert found[0] == small.content
    assert sum(map(len, found)) <= MAX_CHARACTERS


def test_names_are_written_as_words_for_the_model() -> None:
    assert readable("src/userLogin.ts", "signIn(user_name)") == "src/user Login.ts\nsign In(user name)"
    assert readable(None, "größe αβ") == "größe αβ"


# --- scores ----------------------------------------------------------------------------------------------------

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@given(rows=st.lists(st.tuples(st.floats(-1, 1), st.floats(0, 1e6), st.none() | NUMBERS), min_size=1, max_size=8))
def test_every_score_is_from_0_to_1(rows: list[tuple[float, float, float | None]]) -> None:
    closeness, words, original = zip(*rows, strict=True)
    assert all(0 <= one <= 1 for one in fused(closeness, words, original))


def test_the_original_score_decides_between_equals_only() -> None:
    assert fused([0.5, 0.5], [1.0, 1.0], [3.0, 4.0])[1] > fused([0.5, 0.5], [1.0, 1.0], [3.0, 4.0])[0]
    low, high = fused([0.5, 0.3], [4.0, 0.0], [0.0, 100.0])
    assert low > high


def test_without_original_scores_the_rest_is_the_whole() -> None:
    assert fused([1.0], [1e12], [None]) == [1.0]
    assert fused([0.4, 0.2], [1.0, 2.0], [None, None]) == fused([0.4, 0.2], [1.0, 2.0], [7.0, 7.0])


def test_what_is_far_from_everything_is_not_made_the_best() -> None:
    assert fused([0.02, 0.01], [0.0, 0.0], [None, None])[0] < 0.1
