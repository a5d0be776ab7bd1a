"""What a worker says, on its way in: what is not its to say becomes nothing, or a failure of its own step."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.broker.ports import Delivery, MessageKind
from fumehood.control import intake
from fumehood.engine.messages import Message, MessageType
from fumehood.wire.protocol import StepEvent

REF = "sha256:" + "0" * 64


class Settled:
    async def ack(self) -> None: ...

    async def nak(self, delay: float) -> None: ...

    async def extend(self) -> None: ...


def read(data: bytes) -> Message | None:
    return intake.read(Delivery("run", MessageKind.HISTORY, "id", 1, data, {}, 1, Settled()))


def event(payload: bytes, **fields: Any) -> bytes:
    said = {"type": "step.completed", "run_id": "run", "step_id": "a", "attempt": 1, **fields}
    return json.dumps(said)[:-1].encode() + b', "payload": ' + payload + b"}"


def spelled(text: str, escaped: set[int]) -> str:
    """A JSON string in which the named characters are written as escapes."""
    return '"' + "".join(f"\\u{ord(one):04x}" if n in escaped else one for n, one in enumerate(text)) + '"'


@given(st.sets(st.integers(0, 4)), st.sampled_from(["[{%s: 1}]", '{"a": {%s: "x", "size": 1}}', '{%s: "x"}']))
def test_a_blob_inside_an_output_is_refused_however_it_is_spelled(escaped: set[int], around: str) -> None:
    message = read(event((around % spelled("$blob", escaped)).encode()))
    assert message is not None
    assert (message.type, message.body["code"]) == (MessageType.STEP_FAILED, "invalid_output")


@given(st.sets(st.integers(0, 4)))
def test_a_reference_in_place_of_the_whole_output_is_taken(escaped: set[int]) -> None:
    message = read(event(f'{{{spelled("$blob", escaped)}: "{REF}", "size": 5}}'.encode()))
    assert message is not None
    assert (message.type, message.body["output"]) == (MessageType.STEP_COMPLETED, {"$blob": REF, "size": 5})


@pytest.mark.parametrize("payload", ['"$blob"', r'"a \\ \n \u0024blob"', r'["\u0024blob"]', "null"])
def test_a_text_that_only_reads_like_a_blob_is_an_output(payload: str) -> None:
    message = read(event(payload.encode()))
    assert message is not None
    assert (message.type, message.body["output"]) == (MessageType.STEP_COMPLETED, json.loads(payload))


@pytest.mark.parametrize("worker_id", ["x" * 129, "a b", "a\nb", "", "<script>", 5, ["w"], None])
def test_a_worker_whose_name_is_none_is_nobody_and_what_it_says_still_counts(worker_id: Any) -> None:
    message = read(event(b"1", worker_id=worker_id))
    assert message is not None
    assert (message.type, message.body["worker_id"]) == (MessageType.STEP_COMPLETED, None)


@pytest.mark.parametrize("worker_id", ["w", "worker-1", "x" * 128, "llm.eu:7@host_2"])
def test_a_workers_name_is_told(worker_id: str) -> None:
    message = read(event(b"1", worker_id=worker_id))
    assert message is not None
    assert message.body["worker_id"] == worker_id


@pytest.mark.parametrize("field", ["timestamp", "lease_id", "traceparent"])
@pytest.mark.parametrize("said", ["x" * 129, "a\r\nNats-Rollup: all", "", 7, {"a": 1}])
def test_a_remark_without_end_or_form_is_left_out(field: str, said: Any) -> None:
    read_event = StepEvent.model_validate_json(event(b"1", **{field: said}))
    assert getattr(read_event, field) is None
    kept = StepEvent.model_validate_json(event(b"1", **{field: "x" * 128}))
    assert getattr(kept, field) == "x" * 128
