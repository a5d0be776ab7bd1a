"""What a command prints, told by places; and its beginning, put together for one answer."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.control.callers import ADMIN
from fumehood.control.console import running
from fumehood.control.console.output_streams import OutputStreams, unseen
from fumehood.control.console.record import Record
from fumehood.control.http.command_views import command_json, one_line
from fumehood.errors import CommandFailedError, InvalidRequestError
from fumehood.wire.command_api import CommandStatus, CommandView, OutputPosition, OutputStream
from fumehood.wire.console import sessions as wire

PRINTED = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(min_size=1, max_size=8)), max_size=12)
NAMES = {1: OutputStream.STDOUT, 2: OutputStream.STDERR}


def whole(printed: list[tuple[int, bytes]]) -> dict[int, bytes]:
    return {stream: b"".join(data for one, data in printed if one == stream) for stream in (1, 2)}


def answer(printed: list[tuple[int, bytes]], asked: wire.AskOutput, forgotten: int = 0) -> tuple[wire.Output, bytes]:
    """As a worker gives it: what lies behind the places, in the order in which it was printed."""
    seen, at, pieces, data = {1: max(asked.stdout, forgotten), 2: asked.stderr}, {1: 0, 2: 0}, [], b""
    for stream, content in printed:
        begin = max(at[stream], seen[stream])
        some = whole(printed)[stream][begin : at[stream] + len(content)][: asked.limit - len(data)]
        if begin < at[stream] + len(content) and some:
            pieces.append(wire.OutputPiece(stream=stream, offset=begin, length=len(some)))
            data += some
        at[stream] += len(content)
    return wire.Output(pieces=tuple(pieces)), data


@given(printed=PRINTED, limit=st.integers(1, 20), overlap=st.integers(0, 5))
def test_nothing_is_told_twice_or_left_out(printed: list[tuple[int, bytes]], limit: int, overlap: int) -> None:
    """Also where a worker says more than it was asked for."""
    position, told = OutputPosition(), {1: b"", 2: b""}
    while True:
        asked = wire.AskOutput(
            command_id="c",
            stdout=max(0, position.stdout - overlap),
            stderr=max(0, position.stderr - overlap),
            limit=limit + 2 * overlap,
        )
        output, data = answer(printed, asked)
        before = position
        for one, behind in unseen(before, output, data):
            position = behind
            number = 1 if one.stream is OutputStream.STDOUT else 2
            assert one.offset == len(told[number])
            told[number] += one.data
            said = json.loads(one.encode())
            assert (said["stream"], said["offset"]) == (one.stream.value, one.offset)
            assert base64.b64decode(said["data"]) == one.data
        assert position == OutputPosition(len(told[1]), len(told[2]))
        if position == before:
            break
    assert told == whole(printed)


def test_output_that_is_not_as_long_as_it_says_is_none() -> None:
    lying = wire.Output(pieces=(wire.OutputPiece(stream=1, offset=0, length=3),))
    with pytest.raises(CommandFailedError):
        list(unseen(OutputPosition(), lying, b"ab"))


@given(stdout=st.integers(0, 10**18 - 1), stderr=st.integers(0, 10**18 - 1), ended=st.booleans())
def test_a_position_is_read_as_it_is_written(stdout: int, stderr: int, ended: bool) -> None:
    position = OutputPosition(stdout, stderr, ended)
    assert OutputPosition.parse(str(position)) == position


@given(text=st.text(max_size=12) | st.from_regex(r"[0-9]{0,2}\.[0-9]{0,2}\.?(end)?x?", fullmatch=True))
def test_what_is_no_position_is_refused(text: str) -> None:
    try:
        found = OutputPosition.parse(text)
    except InvalidRequestError:
        return
    numbers = text.removesuffix(".end").split(".")
    assert [found.stdout, found.stderr] == [int(number) for number in numbers]


# --- streams -----------------------------------------------------------------------------------------------


class Quick:
    """A command that prints and ends between the first question for its output and the first for its end."""

    def __init__(self, printed: list[tuple[int, bytes]], limit: int) -> None:
        self.printed, self.limit, self.over = printed, limit, False

    async def output(self, position: OutputPosition, _: int) -> tuple[wire.Output, bytes]:
        asked = wire.AskOutput(command_id="c", stdout=position.stdout, stderr=position.stderr, limit=self.limit)
        return answer(self.printed if self.over else [], asked)

    async def end(self, _: object) -> bytes | None:
        self.over = True
        return b"{}"


@given(printed=PRINTED, limit=st.integers(1, 12))
async def test_what_a_quick_command_printed_is_told_before_its_end(
    printed: list[tuple[int, bytes]], limit: int
) -> None:
    async def yes() -> bool:
        return True

    telling = await OutputStreams(lambda: False).open("t", Quick(printed, limit), OutputPosition(), yes)
    messages = [message async for message in telling.messages() if message.event is not None]
    await telling.close()
    assert [message.event for message in messages].index("end") == len(messages) - 1
    told = {"stdout": b"", "stderr": b""}
    for message in messages[:-1]:
        said = json.loads(message.data)
        told[said["stream"]] += base64.b64decode(said["data"])
    assert {1: told["stdout"], 2: told["stderr"]} == whole(printed)
    assert messages[-1].id == f"{len(told['stdout'])}.{len(told['stderr'])}.end"


# --- beginnings --------------------------------------------------------------------------------------------


class Printer:
    """Of a port only what is asked here."""

    def __init__(self, printed: list[tuple[int, bytes]], limit: int, forgotten: int) -> None:
        self.printed, self.limit, self.forgotten = printed, limit, forgotten

    async def output(self, _: object, asked: wire.AskOutput) -> tuple[wire.Output, bytes]:
        return answer(self.printed, asked.model_copy(update={"limit": self.limit}), self.forgotten)


@given(printed=PRINTED, most=st.integers(1, 30), limit=st.integers(1, 12), forgotten=st.sampled_from([0, 0, 0, 3]))
async def test_the_beginning_of_each_stream_is_its_beginning(
    printed: list[tuple[int, bytes]], most: int, limit: int, forgotten: int
) -> None:
    streams = whole(printed)
    view = wire.CommandView(
        command_id="c",
        session_id="s",
        status=wire.CommandStatus.EXITED,
        stdout_bytes=len(streams[1]),
        stderr_bytes=len(streams[2]),
    )
    port: Any = Printer(printed, limit, forgotten)
    found = await running.printed(port, ADMIN, view, most)
    for text, data, lost in ((found.stdout, streams[1], forgotten), (found.stderr, streams[2], 0)):
        kept = b"" if lost and data else data[:most]
        assert text.truncated is (len(kept) < len(data))
        expected = kept.decode(errors="replace")
        assert text.text == expected or (text.truncated and expected.startswith(text.text))


# --- commands as they are shown ----------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(value=VALUES, indent=st.sampled_from([None, 1]), ascii_only=st.booleans())
def test_a_result_is_shown_as_it_was_written_and_fits_one_line(
    value: Any, indent: int | None, ascii_only: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    record = Record(
        command_id="c", tenant="t", by="b", capability="echo", created_ms=1, timeout_ms=1,
        status=CommandStatus.SUCCEEDED,
        ended_ms=2, result_json=text,
    )  # fmt: skip
    shown = command_json(record)
    assert shown.endswith(f',"result":{text}}}')
    line = one_line(shown)
    assert line.isascii()
    assert b"\n" not in line
    assert b"\r" not in line
    assert json.loads(line) == json.loads(shown)
    view = CommandView.model_validate_json(shown)
    assert view.model_dump_json(exclude={"result"}) == CommandView.model_validate_json(line).model_dump_json(
        exclude={"result"}
    )
