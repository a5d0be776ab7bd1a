"""Contract 4: every field, default and enum of the job types, and the files in `contracts/job-types/` that say so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from fumehood.errors import InvalidRequestError
from fumehood.jobs.registry import Registry
from fumehood.jobs.schemas import broken, describe, files, main
from fumehood.wire import strict_json
from fumehood.wire.jobs import Provenance

CONTRACTS = Path(__file__).parents[2] / "contracts"
REGISTRY = Registry.load()
ANALYSIS, RERANK, SANDBOX = "oa.code_chunk_analysis.v1", "oa.retrieval_rerank.v1", "oa.sandbox_run.v1"
JUDGE = "oa.candidate_judge.v1"
DIGEST = "sha256:" + "a" * 64
HASH = "b" * 64

LEAST: dict[str, dict[str, Any]] = {
    ANALYSIS: {"task": "a", "chunk": {"path": "a", "start_line": 1, "end_line": 1, "content": ""}},
    RERANK: {"user_task": "a", "candidates": [{"id": "1", "content": ""}]},
    SANDBOX: {"sandbox": {"image_digest": DIGEST}, "commands": [{"cmd": "true"}]},
    JUDGE: {"job_type": SANDBOX, "request": {}, "candidates": [{}]},
}
PROVENANCE: dict[str, Any] = {
    "model_id": "m",
    "sampling": {
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": 1,
        "seed": 2**53 - 1,
        "max_tokens": 2,
        "stop": ["\n"],
    },
    "input_sha256": HASH,
    "output_sha256": HASH,
    "provider_pubkey": HASH,
    "executed_at": "2026-02-16T12:00:00.000Z",
    "duration_ms": 0,
    "tokens": {"input": 1, "output": 2},
}
RESPONSES: dict[str, dict[str, Any]] = {
    ANALYSIS: {
        "summary": "s",
        "symbols": [{"name": "f", "kind": "function", "line": 1, "description": "d"}],
        "suspected_faults": [{"line": 1, "severity": "high", "description": "d", "suggestion": "s"}],
        "recommended_next_probes": [{"path": "p", "reason": "r", "priority": "low"}],
        "confidence": 0.5,
        "provenance": PROVENANCE,
    },
    RERANK: {"topk": [{"rank": 1, "id": "1", "score": 1.0, "why": "w"}], "provenance": PROVENANCE},
    SANDBOX: {
        "env_info": {"image_digest": DIGEST, "hostname": "h", "system_info": "s"},
        "runs": [
            {
                "cmd": "true",
                "exit_code": -(2**31),
                "duration_ms": 2**53 - 1,
                "stdout_sha256": HASH,
                "stderr_sha256": HASH,
                "stdout_preview": "",
                "stderr_preview": "e",
            }
        ],
        "artifacts": [{"path": "a", "sha256": HASH, "size_bytes": 1, "mime_type": "text/plain"}],
        "status": "success",
        "error": "e",
        "repo_commit": "c",
        "repo_tree": "t",
        "provenance": PROVENANCE,
    },
    JUDGE: {"index": 0, "reason": "r", "provenance": PROVENANCE},
}
"""Every field of each."""


def at(value: Any, place: str) -> Any:
    for part in place.split("."):
        value = value[int(part) if part.isdigit() else part]
    return value


def changed(value: Any, place: str, to: Any) -> Any:
    """A copy with another value at a place."""
    copied = json.loads(json.dumps(value))
    *way, last = place.split(".")
    here = at(copied, ".".join(way)) if way else copied
    here[int(last) if last.isdigit() else last] = to
    return copied


def schema(job_type: str, side: str) -> jsonschema_rs.Validator:
    stored = json.loads((CONTRACTS / "job-types" / f"{job_type}.json").read_text(encoding="utf-8"))
    return jsonschema_rs.validator_for(stored[f"{side}_schema"])


# --- files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(files(REGISTRY)))
def test_a_committed_file_is_current(path: str) -> None:
    """After a change: `python -m fumehood.jobs.schemas contracts`."""
    assert (CONTRACTS / path).read_text(encoding="utf-8") == files(REGISTRY)[path]


def test_nothing_breaks_those_who_rely_on_the_last_release() -> None:
    assert broken(REGISTRY, CONTRACTS) == []


def test_every_type_was_released() -> None:
    names = {path.stem for path in (CONTRACTS / "job-types" / "released").glob("*.json")}
    assert names == set(REGISTRY)


def test_a_release_that_would_break_somebody_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--release"]) == 0
    stored = tmp_path / "job-types" / "released" / f"{RERANK}.json"
    before = json.loads(stored.read_text(encoding="utf-8"))
    before["request_schema"]["properties"]["limit"] = {"type": "integer"}
    stored.write_text(json.dumps(before), encoding="utf-8")
    assert main([str(tmp_path), "--release"]) == 1
    assert f"{RERANK}: request.limit: is gone" in capsys.readouterr().err


@pytest.mark.parametrize("job_type", list(REGISTRY))
def test_a_description_says_what_there_is_to_know(job_type: str) -> None:
    said = describe(REGISTRY[job_type])
    assert (said["name"], said["version"]) == (job_type, "1.0.0")
    assert said["about"]
    assert said["handlers"] == list(REGISTRY[job_type].handlers)
    assert said["verification"] == said["request_schema"]["properties"]["verification"]["default"]
    assert json.loads(json.dumps(said)) == said


# --- defaults ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job_type", "place", "default"),
    [
        (ANALYSIS, "output_constraints", {}),
        (ANALYSIS, "verification", {"mode": "subjective", "redundancy": 2, "adjudication": "judge_model"}),
        (RERANK, "k", 10),
        (RERANK, "candidates.0.metadata", {}),
        (RERANK, "verification", {"mode": "subjective", "redundancy": 2, "adjudication": "majority_vote"}),
        (SANDBOX, "sandbox.provider", "docker"),
        (SANDBOX, "sandbox.network_policy", "none"),
        (SANDBOX, "sandbox.resources", {"memory_mb": 512, "cpus": 1.0, "timeout_secs": 60}),
        (SANDBOX, "repo", {"source": "", "mount_path": "/workspace"}),
        (SANDBOX, "commands.0.continue_on_fail", False),
        (SANDBOX, "env", {}),
        (SANDBOX, "verification", {"mode": "objective", "redundancy": 1, "adjudication": "none"}),
        (JUDGE, "verification", {"mode": "subjective", "redundancy": 1, "adjudication": "none"}),
    ],
)
def test_what_is_left_out_has_the_contracts_default(job_type: str, place: str, default: object) -> None:
    typed = REGISTRY.request(job_type, LEAST[job_type]).typed()
    assert at(typed, place) == default


@pytest.mark.parametrize(
    ("job_type", "given", "place", "default"),
    [
        (SANDBOX, {"sandbox": {"image_digest": DIGEST, "resources": {"cpus": 2}}}, "sandbox.resources.memory_mb", 512),
        (
            SANDBOX,
            {"sandbox": {"image_digest": DIGEST, "resources": {"cpus": 2}}},
            "sandbox.resources.timeout_secs",
            60,
        ),
        (SANDBOX, {"sandbox": {"image_digest": DIGEST, "resources": {"memory_mb": 64}}}, "sandbox.resources.cpus", 1.0),
        (SANDBOX, {"repo": {"source": "/a"}}, "repo.mount_path", "/workspace"),
        (SANDBOX, {"verification": {"redundancy": 3}}, "verification.mode", "objective"),
        (ANALYSIS, {"verification": {"redundancy": 3}}, "verification.adjudication", "judge_model"),
        (RERANK, {"verification": {"mode": "objective"}}, "verification.redundancy", 2),
    ],
)
def test_what_is_left_out_inside_has_its_default_too(
    job_type: str, given: dict[str, Any], place: str, default: object
) -> None:
    request = REGISTRY.request(job_type, {**LEAST[job_type], **given}).typed()
    assert at(request, place) == default
    assert schema(job_type, "request").is_valid({**LEAST[job_type], **given})


@pytest.mark.parametrize("job_type", list(LEAST))
def test_unset_options_are_left_out_and_unknown_fields_ignored(job_type: str) -> None:
    least = REGISTRY.request(job_type, LEAST[job_type])
    options = {"user_task", "ranking_rubric", "artifacts", "judge_model"} - LEAST[job_type].keys()
    assert not options & least.typed().keys()
    assert "null" not in json.dumps(least.typed())
    more = REGISTRY.request(job_type, {**LEAST[job_type], "unknown": None, "x": {"y": 1}})
    assert more == least
    assert more.compute_hash() == least.compute_hash()


@pytest.mark.parametrize("job_type", list(LEAST))
@pytest.mark.parametrize("where", ["top", "inside"])
def test_a_needed_field_is_needed(job_type: str, where: str) -> None:
    request = LEAST[job_type]
    top = {name: value for name, value in request.items() if name != next(iter(request))}
    inside = {name: {} if isinstance(value, dict) else value for name, value in request.items()}
    if (where, job_type) in {("inside", RERANK), ("inside", JUDGE)}:
        inside = {**request, "candidates": [{}] if job_type == RERANK else []}
    wrong = top if where == "top" else inside
    with pytest.raises(InvalidRequestError):
        REGISTRY.request(job_type, wrong)
    assert not schema(job_type, "request").is_valid(wrong)


# --- enums -------------------------------------------------------------------------------------------------

ENUMS = [
    (SANDBOX, "request", "sandbox.network_policy", ["none", "localhost", "full"]),
    (SANDBOX, "request", "verification.mode", ["objective", "subjective"]),
    (SANDBOX, "request", "verification.adjudication", ["none", "majority_vote"]),
    (ANALYSIS, "request", "verification.adjudication", ["none", "majority_vote", "judge_model", "merge"]),
    (RERANK, "request", "verification.adjudication", ["none", "majority_vote", "judge_model", "merge"]),
    (SANDBOX, "response", "status", ["success", "failed", "timeout", "cancelled", "error"]),
    (ANALYSIS, "response", "suspected_faults.0.severity", ["low", "medium", "high"]),
    (ANALYSIS, "response", "recommended_next_probes.0.priority", ["low", "medium", "high"]),
]


def read(job_type: str, side: str, payload: object) -> Any:
    return REGISTRY.request(job_type, payload) if side == "request" else REGISTRY.response(job_type, payload)


def a_full(job_type: str, side: str) -> Any:
    return REGISTRY.request(job_type, LEAST[job_type]).typed() if side == "request" else RESPONSES[job_type]


@pytest.mark.parametrize(
    ("job_type", "side", "place", "value"), [(*where, value) for *where, values in ENUMS for value in values]
)
def test_every_value_of_an_enum_is_known(job_type: str, side: str, place: str, value: str) -> None:
    said = changed(a_full(job_type, side), place, value)
    assert at(read(job_type, side, said).typed(), place) == value
    assert schema(job_type, side).is_valid(said)


@pytest.mark.parametrize(("job_type", "side", "place", "values"), ENUMS)
@pytest.mark.parametrize("wrong", ["None", "NONE", "", "majorityVote", 1, None, True, ["none"]])
def test_no_other_value_is(job_type: str, side: str, place: str, values: list[str], wrong: object) -> None:
    said = changed(a_full(job_type, side), place, wrong)
    with pytest.raises(InvalidRequestError):
        read(job_type, side, said)
    assert not schema(job_type, side).is_valid(said)


# --- values ----------------------------------------------------------------------------------------------------

OPTIONS = [
    (ANALYSIS, "user_task"),
    (ANALYSIS, "chunk.language"),
    (ANALYSIS, "output_constraints.max_summary_length"),
    (ANALYSIS, "output_constraints.max_symbols"),
    (ANALYSIS, "output_constraints.max_faults"),
    (ANALYSIS, "output_constraints.max_next_probes"),
    (ANALYSIS, "verification.judge_model"),
    (RERANK, "candidates.0.path"),
    (RERANK, "candidates.0.original_score"),
    (RERANK, "ranking_rubric"),
    (SANDBOX, "sandbox.resources.disk_mb"),
    (SANDBOX, "repo.git_ref"),
    (SANDBOX, "commands.0.workdir"),
    (SANDBOX, "artifacts"),
    (JUDGE, "judge_model"),
]
DEFAULTED = [
    (ANALYSIS, "output_constraints"),
    (RERANK, "k"),
    (RERANK, "candidates.0.metadata"),
    (SANDBOX, "sandbox.resources"),
    (SANDBOX, "repo"),
    (SANDBOX, "env"),
    (SANDBOX, "commands.0.continue_on_fail"),
    (SANDBOX, "verification"),
]


@pytest.mark.parametrize(("job_type", "place"), OPTIONS + DEFAULTED)
def test_null_is_no_value(job_type: str, place: str) -> None:
    said = changed(a_full(job_type, "request"), place, None)
    with pytest.raises(InvalidRequestError, match=f"payload.{place}: "):
        REGISTRY.request(job_type, said)
    assert not schema(job_type, "request").is_valid(said)


INTEGERS = [
    (ANALYSIS, "request", "chunk.end_line", 1, 2**32 - 1),
    (ANALYSIS, "request", "output_constraints.max_symbols", 0, 2**32 - 1),
    (RERANK, "request", "k", 1, 2**53 - 1),
    (SANDBOX, "request", "sandbox.resources.memory_mb", 16, 2**20),
    (SANDBOX, "request", "sandbox.resources.timeout_secs", 1, 86_400),
    (SANDBOX, "request", "sandbox.resources.disk_mb", 1, 2**20),
    (SANDBOX, "request", "verification.redundancy", 1, 9),
    (ANALYSIS, "response", "symbols.0.line", 1, 2**32 - 1),
    (RERANK, "response", "topk.0.rank", 1, 1000),
    (SANDBOX, "response", "runs.0.exit_code", -(2**31), 2**31 - 1),
    (SANDBOX, "response", "runs.0.duration_ms", 0, 2**53 - 1),
    (SANDBOX, "response", "artifacts.0.size_bytes", 0, 2**53 - 1),
    (SANDBOX, "response", "provenance.sampling.seed", 0, 2**53 - 1),
    (SANDBOX, "response", "provenance.tokens.input", 0, 2**53 - 1),
]


@pytest.mark.parametrize(("job_type", "side", "place", "least", "most"), INTEGERS)
def test_an_integer_has_the_bounds_of_its_type(job_type: str, side: str, place: str, least: int, most: int) -> None:
    for good in (least, most, float(least), float(most)):
        said = changed(a_full(job_type, side), place, good)
        found = at(read(job_type, side, said).typed(), place)
        assert (found, type(found)) == (good, int), "1.0 is the integer 1"
        assert schema(job_type, side).is_valid(said)
    for wrong in (least - 1, most + 1, least + 0.5, "1", True, None):
        said = changed(a_full(job_type, side), place, wrong)
        with pytest.raises(InvalidRequestError):
            read(job_type, side, said)
        assert not schema(job_type, side).is_valid(said)


NUMBERS = [
    (RERANK, "request", "candidates.0.original_score", [-1e300, 5e-324, 0, 3]),
    (SANDBOX, "request", "sandbox.resources.cpus", [0.01, 1, 2.5, 1024]),
    (ANALYSIS, "response", "confidence", [0, 0.1, 1]),
    (RERANK, "response", "topk.0.score", [0, 0.1, 1]),
    (RERANK, "response", "provenance.sampling.temperature", [0, 2.0]),
    (RERANK, "response", "provenance.sampling.top_p", [0, 0.9]),
]


@pytest.mark.parametrize(("job_type", "side", "place", "good"), NUMBERS)
def test_a_number_is_finite_and_nothing_else(job_type: str, side: str, place: str, good: list[float]) -> None:
    for value in good:
        assert at(read(job_type, side, changed(a_full(job_type, side), place, value)).typed(), place) == value
    for wrong in (float("nan"), float("inf"), float("-inf"), 10**400, "1", True, None, [1]):
        said = a_full(job_type, side)
        with pytest.raises(InvalidRequestError):
            read(job_type, side, changed(said, place, wrong))


@pytest.mark.parametrize(
    ("job_type", "place", "wrong", "words"),
    [
        (ANALYSIS, "chunk.start_line", 2, "payload.chunk: end_line is before start_line"),
        (ANALYSIS, "chunk.path", "", "payload.chunk.path: must not be empty"),
        (ANALYSIS, "task", 1, "payload.task: must be text"),
        (RERANK, "candidates", [{"id": "1", "content": ""}] * 2, "payload: two candidates have the same id"),
        (RERANK, "candidates", {}, "payload.candidates: must be an array"),
        (RERANK, "candidates.0", 1, "payload.candidates.0: must be an object"),
        (RERANK, "candidates.0.metadata", {"secret": 1}, "payload.candidates.0.metadata: a value must be text"),
        (RERANK, "candidates.0.original_score", "1", "payload.candidates.0.original_score: must be a number"),
        (RERANK, "k", 0, "payload.k: must be at least 1"),
        (SANDBOX, "sandbox.image_digest", "python:slim", "must be sha256: and 64 hex digits, in lower case"),
        (SANDBOX, "sandbox.network_policy", "all", "must be 'none', 'localhost' or 'full'"),
        (SANDBOX, "commands", [], "payload.commands: must not be empty"),
        (SANDBOX, "commands.0.cmd", "a\0b", "must not be empty or contain the character NUL"),
        (SANDBOX, "commands.0.continue_on_fail", 1, "must be true or false"),
        (SANDBOX, "env", {"A=B": "secret"}, "payload.env: a name must be letters"),
        (SANDBOX, "verification", {"adjudication": "judge_model"}, "oa.sandbox_run.v1 has majority_vote, none"),
        (SANDBOX, "verification.redundancy", 10, "payload.verification.redundancy: must be at most 9"),
    ],
)
def test_a_refusal_says_where_and_why_and_shows_no_value(job_type: str, place: str, wrong: object, words: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        REGISTRY.request(job_type, changed(a_full(job_type, "request"), place, wrong))
    assert words in refused.value.detail
    assert "secret" not in refused.value.detail


@pytest.mark.parametrize("payload", [None, [], "text", 1])
def test_a_request_is_an_object(payload: object) -> None:
    with pytest.raises(InvalidRequestError, match="payload: must be an object"):
        REGISTRY.request(RERANK, payload)


@pytest.mark.parametrize(
    "request_text",
    [
        rb'{"user_task": "a", "candidates": [], "k": NaN}',
        rb'{"user_task": "a", "candidates": [{"id": "1", "content": "", "original_score": 1e400}]}',
        rb'{"user_task": "\ud800", "candidates": []}',
    ],
)
def test_what_is_no_json_never_becomes_a_request(request_text: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        REGISTRY.request(RERANK, strict_json.loads(request_text))


@pytest.mark.parametrize("inside", [{"n": 2**53}, {"n": float("inf")}, {"\ud800": 1}, {"n": ["\udc00"]}, {"n": {1}}])
def test_what_has_no_hash_is_no_request(inside: dict[str, Any]) -> None:
    """Free JSON is not looked at by a model."""
    with pytest.raises(InvalidRequestError, match=r"no canonical form|no JSON"):
        REGISTRY.request(JUDGE, {**LEAST[JUDGE], "request": inside})


# --- responses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job_type", list(RESPONSES))
def test_a_response_is_read_and_written_unchanged(job_type: str) -> None:
    said = RESPONSES[job_type]
    assert schema(job_type, "response").is_valid(said)
    assert REGISTRY.response(job_type, said).typed() == said
    fields = json.loads((CONTRACTS / "job-types" / f"{job_type}.json").read_text())["response_schema"]["properties"]
    assert said.keys() == fields.keys(), "the example has every field"


@pytest.mark.parametrize("job_type", list(RESPONSES))
def test_who_found_it_and_when_is_neither_output_nor_declared(job_type: str) -> None:
    one = REGISTRY.response(job_type, RESPONSES[job_type])
    other = REGISTRY.response(job_type, {**RESPONSES[job_type], "provenance": {"model_id": "another"}})
    outputs = {name: value for name, value in RESPONSES[job_type].items() if name != "provenance"}
    assert one.outputs() == other.outputs() == outputs
    assert one.declared() == other.declared()


@pytest.mark.parametrize(
    ("place", "value", "counts"),
    [
        ("runs.0.duration_ms", 7, False),
        ("runs.0.stdout_preview", "x", True),
        ("runs.0.stderr_preview", "x", True),
        ("artifacts.0.size_bytes", 7, True),
        ("repo_commit", "u", True),
        ("env_info.hostname", "x", False),
        ("env_info.system_info", "x", False),
        ("error", "x", False),
        ("runs.0.exit_code", 1, True),
        ("runs.0.cmd", "false", True),
        ("runs.0.stdout_sha256", "c" * 64, True),
        ("runs.0.stderr_sha256", "c" * 64, True),
        ("artifacts.0.sha256", "c" * 64, True),
        ("artifacts.0.path", "b", True),
        ("artifacts", [], True),
        ("runs", [], True),
        ("status", "failed", True),
        ("env_info.image_digest", "sha256:" + "c" * 64, True),
        ("repo_tree", "u", True),
    ],
)
def test_what_a_sandbox_run_is_compared_on(place: str, value: object, counts: bool) -> None:
    before = REGISTRY.response(SANDBOX, RESPONSES[SANDBOX])
    after = REGISTRY.response(SANDBOX, changed(RESPONSES[SANDBOX], place, value))
    assert (before.declared() != after.declared()) is counts


@pytest.mark.parametrize("wrong", [5, 5.5, "1700000000", "2026-02-16", "2026-02-16T12:00:00", "yesterday", True, None])
def test_a_moment_is_rfc_3339(wrong: object) -> None:
    with pytest.raises(ValueError, match="executed_at"):
        Provenance.model_validate({"model_id": "m", "executed_at": wrong})


def test_a_moment_goes_out_in_utc_with_milliseconds() -> None:
    read_one = Provenance.model_validate({"model_id": "m", "executed_at": "2026-02-16T13:00:00+01:00"})
    assert read_one.model_dump(mode="json")["executed_at"] == "2026-02-16T12:00:00.000Z"
