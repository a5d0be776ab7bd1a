"""A worker's hello: whoever has the secret is believed, for a minute, and nothing may be changed on the way."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.errors import InvalidRequestError, UnauthenticatedError
from fumehood.wire.console.console_pb2 import Capability, Declaration, Hello
from fumehood.wire.console.hello import (
    MAX_DECLARATION_BYTES,
    NONCE_BYTES,
    WINDOW_MS,
    derive_key,
    new_nonce,
    new_secret,
    public_key_of,
    sign_hello,
    verify_hello,
)

NOW = 1_790_000_000_000
SECRET = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
ids = st.from_regex(r"\A[A-Za-z0-9_-]{1,32}\Z")
declarations = st.builds(
    lambda labels, inflight, software: Declaration(
        capabilities=[Capability(name="echo", max_inflight=inflight)], labels=labels, software=software
    ),
    st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
    st.integers(0, 2**32 - 1),
    st.text(max_size=16),
)
nonces = st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES)


@dataclasses.dataclass(frozen=True)
class Sent:
    hello: Hello
    public_key: bytes
    declared: Declaration


@st.composite
def sent(draw: st.DrawFn) -> Sent:
    worker_id, declared = draw(ids), draw(declarations)
    hello = sign_hello(worker_id, SECRET, declared.SerializeToString(), NOW, draw(nonces))
    return Sent(hello, public_key_of(worker_id, SECRET), declared)


@given(sent(), st.integers(-WINDOW_MS, WINDOW_MS))
def test_whoever_has_the_secret_is_believed_within_the_window(one: Sent, skew: int) -> None:
    assert verify_hello(one.hello, one.public_key, NOW + skew) == one.declared


@given(sent(), st.integers(WINDOW_MS + 1, 10**13), st.sampled_from([-1, 1]))
def test_outside_the_window_it_does_not_count(one: Sent, skew: int, sign: int) -> None:
    with pytest.raises(UnauthenticatedError):
        verify_hello(one.hello, one.public_key, NOW + sign * skew)


def _flip(data: bytes, place: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[place % len(changed)] ^= 1 << bit
    return bytes(changed)


def _other_id(hello: Hello, place: int, bit: int) -> None:
    letter = hello.worker_id[place % len(hello.worker_id)]
    other = "a" if letter != "a" else "b"
    at = place % len(hello.worker_id)
    hello.worker_id = hello.worker_id[:at] + other + hello.worker_id[at + 1 :]


def _other_time(hello: Hello, place: int, bit: int) -> None:
    moment = _flip(hello.timestamp_unix_ms.to_bytes(8, "big"), place, bit)
    hello.timestamp_unix_ms = int.from_bytes(moment, "big", signed=True)


def _other_nonce(hello: Hello, place: int, bit: int) -> None:
    hello.nonce = _flip(hello.nonce, place, bit)


def _other_declaration(hello: Hello, place: int, bit: int) -> None:
    hello.declaration = _flip(hello.declaration, place, bit)


def _other_signature(hello: Hello, place: int, bit: int) -> None:
    hello.signature = _flip(hello.signature, place, bit)


CHANGES: dict[str, Callable[[Hello, int, int], None]] = {
    "worker_id": _other_id,
    "timestamp": _other_time,
    "nonce": _other_nonce,
    "declaration": _other_declaration,
    "signature": _other_signature,
}


@pytest.mark.parametrize("part", CHANGES)
@given(one=sent(), place=st.integers(0, 1000), bit=st.integers(0, 7))
def test_any_changed_byte_is_refused(part: str, one: Sent, place: int, bit: int) -> None:
    hello = Hello()
    hello.CopyFrom(one.hello)
    CHANGES[part](hello, place, bit)
    assert hello != one.hello
    now = max(0, hello.timestamp_unix_ms)  # the window is not what refuses it
    with pytest.raises((UnauthenticatedError, InvalidRequestError) if part == "timestamp" else UnauthenticatedError):
        verify_hello(hello, one.public_key, now)


@given(sent(), st.binary(min_size=1, max_size=64))
def test_nothing_may_be_added_to_a_declaration(one: Sent, more: bytes) -> None:
    hello = Hello()
    hello.CopyFrom(one.hello)
    hello.declaration += more
    with pytest.raises(UnauthenticatedError):
        verify_hello(hello, one.public_key, NOW)


@given(ids)
def test_another_secret_is_refused_and_all_are_told_the_same(worker_id: str) -> None:
    hello = sign_hello(worker_id, new_secret(), b"", NOW, new_nonce())
    with pytest.raises(UnauthenticatedError) as wrong:
        verify_hello(hello, public_key_of(worker_id, SECRET), NOW)
    late = sign_hello(worker_id, SECRET, b"", NOW, new_nonce())
    with pytest.raises(UnauthenticatedError) as skewed:
        verify_hello(late, public_key_of(worker_id, SECRET), NOW + 2 * WINDOW_MS)
    assert wrong.value.detail == skewed.value.detail


def test_a_key_belongs_to_one_worker() -> None:
    assert public_key_of("a", SECRET) != public_key_of("b", SECRET)
    assert public_key_of("a", SECRET) == derive_key("a", SECRET).public_key().public_bytes_raw()


def test_the_key_that_follows_from_a_secret_never_changes() -> None:
    """Every worker that was made would be locked out."""
    assert public_key_of("worker-1", SECRET).hex() == KNOWN


KNOWN = "7de7dd498ebce059f2c87dd845c13a87798526bc4998157d0673045a728ba123"


def test_secrets_are_long_and_never_the_same() -> None:
    made = {new_secret() for _ in range(100)}
    assert len(made) == 100
    assert {len(secret) for secret in made} == {43}
    for secret in made:
        public_key_of("w", secret)


@pytest.mark.parametrize("secret", ["", "short", SECRET[:-1], SECRET + "A", SECRET[:-1] + "ä", SECRET[:-1] + "*"])
def test_what_is_no_secret_is_told_without_showing_it(secret: str) -> None:
    with pytest.raises(InvalidRequestError) as told:
        derive_key("w", secret)
    assert not secret or secret not in told.value.detail


@pytest.mark.parametrize(
    "change",
    [
        {"worker_id": ""},
        {"worker_id": "a.b"},
        {"worker_id": "x" * 65},
        {"nonce": b""},
        {"nonce": b"x" * 17},
        {"signature": b""},
        {"signature": b"x" * 65},
        {"timestamp_unix_ms": -1},
        {"declaration": b"x" * (MAX_DECLARATION_BYTES + 1)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_is_no_hello_is_malformed(change: dict[str, str]) -> None:
    hello = sign_hello("w", SECRET, b"", NOW, new_nonce())
    for name, value in change.items():
        setattr(hello, name, value)
    with pytest.raises(InvalidRequestError):
        verify_hello(hello, public_key_of("w", SECRET), NOW)


def test_a_signed_declaration_that_is_none_is_malformed() -> None:
    hello = sign_hello("w", SECRET, b"\xff\xff", NOW, new_nonce())
    with pytest.raises(InvalidRequestError, match="Declaration"):
        verify_hello(hello, public_key_of("w", SECRET), NOW)
