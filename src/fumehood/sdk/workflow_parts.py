"""The parts of a workflow that is written in Python: small and frozen, each as the document has it."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict

from fumehood.errors import InvalidDefinitionError
from fumehood.sdk.expressions import Expression, Value, reads, template, text_of

if TYPE_CHECKING:
    from fumehood.sdk.workflow import Step

Duration: TypeAlias = str | dt.timedelta
"""`"500ms"`, `"5m"`, `"1h30m"`, or a `timedelta`. No bare number: nobody can tell which unit was meant."""
Condition: TypeAlias = Expression | bool
Network: TypeAlias = Literal["deny-all", "dns-only", "localhost", "restricted", "full"]

_DURATION = re.compile(r"([0-9]{1,9}(ms|s|m|h|d))+")
_UNITS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
SHELL: Final = ("/bin/sh", "-c")


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a step is tried, and how long is waited in between: `backoff`, then `factor` times as long each time.

    What is left out is the server's: 3 attempts, 1s, twice as long, at most 5m, 20 % jitter.

        wf = Workflow("review")
        wf.task("fetch", "http.get", retry=Retry(attempts=5, backoff="2s", non_retryable=["gone"]))
    """

    attempts: int | None = None
    backoff: Duration | None = None
    factor: float | None = None
    max_backoff: Duration | None = None
    jitter: float | None = None
    non_retryable: Sequence[str] = ()
    """Codes of failures that are final."""

    def document(self) -> dict[str, Any]:
        """As a workflow's document has it."""
        return given(
            attempts=self.attempts,
            backoff=duration(self.backoff),
            factor=self.factor,
            max_backoff=duration(self.max_backoff),
            jitter=self.jitter,
            non_retryable=plain_list(self.non_retryable, "non_retryable") or None,
        )


@dataclass(frozen=True, slots=True)
class Concurrency:
    """At most `limit` at once with the same key, over all runs of the workflow.

    wf = Workflow("deploy", concurrency=Concurrency(Workflow("deploy").input.site, limit=1))
    """

    key: Expression | str
    """An expression; a text is the same key for all."""
    limit: int | None = None
    on_conflict: Literal["queue", "reject"] | None = None

    def document(self) -> dict[str, Any]:
        """As a workflow's document has it."""
        return given(key=text_of(self.key), limit=self.limit, on_conflict=self.on_conflict)


@dataclass(frozen=True, slots=True)
class Errand:
    """A task beside the graph: what undoes a step, or what is done when a run fails.

    wf = Workflow("deploy")
    wf.set_on_failure(Errand("mail.send", {"why": wf.failure.message}))
    """

    task: str
    with_: Value = None
    retry: Retry | None = None
    timeout: Duration | None = None

    def document(self) -> dict[str, Any]:
        """As a workflow's document has it."""
        return given(
            task=plain_text(self.task, "task"),
            with_=template(self.with_),
            retry=part(self.retry),
            timeout=duration(self.timeout),
        )


@dataclass(frozen=True, slots=True)
class ContinueAsNew:
    """When a run has succeeded and `when` holds, another one begins with this input. Both see `wf.output`."""

    when: Condition
    input: Value = None

    def document(self) -> dict[str, Any]:
        """As a workflow's document has it."""
        return given(when=condition(self.when), input=template(self.input))


# --- what a step may say beside its kind -------------------------------------------------------------------


class Common(TypedDict, total=False):
    """Of every step."""

    needs: Sequence[Step | str]
    """Steps, or their ids: it begins when they are over. Those that its expressions look at are added by themselves."""
    when: Condition
    """Whether it is done at all."""
    with_: Value
    """Its input: texts are texts, expressions are filled in when it begins."""
    on_failure: Literal["fail", "continue"]
    """What becomes of the run when it fails; `fail` unless said otherwise."""
    compensate: Errand
    """What undoes it, should the run not succeed."""
    concurrency: Concurrency
    """At most so many at once with the same key, over all runs of the workflow."""


