"""Receipts and lists of keys: what is refused, and with which word. No byte of either can be another one."""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fumehood.errors import PayloadTooLargeError, UnverifiedError
from fumehood.verify import receipt as receipts
from fumehood.verify.dsse import (
    LARGEST_FILE,
    LARGEST_PAYLOAD,
    Envelope,
    SigningKey,
    from_file,
    is_binding,
    key_id,
    to_file,
)
from fumehood.verify.keylist import PAYLOAD_TYPE as LIST_TYPE
from fumehood.verify.keylist import KeyList, ListedKey, published, read_published, root_key
from tests.unit.receipt_world import NOON, OTHER_ROOT, ROOT, claim, key_list, key_of, listed, receipt, sha256

KEYS = key_list(listed("w1"), listed("w2"))
RECEIPT = to_file(receipt())
PUBLISHED = to_file(published(KEYS, ROOT))


def refused(reason: str, call: Callable[[], object]) -> UnverifiedError:
    with pytest.raises(UnverifiedError) as caught:
        call()
    assert caught.value.reason == reason, caught.value.detail
    return caught.value


def signed(payload: bytes, worker: str = "w1") -> dict[str, Any]:
    return key_of(worker).sign(receipts.PAYLOAD_TYPE, payload)


def said() -> dict[str, Any]:
    """A statement that is fine, to be spoilt."""
    found: dict[str, Any] = json.loads(base64.b64decode(receipt()["payload"]))
    return found


# --- what holds --------------------------------------------------------------------------------------------


def test_a_receipt_says_what_its_worker_claimed() -> None:
    statement = receipts.check(from_file(RECEIPT), KEYS)
    assert statement.predicate == claim()
    assert statement.digest_of("stdout") == sha256(b"hello\n")
    assert statement.digest_of("nothing") is None
    assert receipts.look(from_file(RECEIPT)) == statement


def test_a_later_version_may_say_more() -> None:
    more = said()
    more["predicate"]["weather"] = more["subject"][0]["digest"]["sha512"] = "x"
    assert receipts.check(signed(json.dumps(more).encode()), KEYS).digest_of("stdout") == sha256(b"hello\n")


def test_a_list_is_read_with_its_root_alone() -> None:
    assert read_published(from_file(PUBLISHED), ROOT.public_key) == KEYS
    refused("wrong_root", lambda: read_published(from_file(PUBLISHED), OTHER_ROOT.public_key))
    theirs = published(KEYS, OTHER_ROOT)
    refused("signature_invalid", lambda: read_published({**theirs, "root": ROOT.public_key.hex()}, ROOT.public_key))
    refused("signature_invalid", lambda: KeyList.read(KEYS.sign(OTHER_ROOT), ROOT.public_key))


# --- every byte counts -------------------------------------------------------------------------------------


def check_receipt_file(data: bytes) -> None:
    receipts.check(from_file(data), KEYS)


def check_list_file(data: bytes) -> None:
    read_published(from_file(data), ROOT.public_key)


@pytest.mark.parametrize(("data", "check"), [(RECEIPT, check_receipt_file), (PUBLISHED, check_list_file)])
def test_every_bit_of_a_file_counts(data: bytes, check: Callable[[bytes], None]) -> None:
    check(data)
    for place in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            with pytest.raises(UnverifiedError):
                check(bytes(flipped))


@pytest.mark.parametrize(("data", "check"), [(RECEIPT, check_receipt_file), (PUBLISHED, check_list_file)])
@given(choice=st.data())
def test_every_byte_of_a_receipt_counts(data: bytes, check: Callable[[bytes], None], choice: st.DataObject) -> None:
    """Another byte in any place, whichever, is refused: also one that is a blank, or another letter of base64."""
    place = choice.draw(st.integers(0, len(data) - 1))
    other = choice.draw(st.integers(0, 255).filter(lambda byte: byte != data[place]))
    with pytest.raises(UnverifiedError):
        check(data[:place] + bytes([other]) + data[place + 1 :])


