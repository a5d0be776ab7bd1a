"""The process of `fumehood worker docker`: put together, served, and taken apart as its signal says.

SIGINT and SIGTERM: nothing more is taken, what runs is ended, every container is removed, the console is told.
SIGUSR2: everything is left as it is; the next worker on the same state folder goes on with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from fumehood import __version__
from fumehood.cli.admission import admitting
from fumehood.cli.engine_access import engine_trouble
from fumehood.cli.engine_options import docker_options
from fumehood.cli.exits import CommandError
from fumehood.cli.networks import serve_networks
from fumehood.cli.serving import clear_ready, uvloop_runner, write_ready
from fumehood.cli.worker_identity import claim, identity_of
from fumehood.door.logs import configure_logging
from fumehood.errors import (
    ConfigurationError,
    FumehoodError,
    SandboxError,
)
from fumehood.node.console.command_receipts import CommandReceipts
from fumehood.node.console.duties import Duties
from fumehood.node.console.duty_store import FILE_NAME as DUTIES
from fumehood.node.console.duty_store import DutyStore
from fumehood.node.console.keeper import SessionKeeper
from fumehood.node.console.uploads import Uploads
from fumehood.node.console.worker import handlers, rules_of
from fumehood.node.receipts import Receipts
from fumehood.node.rpc.link import About, Identity, Link, Tls, route
from fumehood.node.signing import ReceiptKeys
from fumehood.sandbox.docker import DockerDriver
from fumehood.sandbox.pool.driver import PooledDriver
from fumehood.sandbox.pool.values import PoolOptions
from fumehood.sandbox.sessions.sessions import Sessions
from fumehood.sandbox.sessions.store import SessionStore
from fumehood.sandbox.sessions.values import SessionOptions
from fumehood.sandbox.spec import MIB
from fumehood.settings import WorkerSettings, strays
from fumehood.wire.sandbox import RECEIPT_KEY_LABEL

TELL_SECONDS: Final = 5.0
FINISH_SECONDS: Final = 600.0
"""For commands in sessions to end by themselves, when the console sends the worker home."""
"""For the console to acknowledge the last results of a worker that goes."""
AGAIN_SECONDS: Final = 1.0
"""Between looks at an engine that is not there, or cannot run a container."""
END_SECONDS: Final = 10.0
"""For what is being ended when this worker hands over: sandboxes do not live long without an owner."""
CLOSE_SECONDS: Final = 2.0
"""For a stream to end in order."""
UPLOADS: Final = "uploads"
PREFIX: Final = "WORKER_"
MOST_LABELS: Final = 32
"""That a console takes of a worker."""

_log = structlog.get_logger()


class Leave(Enum):
    """How a worker goes."""

    REMOVE = "remove"
    HAND_OVER = "hand_over"


class LeftBehindError(CommandError):
    """The worker had to go before everything was removed."""


def run(settings: WorkerSettings, ready_file: Path | None, *, json_logs: bool) -> None:
    configure_logging(json=json_logs, level=settings.log_level)
    if unknown := strays(WorkerSettings, PREFIX):
        _log.warning("settings.unknown", variables=unknown, notice="no settings of a worker: misspelt?")
    settings.check_policy()
    identity = Identity(*identity_of(settings))
    clear_ready(ready_file)
    with uvloop_runner() as runner:
        runner.run(serve(settings, identity, ready_file))


async def serve(settings: WorkerSettings, identity: Identity, ready_file: Path | None = None) -> None:
    """A worker from its state folder's lock to its end."""
    where = route(settings.worker_console_grpc_target, _tls(settings))
    leaving = _signals()
    async with contextlib.AsyncExitStack() as stack:
        store = await SessionStore.open(settings.worker_state_dir)
        stack.push_async_callback(store.close)
        claim(settings.worker_state_dir, identity.worker_id)
        if not await _engine_there(settings.docker_socket, leaving):
            await _nothing_is_left(store, identity.worker_id, leaving.result())
            return
        receipts = Receipts(ReceiptKeys.load(settings.worker_state_dir), identity.worker_id)
        worker = await stack.enter_async_context(_assembled(settings, identity.worker_id, store, receipts))
        link = Link(where, _about(settings, identity, receipts), worker.duties, SessionKeeper(worker.sessions))
        link.last_work = partial(_finish_and_go, worker, link, settings.worker_drain_sec)
        serving = asyncio.create_task(_serving(link, worker.driver, _announcement(ready_file, identity)))
        try:
            how = await _how_to_leave(serving, leaving)
            _log.info("worker.leaves", how=how.value, sessions=len(worker.sessions.list()))
            if how is Leave.REMOVE:
                await _take_all_along(worker, link, settings.worker_drain_sec)
            link.stop()
            if link.connected.is_set():
                await asyncio.wait({serving}, timeout=CLOSE_SECONDS)
            if how is Leave.HAND_OVER:
                await _hand_over(worker, END_SECONDS)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


