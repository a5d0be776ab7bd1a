"""Questions and answers of the domain name system: what is passed on, and what is found in it."""

from __future__ import annotations

import socket
import struct
from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.errors import ConfigurationError, NetworkUnavailableError
from fumehood.images.egress import EgressRules
from fumehood.sandbox.network.accounts import Accounts
from fumehood.sandbox.network.addresses import is_public
from fumehood.sandbox.network.dns_message import (
    AAAA,
    FORMERR,
    HTTPS,
    NOTIMP,
    REFUSED,
    A,
    DnsError,
    Query,
    question_for,
    read_answer,
    read_query,
)
from fumehood.sandbox.network.gate import Gate
from fumehood.sandbox.network.proxy import Proxy
from fumehood.sandbox.network.resolver import Resolver
from fumehood.sandbox.network.upstream import Upstream, host_servers, parse_server

LABELS = st.lists(st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True), min_size=1, max_size=8)


def encoded(name: str) -> bytes:
    return b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0"


def query(name: str = "a.test", kind: int = A, *, flags: int = 0x100, group: int = 1, more: bytes = b"") -> bytes:
    head = struct.pack(">HHHHHH", 7, flags, 1, 0, 0, 1 if more else 0)
    return head + encoded(name) + struct.pack(">HH", kind, group) + more


def record(kind: int, content: bytes, name: bytes = b"\xc0\x0c") -> bytes:
    return name + struct.pack(">HHIH", kind, 1, 60, len(content)) + content


def answer(asked: Query, *records: bytes, sections: tuple[int, int, int] | None = None, flags: int = 0x8180) -> bytes:
    counts = sections or (len(records), 0, 0)
    return struct.pack(">HHHHHH", 9, flags, 1, *counts) + asked.question + b"".join(records)


def opt(size: int) -> bytes:
    return b"\0" + struct.pack(">HHIH", 41, size, 0, 4) + b"\0\x0a\0\0"


@given(LABELS, st.sampled_from([A, AAAA, 16, HTTPS]))
def test_a_question_goes_on_in_our_own_words(labels: list[str], kind: int) -> None:
    name = ".".join(labels)
    asked = read_query(query(name, kind))
    sent = asked.as_sent(4711)
    assert (asked.name, asked.type) == (name, kind)
    assert sent == struct.pack(">HHHHHH", 4711, 0x100, 1, 0, 0, 0) + encoded(name) + struct.pack(">HH", kind, 1)


def test_options_of_a_client_do_not_go_on() -> None:
    """Only that it has any, and how much it takes."""
    asked = read_query(query(more=opt(4096)))
    assert (asked.edns, asked.room) == (True, 1232)
    assert asked.as_sent(1)[-11:] == b"\0" + struct.pack(">HHIH", 41, 1232, 0, 0)
    assert read_query(query()).room == 512


@pytest.mark.parametrize(
    ("data", "rcode"),
    [
        (b"", FORMERR),
        (b"\0" * 11, FORMERR),
        (query("a" * 60 + "." + "b" * 60)[:40], FORMERR),
        (query() + b"x" * 600, FORMERR),
        (query(flags=0x8100), FORMERR),
        (query(flags=0x2800), NOTIMP),
        (query(group=3), REFUSED),
        (query(kind=252), REFUSED),
        (query(kind=255), REFUSED),
        (struct.pack(">HHHHHH", 7, 0x100, 2, 0, 0, 0) + encoded("a.b") * 2, FORMERR),
        (struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + b"\xc0\x0c\0\1\0\1", FORMERR),
    ],
)
def test_other_questions_are_refused(data: bytes, rcode: int) -> None:
    with pytest.raises(DnsError) as refused:
        read_query(data)
    assert refused.value.rcode == rcode


@given(st.binary(max_size=600))
def test_no_bytes_break_the_reader_of_questions(data: bytes) -> None:
    try:
        asked = read_query(data)
    except DnsError:
        return
    assert asked.name
    assert asked.reversed_address is None or is_public(asked.reversed_address) in (True, False)


async def test_a_port_that_is_taken_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(NetworkUnavailableError, match="cannot listen on"):
            await Resolver(Accounts(), Upstream()).start("127.0.0.1", port)
        with pytest.raises(NetworkUnavailableError, match="cannot listen on"):
            await Proxy(Accounts(), Gate(EgressRules, Upstream())).start("127.0.0.1", port)