class Tried(Common, total=False):
    """Of a step that may be tried again."""

    retry: Retry
    """How often it is tried, and after which pauses."""
    timeout: Duration
    """Of one attempt."""


class Handed(Tried, total=False):
    """Of a step that some worker does."""

    start_within: Duration
    """How long a worker is waited for."""
    distinct: str
    """Of the steps with the same word, no worker does two."""


class SandboxLimits(TypedDict, total=False):
    """Of a command in a sandbox."""

    env: Mapping[str, str]
    """Environment variables; no secrets."""
    command_timeout: Duration
    """After which the command is killed, which is one of the ends that it can have; `timeout` is the step's."""
    cpu_millis: int
    """Thousandths of a core."""
    memory_mib: int
    """What is used beyond it ends the command as `oom`."""
    network: Network
    """`deny-all` unless said otherwise."""
    must_succeed: bool
    """Whether any end but exit code 0 fails the step."""


class SandboxStepOptions(Handed, SandboxLimits, total=False):
    """Of a step that runs an image."""


# --- as the document has them ------------------------------------------------------------------------------


def given(**fields: Any) -> dict[str, Any]:
    """What was said, and nothing of what was not; a trailing underscore is Python's, not the document's."""
    return {name.removesuffix("_"): value for name, value in fields.items() if value is not None}


def duration(value: Duration | None) -> str | None:
    if value is None:
        return None
    if isinstance(value, dt.timedelta):
        return _written(value)
    if not isinstance(value, str):
        raise TypeError(f'a duration is written like "500ms", "2s", "5m" or "1h30m", not {value!r}')
    if not _DURATION.fullmatch(value):
        raise InvalidDefinitionError([f"{value!r} is not a duration: write it like 500ms, 2s, 5m or 1h30m"])
    return value


def _written(span: dt.timedelta) -> str:
    left, words = span // dt.timedelta(milliseconds=1), ""
    if left <= 0 or span % dt.timedelta(milliseconds=1):
        raise InvalidDefinitionError([f"{span} is not a whole number of milliseconds above 0"])
    for unit, size in _UNITS.items():
        count, left = divmod(left, size)
        words += f"{count}{unit}" if count else ""
    return words


def condition(value: Condition | None) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool | Expression):
        return text_of(value)
    raise TypeError("a condition is an expression, like wf.input.size > 3; one in CEL is written cel('input.size > 3')")


def part(value: Retry | Concurrency | Errand | ContinueAsNew | None) -> dict[str, Any] | None:
    return None if value is None else value.document()


def plain_text(value: object, name: str) -> str:
    """Texts that the server takes as they are: an expression there would be one only by its looks."""
    if isinstance(value, Expression):
        raise TypeError(f"{name} is taken as it is, and {value!s} is an expression: hand it over in with_")
    if not isinstance(value, str):
        raise TypeError(f"{name} is a text, not {type(value).__name__}")
    return value


def plain_list(values: Sequence[str], name: str) -> list[str]:
    if isinstance(values, str):
        raise TypeError(f"{name} is a list of texts, not one text")
    return [plain_text(value, name) for value in values]


def command(value: str | Sequence[str] | None) -> list[str] | None:
    """A text goes to a shell, a list is what is run."""
    if value is None:
        return None
    if isinstance(value, str | Expression):
        return [*SHELL, plain_text(value, "command")]
    return plain_list(value, "command")


def environment(values: Mapping[str, str] | None) -> dict[str, str] | None:
    if values is None:
        return None
    return {plain_text(name, "env"): plain_text(value, "env") for name, value in values.items()}


def step_reads(options: Mapping[str, Any], *more: object) -> tuple[str, ...]:
    """The steps that a step's own expressions look at. What undoes it may look at itself, and counts elsewhere."""
    key = options["concurrency"].key if "concurrency" in options else None
    parts = (options.get("when"), options.get("with_"), key, *more)
    return tuple(step for one in parts for step in reads(one))
