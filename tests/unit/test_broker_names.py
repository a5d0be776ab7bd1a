"""Names, limits and the generated configuration, without a server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fumehood.broker import names
from fumehood.broker.access import Role, ServerOptions, User, server_config, worker_publishes
from fumehood.broker.topology import GIB, Shape, StreamSpec, streams
from fumehood.errors import ConfigurationError, InvalidRequestError


def test_the_hash_is_fnv_1a() -> None:
    """Published vectors."""
    assert (names.fnv1a_32(""), names.fnv1a_32("a"), names.fnv1a_32("foobar")) == (0x811C9DC5, 0xE40C292C, 0xBF9CF968)


def test_partitions_are_even() -> None:
    counts = [0] * 4
    for number in range(4000):
        counts[names.partition_of(f"run-{number}", 4)] += 1
    assert min(counts) > 800


def test_consumers_of_different_types_have_different_names() -> None:
    assert names.consumer_of("a.b") == "task-a=2Eb"
    assert len({names.consumer_of(kind) for kind in ("a.b", "a_b", "a-b", "ab")}) == 4


@pytest.mark.parametrize("text", ["a\n", "a b", "", "x" * 641, "é"])
def test_a_message_id_cannot_smuggle_a_header_line(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        names.message_id(text)


@pytest.mark.parametrize("partitions", [1, 4, 64])
def test_what_streams_reserve_leaves_three_tenths_to_the_runs(partitions: int) -> None:
    """JetStream reserves bounds: more than the budget could not be made, and runs have no bound of their own."""
    shape = Shape(partitions)
    reserved = sum(int(spec.config(shape)["max_bytes"]) for spec in streams(shape) if spec.share is not None)
    assert reserved <= 0.7 * shape.storage


def test_streams_that_outsiders_write_to_bear_no_powers() -> None:
    for spec in streams(Shape()):
        if not spec.name.startswith("RUN_"):
            config = spec.config(Shape())
            assert not config["allow_rollup_hdrs"]
            assert not config.get("allow_msg_schedules")
            assert not config.get("allow_atomic")


def test_nothing_is_ever_discarded_but_the_oldest_of_what_was_done_and_of_what_was_printed() -> None:
    def loses(spec: StreamSpec) -> bool:
        config = spec.config(Shape())
        return bool(config["discard"] == "old" and config["max_bytes"] != -1)

    assert [spec.name for spec in streams(Shape()) if loses(spec)] == ["KEPT", "AUDIT", "LOGS"]


def test_every_stream_says_why() -> None:
    assert all(spec.why for spec in streams(Shape()))


def test_a_worker_may_say_little() -> None:
    allowed = worker_publishes(User("w", Role.WORKER, password="p", task_types=("a.b",)))
    ours = ("journal", "inbox", "timer", "task", "audit", ">")
    assert not [subject for subject in allowed if subject.startswith(ours)]
    assert "$KV.workers.w" in allowed
    assert "$JS.API.CONSUMER.MSG.NEXT.TASK_QUEUES.task-a=2Eb" in allowed


def test_text_in_the_configuration_is_quoted(tmp_path: Path) -> None:
    """A password cannot end its own string."""
    user = User("w", Role.SERVER, password='$2a$11$x" } ] } #')
    text = server_config(ServerOptions(1, tmp_path, (user,), storage=GIB))
    assert json.dumps(user.password) in text


def test_a_user_has_one_way_in() -> None:
    with pytest.raises(ConfigurationError):
        User("w", Role.WORKER)
    with pytest.raises(InvalidRequestError):
        User("w.x", Role.WORKER, password="p")


@pytest.mark.parametrize("module", ["ports", "memory", "topology", "access", "names", "clock"])
def test_what_others_use_does_not_import_the_client(module: str) -> None:
    code = f"import sys, fumehood.broker.{module}; sys.exit('nats' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
