"""Messages of the domain name system, as far as a forwarder must understand them. Pure.

Questions are taken apart and written anew, so that nothing goes to the upstream but one ordinary question. Answers
are read through to find every address in them, and are passed on byte by byte or not at all.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from fumehood.sandbox.network.addresses import Address

HEADER: Final = struct.Struct(">HHHHHH")
MAX_QUERY: Final = 512
"""A question is one name (255 bytes) and a few options."""
MAX_RECORDS: Final = 1024
PLAIN_UDP: Final = 512
EDNS_UDP: Final = 1232
"""What fits into a packet everywhere, as resolvers have agreed."""

A, AAAA, OPT, SVCB, HTTPS = 1, 28, 41, 64, 65
IN: Final = 1
_NOT_ASKED: Final = frozenset({251, 252, 255})
"""Zone transfers, and ANY: nobody needs them from here."""

NOERROR, FORMERR, SERVFAIL, NOTIMP, REFUSED = 0, 1, 2, 4, 5

_RESPONSE, _OPCODE, _TRUNCATED, _RECURSE, _AVAILABLE = 0x8000, 0x7800, 0x0200, 0x0100, 0x0080
_KEPT: Final = _RECURSE | 0x0030
"""What of a question's flags goes on: recursion desired, authentic data, checking disabled."""
_HINTS: Final = {4: 4, 6: 16}
"""Parameters of SVCB and HTTPS that hold addresses, and the bytes of each."""


class DnsError(Exception):
    """Not a message that we understand, or a question that we do not pass on."""

    def __init__(self, rcode: int) -> None:
        super().__init__(f"rcode {rcode}")
        self.rcode = rcode


@dataclass(frozen=True, slots=True)
class Query:
    """One question."""

    identity: int
    flags: int
    question: bytes
    """Name, type and class as they came."""
    room: int
    """Bytes that the client takes over UDP."""
    edns: bool

    @property
    def type(self) -> int:
        return int.from_bytes(self.question[-4:-2], "big")

    @property
    def name(self) -> str:
        """For people."""
        labels, at = [], 0
        while self.question[at]:
            labels.append(self.question[at + 1 : at + 1 + self.question[at]].decode("ascii", "replace"))
            at += 1 + self.question[at]
        return ".".join(label if label.isprintable() else "?" for label in labels) or "."

    @property
    def reversed_address(self) -> Address | None:
        """The address, or the beginning of one, that a name of the reverse tree stands for."""
        labels = self.name.lower().split(".")
        try:
            if labels[-2:] == ["in-addr", "arpa"]:
                numbers = [int(label) for label in reversed(labels[:-2])][:4]
                return IPv4Address(bytes(numbers + [0] * (4 - len(numbers))))
            if labels[-2:] == ["ip6", "arpa"]:
                return IPv6Address(int("".join(reversed(labels[:-2]))[:32].ljust(32, "0"), 16))
        except ValueError:
            return IPv4Address(0)  # a name that stands for nothing: as good as a private one
        return None

    def as_sent(self, identity: int) -> bytes:
        """The same question, in our own words."""
        head = HEADER.pack(identity, self.flags & _KEPT, 1, 0, 0, int(self.edns))
        options = b"\0" + struct.pack(">HHIH", OPT, EDNS_UDP, 0, 0) if self.edns else b""
        return head + self.question + options

    def refusal(self, rcode: int) -> bytes:
        return self._empty(rcode)

    def truncation(self) -> bytes:
        """Tells the client to ask again over TCP."""
        return self._empty(_TRUNCATED)

    def _empty(self, flags: int) -> bytes:
        head = HEADER.pack(self.identity, _RESPONSE | _AVAILABLE | (self.flags & _RECURSE) | flags, 1, 0, 0, 0)
        return head + self.question


@dataclass(frozen=True, slots=True)
class Answer:
    """What an upstream said."""

    rcode: int
    truncated: bool
    addresses: tuple[Address, ...]
    """Those that the question's name leads to."""
    mentioned: tuple[Address, ...]
    """All of them, wherever they stand."""


def question_for(name: str, kind: int) -> Query:
    """An ordinary question of our own; `name` is a plain host name."""
    labels = b"".join(bytes([len(label)]) + label.encode("ascii") for label in name.split("."))
    return Query(0, _RECURSE, labels + b"\0" + struct.pack(">HH", kind, IN), EDNS_UDP, edns=True)


