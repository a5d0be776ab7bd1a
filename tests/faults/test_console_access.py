"""What servers say to each other, and what the console keeps, is nobody else's: against a real server with the
generated configuration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from fumehood.broker.broker import NatsBroker
from fumehood.broker.connection import Connection, header
from fumehood.broker.ports import Bucket
from fumehood.broker.sealed import SEAL
from fumehood.broker.topology import GIB, Shape, switch_subject
from fumehood.errors import BrokerDeniedError, BrokerError, BrokerUnavailableError
from tests.conformance.broker_bench import BRIDGE, NODE, TIMING, TRUSTED, WORKER, NatsServer, fresh
from tests.waiting import until

SHAPE = Shape(1, storage=4 * GIB, timing=TIMING)
USERS = {"bridge": BRIDGE, "node": NODE, "worker": WORKER, "trusted": TRUSTED}
CONSOLES = (Bucket.CREDENTIALS, Bucket.CONSOLE, Bucket.SESSIONS, Bucket.COMMANDS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    made = NatsServer(tmp_path_factory.mktemp("nats"), 1)
    made.start()
    yield made
    made.kill()


@pytest.fixture
async def ours(server: NatsServer) -> AsyncIterator[NatsBroker]:
    broker = await NatsBroker.open(server.options(), SHAPE)
    yield broker
    await broker.close()


@pytest.fixture(params=USERS)
async def other(request: pytest.FixtureRequest, server: NatsServer, ours: NatsBroker) -> AsyncIterator[NatsBroker]:
    """Everybody who is not a server."""
    options = server.options(USERS[request.param])
    broker = NatsBroker(await Connection.open(options), SHAPE, outsider=request.param != "bridge")
    yield broker
    await broker.close()


async def denied(broker: NatsBroker, count: int) -> None:
    async def all_of_them() -> bool:
        return broker.connection.errors["denied"] >= count

    await until(all_of_them)


async def test_nobody_else_can_say_anything_there(ours: NatsBroker, other: NatsBroker) -> None:
    address, heard = fresh("server"), list[bytes]()
    with pytest.raises(BrokerDeniedError):
        await other.switchboard.send(address, b"as the code would")
    async with ours.switchboard.listen(address, heard.append):
        await other.connection.publish(switch_subject(address), b"plainly", headers={SEAL: "0" * 64})
        await denied(other, 1)
        await ours.switchboard.send(address, b"ours")
        await until(lambda: _there(heard))
    assert heard == [b"ours"]
    assert ours.switchboard.counts["foreign"] == 0, "not even to be sorted out"


async def test_nobody_else_can_listen_there(ours: NatsBroker, other: NatsBroker) -> None:
    address, heard, stolen = fresh("server"), list[bytes](), list[object]()
    for subject in (switch_subject(address), "switch.>", "switch.*", ">"):
        await other.connection.subscribe(subject, stolen.append)
    await denied(other, 4)
    async with ours.switchboard.listen(address, heard.append):
        await ours.switchboard.send(address, b"ours")
        await until(lambda: _there(heard))
    await other.connection.round_trip()
    assert stolen == []


async def _there(heard: list[bytes]) -> bool:
    return bool(heard)


@pytest.mark.parametrize("who", ["trusted", "bridge", "worker"])
async def test_an_answer_that_is_delivered_there_is_no_servers_message(
    server: NatsServer, ours: NatsBroker, who: str
) -> None:
    """In the engine's own account nothing keeps an answer from any subject; but nobody else can seal."""
    outsider, address, run = await Connection.open(server.options(USERS[who])), fresh("server"), fresh()
    heard = list[bytes]()
    question = f"$JS.API.DIRECT.GET.KV_checkpoints.$KV.checkpoints.{run}.a"
    if who == "bridge":
        question = "$JS.API.STREAM.MSG.GET.KV_checkpoints"

    async def ask() -> bool:
        """Ask again each time: plain messages may be lost."""
        await outsider.publish(question, b'{"seq": 1}' * (who == "bridge"), reply=switch_subject(address))
        await outsider.round_trip()
        return who == "worker" or ours.switchboard.counts["foreign"] > 0

    try:
        await outsider.store(f"$KV.checkpoints.{run}.a", b"forged", {SEAL: "0" * 64})
        async with ours.switchboard.listen(address, heard.append):
            await until(ask)
            await ours.switchboard.send(address, b"ours")
            await until(lambda: _there(heard))
        assert heard == [b"ours"]
    finally:
        await outsider.close()


async def _foreign(ours: NatsBroker) -> bool:
    return ours.switchboard.counts["foreign"] > 0


async def test_what_was_said_to_one_server_cannot_be_said_to_another(ours: NatsBroker) -> None:
    one, two, heard, seals = fresh("server"), fresh("server"), list[bytes](), list[str]()
    await ours.connection.subscribe(switch_subject(one), lambda message: seals.append(header(message, SEAL) or ""))
    await ours.connection.round_trip()
    await ours.switchboard.send(one, b"to one")

    async def sealed() -> bool:
        return bool(seals)

    await until(sealed)
    async with ours.switchboard.listen(two, heard.append):
        await ours.connection.publish(switch_subject(two), b"to one", headers={SEAL: seals[0]})
        await until(lambda: _foreign(ours))
    assert heard == []


@pytest.mark.parametrize("bucket", CONSOLES)
async def test_nobody_else_has_what_the_console_keeps(ours: NatsBroker, other: NatsBroker, bucket: Bucket) -> None:
    key = fresh("key")
    await ours.bucket(bucket).put(key, b"ours")
    for attempt in (
        other.bucket(bucket).put(key, b"theirs"),
        other.bucket(bucket).get(key),
        other.connection.request(f"$JS.API.DIRECT.GET.KV_{bucket}.$KV.{bucket}.>"),
        other.connection.request(f"$JS.API.STREAM.MSG.GET.KV_{bucket}", b'{"last_by_subj": ">"}'),
    ):
        with pytest.raises((BrokerDeniedError, BrokerUnavailableError)):
            await attempt
    entry = await ours.bucket(bucket).get(key)
    assert entry is not None
    assert entry.value == b"ours"


async def test_a_cell_of_an_older_version_gets_what_is_new_and_keeps_what_it_has(
    server: NatsServer, ours: NatsBroker
) -> None:
    run = fresh()
    await ours.journal.append(run, "kept", b"", expected=0)
    for bucket in CONSOLES:
        await ours.connection.api(f"STREAM.DELETE.KV_{bucket}")
    with pytest.raises(BrokerError):
        await ours.bucket(Bucket.CREDENTIALS).put("w", b"")
    newer = await NatsBroker.open(server.options(), SHAPE)
    try:
        assert set(newer.report.created) == {f"KV_{bucket}" for bucket in CONSOLES}
        assert newer.report.drift == ()
        assert [entry.record_id for entry in await newer.journal.read(run)] == ["kept"]
        await newer.bucket(Bucket.CREDENTIALS).put("w", b"")
    finally:
        await newer.close()