@given(st.integers(0, len(RECEIPT) - 2), st.binary(min_size=1, max_size=3))
def test_bytes_that_are_put_in_or_taken_out_change_nothing_unseen(place: int, more: bytes) -> None:
    """Blanks between JSON's signs are the one thing that may come and go: what is read is the same then."""
    for changed in (RECEIPT[:place] + more + RECEIPT[place:], RECEIPT[:place] + RECEIPT[place + len(more) :]):
        try:
            check_receipt_file(changed)
        except UnverifiedError:
            continue
        assert from_file(changed) == from_file(RECEIPT)


def test_an_indented_file_is_the_same_receipt() -> None:
    value = from_file(RECEIPT)
    for text in (json.dumps(value, indent=2) + "\n", json.dumps(value) + "\r\n", json.dumps(value)):
        assert from_file(text.encode()) == value


@pytest.mark.parametrize("around", ["{} ", " {}", "{}\n\n", "{}\r", "{}\x0b", "\ufeff{}", "{}{}", ""])
def test_a_file_holds_one_value_and_nothing_else(around: str) -> None:
    refused("malformed", lambda: from_file(around.replace("{}", RECEIPT.decode().strip()).encode()))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_whatever_is_no_envelope_is_refused_with_a_reason(value: object) -> None:
    refused("malformed", lambda: receipts.check(value, KEYS))
    refused("malformed", lambda: read_published(value, ROOT.public_key))
    refused("malformed", lambda: read_published({"root": ROOT.public_key.hex(), "list": value}, ROOT.public_key))


@given(st.binary(max_size=200))
def test_whatever_a_worker_signs_is_a_receipt_or_refused(payload: bytes) -> None:
    refused("malformed", lambda: receipts.check(signed(payload), KEYS))
    refused("malformed", lambda: KeyList.read(ROOT.sign(LIST_TYPE, payload), ROOT.public_key))


# --- envelopes ---------------------------------------------------------------------------------------------


def spoilt(**changes: Any) -> dict[str, Any]:
    return {**receipt(), **changes}


@pytest.mark.parametrize(
    "envelope",
    [
        spoilt(extra=1),
        spoilt(payloadType="application/json"),
        spoilt(payloadType=["application/vnd.in-toto+json"]),
        spoilt(signatures=[]),
        spoilt(signatures=receipt()["signatures"] * 2),
        spoilt(signatures=[{"keyid": "x"}]),
        spoilt(signatures=[{"keyid": 1, "sig": "AA=="}]),
        spoilt(signatures=[{**receipt()["signatures"][0], "cert": ""}]),
        spoilt(payload=1),
        spoilt(payload="é"),
        spoilt(payload=receipt()["payload"] + "\n"),
        spoilt(payload=receipt()["payload"].rstrip("=") + "===="),
        spoilt(payload="QQ"),
        spoilt(payload="QR=="),
        spoilt(payload="A" * (2 * LARGEST_PAYLOAD)),
    ],
)
def test_what_is_no_envelope_of_one_signature_is_malformed(envelope: dict[str, Any]) -> None:
    refused("malformed", lambda: receipts.check(envelope, KEYS))


def test_url_safe_base64_is_another_text() -> None:
    key, payload = key_of("w1"), b"\xfb\xff\xfe"
    envelope = key.sign("t", payload)
    assert Envelope.read(envelope, "t").verify(key.public_key) == payload
    other = {**envelope, "payload": base64.urlsafe_b64encode(payload).decode()}
    refused("malformed", lambda: Envelope.read(other, "t"))


def test_the_type_is_part_of_what_is_signed() -> None:
    theirs = KEYS.sign(key_of("w1"))
    refused("malformed", lambda: receipts.check(theirs, KEYS))
    relabelled = {**theirs, "payloadType": receipts.PAYLOAD_TYPE}
    refused("signature_invalid", lambda: receipts.check(relabelled, KEYS))


def test_a_signature_has_one_form() -> None:
    """s and s + L are the same to careless arithmetic; then one receipt would have two texts."""
    order = 2**252 + 27742317777372353535851937790883648493
    envelope = receipt()
    signature = base64.b64decode(envelope["signatures"][0]["sig"])
    s = int.from_bytes(signature[32:], "little")
    other = signature[:32] + (s + order).to_bytes(32, "little")
    envelope["signatures"] = [{**envelope["signatures"][0], "sig": base64.b64encode(other).decode()}]
    refused("signature_invalid", lambda: receipts.check(envelope, KEYS))


