"""A provider while it is on: it takes executions, is listed in the directory, and hears whether it was set aside."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import structlog

from fumehood.broker.ports import Broker, Bucket
from fumehood.jobs.base import Handler
from fumehood.jobs.registry import Registry
from fumehood.node import registration
from fumehood.node.jobs.standing import Standing
from fumehood.node.jobs.worker import JobWorker, WorkerParts
from fumehood.node.signing import ReceiptKeys
from fumehood.wire.protocol import WorkerRegistration
from fumehood.wire.sandbox import RECEIPT_KEY

JOB_TYPES = "job_types"
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Provider:
    """Who it is, and what it can do."""

    worker_id: str
    registry: Registry
    handlers: Mapping[str, Handler[Any, Any]]
    keys: ReceiptKeys
    at_once: int


@contextlib.asynccontextmanager
async def providing(provider: Provider, broker: Broker) -> AsyncIterator[JobWorker]:
    """While the block lasts. Whoever ends it drains first, or what runs is given back to others."""
    standing = Standing(broker.bucket(Bucket.PROVIDERS), provider.worker_id)
    worker = JobWorker(
        WorkerParts(
            worker_id=provider.worker_id,
            broker=broker,
            registry=provider.registry,
            handlers=provider.handlers,
            key=lambda: provider.keys.current,
            at_once=provider.at_once,
            is_wanted=lambda: not standing.set_aside,
        )
    )
    await standing.look()
    loops = [asyncio.create_task(standing.watch()), asyncio.create_task(worker.forever())]
    try:
        async with registration.listed(broker, lambda: entry(provider, worker), lambda: worker.is_open, _log):
            yield worker
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await worker.close()


def entry(provider: Provider, worker: JobWorker) -> WorkerRegistration:
    """As others see it. The key is told, so that an operator can put it on the list of keys; nobody believes it for
    being told."""
    return WorkerRegistration(
        worker_id=provider.worker_id,
        task_types=worker.task_types,
        language="python",
        transport="nats",
        max_tasks=provider.at_once,
        metadata={
            RECEIPT_KEY: provider.keys.public_key_hex,
            JOB_TYPES: ",".join(provider.handlers),
            "version": version("fumehood"),
        },
    )
