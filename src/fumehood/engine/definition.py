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
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from fumehood.engine import expression, graph
from fumehood.engine.parts import (
    IDENTIFIER,
    SIGNAL_NAME,
    TASK_TYPE,
    AgentLoop,
    Approval,
    Concurrency,
    ContinueAsNew,
    Duration,
    Errand,
    Expression,
    Identifier,
    Map,
    Part,
    Retry,
    Sandbox,
    SubWorkflow,
    TaskType,
    Template,
    WaitSignal,
)
from fumehood.errors import InvalidDefinitionError
from fumehood.wire.base import plain_words
from fumehood.wire.sandbox import SANDBOX_TASK

MAX_STEPS = 1000
MAX_BYTES = 1024 * 1024
ITEM_SEPARATOR = "--"
"""Between a map step's id and the number of an item: `each--3`. No id of a step may contain it."""
HANDLER = f"{ITEM_SEPARATOR}on-failure"
"""The name under which a workflow's `on_failure` is handed out."""


_KINDS = ("task", "sandbox", "agent_loop", "map", "sleep", "wait_signal", "approval", "sub_workflow")
_PATIENT = ("wait_signal", "approval")
"""Kinds that wait for somebody: their timeout stands inside of them, and there is nothing to try again."""


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
    wait_signal: WaitSignal | None = None
    approval: Approval | None = None
    sub_workflow: SubWorkflow | None = None
    on_failure: Literal["fail", "continue"] = "fail"
    """Whether the run fails with it, or the steps that need it go on and can look at its `status` and `error`."""
    compensate: Errand | None = None
    """What undoes it: done in reverse order where the run does not succeed although this step did."""
    concurrency: Concurrency | None = None
    start_within: Duration | None = None
    """How long a task waits for a worker to begin it; without it, until one comes."""
    distinct: Identifier | None = None
    """Of the steps of a run with the same word here, and of the items of a map, no worker does two."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = [name for name in _KINDS if getattr(self, name) is not None]
        if len(kinds) != 1:
            raise ValueError(
                f"a step has exactly one of {', '.join(_KINDS)}; this one has {' and '.join(kinds) or 'none'}"
            )
        if len(set(self.needs)) != len(self.needs):
            raise ValueError("a step needs another one once")
        if self.kind in _PATIENT and (self.timeout is not None or self.retry.attempts != 1):
            raise ValueError(f"a step with {self.kind} is not tried again, and has its timeout inside of {self.kind}")
        if (self.start_within is not None or self.distinct is not None) and self.task_type is None:
            raise ValueError(f"a step with {self.kind} has no worker, so that start_within and distinct mean nothing")
        return self

    @property
    def kind(self) -> str:
        return next(name for name in _KINDS if getattr(self, name) is not None)

    @property
    def goes_on(self) -> bool:
        """Whether its failure is not the run's."""
        return self.on_failure == "continue"

    @property
    def task_type(self) -> str | None:
        """Which queue its tasks go to; `None` for a kind that has none."""
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
    max_parallel: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Steps at work at once; those that only wait do not count."""
    concurrency: Concurrency | None = None
    on_failure: Errand | None = None
    """Done once where the run fails or times out, after what was undone; it sees `failure`."""
    continue_as_new: ContinueAsNew | None = None
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
        errands = {undo_id(step.id): step.compensate for step in self.steps if step.compensate is not None}
        if self.on_failure is not None:
            errands[HANDLER] = self.on_failure
        return {step.id: step for step in self.steps} | {name: _hidden(name, it) for name, it in errands.items()}

    @functools.cached_property
    def in_order(self) -> tuple[Step, ...]:
        """Each step behind those that it needs: one look over them moves a run on as far as it goes."""
        return tuple(self._by_id[name] for name in graph.order({step.id: step.needs for step in self.steps}))

    def step(self, step_id: str) -> Step:
        """A step of the graph, or one of the errands beside it."""
        return self._by_id[step_id]


def undo_id(step_id: str) -> str:
    return f"{step_id}{ITEM_SEPARATOR}undo"


def _hidden(name: str, errand: Errand) -> Step:
    """An errand is handed out as a task is; its name is one that nobody can give to a step."""
    return Step.model_construct(
        id=name, task=errand.task, with_=errand.with_, retry=errand.retry, timeout=errand.timeout
    )


# --- names -------------------------------------------------------------------------------------------------


def strays(definition: Definition) -> list[tuple[str | None, str]]:
    """Names in expressions that mean nothing, with the step they stand in; where that is none, it begins with the part
    of the workflow. A step that reads another one without needing it would see nothing, or something, by chance. Asked
    when a definition is applied; a run that is under way keeps what it was started with."""
    needs = {step.id: set(step.needs) for step in definition.steps}
    found: list[tuple[str | None, str]] = []
    for step in definition.steps:
        seen = graph.ancestors(needs, step.id)
        inner = _EVERYWHERE | (_IN_MAPS if step.map is not None else set())
        undo = step.compensate.with_ if step.compensate is not None else None
        texts = [(text, _EVERYWHERE, seen) for text in _plain_texts(step)]
        texts += [(text, inner, seen) for text in expression.texts(step.with_)]
        texts += [(text, _EVERYWHERE, seen | {step.id}) for text in expression.texts(undo)]
        found += [(step.id, said) for text, roots, sees in texts for said in _stray(text, roots, sees, needs.keys())]
    for place, template, roots in _whole(definition):
        for text in expression.texts(template):
            found += [(None, f"{place}: {said}") for said in _stray(text, roots, needs.keys(), needs.keys())]
    return found


def _plain_texts(step: Step) -> list[str]:
    over = step.map.over if step.map is not None else None
    key = step.concurrency.key if step.concurrency is not None else None
    return [text for text in (step.when, over, key) if text is not None]


def _whole(definition: Definition) -> Iterator[tuple[str, Any, set[str]]]:
    """What the workflow itself says in expressions, and what they may name."""
    yield "output", definition.output, _EVERYWHERE
    if definition.concurrency is not None:
        yield "concurrency", definition.concurrency.key, {"input"}
    if definition.on_failure is not None:
        yield "on_failure", definition.on_failure.with_, _EVERYWHERE | {"failure"}
    if definition.continue_as_new is not None:
        yield "continue_as_new", definition.continue_as_new.when, _EVERYWHERE | {"output"}
        yield "continue_as_new", definition.continue_as_new.input, _EVERYWHERE | {"output"}


_EVERYWHERE, _IN_MAPS = {"input", "steps"}, {"item", "index"}


def _stray(text: str, roots: set[str], seen: Collection[str], known: Collection[str]) -> Iterator[str]:
    named = expression.compiled(text).named
    for name in sorted(named.keys() - roots):
        told = f"{text!r} names {name}, which is not there: there are {', '.join(sorted(roots))}"
        yield f"{told}; literal text needs inner quotes: \"'{name}'\"" if name == text else told
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
    stray = [_problem(root, *_placed(root, step, said)) for step, said in strays(definition)]
    if stray:
        raise InvalidDefinitionError(stray)
    return definition


def _placed(root: Any, step: str | None, said: str) -> tuple[Sequence[int | str], str]:
    if step is not None:
        return ("steps", *_numbers(root, step)), said
    part, _, rest = said.partition(": ")
    return (part,), rest


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
        yield location, _words(problem)


def _words(problem: ErrorDetails) -> str:
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "extra_forbidden":
        return "unknown field"
    if kind == "string_pattern_mismatch":
        return _FORMS.get(str(context.get("pattern")), "has a form that is not allowed")
    return plain_words(kind, problem["msg"], context)


_FORMS = {
    IDENTIFIER: "must be made of letters, digits, _ and single dashes inside, like my-step_2",
    TASK_TYPE: "must be made of letters, digits, _ and -, with dots between, like mail.send",
    SIGNAL_NAME: "must be made of letters, digits, _ and -",
}


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
    return f"line {line}: {path.lstrip('.')}: {message}" if path else f"line {line}: {message}"


def _child(node: Any, part: int | str) -> Any:
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == part), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part]
    return None


def schema() -> dict[str, Any]:
    """The JSON Schema of a definition, as published in `contracts/`."""
    return Definition.model_json_schema(by_alias=True)
