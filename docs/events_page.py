"""The reference of events: everything that a stream of the server may say, from the models that say it."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import AwareDatetime, BaseModel

from docs.writing import attribute_docs, code, first_paragraph, page, prose, table
from fumehood.engine.events import KINDS, Event
from fumehood.engine.state import Failure
from fumehood.wire import bridge, command_api, event_api, log_api, protocol, run_api, runner_api, sandbox_api
from fumehood.wire.base import UtcTime
from fumehood.wire.protocol import EventType

MEANINGS = {
    "run.started": "The run was accepted: its definition and input as they hold from now on.",
    "step.queued": "A task was handed out to the workers of its type.",
    "step.started": "A worker says that it has begun.",
    "step.continued": "An agent loop asked for one more round.",
    "step.completed": "The step has ended well.",
    "step.retrying": "The attempt failed, and there will be another one.",
    "step.paused": "The worker asked for the same attempt again after a while.",
    "step.failed": "The step has failed for good.",
    "step.skipped": "Its `when` does not hold.",
    "step.sleeping": "A `sleep` step waits for its time.",
    "map.expanded": "A map knows its items.",
    "map.resumed": "A map of an earlier try goes on with the items that are not done.",
    "order.refused": "What somebody told the run came too late, or was not theirs to say.",
    "signal.received": "Somebody, or a worker, signalled the run.",
    "step.listening": "A step waits for a signal.",
    "signal.taken": "A step has the signal that it waited for.",
    "approval.requested": "Somebody is asked.",
    "approval.given": "Somebody said yes.",
    "approval.refused": "Somebody said no. What follows for the step is an event of its own.",
    "step.calling": "Another run does the work of this step.",
    "gate.asked": "The run (no `step`) or a step of it asked for a concurrency key.",
    "gate.passed": "It has the key.",
    "step.overridden": "A person skipped the step, or gave its output.",
    "run.ending": "The run will end so; what was done is undone first.",
    "run.retried": "A run that had failed goes on where it failed.",
    "run.succeeded": "The run has ended well.",
    "run.failed": "The run has failed.",
    "run.timed_out": "The run's deadline passed.",
    "run.cancelled": "Somebody cancelled the run.",
}
"""One line for each type; the page cannot be made while one is missing."""
FIELDS = {
    "action": "What was decided by hand: `skip` or `complete`",
    "attempt": "Which try of the step, from 1",
    "by": "Who said it: a key, or the name that came with it",
    "checkpointed": "There is a checkpoint of this task, which may go now",
    "comment": "What they said about it",
    "continued_as": "The run that goes on in this one's place",
    "continued_input": "Its input",
    "data": "What came with it",
    "deadline_at": "When the run is over at the latest",
    "definition": "The workflow, as it holds for this run",
    "digest": "SHA-256 of the workflow's canonical form",
    "expires_at": "Until when it waits",
    "failure": "Why",
    "fenced": "False: the worker named no lease, and was taken for the one that has it",
    "input": "What it gets",
    "inputs": "One for each item",
    "iteration": "Which round of an agent loop, from 0",
    "key": "The concurrency key",
    "limit": "How many may have it at once",
    "meta": "What belongs to the run beside its input: labels, tenant, where it comes from",
    "name": "The signal's name",
    "order": "The id of what was refused",
    "output": "What it gave",
    "pins": "Workflows that it calls, with the digests that hold for this run",
    "queue": "False: it does not wait for the key, and fails without it",
    "reason": "Why, in the words of whoever said it",
    "resumption": "How often a pause of this attempt has ended",
    "run_id": "The run that does it",
    "said": "What the round gave, for the next one",
    "signal": "Which signal: its name, or its number among those that came",
    "start_by": "When somebody must have begun",
    "status": "How it will end",
    "step": "The step, or `step--3` for an item of a map",
    "timeout_at": "When the attempt has taken too long",
    "via": "Who gave them the token that they decided with",
    "wake_at": "When it goes on",
    "worker_id": "Who has it",
}
"""What a field means in every event that has it."""
NAMES: dict[Any, str] = {
    str: "text",
    int: "number",
    bool: "true/false",
    Any: "any JSON",
    dict[str, Any]: "object",
    dict[str, str]: "object of texts",
    list[Any]: "list",
    Failure: "object",
    UtcTime: "time",
    AwareDatetime: "time",
}


def make() -> str:
    assert MEANINGS.keys() == KINDS.keys(), (
        f"events without a line here, or lines without one: {MEANINGS.keys() ^ KINDS.keys()}"
    )
    return page(
        "Events",
        prose(
            """
            What the server tells while it happens, as Server-Sent Events: a name (`event`), one line of JSON (`data`)
            and, for everything that can be taken up again, an `id`. Whoever comes back with the last id in
            `Last-Event-ID` misses nothing and is told nothing twice, at any server. Lines that begin with a colon are
            signs of life. How to: [find and follow runs](../howto/find-and-follow-runs.md).
            """
        ),
        "## Of runs",
        prose(
            f"""
            {code("GET " + event_api.RUN_EVENTS_PATH)} and {code("GET " + event_api.EVENTS_PATH)}; the same are in the
            history of a run. Every one of them has these:
            """
        ),
        _model(event_api.RunEvent),
        prose(
            """
            Names that end in `_at` or are `start_by` are milliseconds since 1970 (UTC), but for `at` itself. A field
            that has its default is left out. A `failure` has `code` and `message`, and `details` where a worker gave
            some.
            """
        ),
        table(["type", "when"], [[f"[{name}](#{name.replace('.', '')})", said] for name, said in MEANINGS.items()]),
        *(part for kind in KINDS.values() for part in _event(kind)),
        "### `end`",
        first_paragraph(event_api.StreamEnd.__doc__),
        _model(event_api.StreamEnd),
        "## Of what a sandbox of a run prints",
        prose(
            f"""
            {code("GET " + runner_api.LOG_STREAM_PATH)} and {code("GET " + run_api.LOG_STREAM_PATH)}. An id is
            `attempt.stdout.stderr`: which attempt, and how many bytes of each stream were told.
            """
        ),
        *(part for name, model in log_api.EVENTS.items() for part in _named(name, model)),
        "## Of a command in a sandbox",
        prose(
            f"""
            {code("GET " + sandbox_api.OUTPUT_PATH)} and {code("GET " + command_api.STREAM_PATH)}. An id is
            `stdout.stderr`, bytes of each stream, with `.end` behind the end. The data of `end` is the command as it
            ended, which [the server API](api.md) describes.
            """
        ),
        *_named("output", command_api.OutputEvent),
        "## Of a worker's stream",
        prose(f"The answer of `POST /v1/workers/connect`. {first_paragraph(bridge.StreamEvent.__doc__)}"),
        _model(bridge.StreamEvent),
        "## What workers say",
        prose(
            f"""
            Over NATS, or as the bridge says it for them; `type` is one of
            {", ".join(code(one.value) for one in EventType)}. The whole protocol:
            [wire protocol](../../contracts/wire-protocol.md). {first_paragraph(protocol.StepEvent.__doc__)}
            """
        ),
        _model(protocol.StepEvent),
    )


def _event(kind: type[Event]) -> Iterator[str]:
    docs, hints = attribute_docs(kind), typing.get_type_hints(kind)
    rows = []
    for item in dataclasses.fields(kind):
        needed = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        name = "child_run_id" if item.name == "run_id" else item.name
        rows.append(
            [code(name), _kind(hints[item.name]), "yes" if needed else "no", docs.get(item.name) or FIELDS[item.name]]
        )
    yield f"### {kind.type}"
    yield MEANINGS[kind.type]
    if rows:
        yield table(["field", "type", "always there", "what"], rows)


def _named(name: str, model: type[BaseModel]) -> Iterator[str]:
    yield f"### `{name}`"
    yield first_paragraph(model.__doc__)
    yield _model(model)


def _model(model: type[BaseModel]) -> str:
    docs = attribute_docs(model)
    rows = [
        [
            code(name),
            _kind(info.annotation),
            "yes" if info.is_required() else "no",
            info.description or docs.get(name, ""),
        ]
        for name, info in model.model_fields.items()
    ]
    return table(["field", "type", "always there", "what"], rows)


def _kind(hint: Any) -> str:
    if hint in NAMES:
        return NAMES[hint]
    if typing.get_origin(hint) is typing.Annotated:
        return _kind(typing.get_args(hint)[0])
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(code(one) for one in typing.get_args(hint))
    options = [one for one in typing.get_args(hint) if one is not type(None)]
    if options:
        return " or ".join(dict.fromkeys(map(_kind, options)))
    return str(getattr(hint, "__name__", hint)).lower()
