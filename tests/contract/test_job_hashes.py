"""The hash of a job's request is the same in every language: ours, and JavaScript that shares no code with it."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fumehood.errors import InvalidRequestError
from fumehood.jobs.registry import Registry
from fumehood.wire import strict_json
from fumehood.wire.canonical import canonical_json
from tests.conftest import unavailable

GOLDEN = Path(__file__).parents[2] / "contracts" / "golden" / "job-hashes"
VECTORS = [
    pytest.param(vector, id=f"{path.stem}: {vector['name']}")
    for path in sorted(GOLDEN.glob("*.json"))
    for vector in json.loads(path.read_text(encoding="utf-8"))["vectors"]
]
REGISTRY = Registry.load()


class Other:
    """The second implementation: one process for all questions."""

    def __init__(self) -> None:
        if shutil.which("node") is None:
            unavailable("no node: run scripts/services up")
        command = ["node", str(GOLDEN / "hash.mjs")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, job_type: str, request: str) -> dict[str, str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = f'{{"job_type": "{job_type}", "payload": {request}}}\n'
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()
        answer: dict[str, str] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def other() -> Iterator[Other]:
    made = Other()
    try:
        yield made
    finally:
        made.close()


def ours(job_type: str, request: str) -> dict[str, str]:
    """As a door would read it."""
    asked = REGISTRY.request(job_type, strict_json.loads(request.encode()))
    return {"sha256": asked.compute_hash(), "canonical": canonical_json(asked.typed()).decode()}


# --- golden vectors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", VECTORS)
def test_a_golden_request_has_its_hash_in_both(vector: dict[str, Any], other: Other) -> None:
    """These never change: receipts that were signed name such hashes."""
    expected = {"sha256": vector["sha256"], "canonical": vector["canonical"]}
    assert ours(vector["job_type"], vector["request"]) == expected
    assert other.ask(vector["job_type"], vector["request"]) == expected


def numbers_alike(value: Any) -> Any:
    """JSON has one kind of number; Python reads two."""
    return json.loads(json.dumps(value), parse_int=float)


@pytest.mark.parametrize("vector", VECTORS)
def test_a_golden_request_has_its_typed_form(vector: dict[str, Any]) -> None:
    asked = REGISTRY.request(vector["job_type"], strict_json.loads(vector["request"].encode()))
    assert numbers_alike(asked.typed()) == numbers_alike(vector["typed"])
    assert REGISTRY.request(vector["job_type"], asked.typed()) == asked, "what is hashed is read as the same"


def test_there_are_vectors_of_every_type_that_we_ship() -> None:
    assert {vector.values[0]["job_type"] for vector in VECTORS} == set(REGISTRY)  # type: ignore[index]


# --- RFC 8785's own examples -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("ffefffffffffffff", "-1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555554", "333333333.33333325"),
        ("41b3de4355555555", "333333333.3333333"),
        ("41b3de4355555556", "333333333.3333334"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_a_number_is_written_as_the_rfc_says(bits: str, text: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical_json(number).decode() == text


def test_the_example_of_the_rfc_is_written_as_it_says() -> None:
    given_text = rb"""{
      "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
      "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
      "literals": [null, true, false]
    }"""
    expected = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    assert canonical_json(strict_json.loads(given_text)).decode() == expected


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (2**53, "beyond 9007199254740991"),
        (-(2**53), "beyond 9007199254740991"),
        (float("nan"), "not finite"),
        (float("-inf"), "not finite"),
        ({"\ud800": 1}, "half a surrogate pair"),
        ("\udfff", "no JSON"),
        ({1: 2}, "no JSON"),
        (b"bytes", "no JSON"),
    ],
)
def test_what_no_language_agrees_on_has_no_hash(value: object, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        canonical_json({"a": [value]})


# --- generated requests ------------------------------------------------------------------------------------

CHARACTERS = st.characters(codec="utf-8")
TEXT = st.text(CHARACTERS, max_size=12)
SOME_TEXT = st.text(CHARACTERS, min_size=1, max_size=12)
NO_NUL = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.integers(-(2**60), 2**60)
U32 = st.integers(0, 2**32 - 1)
UNKNOWN = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inside: st.lists(inside, max_size=2) | st.dictionaries(TEXT, inside, max_size=2),
    max_leaves=4,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9999, 9999) | TEXT,
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(TEXT, inside, max_size=3),
    max_leaves=6,
)


def whole(numbers: st.SearchStrategy[int]) -> st.SearchStrategy[int | float]:
    """`7` or `7.0`: JSON has one kind of number."""
    return numbers | numbers.map(float)


def sparse(needed: dict[str, Any], options: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """With any of the options, with fields that nobody knows, in any order."""
    known = st.fixed_dictionaries(needed, optional=options)
    strange = st.dictionaries(SOME_TEXT.filter(lambda name: name not in {**needed, **options}), UNKNOWN, max_size=1)
    return (
        st.tuples(known, strange)
        .map(lambda both: [*both[0].items(), *both[1].items()])
        .flatmap(lambda items: st.permutations(items).map(dict))
    )


def verification(*adjudications: str) -> st.SearchStrategy[dict[str, Any]]:
    modes = st.sampled_from(["objective", "subjective"])
    options = {"mode": modes, "redundancy": whole(st.integers(1, 9)), "adjudication": st.sampled_from(adjudications)}
    return sparse({}, {**options, "judge_model": SOME_TEXT})


ANY_WAY = verification("none", "majority_vote", "judge_model", "merge")
NO_JUDGE = verification("none", "majority_vote")
ANALYSIS = sparse(
    {
        "task": SOME_TEXT,
        "chunk": sparse(
            {
                "path": SOME_TEXT,
                "start_line": whole(st.integers(1, 1000)),
                "end_line": st.integers(1000, 2**32 - 1),
                "content": TEXT,
            },
            {"language": SOME_TEXT},
        ),
    },
    {
        "user_task": TEXT,
        "output_constraints": sparse(
            {}, dict.fromkeys(("max_summary_length", "max_symbols", "max_faults", "max_next_probes"), U32)
        ),
        "verification": ANY_WAY,
    },
)
RERANK = sparse(
    {
        "user_task": SOME_TEXT,
        "candidates": st.lists(
            sparse(
                {"id": SOME_TEXT, "content": TEXT},
                {"path": TEXT, "original_score": NUMBERS, "metadata": st.dictionaries(TEXT, TEXT, max_size=5)},
            ),
            max_size=3,
            unique_by=lambda candidate: candidate["id"],
        ),
    },
    {"k": whole(st.integers(1, 2**53 - 1)), "ranking_rubric": TEXT, "verification": ANY_WAY},
)
SANDBOX = sparse(
    {
        "sandbox": sparse(
            {"image_digest": st.binary(min_size=32, max_size=32).map(lambda some: f"sha256:{some.hex()}")},
            {
                "provider": SOME_TEXT,
                "network_policy": st.sampled_from(["none", "localhost", "full"]),
                "resources": sparse(
                    {},
                    {
                        "memory_mb": whole(st.integers(16, 2**20)),
                        "cpus": st.floats(0.01, 1024) | st.integers(1, 1024),
                        "timeout_secs": whole(st.integers(1, 86_400)),
                        "disk_mb": whole(st.integers(1, 2**20)),
                    },
                ),
            },
        ),
        "commands": st.lists(
            sparse({"cmd": NO_NUL}, {"workdir": NO_NUL, "continue_on_fail": st.booleans()}), min_size=1, max_size=3
        ),
    },
    {
        "repo": sparse({}, {"source": NO_NUL, "git_ref": SOME_TEXT, "mount_path": NO_NUL}),
        "env": st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True), NO_NUL, max_size=4),
        "artifacts": st.lists(NO_NUL, max_size=3),
        "verification": NO_JUDGE,
    },
)
JUDGE = sparse(
    {
        "job_type": st.just("oa.sandbox_run.v1"),
        "request": st.dictionaries(TEXT, JSON, max_size=4),
        "candidates": st.lists(st.dictionaries(TEXT, JSON, max_size=3), min_size=1, max_size=3),
    },
    {"judge_model": SOME_TEXT, "verification": NO_JUDGE},
)
REQUESTS = {
    "oa.code_chunk_analysis.v1": ANALYSIS,
    "oa.retrieval_rerank.v1": RERANK,
    "oa.sandbox_run.v1": SANDBOX,
    "oa.candidate_judge.v1": JUDGE,
}


@pytest.mark.parametrize("job_type", REQUESTS)
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data(), escaped=st.booleans())
def test_both_come_to_the_same_for_any_request(job_type: str, other: Other, data: st.DataObject, escaped: bool) -> None:
    request = json.dumps(data.draw(REQUESTS[job_type]), ensure_ascii=escaped)
    assert ours(job_type, request) == other.ask(job_type, request)


@settings(max_examples=300, deadline=None)
@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_both_write_any_number_the_same(other: Other, value: float) -> None:
    request = json.dumps({"job_type": "oa.sandbox_run.v1", "request": {"n": value}, "candidates": [{}]})
    assert ours("oa.candidate_judge.v1", request) == other.ask("oa.candidate_judge.v1", request)


@given(changed=st.sampled_from(["task", "content", "path", "language"]), text=SOME_TEXT)
def test_what_a_request_says_is_in_its_hash(changed: str, text: str) -> None:
    chunk = {"path": "p", "start_line": 1, "end_line": 1, "content": "c", "language": "l"}
    asked: dict[str, Any] = {"task": "t", "chunk": chunk}
    before = REGISTRY.request("oa.code_chunk_analysis.v1", asked)
    here = asked if changed == "task" else chunk
    same = here[changed] == text
    here[changed] = text
    after = REGISTRY.request("oa.code_chunk_analysis.v1", asked)
    assert (before.compute_hash() == after.compute_hash()) is same


def test_the_other_says_what_it_cannot_do(other: Other) -> None:
    """It must not answer with a hash of nothing."""
    assert "error" in other.ask("oa.unknown_type.v1", "{}")
    assert "error" in other.ask("oa.retrieval_rerank.v1", '{"user_task": "\\ud800", "candidates": []}')
