"""Records of a sandbox's output, told and put together: held against the bytes that it printed."""

from __future__ import annotations

import json
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from fumehood.broker.ports import LogKind, LogPlace, LogRecord
from fumehood.control.log_telling import Assembly, Telling, as_records
from fumehood.sandbox.head_tail import Kept
from fumehood.sandbox.kept_logs import KeptLogs
from fumehood.wire.event_api import Message
from fumehood.wire.log_api import LogPosition
from fumehood.wire.logs import LogCut, LogStream
from tests.unit.log_world import ERR, OUT, START, Client, Pieces, told, whole

DATA = st.one_of(st.binary(min_size=1, max_size=12), st.text("aé€😀\n", min_size=1, max_size=5).map(str.encode))
PIECES = st.lists(st.tuples(st.sampled_from([OUT, ERR]), DATA), max_size=20)


def tell(records: list[LogRecord], after: str | None = None) -> list[Message]:
    telling = Telling(LogPosition(1) if after is None else LogPosition.parse(after), is_resumed=after is not None)
    return [message for record in records for message in telling.take(record)]


def text(pieces: Pieces, kind: LogKind) -> str:
    return whole(pieces, kind).decode("utf-8", "replace")


@given(PIECES)
def test_what_is_told_is_what_was_printed(pieces: Pieces) -> None:
    client = Client()
    for message in tell(told(pieces)):
        client.take(message)
    assert client.text == {"stdout": text(pieces, OUT), "stderr": text(pieces, ERR)}
    assert client.at == {"stdout": len(whole(pieces, OUT)), "stderr": len(whole(pieces, ERR))}
    assert (client.starts, client.cuts) == ([1], [])


@given(PIECES, st.randoms(use_true_random=False))
def test_whoever_is_cut_off_anywhere_and_comes_back_misses_and_repeats_nothing(
    pieces: Pieces, chance: random.Random
) -> None:
    """Also where the records are cut otherwise, or come twice, or come from what was kept."""
    client = Client()
    kept = KeptLogs(*(Kept(whole(pieces, kind), b"", len(whole(pieces, kind))) for kind in (OUT, ERR)))
    other = [piece for kind in (OUT, ERR) for piece in _cut_anew(whole(pieces, kind), kind, chance)]
    sources = [told(pieces), list(as_records(kept)), told(other), [r for r in told(pieces) for _ in range(2)]]
    for _ in range(50):
        messages = tell(chance.choice(sources), client.last_id)
        for message in messages[: chance.randint(0, 3)]:
            client.take(message)
    for message in tell(sources[1], client.last_id):
        client.take(message)
    assert client.text == {"stdout": text(pieces, OUT), "stderr": text(pieces, ERR)}
    assert (client.starts, client.cuts) == ([1], [])


def _cut_anew(data: bytes, kind: LogKind, chance: random.Random) -> list[tuple[LogKind, bytes]]:
    places = sorted(chance.sample(range(len(data) + 1), min(len(data), 3)))
    return [(kind, data[a:b]) for a, b in zip([0, *places], [*places, len(data)], strict=True)]


@given(PIECES, st.sets(st.integers(0, 20)))
def test_records_that_are_gone_are_told_as_cuts(pieces: Pieces, gone: set[int]) -> None:
    records = [record for number, record in enumerate(told(pieces)) if number not in gone or record.kind is LogKind.END]
    client = Client()
    for message in tell(records):
        client.take(message)
    for kind, stream in ((OUT, "stdout"), (ERR, "stderr")):
        missing = sum(to - at for name, at, to in client.cuts if name == stream and to is not None)
        there = sum(len(record.data) for record in records if record.kind is kind)
        assert missing + there == len(whole(pieces, kind))
        assert client.at[stream] == len(whole(pieces, kind))


def test_a_stream_that_is_cut_is_told_so_and_goes_on_with_its_tail() -> None:
    cut = LogRecord(LogKind.CUT, LogPlace(3, 0), LogCut(stream=LogStream.STDOUT, kept=3).encode())
    records = [START, LogRecord(OUT, LogPlace(), b"abc"), cut]
    after = [
        LogRecord(ERR, LogPlace(3, 0), b"e"),
        LogRecord(OUT, LogPlace(90, 1), b"z"),
        LogRecord(LogKind.END, LogPlace(91, 1)),
    ]
    said = [(message.event, message.id, json.loads(message.data)) for message in tell([*records, *after])]
    assert said[2:] == [
        ("cut", "1.3.0", {"stream": "stdout", "offset": 3, "resumes_at": None}),
        ("stderr", "1.3.1", {"offset": 0, "text": "e"}),
        ("cut", "1.90.1", {"stream": "stdout", "offset": 3, "resumes_at": 90}),
        ("stdout", "1.91.1", {"offset": 90, "text": "z"}),
    ]
    assert [message.event for message in tell([*records, *after], "1.3.0")] == ["cut", "stderr", "cut", "stdout"]
    assert [message.event for message in tell([*records, *after], "1.90.1")] == ["stdout"]


@given(PIECES, st.sets(st.integers(0, 20)))
@settings(max_examples=50)
def test_all_at_once_is_the_same_as_piece_by_piece(pieces: Pieces, gone: set[int]) -> None:
    records = [record for number, record in enumerate(told(pieces)) if number not in gone or record.kind is LogKind.END]
    made = Assembly()
    for record in records:
        made.take(record)
    assert made.ended
    client = Client()
    for message in tell(records):
        client.take(message)
    for stream, kept in (("stdout", made.kept.stdout), ("stderr", made.kept.stderr)):
        assert kept.total == client.at[stream]
        assert (kept.left_out > 0) == any(name == stream for name, _, _ in client.cuts)
        if not kept.left_out:
            assert kept.text() == client.text[stream]


def test_what_is_held_back_is_told_when_its_rest_cannot_come() -> None:
    euro = "€".encode()
    broken = [START, LogRecord(OUT, LogPlace(), euro[:2])]
    assert [message.event for message in tell(broken)] == ["start"]
    ended = tell([*broken, LogRecord(LogKind.END, LogPlace(2))])
    assert [(m.id, json.loads(m.data)) for m in ended[1:]] == [("1.2.0", {"offset": 0, "text": "�"})]
    jumped = tell([*broken, LogRecord(OUT, LogPlace(5), b"x")])
    assert [(m.event, m.id) for m in jumped[1:]] == [("stdout", "1.2.0"), ("cut", "1.5.0"), ("stdout", "1.6.0")]


def test_lines_of_an_event_are_ascii() -> None:
    (_, message) = tell([START, LogRecord(OUT, LogPlace(), "a\u2028b\r\n😀".encode())])
    assert message.encode().isascii()
    assert message.encode().count(b"\n") == 4
    assert json.loads(message.data)["text"] == "a\u2028b\r\n😀"