async def _how_to_leave(serving: asyncio.Task[None], leaving: asyncio.Future[Leave]) -> Leave:
    """Wait for a signal, or for the console's word that this worker shall go."""
    ends: set[asyncio.Future[Any]] = {serving, leaving}
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if leaving.done():
        return leaving.result()
    serving.result()
    return Leave.REMOVE


@dataclass(frozen=True, slots=True)
class Worker:
    """All that a worker has on this machine."""

    worker_id: str
    driver: DockerDriver
    sessions: Sessions
    duties: Duties


@contextlib.asynccontextmanager
async def _assembled(
    settings: WorkerSettings, worker_id: str, store: SessionStore, receipts: Receipts
) -> AsyncIterator[Worker]:
    """Sandboxes of an earlier life are taken over first: they do not live long without an owner."""
    folder = settings.worker_state_dir
    async with contextlib.AsyncExitStack() as stack:
        images = await stack.enter_async_context(admitting(settings, _log))
        starts = settings.concurrent_starts
        engine = docker_options(settings, worker_id, settings.worker_state_dir, images, concurrent_starts=starts)
        driver = DockerDriver(engine)
        stack.push_async_callback(driver.close)
        await serve_networks(driver, _log)
        stock = PoolOptions(settings.worker_warm_sandboxes, settings.worker_warm_memory_mib * MIB)
        pool = await stack.enter_async_context(PooledDriver.open(driver, folder, stock))
        options = SessionOptions(
            most_sessions=settings.worker_max_sessions, output_limit=settings.worker_terminal_output_limit_bytes
        )
        signing = CommandReceipts(receipts)
        opening = Sessions.open(pool, images.admission, store, options, sign=signing.of_session_command)
        signing.sessions = sessions = await stack.enter_async_context(opening)
        duty_store = await DutyStore.open(folder / DUTIES)
        stack.push_async_callback(duty_store.close)
        uploads = Uploads(folder / UPLOADS)
        await uploads.open()
        stack.push_async_callback(uploads.close)
        duties = Duties(duty_store, handlers(sessions, rules_of(settings), uploads), sign=signing.of_command)
        stack.push_async_callback(duties.close)
        going_on = await duties.recover()
        _log.info("worker.begins", worker_id=worker_id, sessions=len(sessions.list()), going_on=going_on)
        yield Worker(worker_id, driver, sessions, duties)


async def _serving(link: Link, driver: DockerDriver, announce: Callable[[], None]) -> None:
    """Until the console says that this worker shall leave. A machine that cannot run a container takes no commands."""
    await _until_it_runs_containers(driver)
    announcing = asyncio.create_task(_announced(link, announce))
    try:
        await link.serve()
    finally:
        announcing.cancel()
        await asyncio.gather(announcing, return_exceptions=True)


async def _announced(link: Link, announce: Callable[[], None]) -> None:
    await link.connected.wait()
    announce()


# --- leaving -----------------------------------------------------------------------------------------------


def _signals() -> asyncio.Future[Leave]:
    """Done with the first signal. A second SIGINT or SIGTERM does not wait."""
    loop = asyncio.get_running_loop()
    leaving: asyncio.Future[Leave] = loop.create_future()

    def end() -> None:
        if leaving.done():
            os._exit(130)
        leaving.set_result(Leave.REMOVE)

    def hand_over() -> None:
        if not leaving.done():
            leaving.set_result(Leave.HAND_OVER)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    loop.add_signal_handler(signal.SIGUSR2, hand_over)
    return leaving


