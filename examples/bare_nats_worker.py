"""A worker with nothing but a NATS client: what the wire protocol asks of one, in any language.

    python3 examples/bare_nats_worker.py --url nats://127.0.0.1:4222 --user trusted-1 --password-file trusted-1.password

It makes a durable consumer for its task type, takes tasks with manual acks, tells the run's history what became of
them, keeps checkpoints in the bucket `checkpoints`, and is in the directory while it lives. A consumer of one's own
needs a `trusted` user. A work queue has one consumer for each task type: where there is one already, it is used.

Its task counts to `count`: two numbers at a time, then it pauses for `pause_ms`. A `fail_until` makes the attempts
before that one fail.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import TimeoutError as NothingThereError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import KeyNotFoundError, NotFoundError
from nats.js.kv import KeyValue

STREAM = "TASK_QUEUES"
RENEW_SECONDS = 30
ACK_WAIT = 60
"""Seconds until a task comes again if this process is gone."""
NUMBERS_A_TIME = 2


class Paused(Exception):  # noqa: N818 - not an error
    """The task is to come again after a while."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class BareWorker:
    def __init__(self, client: Client, name: str, task_type: str, durable: str) -> None:
        self.client = client
        self.jetstream: JetStreamContext = client.jetstream()
        self.name = name
        self.task_type = task_type
        self.durable = durable
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        """Until `stopping`."""
        checkpoints = await self.jetstream.key_value("checkpoints")
        tasks = await self.jetstream.pull_subscribe_bind(durable=await self.consumer(), stream=STREAM)
        registering = asyncio.create_task(self.register())
        try:
            while not self.stopping.is_set():
                with contextlib.suppress(NothingThereError):
                    for message in await tasks.fetch(1, timeout=1):
                        await self.handle(message, checkpoints)
        finally:
            registering.cancel()

    async def consumer(self) -> str:
        """The name of the type's consumer: the one that is there, or one of our own making. What is there is left as
        it is: other workers live on it too."""
        shared = "task-" + self.task_type.replace(".", "=2E")
        for name in (self.durable, shared):
            with contextlib.suppress(NotFoundError):
                await self.jetstream.consumer_info(STREAM, name)
                return name
        config = ConsumerConfig(
            durable_name=self.durable,
            filter_subject=f"task.{self.task_type}.*",
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=ACK_WAIT,
            max_deliver=-1,
        )
        await self.jetstream.add_consumer(STREAM, config)
        return self.durable

    async def register(self) -> None:
        """Be in the directory: it forgets a worker after 60 seconds."""
        directory = await self.jetstream.key_value("workers")
        entry = {
            "worker_id": self.name,
            "task_types": [self.task_type],
            "language": "python",
            "transport": "nats",
            "max_tasks": 1,
        }
        while True:
            await directory.put(self.name, json.dumps(entry).encode())
            await asyncio.sleep(RENEW_SECONDS)

    async def handle(self, message: Msg, checkpoints: KeyValue) -> None:
        """One task, from its message to its ack. The history hears first: an ack that is lost only means that the
        task comes again, and the engine takes an answer once."""
        task = json.loads(message.data)
        await self.tell(task, "step.started", None)
        try:
            output = await self.count(task, message, checkpoints)
        except Paused as pause:
            await message.nak(delay=pause.seconds)
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the run must hear of it
            await self.tell(task, "step.failed", {"code": type(error).__name__, "message": str(error)})
        else:
            await self.tell(task, "step.completed", output)
        await message.ack()

    async def tell(self, task: dict[str, Any], event_type: str, payload: Any) -> None:
        """An event on the run's history, under an id of its own: the protocol's plain one for the first attempt."""
        attempt, iteration = task.get("attempt", 1), task.get("iteration", 0)
        event = {
            "type": event_type,
            "run_id": task["run_id"],
            "step_id": task["step_id"],
            "attempt": attempt,
            "iteration": iteration,
            "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            "payload": payload,
            "worker_id": self.name,
        }
        later = (f".a{attempt}" if attempt > 1 else "") + (f".i{iteration}" if iteration else "")
        event_id = f"{task['run_id']}.{task['step_id']}.{event_type}{later}"
        await self.jetstream.publish(
            f"history.{task['run_id']}", json.dumps(event).encode(), headers={"Nats-Msg-Id": event_id}
        )

    async def count(self, task: dict[str, Any], message: Msg, checkpoints: KeyValue) -> dict[str, Any]:
        """The work itself."""
        wish = task.get("input") or {}
        if task.get("attempt", 1) < wish.get("fail_until", 1):
            raise RuntimeError(f"attempt {task.get('attempt', 1)} fails, as it was told to")
        key = f"{task['run_id']}.{task['step_id']}"
        counted = await self.saved(checkpoints, key)
        for _ in range(NUMBERS_A_TIME):
            if len(counted) < wish.get("count", 1):
                counted.append(len(counted) + 1)
                await checkpoints.put(key, json.dumps(counted).encode())
                await message.in_progress()  # the ack wait begins anew
        if len(counted) < wish.get("count", 1):
            raise Paused(wish.get("pause_ms", 1000) / 1000)
        await checkpoints.delete(key)
        return {"counted": counted}

    async def saved(self, checkpoints: KeyValue, key: str) -> list[int]:
        try:
            return list(json.loads((await checkpoints.get(key)).value or b"[]"))
        except KeyNotFoundError:
            return []


async def main() -> None:
    parser = argparse.ArgumentParser(description="Serve one task type over plain NATS.")
    parser.add_argument("--url", default="nats://127.0.0.1:4222")
    parser.add_argument("--user", required=True, help="also the worker's name, and where its answers come in")
    parser.add_argument("--password-file", type=Path, required=True)
    parser.add_argument("--task-type", default="count")
    parser.add_argument("--durable", help="the consumer's name; by default the one that others use too")
    options = parser.parse_args()

    client = await nats.connect(
        options.url,
        user=options.user,
        password=options.password_file.read_text(encoding="utf-8").strip(),
        inbox_prefix=f"_INBOX_{options.user}",
        max_reconnect_attempts=-1,
    )
    durable = options.durable or "task-" + options.task_type.replace(".", "=2E")
    worker = BareWorker(client, options.user, options.task_type, durable)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, worker.stopping.set)
    try:
        await worker.run()
    finally:
        await client.close()


if __name__ == "__main__":
    asyncio.run(main())
