"""Blobs and timers against a broker that answers what a replicated one may: late, undecided, or a stranger's words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fumehood.broker import blobs as blobs_module
from fumehood.broker import runs
from fumehood.broker.blobs import NatsBlobs
from fumehood.broker.connection import WRITE_IN_FLIGHT, WRONG_LAST_SEQUENCE, ApiRefusalError, Stored
from fumehood.broker.reading import Record
from fumehood.broker.runs import NatsTimers
from fumehood.broker.topology import Shape
from fumehood.errors import BlobCorruptError, BlobNotFoundError, BrokerError, BrokerUnavailableError

EMPTY = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
META = b'{"size": 0}'


class Connection:
    """Answers each write as scripted, then with success; remembers what was stored."""

    def __init__(self, *answers: Exception, retry_seconds: float = 30.0) -> None:
        self.options = SimpleNamespace(retry_seconds=retry_seconds)
        self.answers = list(answers)
        self.stored: list[str] = []

    async def store(self, subject: str, data: bytes, headers: dict[str, str]) -> Stored:
        assert headers["Nats-Expected-Last-Subject-Sequence"] == "0"
        if self.answers:
            raise self.answers.pop(0)
        self.stored.append(subject)
        return Stored("S", len(self.stored), duplicate=False)


class Replicas:
    """What the leader knows, and after how many questions any other does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, data: bytes | None, *, late: int = 0) -> None:
        self.data, self.late, self.asked = data, late, 0
        monkeypatch.setattr(blobs_module, "from_leader", self.from_leader)
        monkeypatch.setattr(blobs_module, "direct_last", self.direct_last)
        monkeypatch.setattr(blobs_module, "_LAG_PAUSE", 0.0)

    async def from_leader(self, *_: object) -> Record | None:
        self.asked += 1
        return None if self.data is None else Record(1, "blob", {}, self.data, "")

    async def direct_last(self, *_: object) -> Record | None:
        late, self.late = self.late, self.late - 1
        found = await self.from_leader()
        return None if late > 0 else found


def in_flight() -> ApiRefusalError:
    return ApiRefusalError(WRITE_IN_FLIGHT, "wrong last sequence")


async def write_blob(connection: Any) -> None:
    await NatsBlobs(connection)._write("blob.default.x.0", b"piece")


async def set_timer(connection: Any) -> None:
    await NatsTimers(connection, Shape()).set("run", "timer", 1_800_000_000_000, "id", b"")


WRITES = pytest.mark.parametrize("write", [write_blob, set_timer])


@WRITES
async def test_a_write_in_flight_is_asked_for_again_until_it_is_stored(write: Any) -> None:
    """The one that it met may be lost with its leader, and then nothing would be there."""
    connection = Connection(in_flight(), BrokerUnavailableError("an election"), in_flight())
    await write(connection)
    assert len(connection.stored) == 1


@WRITES
async def test_a_write_in_flight_that_is_refused_in_the_end_was_stored_by_somebody(write: Any) -> None:
    connection = Connection(in_flight(), ApiRefusalError(WRONG_LAST_SEQUENCE, "wrong last sequence"))
    await write(connection)
    assert (connection.stored, connection.answers) == ([], [])


@WRITES
async def test_a_write_that_is_never_decided_is_not_taken_for_success(
    write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "Backoff", lambda **_: SimpleNamespace(step=lambda: 0.01))
    with pytest.raises(BrokerUnavailableError):
        await write(Connection(*(in_flight() for _ in range(100_000)), retry_seconds=0.05))


@WRITES
async def test_another_refusal_is_told(write: Any) -> None:
    with pytest.raises(BrokerError):
        await write(Connection(ApiRefusalError(10_000, "no")))


@pytest.mark.parametrize(
    "data",
    [
        b'{"size": 1e999}',
        b'{"size": NaN}',
        b'{"size": 0.0}',
        b'{"size": "0"}',
        b'{"size": true}',
        b'{"size": -1}',
        b'{"size": ' + b"9" * 400 + b"}",
        b'{"size": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b"[]",
        b"{}",
        b"\xff",
    ],
    ids=lambda data: data[:16].decode("latin-1"),
)
@pytest.mark.parametrize("direct", [True, False])
async def test_a_size_that_is_none_is_a_corrupt_blob_and_nothing_else(
    data: bytes, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    Replicas(monkeypatch, data)
    connection: Any = None
    with pytest.raises(BlobCorruptError):
        await NatsBlobs(connection, direct=direct).get(EMPTY, limit=10)


async def test_a_server_asks_the_leader_whether_a_blob_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = Replicas(monkeypatch, META, late=1_000_000)
    connection: Any = Connection()
    blobs = NatsBlobs(connection)
    assert (await blobs.get(EMPTY, limit=10), await blobs.size(EMPTY), await blobs.put(b"")) == (b"", 0, EMPTY)
    assert (replicas.asked, connection.stored) == (3, [])


async def test_a_worker_waits_for_a_replica_that_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = Replicas(monkeypatch, META, late=5)
    connection: Any = None
    assert await NatsBlobs(connection, direct=True).get(EMPTY, limit=10) == b""
    assert replicas.asked == 6


@pytest.mark.parametrize(("direct", "asked"), [(True, 21), (False, 1)])
async def test_what_is_not_there_is_not_waited_for_without_end(
    direct: bool, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas = Replicas(monkeypatch, None)
    connection: Any = None
    with pytest.raises(BlobNotFoundError):
        await NatsBlobs(connection, direct=direct).get(EMPTY, limit=10)
    assert replicas.asked == asked


async def test_a_worker_that_stores_a_new_blob_does_not_wait_for_it_first(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = Replicas(monkeypatch, None)
    connection: Any = Connection()
    assert await NatsBlobs(connection, direct=True).put(b"") == EMPTY
    assert (replicas.asked, len(connection.stored)) == (1, 1)
