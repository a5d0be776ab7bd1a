"""Nodes that decide by no policy file, where this server does: they run what the server's policy forbids.

A server asks its policy about the runs that it takes, and the steps of workflows are judged by nodes alone. So one node
that was given no file undoes the policy for them, and nobody would notice: the log of every server says so, once for
each node, and again when it changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from fumehood.broker.ports import Broker
from fumehood.control.directory import Directory
from fumehood.errors import FumehoodError
from fumehood.images import Admission
from fumehood.wire.sandbox import POLICY, POLICY_SHA256, SANDBOX_TASK

LOOK_SECONDS: Final = 30.0
"""As often as nodes renew what they say."""
MOST: Final = 10_000

NOTICE: Final = (
    "this node has no policy file, and this server has one: steps of workflows run there whatever the server's policy "
    "says; give every node the same policy_file"
)

_log = structlog.get_logger()


class NodePolicies:
    def __init__(
        self,
        broker: Broker,
        admission: Admission | None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Without `admission`, or with one that has no file, there is nothing to compare with."""
        self._directory = Directory(broker)
        self._admission = admission
        self._sleep = sleep
        self._told: dict[str, str | None] = {}
        """By node: which policy it named when that was said."""

    async def work(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.look()
            except FumehoodError as error:
                _log.warning("node_policies.interrupted", code=error.code)
            await self._sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Say it of those of whom it was not said yet."""
        if self._admission is None or self._admission.policy.sha256 is None:
            self._told = {}
            return
        workers, _ = await self._directory.workers(limit=MOST)
        nodes = [one for one in workers if SANDBOX_TASK in one.task_types and POLICY_SHA256 not in one.metadata]
        found = {node.worker_id: node.metadata.get(POLICY) for node in nodes}
        for node, policy in found.items():
            if node not in self._told or self._told[node] != policy:
                _log.warning("node_policies.none", node=node, policy=policy, notice=NOTICE)
        self._told = found
