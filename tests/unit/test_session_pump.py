"""What goes between somebody and a command in a session: each byte once and in order, over a line that breaks."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.cli import detach_keys, session_pump
from fumehood.cli.client import Api, ApiError
from fumehood.cli.detach_keys import DetachKeys, parsed
from fumehood.cli.exits import NoAnswerError, UsageError
from fumehood.cli.session_calls import Command, Session
from fumehood.cli.session_lease import Kept
from fumehood.cli.session_pump import Complaints, Printing, Resizes, Typed
from fumehood.cli.stream import Patience
from fumehood.cli.terminal import Size, Traces, without_questions
from tests.unit.session_server import Cut, SessionServer, session_server
from tests.waiting import wait_until

SECONDS = 20.0


@pytest.fixture
def server() -> Iterator[SessionServer]:
    with session_server() as made:
        yield made


@contextmanager
def command_of(server: SessionServer, command_id: str = "c-1") -> Iterator[Command]:
    with closing(Api(server.url, "key")) as api:
        yield Command(Session(api, "s-1"), command_id)


def impatient() -> Patience:
    return Patience(sleep=lambda _: None)


# --- the keys that leave -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "keys"),
    [("ctrl-p,ctrl-q", b"\x10\x11"), ("ctrl-],x", b"\x1dx"), ("CTRL-@", b"\x00"), ("", b""), ("a,b,a", b"aba")],
)
def test_detach_keys_are_written_as_people_say_them(text: str, keys: bytes) -> None:
    assert parsed(text) == keys


@pytest.mark.parametrize("text", ["ctrl-pp", "alt-x", "ctrl-p,", "ä", ",".join("a" * 17)])
def test_what_is_no_key_is_said(text: str) -> None:
    with pytest.raises(UsageError, match="--detach-keys"):
        parsed(text)


ALPHABET = st.sampled_from([b"\x10", b"\x11", b"a"])


@given(
    keys=st.lists(ALPHABET, max_size=4).map(b"".join),
    typed=st.lists(ALPHABET, max_size=30).map(b"".join),
    cuts=st.lists(st.integers(0, 30), max_size=8),
)
def test_the_keys_are_found_wherever_the_chunks_begin(keys: bytes, typed: bytes, cuts: list[int]) -> None:
    """What goes on is all that was typed before them, and nothing else."""
    looking, places = DetachKeys(keys), sorted({0, len(typed), *(min(cut, len(typed)) for cut in cuts)})
    passed, left = b"", False
    for begin, end in itertools.pairwise(places):
        some, left = looking.feed(typed[begin:end])
        passed += some
        if left:
            break
    found = typed.find(keys) if keys else -1
    assert left == (found >= 0)
    assert passed == (typed[:found] if left else typed[: len(typed) - len(looking.held)])
    assert keys.startswith(looking.held)
    assert len(looking.held) < max(1, len(keys))


def test_a_key_that_led_nowhere_goes_to_the_program() -> None:
    looking = DetachKeys(parsed(detach_keys.DEFAULT))
    assert looking.feed(b"ls\x10") == (b"ls", False)
    assert looking.let_go() == b"\x10"
    assert looking.feed(b"\x11") == (b"\x11", False)


# --- what a program did to the terminal --------------------------------------------------------------------


def test_what_a_program_changed_is_undone() -> None:
    traces = Traces()
    traces.take(b"\x1b[?1049h\x1b[?25l\x1b[?1000;1006h\x1b=text")
    assert traces.undo() == b"\x1b[?25h\x1b[?1000l\x1b[?1006l\x1b[?1049l\x1b>\x1b[0m"
    traces.take(b"\x1b[?1049l\x1b[?25h\x1b[?1006l\x1b[?1000l\x1b>")
    assert traces.undo() == b"\x1b[0m"


def test_a_program_that_changed_nothing_leaves_nothing_to_undo() -> None:
    traces = Traces()
    traces.take(b"plain\r\n")
    assert traces.undo() == b""


@given(
    orders=st.lists(
        st.sampled_from(
            [b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25l", b"\x1b[?25h", b"\x1b[1m", b"x", b"\x1bc", b"\x1b="]
        )
    ),
    cuts=st.lists(st.integers(0, 200), max_size=10),
)
def test_an_order_that_comes_in_pieces_is_one(orders: list[bytes], cuts: list[int]) -> None:
    whole, cut = Traces(), Traces()
    drawn = b"".join(orders)
    whole.take(drawn)
    places = sorted({0, len(drawn), *(min(one, len(drawn)) for one in cuts)})
    for begin, end in itertools.pairwise(places):
        cut.take(drawn[begin:end])
    assert cut.undo() == whole.undo()


def test_a_replay_asks_the_terminal_nothing() -> None:
    questions = [b"\x1b[c", b"\x1b[>0c", b"\x1b[6n", b"\x1b[?6n", b"\x1b[18t", b"\x1b[?2026$p", b"\x1b]11;?\x07"]
    questions += [b"\x1b]4;1;?\x1b\\", b"\x1bP+q544e\x1b\\", b"\x05", b"\x1b[?u"]
    kept = b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07\x1b[?1049h\x1b[2J\x1b[10;20H"
    assert without_questions(kept.join([b"", *questions, b""])) == kept * (len(questions) + 1)


# --- the lease ---------------------------------------------------------------------------------------------


def test_a_lease_is_kept_while_somebody_is_there(server: SessionServer) -> None:
    said: list[str] = []
    with command_of(server) as command, Kept(command.session, said.append, every=0.01):
        wait_until(lambda: len(server.asked) >= 3)
    assert server.asked[:3] == [("POST", "/v1/sandboxes/s-1:extend", b'{"lease_seconds":300}')] * 3
    assert said == []


def test_a_lease_that_cannot_be_kept_is_told_once(server: SessionServer) -> None:
    said: list[str] = []
    server.faults = lambda when, method, path: 403
    with command_of(server) as command:
        kept = Kept(command.session, said.append, every=0.01)
        with kept:
            wait_until(lambda: said)
    assert len(said) == len(server.asked) == 1


# --- output ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [0, 100])
def test_every_byte_comes_once_however_often_the_line_breaks(server: SessionServer, overlap: int) -> None:
    """Also where a server tells more than it was asked for."""
    played = server.add()
    chance = random.Random(7)
    wanted = {name: chance.randbytes(50_000) for name in ("stdout", "stderr")}
    for name, data in wanted.items():
        played.print(data, name)
    played.ends(exit_code=7)
    server.cut_every, server.overlap = 997, overlap
    with command_of(server) as command:
        printing = Printing(command.api, command.path, impatient())
        got = {"stdout": b"", "stderr": b""}
        for chunk in printing.chunks():
            assert not chunk.lost
            got[chunk.stream] += chunk.data
    assert got == wanted
    assert printing.ended is not None
    assert printing.ended["exit_code"] == 7


def test_a_server_that_is_away_for_a_while_is_waited_for(server: SessionServer) -> None:
    played = server.add()
    played.print(b"one")
    troubles = iter(["cut", 503, "cut", 503])

    def faults(when: str, method: str, path: str) -> int | None:
        trouble = next(troubles, None) if when == "before" else None
        if trouble == "cut":
            raise Cut
        return trouble if isinstance(trouble, int) else None

    server.faults = faults
    heard: list[str | None] = []
    with command_of(server) as command:
        printing = Printing(command.api, command.path, Patience(heard.append, sleep=lambda _: None))
        chunks = printing.chunks()
        assert next(chunks).data == b"one"
        played.print(b"two")
        assert next(chunks).data == b"two"
    assert len([why for why in heard if why]) == 4


def test_what_nobody_kept_is_counted(server: SessionServer) -> None:
    played = server.add()
    played.print(b"a" * 100)
    played.kept_from["stdout"] = 90
    played.ends()
    with command_of(server) as command:
        chunks = list(Printing(command.api, command.path, impatient()).chunks())
    assert [(chunk.lost, chunk.data) for chunk in chunks] == [(90, b"a" * 10)]


def test_reading_stops_where_it_is_told(server: SessionServer) -> None:
    """`logs` without -f: what is there, of a command that goes on."""
    server.add().print(b"there")
    with command_of(server) as command:
        printing = Printing(command.api, command.path, impatient(), until={"stdout": 5, "stderr": 0})
        assert [chunk.data for chunk in printing.chunks()] == [b"there"]
        printing = Printing(command.api, command.path, impatient(), until={"stdout": 0, "stderr": 0})
        assert list(printing.chunks()) == []


def test_a_command_that_is_gone_is_an_error_and_not_an_end(server: SessionServer) -> None:
    with command_of(server, "c-9") as command, pytest.raises(ApiError):
        list(Printing(command.api, command.path, impatient()).chunks())


@pytest.mark.parametrize("after", [0.0, 1.9, 2.0, 60.0])
def test_a_short_break_is_not_worth_a_word(after: float) -> None:
    said: list[str] = []
    now = [0.0]
    complaints = Complaints(said.append, clock=lambda: now[0])
    complaints("gone")
    now[0] = after
    complaints("gone")
    complaints("gone")
    complaints(None)
    complaints(None)
    long = after >= session_pump.COMPLAIN_SECONDS
    assert said == (["gone; trying again", "connected again"] if long else [])


# --- input -------------------------------------------------------------------------------------------------


def typing(typed: Typed) -> threading.Thread:
    thread = threading.Thread(target=typed.run, daemon=True)
    thread.start()
    return thread


def test_keys_arrive_once_and_in_order_whatever_gets_lost(server: SessionServer) -> None:
    """Requests that never came, answers that never came, and a server that asks to come later."""
    played = server.add()
    chance = random.Random(3)

    def faults(when: str, method: str, path: str) -> int | None:
        if path.endswith("/stdin") and chance.random() < 0.3:
            if chance.random() < 0.5:
                raise Cut
            return 503 if when == "before" else None
        return None

    server.faults = faults
    with command_of(server) as command:
        typed = Typed(command.feed, impatient())
        thread = typing(typed)
        words = [f"line {n}\n".encode() for n in range(300)]
        for word in words:
            assert typed.put(word)
        typed.end()
        thread.join(SECONDS)
    assert typed.refused is None
    assert bytes(played.stdin) == b"".join(words)
    assert played.eof


def test_keys_that_come_while_one_is_under_way_go_together() -> None:
    under_way, go_on = threading.Event(), threading.Event()
    sent: list[tuple[int, bytes]] = []

    def send(offset: int, data: bytes, last: bool) -> int:
        sent.append((offset, data))
        under_way.set()
        assert go_on.wait(SECONDS)
        return offset + len(data)

    typed = Typed(send, impatient())
    typing(typed)
    typed.put(b"a")
    assert under_way.wait(SECONDS)
    for key in (b"b", b"c", b"d"):
        typed.put(key)
    go_on.set()
    assert typed.went_out(SECONDS)
    assert sent == [(0, b"a"), (1, b"bcd")]


def test_what_was_taken_in_part_goes_on_from_there() -> None:
    got = bytearray()

    def send(offset: int, data: bytes, last: bool) -> int:
        got.extend(data[len(got) - offset :][:3])
        return len(got)

    typed = Typed(send, impatient())
    thread = typing(typed)
    typed.put(b"0123456789")
    typed.end()
    thread.join(SECONDS)
    assert bytes(got) == b"0123456789"
    assert not thread.is_alive()


def test_input_waits_for_room_and_stops_when_nobody_takes_it() -> None:
    asked, go_on = threading.Event(), threading.Event()

    def send(offset: int, data: bytes, last: bool) -> int:
        asked.set()
        assert go_on.wait(SECONDS)
        raise ApiError("it has ended", status=409, problem="conflict")

    typed = Typed(send, impatient())
    typing(typed)
    assert typed.put(b"x" * session_pump.MOST_WAITING)
    assert asked.wait(SECONDS)
    more: list[bool] = []
    waiting = threading.Thread(target=lambda: more.append(typed.put(b"y")))
    waiting.start()
    go_on.set()
    waiting.join(SECONDS)
    assert more == [False]
    assert typed.refused is not None


def test_a_server_that_stays_away_ends_the_typing() -> None:
    def send(offset: int, data: bytes, last: bool) -> int:
        raise NoAnswerError("away")

    clock = iter(range(0, 100_000, 100))
    typed = Typed(send, Patience(sleep=lambda _: None, clock=lambda: float(next(clock))))
    thread = typing(typed)
    typed.put(b"x")
    thread.join(SECONDS)
    assert typed.put(b"y") is False


# --- sizes -------------------------------------------------------------------------------------------------


def test_of_many_sizes_the_last_one_arrives(server: SessionServer) -> None:
    played = server.add()
    lost = iter([True, True])

    def faults(when: str, method: str, path: str) -> int | None:
        if path.endswith(":resize") and when == "before" and next(lost, False):
            raise Cut
        return None

    server.faults = faults
    with command_of(server) as command:
        resizes = Resizes(command.resize, impatient())
        for columns in range(1, 200):
            resizes.want(Size(24, columns))
        thread = threading.Thread(target=resizes.run, daemon=True)
        thread.start()
        played.until(lambda one: bool(one.sizes) and one.sizes[-1] == (24, 199))
        resizes.stop()
        thread.join(SECONDS)
        assert len(played.sizes) < 100


def test_who_comes_later_asks_for_the_rest_alone(server: SessionServer) -> None:
    played = server.add()
    played.print(b"12345")
    played.ends()
    with command_of(server) as command:
        printing = Printing(command.api, command.path, impatient(), {"stdout": 3, "stderr": 0})
        assert [chunk.data for chunk in printing.chunks()] == [b"45"]
    assert server.asked[-1][1].endswith("/commands/c-1/output?stdout=3&stderr=0")
