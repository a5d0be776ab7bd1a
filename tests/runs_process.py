"""A cell for tests of the Runner API: a real nats-server, servers and nodes, each a process that may be killed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from tests.conformance.broker_bench import NODE, OTHER_NODE, NatsServer
from tests.node_process import NodeProcess
from tests.server_process import ServerProcess, start_together
from tests.waiting import until

ENDED = frozenset({"succeeded", "failed", "timed_out", "stopped"})
ORPHAN_SECONDS = 4
LEASE_SECONDS = ORPHAN_SECONDS + 30
RESOURCES = {"cpu_millis": 1000, "memory_mb": 128, "timeout_seconds": 300}


@dataclass(slots=True)
class Event:
    """One event of a stream."""

    id: str = ""
    name: str = ""
    data: dict[str, Any] = field(default_factory=dict)


class Cell:
    """Use as `with Cell(tmp_path, servers=2, nodes=2) as cell`."""

    def __init__(
        self,
        folder: Path,
        *,
        servers: int = 1,
        nodes: int = 1,
        runtime: str = "runc",
        env: Mapping[str, str] = {},
        server_env: Mapping[str, str] = {},
    ) -> None:
        """`env` is the nodes' own."""
        folder.mkdir(exist_ok=True)
        self.nats = NatsServer(folder / "nats", 1)
        self._folder = folder
        self._servers, self._nodes = servers, nodes
        self._runtime = runtime
        self._env = env
        self._server_env = {"FUMEHOOD_DRAIN_SECONDS": "1", **server_env}
        self.servers: list[ServerProcess] = []
        self.nodes: list[NodeProcess] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self.nats.start()
        self._stack.callback(self.nats.kill)
        try:
            for number in range(self._servers):
                server = ServerProcess(self._folder, self.nats, name=f"server-{number}", env=self._server_env)
                self.servers.append(server)
            start_together(self.servers, self._stack)
            for number in range(self._nodes):
                self.nodes.append(self._stack.enter_context(self.node(number)))
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def node(self, number: int, env: Mapping[str, str] = {}) -> NodeProcess:
        """Not started."""
        user = (NODE, OTHER_NODE)[number]
        options = self.nats.options(user)
        password = self._folder / f"node-{number}.password"
        password.touch(mode=0o600)
        password.write_text(str(user.password))
        return NodeProcess(
            self._folder,
            runtime=self._runtime,
            env={
                "FUMEHOOD_NATS_SERVERS": options.servers[0],
                "FUMEHOOD_NATS_USER": user.name,
                "FUMEHOOD_NATS_PASSWORD_FILE": str(password),
                "FUMEHOOD_ORPHAN_SECONDS": str(ORPHAN_SECONDS),
                **self._env,
                **env,
            },
        )

    # --- as a client ---------------------------------------------------------------------------------------

    def client(self, server: int = 0) -> httpx.AsyncClient:
        one = self.servers[server]
        headers = {"authorization": f"Bearer {one.token}"}
        return httpx.AsyncClient(base_url=one.url, headers=headers, timeout=240, trust_env=False)

    async def create(self, image: str, *command: str, server: int = 0, **more: Any) -> str:
        body = {
            "image_ref": image,
            "command": list(command),
            "resources": RESOURCES,
            "network_policy_profile": "deny-all",
            **more,
        }
        async with self.client(server) as client:
            answer = await client.post("/runs", json=body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["run_id"])

    async def get(self, run_id: str, *, server: int = 0) -> dict[str, Any]:
        async with self.client(server) as client:
            answer = await client.get(f"/runs/{run_id}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def until(self, run_id: str, *statuses: str, server: int = 0, timeout: float = 120.0) -> dict[str, Any]:
        """The run as soon as it has one of these statuses; without any, as soon as it has ended. A server that is away
        for a moment is asked again."""
        wanted = frozenset(statuses) or ENDED
        last: dict[str, Any] = {}

        async def has_it() -> bool:
            nonlocal last
            with contextlib.suppress(httpx.HTTPError, AssertionError):
                last = await self.get(run_id, server=server)
                return last["status"] in wanted
            return False

        def trouble() -> str:
            return f"not {sorted(wanted)}: {last}\n" + "\n".join(node.log_tail()[-1500:] for node in self.nodes)

        await until(has_it, timeout, what=trouble, every=0.1)
        return last

    async def receipt(self, run_id: str, *, server: int = 0) -> dict[str, Any]:
        async with self.client(server) as client:
            answer = await client.get(f"/runs/{run_id}/receipt")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def logs(self, run_id: str, *, server: int = 0, tail_lines: int = 10_000) -> dict[str, Any]:
        async with self.client(server) as client:
            answer = await client.get(f"/runs/{run_id}/logs", params={"tail_lines": tail_lines})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def stop(self, run_id: str, *, server: int = 0) -> None:
        async with self.client(server) as client:
            answer = await client.post(f"/runs/{run_id}/stop")
        assert answer.status_code == 202, answer.text

    async def stream(self, run_id: str, *, after: str | None = None, server: int = 0) -> AsyncIterator[Event]:
        """The log's events until its end, or until the connection breaks (`httpx.HTTPError`)."""
        headers = {} if after is None else {"last-event-id": after}
        async with self.client(server) as client, client.stream(
            "GET", f"/runs/{run_id}/logs/stream", headers=headers
        ) as answer:  # fmt: skip
            if answer.status_code == 204:  # all of it was told before
                yield Event(name="end")
                return
            assert answer.status_code == 200, await answer.aread()
            async for event in _events(answer):
                yield event
                if event.name == "end":
                    return

    async def clean(self, *, timeout: float = 90.0) -> None:
        """No node has left a container, or output that nobody needs."""
        for node in self.nodes:
            if not node.alive:
                continue
            folder = node.state_dir / "output"
            await node.nothing_left(timeout)
            await until(partial(_is_empty, folder), timeout, what="output is left behind")


def _is_empty(folder: Path) -> bool:
    return not folder.is_dir() or not list(folder.iterdir())


async def _events(answer: httpx.Response) -> AsyncIterator[Event]:
    event = Event()
    async for line in answer.aiter_lines():
        name, _, value = line.partition(": ")
        if name == "id":
            event.id = value
        elif name == "event":
            event.name = value
        elif name == "data":
            event.data = json.loads(value)
        elif not line and event.name:
            yield event
            event = Event(event.id)