def test_a_key_of_small_order_signs_anything() -> None:
    """With the neutral point as a public key, one signature fits every text, so nobody is bound by it."""
    weak = (1).to_bytes(32, "little")
    signature = weak + bytes(32)
    for text in (b"one", b"another"):
        Ed25519PublicKey.from_public_bytes(weak).verify(signature, text)  # does not raise: that is the danger
    envelope = {
        "payloadType": receipts.PAYLOAD_TYPE,
        "payload": receipt()["payload"],
        "signatures": [{"keyid": key_id(weak), "sig": base64.b64encode(signature).decode()}],
    }
    refused("weak_key", lambda: Envelope.read(envelope, receipts.PAYLOAD_TYPE).verify(weak))
    with pytest.raises(ValidationError, match="other texts"):
        ListedKey(key_id=key_id(weak), public_key=weak.hex(), worker="w1", not_before=NOON)


P, D = 2**255 - 19, -121665 * pow(121666, -1, 2**255 - 19) % (2**255 - 19)


def doubled(point: tuple[int, int]) -> tuple[int, int]:
    x, y = point
    k = D * x * x * y * y % P
    return 2 * x * y * pow(1 + k, -1, P) % P, (y * y + x * x) * pow(1 - k, -1, P) % P


def test_all_eight_points_of_small_order_are_known() -> None:
    """Found here by what they are: eight times such a point is the neutral one."""
    found = {0, 1, P - 1}
    for root in roots_of_order_eight():
        x, y = root
        assert doubled(doubled(doubled(root))) == (0, 1)
        assert doubled(doubled(root)) != (0, 1)
        assert (y * y - x * x) % P == (1 + D * x * x * y * y) % P
        found.add(y)
    assert len(found) == 5
    for y in found:
        for sign in (0, 1 << 255):
            assert not is_binding((y | sign).to_bytes(32, "little"))
    assert not is_binding((P + 3).to_bytes(32, "little")), "not in its only form"
    assert not is_binding(b"short")
    assert is_binding(ROOT.public_key)


