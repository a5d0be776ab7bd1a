"""The decider over the in-memory broker: large values, snapshots, messages that make no sense, pauses, traces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fumehood.broker.memory import MemoryBroker
from fumehood.broker.ports import Bucket
from fumehood.control import intake, loading, records
from fumehood.engine import definition
from fumehood.engine.messages import MessageType
from fumehood.engine.state import RunStatus, StepStatus
from fumehood.errors import LeaseLostError
from fumehood.wire import blobref
from fumehood.wire.protocol import EventType
from tests.unit.decider_world import RUN, DeciderWorld

ONE = "name: w\nsteps:\n- {id: a, task: t}\n"
TWO = "name: w\nsteps:\n- {id: a, task: t}\n- {id: b, needs: [a], task: t, with: WITH}\n"
BIG = "x" * 200_000


async def completed(world: DeciderWorld, step: str, output: Any, **fields: Any) -> None:
    await world.say(EventType.COMPLETED, step, output, **fields)


async def test_a_large_output_is_kept_by_reference_and_the_state_is_the_fold_of_the_journal() -> None:
    world = DeciderWorld()
    await world.start(ONE)
    await completed(world, "a", {"text": BIG})
    state = await world.state()
    ref = blobref.ref_of(state.steps["a"].output)
    assert ref is not None
    assert json.loads(await world.broker.blobs().get(ref, limit=1_000_000)) == {"text": BIG}
    assert max(len(entry.data) for entry in await world.broker.journal.read(RUN)) < blobref.INLINE_BYTES


async def test_a_value_that_is_passed_on_whole_stays_a_reference() -> None:
    world = DeciderWorld()
    await world.start(TWO.replace("WITH", "{all: steps.a.output}"))
    await world.tasks()
    await completed(world, "a", {"text": BIG})
    (task,) = await world.tasks()
    assert blobref.ref_of(task["input"]["all"]) is not None


async def test_an_expression_sees_what_stands_behind_a_reference() -> None:
    world = DeciderWorld()
    await world.start(TWO.replace("WITH", "{size: size(steps.a.output.text)}"))
    await world.tasks()
    await completed(world, "a", {"text": BIG})
    (task,) = await world.tasks()
    assert task["input"] == {"size": len(BIG)}


async def test_content_that_is_gone_fails_the_step_and_says_so() -> None:
    world = DeciderWorld()
    await world.start(TWO.replace("WITH", "{size: size(steps.a.output.text)}"))
    await completed(world, "a", blobref.reference("sha256:" + "0" * 64, 200_000))
    state = await world.state()
    assert state.status is RunStatus.FAILED
    assert state.failure is not None
    assert "not there" in state.failure.message


async def test_a_reference_inside_of_an_output_is_refused() -> None:
    world = DeciderWorld()
    await world.start(ONE)
    await completed(world, "a", {"stolen": blobref.reference("sha256:" + "0" * 64, 1)})
    failure = (await world.state()).failure
    assert failure is not None
    assert failure.code == "invalid_output"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
async def test_an_output_that_json_cannot_carry_fails_its_step_and_nothing_else(number: str) -> None:
    world = DeciderWorld()
    await world.start(ONE)
    data = '{"type":"step.completed","run_id":"run-1","step_id":"a","payload":{"n":NUMBER}}'
    await world.publish(data.replace("NUMBER", number).encode())
    failure = (await world.state()).failure
    assert failure is not None
    assert failure.code == "invalid_output"
    assert world.decider.counters.failed == 0


async def test_a_start_that_cannot_be_decided_does_not_end_the_decider() -> None:
    world = DeciderWorld()
    body = intake.encode(MessageType.START, {"definition": {"name": "w", "steps": "none"}, "digest": "sha256:0"})
    await world.broker.mailboxes.send("run-bad", "run-bad.start", body)
    await world.settle()
    await world.start(ONE)
    await completed(world, "a", 1)
    assert (await world.state()).status is RunStatus.SUCCEEDED
    assert world.decider.counters.unknown > 0


async def test_a_burst_of_large_answers_becomes_several_records() -> None:
    world = DeciderWorld()
    await world.start("name: w\nsteps:\n- {id: m, map: {over: input, task: t}}\n", list(range(60)))
    for index in range(60):
        event = {"type": "step.completed", "run_id": RUN, "step_id": f"m--{index}", "payload": "y" * 100_000}
        await world.broker.histories.publish(RUN, f"e{index}", json.dumps(event).encode())
    await world.settle()
    state = await world.state()
    assert state.status is RunStatus.SUCCEEDED
    assert len(state.steps["m"].output) == 60
    assert all(blobref.ref_of(item) is not None for item in state.steps["m"].output)
    assert len(await world.broker.journal.read(RUN)) >= 3


async def test_a_map_too_long_for_a_message_is_recorded_all_the_same() -> None:
    world = DeciderWorld()
    items = [{"text": "z" * 1000, "n": number} for number in range(2000)]
    await world.start("name: w\nsteps:\n- {id: m, map: {over: input.items, task: t}}\n", {"items": items})
    assert len(await world.tasks()) == 2000
    assert (await world.state()).steps["m"].items == 2000


async def test_snapshots_are_taken_and_used_and_may_be_lost() -> None:
    world = DeciderWorld()
    await world.start("name: w\nsteps:\n- {id: l, agent_loop: {task: t, max_iterations: 1000}}\n")
    for iteration in range(150):
        await world.say(EventType.CONTINUE, "l", {"said": iteration}, attempt=1, iteration=iteration)
    entry = await world.broker.bucket(Bucket.SNAPSHOTS).get(RUN)
    assert entry is not None
    with_snapshot = await loading.load(world.broker, RUN)
    await world.broker.bucket(Bucket.SNAPSHOTS).put(RUN, b"nonsense")
    assert await loading.load(world.broker, RUN) == with_snapshot
    await world.broker.bucket(Bucket.SNAPSHOTS).delete(RUN)
    assert await loading.load(world.broker, RUN) == with_snapshot


async def test_a_snapshot_is_gone_when_the_run_has_ended() -> None:
    world = DeciderWorld()
    await world.start("name: w\nsteps:\n- {id: l, agent_loop: {task: t, max_iterations: 1000}}\n")
    for iteration in range(150):
        await world.say(EventType.CONTINUE, "l", BIG[:50_000], attempt=1, iteration=iteration)
    await completed(world, "l", 1, attempt=1, iteration=150)
    assert (await world.state()).status is RunStatus.SUCCEEDED
    assert await world.broker.bucket(Bucket.SNAPSHOTS).get(RUN) is None


async def test_a_pause_takes_the_same_attempt_up_again_and_consumes_none() -> None:
    world = DeciderWorld()
    await world.start(ONE)
    (first,) = await world.handouts.take(["t"], max_tasks=1, timeout=0.0, worker_id="w")
    await world.handouts.pause(first.lease, 60_000, {"page": 7})
    await world.settle()
    assert (await world.state()).steps["a"].status is StepStatus.PAUSED
    assert await world.handouts.take(["t"], max_tasks=1, timeout=0.0, worker_id="w") == []
    await world.pass_time(61)
    (again,) = await world.handouts.take(["t"], max_tasks=1, timeout=0.0, worker_id="w")
    assert (again.task.attempt, again.task.resumption, again.task.checkpoint) == (1, 1, {"page": 7})
    await world.handouts.complete(again.lease, "done")
    await world.settle()
    assert (await world.state()).status is RunStatus.SUCCEEDED
    assert await world.handouts.read_checkpoint(RUN, "a") is None


async def test_a_late_repetition_of_a_pause_does_not_pause_again() -> None:
    world = DeciderWorld()
    await world.start(ONE)
    said = {"duration_ms": 1000}
    for _ in range(2):
        await world.say(EventType.PAUSED, "a", said, attempt=1, iteration=0, resumption=0)
        await world.pass_time(2)
    assert (await world.state()).steps["a"].status is StepStatus.QUEUED
    assert (await world.state()).steps["a"].resumption == 1


async def test_cancelling_a_run_takes_its_tasks_away() -> None:
    world = DeciderWorld()
    await world.start("name: w\nsteps:\n- {id: a, task: t}\n- {id: b, task: t}\n")
    (held,) = await world.handouts.take(["t"], max_tasks=1, timeout=0.0, worker_id="w")
    await world.broker.mailboxes.send(RUN, f"{RUN}.cancel", intake.encode(MessageType.CANCEL, {"reason": "enough"}))
    await world.settle()
    assert (await world.state()).status is RunStatus.CANCELLED
    assert await world.tasks() == []
    with pytest.raises(LeaseLostError):
        await world.handouts.heartbeat(held.lease)


async def test_a_step_that_took_too_long_loses_its_lease_and_is_tried_again() -> None:
    world = DeciderWorld()
    await world.start("name: w\nsteps:\n- {id: a, task: t, timeout: 10s, retry: {attempts: 2, backoff: 1s}}\n")
    (held,) = await world.handouts.take(["t"], max_tasks=1, timeout=0.0, worker_id="w")
    assert held.lease.seconds == 10
    await world.settle()
    await world.pass_time(11)
    with pytest.raises(LeaseLostError):
        await world.handouts.heartbeat(held.lease)
    await world.pass_time(3)
    (again,) = await world.handouts.take(["t"], max_tasks=1, timeout=0.0, worker_id="w")
    assert again.task.attempt == 2


async def test_a_bare_workers_failure_that_comes_twice_counts_once() -> None:
    """Without an attempt in it nothing but the stored message tells a repetition from the next attempt's failure."""
    world = DeciderWorld()
    await world.start("name: w\nsteps:\n- {id: a, task: t, retry: {attempts: 3, backoff: 1s, jitter: 0}}\n")
    lost = MemoryBroker(world.server)
    await world.broker.histories.publish(RUN, "e", b'{"type":"step.failed","run_id":"run-1","step_id":"a"}')
    (delivery,) = await lost.feed.pull(0, max_messages=10, timeout=0.0)
    await world.decider.handle(RUN, [delivery])
    await world.pass_time(2)
    await world.decider.handle(RUN, [delivery])
    step = (await world.state()).steps["a"]
    assert (step.attempt, step.status) == (2, StepStatus.QUEUED)


