"""A job as a workflow: its executions, and what is made of them.

    execution-0 … execution-N-1 ──► verdict
    execution-0 … execution-N-1 ──► compare ──► judge ──► verdict       where a judge decides

Executions of a run are on distinct providers, and so is the judge. One that cannot be begun in time fails for good, one
that was begun and lost is tried again elsewhere. None of them fails the run: the verdict says what their failure means.
"""

from __future__ import annotations

from typing import Any

from fumehood.engine.definition import Definition
from fumehood.wire.job_api import JOB_WORKFLOW
from fumehood.wire.jobs import Adjudication, Verification
from fumehood.wire.sealed import ADJUDICATE_TASK, job_task

ATTEMPTS = 5
"""Of one execution: providers die, and the job is not at fault."""
JUDGE_TYPE = "oa.candidate_judge.v1"
JUDGE_SECONDS = 300
VERDICT, COMPARE, JUDGE = "verdict", "compare", "judge"
VERDICT_SECONDS = 300
"""For what nine large answers take on a slow machine."""
GROUP = "providers"
_RETRY = {
    "attempts": ATTEMPTS,
    "backoff": 200,
    "factor": 2,
    "max_backoff": 5000,
    "non_retryable": ["timeout"],
}
_PATIENT = {"attempts": 20, "backoff": 500, "factor": 2, "max_backoff": 30_000}


def execution(number: int) -> str:
    return f"execution-{number}"


def definition_of(job_type: str, verification: Verification, *, seconds: int, wait_seconds: int) -> Definition:
    """`seconds` are for one execution, `wait_seconds` until somebody begins it."""
    wait = wait_seconds * 1000
    names = [execution(number) for number in range(verification.redundancy)]
    steps = [_execution(name, job_type, "input", seconds * 1000, wait) for name in names]
    if verification.adjudication is Adjudication.JUDGE_MODEL:
        task = f"steps.{COMPARE}.output.judge_task"
        judge = _execution(JUDGE, JUDGE_TYPE, task, JUDGE_SECONDS * 1000, wait)
        steps += [_ours(COMPARE, names), judge | {"needs": [COMPARE], "when": f"{task} != null"}]
        steps.append(_ours(VERDICT, [*names, COMPARE, JUDGE]))
    else:
        steps.append(_ours(VERDICT, names))
    stages = 2 if verification.adjudication is Adjudication.JUDGE_MODEL else 1
    longest = stages * ATTEMPTS * (wait_seconds + seconds + JUDGE_SECONDS)
    return Definition.model_validate(
        {
            "name": JOB_WORKFLOW,
            "deadline": longest * 1000,
            "output": f"steps.{VERDICT}.output",
            "steps": steps,
        }
    )


def _execution(name: str, job_type: str, given: str, timeout_ms: int, wait_ms: int) -> dict[str, Any]:
    return {
        "id": name,
        "task": job_task(job_type),
        "with": given,
        "timeout": timeout_ms,
        "start_within": wait_ms,
        "distinct": GROUP,
        "retry": _RETRY,
        "on_failure": "continue",
    }


def _ours(name: str, needs: list[str]) -> dict[str, Any]:
    return {"id": name, "task": ADJUDICATE_TASK, "needs": needs, "timeout": VERDICT_SECONDS * 1000, "retry": _PATIENT}