async def _finish_and_go(worker: Worker, link: Link, seconds: float) -> None:
    """Told to leave: what runs in sessions comes to its end first, if that does not take too long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FINISH_SECONDS):
            while any(one.running for one in worker.sessions.list()):  # noqa: ASYNC110 - nobody tells the last end
                await asyncio.sleep(0.2)
    await _take_all_along(worker, link, seconds)


async def _take_all_along(worker: Worker, link: Link, seconds: float) -> None:
    """The console is told of sessions that it may know from their commands alone, and then that none is left."""
    await link.tell_sessions()
    await _remove_everything(worker, seconds)
    await link.tell_sessions()


async def _remove_everything(worker: Worker, seconds: float) -> None:
    """Take nothing more, end what runs, remove all containers, and tell the console if it listens."""
    try:
        async with asyncio.timeout(seconds):
            await worker.duties.end_all()
            await worker.sessions.remove_all()
    except (TimeoutError, FumehoodError) as error:
        await worker.duties.close(seconds=0)
        why = error.detail if isinstance(error, FumehoodError) else "it took too long"
        raise _left("not everything was removed", worker.worker_id, why) from error
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(TELL_SECONDS):
            await worker.duties.told()


async def _hand_over(worker: Worker, seconds: float) -> None:
    """Everything stays as it is, but commands that were to end: where that takes too long, they are left, too."""
    if left := await worker.duties.close(seconds):
        what = f"{left} of the commands that were being ended have not ended"
        raise _left(what, worker.worker_id, "the engine, or this machine's disk, did not answer in time")


async def _nothing_is_left(store: SessionStore, worker_id: str, how: Leave) -> None:
    """Without an engine nothing can be removed."""
    if how is Leave.REMOVE and (left := len(await store.sessions())):
        raise _left(f"none of {left} sandboxes of an earlier worker was removed", worker_id, "there is no engine")


def _left(what: str, worker_id: str, why: str) -> LeftBehindError:
    return LeftBehindError(
        f"{what}: containers with the label fumehood.node={worker_id} may be left (docker ps -a); the next worker on "
        f"the same state folder takes them over ({why})"
    )


# --- the engine --------------------------------------------------------------------------------------------


async def _engine_there(address: Path, leaving: asyncio.Future[Leave]) -> bool:
    """An engine that is away may come; a socket that we may not open stays shut until somebody changes that. False: it
    was not there until this worker was told to go."""
    said = ""
    while trouble := await asyncio.to_thread(engine_trouble, address):
        if trouble.denied:
            raise ConfigurationError(trouble.sentence)
        if trouble.sentence != said:
            said = trouble.sentence
            _log.warning("engine.absent", notice=f"{said}; the worker waits for it")
        await asyncio.wait({leaving}, timeout=AGAIN_SECONDS)
        if leaving.done():
            return False
    return True


async def _until_it_runs_containers(driver: DockerDriver) -> None:
    while True:
        try:
            return await driver.check()
        except SandboxError as error:
            _log.warning("engine.cannot_run", code=error.code, notice=f"{error.detail}; the worker tries again")
            await asyncio.sleep(AGAIN_SECONDS)


# --- the console -------------------------------------------------------------------------------------------


def _about(settings: WorkerSettings, identity: Identity, receipts: Receipts) -> About:
    return About(
        identity,
        software=f"fumehood/{__version__}",
        labels=_labels(settings, receipts),
        beat_seconds=settings.worker_heartbeat_interval_sec,
        jitter=settings.worker_heartbeat_jitter_pct / 100,
    )


def _labels(settings: WorkerSettings, receipts: Receipts) -> dict[str, str]:
    """With the key that this worker signs with, where there is room: a console takes only so many."""
    own = dict(settings.labels)
    return own if len(own) >= MOST_LABELS else {**own, RECEIPT_KEY_LABEL: receipts.public_key_hex}


def _tls(settings: WorkerSettings) -> Tls | None:
    if not settings.has_tls:
        return None
    return Tls(
        ca_file=settings.worker_console_tls_ca_file,
        cert_file=settings.worker_console_tls_cert_file,
        key_file=settings.worker_console_tls_key_file,
    )


def _announcement(ready_file: Path | None, identity: Identity) -> Callable[[], None]:
    return lambda: write_ready(ready_file, {"worker_id": identity.worker_id, "pids": {"worker": os.getpid()}})