async def test_a_signal_is_taken_once() -> None:
    world = DeciderWorld()
    await world.start(ONE)
    for _ in range(2):
        await world.say(EventType.SIGNAL, "a", {"name": "hello", "data": 1, "id": "s1"}, attempt=1)
    assert [(signal.name, signal.data) for signal in (await world.state()).signals] == [("hello", 1)]


async def test_whether_an_answer_named_its_lease_is_on_record() -> None:
    world = DeciderWorld()
    await world.start("name: w\nsteps:\n- {id: a, task: t}\n- {id: b, task: t}\n")
    await completed(world, "a", 1)
    await completed(world, "b", 1, lease_id="abc")
    steps = (await world.state()).steps
    assert (steps["a"].fenced, steps["b"].fenced) == (False, True)


async def test_one_trace_leads_from_the_start_to_the_task() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    world = DeciderWorld(tracer=provider.get_tracer("test"))
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    await world.start(ONE, traceparent=f"00-{trace_id}-b7ad6b7169203331-01")
    (task,) = await world.tasks()
    (span,) = exporter.get_finished_spans()
    context = span.get_span_context()
    assert context is not None
    assert task["traceparent"] == f"00-{trace_id}-{context.span_id:016x}-01"
    assert f"{context.trace_id:032x}" == trace_id


