"""Workflows in Python: the same document as YAML, with names that an editor knows and mistakes that show at once.

A step is made by the workflow and stands for itself afterwards: others need it, and their expressions look at its
output. What comes out (`to_dict`, `to_yaml`) holds nothing of Python, and is what the server is given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from fumehood.errors import InvalidDefinitionError
from fumehood.sdk import workflow_parts as parts
from fumehood.sdk.expressions import Expression, Value, reads, template, text_of
from fumehood.sdk.workflow_parts import (
    Common,
    Concurrency,
    Condition,
    ContinueAsNew,
    Duration,
    Errand,
    Handed,
    Retry,
    SandboxStepOptions,
    Tried,
    given,
)

_OTHER_BREAKS = re.compile("[\\x85\\u2028\\u2029]")


class Step:
    """A step of a workflow, for others to need and to look at. Workflows make them.

    wf = Workflow("review")
    fetch = wf.task("fetch", "http.get")
    assert str(fetch.output.text) == "steps.fetch.output.text"
    """

    def __init__(self, workflow: Workflow, step_id: str, document: dict[str, Any]) -> None:
        self.id = step_id
        self._workflow = workflow
        self._document = document
        self._root = Expression(str(Expression("steps")[step_id]), reads=[step_id])

    def __repr__(self) -> str:
        return f"<step {self.id} of {self._workflow.name}>"

    @property
    def output(self) -> Expression:
        """What it gives."""
        return self._root.output

    @property
    def status(self) -> Expression:
        """`"completed"`, `"skipped"` or, with `on_failure="continue"`, `"failed"`."""
        return self._root.status

    @property
    def attempt(self) -> Expression:
        """Which try it was."""
        return self._root.attempt

    @property
    def error(self) -> Expression:
        """With `code` and `message`, where it failed."""
        return self._root.error

    def compensate(
        self, task: str, *, with_: Value = None, retry: Retry | None = None, timeout: Duration | None = None
    ) -> Step:
        """What undoes this step, should the run not succeed in the end; it may look at this step's own output."""
        errand = Errand(task, with_, retry, timeout)
        self._workflow._check_reads(reads(with_), f"compensate of {self.id}")
        self._document["compensate"] = errand.document()
        return self


