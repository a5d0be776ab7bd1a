"""The process of `fumehood worker jobs`: a provider put together, served, and drained.

SIGINT and SIGTERM: nothing more is taken, what runs is finished within its time, the rest is given to others at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from fumehood.broker.broker import NatsBroker
from fumehood.broker.ports import Broker
from fumehood.cli.connecting import connection, waited_for
from fumehood.cli.provider_sandboxes import SANDBOX_RUN, Machine, executor, machine
from fumehood.cli.serving import calm_collector, clear_ready, uvloop_runner, write_ready
from fumehood.door.logs import configure_logging
from fumehood.errors import ConfigurationError
from fumehood.jobs.base import ChatOptions, Workbench
from fumehood.jobs.registry import Registry
from fumehood.node.jobs.service import Provider, providing
from fumehood.node.jobs.serving import served
from fumehood.node.jobs.worker import JobWorker
from fumehood.node.signing import ReceiptKeys
from fumehood.settings import ProviderSettings, strays
from fumehood.settings.token_file import TokenFile
from fumehood.storage.lock import take_lock

LOCK_FILE: Final = "provider.lock"
PREFIX: Final = "PROVIDER_"

_log = structlog.get_logger()


def run(
    settings: Sequence[ProviderSettings], ready_file: Path | None, *, json_logs: bool, no_engine: str | None = None
) -> None:
    """One process; a provider for each of the settings. `no_engine`: why no engine is to be asked for anything."""
    configure_logging(json=json_logs, level=settings[0].log_level)
    if unknown := strays(ProviderSettings, PREFIX):
        _log.warning("settings.unknown", variables=unknown, notice="no settings of a provider: misspelt?")
    clear_ready(ready_file)
    with uvloop_runner() as runner:
        runner.run(serve(settings, ready_file, no_engine))


async def serve(
    settings: Sequence[ProviderSettings], ready_file: Path | None = None, no_engine: str | None = None
) -> None:
    """From their locks to their drain."""
    leaving = _signals()
    async with contextlib.AsyncExitStack() as stack:
        opening = asyncio.create_task(_opened(settings, no_engine, stack))
        either: set[asyncio.Future[Any]] = {opening, leaving}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not opening.done():
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            return
        workers = opening.result()
        calm_collector()
        names = [one.worker_id for one in settings]
        write_ready(ready_file, {"providers": names, "pids": {"providers": os.getpid()}})
        _log.info("provider.ready", providers=names)
        await leaving
        drains = [worker.drain(one.provider_drain_sec) for worker, one in zip(workers, settings, strict=True)]
        await asyncio.gather(*drains)


async def _opened(
    settings: Sequence[ProviderSettings], no_engine: str | None, stack: contextlib.AsyncExitStack
) -> list[JobWorker]:
    """The engine is shared: it is one in any case."""
    for one in settings:
        stack.callback(os.close, _lock(one.provider_state_dir))
    there = machine(settings[0]) if no_engine is None else contextlib.nullcontext(Machine(trouble=no_engine))
    engine = await stack.enter_async_context(there)
    told: set[str] = set()
    return [await stack.enter_async_context(provider(one, engine, told)) for one in settings]


@contextlib.asynccontextmanager
async def provider(settings: ProviderSettings, engine: Machine, told: set[str]) -> AsyncIterator[JobWorker]:
    """A provider that takes executions, with a key, a connection and a state folder of its own. `told`: why job types
    are left out, as far as that was logged; several providers of a process leave out the same."""
    worker_id = settings.worker_id
    if not settings.nats_servers:
        raise ConfigurationError(
            "a provider takes its work from the broker: name it with --nats or FUMEHOOD_NATS_SERVERS"
        )
    async with contextlib.AsyncExitStack() as stack:
        keys = ReceiptKeys.load(settings.provider_state_dir)
        registry = Registry.load(settings.job_modules)
        broker = await stack.enter_async_context(_broker(settings, worker_id))
        boxes = await executor(settings, worker_id, broker, engine)
        bench = Workbench(chat=_chat(settings), sandboxes=boxes)
        without = {SANDBOX_RUN: engine.trouble} if engine.trouble is not None else {}
        found = served(registry, bench, types=settings.provider_job_types, ways=settings.ways, without=without)
        for name, why in found.left_out.items():
            if why not in told:
                _log.warning("job_type.left_out", job_type=name, worker_id=worker_id, notice=why)
        told.update(found.left_out.values())
        _log.info("provider.begins", worker_id=worker_id, job_types=list(found.handlers), key_id=keys.current.key_id)
        one = Provider(worker_id, registry, found.handlers, keys, settings.at_once)
        yield await stack.enter_async_context(providing(one, broker))


def _lock(folder: Path) -> int:
    taken = f"PROVIDER_STATE_DIR {folder} belongs to another provider that is running: give each its own"
    return take_lock(folder / LOCK_FILE, folder=f"PROVIDER_STATE_DIR {folder}", taken=taken)


@contextlib.asynccontextmanager
async def _broker(settings: ProviderSettings, worker_id: str) -> AsyncIterator[Broker]:
    options = connection(settings, f"fumehood-provider-{worker_id}", f"_INBOX_{worker_id}")
    broker = await waited_for(lambda: NatsBroker.open_worker(options), options, _log)
    try:
        yield broker
    finally:
        await broker.close()


def _chat(settings: ProviderSettings) -> ChatOptions | None:
    if settings.provider_openai_base_url is None or settings.provider_openai_model is None:
        return None
    file = settings.provider_openai_api_key_file
    return ChatOptions(
        base_url=settings.provider_openai_base_url,
        model=settings.provider_openai_model,
        api_key=TokenFile(file, noun="key").read()[0] if file is not None else "",
        timeout_seconds=settings.provider_openai_timeout_sec,
        max_retries=settings.provider_openai_max_retries,
        deadline_seconds=settings.provider_openai_deadline_sec,
        max_input_chars=settings.provider_openai_max_input_chars,
        max_tokens=settings.provider_openai_max_tokens,
        plain_http=settings.provider_openai_plain_http,
    )


def _signals() -> asyncio.Future[None]:
    """Done with the first signal. The second does not wait."""
    loop = asyncio.get_running_loop()
    leaving: asyncio.Future[None] = loop.create_future()

    def end() -> None:
        if leaving.done():
            os._exit(130)
        leaving.set_result(None)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    return leaving