async def test_a_summary_is_kept_of_every_run() -> None:
    world = DeciderWorld()
    await world.start(ONE)
    entry = await world.broker.bucket(Bucket.SUMMARIES).get(RUN)
    assert entry is not None
    assert json.loads(entry.value)["status"] == "running"
    await completed(world, "a", 1)
    entry = await world.broker.bucket(Bucket.SUMMARIES).get(RUN)
    assert entry is not None
    assert json.loads(entry.value)["status"] == "succeeded"


# --- what a hostile reviewer found -------------------------------------------------------------------------


async def test_a_cancel_that_overtakes_its_start_is_kept_for_it() -> None:
    """Whoever had the start died with it: it comes again after the cancel."""
    world = DeciderWorld()
    read = definition.parse(ONE)
    body = {"definition": json.loads(read.canonical()), "digest": read.digest, "input": None}
    await world.broker.mailboxes.send(RUN, f"{RUN}.start", intake.encode(MessageType.START, body))
    (held,) = await MemoryBroker(world.server).feed.pull(0, max_messages=1, timeout=0.0)
    await world.broker.mailboxes.send(RUN, f"{RUN}.cancel", intake.encode(MessageType.CANCEL, {}))
    await world.settle()
    await held.nak()
    await world.settle()
    await world.pass_time(30)
    assert (await world.state()).status is RunStatus.CANCELLED


