"""`fumehood server` as operators and callers meet it: several of them, one broker, and any of them killed."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import httpx

from tests.conformance.broker_bench import NatsServer
from tests.server_process import ServerProcess
from tests.waiting import wait_until

SMALL = "name: w\nsteps:\n  - {id: a, task: t}\n"
NAP = "name: nap\nsteps:\n  - {id: a, sleep: 1s}\n"
YAML = {"content-type": "application/yaml"}
PATIENCE = 180.0


Pair = tuple[ServerProcess, ServerProcess]


def apply(client: httpx.Client, text: str) -> None:
    name = text.split()[1]
    client.put(f"/v1/workflows/{name}", content=text, headers=YAML).raise_for_status()


def status(client: httpx.Client, run_id: str) -> str:
    return str(client.get(f"/v1/runs/{run_id}").raise_for_status().json()["status"])


def test_a_run_started_at_one_server_goes_on_at_another(servers: Pair) -> None:
    """The first is killed the moment after it has said yes."""
    one, other = servers
    with one.client() as client:
        apply(client, NAP)
        answer = client.post("/v1/workflows/nap/runs", json={"idempotency_key": "k"})
        assert answer.status_code == 201
        run_id = answer.json()["run_id"]
    one.kill()
    with other.client() as client:
        assert status(client, run_id) in ("queued", "running", "succeeded")
        again = client.post("/v1/workflows/nap/runs", json={"idempotency_key": "k"})
        assert (again.status_code, again.json()["run_id"]) == (200, run_id)
        wait_until(lambda: status(client, run_id) == "succeeded", what="the run ends at the other server")
        kinds = [
            event["type"]
            for record in client.get(f"/v1/runs/{run_id}/history").json()["records"]
            for event in record["events"]
        ]
        assert kinds.count("run.started") == kinds.count("run.succeeded") == 1


def test_one_key_at_two_servers_at_once_is_one_run(servers: Pair) -> None:
    one, other = servers
    with one.client() as client:
        apply(client, SMALL)
    ids: list[str] = []

    def start(server: ServerProcess) -> None:
        with server.client() as client:
            answer = client.post("/v1/workflows/w/runs", json={"input": 1, "idempotency_key": "race"})
            ids.append(answer.raise_for_status().json()["run_id"])

    threads = [threading.Thread(target=start, args=(server,)) for server in (one, other) * 25]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 50
    assert len(set(ids)) == 1
    with other.client() as client:
        assert client.post(f"/v1/runs/{ids[0]}:cancel").status_code == 202
        wait_until(lambda: status(client, ids[0]) == "cancelled", what="the run is cancelled")


def test_without_a_broker_nothing_is_promised_and_with_it_all_is_well_again(tmp_path: Path) -> None:
    nats = NatsServer(tmp_path / "nats", 1)
    nats.start()
    try:
        with ServerProcess(tmp_path, nats) as server, server.client() as client:
            apply(client, SMALL)
            assert client.get("/readyz").text == "ready"
            nats.kill()
            wait_until(lambda: client.get("/readyz").status_code == 503, what="readiness notices")
            answer = client.post("/v1/workflows/w/runs", json={})
            assert (answer.status_code, answer.json()["type"]) == (503, "urn:fumehood:problem:broker-unavailable")
            assert int(answer.headers["retry-after"]) > 0
            assert client.get("/healthz").text == "ok"
            nats.start()
            wait_until(lambda: client.get("/readyz").status_code == 200, what="readiness returns")
            run_id = client.post("/v1/workflows/w/runs", json={}).raise_for_status().json()["run_id"]
            wait_until(lambda: status(client, run_id) == "running", what="deciders are at work again")
    finally:
        nats.kill()


def test_credentials_that_the_broker_refuses_are_one_sentence(servers_nats: NatsServer, tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, servers_nats)
    (server.folder / "password").write_text("wrong")
    server.launch()
    assert server._process is not None
    assert server._process.wait(120) == 2
    said = server.log_file.read_text()
    assert "the broker refused our credentials" in said
    assert "Traceback" not in said
    assert "wrong" not in said


def test_credentials_that_were_not_given_are_not_called_wrong(servers_nats: NatsServer) -> None:
    command = [sys.executable, "-m", "fumehood", "server", "--port", "0", "--nats", *servers_nats.options().servers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 2
    assert "the broker asks for credentials and none were given: --nats-user" in done.stderr
    assert "refused" not in done.stderr


def test_the_metrics_tell_that_the_broker_is_there_although_nobody_asks(servers: Pair) -> None:
    with servers[0].client() as client:
        text = client.get("/metrics").text
        assert "fumehood_server_broker_connected 1.0" in text
        assert "fumehood_server_ready 1.0" in text
