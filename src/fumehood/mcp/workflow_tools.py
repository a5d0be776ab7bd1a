"""Workflows: which there are, starting a run, watching it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import aclosing
from typing import Annotated, Any

from pydantic import Field

from fumehood.errors import NotFoundError
from fumehood.mcp import limits
from fumehood.mcp.bounds import and_more, clipped, visible
from fumehood.mcp.tool import Answer, Arguments, Call, Tool
from fumehood.sdk.aio.transport import part

MOST_WORKFLOWS = 200
MOST_STEPS = 100
MOST_ERROR = 2048
ENDED = ("succeeded", "failed", "timed_out", "cancelled")


class ListWorkflows(Arguments):
    limit: Annotated[int, Field(ge=1, le=MOST_WORKFLOWS, description="At most so many")] = 100


class Workflow(Answer):
    name: str
    version: int
    applied_at: str


class WorkflowList(Answer):
    workflows: list[Workflow]
    truncated: bool

    def text(self) -> str:
        lines = [f"{one.name}  version {one.version}" for one in self.workflows]
        more = [and_more(len(lines), MOST_WORKFLOWS)] if self.truncated else []
        return "\n".join([f"{len(lines)} workflows", *lines, *more])


async def list_workflows(call: Call, asked: ListWorkflows) -> WorkflowList:
    answer = await call.client.transport.get("/v1/workflows", {"limit": asked.limit})
    return WorkflowList(
        workflows=[
            Workflow(name=visible(one["name"]), version=one["version"], applied_at=one["applied_at"])
            for one in answer["workflows"]
        ],
        truncated=answer.get("next") is not None,
    )


class StartWorkflow(Arguments):
    workflow: Annotated[str, Field(min_length=1, max_length=256, description="Its name, as list_workflows has it")]
    input: Annotated[Any, Field(description="What the run is started with: any JSON that the workflow takes")] = None
    idempotency_key: Annotated[
        str | None,
        Field(min_length=1, max_length=256, description="The same key and input again is the same run"),
    ] = None


class RunStarted(Answer):
    run_id: str
    workflow: str
    status: str

    def text(self) -> str:
        return f"run_id: {self.run_id}\nstatus: {self.status}\nwatch_run tells how it goes on"


async def start_workflow(call: Call, asked: StartWorkflow) -> RunStarted:
    try:
        run = await call.client.workflows.run(asked.workflow, asked.input, idempotency_key=asked.idempotency_key)
    except NotFoundError as error:
        raise error.advise("list_workflows names those that are there") from None
    return RunStarted(run_id=run.id, workflow=asked.workflow, status=run.status)


# --- watching ----------------------------------------------------------------------------------------------


class WatchRun(Arguments):
    run_id: Annotated[str, Field(min_length=1, max_length=256, description="The run_id of start_workflow")]
    wait_seconds: limits.Wait = limits.WAIT_SECONDS
    output_bytes: limits.OutputBytes = limits.DEFAULT_OUTPUT


class Step(Answer):
    step: str
    status: str
    attempt: int
    error: str | None = None


class RunAnswer(Answer):
    run_id: str
    workflow: str | None
    status: Annotated[str, Field(description="queued, running, succeeded, failed, timed_out or cancelled")]
    ended: Annotated[bool, Field(description="Whether that is for good; else call watch_run again")]
    steps: list[Step]
    steps_truncated: bool = False
    output: Annotated[str | None, Field(description="What it gave, as JSON")] = None
    output_truncated: bool = False
    error: Annotated[str | None, Field(description="Why it failed")] = None

    def text(self) -> str:
        lines = [f"run_id: {self.run_id}", f"status: {self.status}{'' if self.ended else ' (not ended yet)'}"]
        lines += [f"error: {self.error}"] if self.error else []
        for one in self.steps:
            lines.append(f"step {one.step}: {one.status}{f' ({one.error})' if one.error else ''}")
        lines += [f"… and more steps: only the first {MOST_STEPS} are told"] if self.steps_truncated else []
        if self.output is not None:
            lines.append(f"output{' (the beginning of it)' if self.output_truncated else ''}: {self.output}")
        return "\n".join(lines)


async def watch_run(call: Call, asked: WatchRun) -> RunAnswer:
    path = f"/v1/runs/{part(asked.run_id)}"
    run = await call.client.transport.get(path)
    if run["status"] not in ENDED and asked.wait_seconds:
        await _wait(call, path, asked.wait_seconds)
        run = await call.client.transport.get(path)
    return _told(run, asked.output_bytes)


async def _wait(call: Call, path: str, seconds: float) -> None:
    """Until it ends, or the time is over; each of its events is progress."""
    count = 0
    try:
        async with (
            call.progress.ticking(lambda: "the run goes on"),
            asyncio.timeout(seconds),
            aclosing(call.client.transport.events(f"{path}/events")) as events,
        ):
            async for event in events:
                if event.event == "end":
                    return
                count += 1
                await call.progress.tell(count, _event(event.event, event.data))
    except TimeoutError:
        return


def _event(kind: str | None, data: Any) -> str:
    step = data.get("step") if isinstance(data, Mapping) else None
    return visible(f"{kind}: {step}" if step else str(kind))[:200]


def _told(run: Mapping[str, Any], limit: int) -> RunAnswer:
    steps = list(run["steps"].items())
    output, cut = (None, False) if run.get("output") is None else _json(run["output"], limit)
    return RunAnswer(
        run_id=run["run_id"],
        workflow=run.get("workflow"),
        status=run["status"],
        ended=run["status"] in ENDED,
        steps=[
            Step(step=visible(name), status=one["status"], attempt=one["attempt"], error=_failure(one.get("error")))
            for name, one in steps[:MOST_STEPS]
        ],
        steps_truncated=len(steps) > MOST_STEPS,
        output=output,
        output_truncated=cut,
        error=_failure(run.get("error")),
    )


def _json(value: Any, limit: int) -> tuple[str, bool]:
    return clipped(visible(json.dumps(value, ensure_ascii=False)), limit)


def _failure(error: Mapping[str, Any] | None) -> str | None:
    return None if error is None else clipped(visible(f"{error['code']}: {error['message']}"), MOST_ERROR)[0]


class CancelRun(Arguments):
    run_id: Annotated[str, Field(min_length=1, max_length=256)]
    reason: Annotated[str, Field(max_length=1024, description="For the people who read the run's history")] = ""


async def cancel_run(call: Call, asked: CancelRun) -> RunAnswer:
    path = f"/v1/runs/{part(asked.run_id)}"
    await call.client.transport.post(f"{path}:cancel", {"reason": asked.reason}, again=True)
    return _told(await call.client.transport.get(path), limits.DEFAULT_OUTPUT)


TOOLS = (
    Tool(
        "list_workflows",
        "List workflows",
        "List the workflows that can be started here.",
        ListWorkflows,
        WorkflowList,
        list_workflows,
        read_only=True,
        idempotent=True,
    ),
    Tool(
        "start_workflow",
        "Start a workflow",
        "Start a run of a workflow and return its run_id at once. It goes on whatever happens to this conversation.",
        StartWorkflow,
        RunStarted,
        start_workflow,
    ),
    Tool(
        "watch_run",
        "Watch a run",
        "Wait for a run's end, up to wait_seconds, and tell its status, its steps and its output. If it has not ended, "
        "call it again.",
        WatchRun,
        RunAnswer,
        watch_run,
        read_only=True,
        idempotent=True,
    ),
    Tool(
        "cancel_run",
        "Cancel a run",
        "Ask a run to end. What it is undoing by then is still undone.",
        CancelRun,
        RunAnswer,
        cancel_run,
        destructive=True,
        idempotent=True,
    ),
)
