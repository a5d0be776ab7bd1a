"""Following what a run prints, and reading what is kept of it: in memory."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest

from fumehood.broker.memory import Faults, MemoryBroker, MemoryServer, Verdict
from fumehood.broker.names import NODES_TENANT
from fumehood.broker.ports import LogEntry, LogKind, LogName, LogPlace, LogRecord
from fumehood.control import log_streams
from fumehood.control.run_logs import MOST_LINES
from fumehood.errors import BrokerUnavailableError, InvalidRequestError, NotFoundError
from fumehood.sandbox.head_tail import Kept
from fumehood.sandbox.kept_logs import KeptLogs
from fumehood.wire.log_api import EVENTS, LogPosition
from fumehood.wire.logs import LogCut, LogEnd, LogStream
from fumehood.wire.sandbox import RUN_STEP, Cut, RunReason
from tests.unit.event_world import caller
from tests.unit.log_world import ERR, OUT, START, Client, LogWorld, told, whole
from tests.waiting import until

PIECES = [(OUT, b"one\n"), (ERR, b"\xff\n"), (OUT, "zwei €".encode()), (OUT, b"\ntail")]
TEXT = {"stdout": "one\nzwei €\ntail", "stderr": "�\n"}
MIB = 1024 * 1024


@pytest.fixture
def world() -> LogWorld:
    return LogWorld(MemoryBroker())


def server_of(world: LogWorld) -> MemoryServer:
    assert isinstance(world.broker, MemoryBroker)
    return world.broker.server


async def client_of(world: LogWorld, after: str | None = None) -> Client:
    client = Client()
    for message in await world.follow(after):
        EVENTS[message.event or ""].model_validate_json(message.data, strict=False)
        client.take(message)
    return client


async def test_what_a_run_prints_is_told_as_it_appears(world: LogWorld) -> None:
    await world.begin()
    async with world.following() as reader:
        client, records = Client(), told(PIECES)
        for count, record in enumerate(records[:-1], 1):
            await world.print(record)
            message = await reader.next()
            assert message is not None
            client.take(message)
            assert len([*client.starts, *client.text["stdout"]]) >= count - 1
        await world.print(records[-1])
        await world.end(PIECES)
        for message in await reader.rest():
            client.take(message)
    assert client.text == TEXT
    assert client.end == {"attempt": 1, "stdout": 17, "stderr": 2}
    assert (await world.follow())[0].data == (b'{"attempt":1,"started_at":"2026-01-02T03:04:05.000Z","node":"n1"}'), (
        "and again from its beginning"
    )


async def test_output_is_told_without_a_notification(monkeypatch: pytest.MonkeyPatch) -> None:
    """By regular reads of the output, which leave the journal alone while nothing was stored there."""
    assert log_streams.OutputStream.longest_rest <= 1.0
    rest, rests = log_streams.OutputStream._rest, []

    async def watched(stream: log_streams.OutputStream, end: float) -> bool:
        rests.append(end)
        return await rest(stream, end)

    monkeypatch.setattr(log_streams.OutputStream, "_rest", watched)
    monkeypatch.setattr(log_streams.OutputStream, "longest_rest", 0.01)
    world = LogWorld(MemoryBroker(), heartbeat_seconds=3600.0)
    journal, looks = type(world.broker.journal), []
    last = journal.last

    async def counted(self: Any, run_id: str) -> Any:
        looks.append(run_id)
        return await last(self, run_id)

    monkeypatch.setattr(journal, "last", counted)
    await world.begin()
    await world.print(START)
    async with world.following() as reader:
        assert [message.event for message in await reader.take(1)] == ["start"]
        looks.clear()
        assert server_of(world).logs.followers.pop((world.run_id, RUN_STEP))
        coming = asyncio.create_task(reader.take(1))
        await until(lambda: len(rests) > 3)
        await world.print(LogRecord(OUT, LogPlace(), b"one\n"))
        assert [message.event for message in await coming] == ["stdout"]
        assert looks == []


async def test_one_that_nobody_has_looked_at_is_waited_for(world: LogWorld) -> None:
    await world.broker.mailboxes.send(world.run_id, "start", b'{"type": "start", "definition": {}}')
    async with world.following() as reader:
        await world.begin()
        await world.print(*told(PIECES))
        await world.end(PIECES)
        assert [message.event for message in await reader.rest()] == [
            "start",
            "stdout",
            "stderr",
            "stdout",
            "stdout",
            "end",
        ]


async def test_attempts_come_one_after_the_other(world: LogWorld) -> None:
    """The first one's node was lost, and its log has no end."""
    await world.begin()
    await world.print(START, LogRecord(OUT, LogPlace(), b"first\xe2"))
    async with world.following() as reader:
        client = Client()
        for message in await reader.take(2):
            client.take(message)
        await world.retry(1)
        await world.retry(2)
        await world.print(*told([(OUT, b"third")]), attempt=3)
        await world.end([(OUT, b"third")], attempt=3)
        for message in await reader.rest():
            client.take(message)
    assert client.text["stdout"] == "first�third"
    assert (client.starts, client.end) == ([1, 3], {"attempt": 3, "stdout": 5, "stderr": 0})
    assert (await client_of(world)).starts == [1, 3]


