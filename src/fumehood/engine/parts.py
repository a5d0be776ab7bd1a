"""The parts of a workflow definition: small, frozen, each with its defaults filled in and its bounds checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema, model_validator

from fumehood.engine import duration, expression
from fumehood.wire import blobref
from fumehood.wire.sandbox import NetworkProfile, SandboxTask


def _duration(value: object) -> object:
    return duration.parse(value) if isinstance(value, str) else value


def _expression(value: object) -> object:
    """A text that compiles; what it gives is only known when a run meets it."""
    if isinstance(value, str):
        expression.compiled(value)
    return value


def _template(value: object) -> object:
    for text in expression.texts(value):
        try:
            expression.compiled(text)
        except expression.ExpressionError as error:
            raise ValueError(f"{text[:80]!r}: {error} (literal text needs inner quotes: \"'…'\")") from error
    if blobref.mentions_blob(value):
        raise ValueError(f"the key {blobref.KEY} is not for definitions")
    return value


IDENTIFIER = r"^[A-Za-z0-9_](-?[A-Za-z0-9_])*$"
TASK_TYPE = r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$"
SIGNAL_NAME = r"^[A-Za-z0-9_-]+$"
Identifier = Annotated[str, Field(pattern=IDENTIFIER, max_length=64)]
"""Safe as a part of a subject, and never ambiguous with an item of a map; short enough for all that is built on it."""
TaskType = Annotated[str, Field(pattern=TASK_TYPE, max_length=128)]
SignalName = Annotated[str, Field(pattern=SIGNAL_NAME, max_length=128)]
Duration = Annotated[
    int,
    BeforeValidator(_duration),
    Field(gt=0, le=duration.LONGEST_MS),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "exclusiveMinimum": 0, "maximum": duration.LONGEST_MS},
                {"type": "string", "pattern": "^([0-9]{1,9}(ms|s|m|h|d))+$"},
            ],
            "description": "`500ms`, `2s`, `5m`, `1h30m`, or milliseconds",
        }
    ),
]
Expression = Annotated[str, BeforeValidator(_expression)]
Template = Annotated[Any, BeforeValidator(_template)]


class Part(BaseModel):
    """Unknown words are errors: a misspelt `timout` must not silently mean "none"."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Retry(Part):
    """How often, and how long between. Attempt n waits `backoff * factor^(n-1)`, at most `max_backoff`, plus jitter."""

    attempts: Annotated[int, Field(ge=1, le=100)] = 3
    backoff: Duration = 1000
    factor: Annotated[float, Field(ge=1, le=10)] = 2.0
    max_backoff: Duration = 300_000
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.2
    non_retryable: tuple[str, ...] = ()


class Sandbox(Part):
    """A command in an image. The texts in it are taken as they are; what `with` gives is JSON on its standard input.

    Every end that is known completes the step, whatever the exit code: its output tells how."""

    image: Annotated[str, Field(min_length=1)]
    command: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Replaces the image's entrypoint; without it, that one runs."""
    args: tuple[str, ...] | None = None
    """Replaces the image's own arguments."""
    env: Mapping[str, str] = Field(default_factory=dict)
    timeout: Annotated[Duration, Field(le=86_400_000)] | None = None
    cpu_millis: Annotated[int, Field(ge=10, le=1_024_000)] | None = None
    memory_mib: Annotated[int, Field(ge=16, le=1_048_576)] | None = None
    network: NetworkProfile = NetworkProfile.DENY_ALL
    must_succeed: bool = False
    """Any end but exit code 0 fails the step; `error.details` is the report then."""

    @property
    def task(self) -> SandboxTask:
        """What a node is handed."""
        return SandboxTask(
            image=self.image,
            command=self.command,
            args=self.args,
            env=dict(self.env),
            timeout_ms=self.timeout,
            cpu_millis=self.cpu_millis,
            memory_mib=self.memory_mib,
            network=self.network,
            must_succeed=self.must_succeed,
        )

    @model_validator(mode="after")
    def _can_be_handed_out(self) -> Self:
        """What a node would refuse is refused here, where somebody sees the line."""
        try:
            _ = self.task
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        return self


class AgentLoop(Part):
    """A task that may ask to be called again, with what it said last."""

    task: TaskType
    max_iterations: Annotated[int, Field(ge=1, le=10_000)] = 100


class Map(Part):
    """A task for each item of a list. `item` and `index` are visible in the step's `with`."""

    over: Expression
    task: TaskType
    concurrency: Annotated[int, Field(ge=1, le=10_000)] | None = None


class WaitSignal(Part):
    """Waits until the run is told something by this name; what it was told is the step's output."""

    name: SignalName
    timeout: Duration | None = None


class Approval(Part):
    """Waits until somebody says yes. What `with` gives is shown to whoever is asked."""

    message: Annotated[str, Field(max_length=4096)] = ""
    approvers: Annotated[tuple[str, ...], Field(max_length=256)] = ()
    """Who may decide; nobody named: whoever may approve at all."""
    timeout: Duration | None = None


class SubWorkflow(Part):
    """Another workflow as a step: its run is this step's work, its output the step's."""

    workflow: Identifier


class Concurrency(Part):
    """At most `limit` at once with the same key, over all runs of the workflow."""

    key: Expression
    limit: Annotated[int, Field(ge=1, le=1000)] = 1
    on_conflict: Literal["queue", "reject"] = "queue"


class Errand(Part):
    """A task beside the graph: what undoes a step, or what is done when a run fails."""

    task: TaskType
    with_: Annotated[Template, Field(alias="with")] = None
    retry: Retry = Retry(attempts=1)
    timeout: Duration | None = None


class ContinueAsNew(Part):
    """When a run has succeeded and `when` holds, another one of the same definition begins with this input."""

    when: Expression
    input: Template = None
