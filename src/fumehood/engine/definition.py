"""Workflow definitions: what people write, checked until nothing about its shape can surprise the engine.

A definition is YAML or JSON. Every error names the line it is on. What comes out is frozen, has its defaults filled
in, and is pinned by the SHA-256 of its canonical JSON: a run keeps the definition it was started with, whatever is
applied later.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from fumehood.engine import duration, expression, graph
from fumehood.errors import InvalidDefinitionError

MAX_STEPS = 1000
MAX_BYTES = 1024 * 1024
ITEM_SEPARATOR = "--"
"""Between a map step's id and the number of an item: `each--3`. No id of a step may contain it."""


def _duration(value: object) -> object:
    return duration.parse(value) if isinstance(value, str) else value


def _expression(value: object) -> object:
    """A text that compiles; what it gives is only known when a run meets it."""
    if isinstance(value, str):
        expression.compiled(value)
    return value


def _template(value: object) -> object:
    for text in expression.texts(value):
        expression.compiled(text)
    return value


Identifier = Annotated[str, Field(pattern=r"^[A-Za-z0-9_](-?[A-Za-z0-9_])*$", max_length=64)]
"""Safe as a part of a subject, and never ambiguous with an item of a map; short enough for all that is built on it."""
TaskType = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$", max_length=128)]
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
    """A command in an image. The texts in it are taken as they are; `with` gives it input."""

    image: Annotated[str, Field(min_length=1)]
    command: Annotated[tuple[str, ...], Field(min_length=1)]
    env: Mapping[str, str] = Field(default_factory=dict)
    timeout: Duration | None = None


class AgentLoop(Part):
    """A task that may ask to be called again, with what it said last."""

    task: TaskType
    max_iterations: Annotated[int, Field(ge=1, le=10_000)] = 100


class Map(Part):
    """A task for each item of a list. `item` and `index` are visible in the step's `with`."""

    over: Expression
    task: TaskType
    concurrency: Annotated[int, Field(ge=1, le=10_000)] | None = None


SANDBOX_TASK = "fumehood.sandbox"
"""The task type that nodes take."""

_KINDS = ("task", "sandbox", "agent_loop", "map", "sleep")


class Step(Part):
    """One node of the graph: exactly one kind, and what is the same for all kinds."""

    id: Identifier
    needs: tuple[Identifier, ...] = ()
    when: Expression | None = None
    with_: Annotated[Template, Field(alias="with")] = None
    retry: Retry = Retry(attempts=1)
    timeout: Duration | None = None
    task: TaskType | None = None
    sandbox: Sandbox | None = None
    agent_loop: AgentLoop | None = None
    map: Map | None = None
    sleep: Duration | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = [name for name in _KINDS if getattr(self, name) is not None]
        if len(kinds) != 1:
            raise ValueError(
                f"a step has exactly one of {', '.join(_KINDS)}; this one has {' and '.join(kinds) or 'none'}"
            )
        if len(set(self.needs)) != len(self.needs):
            raise ValueError("a step needs another one once")
        return self

    @property
    def kind(self) -> str:
        return next(name for name in _KINDS if getattr(self, name) is not None)

    @property
    def task_type(self) -> str | None:
        """Which queue its tasks go to; `None` for a sleep."""
        if self.sandbox is not None:
            return SANDBOX_TASK
        inner = self.agent_loop or self.map
        return self.task if inner is None else inner.task


class Definition(Part):
    """A whole workflow."""

    name: Identifier
    description: str = ""
    deadline: Duration | None = None
    input_schema: Mapping[str, Any] | None = None
    output: Template = None
    """What the run answers; without it, the outputs of the steps that nobody needs."""
    steps: Annotated[tuple[Step, ...], Field(min_length=1, max_length=MAX_STEPS)]

    @model_validator(mode="after")
    def _a_graph(self) -> Self:
        try:
            graph.check({step.id: step.needs for step in self.steps}, [step.id for step in self.steps])
        except graph.GraphError as error:
            told = {"message": str(error), "step": error.step}
            raise PydanticCustomError("graph", "{message}", told) from error
        return self

    def canonical(self) -> bytes:
        """The same for equal definitions, however they were written."""
        document = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    @property
    def digest(self) -> str:
        return "sha256:" + hashlib.sha256(self.canonical()).hexdigest()

    @functools.cached_property
    def _by_id(self) -> dict[str, Step]:
        return {step.id: step for step in self.steps}

    def step(self, step_id: str) -> Step:
        return self._by_id[step_id]


# --- names -------------------------------------------------------------------------------------------------


