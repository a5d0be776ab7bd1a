"""A node's entry in the directory of workers, so that people see it, and how much it takes at once.

It is there while the node takes tasks: not before a first sandbox ran, and not any more once the node drains. One that
is killed is forgotten by the directory after a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from importlib.metadata import version
from typing import Any

from fumehood.broker.ports import Broker, Bucket
from fumehood.errors import BrokerError
from fumehood.images.admission import AdmissionPolicy
from fumehood.wire.protocol import WorkerRegistration
from fumehood.wire.sandbox import POLICY, POLICY_SHA256, RECEIPT_KEY, SANDBOX_TASK

RENEW_SECONDS = 30.0
"""As the wire protocol says: the directory forgets a worker after 60."""
LOOK_SECONDS = 1.0
"""Between two looks whether there is anything to change, or to try again."""
LEAVE_SECONDS = 5.0
"""What the broker has for hearing that we go."""


def entry(name: str, node_id: str, slots: int, policy: AdmissionPolicy, receipt_key: str) -> WorkerRegistration:
    """`name`: that of the node's user at the broker, which lets nobody register under another. The policy is told, so
    that servers and people see a node that decides by another one than they think; and the public half of the key that
    receipts in this name are signed with, so that somebody can put it on the list of keys."""
    file = {POLICY_SHA256: policy.sha256} if policy.sha256 is not None else {}
    return WorkerRegistration(
        worker_id=name,
        task_types=[SANDBOX_TASK],
        language="python",
        transport="nats",
        max_tasks=slots,
        metadata={
            "node_id": node_id,
            "version": version("fumehood"),
            RECEIPT_KEY: receipt_key,
            POLICY: policy.name,
            **file,
        },
    )


@contextlib.asynccontextmanager
async def listed(
    broker: Broker, me: Callable[[], WorkerRegistration], takes_tasks: Callable[[], bool], log: Any
) -> AsyncIterator[None]:
    """In the directory while the block lasts and tasks are taken. Nothing else of the node waits for it. What `me` says
    may change, but for the name."""
    keeping = asyncio.create_task(_keep(broker, me, takes_tasks, log))
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        with contextlib.suppress(BrokerError, TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await broker.bucket(Bucket.WORKERS).delete(me().worker_id)


async def _keep(
    broker: Broker, me: Callable[[], WorkerRegistration], takes_tasks: Callable[[], bool], log: Any
) -> None:
    workers, said = broker.bucket(Bucket.WORKERS), b""
    loop = asyncio.get_running_loop()
    is_listed, due, is_told = False, 0.0, False
    while True:
        wanted, registration = takes_tasks(), me()
        entry_now = registration.model_dump_json().encode()
        try:
            if wanted and (not is_listed or entry_now != said or loop.time() >= due):
                await workers.put(registration.worker_id, entry_now)
                is_listed, due, is_told, said = True, loop.time() + RENEW_SECONDS, False, entry_now
            elif is_listed and not wanted:
                await workers.delete(registration.worker_id)
                is_listed = False
        except BrokerError as error:
            if not is_told:
                log.warning("node.not_listed", code=error.code, detail=error.detail)
            is_told = True
        await asyncio.sleep(LOOK_SECONDS)
