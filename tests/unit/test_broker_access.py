"""Users of the broker: who may listen where."""

from __future__ import annotations

from pathlib import Path

import pytest

from fumehood.broker.access import Role, ServerOptions, User, server_config
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


def test_an_outsider_may_not() -> None:
    with pytest.raises(ConfigurationError, match="only a trusted worker"):
        User("w1", Role.WORKER, password="x", inbox="_INBOX")


@pytest.mark.parametrize("inbox", ["", "a.b", ">", "*", 'a"b'])
def test_an_inbox_is_one_token(inbox: str) -> None:
    with pytest.raises(InvalidRequestError):
        User("w1", Role.WORKER, password="x", trusted=True, inbox=inbox)
