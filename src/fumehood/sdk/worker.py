"""`fumehood.Worker`: functions of yours as task types of the engine.

    from fumehood import Task, Worker

    worker = Worker(max_tasks=4)

    @worker.task("llm")
    async def think(task: Task):
        return {"answer": await ask(task.input["prompt"])}

    worker.run()

That is a worker of one's own `fumehood dev`; elsewhere it is told where the broker is:
`Worker("nats://worker-1@10.0.0.1:4222", password_file="worker-1.password")`.

`run` is a whole process. Inside another one: `await worker.serve()`, or `async with worker: …`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self, TypeVar, Unpack

from opentelemetry.trace import TracerProvider

import fumehood
from fumehood.broker import lease, names
from fumehood.broker.broker import NatsBroker
from fumehood.broker.connection import NoRespondersError
from fumehood.broker.handout import Handouts
from fumehood.errors import BrokerUnavailableError, ConfigurationError, FumehoodError
from fumehood.sdk.access import Access, connection_options
from fumehood.sdk.broker_address import find_broker
from fumehood.sdk.calling import Handler
from fumehood.sdk.execution import Office
from fumehood.sdk.loop import Loop, LoopOptions

H = TypeVar("H", bound=Handler)

MOST_TASKS = 10_000
DRAIN_SECONDS = 30.0
ADDRESS = (
    "see whether the address and the user are right: `fumehood dev` prints its own as NATS, and Worker() without an "
    "address finds it"
)


class Worker:
    """Takes tasks over NATS and answers them. Serves once; make another one to serve again.

    `url`: one address or several with commas between; user and password may stand in it. Without one it is that of
    `FUMEHOOD_NATS_SERVERS`, with the settings beside it, and else one's own running `fumehood dev`. Otherwise: `user`,
    `password_file`, `nkey_seed_file`, `credentials_file`, `tls_ca_file`, `tls_cert_file`, `tls_key_file`,
    `inbox_prefix`.
    `name`: what the worker is called in the directory, in leases and in history; by default its user's name, which is
    also the only one that the broker accepts from a user of the generated configuration.
    `max_tasks`: how many handlers run at the same time; no more is ever taken.
    `drain_seconds`: how long `stop` waits for handlers before it gives their tasks back.
    `lease_seconds`: how long a dead worker's task stays with it, where the step has no `timeout`.
    `run_id`: take tasks of this run only.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        name: str | None = None,
        max_tasks: int = 1,
        drain_seconds: float = DRAIN_SECONDS,
        lease_seconds: int = lease.DEFAULT_SECONDS,
        run_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
        tracer_provider: TracerProvider | None = None,
        **access: Unpack[Access],
    ) -> None:
        if not 1 <= max_tasks <= MOST_TASKS:
            raise ValueError(f"max_tasks is 1 to {MOST_TASKS}")
        if lease_seconds < 1:
            raise ValueError("lease_seconds is at least 1")
        address, access = find_broker(url, access)
        self._connection = connection_options(address, name, access)
        self.name: str = names.token(name or self._connection.user or _own_name(), "a worker's name")
        self._lease_seconds = lease_seconds
        self._tracer_provider = tracer_provider
        self._options = LoopOptions(
            max_tasks, drain_seconds, run_id, {"version": fumehood.__version__, **(metadata or {})}
        )
        self._handlers: dict[str, Handler] = {}
        self._loop: Loop | None = None
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._serving: asyncio.Task[None] | None = None
        self._stops = 0

    def task(self, task_type: str) -> Callable[[H], H]:
        """Register a handler: a coroutine function, which gets a `Task`, or a plain one, which runs in a thread and
        gets a `SyncTask`. What it returns is the task's output."""
        names.task_type(task_type)

        def register(handler: H) -> H:
            if task_type in self._handlers:
                raise ValueError(f"the task type {task_type!r} has a handler already")
            self._handlers[task_type] = handler
            return handler

        return register

    # --- life ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT; the second one does not wait for handlers."""
        try:
            asyncio.run(self._until_signalled())
        except FumehoodError as error:
            raise error.with_traceback(None) from None  # it says all: how we came to it is of no use to anybody

    async def _until_signalled(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        try:
            await self.serve()
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def serve(self) -> None:
        """Until `stop`. Raises `ConfigurationError` where the broker refuses this worker, `BrokerUnavailableError`
        where it cannot be reached at the start, or throws this worker out; otherwise it is waited for."""
        await self._serve(asyncio.Event())

    async def _serve(self, ready: asyncio.Event) -> None:
        if not self._handlers:
            raise ConfigurationError("this worker has no handlers: decorate some with @worker.task(…)")
        if self._event_loop is not None:
            raise RuntimeError("a worker serves once")
        self._event_loop = asyncio.get_running_loop()
        try:
            await self._serve_at(await NatsBroker.open_worker(self._connection), ready)
        except (BrokerUnavailableError, ConfigurationError) as error:
            if ready.is_set():
                raise
            raise self._not_begun(error) from error

    async def _serve_at(self, broker: NatsBroker, ready: asyncio.Event) -> None:
        try:
            handouts = Handouts(broker, default_seconds=self._lease_seconds)
            office = Office(broker, handouts, self.name, self._tracer_provider, lambda: broker.connection.closed)
            self._loop = Loop(office, self._handlers, self._options, ready)
            for _ in range(self._stops):
                self._loop.stop()
            await self._loop.serve()
        finally:
            self._loop = None
            await broker.close()

    def _not_begun(self, error: BrokerUnavailableError | ConfigurationError) -> FumehoodError:
        """The same, with where it was; what stands there may be somebody else's."""
        where = ", ".join(self._connection.servers)
        if isinstance(error, NoRespondersError):
            return BrokerUnavailableError(
                f"the NATS server at {where} is no Fumehood broker, or not one yet: nobody there takes workers"
            ).advise(ADDRESS)
        kind = BrokerUnavailableError if isinstance(error, BrokerUnavailableError) else ConfigurationError
        return kind(f"{where}: {error.detail}").advise(ADDRESS)

    def stop(self, *, now: bool = False) -> None:
        """Take no more, let handlers end, give back what does not. A second time, or with `now`: do not wait for
        them. From any thread; `serve` returns when it is done."""
        if self._event_loop is None:
            self._stops += 1
            return
        self._event_loop.call_soon_threadsafe(self._stop, now)

    def _stop(self, now: bool) -> None:
        self._stops += 1
        if self._loop is not None:
            self._loop.stop(now=now)

    async def __aenter__(self) -> Self:
        ready = asyncio.Event()
        self._serving = asyncio.create_task(self._serve(ready))
        waiting = asyncio.create_task(ready.wait())
        try:
            await asyncio.wait({self._serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._serving.cancel()
            await asyncio.wait({self._serving})
            raise
        finally:
            waiting.cancel()
        if self._serving.done():
            await self._serving
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._serving is not None
        self.stop(now=error is not None)
        await self._serving


def _own_name() -> str:
    """For a broker without users."""
    host = "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in socket.gethostname())
    return f"{host[:100]}-{os.getpid()}"