async def test_a_timer_that_a_dead_decider_did_not_cancel_is_taken_away_when_its_message_comes_again() -> None:
    """The message comes before the run ends, so that the end, which had no task out, finds nothing to purge."""
    world = DeciderWorld()
    first, then = "{id: a, wait_signal: {name: go, timeout: 1d}}", "{id: b, needs: [a], wait_signal: {name: more}}"
    await world.start(f"name: w\nsteps:\n- {first}\n- {then}\n")
    (timer,) = await world.broker.timers.pending(RUN)
    signal = intake.encode(MessageType.SIGNAL, {"name": "go"})
    await world.broker.mailboxes.send(RUN, "go", signal)
    await world.settle()
    assert await world.broker.timers.pending(RUN) == []
    await world.broker.timers.set(RUN, timer.timer_id, timer.at_ms, timer.message_id, b"{}")
    await world.broker.mailboxes.send(RUN, "go-again", signal)
    (held,) = await MemoryBroker(world.server).feed.pull(0, max_messages=1, timeout=0.0)
    await held.nak()
    world.decider = world.another()
    await world.settle()
    assert (await world.state()).status is RunStatus.RUNNING
    assert await world.broker.timers.pending(RUN) == []


async def test_a_loop_goes_on_with_its_whole_input_however_large_that_is() -> None:
    world = DeciderWorld()
    await world.start("name: w\nsteps:\n- {id: l, agent_loop: {task: t}}\n", {"text": BIG, "k": 1})
    await world.tasks()
    await world.say(EventType.CONTINUE, "l", "more", attempt=1, iteration=0)
    (task,) = await world.tasks()
    ref = blobref.ref_of(task["input"])
    assert ref is not None
    whole = json.loads(await world.broker.blobs().get(ref, limit=1_000_000))
    assert whole == {"text": BIG, "k": 1, "previous": "more"}


async def test_a_snapshot_that_is_ahead_of_its_journal_is_not_believed() -> None:
    """Another stream, another disk: after a power cut or a restore from a backup it may be newer."""
    world = DeciderWorld()
    await world.start(TWO.replace("WITH", "{}"))
    before = await world.state()
    (entry,) = await world.broker.journal.read(RUN)
    await completed(world, "a", 1)
    ahead = await world.state()
    await loading.save(world.broker, ahead, entry.seq + 100, "run-1.1.0123456789abcdef")
    assert (await loading.load(world.broker, RUN))[0] == ahead
    await loading.save(world.broker, before, entry.seq, "run-1.0.0123456789abcdef")
    assert (await loading.load(world.broker, RUN))[0] == ahead


