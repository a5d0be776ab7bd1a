"""The work that both sides do: a chain of five tasks, and the messages it is made of.

The bare loop sends what the engine would send: its records and tasks are the engine's own, decided once for a run of
the same name length, with the name replaced. So both sides move the same bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from fumehood.broker.ports import Delivery, MessageKind
from fumehood.control import intake
from fumehood.engine import definition
from fumehood.engine.decide import decide
from fumehood.engine.messages import MessageType
from fumehood.engine.state import RunState
from fumehood.wire.protocol import TaskPayload

STEPS = 5
TASK_TYPE = "bench"
CHAIN = "name: chain\nsteps:\n" + "".join(
    f"- {{id: s{number}, task: {TASK_TYPE}, needs: [{f's{number - 1}' if number else ''}]}}\n"
    for number in range(STEPS)
)
INPUT = {"text": "x" * 64}
OUTPUT = {"result": "y" * 64}
_NAME = "run-000000000000"
_EVENT = (
    b'{"type":"step.completed","run_id":"%b","step_id":"%b","attempt":%d,"iteration":%d,'
    b'"payload":%b,"worker_id":"bench-worker"}'
)
_OUTPUT = json.dumps(OUTPUT, separators=(",", ":")).encode()


def run_name(prefix: str, number: int) -> str:
    """All of one length."""
    return f"{prefix[:3]:x<3}-{number:012d}"


def start_body(source: str, given: object = None) -> bytes:
    """What a server puts into the inbox of a run."""
    read = definition.parse(source)
    body = {"definition": json.loads(read.canonical()), "digest": read.digest, "input": given}
    return intake.encode(MessageType.START, body)


def completed(run_id: bytes, step_id: bytes, attempt: int, iteration: int) -> bytes:
    """What a worker says of a task that it has done."""
    return _EVENT % (run_id, step_id, attempt, iteration, _OUTPUT)


@dataclass(frozen=True, slots=True)
class Script:
    """A run's six records and five tasks."""

    records: tuple[bytes, ...]
    tasks: tuple[bytes, ...]

    def record(self, run_id: str, number: int) -> bytes:
        return self.records[number].replace(_NAME.encode(), run_id.encode())

    def task(self, run_id: str, number: int) -> bytes:
        return self.tasks[number].replace(_NAME.encode(), run_id.encode())


def script() -> Script:
    """Decided by the engine, once, from the messages that it would get."""
    said = [completed(_NAME.encode(), f"s{number}".encode(), 1, 0) for number in range(STEPS)]
    deliveries = [_delivery(MessageKind.INBOX, 1, start_body(CHAIN, INPUT))]
    deliveries += [_delivery(MessageKind.HISTORY, number + 1, event) for number, event in enumerate(said)]
    state: RunState | None = None
    records = []
    for delivery in deliveries:
        message = intake.read(delivery)
        assert message is not None
        decision = decide(_NAME, state, [message], 1_700_000_000_000)
        assert decision.record is not None
        state = decision.state
        records.append(decision.record.encode())
    assert state is not None
    assert state.status.value == "succeeded"
    return Script(tuple(records), tuple(_task(number) for number in range(STEPS)))


class _Nobody:
    """Whom the acks of a rehearsal go to."""

    async def ack(self) -> None: ...

    async def nak(self, delay: float) -> None: ...

    async def extend(self) -> None: ...


def _delivery(kind: MessageKind, seq: int, data: bytes) -> Delivery:
    return Delivery(_NAME, kind, f"{_NAME}.start", seq, data, {}, 1, _Nobody())


def _task(number: int) -> bytes:
    step = f"s{number}"
    payload = TaskPayload(task_id=f"{_NAME}.{step}", run_id=_NAME, step_id=step, attempt=1, iteration=0, input=INPUT)
    return payload.encode()