@pytest.mark.parametrize("seek_bytes", [0, log_streams.SEEK_BYTES])
@pytest.mark.parametrize("source", ["stream", "blob", "both"])
async def test_a_client_that_is_cut_off_fifty_times_sees_every_byte_once(
    source: str, seek_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_streams, "SEEK_BYTES", seek_bytes)
    server, chance = MemoryServer(), random.Random(5)
    pieces = [(chance.choice((OUT, ERR)), _noise(chance)) for _ in range(60)]
    world = LogWorld(MemoryBroker(server))
    await world.begin()
    if source != "blob":
        await world.print(*told(pieces))
    if source != "stream":
        await world.end(pieces)
    client = Client()
    for number in range(50):
        if source == "both" and number == 25:
            server.logs.drop(LogName(world.run_id, RUN_STEP, 1), 10**9)
        other = LogWorld(MemoryBroker(server))
        async with other.following(client.last_id) as reader:
            if chance.random() < 0.4:
                message = await reader.next()
                assert message is not None
                client.take(message)
    if source == "stream":
        await world.end(pieces)
    if not await world.is_all_seen(client.last_id or "0.0.0"):
        for message in await world.follow(client.last_id):
            client.take(message)
    assert client.text == {
        "stdout": whole(pieces, OUT).decode("utf-8", "replace"),
        "stderr": whole(pieces, ERR).decode("utf-8", "replace"),
    }
    assert (client.starts, client.cuts) == ([1], [])
    assert await world.is_all_seen(client.last_id or "")


def _noise(chance: random.Random) -> bytes:
    """Some 25 KiB: all of it together is kept whole."""
    text = "".join(chance.choices("ab€😀é\n", k=chance.randint(1, 20_000))).encode()
    return text[chance.randint(0, 2) :] + chance.randbytes(chance.randint(0, 3)) or b"x"


