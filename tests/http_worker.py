"""A worker of another language, so to speak: plain HTTP; and workflows with tasks for it."""

from __future__ import annotations

import threading
from typing import Any

import httpx

from tests.server_process import ServerProcess

EVERY_KIND = """
name: order
steps:
  - {id: find, task: greet, with: {who: input.who}}
  - {id: pack, needs: [find], map: {over: input.items, task: greet}, with: {who: item}}
  - {id: ask, needs: [find], approval: {message: "ship it?"}}
  - {id: paid, needs: [find], wait_signal: {name: paid}}
  - {id: ship, needs: [pack, ask, paid], task: greet, with: {who: "'the ' + steps.find.output"}}
output: {said: steps.ship.output, paid: steps.paid.output, packed: steps.pack.output}
"""
FRAGILE = """
name: fragile
steps:
  - {id: before, task: greet, with: {who: "'you'"}}
  - {id: break, needs: [before], task: mood}
"""


class HttpWorker:
    """A worker that speaks plain HTTP: `greet` greets, and the step `break` fails for as long as the mood is bad."""

    def __init__(self, server: ServerProcess) -> None:
        self.is_bad = threading.Event()
        self._server = server
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> HttpWorker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        with self._server.client(self._server.bridge_token) as client:
            while not self._over.is_set():
                try:
                    self._take(client)
                except httpx.HTTPError:  # a test killed the server; a task that was not answered comes again
                    self._over.wait(0.2)

    def _take(self, client: httpx.Client) -> None:
        poll = {"worker_id": "hands", "task_types": ["greet", "mood"], "max_tasks": 8, "timeout_ms": 1000}
        for task in client.post("/v1/tasks/poll", json=poll).raise_for_status().json():
            resolve = f"/v1/tasks/{task['task_id']}/resolve"
            client.post(resolve, json=self._answer(task)).raise_for_status()

    def _answer(self, task: dict[str, Any]) -> dict[str, Any]:
        if task["step_id"] == "break" and self.is_bad.is_set():
            return {"action": "fail", "error": {"code": "bad_mood", "message": "not today"}}
        return {"action": "complete", "output": f"hello {(task.get('input') or {}).get('who')}"}
