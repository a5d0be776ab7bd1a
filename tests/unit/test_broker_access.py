"""Users of the broker: who may listen where."""

from __future__ import annotations

from pathlib import Path

import pytest

from fumehood.broker.access import Role, ServerOptions, User, bridge_publishes, server_config
from fumehood.errors import ConfigurationError, InvalidRequestError


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
    assert "deny" not in line
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
