"""A real worker, with the bench as its console: frames are dispatched and answered over the worker's own stream.

So what is timed is the worker from the arrival of a frame to its answer, plus one bare round trip of gRPC over the
loopback (a third of a millisecond), and nothing of a server. The proof in the hello is not looked at here.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import grpc.aio

from bench.field.engine import EngineFacts, Watch
from bench.field.rows import CODE
from bench.world import BenchError
from fumehood.wire.console.codes import CONNECT_METHOD, Capability
from fumehood.wire.console.console_pb2 import (
    ConsoleFrame,
    Dispatch,
    HeartbeatAck,
    HelloAck,
    Result,
    ResultAck,
    WorkerFrame,
)
from fumehood.wire.console.hello import new_secret
from fumehood.wire.console.sessions import LONGEST_START_WAIT_MS, LONGEST_WAIT_MS, Method
from tests.console_process import WorkerProcess

ANSWER_SECONDS = 120.0
TIMEOUT_MS = 60_000
LEASE_SECONDS = 1800
SERVICE, CONNECT = CONNECT_METHOD.strip("/").split("/")

Context: TypeAlias = "grpc.aio.ServicerContext[WorkerFrame, ConsoleFrame]"


class Console:
    """Of one worker."""

    def __init__(self) -> None:
        self.connected = asyncio.Event()
        self._stream: Context | None = None
        self._answers: dict[str, asyncio.Future[Result]] = {}
        self._numbers = itertools.count()
        self._over = asyncio.Event()
        self.target = ""

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls) -> AsyncIterator[Console]:
        console = cls()
        handler = grpc.stream_stream_rpc_method_handler(
            console._connect, WorkerFrame.FromString, ConsoleFrame.SerializeToString
        )
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {CONNECT: handler}),))
        console.target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        try:
            yield console
        finally:
            console._over.set()
            await server.stop(grace=1)

    async def _connect(self, _: object, context: Context) -> None:
        await context.read()
        await context.write(ConsoleFrame(hello_ack=HelloAck(heartbeat_interval_ms=5000)))
        self._stream = context
        self.connected.set()
        reading = asyncio.create_task(self._read(context))
        over = asyncio.create_task(self._over.wait())
        await asyncio.wait({reading, over}, return_when=asyncio.FIRST_COMPLETED)
        for task in (reading, over):
            task.cancel()
        await asyncio.gather(reading, over, return_exceptions=True)  # a worker that was lost dials in again

    async def _read(self, context: Context) -> None:
        while isinstance(frame := await context.read(), WorkerFrame):
            match frame.WhichOneof("frame"):
                case "result":
                    answer = self._answers.pop(frame.result.command_id, None)
                    if answer is not None and not answer.done():
                        answer.set_result(frame.result)
                case "heartbeat":
                    await context.write(
                        ConsoleFrame(heartbeat_ack=HeartbeatAck(timestamp_unix_ms=frame.heartbeat.timestamp_unix_ms))
                    )
                case _:
                    pass

    async def dispatch(self, capability: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        return (await self.dispatch_data(capability, payload))[0]

    async def dispatch_data(self, capability: str, payload: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        """One frame, its answer, and the bytes that came with it."""
        if self._stream is None:
            raise BenchError("no worker is connected")
        command_id = f"bench-{next(self._numbers)}-{secrets.token_hex(4)}"
        answer = self._answers[command_id] = asyncio.get_running_loop().create_future()
        asked = Dispatch(
            command_id=command_id,
            capability=capability,
            payload_json=json.dumps(payload).encode(),
            timeout_ms=TIMEOUT_MS,
            owner="default",
        )
        await self._stream.write(ConsoleFrame(dispatch=asked))
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                result = await answer
        except TimeoutError:
            raise BenchError(f"the worker does not answer {capability}") from None
        await self._stream.write(ConsoleFrame(result_ack=ResultAck(command_id=command_id)))
        if result.WhichOneof("end") != "payload_json":
            raise BenchError(f"{capability}: {result.error.code} {result.error.message}")
        found: dict[str, Any] = json.loads(result.payload_json)
        return found, result.data


class Commands:
    """What is asked of the worker, timed, and compared."""

    def __init__(self, console: Console, worker: WorkerProcess, watch: Watch) -> None:
        self._console = console
        self.worker = worker
        self._watch = watch
        self._numbers = itertools.count()

    async def python_exec(self) -> float:
        began = time.perf_counter()
        found = await self._console.dispatch(Capability.PYTHON_EXEC.value, {"code": CODE})
        seconds = time.perf_counter() - began
        if (found["output"], found["exit_code"]) != ("1\n", 0):
            raise BenchError(f"a wrong answer of pythonExec: {found}")
        return seconds

    async def warm(self) -> None:
        """Until a sandbox for it lies in stock: while nobody asks, every one of its containers does."""
        until = time.monotonic() + ANSWER_SECONDS
        while not self._watch.running(self.worker.worker_id, onlyboxes__capability=Capability.PYTHON_EXEC.value):
            if time.monotonic() > until:
                raise BenchError(f"the worker keeps no warm sandbox:\n{self.worker.log_tail()}")
            await asyncio.sleep(0.02)

    async def session(self, session_id: str) -> None:
        """A new one."""
        await self._console.dispatch(Method.CREATE.value, {"session_id": session_id, "lease_ttl_sec": LEASE_SECONDS})

    async def command(self, session_id: str, argv: tuple[str, ...], output: bytes) -> float:
        """As a server asks for it: one frame for a quick command, whose answer has its end and what it printed."""
        ref = {"session_id": session_id, "command_id": f"c-{next(self._numbers)}"}
        began = time.perf_counter()
        start = {**ref, "argv": list(argv), "wait_ms": LONGEST_START_WAIT_MS}
        ended, printed = await self._console.dispatch_data(Method.START.value, start)
        if ended["status"] == "running":
            ended = await self._console.dispatch(Method.COMMAND.value, {**ref, "wait_ms": LONGEST_WAIT_MS})
            _, printed = await self._console.dispatch_data(Method.OUTPUT.value, ref)
        seconds = time.perf_counter() - began
        if (ended["status"], ended.get("exit_code"), printed) != ("exited", 0, output):
            raise BenchError(f"a wrong answer in a session: {ended}")
        return seconds

    async def remove(self, session_id: str) -> None:
        await self._console.dispatch(Method.REMOVE.value, {"session_id": session_id})


@contextlib.asynccontextmanager
async def worker(
    folder: Path, engine: EngineFacts, runtime: str, image: str, watch: Watch, env: Mapping[str, str]
) -> AsyncIterator[Commands]:
    """`python -m fumehood worker docker`, dialled in."""
    async with Console.open() as console:
        credentials = {"worker_id": f"field-{secrets.token_hex(4)}", "worker_secret": new_secret()}
        environment = {
            "WORKER_PYTHON_EXEC_DOCKER_IMAGE": image,
            "WORKER_TERMINAL_EXEC_DOCKER_IMAGE": image,
            "FUMEHOOD_RUNTIME": runtime,
            "FUMEHOOD_DOCKER_SOCKET": str(engine.socket),
            **env,
        }
        process = WorkerProcess(folder / "worker", credentials, console.target, environment)
        watch.add(process.worker_id)
        try:
            await asyncio.to_thread(process.start)
            async with asyncio.timeout(ANSWER_SECONDS):
                await console.connected.wait()
            yield Commands(console, process, watch)
        finally:
            await asyncio.to_thread(process.remove)
