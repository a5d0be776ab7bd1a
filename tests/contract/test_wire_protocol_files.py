"""The wire protocol's files in `contracts/`: current, and the golden payloads fit models and schemas alike."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from pydantic import TypeAdapter, ValidationError

from fumehood.broker.lease import Lease
from fumehood.broker.names import consumer_of
from fumehood.broker.ports import Delivery, KvEntry, MessageKind
from fumehood.control import intake
from fumehood.control.http.bridge_files import SCHEMAS, files, main
from fumehood.control.http.openapi import document
from fumehood.errors import InvalidRequestError
from fumehood.wire import bridge, strict_json
from fumehood.wire.bridge import ACTIONS, StreamEvent, parse_connect, parse_poll, parse_resolve
from fumehood.wire.protocol import EventType, StepEvent, TaskPayload
from tests.contract.bridge_harness import CONTRACTS, GOLDEN, golden

KINDS = {
    "task-payload": "task-payload",
    "event": "step-event",
    "worker-registration": "worker-registration",
    "connect-request": "connect-request",
    "stream-event": "stream-event",
    "poll-request": "poll-request",
    "poll-response": "poll-response",
    "resolve-response": "resolve-response",
    "resolve": "resolve-request",
    "checkpoint-response": "checkpoint-response",
    "drain-response": "drain-response",
}
"""How the names of golden files begin, longest first where one begins like another, and which schema they obey."""
NAMES = sorted(path.stem for path in GOLDEN.glob("*.json") if path.stem != "lease")


def kind_of(name: str) -> str:
    return next(schema for beginning, schema in KINDS.items() if name.startswith(beginning))


def schema(name: str) -> jsonschema_rs.Validator:
    text = (CONTRACTS / "schemas" / f"wire-protocol-{name}.json").read_text(encoding="utf-8")
    return jsonschema_rs.validator_for(json.loads(text), validate_formats=True)


def dumped(adapter: TypeAdapter[Any], value: Any, name: str) -> Any:
    """As we would write it; what a file leaves out we may leave out too."""
    written = json.loads(adapter.dump_json(adapter.validate_python(value), exclude_unset=True))
    return golden(name) | written if name == "resolve-contract" else written


@pytest.mark.parametrize("path", sorted(files()))
def test_a_committed_schema_is_current(path: str) -> None:
    """After a change: `python -m fumehood.control.http.bridge_files`."""
    assert (CONTRACTS / path).read_text(encoding="utf-8") == files()[path]


def test_the_schemas_can_be_written_anywhere(tmp_path: Path) -> None:
    main(tmp_path)
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json")} == set(files())


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_payload_fits_its_schema_and_comes_back_from_its_model_unchanged(name: str) -> None:
    kind = kind_of(name)
    assert schema(kind).is_valid(golden(name))
    assert dumped(SCHEMAS[kind][0], golden(name), name) == golden(name)


def test_there_is_a_golden_payload_for_every_schema() -> None:
    assert {kind_of(name) for name in NAMES} == set(SCHEMAS)


def test_there_is_a_golden_event_of_every_type() -> None:
    assert {golden(name)["type"] for name in NAMES if name.startswith("event-")} == set(EventType)


def test_there_is_a_golden_answer_for_every_action() -> None:
    answers = [golden(name) for name in NAMES if kind_of(name) == "resolve-request"]
    assert {answer["action"] for answer in answers} == set(ACTIONS)


def test_the_contracts_own_examples_are_read_as_they_stand() -> None:
    """To the letter, also where one answer carries the fields of all."""
    for name, parse in (
        ("connect-request-contract", parse_connect),
        ("poll-request-contract", parse_poll),
        ("resolve-contract", parse_resolve),
    ):
        parse((GOLDEN / f"{name}.json").read_bytes())
    assert (
        TaskPayload.model_validate(golden("task-payload-contract")).encode()
        == json.dumps(golden("task-payload-contract"), separators=(",", ":")).encode()
    )


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("stream-event-")])
def test_an_event_of_the_stream_is_written_as_server_sent_events_are(name: str) -> None:
    value = golden(name)
    event = value.pop("event")
    written = StreamEvent.model_validate(golden(name)).encode().decode()
    assert re.fullmatch(rf"event: {event}\ndata: .+\n\n", written)
    assert json.loads(written.split("data: ")[1]) == value


def test_the_golden_lease_is_read_and_written_unchanged() -> None:
    """Workers that speak NATS write these too: the form is part of the contract."""
    data = json.dumps(golden("lease"), separators=(",", ":")).encode()
    found = Lease.decode(KvEntry("run-1.step-a", data, 7))
    assert found is not None
    assert found.encode() == data


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({}, "run-1.step-a.step.completed"),
        ({"attempt": 1, "iteration": 0}, "run-1.step-a.step.completed"),
        ({"attempt": 2}, "run-1.step-a.step.completed.a2"),
        ({"attempt": 1, "iteration": 3}, "run-1.step-a.step.completed.i3"),
        ({"attempt": 2, "iteration": 3, "resumption": 1}, "run-1.step-a.step.completed.a2.i3.r1"),
    ],
)
def test_event_id_is_the_contracts_for_the_first_attempt_and_longer_beyond(event: Any, expected: str) -> None:
    made = StepEvent(type=EventType.COMPLETED, run_id="run-1", step_id="step-a", **event)
    assert made.event_id == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"action": "explode"},
        {"action": None},
        {"action": "pause"},
        {"action": "pause", "duration_ms": 0},
        {"action": "pause", "duration_ms": 3_600_001},
        {"action": "pause", "duration_ms": "5000"},
        {"action": "checkpoint"},
        {"action": "checkpoint", "data": None},
        {"action": "signal"},
        {"action": "signal", "name": "with a blank"},
        {"action": "fail", "error": 5},
        {"action": "fail", "error": {"code": 5}},
        {"action": "complete", "lease_id": ""},
        {"action": "complete", "lease_id": 5},
    ],
)
def test_schema_and_model_refuse_the_same_answers(changes: dict[str, Any]) -> None:
    assert not schema("resolve-request").is_valid(changes)
    with pytest.raises(InvalidRequestError):
        parse_resolve(json.dumps(changes).encode())


@pytest.mark.parametrize(
    "changes",
    [
        {"max_tasks": 0},
        {"max_tasks": 257},
        {"max_tasks": True},
        {"timeout_ms": -1},
        {"timeout_ms": 60_001},
        {"task_types": []},
        {"task_types": ["a b"]},
        {"task_types": ["a..b"]},
        {"task_types": ["*"]},
        {"task_types": ["x" * 129]},
        {"worker_id": "a.b"},
        {"run_id": ">"},
    ],
)
def test_schema_and_model_refuse_the_same_polls(changes: dict[str, Any]) -> None:
    value = golden("poll-request") | changes
    assert not schema("poll-request").is_valid(value)
    with pytest.raises(ValidationError):
        SCHEMAS["poll-request"][0].validate_python(value)


class _Settled:
    async def ack(self) -> None: ...

    async def nak(self, delay: float) -> None: ...

    async def extend(self) -> None: ...


def taken_in(event: dict[str, Any], run_id: str = "run-1") -> Any:
    """What the engine makes of it."""
    data = json.dumps(event).encode()
    return intake.read(Delivery(run_id, MessageKind.HISTORY, "id", 1, data, {}, 1, _Settled()))


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("event-")])
def test_events_that_workers_may_say_are_taken_in_by_the_engine(name: str) -> None:
    message = taken_in(golden(name))
    assert message.type.value == golden(name)["type"]
    assert message.body["fenced"] == ("lease_id" in golden(name))


@pytest.mark.parametrize("kind", ["step.queued", "run.started", "workflow.completed", "step.approved", ""])
def test_events_that_are_the_engines_to_decide_are_nothing_on_a_history(kind: str) -> None:
    assert taken_in(golden("event-step-completed") | {"type": kind}) is None


def test_events_of_another_run_are_nothing() -> None:
    assert taken_in(golden("event-step-completed"), run_id="run-2") is None


# --- the page for people -----------------------------------------------------------------------------------

PAGE = CONTRACTS / "wire-protocol.md"


def test_the_page_names_every_event_action_and_field_of_a_lease() -> None:
    text = PAGE.read_text(encoding="utf-8")
    named = [*EventType, *ACTIONS, *golden("lease"), *TaskPayload.model_fields, *StepEvent.model_fields]
    assert [name for name in named if f"`{name}`" not in text] == []


def test_the_page_names_consumers_as_they_are_made() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for kind in ("llm", "http.get", "http_get"):
        assert f"| `{kind}` | `{consumer_of(kind)}` |" in text


def test_a_limit_on_the_page_is_the_codes() -> None:
    page = (CONTRACTS / "wire-protocol.md").read_text(encoding="utf-8")
    assert f"at most {strict_json.DEEPEST} levels" in page
    assert f"| error text | {bridge.LONGEST_ERROR:,} characters" in page


def test_what_is_never_sent_is_not_in_the_schema_of_a_task() -> None:
    fields = json.loads(files()["schemas/wire-protocol-task-payload.json"])["properties"]
    assert not [name for name, field in fields.items() if {"type": "null"} in field.get("anyOf", ())]


def test_a_path_says_what_may_stand_in_it() -> None:
    paths = document()["paths"]
    for path in ("/v1/tasks/{task_id}/resolve", "/v1/tasks/{task_id}/checkpoint", "/v1/workers/{worker_id}"):
        for operation in paths[path].values():
            (parameter,) = operation["parameters"]
            assert parameter["schema"]["pattern"]
