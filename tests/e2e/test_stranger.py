"""The stranger's path: build the package, install it into an empty environment, start it, run one job."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import socket
import subprocess
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import nats
import pytest
from nats.js.errors import APIError

from fumehood.cli.processes import held_port
from tests.dev_process import Dev, clean_environment
from tests.examples import installed
from tests.node_process import job_body
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
READY_SECONDS = 300.0


@pytest.fixture(scope="module")
def environment() -> Path:
    return installed.plain_environment()


def fumehood(environment: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [str(environment / "bin" / "fumehood"), *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=READY_SECONDS, check=False)


def test_the_wheel_carries_a_warden_for_each_architecture_and_its_types() -> None:
    wheel = installed.wheel()
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("sandbox/warden_bin/fumehood-warden-x86_64", "sandbox/warden_bin/fumehood-warden-aarch64", "py.typed"):
        assert f"fumehood/{name}" in names
    assert re.search(r"-py3-none-linux_\w+\.whl$", wheel.name)


def test_one_run_of_a_worker_that_speaks_plain_http(dev: Dev) -> None:
    """Applied and started over the API."""
    server, tokens = dev.server_url, dev.facts["tokens"]
    admin = httpx.Client(base_url=server, headers={"Authorization": f"Bearer {tokens['admin']}"}, timeout=240)
    worker = httpx.Client(base_url=server, headers={"Authorization": f"Bearer {tokens['bridge']}"}, timeout=240)
    with admin, worker:
        definition = {"name": "hello", "steps": [{"id": "greet", "task": "greeter"}]}
        admin.put("/v1/workflows/hello", json=definition).raise_for_status()
        started = admin.post("/v1/workflows/hello/runs", json={"input": {"who": "world"}}).raise_for_status()
        run = f"/v1/runs/{started.json()['run_id']}"
        poll = {"task_types": ["greeter"], "max_tasks": 1, "timeout_ms": 30_000}
        (task,) = worker.post("/v1/tasks/poll", json=poll).raise_for_status().json()
        output = {"said": f"hello {task['input']['who']}"}
        done = {"action": "complete", "output": output}
        worker.post(f"/v1/tasks/{task['task_id']}/resolve", json=done).raise_for_status()
        wait_until(lambda: admin.get(run).json()["status"] == "succeeded", what="the run ends")
        assert admin.get(run).json()["output"] == {"greet": output}


def test_a_plain_nats_client_needs_nothing_but_the_url(dev: Dev) -> None:
    """Contract 3 over NATS: a pull consumer, an event, an ack."""
    admin = dev.client()

    async def work() -> None:
        client = await nats.connect(dev.nats_url)
        try:
            stream = client.jetstream()
            subscribe = partial(stream.pull_subscribe, "task.plain.*", durable="task-plain", stream="TASK_QUEUES")
            try:
                tasks = await subscribe()
            except APIError:  # the client looks, then makes it; the server made it in between
                tasks = await subscribe()
            (message,) = await tasks.fetch(1, timeout=30)
            task = json.loads(message.data)
            event = {"type": "step.completed", "run_id": task["run_id"], "step_id": task["step_id"], "payload": 42}
            dedup = {"Nats-Msg-Id": f"{task['run_id']}.{task['step_id']}.step.completed"}
            await stream.publish(f"history.{task['run_id']}", json.dumps(event).encode(), headers=dedup)
            await message.ack()
        finally:
            await client.close()

    with admin:
        definition = {"name": "plain", "steps": [{"id": "a", "task": "plain"}]}
        admin.put("/v1/workflows/plain", json=definition).raise_for_status()
        started = admin.post("/v1/workflows/plain/runs", json={}).raise_for_status()
        asyncio.run(work())
        run = f"/v1/runs/{started.json()['run_id']}"
        wait_until(lambda: admin.get(run).json()["status"] == "succeeded", what="the run ends")
        assert admin.get(run).json()["output"] == {"a": 42}


def test_a_machine_without_an_engine_still_has_a_server(environment: Path, tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    options = ["--state", str(tmp_path / "state"), "--http-port", "0", "--grpc-port", "0", "--no-node"]
    options += ["--ready-file", str(ready)]
    env = {**clean_environment(tmp_path), "FUMEHOOD_DOCKER_SOCKET": str(tmp_path / "none.sock")}
    process = subprocess.Popen([str(environment / "bin" / "fumehood"), "dev", *options], env=env)
    try:
        wait_until(ready.exists, what="dev is ready")
        facts = json.loads(ready.read_text())
        assert set(facts["pids"]) == {"dev", "nats", "server"}
        assert "node_url" not in facts
        assert httpx.get(f"{facts['server_url']}/readyz").text == "ready"
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in facts["pids"].values() if pid != process.pid)
    finally:
        process.kill()
        process.wait()


def test_the_readme_shows_what_dev_says_when_it_is_ready(dev: Dev) -> None:
    def parts(text: str) -> tuple[list[str], list[str]]:
        places, commands = text.split("\ntry, in another terminal:\n")
        names = re.findall(r"^(?:ready|     )  (\S+(?: \S+)?) {2,}\S", places, re.MULTILINE)
        return names, [
            re.sub("127.0.0.1:[0-9]+", "HOST", line) for line in re.findall("^  (fumehood .+)", commands, re.M)
        ]

    shown = re.findall(r"```text\n(ready  .*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    wait_until(lambda: "session shell lab" in dev.log.read_text(encoding="utf-8"))
    said = dev.log.read_text(encoding="utf-8")
    assert "[info" not in said
    assert parts(shown[0]) == parts("ready  " + said.split("ready  ", 1)[1])


def test_the_ready_file_is_for_its_owner_alone(dev: Dev) -> None:
    assert (dev.log.parent / "ready.json").stat().st_mode & 0o077 == 0
    secrets = [*dev.state.glob("*.token"), *(dev.state / "nats").glob("*.*")]
    assert {path.name for path in secrets} >= {"api.token", "bridge.token", "worker-api.token", "nats.conf"}
    assert [path.name for path in secrets if path.suffix != ".log" and path.stat().st_mode & 0o077] == []


def test_doctor_tells_what_holds(environment: Path, tmp_path: Path, docker_socket: Path) -> None:
    answer = fumehood(environment, "doctor", "--json", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    report = json.loads(answer.stdout)
    runtimes = {runtime["name"]: runtime for runtime in report["runtimes"]}
    assert runtimes["runc"]["usable"]
    assert runtimes["runc"]["root_allowed"]
    assert runtimes["runsc"]["usable"]
    assert report["chosen"] == "runsc"
    for runtime in runtimes.values():
        for who in ("user", "root"):
            attempts = runtime["probe"][who]["attempts"]
            assert attempts["signal"] == attempts["mount"] == "EPERM"
        assert int(runtime["limits"]["memory_bytes"]) == 256 * 1024 * 1024


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["node", "--state", "/proc/no", "--insecure"], "fumehood: state_dir /proc/no cannot be used"),
        (["node", "--host", "0.0.0.0", "--insecure"], "fumehood: insecure is allowed only on a loopback host"),
        (["--version"], "fumehood 0."),
    ],
)
def test_a_typo_gets_a_sentence_not_a_traceback(environment: Path, tmp_path: Path, words: list[str], said: str) -> None:
    answer = fumehood(environment, *words, cwd=tmp_path)
    assert said in answer.stdout + answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_taken_port_is_one_sentence(environment: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        node = fumehood(environment, "node", "--state", str(tmp_path), "--port", port, "--insecure", cwd=tmp_path)
        dev = fumehood(environment, "dev", "--state", str(tmp_path / "dev"), "--node-port", port, cwd=tmp_path)
    assert (node.returncode, dev.returncode) == (2, 2)
    assert f"cannot listen on 127.0.0.1, port {port}: Address already in use\n" in node.stderr
    assert f"port {port} is taken" in dev.stderr


@pytest.mark.parametrize(
    "ending",
    [signal.SIGKILL, *(pytest.param(number, marks=pytest.mark.variant) for number in (signal.SIGHUP, signal.SIGTERM))],
)
def test_however_dev_ends_all_its_processes_end_with_it(
    environment: Path, tmp_path: Path, base_image: str, docker_socket: Path, ending: signal.Signals
) -> None:
    """It has run a job before, in an environment without any extra."""
    ready = tmp_path / "ready.json"
    options = ["--state", str(tmp_path / "state"), "--node-port", "0", "--http-port", "0", "--grpc-port", "0"]
    options += ["--ready-file", str(ready)]
    process = subprocess.Popen(
        [str(environment / "bin" / "fumehood"), "dev", *options], env=clean_environment(tmp_path)
    )
    try:
        wait_until(ready.exists, what="dev is ready")
        facts = json.loads(ready.read_text())
        _run_a_job(facts, base_image)
        pids = facts["pids"]
        others = [Path(f"/proc/{pid}/stat") for name, pid in pids.items() if name != "dev"]
        assert len(others) == 5
        process.send_signal(ending)
        process.wait(120)
        wait_until(lambda: not any(map(_lives, others)), what="all have ended")
    finally:
        process.kill()
        process.wait()


def _run_a_job(facts: dict[str, Any], image: str) -> None:
    headers = {"Authorization": f"Bearer {facts['tokens']['worker_api']}"}
    body = job_body(["bash", "-lc", "echo hello"], image=image)
    answer = httpx.post(f"{facts['node_url']}/v1/worker/jobs:run", json=body, headers=headers, timeout=240)
    assert answer.status_code == 200, answer.text
    assert (answer.json()["status"], answer.json()["stdout"]) == ("completed", "hello\n")
    assert httpx.get(f"{facts['node_url']}/readyz").text == "ready"


def _lives(stat: Path) -> bool:
    try:
        return stat.read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_a_runtime_that_is_not_there_is_named_by_readiness_and_doctor(
    environment: Path, tmp_path: Path, docker_socket: Path
) -> None:
    port = held_port()
    command = [str(environment / "bin" / "fumehood"), "node", "--state", str(tmp_path), "--insecure"]
    env = {**clean_environment(tmp_path), "FUMEHOOD_RUNTIME": "nonsuch"}
    said = "runtime nonsuch cannot run a sandbox"
    doctor = subprocess.run([command[0], "doctor"], capture_output=True, text=True, timeout=120, check=False, env=env)
    assert (doctor.returncode, said in doctor.stdout) == (1, True)
    process = subprocess.Popen([*command, "--port", str(port)], env=env)

    def explained() -> bool:
        try:
            return said in httpx.get(f"http://127.0.0.1:{port}/readyz").text
        except httpx.TransportError:
            return False

    try:
        wait_until(explained, what="readiness says what is wrong")
    finally:
        process.terminate()
        process.wait(120)


@pytest.mark.parametrize(
    ("words", "code"), [(["dev", "--state"], 2), (["node", "--insecure", "--port", "0", "--state"], 2), (["doctor"], 1)]
)
def test_without_the_right_to_the_engine_everything_says_so(
    environment: Path, tmp_path: Path, words: list[str], code: int
) -> None:
    """Without the capability that lets root pass every file's mode, a socket of mode 0 is shut for root as well."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("util-linux is not installed")
    powerless = [setpriv, "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"]
    address = tmp_path / "docker.sock"
    env = {**clean_environment(tmp_path), "FUMEHOOD_DOCKER_SOCKET": str(address)}
    state = [str(tmp_path / "state")] if words[-1] == "--state" else []
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(address))
        engine.listen()
        address.chmod(0)
        command = [*powerless, str(environment / "bin" / "fumehood"), *words, *state]
        answer = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False
        )
    assert answer.returncode == code, answer.stderr
    assert "you may not use the Docker Engine" in answer.stdout + answer.stderr


def test_without_an_engine_dev_says_what_to_do(environment: Path, tmp_path: Path) -> None:
    command = [str(environment / "bin" / "fumehood"), "dev", "--state", str(tmp_path / "state"), "--node-port", "0"]
    env = {**clean_environment(tmp_path), "FUMEHOOD_DOCKER_SOCKET": str(tmp_path / "none.sock")}
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False, env=env)
    assert answer.returncode == 2
    assert "apt-get install docker.io" in answer.stderr
