"""Users of the broker: who may listen where."""

from __future__ import annotations

from pathlib import Path

import pytest

from fumehood.broker.access import (
    NODES_EXPORTED,
    NODES_EXPORTED_STREAMING,
    NODES_IMPORTED,
    Role,
    ServerOptions,
    User,
    bridge_publishes,
    node_publishes,
    provider_publishes,
    refused,
    server_config,
)
from fumehood.broker.names import consumer_of
from fumehood.errors import ConfigurationError, InvalidRequestError
from fumehood.jobs.registry import Registry
from fumehood.wire.jobs import JOB_TYPES
from fumehood.wire.sealed import ADJUDICATE_TASK, job_task

NEXT = "$JS.API.CONSUMER.MSG.NEXT.TASK_QUEUES.task-fumehood=2Esandbox"
ACK = "$JS.ACK.TASK_QUEUES.task-fumehood=2Esandbox.>"


def test_a_worker_listens_at_a_place_of_its_own() -> None:
    worker = User("w1", Role.WORKER, password="x")
    assert worker.inbox_prefix == "_INBOX_w1"
    assert User("w1", Role.WORKER, password="x", trusted=True).inbox_prefix == "_INBOX_w1"


def test_a_trusted_worker_may_have_the_place_that_clients_use_by_themselves() -> None:
    worker = User("w1", Role.WORKER, password="x", trusted=True, inbox="_INBOX")
    assert worker.inbox_prefix == "_INBOX"
    config = server_config(ServerOptions(1, Path("/s"), (worker,)))
    assert 'subscribe: { allow: ["_INBOX.>", "_INBOX_w1.>"] }' in config


def test_a_bridge_may_say_only_what_is_listed_and_listens_at_a_place_of_its_own() -> None:
    bridge = User("b1", Role.BRIDGE, password="x")
    assert bridge.inbox_prefix == "_INBOX_b1"
    (line,) = [line for line in server_config(ServerOptions(1, Path("/s"), (bridge,))).splitlines() if '"b1"' in line]
    assert 'subscribe: { allow: ["_INBOX_b1.>"] }' in line
    assert f'deny: ["{NEXT}", "{ACK}", ' in line, "what is taken away of what is listed is what nodes take"
    for kind in (ADJUDICATE_TASK, *map(job_task, JOB_TYPES)):
        assert f"{consumer_of(kind)}.>" in line.partition("deny:")[2], "and what providers and servers take"
    written = {subject.split(".")[1] for subject in bridge_publishes() if subject.startswith("$KV.")}
    assert written == {"workers", "leases", "checkpoints"}
    assert not [
        subject for subject in bridge_publishes() if subject.startswith((">", "*", "inbox", "journal", "timer"))
    ]


def test_an_outsider_may_not() -> None:
    with pytest.raises(ConfigurationError, match="only a trusted worker"):
        User("w1", Role.WORKER, password="x", inbox="_INBOX")


@pytest.mark.parametrize("inbox", ["", "a.b", ">", "*", 'a"b'])
def test_an_inbox_is_one_token(inbox: str) -> None:
    with pytest.raises(InvalidRequestError):
        User("w1", Role.WORKER, password="x", trusted=True, inbox=inbox)


def test_a_node_may_say_only_what_is_listed_and_listens_at_a_place_of_its_own() -> None:
    node = User("n1", Role.NODE, password="x")
    assert (node.inbox_prefix, node.account) == ("_INBOX_n1", "NODES")
    config = server_config(ServerOptions(1, Path("/s"), (node,)))
    (line,) = [line for line in config.splitlines() if '"n1"' in line]
    assert 'subscribe: { allow: ["_INBOX_n1.>"] }' in line
    assert "deny" not in line
    said = node_publishes(node)
    assert {subject for subject in said if "CONSUMER" in subject or "ACK" in subject} == {NEXT, ACK}
    assert {subject for subject in said if subject.startswith("$KV.")} == {"$KV.workers.n1", "$KV.node_leases.*.*"}
    assert not [subject for subject in said if subject.startswith((">", "*", "inbox", "journal", "timer", "task"))]