ASKED = question_for("a.test", A)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader_of_answers(data: bytes) -> None:
    for said in (data, answer(ASKED) + data, answer(ASKED, sections=(3, 1, 1)) + data):
        try:
            read_answer(said, ASKED, 9)
        except DnsError:
            continue


def test_all_addresses_are_found_wherever_they_stand() -> None:
    private, six = ip_address("10.0.0.1"), ip_address("fd00::1")
    hints = struct.pack(">H", 1) + b"\0" + struct.pack(">HH", 4, 4) + private.packed
    hints += struct.pack(">HH", 6, 16) + six.packed
    said = answer(
        ASKED,
        record(5, encoded("b.test")),
        record(A, ip_address("8.8.8.8").packed, encoded("b.test")),
        record(HTTPS, hints),
        record(A, private.packed),
        record(AAAA, six.packed),
        sections=(3, 1, 1),
    )
    found = read_answer(said, ASKED, 9)
    assert found.addresses == (ip_address("8.8.8.8"),)
    assert found.mentioned == (ip_address("8.8.8.8"), private, six, private, six)


@pytest.mark.parametrize(
    "said",
    [
        answer(ASKED)[1:],
        answer(question_for("b.test", A)),
        answer(question_for("a.test", AAAA)),
        answer(ASKED, flags=0x0100),
        answer(ASKED, record(A, b"\1\2\3")),
        answer(ASKED, record(A, b"\1\2\3\4"))[:-1],
        answer(ASKED, sections=(1, 0, 0)),
        answer(ASKED, sections=(1000, 1000, 0)),
    ],
)
def test_what_does_not_answer_the_question_is_no_answer(said: bytes) -> None:
    with pytest.raises(DnsError):
        read_answer(said, ASKED, 9)


def test_an_answer_to_another_identity_is_none() -> None:
    with pytest.raises(DnsError):
        read_answer(answer(ASKED), ASKED, 10)


def test_the_case_of_a_name_does_not_matter() -> None:
    said = answer(question_for("A.TesT", A), record(A, b"\x08\x08\x08\x08"))
    assert read_answer(said, ASKED, 9).addresses == (ip_address("8.8.8.8"),)


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("4.3.2.10.in-addr.arpa", "10.2.3.4"),
        ("10.in-addr.arpa", "10.0.0.0"),
        ("8.8.8.8.IN-ADDR.arpa", "8.8.8.8"),
        ("d.f.ip6.arpa", "fd00::"),
        ("nonsense.in-addr.arpa", "0.0.0.0"),
        ("999.in-addr.arpa", "0.0.0.0"),
    ],
)
def test_names_of_the_reverse_tree_stand_for_addresses(name: str, address: str) -> None:
    assert read_query(query(name, 12)).reversed_address == ip_address(address)
    assert read_query(query("a.test", 12)).reversed_address is None


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("9.9.9.9", ("9.9.9.9", 53)),
        ("9.9.9.9:5353", ("9.9.9.9", 5353)),
        ("2620:fe::fe", ("2620:fe::fe", 53)),
        ("[2620:fe::fe]", ("2620:fe::fe", 53)),
        ("[2620:fe::fe]:5353", ("2620:fe::fe", 5353)),
    ],
)
def test_resolvers_as_operators_write_them(text: str, server: tuple[str, int]) -> None:
    assert parse_server(text) == server


@pytest.mark.parametrize("text", ["", "dns.example", "9.9.9.9:0", "9.9.9.9:70000", "9.9.9.9:x", "[::1", "[9.9.9.9"])
def test_what_is_no_resolver_is_said(text: str) -> None:
    with pytest.raises(ConfigurationError, match="no resolver"):
        parse_server(text)


def test_the_hosts_resolvers(tmp_path: Path) -> None:
    path = tmp_path / "resolv.conf"
    assert host_servers(path) == []
    path.write_text("# x\nnameserver 10.0.0.2\nsearch a\nnameserver name\nnameserver fe80::1%eth0\nnameserver\n")
    assert host_servers(path) == [("10.0.0.2", 53), ("fe80::1%eth0", 53)]
