"""Where workers dial in: who is let in, who is not, and what becomes of those who misbehave. Real gRPC, real NATS."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest

from fumehood.control.callers import ADMIN
from fumehood.control.console.ports import OutletClosedError
from fumehood.control.rpc import server as server_module
from fumehood.control.rpc import stream as stream_module
from fumehood.control.rpc.server import ConsoleDoor, DoorOptions
from fumehood.control.rpc.tls import DoorTls
from fumehood.errors import ConfigurationError
from fumehood.wire.console.codes import MAX_FRAME_BYTES
from fumehood.wire.console.console_pb2 import (
    Capability,
    ConsoleFrame,
    Declaration,
    Dispatch,
    Heartbeat,
    Hello,
    Result,
    WorkerFrame,
)
from fumehood.wire.console.hello import WINDOW_MS, new_secret
from tests.conformance.broker_bench import NatsServer, fresh
from tests.integration.console_world import DECLARED, Authority, Replica, authority, dialled, hello, replica
from tests.server_process import ServerProcess
from tests.waiting import until

REFUSED = grpc.StatusCode.UNAUTHENTICATED


@pytest.fixture(scope="module")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    made = NatsServer(tmp_path_factory.mktemp("nats"), 1)
    made.start()
    yield made
    made.kill()


@pytest.fixture
async def here(nats_server: NatsServer) -> AsyncIterator[Replica]:
    async with replica(nats_server, fresh("server")) as made:
        yield made


@pytest.fixture
async def there(nats_server: NatsServer) -> AsyncIterator[Replica]:
    async with replica(nats_server, fresh("server")) as made:
        yield made


@pytest.fixture
async def worker(here: Replica) -> tuple[str, str]:
    worker_id = fresh("worker")
    _, secret = await here.credentials.create(worker_id, {}, ADMIN)
    return worker_id, secret


async def refusal(target: str, said: Hello | WorkerFrame | bytes) -> tuple[grpc.StatusCode, str]:
    async with dialled(target) as stream:
        await stream.say(said)
        return await stream.end()


async def connected(one: Replica, count: int = 1) -> None:
    async def all_of_them() -> bool:
        return len(one.door) == count

    await until(all_of_them)


# --- a worker that is let in ---------------------------------------------------------------------------------


async def test_a_worker_is_greeted_and_its_heartbeats_are_answered(here: Replica, worker: tuple[str, str]) -> None:
    async with dialled(here.target) as stream:
        ack = await stream.greeted(hello(*worker))
        assert ack.hello_ack.heartbeat_interval_ms == 5000
        await stream.say(WorkerFrame(heartbeat=Heartbeat(timestamp_unix_ms=42)))
        assert (await stream.hear()).heartbeat_ack.timestamp_unix_ms == 42
        assert len(here.door) == 1
        entry = here.console.parts.presence.of(worker[0])
        assert entry is not None
        assert (entry.capabilities, entry.labels) == ({"echo": 4}, {"zone": "a"})
        await stream.call.done_writing()
        assert (await stream.end())[0] is grpc.StatusCode.OK
    await connected(here, 0)


async def test_what_is_sent_before_the_greeting_comes_after_it(here: Replica, worker: tuple[str, str]) -> None:
    """Another server may know of the worker before it is greeted."""

    class Quick:
        async def welcome(self, said: Hello, outlet: stream_module.Stream) -> object:
            outlet.send(ConsoleFrame(dispatch=Dispatch(command_id="early")))
            return await here.console.welcome(said, outlet)

    here.door._welcomer = Quick()  # type: ignore[assignment]
    async with dialled(here.target) as stream:
        await stream.greeted(hello(*worker))
        assert (await stream.hear()).dispatch.command_id == "early"


async def test_a_worker_that_vanishes_is_gone(here: Replica, worker: tuple[str, str]) -> None:
    async with dialled(here.target) as stream:
        await stream.greeted(hello(*worker))
        await connected(here)
    await connected(here, 0)
    assert here.console.parts.presence.of(worker[0]) is None


# --- a worker that is not ------------------------------------------------------------------------------------


async def test_a_hello_counts_once_whichever_server_it_is_said_to(
    here: Replica, there: Replica, worker: tuple[str, str]
) -> None:
    said = hello(*worker)
    async with dialled(here.target) as stream:
        await stream.greeted(said)
        for target in (here.target, there.target, here.target):
            assert (await refusal(target, said))[0] is REFUSED
        assert len(here.door) == 1, "and whoever said it first stays"


async def test_everybody_who_is_refused_is_told_the_same(here: Replica, worker: tuple[str, str]) -> None:
    name, secret = worker
    told = {
        await refusal(here.target, said)
        for said in (
            hello(name, new_secret()),
            hello("nobody", secret),
            hello(name, secret, skew_ms=WINDOW_MS + 5_000),
            hello(name, secret, skew_ms=-WINDOW_MS - 5_000),
        )
    }
    assert {code for code, _ in told} == {REFUSED}
    assert len(told) == 1
    assert secret not in str(told)


@pytest.mark.parametrize(
    "forged",
    [
        Declaration(capabilities=[Capability(name="echo", max_inflight=64)], labels={"zone": "a"}),
        Declaration(capabilities=[*DECLARED.capabilities, Capability(name="pythonExec", max_inflight=4)]),
        Declaration(capabilities=DECLARED.capabilities, labels={"zone": "b"}, max_session_calls=256),
        Declaration(capabilities=DECLARED.capabilities, labels={"zone": "a"}, max_session_calls=256, holding=["c1"]),
    ],
    ids=["more at once", "one more", "another label", "holding"],
)
async def test_what_a_worker_declares_cannot_be_changed_on_its_way(
    here: Replica, worker: tuple[str, str], forged: Declaration
) -> None:
    said = hello(*worker)
    said.declaration = forged.SerializeToString()
    assert (await refusal(here.target, said))[0] is REFUSED


async def test_a_revoked_worker_is_thrown_out_everywhere_and_not_let_in_again(
    here: Replica, there: Replica, worker: tuple[str, str]
) -> None:
    async with dialled(here.target) as stream:
        await stream.greeted(hello(*worker))
        await there.credentials.revoke(worker[0])
        code, detail = await stream.end()
        assert (code, "revoked" in detail) == (REFUSED, True)
    for one in (here, there):
        assert (await refusal(one.target, hello(*worker)))[0] is REFUSED


@pytest.mark.parametrize("second", ["here", "there"])
async def test_a_newer_stream_wins(here: Replica, there: Replica, worker: tuple[str, str], second: str) -> None:
    target = here.target if second == "here" else there.target
    async with dialled(here.target) as older, dialled(target) as newer:
        await older.greeted(hello(*worker))
        await newer.greeted(hello(*worker))
        assert await older.end() == (grpc.StatusCode.ABORTED, "worker_replaced")
        await newer.say(WorkerFrame(heartbeat=Heartbeat(timestamp_unix_ms=1)))
        assert (await newer.hear()).WhichOneof("frame") == "heartbeat_ack"


# --- nonsense ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        b"\xff\xff\xff",
        b"",
        WorkerFrame(heartbeat=Heartbeat()),
        WorkerFrame(result=Result(command_id="c")),
        Hello(),
        Hello(worker_id="a.b", nonce=bytes(16), signature=bytes(64)),
    ],
    ids=["bytes", "empty", "a heartbeat", "a result", "an empty hello", "a name that is none"],
)
async def test_what_is_no_hello_is_malformed(here: Replica, said: Hello | WorkerFrame | bytes) -> None:
    assert (await refusal(here.target, said))[0] is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("said", ["bytes", "a second hello"])
async def test_nonsense_ends_a_stream(here: Replica, worker: tuple[str, str], said: str) -> None:
    async with dialled(here.target) as stream:
        await stream.greeted(hello(*worker))
        await stream.say(b"\xff\xff\xff" if said == "bytes" else hello(*worker))
        assert (await stream.end())[0] is grpc.StatusCode.INVALID_ARGUMENT
    await connected(here, 0)


async def test_a_frame_that_is_too_large_ends_a_stream(here: Replica, worker: tuple[str, str]) -> None:
    async with dialled(here.target, options=[("grpc.max_send_message_length", -1)]) as stream:
        await stream.greeted(hello(*worker))
        await stream.say(bytes(MAX_FRAME_BYTES + 1))
        code, _ = await stream.end()
        assert code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED)
    await connected(here, 0)


async def test_a_server_that_fails_shows_nothing_of_itself(here: Replica, worker: tuple[str, str]) -> None:
    class Broken:
        async def welcome(self, said: Hello, outlet: object) -> object:
            raise RuntimeError("/etc/secret")

    here.door._welcomer = Broken()  # type: ignore[assignment]
    code, detail = await refusal(here.target, hello(*worker))
    assert code is grpc.StatusCode.INTERNAL
    assert "secret" not in detail


# --- those who take without giving ---------------------------------------------------------------------------


async def test_a_hello_that_comes_too_late_is_not_waited_for(nats_server: NatsServer) -> None:
    async with (
        replica(nats_server, fresh("server"), DoorOptions(hello_seconds=0.2)) as one,
        dialled(one.target) as stream,
    ):
        assert (await stream.end())[0] is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_strangers_cannot_keep_a_worker_out(
    here: Replica, worker: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who have been silent for longest make room."""
    monkeypatch.setattr(server_module, "MOST_STRANGERS", 3)
    monkeypatch.setattr(server_module, "SILENT_SECONDS", 0.0)
    async with dialled(here.target) as one, dialled(here.target) as two, dialled(here.target) as three:

        async def all_wait() -> bool:
            return len(here.door._strangers) == 3

        await until(all_wait)
        async with dialled(here.target) as stream:
            await stream.greeted(hello(*worker))
        ended = [asyncio.create_task(stranger.end()) for stranger in (one, two, three)]
        done, _ = await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED, timeout=30)
        assert {task.result()[0] for task in done} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert len(here.door._strangers) == 2
        for task in ended:
            task.cancel()