def test_what_nodes_write_does_not_cross_from_the_workers_account() -> None:
    config = server_config(ServerOptions(1, Path("/s"), (User("n1", Role.NODE, password="x"),)))
    _, workers, nodes = (
        config.split("imports: ")[0],
        *(part.split("users:")[0] for part in config.split("imports: ")[1:]),
    )
    for subject in (*NODES_EXPORTED, *NODES_EXPORTED_STREAMING):
        assert f'"{subject}"' not in workers
        assert f'"{subject}"' in nodes
        assert f'service: "{subject}"' in config
    assert set(NODES_IMPORTED) >= {NEXT, ACK}


@pytest.mark.parametrize(
    ("user", "denied"),
    [
        (User("w", Role.WORKER, password="x"), True),
        (User("w", Role.WORKER, password="x", trusted=True), True),
        (User("w", Role.WORKER, password="x", task_types=("a",)), True),
        (User("b", Role.BRIDGE, password="x"), True),
        (User("n", Role.NODE, password="x"), False),
    ],
)
def test_only_nodes_take_what_nodes_take(user: User, denied: bool) -> None:
    assert ({NEXT, ACK} <= set(refused(user))) is denied


@pytest.mark.parametrize(
    "user",
    [
        User("w", Role.WORKER, password="x"),
        User("w", Role.WORKER, password="x", trusted=True),
        User("b", Role.BRIDGE, password="x"),
        User("n", Role.NODE, password="x"),
    ],
    ids=["worker", "trusted", "bridge", "node"],
)
def test_what_servers_say_to_each_other_and_what_the_console_keeps_is_nobody_elses(user: User) -> None:
    config = server_config(ServerOptions(1, Path("/s"), (user,)))
    assert "switch." not in config
    for bucket in ("credentials", "console", "sessions", "commands"):
        assert f"$KV.{bucket}." not in config
        assert f"KV_{bucket}" not in config


@pytest.mark.parametrize("trusted", [False, True])
def test_no_worker_may_name_what_nodes_take_or_be_of_the_tenant_that_they_keep_output_in(trusted: bool) -> None:
    with pytest.raises(ConfigurationError, match="are for nodes"):
        User("w", Role.WORKER, password="x", task_types=("a", "fumehood.sandbox"), trusted=trusted)
    with pytest.raises(ConfigurationError, match="the tenant nodes"):
        User("w", Role.WORKER, password="x", tenant="nodes", trusted=trusted)


def test_a_node_has_no_other_place_to_listen() -> None:
    with pytest.raises(ConfigurationError, match="only a trusted worker"):
        User("n1", Role.NODE, password="x", inbox="_INBOX")


def test_the_job_types_that_come_with_the_system_are_those_of_the_registry() -> None:
    assert tuple(Registry.load()) == JOB_TYPES


def test_a_provider_takes_its_job_types_and_nothing_else() -> None:
    with pytest.raises(ConfigurationError, match="a provider has task_types"):
        User("p1", Role.PROVIDER, password="x")
    provider = User("p1", Role.PROVIDER, password="x", task_types=("oa.sandbox_run.v1",))
    assert provider.account == "NODES"
    said = provider_publishes(provider)
    taken = [subject for subject in said if ".MSG.NEXT." in subject]
    assert taken == [f"$JS.API.CONSUMER.MSG.NEXT.TASK_QUEUES.{consumer_of(job_task('oa.sandbox_run.v1'))}"]
    assert not [
        subject for subject in said if subject.startswith((">", "*", "inbox", "journal", "timer", "log", "kept"))
    ]
    config = server_config(ServerOptions(1, Path("/s"), (provider,)))
    assert config.count(taken[0]) == 2, "once for its account, once for itself"


@pytest.mark.parametrize("kind", ["fumehood.sandbox", "fumehood.adjudicate", "fumehood.job.oa.sandbox_run.v1"])
def test_no_worker_is_given_what_is_not_for_workers(kind: str) -> None:
    with pytest.raises(ConfigurationError, match="nodes and providers"):
        User("w1", Role.WORKER, password="x", task_types=(kind,))