def strays(definition: Definition) -> list[tuple[str | None, str]]:
    """Names in expressions that mean nothing, with the step they stand in. A step that reads another one without
    needing it would see nothing, or something, by chance. Asked when a definition is applied; a run that is under way
    keeps what it was started with."""
    needs = {step.id: set(step.needs) for step in definition.steps}
    found: list[tuple[str | None, str]] = []
    for step in definition.steps:
        seen = graph.ancestors(needs, step.id)
        plain = [step.when, step.map.over if step.map is not None else None]
        texts = [(text, _EVERYWHERE) for text in plain if text is not None]
        texts += [
            (text, _EVERYWHERE | (_IN_MAPS if step.map is not None else set())) for text in expression.texts(step.with_)
        ]
        found += [(step.id, said) for text, roots in texts for said in _stray(text, roots, seen, needs.keys())]
    for text in expression.texts(definition.output):
        found += [(None, f"output: {said}") for said in _stray(text, _EVERYWHERE, needs.keys(), needs.keys())]
    return found


_EVERYWHERE, _IN_MAPS = {"input", "steps"}, {"item", "index"}


def _stray(text: str, roots: set[str], seen: Collection[str], known: Collection[str]) -> Iterator[str]:
    named = expression.compiled(text).named
    for name in sorted(named.keys() - roots):
        yield f"{text!r} names {name}, which is not there: there are {', '.join(sorted(roots))}"
    for name in sorted((named.get("steps") or {}).keys() - set(seen)):
        reason = "which it does not need" if name in known else "which is not there"
        yield f"{text!r} reads the step {name}, {reason}"


# --- reading -----------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """YAML without its surprises: no duplicate keys, no dates out of nowhere, no aliases that multiply."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.constructor.ConstructorError(None, None, "aliases are not allowed", self.get_mark())
        return super().compose_node(parent, index)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def parse(text: str) -> Definition:
    """A definition from YAML or JSON, or `InvalidDefinitionError` with one problem a line."""
    if len(text.encode()) > MAX_BYTES:
        raise InvalidDefinitionError([f"the definition is larger than {MAX_BYTES} bytes"])
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        _check_keys(root)
        document = loader.construct_document(root) if root is not None else None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InvalidDefinitionError([f"line {line}: {error.problem}"]) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise InvalidDefinitionError([f"not YAML: {str(error).splitlines()[0]}"]) from error
    try:
        definition = Definition.model_validate(document)
    except ValidationError as error:
        raise InvalidDefinitionError([_problem(root, *place) for place in _places(error, root)]) from error
    stray = [_problem(root, _steps_place(root, step), said) for step, said in strays(definition)]
    if stray:
        raise InvalidDefinitionError(stray)
    return definition


def _steps_place(root: Any, step: str | None) -> Sequence[int | str]:
    return ("steps", *_numbers(root, step)) if step is not None else ()


def _check_keys(node: Any) -> None:
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, "a key that is there twice, or no text", key.start_mark
                )
            seen.add(key.value)
            _check_keys(value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check_keys(item)


def _places(error: ValidationError, root: Any) -> Iterator[tuple[Sequence[int | str], str]]:
    """Where each problem is, and what it says. A step that is wrong is not counted, which makes a list of one too
    short: that is no second problem."""
    found = error.errors()
    inside = any(problem["loc"][:1] == ("steps",) and len(problem["loc"]) > 1 for problem in found)
    for problem in found:
        location: Sequence[int | str] = problem["loc"]
        if problem["type"] == "too_short" and location == ("steps",) and inside:
            continue
        if problem["type"] == "graph":
            location = ("steps", *_numbers(root, problem.get("ctx", {}).get("step")))
        yield location, problem["msg"]


def _numbers(root: Any, step_id: object) -> list[int]:
    """Which of the steps has this id; the last one, if two have."""
    steps = _child(root, "steps")
    items = steps.value if isinstance(steps, yaml.SequenceNode) else []
    found = [number for number, item in enumerate(items) if getattr(_child(item, "id"), "value", None) == step_id]
    return found[-1:]


def _problem(root: Any, location: Sequence[int | str], message: str) -> str:
    """`line 7: steps[2].retry.attempts: …`, the line of the innermost part that exists."""
    node, line, path = root, 1, ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
        node = _child(node, part)
        if node is not None:
            line = node.start_mark.line + 1
    text = message.removeprefix("Value error, ")
    return f"line {line}: {path.lstrip('.')}: {text}" if path else f"line {line}: {text}"


def _child(node: Any, part: int | str) -> Any:
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == part), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part]
    return None


def schema() -> dict[str, Any]:
    """The JSON Schema of a definition, as published in `contracts/`."""
    return Definition.model_json_schema(by_alias=True)