def read_query(data: bytes) -> Query:
    """A client's question; `DnsError` says with which code to refuse it."""
    if len(data) < HEADER.size or len(data) > MAX_QUERY:
        raise DnsError(FORMERR)
    identity, flags, questions, answers, authorities, additional = HEADER.unpack_from(data)
    if flags & _RESPONSE:
        raise DnsError(FORMERR)
    if flags & _OPCODE:
        raise DnsError(NOTIMP)
    if questions != 1 or answers or authorities or additional > 2:
        raise DnsError(FORMERR)
    end = _plain_name_end(data, HEADER.size) + 4
    if end > len(data):
        raise DnsError(FORMERR)
    question = data[HEADER.size : end]
    kind, group = struct.unpack(">HH", question[-4:])
    if group != IN or kind in _NOT_ASKED:
        raise DnsError(REFUSED)
    room = _offered_room(data, end, additional)
    return Query(identity, flags, question, max(PLAIN_UDP, min(room, EDNS_UDP)), edns=room > 0)


def _offered_room(data: bytes, at: int, count: int) -> int:
    """The size in the client's EDNS option; 0 when it sent none."""
    for _ in range(count):
        at = _name_end(data, at)
        kind, size, _, length = _unpack(">HHIH", data, at)
        at += 10 + length
        if kind == OPT:
            return max(size, 1)
    return 0


def read_answer(data: bytes, query: Query, identity: int) -> Answer:
    """An upstream's answer to what was sent under this identity; raises when it is not one."""
    try:
        return _read_answer(data, query, identity)
    except (struct.error, IndexError, ValueError):
        raise DnsError(SERVFAIL) from None


def _read_answer(data: bytes, query: Query, identity: int) -> Answer:
    found, flags, questions, answers, authorities, additional = _unpack(">HHHHHH", data, 0)
    at = HEADER.size + len(query.question)
    same = data[HEADER.size : at].lower() == query.question.lower()
    if found != identity or not flags & _RESPONSE or questions != 1 or not same:
        raise DnsError(SERVFAIL)
    count = answers + authorities + additional
    if count > MAX_RECORDS:
        raise DnsError(SERVFAIL)
    own: list[Address] = []
    mentioned: list[Address] = []
    for number in range(count):
        at = _name_end(data, at)
        kind, _, _, length = _unpack(">HHIH", data, at)
        content = data[at + 10 : at + 10 + length]
        if len(content) != length:
            raise DnsError(SERVFAIL)
        at += 10 + length
        addresses = _addresses(kind, content)
        mentioned += addresses
        if number < answers and kind in (A, AAAA):
            own += addresses
    return Answer(flags & 0x000F, bool(flags & _TRUNCATED), tuple(own), tuple(mentioned))


def _addresses(kind: int, content: bytes) -> list[Address]:
    if kind == A:
        return [_address(content, 4)]
    if kind == AAAA:
        return [_address(content, 16)]
    return _hinted(content) if kind in (SVCB, HTTPS) else []


def _hinted(content: bytes) -> list[Address]:
    """Addresses in a service record: after its priority and its name, which is never compressed."""
    at = _name_end(content, 2)
    found: list[Address] = []
    while at < len(content):
        key, length = _unpack(">HH", content, at)
        value = content[at + 4 : at + 4 + length]
        at += 4 + length
        size = _HINTS.get(key)
        if size is not None:
            found += [_address(value[start : start + size], size) for start in range(0, length, size)]
    return found


def _address(data: bytes, size: int) -> Address:
    if len(data) != size:
        raise DnsError(SERVFAIL)
    return IPv4Address(data) if size == 4 else IPv6Address(data)


def _plain_name_end(data: bytes, at: int) -> int:
    """Where an uncompressed name ends."""
    start = at
    while True:
        if at >= len(data) or data[at] > 63 or at - start > 255:
            raise DnsError(FORMERR)
        if data[at] == 0:
            return at + 1
        at += 1 + data[at]


def _name_end(data: bytes, at: int) -> int:
    """Where a name ends that may point elsewhere; the pointer is not followed."""
    while True:
        if at >= len(data):
            raise DnsError(FORMERR)
        length = data[at]
        if length == 0:
            return at + 1
        if length >= 0xC0:
            return at + 2
        if length > 63:
            raise DnsError(FORMERR)
        at += 1 + length


def _unpack(form: str, data: bytes, at: int) -> tuple[int, ...]:
    try:
        return struct.unpack_from(form, data, at)
    except struct.error:
        raise DnsError(FORMERR) from None
