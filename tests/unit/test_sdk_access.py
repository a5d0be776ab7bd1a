"""Addresses and credentials: what is understood, what is refused, and that no secret shows."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood import Worker
from fumehood.broker.access import Role, User
from fumehood.errors import ConfigurationError, InvalidRequestError
from fumehood.sdk.access import Access, connection_options

tokens = st.from_regex(r"[A-Za-z0-9_-]{1,128}", fullmatch=True)
secrets = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=8, max_size=40).filter(
    lambda text: not text.isalnum()
)


@given(user=tokens, password=secrets, port=st.integers(1, 65_535) | st.none())
def test_user_and_password_in_the_address_are_understood_and_never_shown(
    user: str, password: str, port: int | None
) -> None:
    at = "host" if port is None else f"host:{port}"
    made = connection_options(f"nats://{user}:{quote(password, safe='')}@{at}", None, {})
    assert (made.user, made.password) == (user, password)
    assert made.servers == (f"nats://host:{port or 4222}",)
    assert password not in repr(made)
    assert quote(password, safe="") not in repr(made)


@given(name=tokens)
def test_answers_come_in_where_the_broker_lets_this_user_listen(name: str) -> None:
    user = User(name, Role.WORKER, password="secret")
    assert connection_options(f"nats://{name}:x@h", None, {}).inbox_prefix == user.inbox_prefix
    assert connection_options("nats://h", name, {}).inbox_prefix == user.inbox_prefix, "an nkey's user has no name here"
    assert connection_options(f"nats://{name}:x@h", None, {"inbox_prefix": "_X"}).inbox_prefix == "_X"
    assert connection_options("nats://h", None, {}).inbox_prefix == "_INBOX"


def test_several_addresses_share_the_credentials() -> None:
    made = connection_options("nats://u:p@a:1, tls://b,c:3,nats://[::1]:4", None, {})
    assert made.servers == ("nats://a:1", "tls://b:4222", "nats://c:3", "nats://[::1]:4")
    assert (made.user, made.password, made.name) == ("u", "p", "u")


def test_files_are_read_when_the_worker_is_made(tmp_path: Path) -> None:
    password, seed = tmp_path / "password", tmp_path / "seed"
    password.write_text("from a file\n")
    seed.write_text("SUAM")
    made = connection_options("h", "w", {"user": "u", "password_file": password, "nkey_seed_file": str(seed)})
    assert (made.user, made.password, made.nkey_seed_file) == ("u", "from a file", seed)
    assert "from a file" not in repr(made)


@pytest.mark.parametrize("url", ["http://h:1", "nats://", "", "nats://u:hunter2@h:port", "nats://u:hunter2@h:99999"])
def test_what_is_no_address_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        connection_options(url, None, {})
    assert "hunter2" not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize("option", ["password_file", "nkey_seed_file", "credentials_file", "tls_ca_file"])
def test_a_file_that_is_not_there_is_named(option: str, tmp_path: Path) -> None:
    access: Access = {option: tmp_path / "none"}  # type: ignore[misc]
    with pytest.raises(ConfigurationError, match="none"):
        connection_options("nats://h", None, access)


def test_a_misspelt_option_is_an_error() -> None:
    with pytest.raises(TypeError, match="pasword_file"):
        Worker("nats://h", pasword_file="x")  # type: ignore[call-arg]


def test_a_worker_has_its_users_name_unless_told_otherwise() -> None:
    assert Worker("nats://w-1:x@h").name == "w-1"
    assert Worker("nats://w-1:x@h", name="other").name == "other"
    assert Worker("nats://h").name


@pytest.mark.parametrize("wrong", [{"max_tasks": 0}, {"max_tasks": 10_001}, {"lease_seconds": 0}])
def test_numbers_out_of_bounds_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Worker("nats://h", **wrong)  # type: ignore[arg-type]


def test_handlers_have_a_type_of_their_own() -> None:
    worker = Worker("nats://h")
    worker.task("a.b")(lambda task: None)
    with pytest.raises(ValueError, match="has a handler already"):
        worker.task("a.b")(lambda task: None)
    with pytest.raises(InvalidRequestError):
        worker.task("no spaces")


async def test_a_worker_without_handlers_does_not_start() -> None:
    with pytest.raises(ConfigurationError, match="no handlers"):
        await Worker("nats://h").serve()