async def test_all_workers_of_a_server_that_died_are_let_in_at_once(
    here: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although they are more than may wait in silence."""
    monkeypatch.setattr(server_module, "MOST_STRANGERS", 2)
    workers = {(name := fresh("worker")): (await here.credentials.create(name, {}, ADMIN))[1] for _ in range(40)}

    async with contextlib.AsyncExitStack() as stack:

        async def come(name: str, secret: str) -> None:
            stream = await stack.enter_async_context(dialled(here.target))
            await stream.greeted(hello(name, secret))

        await asyncio.gather(*(come(name, secret) for name, secret in workers.items()))
        assert len(here.door) == len(workers)


async def test_the_console_is_told_of_the_end_of_a_stream_that_it_took_too_late(here: Replica) -> None:
    """The worker hung up while the console was about to take it, and the console cannot be stopped any more."""
    asked, gone = asyncio.Event(), asyncio.Event()

    class Taken:
        async def gone(self) -> None:
            gone.set()

    class Late:
        async def welcome(self, said: Hello, outlet: object) -> Taken:
            asked.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return Taken()

    here.door._welcomer = Late()  # type: ignore[assignment]
    async with dialled(here.target) as stream:
        await stream.say(hello("w", new_secret()))
        await asked.wait()
    async with asyncio.timeout(30):
        await gone.wait()


async def test_there_are_as_many_streams_as_allowed(nats_server: NatsServer, here: Replica) -> None:
    secrets = {}
    for name in (fresh("worker"), fresh("worker")):
        _, secrets[name] = await here.credentials.create(name, {}, ADMIN)
    (first, second) = secrets.items()
    async with (
        replica(nats_server, fresh("server"), DoorOptions(max_streams=1)) as one,
        dialled(one.target) as stream,
    ):
        await stream.greeted(hello(*first))
        assert (await refusal(one.target, hello(*second)))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_worker_that_does_not_read_is_cut_off_and_holds_nothing(
    here: Replica, worker: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "WRITE_SECONDS", 0.5)
    monkeypatch.setattr(server_module, "LAST_WORD_SECONDS", 0.2)
    async with dialled(here.target) as stream:
        await stream.greeted(hello(*worker))
        outlet = here.console.streams[worker[0]].outlet
        for _ in range(16):  # far more than what is on its way; less than what may wait
            outlet.send(ConsoleFrame(dispatch=Dispatch(command_id="c", data=bytes(1024 * 1024))))
        await connected(here, 0)
        assert worker[0] not in here.console.streams
        await until(_nothing_runs)
        async with dialled(here.target) as again:
            await again.greeted(hello(*worker))


async def _nothing_runs() -> bool:
    """Not even what would tell the worker why: that, too, would wait for it to read."""
    return not [task for task in asyncio.all_tasks() if task.get_name() == "rpc_task"]


async def test_a_queue_that_is_full_ends_the_stream(here: Replica, worker: tuple[str, str]) -> None:
    async with dialled(here.target) as stream:
        await stream.greeted(hello(*worker))
        outlet = here.console.streams[worker[0]].outlet
        frame = ConsoleFrame(dispatch=Dispatch(command_id="c", data=bytes(1024 * 1024)))
        for _ in range(stream_module.MOST_BYTES // (1024 * 1024) - 1):
            outlet.send(frame)
        with pytest.raises(OutletClosedError):
            outlet.send(frame)
        with pytest.raises(OutletClosedError):
            outlet.send(ConsoleFrame())
        await connected(here, 0)


async def test_a_frame_of_ours_that_is_too_large_ends_the_stream(here: Replica, worker: tuple[str, str]) -> None:
    """Whoever sent it takes the stream for closed; so it must be."""
    async with dialled(here.target) as stream:
        await stream.greeted(hello(*worker))
        with pytest.raises(OutletClosedError):
            here.console.streams[worker[0]].outlet.send(
                ConsoleFrame(dispatch=Dispatch(payload_json=bytes(MAX_FRAME_BYTES)))
            )
        assert (await stream.end())[0] is grpc.StatusCode.INTERNAL


async def test_a_worker_that_falls_silent_is_gone(
    here: Replica, worker: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "HEARTBEAT_SECONDS", 0.3)
    monkeypatch.setattr(stream_module, "MISSED_BEATS", 0)
    async with dialled(here.target) as stream:
        await stream.greeted(hello(*worker))
        code, detail = await stream.end()
        assert (code, "heartbeat" in detail) == (grpc.StatusCode.UNAVAILABLE, True)


# --- leaving -------------------------------------------------------------------------------------------------


async def test_a_server_that_leaves_says_so(nats_server: NatsServer, here: Replica, worker: tuple[str, str]) -> None:
    async with replica(nats_server, fresh("server")) as leaving, dialled(leaving.target) as stream:
        await stream.greeted(hello(*worker))
        draining = asyncio.create_task(leaving.door.drain(5.0))
        assert (await stream.hear()).drain.leave is False
        assert (await stream.end())[0] is grpc.StatusCode.UNAVAILABLE
        await draining
        assert len(leaving.door) == 0
    async with dialled(here.target) as stream:
        await stream.greeted(hello(*worker))


async def test_a_console_that_drains_takes_nobody(here: Replica, worker: tuple[str, str]) -> None:
    async with dialled(here.target) as stream:
        await stream.greeted(hello(*worker))
        here.console.drain()
        assert (await stream.hear()).WhichOneof("frame") == "drain"
        assert (await stream.end())[0] is grpc.StatusCode.UNAVAILABLE
    assert (await refusal(here.target, hello(*worker)))[0] is grpc.StatusCode.UNAVAILABLE


async def test_a_broker_that_is_away_lets_nobody_in(tmp_path: Path) -> None:
    own = NatsServer(tmp_path / "nats", 1)
    own.start()
    try:
        async with replica(own, fresh("server")) as one:
            name = fresh("worker")
            _, secret = await one.credentials.create(name, {}, ADMIN)
            own.pause()
            assert (await refusal(one.target, hello(name, secret)))[0] is grpc.StatusCode.UNAVAILABLE
            own.resume()
            async with dialled(one.target) as stream:
                await stream.greeted(hello(name, secret))
    finally:
        own.resume()
        own.kill()


async def test_a_real_server_lets_in_whom_an_administrator_let_in(nats_server: NatsServer, tmp_path: Path) -> None:
    name = fresh("worker")
    with ServerProcess(tmp_path, nats_server) as process, process.client() as client:
        made = client.post("/v1/worker-credentials", json={"worker_id": name}).raise_for_status().json()
        async with dialled(process.grpc_target) as stream:
            await stream.greeted(hello(name, made["worker_secret"]))
            assert [one["transport"] for one in client.get("/v1/workers").json()["workers"]] == ["grpc"]
            leaving = asyncio.create_task(asyncio.to_thread(process.terminate))
            assert (await stream.hear()).drain.leave is False
            assert (await stream.end())[0] is grpc.StatusCode.UNAVAILABLE
            assert await leaving == 0
        said = process.log_file.read_text()
        assert made["worker_secret"] not in said
        assert "Traceback" not in said


# --- on the wire ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("other"), "another ca")


def channel(root: Authority, pair: tuple[Path, Path] | None = None) -> grpc.ChannelCredentials:
    chain, key = (pair[0].read_bytes(), pair[1].read_bytes()) if pair else (None, None)
    return grpc.ssl_channel_credentials(root.ca_file.read_bytes(), key, chain)


async def test_over_tls(
    nats_server: NatsServer, here: Replica, worker: tuple[str, str], trusted: Authority, stranger: Authority
) -> None:
    """And a certificate that is replaced is used from the next handshake on."""
    tls = DoorTls(*trusted.issue("door"))
    async with replica(nats_server, fresh("server"), DoorOptions(tls=tls)) as one:
        async with dialled(one.target, channel(trusted)) as stream:
            await stream.greeted(hello(*worker))
        assert (await refusal(one.target, hello(*worker)))[0] is grpc.StatusCode.UNAVAILABLE, "in plain text"
        async with dialled(one.target, channel(stranger)) as stream:
            assert (await stream.end())[0] is grpc.StatusCode.UNAVAILABLE, "an authority that we do not know"
        for path, data in zip((tls.cert_file, tls.key_file), stranger.issue("door"), strict=True):
            data.rename(path)
        async with dialled(one.target, channel(stranger)) as stream:
            await stream.greeted(hello(*worker))
        tls.cert_file.write_text("no certificate")
        async with dialled(one.target, channel(stranger)) as stream:
            await stream.greeted(hello(*worker))


async def test_over_mutual_tls(
    nats_server: NatsServer, here: Replica, worker: tuple[str, str], trusted: Authority, stranger: Authority
) -> None:
    """A certificate alone is not enough, nor is a hello."""
    tls = DoorTls(*trusted.issue("mutual"), client_ca_file=trusted.ca_file)
    async with replica(nats_server, fresh("server"), DoorOptions(tls=tls)) as one:
        own = trusted.issue("worker")
        async with dialled(one.target, channel(trusted, own)) as stream:
            await stream.greeted(hello(*worker))
        async with dialled(one.target, channel(trusted, own)) as stream:
            await stream.say(hello(worker[0], new_secret()))
            assert (await stream.end())[0] is REFUSED
        for pair in (None, stranger.issue("worker")):
            async with dialled(one.target, channel(trusted, pair)) as stream:
                assert (await stream.end())[0] is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
async def test_plain_text_leaves_this_machine_never(here: Replica, host: str) -> None:
    with pytest.raises(ConfigurationError, match="plain text"):
        ConsoleDoor(here.console, DoorOptions(host=host))


async def test_certificates_that_cannot_be_used_are_told_at_the_start(here: Replica, tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("nothing")
    for tls, text in (
        (DoorTls(tmp_path / "none.pem", tmp_path / "none.key"), "cannot be read"),
        (DoorTls(tmp_path / "no.pem", tmp_path / "no.pem"), "nothing in PEM"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            ConsoleDoor(here.console, DoorOptions(tls=tls))


async def test_a_port_that_is_taken_is_an_error(here: Replica) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigurationError, match="taken"):
            ConsoleDoor(here.console, DoorOptions(port=taken.getsockname()[1]))