class Workflow:
    """A workflow that is being written.

    wf = Workflow("review", deadline="30m")
    fetch = wf.task("fetch", "http.get", with_={"url": wf.input.url}, retry=Retry(attempts=3, backoff="2s"))
    test = wf.sandbox("test", "python:3.12-slim", ["pytest"], with_=fetch.output.text)
    wf.approval("ask", "Merge it?", when=test.output.exit_code == 0)
    wf.set_output({"tests": test.output.stdout})
    assert wf.to_dict()["steps"][2] == {
        "id": "ask",
        "needs": ["test"],
        "when": "steps.test.output.exit_code == 0",
        "approval": {"message": "Merge it?"},
    }
    """

    def __init__(
        self,
        name: str,
        *,
        description: str = "",
        deadline: Duration | None = None,
        input_schema: Mapping[str, Any] | None = None,
        max_parallel: int | None = None,
        concurrency: Concurrency | None = None,
        on_failure: Errand | None = None,
    ) -> None:
        """`on_failure` may look at `wf.failure`; where it looks at steps, give it to `set_on_failure` behind them."""
        self.name = parts.plain_text(name, "name")
        self._head = given(
            name=self.name,
            description=parts.plain_text(description, "description") or None,
            deadline=parts.duration(deadline),
            input_schema=None if input_schema is None else dict(input_schema),
            max_parallel=max_parallel,
            concurrency=parts.part(concurrency),
        )
        self._steps: dict[str, Step] = {}
        self._tail: dict[str, Any] = {}
        if on_failure is not None:
            self.set_on_failure(on_failure)

    def __repr__(self) -> str:
        return f"<workflow {self.name} of {len(self._steps)} steps>"

    # --- what expressions can name -------------------------------------------------------------------------

    @property
    def input(self) -> Expression:
        """What a run is started with."""
        return Expression("input")

    @property
    def item(self) -> Expression:
        """In the `with_` of a map: the item."""
        return Expression("item")

    @property
    def index(self) -> Expression:
        """In the `with_` of a map: the number of the item, from 0."""
        return Expression("index")

    @property
    def failure(self) -> Expression:
        """In the `with_` of `on_failure`: what the run failed of."""
        return Expression("failure")

    @property
    def output(self) -> Expression:
        """In `set_continue_as_new`: what the run has given. (What it gives is said with `set_output`.)"""
        return Expression("output")

    @property
    def steps(self) -> Mapping[str, Step]:
        """By their ids, in order."""
        return dict(self._steps)

    # --- kinds of steps ------------------------------------------------------------------------------------

    def task(self, step_id: str, type: str, **options: Unpack[Handed]) -> Step:  # noqa: A002 - the document's word
        """One task for any worker that serves the type."""
        return self._add(step_id, "task", parts.plain_text(type, "type"), options)

    def sandbox(
        self,
        step_id: str,
        image: str,
        command: str | Sequence[str] | None = None,
        *,
        args: Sequence[str] | None = None,
        **options: Unpack[SandboxStepOptions],
    ) -> Step:
        """A command in an image. A text goes to `/bin/sh -c`, a list is run as it is; without one, the image's own.

        Its texts are taken as they are. What `with_` gives is JSON on the command's standard input.
        """
        more = dict(options)
        kind = given(
            image=parts.plain_text(image, "image"),
            command=parts.command(command),
            args=None if args is None else parts.plain_list(args, "args"),
            env=parts.environment(more.pop("env", None)),  # type: ignore[arg-type]
            timeout=parts.duration(more.pop("command_timeout", None)),  # type: ignore[arg-type]
            **{name: more.pop(name, None) for name in ("cpu_millis", "memory_mib", "network", "must_succeed")},
        )
        return self._add(step_id, "sandbox", kind, more)

    def agent_loop(
        self, step_id: str, task: str, *, max_iterations: int | None = None, **options: Unpack[Handed]
    ) -> Step:
        """A task whose worker may ask to be called again, with what it said last."""
        kind = given(task=parts.plain_text(task, "task"), max_iterations=max_iterations)
        return self._add(step_id, "agent_loop", kind, options)

    def map(
        self, step_id: str, task: str, *, over: Value, at_once: int | None = None, **options: Unpack[Handed]
    ) -> Step:
        """A task for each item of a list, at most `at_once` of them at a time; `wf.item` and `wf.index` tell which."""
        kind = given(over=text_of(over), task=parts.plain_text(task, "task"), concurrency=at_once)
        return self._add(step_id, "map", kind, options, over)

    def sleep(self, step_id: str, time: Duration, **options: Unpack[Tried]) -> Step:
        """Wait."""
        return self._add(step_id, "sleep", parts.duration(time), options)

    def wait_signal(
        self, step_id: str, name: str, *, timeout: Duration | None = None, **options: Unpack[Common]
    ) -> Step:
        """Wait until the run is told something by this name: `run.signal(name, …)`."""
        kind = given(name=parts.plain_text(name, "name"), timeout=parts.duration(timeout))
        return self._add(step_id, "wait_signal", kind, options)

    def approval(
        self,
        step_id: str,
        message: str = "",
        *,
        approvers: Sequence[str] = (),
        timeout: Duration | None = None,
        **options: Unpack[Common],
    ) -> Step:
        """Wait until somebody says yes. What `with_` gives is shown to whoever is asked."""
        kind = given(
            message=parts.plain_text(message, "message") or None,
            approvers=parts.plain_list(approvers, "approvers") or None,
            timeout=parts.duration(timeout),
        )
        return self._add(step_id, "approval", kind, options)

    def sub_workflow(self, step_id: str, workflow: str | Workflow, **options: Unpack[Tried]) -> Step:
        """Another workflow as a step; it must have been applied when a run starts."""
        name = workflow.name if isinstance(workflow, Workflow) else parts.plain_text(workflow, "workflow")
        return self._add(step_id, "sub_workflow", {"workflow": name}, options)

    # --- the rest of it ------------------------------------------------------------------------------------

    def set_output(self, value: Value) -> None:
        """What a run gives. Without it: the outputs of the steps that nobody needs."""
        self._check_reads(reads(value), "output")
        self._tail["output"] = template(value)

    def set_on_failure(self, errand: Errand) -> None:
        """What is done where a run fails or times out; its `with_` may look at `wf.failure` and at steps."""
        self._check_reads(reads(errand.with_), "on_failure")
        self._tail["on_failure"] = errand.document()

    def set_continue_as_new(self, when: Condition, input: Value = None) -> None:  # noqa: A002 - the document's word
        """When a run has succeeded and this holds, another one begins with this input."""
        self._check_reads((*reads(when), *reads(input)), "continue_as_new")
        self._tail["continue_as_new"] = ContinueAsNew(when, input).document()

    # --- the document --------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The document, as JSON has it. It is the caller's own."""
        import copy

        if not self._steps:
            raise InvalidDefinitionError([f"the workflow {self.name} has no steps yet"])
        steps = [step._document for step in self._steps.values()]
        return copy.deepcopy({**self._head, **self._tail, "steps": steps})

    def to_yaml(self) -> str:
        """The same for people and for `fumehood workflow apply`."""
        import yaml

        class Dumper(yaml.SafeDumper):
            def ignore_aliases(self, data: Any) -> bool:
                """The server takes none."""
                return True

        def text_node(dumper: Dumper, text: str) -> yaml.ScalarNode:
            """A line break that only Unicode knows would be read as a plain one, unless it is written as an escape."""
            quoted = '"' if _OTHER_BREAKS.search(text) else None
            return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=quoted)

        Dumper.add_representer(str, text_node)
        text: str = yaml.dump(self.to_dict(), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)
        return text

    # --- inside --------------------------------------------------------------------------------------------

    def _add(self, step_id: str, kind: str, said: Any, options: Mapping[str, Any], *read: object) -> Step:
        if parts.plain_text(step_id, "the id of a step") in self._steps:
            raise InvalidDefinitionError([f"the workflow {self.name} has a step {step_id} already"])
        unknown = options.keys() - _OPTIONS
        if unknown:
            raise TypeError(f"a step has no {', '.join(sorted(unknown))}")
        document = {"id": step_id} | given(
            needs=self._needs(options.get("needs", ()), parts.step_reads(options, *read)) or None,
            when=parts.condition(options.get("when")),
            with_=template(options.get("with_")),
            **{name: parts.part(options.get(name)) for name in ("retry", "compensate", "concurrency")},
            **{name: parts.duration(options.get(name)) for name in ("timeout", "start_within")},
            on_failure=options.get("on_failure"),
            distinct=options.get("distinct"),
        )
        step = Step(self, step_id, document | {kind: said})
        compensate = options.get("compensate")
        if compensate is not None:
            self._check_reads(reads(compensate.with_), f"compensate of {step_id}")
        self._steps[step_id] = step
        return step

    def _needs(self, needed: Sequence[Step | str], read: Sequence[str]) -> list[str]:
        """Those that were named, and those that are looked at and not needed by way of others."""
        if isinstance(needed, str | Step):
            raise TypeError("needs is a list of steps")
        names = [self._name(one) for one in needed]
        self._check_reads(read, "an expression")
        every = [*names, *(name for name in dict.fromkeys(read) if name not in names)]
        others = {name: [other for other in every if other != name] for name in every[len(names) :]}
        return names + [name for name, rest in others.items() if name not in self._behind(rest)]

    def _name(self, step: Step | str) -> str:
        if isinstance(step, Step) and step._workflow is not self:
            raise InvalidDefinitionError([f"{step.id} is a step of the workflow {step._workflow.name}"])
        name = step.id if isinstance(step, Step) else parts.plain_text(step, "needs")
        self._check_reads([name], "needs")
        return name

    def _behind(self, names: Sequence[str]) -> set[str]:
        """These steps and all that they need."""
        found, waiting = set[str](), list(names)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += self._steps[name]._document.get("needs", ())
        return found

    def _check_reads(self, names: Sequence[str], place: str) -> None:
        strange = [name for name in names if name not in self._steps]
        if strange:
            raise InvalidDefinitionError([f"{place}: the workflow {self.name} has no step {strange[0]} before this"])


_OPTIONS = frozenset(Handed.__annotations__) | frozenset(Tried.__annotations__) | frozenset(Common.__annotations__)
