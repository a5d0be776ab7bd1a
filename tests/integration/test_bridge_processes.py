"""Real servers with bridges in them, a run that needs a worker, and the server that handed the task out killed."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.conformance.broker_bench import fresh
from tests.conftest import TimeBounds
from tests.noise import Watch
from tests.server_process import ServerProcess
from tests.waiting import wait_until

PATIENCE = 180.0


class Cell:
    """Two servers on one broker."""

    def __init__(self, one: ServerProcess, other: ServerProcess) -> None:
        self.one, self.other = one, other

    def start(self, steps: str, kind: str) -> str:
        name = fresh("w")
        text = f"name: {name}\nsteps:\n{steps.format(kind=kind)}"
        with self.other.client() as client:
            headers = {"content-type": "application/yaml"}
            client.put(f"/v1/workflows/{name}", content=text, headers=headers).raise_for_status()
            answer = client.post(f"/v1/workflows/{name}/runs", json={"input": {"n": 1}})
            return str(answer.raise_for_status().json()["run_id"])

    def run(self, run_id: str) -> dict[str, Any]:
        with self.other.client() as client:
            view: dict[str, Any] = client.get(f"/v1/runs/{run_id}").raise_for_status().json()
            return view

    def ended(self, run_id: str) -> dict[str, Any]:
        done = {"succeeded", "failed", "timed_out", "cancelled"}
        wait_until(lambda: self.run(run_id)["status"] in done)
        return self.run(run_id)


def workers(server: ServerProcess) -> httpx.Client:
    return server.client(server.bridge_token)


def poll(client: httpx.Client, kind: str) -> dict[str, Any]:
    body = {"task_types": [kind], "max_tasks": 1, "timeout_ms": 30_000}
    (task,) = client.post("/v1/tasks/poll", json=body).raise_for_status().json()
    found: dict[str, Any] = task
    return found


def resolve(client: httpx.Client, task: dict[str, Any], action: str, **fields: Any) -> int:
    path = f"/v1/tasks/{task['task_id']}/resolve"
    return client.post(path, json={"action": action, **fields}).status_code


@pytest.fixture
def cell(servers: tuple[ServerProcess, ServerProcess]) -> Cell:
    return Cell(*servers)


STEP = "  - {{id: a, task: {kind}}}\n"


def test_polled_at_a_server_that_is_killed_resolved_at_another_counted_once(cell: Cell) -> None:
    kind = fresh("kind")
    run_id = cell.start(STEP, kind)
    with workers(cell.one) as client:
        task = poll(client, kind)
    cell.one.kill()
    with workers(cell.other) as client:
        assert resolve(client, task, "heartbeat", lease_id=task["lease_id"]) == 200
        answers = [resolve(client, task, "complete", output={"n": 2}, lease_id=task["lease_id"]) for _ in range(3)]
        assert answers == [200, 200, 200]
        view = cell.ended(run_id)
        assert (view["status"], view["steps"]["a"]["output"], view["steps"]["a"]["attempt"]) == (
            "succeeded",
            {"n": 2},
            1,
        )
        assert resolve(client, task, "fail", error="too late", lease_id=task["lease_id"]) == 409
        assert resolve(client, task, "complete", output={"n": 3}) == 404
    assert cell.run(run_id)["steps"]["a"]["output"] == {"n": 2}


def test_a_pause_a_checkpoint_a_retry_and_a_loop_through_the_bridge(cell: Cell) -> None:
    kind = fresh("kind")
    run_id = cell.start(
        "  - {{id: a, agent_loop: {{task: {kind}, max_iterations: 3}}, retry: {{attempts: 2, backoff: 10ms}}}}\n", kind
    )
    with workers(cell.one) as one, workers(cell.other) as other:
        first = poll(one, kind)
        assert resolve(other, first, "checkpoint", data={"page": 1}) == 200
        assert resolve(one, first, "pause", duration_ms=50, checkpoint={"page": 2}) == 200
        second = poll(other, kind)
        assert (second["attempt"], second["checkpoint"]) == (1, {"page": 2})
        assert resolve(one, second, "fail", error="once") == 200
        third = poll(one, kind)
        assert (third["attempt"], third["checkpoint"]) == (2, {"page": 2})
        assert resolve(other, third, "continue", output={"thought": 1}) == 200
        fourth = poll(other, kind)
        assert (fourth["iteration"], fourth["input"]["previous"]) == (1, {"thought": 1})
        assert resolve(one, fourth, "signal", name="progress", data=1) == 200
        assert resolve(one, fourth, "complete", output="done") == 200
        view = cell.ended(run_id)
        assert (view["status"], view["steps"]["a"]["output"]) == ("succeeded", "done")
        assert one.get(f"/v1/tasks/{fourth['task_id']}/checkpoint").status_code == 404
        assert one.get("/v1/workflows").status_code == 403


def test_a_cancel_reaches_a_worker_with_its_next_heartbeat(cell: Cell) -> None:
    kind = fresh("kind")
    run_id = cell.start(STEP, kind)
    with workers(cell.one) as client:
        task = poll(client, kind)
        with cell.other.client() as admin:
            assert admin.post(f"/v1/runs/{run_id}:cancel").is_success
        wait_until(lambda: resolve(client, task, "heartbeat", lease_id=task["lease_id"]) in (404, 409))
        assert resolve(client, task, "complete", output=1, lease_id=task["lease_id"]) in (404, 409)
    assert cell.ended(run_id)["status"] == "cancelled"


def test_a_server_told_to_stop_ends_its_polls_and_streams_at_once(cell: Cell, time_bounds: TimeBounds) -> None:
    with workers(cell.one) as client:
        body = {"worker_id": fresh("worker"), "task_types": ["x"], "max_tasks": 1}
        with client.stream("POST", "/v1/workers/connect", json=body) as stream:
            lines = stream.iter_lines()
            assert next(lines) == "event: heartbeat"
            began = Watch()
            assert cell.one.terminate() == 0
            assert [line for line in lines if line.startswith("event")] == []
    time_bounds.check(began.seconds, 10)
