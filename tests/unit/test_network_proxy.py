"""The egress proxy's judgement: targets, server names, and what comes of both over real sockets."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.images.egress import EgressRules, plain_name
from fumehood.sandbox.network.accounts import DENIAL_CHARACTERS, KEPT_DENIALS, Account, Accounts
from fumehood.sandbox.network.client_hello import MAX_HELLO, NotAHelloError
from fumehood.sandbox.network.gate import Gate, RefusedError
from fumehood.sandbox.network.proxy import CONNECTIONS_OF_ONE
from fumehood.sandbox.network.targets import BadTargetError, Target, absolute_target, connect_target, shown_target
from fumehood.sandbox.spec import Network
from tests.unit.proxy_world import ANSWER, HELLO, RULES, Names, hello, server_name, serving
from tests.waiting import until

# --- targets -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("http://a.test/x?y=z", Target("a.test", 80, "/x?y=z")),
        ("HTTP://A.Test.:8080", Target("a.test", 8080, "/")),
        ("http://a.test?y", Target("a.test", 80, "/?y")),
        ("http://a.test:80//b", Target("a.test", 80, "//b")),
    ],
)
def test_absolute_targets(text: str, target: Target) -> None:
    assert absolute_target(text) == target


def test_connect_targets() -> None:
    assert connect_target("a.test:443") == Target("a.test", 443)
    assert connect_target("A.TEST.:443") == Target("a.test", 443)


@pytest.mark.parametrize(
    "text",
    [
        "a.test",
        "a.test:80",
        "a.test:",
        "a.test:0",
        "a.test:65536",
        "a.test:0443",
        "a.test:+443",
        "a.test:44_3",
        ":443",
        "127.0.0.1:443",
        "[::1]:443",
        "::1:443",
        "2130706433:443",
        "0x7f000001:443",
        "127.1:443",
        "0177.0.0.1:443",
        "a.test:443:443",
        "u@a.test:443",
        "localhost:443",
        "a..test:443",
        "a_b.test:443",
        "1.2.3.4.:443",
        "*.test:443",
    ],
)
def test_no_other_connect_target(text: str) -> None:
    with pytest.raises(BadTargetError):
        connect_target(text)


@pytest.mark.parametrize(
    "text",
    [
        "/",
        "/x",
        "*",
        "https://a.test/",
        "ftp://a.test/",
        "a.test/",
        "http:/a.test/",
        "http:///x",
        "http://a.test:x/",
        "http://a.test:/",
        "http://u:p@a.test/",
        "http://127.0.0.1/",
        "http://[::1]/",
        "http://[::ffff:10.0.0.1]:80/",
        "http://a.test\\@b.test/",
        "http://a.test#b",
        "http://169.254.169.254/latest",
        "http://0/",
        "http://10.1/",
    ],
)
def test_no_other_absolute_target(text: str) -> None:
    with pytest.raises(BadTargetError):
        absolute_target(text)


@given(st.text(max_size=60))
def test_whatever_is_a_target_is_a_plain_name(text: str) -> None:
    for parse, target in ((connect_target, text), (absolute_target, f"http://{text}")):
        with contextlib.suppress(BadTargetError):
            found = parse(target)
            assert plain_name(found.host) == found.host
            assert 1 <= found.port <= 65_535
            assert found.path.isascii()
            assert "\n" not in found.path
            assert " " not in found.path


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:secret@10.0.0.1:80/x", "10.0.0.1:80"),
        ("http://10.0.0.1?token=secret", "10.0.0.1"),
        ("[::1]:443", "[::1]:443"),
        ("/secret", ""),
        ("me:secret@a.test:443", "a.test:443"),
        ("ftp://a.test/secret", "a.test"),
    ],
)
def test_a_refused_target_is_shown_without_its_secrets(text: str, shown: str) -> None:
    assert shown_target(text) == shown


# --- server names ------------------------------------------------------------------------------------------


def test_the_name_in_a_real_hello() -> None:
    assert server_name(HELLO) == "a.test"
    assert server_name(hello("A.TEST")) == "a.test"
    assert server_name(HELLO + b"more") == "a.test"


@given(st.integers(0, len(HELLO) - 1))
def test_a_hello_that_is_not_all_there_needs_more(cut: int) -> None:
    assert server_name(HELLO[:cut]) is None


@given(st.lists(st.integers(1, 300), min_size=1, max_size=6))
def test_a_hello_in_many_records_is_put_together(cuts: list[int]) -> None:
    body, records = HELLO[5:], b""
    for cut in cuts:
        piece, body = body[:cut], body[cut:]
        records += b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece if piece else b""
    if body:
        records += b"\x16\x03\x01" + len(body).to_bytes(2, "big") + body
    assert server_name(records) == "a.test"


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"SSH-2.0-x\r\n",
        b"\x16\x02\x00",
        b"\x17\x03\x03\x00\x05hello",
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\x00\x04\x02\x00\x00\x00",
        b"\x16\x03\x01\xff\xff\x01\x00\xff\xff" + b"x" * MAX_HELLO,
        hello(None),
    ],
)
def test_what_is_no_hello_or_names_no_server(data: bytes) -> None:
    with pytest.raises(NotAHelloError):
        server_name(data)


@given(st.binary(max_size=300), st.integers(0, 400))
def test_no_bytes_break_the_reader_of_hellos(data: bytes, at: int) -> None:
    for said in (data, b"\x16\x03\x01" + data, HELLO[:at] + data, HELLO[:at] + data + HELLO[at + len(data) :]):
        with contextlib.suppress(NotAHelloError):
            name = server_name(said)
            assert name is None or name.isascii()


# --- the gate ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "addresses",
    ["127.0.0.1", "10.0.0.1", "8.8.8.8 10.0.0.1", "169.254.169.254", "::1", "8.8.8.8 fd00::1", "::ffff:8.8.8.8"],
)
async def test_one_address_that_is_not_public_is_one_too_many(addresses: str) -> None:
    with pytest.raises(RefusedError, match="not public") as refused:
        await Gate(lambda: RULES, Names(a=addresses)).connect(Target("a.test", 80))
    assert (refused.value.status, refused.value.denied) == (403, True)


@pytest.mark.parametrize("target", [Target("c.test", 80), Target("a.test", 22), Target("x.a.test", 80)])
async def test_what_is_not_allowed_is_not_even_looked_up(target: Target) -> None:
    names = Names(a="8.8.8.8", c="8.8.8.8")
    with pytest.raises(RefusedError, match="policy"):
        await Gate(lambda: RULES, names).connect(target)
    assert names.asked == []


async def test_a_name_that_leads_nowhere_is_not_a_denial() -> None:
    with pytest.raises(RefusedError) as refused:
        await Gate(lambda: RULES, Names()).connect(Target("a.test", 80))
    assert (refused.value.status, refused.value.denied) == (502, False)


async def test_rules_are_asked_anew_for_each_connection() -> None:
    """A policy that was reloaded counts from the next connection on."""
    rules = [EgressRules.parse(["a.test:80"])]
    gate = Gate(lambda: rules[0], Names())
    with pytest.raises(RefusedError, match="not found"):
        await gate.connect(Target("a.test", 80))
    rules[0] = EgressRules()
    with pytest.raises(RefusedError, match="policy"):
        await gate.connect(Target("a.test", 80))


async def test_the_connection_goes_to_the_address_that_was_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[object, ...]] = []

    async def refuse(*words: object) -> None:
        tried.append(words)
        raise ConnectionRefusedError

    monkeypatch.setattr(asyncio, "open_connection", refuse)
    with pytest.raises(RefusedError, match="does not answer"):
        await Gate(lambda: RULES, Names(a="8.8.8.8 8.8.4.4")).connect(Target("a.test", 443))
    assert tried == [("8.8.8.8", 443), ("8.8.4.4", 443)]


# --- the proxy, over sockets -------------------------------------------------------------------------------


async def test_a_request_is_written_anew() -> None:
    """No header for the proxy itself reaches the server, and the host is the one that was judged."""
    async with serving() as served:
        head = b"GET http://a.test/x HTTP/1.1\r\nHost: evil.test\r\nConnection: x-secret, close\r\nX-Secret: 1\r\n"
        said = await served.say(head + b"Proxy-Authorization: basic x\r\nX-Kept: 1\r\nUpgrade: websocket\r\n\r\n")
        assert served.received == [b"GET /x HTTP/1.1\r\nhost: a.test\r\nX-Kept: 1\r\nconnection: close\r\n\r\n"]
        assert said.startswith(b"HTTP/1.1 200 OK\r\n")
        assert said.endswith(b"\r\n\r\nhello")
        assert b"X-A: b" in said
        assert b"eep-" not in said
        assert (served.account.allowed, served.account.denied) == (1, 0)


async def test_a_second_request_on_the_connection_goes_nowhere() -> None:
    async with serving() as served:
        one = b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n"
        said = await served.say(one + one.replace(b"a.test", b"c.test"))
        assert said.count(b"HTTP/1.1") == 1
        assert len(served.received) == 1
        assert b"c.test" not in served.received[0]


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", 403),
        (b"CONNECT c.test:443 HTTP/1.1\r\nHost: c.test\r\n\r\n", 403),
        (b"nonsense\r\n\r\n", 400),
        (b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx", 400),
        (b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nX: " + b"x" * 40_000, 400),
    ],
)
async def test_refusals_are_plain_answers(request_head: bytes, status: int) -> None:
    async with serving() as served:
        said = await served.say(request_head)
        assert said.startswith(b"HTTP/1.1 %d " % status) or said == b"reset"
        assert served.received == []


@pytest.mark.parametrize(
    ("first", "passes"),
    [(HELLO, True), (hello("b.test"), False), (hello(None), False), (b"GET / HTTP/1.0\r\n\r\n", False)],
)
async def test_tls_must_name_the_server_that_was_asked_for(first: bytes, passes: bool) -> None:
    async with serving() as served:
        said = await served.say(b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n", then=first)
        assert (said == ANSWER, served.received == [first]) == (passes, passes)
        assert (served.account.allowed, served.account.denied) == (int(passes), int(not passes))


async def test_what_a_client_sends_at_once_is_not_lost() -> None:
    async with serving() as served:
        await served.say(b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n" + HELLO)
        assert served.received == [HELLO]


async def test_a_tunnel_to_another_port_needs_no_tls() -> None:
    async with serving() as served:
        said = await served.say(b"CONNECT a.test:8443 HTTP/1.0\r\n\r\n", then=b"anything")
        assert (said, served.received) == (ANSWER, [b"anything"])


async def test_a_stranger_gets_nothing() -> None:
    async with serving() as served:
        served.accounts.leave("s")
        assert await served.say(b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n") in (b"", b"reset")
        assert served.received == []


async def test_a_sandbox_has_only_so_many_connections() -> None:
    async with serving() as served:
        idle = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(CONNECTIONS_OF_ONE)]
        await until(lambda: len(served.account.tasks) >= CONNECTIONS_OF_ONE)
        assert (await served.say(b"x")).startswith(b"HTTP/1.1 503 ")
        for _, writer in idle:
            writer.close()


async def test_connections_end_with_their_sandbox() -> None:
    async with serving() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"CONNECT a.test:8443 HTTP/1.0\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        served.accounts.leave("s")
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        writer.close()


async def test_an_answer_that_is_not_http_is_told_as_such() -> None:
    async with serving(b"SSH-2.0-x\r\n") as served:
        said = await served.say(b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 502 ")


# --- accounts ----------------------------------------------------------------------------------------------


@given(st.lists(st.text(max_size=1000), max_size=100))
def test_evidence_is_bounded_whatever_a_sandbox_does(denials: list[str]) -> None:
    account = Account("s", Network.RESTRICTED, "10.0.0.2")
    for one in denials:
        account.deny(one)
    evidence = account.evidence()
    kept = evidence["denials"]
    assert isinstance(kept, list)
    assert len(kept) == min(len(denials), KEPT_DENIALS)
    assert all(len(one) <= DENIAL_CHARACTERS for one in kept)
    assert evidence["denied"] == len(denials)


@given(st.lists(st.floats(0, 0.1), min_size=500, max_size=500))
def test_questions_are_rationed(pauses: list[float]) -> None:
    account, now, passed = Account("s", Network.DNS_ONLY, "10.0.0.2"), 1000.0, 0
    for pause in pauses:
        now += pause
        passed += account.may_ask(now)
    assert passed <= 100 + 50 * sum(pauses) + 1
    assert passed >= min(500, 100)


def test_an_address_belongs_to_the_sandbox_that_has_it_now() -> None:
    accounts = Accounts()
    old = accounts.enter("old", Network.RESTRICTED, "10.0.0.2")
    new = accounts.enter("new", Network.RESTRICTED, "10.0.0.2")
    assert accounts.at("10.0.0.2") is new
    accounts.leave("old")
    assert accounts.at("10.0.0.2") is new
    assert accounts.of("old") is None
    assert old is not new
    assert accounts.enter("new", Network.RESTRICTED, "10.0.0.2") is new
