"""The local judge prefers what can be looked up, says the numbers, and does not care who comes first."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fumehood.errors import JobFailedError
from fumehood.jobs.base import Workbench
from fumehood.jobs.embedding import minilm
from fumehood.jobs.judge.definitions import definitions
from fumehood.jobs.judge.local import MODEL_ID, LocalJudge, judged
from fumehood.jobs.types.candidate_judge import JOB_TYPE, JudgeRequest, JudgeResponse
from tests.unit.local_job_world import Bench

CODE = """\
import os

class Cache:
    def get(self, key):
        return eval(self.items[key])

def purge(folder):
    os.system("rm -rf " + folder)
"""
ANALYSIS = {
    "task": "Find security issues",
    "chunk": {"path": "app/cache.py", "start_line": 11, "end_line": 18, "content": CODE},
}
GOOD: dict[str, Any] = {
    "summary": "A cache whose get runs stored code with eval, and a purge that calls the shell: both are unsafe.",
    "symbols": [
        {"name": "Cache", "kind": "class", "line": 13},
        {"name": "Cache.get", "kind": "method", "line": 14},
        {"name": "purge", "kind": "function", "line": 17},
    ],
    "suspected_faults": [
        {"line": 15, "severity": "high", "description": "eval of stored items runs any code"},
        {"line": 18, "severity": "high", "description": "folder is joined into a shell command for os.system"},
    ],
    "confidence": 0.5,
}
RANKING = {
    "user_task": "How is a password checked?",
    "candidates": [
        {"id": "config", "content": "fn parse_config(path: &Path) -> Config { read(path) }"},
        {"id": "password", "content": "fn verify_password(given: &str, hash: &str) -> bool { argon2(given, hash) }"},
        {"id": "circle", "content": "fn draw_circle(x: f32, y: f32, radius: f32) { canvas.arc(x, y, radius) }"},
    ],
}


def but(**changes: object) -> dict[str, Any]:
    return {**GOOD, **changes}


def ranked(*names: str) -> dict[str, Any]:
    return {"topk": [{"rank": at, "id": name, "score": 1 / at} for at, name in enumerate(names, start=1)]}


def request(kind: str, asked: dict[str, Any], *candidates: dict[str, Any], **more: Any) -> JudgeRequest:
    return JudgeRequest(job_type=kind, request=asked, candidates=candidates, **more)


def analyses(*candidates: dict[str, Any]) -> JudgeRequest:
    return request("oa.code_chunk_analysis.v1", ANALYSIS, *candidates)


def rankings(*candidates: dict[str, Any]) -> JudgeRequest:
    return request("oa.retrieval_rerank.v1", RANKING, *candidates)


async def verdict(asked: JudgeRequest) -> JudgeResponse:
    return await LocalJudge().run(asked, Bench())


# --- analyses --------------------------------------------------------------------------------------------------

WORSE = {
    "symbols that are not there": but(symbols=[{"name": "Database", "kind": "class", "line": 13}]),
    "symbols elsewhere": but(symbols=[{**one, "line": one["line"] - 8} for one in GOOD["symbols"]]),
    "no symbols": but(symbols=[]),
    "one symbol of three": but(symbols=GOOD["symbols"][:1]),
    "a fault beyond the end": but(suspected_faults=[{**GOOD["suspected_faults"][0], "line": 99}]),
    "a fault before the begin": but(suspected_faults=[{**GOOD["suspected_faults"][0], "line": 3}]),
    "a fault on a blank line": but(suspected_faults=[{**GOOD["suspected_faults"][0], "line": 12}]),
    "a fault that speaks of something else": but(
        suspected_faults=[{"line": 15, "severity": "low", "description": "weak cipher"}]
    ),
    "no faults": but(suspected_faults=[]),
    "another summary": but(summary="Draws a red circle on a canvas with rounded corners and a soft shadow below it."),
    "no summary": but(summary=""),
    "everything twice": but(
        symbols=GOOD["symbols"] * 2,
        suspected_faults=GOOD["suspected_faults"] * 2,
    ),
    "no answer at all": {},
    "another form": {"topk": []},
}


@pytest.mark.parametrize("worse", WORSE.values(), ids=WORSE)
async def test_an_analysis_that_can_be_looked_up_is_better(worse: dict[str, Any]) -> None:
    assert (await verdict(analyses(worse, GOOD))).index == 1
    assert (await verdict(analyses(GOOD, worse))).index == 0


async def test_limits_of_the_request_count() -> None:
    asked = {**ANALYSIS, "output_constraints": {"max_faults": 1, "max_symbols": 1}}
    short = but(symbols=GOOD["symbols"][:1], suspected_faults=GOOD["suspected_faults"][:1])
    found = await verdict(request("oa.code_chunk_analysis.v1", asked, GOOD, short))
    assert found.index == 1


async def test_the_reason_has_the_numbers() -> None:
    found = await verdict(analyses(WORSE["no faults"], GOOD))
    assert "3 of 3 symbols stand where it says" in found.reason
    assert "3 of 3 definitions are named" in found.reason
    assert "2 of 2 faults are on lines of the code" in found.reason
    assert "the others have 0." in found.reason
    assert found.provenance.model_id == MODEL_ID


# --- rankings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "worse",
    [
        ranked("circle", "config", "password"),
        ranked("config", "password"),
        ranked("nobody", "password", "config", "circle"),
        ranked(),
        {"topk": "none"},
    ],
)
async def test_a_ranking_with_the_answer_first_is_better(worse: dict[str, Any]) -> None:
    good = ranked("password", "config", "circle")
    assert (await verdict(rankings(worse, good))).index == 1
    assert (await verdict(rankings(good, worse))).index == 0


async def test_rankings_of_nothing_are_equal() -> None:
    nothing = {"user_task": "x", "candidates": []}
    assert (await verdict(request("oa.retrieval_rerank.v1", nothing, ranked(), ranked()))).index == 0


# --- other types -----------------------------------------------------------------------------------------------


async def test_of_an_unknown_type_what_speaks_of_the_question_as_others_do_is_better() -> None:
    asked = {"question": "What is the capital of France?"}
    answers = [
        {"text": "Bananas are yellow."},
        {"text": "The capital of France is Paris."},
        {"text": "It is Paris, France"},
    ]
    found = await verdict(request("acme.answer.v1", asked, *answers))
    assert found.index in (1, 2)
    assert "close to what was asked" in found.reason


async def test_an_answer_that_says_nothing_is_worst() -> None:
    found = await verdict(request("acme.answer.v1", {"question": "why"}, {}, {"text": "because"}))
    assert found.index == 1


# --- all -------------------------------------------------------------------------------------------------------


async def test_between_equals_the_first_one_wins() -> None:
    assert (await verdict(analyses(GOOD, GOOD, GOOD))).index == 0


async def test_a_single_candidate_is_the_best() -> None:
    found = await verdict(analyses({}))
    assert found.index == 0
    assert "there is no other" in found.reason


@pytest.mark.parametrize("kind", ["oa.code_chunk_analysis.v1", "oa.retrieval_rerank.v1"])
async def test_a_request_of_another_type_cannot_be_judged(kind: str) -> None:
    with pytest.raises(JobFailedError, match="is no request of") as caught:
        await verdict(request(kind, {"something": "else"}, GOOD))
    assert caught.value.reason == "invalid_request"


async def test_another_judge_is_not_played() -> None:
    with pytest.raises(JobFailedError) as caught:
        await verdict(request("acme.answer.v1", {}, {}, judge_model="large-model-9"))
    assert (caught.value.reason, caught.value.again) == ("other_judge", True)
    assert (await verdict(request("acme.answer.v1", {}, {}, judge_model="local"))).index == 0


def test_it_is_the_default_of_its_type() -> None:
    assert next(iter(JOB_TYPE.handlers)) == "local"
    assert isinstance(JOB_TYPE.handlers["local"](Workbench()), LocalJudge)


SOME = st.lists(st.sampled_from([GOOD, *WORSE.values()]), min_size=1, max_size=9)


@given(candidates=SOME, data=st.data())
@settings(max_examples=25, deadline=None)
def test_candidates_are_judged_the_same_in_any_order(candidates: list[dict[str, Any]], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(candidates))))
    model = minilm.shared()
    marks = judged(analyses(*candidates), model, lambda: None)
    shuffled = judged(analyses(*(candidates[at] for at in order)), model, lambda: None)
    assert shuffled == [marks[at] for at in order]


@given(candidates=SOME)
@settings(max_examples=15, deadline=None)
async def test_the_index_is_that_of_the_best(candidates: list[dict[str, Any]]) -> None:
    asked = analyses(*candidates)
    totals = [one.total for one in judged(asked, minilm.shared(), lambda: None)]
    assert (await verdict(asked)).index == totals.index(max(totals))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(
    asked=st.dictionaries(st.text(max_size=4), JSON, max_size=3),
    candidates=st.lists(st.dictionaries(st.text(max_size=4), JSON, max_size=3), min_size=1, max_size=9),
)
@settings(max_examples=25, deadline=None)
async def test_whatever_the_answers_are_one_of_them_is_best(
    asked: dict[str, Any], candidates: list[dict[str, Any]]
) -> None:
    found = await verdict(request("acme.answer.v1", asked, *candidates))
    assert 0 <= found.index < len(candidates)


# --- definitions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("def purge(folder):", "purge"),
        ("    async def get(self):", "get"),
        ("pub(crate) fn verify(password: &str) -> bool {", "verify"),
        ("func (b *Breaker) Do(work func() error) error {", "Do"),
        ("export default async function load() {", "load"),
        ("public static <T> T run(Connection connection, int tries) throws SQLException {", "run"),
        ("static int lock_file(const char *path) {", "lock_file"),
        ("void *queue_pop(struct queue *q) {", "queue_pop"),
        ("class Sessions {", "Sessions"),
        ("  def self.issue(owner)", "issue"),
        ("    if (ready(x)) {", None),
        ("    } else if (ready) {", None),
        ("    return make(x) {", None),
        ("value = compute(x)", None),
        ("# define the class of things", None),
        ("", None),
    ],
)
def test_a_definition_is_seen_by_the_look_of_its_line(line: str, name: str | None) -> None:
    assert [found for _, found in definitions([line])] == ([] if name is None else [name])


@pytest.mark.parametrize("line", ["a " * 500_000, "(" * 1_000_000, "a<" * 500_000 + "{", " " * 1_000_000 + "{"])
def test_no_line_takes_long(line: str) -> None:
    """Looked at a thousand times: a second if each took a millisecond."""
    assert list(definitions([line] * 1000)) == []
