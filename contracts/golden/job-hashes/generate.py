"""Writes the golden hashes of job requests. What they are is said by hash.mjs, which shares no code with ours.

    python contracts/golden/job-hashes/generate.py

Run it again only to add a vector: one that is there never changes, or every hash that was ever signed would be worth
nothing.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ANALYSIS, RERANK, SANDBOX = "oa.code_chunk_analysis.v1", "oa.retrieval_rerank.v1", "oa.sandbox_run.v1"
JUDGE = "oa.candidate_judge.v1"
DIGEST = "sha256:abc123def456" + "0" * 52

Case = tuple[str, str]
"""A job type, and a request as JSON."""

LOGIN = """
pub fn login(username: &str, password: &str) -> Result<Session, AuthError> {
    let user = db.find_user(username)?;
    if verify_password(password, &user.password_hash) {
        Ok(Session::create(user.id))
    } else {
        Err(AuthError::InvalidCredentials)
    }
}
"""


def written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def scored(number: str) -> Case:
    """A number as it is written."""
    return RERANK, f'{{"user_task": "a", "candidates": [{{"id": "1", "content": "", "original_score": {number}}}]}}'


def named(metadata: str) -> Case:
    return RERANK, f'{{"user_task": "a", "candidates": [{{"id": "1", "content": "", "metadata": {metadata}}}]}}'


def saying(text: str) -> Case:
    return RERANK, f'{{"user_task": {text}, "candidates": []}}'


EXAMPLES: dict[str, Case] = {
    "code-chunk-analysis": (
        ANALYSIS,
        written(
            {
                "task": "Find authentication vulnerabilities",
                "user_task": "Security audit",
                "chunk": {
                    "path": "src/auth/login.rs",
                    "start_line": 1,
                    "end_line": 50,
                    "content": LOGIN,
                    "language": "rust",
                },
            }
        ),
    ),
    "retrieval-rerank": (
        RERANK,
        written(
            {
                "user_task": "How does the authentication system work?",
                "candidates": [
                    {"id": "1", "content": "fn login() { ... }", "path": "src/auth.rs", "original_score": 0.8},
                    {
                        "id": "2",
                        "content": "fn create_session() { ... }",
                        "path": "src/session.rs",
                        "original_score": 0.75,
                    },
                    {
                        "id": "3",
                        "content": "fn parse_config() { ... }",
                        "path": "src/config.rs",
                        "original_score": 0.72,
                    },
                ],
                "k": 5,
                "ranking_rubric": "Prefer code directly related to auth flow",
            }
        ),
    ),
    "sandbox-run": (
        SANDBOX,
        written(
            {
                "sandbox": {
                    "provider": "docker",
                    "image_digest": DIGEST,
                    "network_policy": "none",
                    "resources": {"memory_mb": 1024, "cpus": 2.0, "timeout_secs": 300},
                },
                "commands": [
                    {"cmd": "cargo build --release"},
                    {"cmd": "cargo test", "continue_on_fail": True},
                ],
            }
        ),
    ),
}

LEAST: dict[str, dict[str, Any]] = {
    ANALYSIS: {"task": "a", "chunk": {"path": "a", "start_line": 1, "end_line": 1, "content": ""}},
    RERANK: {"user_task": "a", "candidates": [{"id": "1", "content": ""}]},
    SANDBOX: {"sandbox": {"image_digest": DIGEST}, "commands": [{"cmd": "true"}]},
    JUDGE: {"job_type": SANDBOX, "request": {}, "candidates": [{}]},
}
MOST: dict[str, dict[str, Any]] = {
    ANALYSIS: {
        "task": "a",
        "user_task": "b",
        "chunk": {
            "path": "a.py",
            "start_line": 4294967295,
            "end_line": 4294967295,
            "content": "x",
            "language": "python",
        },
        "output_constraints": {
            "max_summary_length": 0,
            "max_symbols": 1,
            "max_faults": 2,
            "max_next_probes": 4294967295,
        },
        "verification": {"mode": "subjective", "redundancy": 9, "adjudication": "judge_model", "judge_model": "m"},
    },
    RERANK: {
        "user_task": "a",
        "candidates": [{"id": "1", "content": "b", "path": "c", "original_score": -1, "metadata": {"d": "e"}}],
        "k": 9007199254740991,
        "ranking_rubric": "f",
        "verification": {"mode": "objective", "redundancy": 3, "adjudication": "merge"},
    },
    SANDBOX: {
        "sandbox": {
            "provider": "firecracker",
            "image_digest": DIGEST,
            "network_policy": "full",
            "resources": {"memory_mb": 16, "cpus": 0.25, "timeout_secs": 86400, "disk_mb": 1},
        },
        "repo": {"source": "https://example.org/a.git", "git_ref": "v1", "mount_path": "/src"},
        "commands": [{"cmd": "make", "workdir": "b", "continue_on_fail": True}],
        "env": {"B": "2", "A": "1", "_": ""},
        "artifacts": ["dist/**", "a"],
        "verification": {"mode": "objective", "redundancy": 3, "adjudication": "majority_vote"},
    },
    JUDGE: {
        "job_type": RERANK,
        "request": {"b": [None, True, {"c": 1.50}], "a": 1e21},
        "candidates": [{"z": -0.0}, {"y": {"x": []}}],
        "judge_model": "m",
        "verification": {"mode": "objective", "redundancy": 2, "adjudication": "majority_vote"},
    },
}


def extended(request: Mapping[str, Any]) -> dict[str, Any]:
    return {"unknown": {"deep": [1, None]}, **request, "verification": {"redundancy": 4, "unknown": None}}


DEFAULTS: dict[str, Case] = {
    **{f"least {job_type}": (job_type, written(request)) for job_type, request in LEAST.items()},
    **{f"everything {job_type}": (job_type, written(request)) for job_type, request in MOST.items()},
    **{
        f"unknown fields, and only the redundancy {job_type}": (job_type, written(extended(request)))
        for job_type, request in LEAST.items()
    },
    "an empty list of globs is not an unset one": (SANDBOX, written({**LEAST[SANDBOX], "artifacts": []})),
    "defaults that are written out": (
        RERANK,
        written(
            {
                "candidates": [{"metadata": {}, "content": "", "id": "1"}],
                "k": 10,
                "verification": {"adjudication": "majority_vote", "redundancy": 2, "mode": "subjective"},
                "user_task": "a",
            }
        ),
    ),
}

WAYS_TO_WRITE_NUMBERS = """
0 -0 0.0 -0.0 1 1.0 1e0 -1.5 0.1 0.2 0.3 4.50 2e-3 1e-6 1e-7 123456.789e3 1e20 1e21 1e22 1e23 1E30 5e-324 -5e-324
1.7976931348623157e308 -1.7976931348623157e308 2.2250738585072014e-308 333333333.33333329 9007199254740991
9007199254740992 9007199254740993 12345678901234567890 295147905179352830000 0.000000000000000000000000001
1424953923781206.2 0.30000000000000004 9.999999999999997e22
"""

NUMBERS: dict[str, Case] = {
    **{number: scored(number) for number in WAYS_TO_WRITE_NUMBERS.split()},
    "k is 1.0, an integer": (RERANK, '{"user_task": "a", "candidates": [], "k": 1.0}'),
}

TEXTS: dict[str, Case] = {
    "keys are sorted by UTF-16 code units, not by code points": named(
        r'{"\u20ac": "", "\r": "", "\ufb33": "", "1": "", "\ud83d\ude00": "", "\u0080": "", "\u00f6": "", "": ""}'
    ),
    "numbers as keys are sorted as text": named('{"10": "", "9": "", "1": "", "02": ""}'),
    "names that objects of a language have": named('{"__proto__": "a", "constructor": "b", "toString": "c"}'),
    "every control character": saying('"a' + "".join(f"\\u{point:04x}" for point in range(0x20)) + '\\u007f"'),
    "what need not be escaped": saying('"\\/ \\u0041 \\u2028\\u2029 \\ufeff \\"\\\\"'),
    "astral characters, escaped": saying(r'"\ud83d\ude00\udbff\udfff"'),
    "astral characters, as they are": saying('"\U0001f600\U0010ffff"'),
    "combining characters are not composed": saying('"e\u0301"'),
    "composed characters are not taken apart": saying('"\u00e9"'),
    "no character and the last ones": saying(r'"\u0000\uffff\ufffe\ud7ff\ue000"'),
    "empty maps": named("{}"),
}

FILES: dict[str, tuple[str, Mapping[str, Case]]] = {
    "contract-examples": ("The examples of the contract, as JSON; the digest is completed with zeros", EXAMPLES),
    "defaults": ("What is left out is filled in, unknown fields do not count, unset options are left out", DEFAULTS),
    "numbers": ("Numbers, each as it is written in the request", NUMBERS),
    "texts": ("Characters, and the order of keys", TEXTS),
}


def hashed(cases: Mapping[str, Case]) -> list[dict[str, Any]]:
    lines = [f'{{"job_type": "{job_type}", "payload": {request}}}' for job_type, request in cases.values()]
    command = ["node", str(HERE / "hash.mjs")]
    done = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, encoding="utf-8", check=True)
    answers = [json.loads(line) for line in done.stdout.split("\n") if line]
    return [
        {
            "name": name,
            "job_type": job_type,
            "request": request,
            "typed": json.loads(answer["canonical"]),
            "canonical": answer["canonical"],
            "sha256": answer["sha256"],
        }
        for (name, (job_type, request)), answer in zip(cases.items(), answers, strict=True)
    ]


def main() -> None:
    for name, (about, cases) in FILES.items():
        text = json.dumps({"about": about, "vectors": hashed(cases)}, indent=2)
        (HERE / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