def square_root(value: int) -> int | None:
    root = pow(value, (P + 3) // 8, P)
    for candidate in (root, root * pow(2, (P - 1) // 4, P) % P):
        if candidate * candidate % P == value % P:
            return candidate
    return None


def roots_of_order_eight() -> list[tuple[int, int]]:
    """Doubled, one has y = 0, so that y = ±i x; on the curve that makes d x⁴ - 2 x² - 1 = 0."""
    found = []
    i = pow(2, (P - 1) // 4, P)
    for root in (1, -1):
        discriminant = square_root(1 + D)
        assert discriminant is not None
        square = (1 + root * discriminant) * pow(D, -1, P) % P
        x = square_root(square)
        if x is not None:
            found += [(x, i * x % P), (x, -i * x % P)]
    return found


def test_what_is_signed_is_bounded() -> None:
    with pytest.raises(PayloadTooLargeError):
        ROOT.sign("t", bytes(LARGEST_PAYLOAD + 1))
    refused("malformed", lambda: from_file(b" " * (LARGEST_FILE + 1)))


def test_a_private_key_is_in_no_text() -> None:
    key = SigningKey.generate()
    assert key.seed.hex() not in repr(key)
    assert SigningKey.from_seed(key.seed).key_id == key.key_id


# --- statements --------------------------------------------------------------------------------------------


def changed(**changes: Any) -> bytes:
    return json.dumps({**said(), **changes}).encode()


def claimed(**changes: Any) -> bytes:
    statement = said()
    statement["predicate"] |= changes
    return json.dumps(statement).encode()


@pytest.mark.parametrize(
    "payload",
    [
        b"[]",
        b"{",
        b"\xff",
        b"NaN",
        b'{"a":1,"a":1}',
        b"[" * 100_000,
        changed(_type="https://in-toto.io/Statement/v0.1"),
        changed(predicateType="urn:other"),
        changed(subject=[{"name": "a", "digest": {"sha256": "AB" * 32}}]),
        changed(subject=[{"name": "a", "digest": {}}]),
        changed(subject=[{"name": "a", "digest": {"sha256": "0" * 64}}] * 2),
        changed(subject=[{"name": str(n), "digest": {"sha256": "0" * 64}} for n in range(513)]),
        claimed(kind="rumour"),
        claimed(finished_at=1_700_000_000),
        claimed(finished_at="2026-03-01T12:00:00"),
        claimed(finished_at="0001-01-01T00:00:00+23:59"),
        claimed(finished_at=None),
        claimed(outcome={"status": "succeeded", "exit_code": "0"}),
        claimed(request={"sha256": "x"}),
    ],
)
def test_what_is_no_statement_of_ours_is_malformed(payload: bytes) -> None:
    refused("malformed", lambda: receipts.check(signed(payload), KEYS))
    refused("malformed", lambda: receipts.look(signed(payload)))


def test_a_receipt_counts_under_its_key_and_its_workers_name_alone() -> None:
    payload = base64.b64decode(receipt()["payload"])
    refused("malformed", lambda: receipts.check(signed(payload, "w2"), KEYS))
    other = json.loads(payload)
    other["predicate"]["worker"]["id"] = "w2"
    refused("wrong_worker", lambda: receipts.check(signed(json.dumps(other).encode()), KEYS))
    refused("unknown_key", lambda: receipts.check(receipt("w3"), KEYS))
    with pytest.raises(ValueError, match="the key that signs"):
        receipts.issue(claim("w1"), {}, key_of("w2"))


# --- keys --------------------------------------------------------------------------------------------------


def test_a_revoked_key_proves_nothing_that_it_ever_signed() -> None:
    later = NOON + dt.timedelta(days=30)
    keys = key_list(listed("w1", revoked_at=later, revoked_because="its machine was stolen"))
    error = refused("revoked_key", lambda: receipts.check(receipt(), keys))
    assert "its machine was stolen" in error.detail


def test_a_retired_key_proves_what_it_signed_until_then() -> None:
    keys = key_list(listed("w1", not_after=NOON))
    minute = dt.timedelta(minutes=1)
    receipts.check(receipt(), keys)
    receipts.check(receipt(finished_at=NOON + minute), keys)
    refused("key_not_valid_then", lambda: receipts.check(receipt(finished_at=NOON + 2 * minute), keys))


def test_a_key_proves_nothing_from_before_it_was_listed() -> None:
    keys = key_list(listed("w1", not_before=NOON))
    minute = dt.timedelta(minutes=1)
    receipts.check(receipt(finished_at=NOON - minute), keys)
    refused("key_not_valid_then", lambda: receipts.check(receipt(finished_at=NOON - 2 * minute), keys))


@pytest.mark.parametrize("at", [dt.datetime.min.replace(tzinfo=dt.UTC), dt.datetime.max.replace(tzinfo=dt.UTC)])
def test_the_ends_of_time_are_times(at: dt.datetime) -> None:
    keys = key_list(listed("w1", not_before=at, not_after=at))
    refused("key_not_valid_then", lambda: receipts.check(receipt(), keys))


def list_with(**changes: Any) -> bytes:
    return json.dumps(KEYS.model_dump(mode="json", exclude_none=True) | changes).encode()


ONE = listed("w1").model_dump(mode="json", exclude_none=True)


@pytest.mark.parametrize(
    "payload",
    [
        b"{}",
        list_with(version=0),
        list_with(version="1"),
        list_with(version=2**53),
        list_with(more=1),
        list_with(keys=[ONE, ONE]),
        list_with(keys=[{**ONE, "key_id": "0" * 64}]),
        list_with(keys=[{**ONE, "worker": "a b"}]),
        list_with(keys=[{**ONE, "not_before": 1}]),
        list_with(keys=[ONE] * 2501),
    ],
)
def test_what_is_no_list_of_keys_is_malformed(payload: bytes) -> None:
    refused("malformed", lambda: KeyList.read(ROOT.sign(LIST_TYPE, payload), ROOT.public_key))


@pytest.mark.parametrize("text", ["", "0" * 63, "0" * 65, "G" * 64, "A" * 64, "0" * 63 + "\n", "٠" * 64, None, 1])
def test_a_root_is_written_in_one_way(text: object) -> None:
    refused("malformed", lambda: root_key(text))