async def test_a_map_with_thousands_of_middling_inputs_can_be_read_back() -> None:
    world = DeciderWorld()
    text = "name: w\nsteps:\n- {id: m, map: {over: input.n, task: t}, with: {context: input.c, n: item}}\n"
    await world.start(text, {"n": list(range(600)), "c": "m" * 14_000})
    assert (await world.state()).steps["m"].items == 600
    assert sum(len(entry.data) for entry in await world.broker.journal.read(RUN)) < 1_000_000
    (task,) = [one for one in await world.tasks() if one["step_id"] == "m--599"]
    assert blobref.ref_of(task["input"]) is not None


async def test_a_forged_beginning_takes_nobodys_lease_away() -> None:
    world = DeciderWorld()
    await world.start(ONE)
    (held,) = await world.handouts.take(["t"], max_tasks=1, timeout=0.0, worker_id="w")
    await world.settle()
    await world.say(EventType.STARTED, "a", attempt=999, iteration=0)
    await world.handouts.heartbeat(held.lease)


async def test_a_run_that_we_fail_at_again_and_again_ends_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    world = DeciderWorld()
    await world.start(ONE)

    def broken(*_: Any) -> None:
        raise ArithmeticError("a fault of ours")

    monkeypatch.setattr("fumehood.control.decider.decide", broken)
    await world.say(EventType.COMPLETED, "a", 1)
    for _ in range(40):
        await world.pass_time(15)
    state = await world.state()
    assert state.status is RunStatus.FAILED
    assert state.failure is not None
    assert state.failure.code == "internal"


async def test_a_journal_that_we_cannot_read_is_left_to_somebody_who_can() -> None:
    """A newer version wrote it. Giving the run up would be a decision on what we do not know."""
    world = DeciderWorld()
    await world.start(ONE)
    (entry,) = await world.broker.journal.read(RUN)
    data = b'{"v":1,"at":1,"consumed":[],"events":[{"type":"approval.asked"}]}'
    await world.broker.journal.append(RUN, records.name(RUN, entry.seq, data), data, expected=entry.seq)
    world.decider = world.another()
    await world.say(EventType.COMPLETED, "a", 1)
    for _ in range(40):
        await world.pass_time(15)
    assert len(await world.broker.journal.read(RUN)) == 2
    assert world.decider.counters.unknown > 10


async def test_what_no_decider_wrote_is_no_record() -> None:
    world = DeciderWorld()
    await world.start(ONE)
    (entry,) = await world.broker.journal.read(RUN)
    forged = b'{"v":1,"at":1,"consumed":[],"events":[{"type":"run.succeeded","output":"forged"}]}'
    await world.broker.journal.append(RUN, f"{RUN}.a.a1.i0", forged, expected=entry.seq)
    assert (await world.state()).status is RunStatus.RUNNING
    await completed(world, "a", 1)
    assert (await world.state()).output == {"a": 1}


async def test_a_first_decision_that_is_too_large_to_record_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fumehood.broker.values.LARGEST", 300_000)
    world = DeciderWorld()
    text = "name: w\nsteps:\n- {id: a, task: t, with: {one: input.t, two: input.t, three: input.t}}\n"
    await world.start(text, {"t": "x" * 120_000})
    state = await world.state()
    assert state.failure is not None
    assert state.failure.code == "too_large"


async def test_signals_have_a_bound() -> None:
    world = DeciderWorld()
    await world.start(ONE)
    for number in range(1_005):
        event = {"type": "step.signal", "run_id": RUN, "step_id": "a", "payload": {"name": "s", "id": str(number)}}
        await world.broker.histories.publish(RUN, f"s{number}", json.dumps(event).encode())
    await world.settle()
    assert len((await world.state()).signals) == 1_000
    assert world.decider.counters.ignored["too_many"] == 5
