"""Which server, and as whom: in falling order, and no key to anybody but whose it is."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fumehood.errors import ConfigurationError
from fumehood.sdk import own_dev
from fumehood.sdk.connection import DEFAULT_URL, Connection, find_connection
from fumehood.sdk.context_store import ContextStore
from tests.unit.api_server import ApiServer, api_server

PROD, TEST, ELSEWHERE = "https://prod.example", "https://test.example", "https://elsewhere.example"


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in list(os.environ):
        if name.startswith(("FUMEHOOD_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def store() -> ContextStore:
    """Two contexts; the current one is `prod`."""
    made = ContextStore(ring=lambda: None)
    made.log_in("test", TEST, "test-key", in_file=True)
    made.log_in("prod", PROD, "prod-key", in_file=True)
    return made


@pytest.fixture
def dev(home: Path) -> Iterator[ApiServer]:
    """A server of this process, that says that it is one's own `dev`."""
    state = home / ".local/state/fumehood"
    state.mkdir(parents=True)
    with api_server() as made:
        for name, text in ((own_dev.WORD, json.dumps({"url": made.url, "pid": os.getpid()})), ("api.token", "dev-key")):
            (state / name).write_text(text)
            (state / name).chmod(0o600)
        yield made


def found(**said: object) -> tuple[str, str | None]:
    connection = find_connection(**said)  # type: ignore[arg-type]
    return connection.url, connection.key


def key_file(path: Path, key: str = "file-key") -> Path:
    path.write_text(f"{key}\n")
    path.chmod(0o600)
    return path


def test_the_order_in_which_it_is_found(
    home: Path, dev: ApiServer, store: ContextStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the weakest word to the strongest."""
    store.use(None)
    assert found() == (dev.url, "dev-key")
    store.use("prod")
    assert found() == (PROD, "prod-key")
    monkeypatch.setenv("FUMEHOOD_CONTEXT", "test")
    assert found() == (TEST, "test-key")
    monkeypatch.setenv("FUMEHOOD_URL", ELSEWHERE)
    assert found() == (ELSEWHERE, None)
    monkeypatch.setenv("FUMEHOOD_API_KEY", "env-key")
    assert found() == (ELSEWHERE, "env-key")
    assert found(context="prod") == (PROD, "prod-key")
    assert found(url=dev.url) == (dev.url, "env-key")
    assert found(url=dev.url, key="said-key") == (dev.url, "said-key")
    assert found(url=dev.url, key_file=key_file(home / "key")) == (dev.url, "file-key")
    assert found(context="prod", key="said-key") == (PROD, "said-key")
    assert found(context="prod", key_file=home / "key") == (PROD, "file-key")


def test_nothing_is_there() -> None:
    assert find_connection() == Connection(DEFAULT_URL, None, direct=True)


def test_the_key_of_a_context_goes_to_its_own_server_alone(
    store: ContextStore, dev: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found(url=PROD) == (PROD, "prod-key")
    assert found(url=f"{PROD}/") == (PROD, "prod-key")
    for other in (ELSEWHERE, TEST, f"{PROD}:444", f"{PROD}.evil.example", f"{PROD}/path"):
        assert found(url=other) == (other, None)
    assert found(url=dev.url) == (dev.url, "dev-key")
    monkeypatch.setenv("FUMEHOOD_URL", ELSEWHERE)
    assert found() == (ELSEWHERE, None)
    monkeypatch.setenv("FUMEHOOD_URL", PROD)
    assert found() == (PROD, "prod-key")
    with pytest.raises(ConfigurationError, match="give one of them"):
        find_connection(context="prod", url=ELSEWHERE)
    assert found(context="prod", url=f"{PROD}/") == (PROD, "prod-key")


def test_a_key_of_the_environment_is_not_shown_to_whatever_context_is_current(
    store: ContextStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be that of another server, which was meant before somebody logged in here."""
    monkeypatch.setenv("FUMEHOOD_API_KEY", "env-key")
    with pytest.raises(ConfigurationError, match="a key is set without its address, and the context prod"):
        find_connection()
    assert found(key="said-key") == (PROD, "said-key")
    store.use(None)
    assert found() == (DEFAULT_URL, "env-key")


def test_a_context_that_is_not_there_is_an_error_wherever_it_is_named(
    store: ContextStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match="did you mean prod"):
        find_connection(context="prd")
    monkeypatch.setenv("FUMEHOOD_CONTEXT", "prd")
    with pytest.raises(ConfigurationError, match="did you mean prod"):
        find_connection()
    monkeypatch.setenv("FUMEHOOD_CONTEXT", "../prod")
    with pytest.raises(ConfigurationError, match="context must be"):
        find_connection()


def test_a_key_that_is_gone_is_an_error_and_not_no_key(store: ContextStore, home: Path) -> None:
    for file in (home / ".config/fumehood/keys").iterdir():
        file.unlink()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        find_connection()


def test_contexts_that_others_can_read_are_refused_and_not_skipped(store: ContextStore) -> None:
    store.path.chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        find_connection()
    assert found(url=ELSEWHERE, key="said-key") == (ELSEWHERE, "said-key")


@pytest.mark.parametrize("said", [{"key": "x", "key_file": Path("f")}, {"key": "two words"}, {"key": ""}])
def test_what_cannot_be_meant_is_refused(said: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        found(**said)


def test_no_key_leaves_the_machine_in_the_clear(store: ContextStore, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "http://plain.example"
    with pytest.raises(ConfigurationError, match="use https://"):
        find_connection(url=url, key="said-key")
    assert found(url=url, key="said-key", insecure_http=True) == (url, "said-key")
    assert found(url=url) == (url, None)
    store.log_in("plain", url, "plain-key", in_file=True)
    with pytest.raises(ConfigurationError, match="use https://"):
        find_connection()
    store.log_in("plain", url, "plain-key", insecure_http=True, in_file=True)
    assert found() == (url, "plain-key")
    assert found(context="plain") == (url, "plain-key")
    with pytest.raises(ConfigurationError, match="use https://"):
        find_connection(context="plain", key="said-key")  # only the context's own key was allowed to
    with pytest.raises(ConfigurationError, match="use https://"):
        find_connection(url="http://other.example", key="said-key")


def test_only_a_server_on_this_machine_is_asked_without_a_proxy() -> None:
    assert find_connection(url="http://127.0.0.1:1").direct
    assert not find_connection(url=PROD).direct


def test_no_key_is_shown() -> None:
    assert "said-key" not in repr(find_connection(url=PROD, key="said-key"))