async def test_whoever_comes_back_far_into_a_log_does_not_read_all_of_it(
    world: LogWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = [(kind, b"x" * 8192) for kind in (OUT, ERR) for _ in range(500)]
    await world.begin()
    await world.print(*told(pieces))
    await world.end(pieces)
    read, sizes = world.broker.logs.read, []

    async def counted(name: LogName, *, after: int = 0, limit: int = 256) -> list[LogEntry]:
        found = await read(name, after=after, limit=limit)
        sizes.append(sum(len(entry.record.data) for entry in found))
        return found

    monkeypatch.setattr(world.broker.logs, "read", counted)
    client = await client_of_at(world, f"1.{500 * 8192}.{450 * 8192 + 1}")
    assert client.text == {"stdout": "", "stderr": "x" * (50 * 8192 - 1)}
    assert sum(sizes) < MIB, "of eight"


async def test_records_that_are_gone_are_told_as_a_cut_while_it_runs(world: LogWorld) -> None:
    await world.begin()
    await world.print(*told(PIECES)[:-1])
    entries = await world.broker.logs.read(LogName(world.run_id, RUN_STEP, 1))
    server_of(world).logs.drop(LogName(world.run_id, RUN_STEP, 1), entries[2].seq)
    async with world.following() as reader:
        said = [(message.event, message.id) for message in await reader.take(4)]
    assert said == [("start", "1.0.0"), ("cut", "1.4.0"), ("stdout", "1.12.0"), ("stdout", "1.17.0")]


async def test_what_was_kept_is_told_where_the_beginning_is_gone(world: LogWorld) -> None:
    await world.begin()
    await world.print(*told(PIECES))
    entries = await world.broker.logs.read(LogName(world.run_id, RUN_STEP, 1))
    await world.end(PIECES, fails=True)
    server_of(world).logs.drop(LogName(world.run_id, RUN_STEP, 1), entries[2].seq)
    client = await client_of(world)
    assert (client.text, client.cuts) == (TEXT, [])
    assert (await client_of_at(world, "1.4.0")).text["stdout"] == "zwei €\ntail"


async def client_of_at(world: LogWorld, after: str) -> Client:
    client = Client()
    attempt, client.at["stdout"], client.at["stderr"] = (int(part) for part in after.split("."))
    client.starts.append(attempt)
    for message in await world.follow(after):
        client.take(message)
    return client


async def test_a_log_whose_end_is_gone_is_ended_by_what_was_kept(world: LogWorld) -> None:
    """Its node could not write to the stream any more; its report came through."""
    await world.begin()
    await world.print(*told(PIECES)[:2])
    async with world.following() as reader:
        await reader.take(2)
        await world.end(PIECES)
        client = Client()
        client.starts, client.at["stdout"] = [1], 4
        for message in await reader.rest():
            client.take(message)
    assert client.text == {"stdout": TEXT["stdout"][4:], "stderr": TEXT["stderr"]}
    assert client.end is not None


async def test_a_position_between_what_was_kept_goes_on_with_the_tail(world: LogWorld) -> None:
    pieces = [(OUT, b"x" * MIB), (OUT, b"y" * MIB)]
    await world.begin()
    await world.end(pieces)
    client = await client_of_at(world, f"1.{MIB - 1}.0")
    assert client.cuts == [("stdout", MIB - 1, 2 * MIB - MIB // 2)]
    assert client.text["stdout"] == "y" * (MIB // 2)


async def test_a_run_that_was_stopped_is_waited_for_a_while(world: LogWorld) -> None:
    """What its sandbox prints while it is being stopped comes after the engine's word."""
    await world.begin()
    await world.print(START)
    async with world.following() as reader:
        await reader.take(1)
        await world.cancel()
        await world.print(LogRecord(OUT, LogPlace(), b"bye"))
        assert (message := await reader.next()) is not None
        assert json.loads(message.data)["text"] == "bye"
        await world.print(LogRecord(LogKind.END, LogPlace(3)))
        assert [message.event for message in await reader.rest()] == ["end"]
    assert await world.is_all_seen("1.3.0")
    assert not await world.is_all_seen("1.2.0")


async def test_but_not_for_ever(world: LogWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_streams, "LINGER_SECONDS", 0.2)
    await world.begin()
    await world.print(START)
    await world.cancel()
    assert [message.event for message in await world.follow()] == ["start", "cut", "cut", "end"]


async def test_a_lost_node_is_not_waited_for(world: LogWorld) -> None:
    await world.begin()
    await world.print(START, LogRecord(OUT, LogPlace(), b"x"))
    await world.lose()
    async with asyncio.timeout(60):
        assert [message.event for message in await world.follow()] == ["start", "stdout", "cut", "cut", "end"]


@pytest.mark.parametrize("printed", [b"x", b""])
async def test_what_a_lost_node_printed_is_not_called_whole(world: LogWorld, printed: bytes) -> None:
    """Nobody heard the end of it: what is shown says so, and so does what is told, before its end."""
    await world.begin()
    await world.print(START, *([LogRecord(OUT, LogPlace(), printed)] if printed else []))
    assert (await world.shown()).truncated == Cut(), "it goes on"
    await world.lose()
    shown = await world.shown()
    assert (shown.stdout, shown.truncated) == (printed.decode(), Cut(stdout=True, stderr=True))
    client = await client_of(world)
    assert client.cuts == [("stdout", len(printed), None), ("stderr", 0, None)]
    assert client.end == {"attempt": 1, "stdout": len(printed), "stderr": 0}


@pytest.mark.parametrize("stored", [True, False])
async def test_a_report_that_does_not_know_the_end_of_the_output_calls_nothing_whole(
    world: LogWorld, stored: bool
) -> None:
    await world.begin()
    await world.print(*told(PIECES))
    await world.end(PIECES, stored=stored, fails=True, reason=RunReason.NODE_LOST, streams={})
    assert (await world.shown()).truncated == Cut(stdout=True, stderr=True)
    assert [stream for stream, _, _ in (await client_of(world)).cuts] == ["stdout", "stderr"]


async def test_what_is_whole_is_called_so(world: LogWorld) -> None:
    await world.begin()
    await world.print(*told(PIECES))
    await world.end(PIECES)
    assert (await world.shown()).truncated == Cut()
    assert (await client_of(world)).cuts == []


async def test_a_run_that_printed_nothing_ends(world: LogWorld) -> None:
    await world.begin()
    await world.lose()
    assert [message.event for message in await world.follow()] == ["end"]


async def test_ids_that_are_none_are_refused(world: LogWorld) -> None:
    await world.begin()
    for text in ("", "1", "1.2", "1.2.3.4", "1.-2.3", "a.b.c", "1.2.3\n", "1." + "9" * 17 + ".0"):
        with pytest.raises(InvalidRequestError):
            LogPosition.parse(text)
    with pytest.raises(NotFoundError, match="ids belong to one run"):
        await world.events.of_logs(world.run_id, caller(), LogPosition(2))
    with pytest.raises(NotFoundError):
        await world.events.of_logs(world.run_id, caller("another"), None)
    assert len(world.events) == 0


async def test_nothing_is_left_when_a_reader_goes(world: LogWorld) -> None:
    await world.begin()
    await world.print(START)
    async with world.following() as reader:
        await reader.next()
        assert server_of(world).logs.followers
    assert not world.events.is_beating
    assert (len(world.events), server_of(world).logs.followers) == (0, {})


class NoLogs(Faults):
    """The only machine that has them is away."""

    async def call(self, operation: str, subject: str) -> Verdict:
        return Verdict.LOST if operation in ("logs.read", "logs.last", "logs.attempt") else Verdict.OK


async def test_what_was_kept_is_told_and_shown_while_the_stream_is_away(world: LogWorld) -> None:
    await world.begin()
    await world.print(*told(PIECES))
    without = LogWorld(MemoryBroker(server_of(world), faults=NoLogs()))
    with pytest.raises(BrokerUnavailableError):
        await without.shown()
    await world.end(PIECES)
    assert (await client_of(without)).text == TEXT
    assert (await without.shown()).stdout == TEXT["stdout"]


# --- all at once -------------------------------------------------------------------------------------------


async def test_what_is_shown_is_the_same_from_either_source(world: LogWorld) -> None:
    await world.begin()
    assert ((await world.shown()).stdout, (await world.shown()).stderr) == ("", "")
    await world.print(*told(PIECES)[:-1])
    live = await world.shown()
    assert {"stdout": live.stdout, "stderr": live.stderr} == TEXT
    assert live.truncated == Cut()
    await world.end(PIECES)
    assert await world.shown() == live
    server_of(world).logs.drop(LogName(world.run_id, RUN_STEP, 1), 10**9)
    assert await world.shown() == live


async def test_a_character_that_is_not_whole_yet_is_not_shown(world: LogWorld) -> None:
    await world.begin()
    await world.print(START, LogRecord(OUT, LogPlace(), "a€".encode()[:-1]))
    assert (await world.shown()).stdout == "a"
    await world.print(LogRecord(LogKind.END, LogPlace(3)))
    assert (await world.shown()).stdout == "a�"


@pytest.mark.parametrize("stored", [True, False])
async def test_much_output_is_shown_with_its_middle_left_out(world: LogWorld, stored: bool) -> None:
    """As the log tells it that a node wrote: cut, and then its tail."""
    await world.begin()
    pieces = [(OUT, b"h" * MIB), (OUT, b"m" * MIB), (OUT, b"t" * MIB)]
    half, piece = MIB // 2, 64 * 1024
    cut = LogCut(stream=LogStream.STDOUT, kept=MIB).encode()
    await world.print(START, *(LogRecord(OUT, LogPlace(at), b"h" * piece) for at in range(0, MIB, piece)))
    await world.print(LogRecord(LogKind.CUT, LogPlace(MIB), cut))
    assert await world.shown() == await world.shown()
    assert not (await world.shown()).truncated.stdout, "nothing is missing of what is known"
    tail = [LogRecord(OUT, LogPlace(at), b"t" * piece) for at in range(3 * MIB - half, 3 * MIB, piece)]
    await world.print(*tail, LogRecord(LogKind.END, LogPlace(3 * MIB)))
    await world.end(pieces, stored=stored)
    found = await world.shown()
    assert found.truncated.stdout
    assert not found.truncated.stderr
    assert found.stdout == "h" * half + f"\n[… {2 * MIB} bytes left out …]\n" + "t" * half


async def test_the_last_lines_of_each_stream(world: LogWorld) -> None:
    await world.begin()
    await world.print(*told(PIECES))
    found = await world.shown(tail_lines=1)
    assert (found.stdout, found.stderr) == ("tail", "�\n")
    assert (found.truncated.stdout, found.truncated.stderr) == (True, False)
    assert (await world.shown(tail_lines=2)).stdout == "zwei €\ntail"
    assert (await world.shown(tail_lines=MOST_LINES)).stdout == TEXT["stdout"]
    for wrong in (0, -1, MOST_LINES + 1):
        with pytest.raises(InvalidRequestError, match="tail_lines"):
            await world.shown(tail_lines=wrong)


async def test_where_nothing_else_is_left_the_first_bytes_are_shown(world: LogWorld) -> None:
    await world.begin()
    await world.end([(OUT, b"0123456789"), (ERR, b"e")], stored=False)
    found = await world.shown()
    assert (found.stdout, found.stderr) == ("01234567\n[… 2 bytes left out …]\n", "e")
    assert (found.truncated.stdout, found.truncated.stderr) == (True, False)


async def test_a_stopped_runs_log_names_what_was_kept(world: LogWorld) -> None:
    """Nobody took its node's report."""
    await world.begin()
    ref = await world.broker.blobs(NODES_TENANT).put(KeptLogs(Kept(b"all of it", b"", 9)).encode())
    await world.cancel()
    await world.print(LogRecord(LogKind.END, LogPlace(9), LogEnd(reason=RunReason.STOPPED, logs=ref).encode()))
    assert (await world.shown()).stdout == "all of it"


async def test_an_older_attempts_output_is_not_the_last_ones(world: LogWorld) -> None:
    await world.begin()
    await world.print(*told([(OUT, b"first")]))
    await world.retry(1)
    assert (await world.shown()).stdout == "first", "until the next one prints"
    await world.lose(2)
    assert (await world.shown()).stdout == ""
