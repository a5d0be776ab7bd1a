"""Which broker a worker goes to: in falling order, and its password to nobody but whose it is."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fumehood import Worker
from fumehood.errors import ConfigurationError
from fumehood.sdk import own_dev
from fumehood.sdk.broker_address import find_broker
from tests.unit.api_server import ApiServer, api_server


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in list(os.environ):
        if name.startswith(("FUMEHOOD_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def state(home: Path) -> Path:
    made = home / ".local/state/fumehood"
    (made / "nats").mkdir(parents=True)
    (made / own_dev.WORKER_PASSWORD).write_text("of-dev\n")
    return made


@pytest.fixture
def port() -> Iterator[int]:
    """Where this process listens."""
    with socket.create_server((own_dev.HOST, 0)) as listening:
        yield listening.getsockname()[1]


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with api_server() as made:
        yield made


@pytest.fixture
def dev(state: Path, server: ApiServer, port: int) -> int:
    """A server and a broker of this process, that say that they are one's own `dev`; the broker's port."""
    leave_word(state, server.url, f"nats://127.0.0.1:{port}", os.getpid())
    return port


def leave_word(state: Path, url: str, nats_url: str, nats_pid: object) -> None:
    word = {"url": url, "pid": os.getpid(), "nats_url": nats_url, "nats_pid": nats_pid}
    (state / own_dev.WORD).write_text(json.dumps(word))


def test_ones_own_dev_is_found_with_its_worker(dev: int, state: Path) -> None:
    address, access = find_broker(None, {})
    assert address == f"nats://127.0.0.1:{dev}"
    assert access == {"user": "worker", "password_file": state / own_dev.WORKER_PASSWORD}
    assert Worker().name == "worker"


def test_what_is_said_counts_more_and_then_the_environment(
    dev: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_broker("nats://h", {}) == ("nats://h", {}), "the password of `dev` goes nowhere else"
    password = tmp_path / "password"
    password.write_text("of-mine")
    monkeypatch.setenv("FUMEHOOD_NATS_SERVERS", "nats://a:1,nats://b:2")
    assert find_broker(None, {}) == ("nats://a:1,nats://b:2", {})
    monkeypatch.setenv("FUMEHOOD_NATS_USER", "w-1")
    monkeypatch.setenv("FUMEHOOD_NATS_PASSWORD_FILE", str(password))
    assert find_broker(None, {}) == ("nats://a:1,nats://b:2", {"user": "w-1", "password_file": password})
    assert find_broker(None, {"user": "w-2"})[1]["user"] == "w-2"
    assert find_broker("nats://h", {}) == ("nats://h", {})
    assert Worker().name == "w-1"
    monkeypatch.delenv("FUMEHOOD_NATS_PASSWORD_FILE")
    with pytest.raises(ConfigurationError, match="belong together"):
        find_broker(None, {})


def test_where_another_server_is_meant_its_broker_has_to_be_named(dev: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUMEHOOD_URL", "https://prod.example")
    with pytest.raises(ConfigurationError, match=r"https://prod.example, and your own .*\nname the broker"):
        Worker()


def test_without_a_dev_it_says_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match=r"no broker is named.*\nstart `fumehood dev`, or name the broker"):
        Worker()


@pytest.mark.parametrize("pid", [1 << 30, "x", None], ids=["it has ended", "no number", "nothing"])
def test_the_password_is_given_to_nobody_else(state: Path, server: ApiServer, port: int, pid: object) -> None:
    leave_word(state, server.url, f"nats://127.0.0.1:{port}", pid)
    found = own_dev.own_dev()
    assert found is not None
    assert (found.url, found.broker) == (server.url, None)


@pytest.mark.parametrize("url", ["nats://localhost:{}", "tls://127.0.0.1:{}", "nats://127.0.0.1:1"])
def test_it_is_the_broker_of_this_machine_or_none(state: Path, server: ApiServer, port: int, url: str) -> None:
    leave_word(state, server.url, url.format(port), os.getpid())
    found = own_dev.own_dev()
    assert found is not None
    assert found.broker is None
