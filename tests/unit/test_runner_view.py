"""From the engine's state to the contract's words, without any broker."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.control.index_rows import run_row
from fumehood.control.runner import definition_of
from fumehood.control.runner_view import ACTIVE, META, Asked, Traces, end_of, ended, summary, under_way, waiting
from fumehood.control.summaries import line
from fumehood.engine.definition import MAX_BYTES, Definition
from fumehood.engine.state import Failure, Override, RunState, RunStatus, StepState, StepStatus
from fumehood.wire import blobref
from fumehood.wire.base import validate
from fumehood.wire.runner_api import CreateRunRequest, RunnerStatus
from fumehood.wire.sandbox import RUN_STEP, RUN_WORKFLOW, RunReason
from tests.contract.runner_harness import BEGAN, ENDED, report, wish

DIGEST = "sha256:" + "ab" * 32
ASKED = Asked("registry/tool:1", {"registry_allowed": True, "signature_verified": False, "resolved_digest": DIGEST})
STARTED, OVER = 1_771_243_200_000, 1_771_243_209_000


def run(status: RunStatus, step: StepState, **known: Any) -> RunState:
    definition = definition_of(validate(CreateRunRequest, wish()), f"registry/tool@{DIGEST}")
    return RunState(
        "0" * 32,
        definition,
        None,
        STARTED,
        None,
        meta={META: ASKED.plain()},
        status=status,
        steps={RUN_STEP: step},
        ended_at=OVER if status.ended else None,
        **known,
    )


def failed(code: str, details: Any = None) -> RunState:
    step = StepState(StepStatus.FAILED, attempt=1, failure=Failure(code, "why", details))
    return run(RunStatus.FAILED, step, failure=Failure(code, "why"), failed_step=RUN_STEP)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["status", "reason", "exit_code", "started_at", "finished_at", "stdout", "truncated"])
DETAILS = JSON | st.dictionaries(FIELDS, JSON | st.sampled_from(["failed", "exit", "2026-02-16T12:00:00Z"]))


@given(code=st.sampled_from([*RunReason, "lease_expired", "timed_out"]) | st.text(max_size=20), details=DETAILS)
def test_whatever_a_node_says_a_failure_has_a_status_and_a_reason_of_the_contract(code: str, details: Any) -> None:
    state = failed(code, details if isinstance(details, dict) else None)
    end = end_of(state, None)
    shown = ended(state, ASKED, end, Traces(1))
    assert shown.status in (RunnerStatus.FAILED, RunnerStatus.TIMED_OUT, RunnerStatus.STOPPED)
    assert shown.reason in set(RunReason)
    assert (shown.status is RunnerStatus.TIMED_OUT) == (code == RunReason.TIMEOUT)
    assert (shown.status is RunnerStatus.STOPPED) == (code == RunReason.STOPPED)
    assert shown.finished_at is not None
    assert shown.policy_evidence.resolved_digest == DIGEST


@given(output=DETAILS)
def test_whatever_a_step_gave_a_run_that_succeeded_has_succeeded(output: Any) -> None:
    state = run(RunStatus.SUCCEEDED, StepState(StepStatus.COMPLETED, attempt=1, output=output))
    shown = ended(state, ASKED, end_of(state, output), Traces())
    assert shown.status is RunnerStatus.SUCCEEDED
    assert shown.finished_at is not None


@given(
    status=st.sampled_from([one for one in StepStatus if not one.ended]),
    attempt=st.integers(0, 3),
    traces=st.builds(Traces, st.integers(0, 3), st.booleans(), st.none() | st.just(BEGAN)),
)
def test_only_traces_of_the_attempt_under_way_count(status: StepStatus, attempt: int, traces: Traces) -> None:
    shown = under_way(run(RunStatus.RUNNING, StepState(status, attempt=attempt)), ASKED, traces)
    is_its = status.handed_out and traces.attempt == attempt
    assert shown.status is (traces.status if is_its else RunnerStatus.QUEUED)
    assert shown.started_at == (traces.started_at if is_its else None)
    assert (shown.finished_at, shown.exit_code, shown.reason) == (None, None, None)


def test_a_stopped_run_is_known_to_have_begun_by_its_output_alone() -> None:
    state = run(RunStatus.CANCELLED, StepState(StepStatus.CANCELLED, attempt=1))
    shown = ended(state, ASKED, end_of(state, None), Traces(1, begun=True, started_at=BEGAN))
    assert (shown.status, shown.reason, shown.started_at) == (RunnerStatus.STOPPED, RunReason.STOPPED, BEGAN)
    assert shown.finished_at == dt.datetime.fromtimestamp(OVER / 1000, dt.UTC)


def test_the_nodes_times_win_over_the_engines() -> None:
    state = run(RunStatus.SUCCEEDED, StepState(StepStatus.COMPLETED, attempt=1))
    shown = ended(state, ASKED, end_of(state, report().model_dump(mode="json")), Traces())
    assert (shown.started_at, shown.finished_at, shown.exit_code) == (BEGAN, ENDED, 0)


def test_a_run_that_nobody_has_looked_at_has_its_evidence() -> None:
    shown = waiting("r1", replace(ASKED, context={"a": 1}))
    assert (shown.status, shown.pod_name, shown.workflow_context) == (RunnerStatus.QUEUED, "run-r1", {"a": 1})
    assert shown.policy_evidence.registry_allowed


def test_what_was_asked_comes_back_from_a_runs_meta_and_from_no_others() -> None:
    asked = replace(ASKED, context={"a": [1]})
    assert Asked.of(RUN_WORKFLOW, {META: asked.plain()}) == asked
    assert Asked.of("w", {META: asked.plain()}) is None
    assert Asked.of(RUN_WORKFLOW, {}) is None
    assert Asked.of(RUN_WORKFLOW, {META: "x"}) is None


# --- lists -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "outcome", "reason", "exit_code"),
    [
        (run(RunStatus.RUNNING, StepState(StepStatus.RUNNING, attempt=1)), ACTIVE, None, None),
        (failed("exit", report(exit_code=3).model_dump(mode="json")), "failed", "exit", 3),
        (failed("timeout"), "timed_out", "timeout", None),
        (failed("lease_expired"), "failed", "node_lost", None),
        (run(RunStatus.CANCELLED, StepState(StepStatus.CANCELLED)), "stopped", "stopped", None),
        (
            run(RunStatus.SUCCEEDED, StepState(StepStatus.COMPLETED, output=report().model_dump(mode="json"))),
            "succeeded",
            "exit",
            0,
        ),
        (
            run(RunStatus.SUCCEEDED, StepState(StepStatus.COMPLETED, output=blobref.reference(DIGEST, 200_000))),
            "succeeded",
            None,
            0,
        ),
        (
            run(RunStatus.SUCCEEDED, StepState(StepStatus.COMPLETED, override=Override("complete", "me", "x"))),
            "succeeded",
            None,
            None,
        ),
    ],
)
def test_a_line_says_how_a_run_ended_and_the_index_reads_it(
    state: RunState, outcome: str, reason: str | None, exit_code: int | None
) -> None:
    row = run_row(state.run_id, blobref.encode(line(state)))
    assert row is not None
    assert (row.outcome, row.reason, row.exit_code) == (outcome, reason, exit_code)
    assert (row.image_ref, row.image_digest, row.workflow) == ("registry/tool:1", DIGEST, RUN_WORKFLOW)


def test_a_workflows_run_says_nothing_of_it() -> None:
    definition = Definition.model_validate({"name": "w", "steps": [{"id": "a", "task": "t"}]})
    state = RunState("r", definition, None, STARTED, None)
    assert summary(state) is None
    assert "runner" not in line(state)
    row = run_row("r", blobref.encode(line(state)))
    assert row is not None
    assert (row.outcome, row.image_digest) == (None, None)


# --- definitions -------------------------------------------------------------------------------------------


def test_the_largest_request_makes_a_definition() -> None:
    """Whatever the request's own bounds let in, the definition takes: a refusal would come as a fault of ours."""
    largest = wish(
        command=["", *("c" * 131_071 for _ in range(3))],
        args=["é" * 60_000],
        env_allowlist={"A" * 4096: "v" * 20_000} | {f"B{number}": "" for number in range(127)},
        resources={"cpu_millis": 8000, "memory_mb": 16384, "timeout_seconds": 3600},
        network_policy_profile="full",
        max_attempts=5,
    )
    made = definition_of(validate(CreateRunRequest, largest), f"{'r' * 200}@{DIGEST}")
    assert len(made.canonical()) < MAX_BYTES
    (step,) = made.steps
    assert (step.retry.attempts, step.timeout) == (5, None)
    assert step.sandbox is not None
    assert step.sandbox.task.timeout_ms == 3_600_000
