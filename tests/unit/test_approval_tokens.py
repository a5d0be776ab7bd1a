"""Approval tokens: what was made here is read here, and nothing else is."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import string
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.broker.memory import MemoryBroker
from fumehood.control.approval_tokens import LONGEST, PREFIX, Claim, key_of, mint, read
from fumehood.door.problems import KINDS
from fumehood.errors import InvalidTokenError

KEY = b"k" * 32
NOW = 1_700_000_000_000
CLAIM = Claim(
    run_id="run-1", step="publish", visit=2, who="ada", via="key-1/deploy", tenant="default", expires_ms=NOW + 1
)

claims = st.builds(
    Claim,
    run_id=st.text(string.ascii_letters + "-_", min_size=1, max_size=36),
    step=st.text(string.ascii_letters, min_size=1, max_size=36),
    visit=st.integers(1, 10_000),
    who=st.text(max_size=64),
    via=st.text(max_size=64),
    tenant=st.text(string.ascii_letters, min_size=1, max_size=36),
    expires_ms=st.integers(NOW + 1, 2**45),
)


@given(claims)
def test_a_token_is_read_as_it_was_made(claim: Claim) -> None:
    token = mint(KEY, claim)
    assert read(KEY, token, NOW) == claim
    assert set(token) <= set(string.ascii_letters + string.digits + "-_."), "it fits in a link"


def test_the_longest_names_in_any_language_fit_in_a_token() -> None:
    claim = replace(CLAIM, run_id="r" * 128, step="s" * 128, who="\U0001f600" * 256, via="\U0001f600" * 192)
    assert read(KEY, mint(KEY, claim), NOW) == claim


@given(claims, st.data())
def test_a_token_with_any_character_changed_is_none(claim: Claim, data: st.DataObject) -> None:
    token = mint(KEY, claim)
    place = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.sampled_from(string.ascii_letters + string.digits + "-_.= ").filter(token[place].__ne__))
    with pytest.raises(InvalidTokenError):
        read(KEY, token[:place] + other + token[place + 1 :], NOW)


def test_every_character_counts_also_the_bits_that_its_bytes_do_not_need() -> None:
    token = mint(KEY, CLAIM)
    for place in range(len(token)):
        for other in string.ascii_letters + string.digits + "-_":
            if other != token[place]:
                with pytest.raises(InvalidTokenError):
                    read(KEY, token[:place] + other + token[place + 1 :], NOW)


@given(st.text(max_size=80))
def test_what_is_no_token_is_none(text: str) -> None:
    for token in (text, PREFIX + text, f"{mint(KEY, CLAIM)}{text or '='}", f"{text or ' '}{mint(KEY, CLAIM)}"):
        with pytest.raises(InvalidTokenError):
            read(KEY, token, NOW)


def sealed(body: bytes) -> str:
    """As a server would that means something else by it."""
    text = base64.urlsafe_b64encode(body).rstrip(b"=")
    seal = base64.urlsafe_b64encode(hmac.new(KEY, text, hashlib.sha256).digest()).rstrip(b"=")
    return f"{PREFIX}{text.decode()}.{seal.decode()}"


def test_one_message_tells_nothing_about_what_is_wrong() -> None:
    good = mint(KEY, CLAIM)
    wrong = [
        (KEY, good, CLAIM.expires_ms),
        (b"another" * 5, good, NOW),
        (KEY, "", NOW),
        (KEY, good.removeprefix(PREFIX), NOW),
        (KEY, good.partition(".")[0], NOW),
        (KEY, mint(KEY, replace(CLAIM, who="x" * LONGEST)), NOW),
        (KEY, good + "é", NOW),
        (KEY, sealed(b"[]"), NOW),
        (KEY, sealed(b"\xff"), NOW),
        (KEY, sealed(b'{"run_id": "run-1"}'), NOW),
        (KEY, sealed(json.dumps({"for": "something else"}).encode()), NOW),
    ]
    said = set()
    for key, token, now in wrong:
        with pytest.raises(InvalidTokenError) as caught:
            read(key, token, now)
        said.add((caught.value.code, caught.value.detail))
    assert len(said) == 1
    assert KINDS[said.pop()[0]].status == 401
    assert read(KEY, good, CLAIM.expires_ms - 1) == CLAIM


def test_the_key_is_the_cells_and_for_this_alone() -> None:
    broker = MemoryBroker()
    assert key_of(broker) == key_of(MemoryBroker(broker.server))
    assert key_of(broker) != broker.derived_key("another thing")
    assert len(key_of(broker)) == 32
