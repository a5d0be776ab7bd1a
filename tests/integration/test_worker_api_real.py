"""The Worker API as a caller meets it: a real node, a real engine, and every row of the decision table that needs them.

What needs no sandbox is in `tests/contract/`; what hostile programs do is in `test_hostile.py`; what happens when
processes die is in `tests/faults/`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.core.result import Ok

from tests.node_process import (
    DOCKER_SOCKET,
    LABEL_JOB,
    ROOT,
    RUN_JOB,
    NodeProcess,
    job_body,
    programs_with,
    write_token,
)
from tests.receipt_check import checked, sha256
from tests.waiting import until

pytestmark = pytest.mark.timeout(600)

CANARY = f"canary-{uuid.uuid4().hex}"
ONCE = "head -c 16 /dev/urandom | od -An -v -tx1"
"""Prints something else each time it is really run."""


def contract(path: str) -> Any:
    return json.loads((ROOT / "contracts" / path).read_text(encoding="utf-8"))


def fits(name: str, document: object) -> None:
    """Hold a document against the contract's own schema."""
    schema = contract(f"schemas/worker-api-{name}.json")
    jsonschema_rs.validator_for(schema, validate_formats=True).validate(document)


def completed(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    fits("run-job-response", body)
    assert (body["status"], body["exit_code"]) == ("completed", 0), body
    return body


def problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    fits("problem", body)
    assert body["type"] == f"urn:fumehood:problem:{code}"
    return body


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, docker_socket: Path, registry: str) -> Iterator[NodeProcess]:
    """Shared by all tests that do not change it. Public registries are shut, so that no test asks the internet."""
    env = {"NODE_CANARY": CANARY, "FUMEHOOD_SLOTS": "8", "FUMEHOOD_QUEUE": "64"}
    env |= {"FUMEHOOD_UNSIGNED_PUBLIC_IMAGES": "false"}
    with NodeProcess(tmp_path_factory.mktemp("node"), env=env) as running:
        yield running


@pytest.fixture(scope="module")
def small_node(tmp_path_factory: pytest.TempPathFactory, docker_socket: Path, registry: str) -> Iterator[NodeProcess]:
    """One slot, no queue: for tests of a node at its limits, and of its end. They leave it running."""
    env = {"FUMEHOOD_SLOTS": "1", "FUMEHOOD_QUEUE": "0"}
    with NodeProcess(tmp_path_factory.mktemp("node"), env=env) as running:
        yield running


async def containers_made(job_id: str, *, after: float | None = None) -> int:
    """How many containers the engine made for a job, of late: it remembers some hundred events of all jobs together."""
    filters = {"type": ["container"], "event": ["create"], "label": [f"{LABEL_JOB}={job_id}"]}
    since = after if after is not None else time.time() - 600
    window = {"since": f"{since:.9f}", "until": str(int(time.time()) + 1)}
    transport = httpx.AsyncHTTPTransport(uds=str(DOCKER_SOCKET))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=240) as engine:
        answer = await engine.get("/events", params={"filters": json.dumps(filters), **window})
    return len(answer.text.splitlines())


async def running(node: NodeProcess, job_id: str) -> None:
    """Wait until a job's sandbox is up."""

    async def up() -> bool:
        return any(item["State"] == "running" for item in await node.containers(job_id=job_id))

    await until(up, what="the job does not run")


async def post_when_free(node: NodeProcess, body: dict[str, Any]) -> httpx.Response:
    """A slot comes free a moment after the answer of the job that had it."""

    async def accepted() -> httpx.Response | None:
        response = await node.post(body)
        return None if response.status_code == 503 else response

    return await until(accepted, what="the slot does not come free")


async def end_sleep(node: NodeProcess, job_id: str) -> None:
    """Let a job's program go on after its `sleep`, once the node has every request that was sent before."""
    for _ in range(3):
        await node.ready()  # a round trip of its own
    for pid in await until(
        lambda: programs_with(f"CYNODE_JOB_ID={job_id}", "sleep"), what="the program does not sleep"
    ):
        os.kill(pid, signal.SIGTERM)


# --- the contract's own words ------------------------------------------------------------------------------


async def test_the_contracts_own_request(node: NodeProcess, base_image: str) -> None:
    request = contract("golden/worker-api/request.json")
    request["sandbox"]["image"] = base_image
    fits("run-job-request", request)
    body = completed(await node.post(request))
    golden = contract("golden/worker-api/response-completed.json")
    times = {"started_at", "ended_at"}
    assert {name: body[name] for name in body if name not in times} == {
        name: golden[name] for name in golden if name not in times
    }
    assert body["started_at"] <= body["ended_at"]
    await node.nothing_left()


async def test_a_jobs_receipt_is_of_all_that_it_printed(node: NodeProcess, base_image: str) -> None:
    """Also where that is more than its answer holds."""
    body = job_body(["sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' x; echo oh >&2; exit 3"], image=base_image)
    answer = await node.post(body)
    said = answer.json()
    assert (said["exit_code"], said["truncated"]) == (3, {"stdout": True, "stderr": False})
    receipt = await node.get(f"/v1/worker/jobs/{body['job_id'].upper()}/receipt")
    assert receipt.status_code == 200
    found = checked(receipt.json(), node.state_dir, node.node_id)
    assert answer.headers["fumehood-receipt-key"] == found.predicate.worker.key_id
    assert found.digest_of("stdout") == sha256(b"x" * 1_000_000)
    assert found.digest_of("stdout.returned") == sha256(said["stdout"].encode())
    assert found.digest_of("stderr") == sha256(b"oh\n")
    claim = found.predicate
    assert claim.task == {"job_id": body["job_id"], "task_id": body["task_id"]}
    assert claim.image is not None
    assert base_image.endswith(claim.image.digest) or claim.image.digest.startswith("sha256:")
    assert (claim.observed["isolation"]["runtime"], claim.observed["isolation"]["network"]) == ("runc", "none")
    assert (claim.outcome.status, claim.outcome.exit_code) == ("failed", 3)
    problem(await node.get(f"/v1/worker/jobs/{uuid.uuid4()}/receipt"), 404, "not-found")
    problem(await node.get("/v1/worker/jobs/none/receipt"), 404, "not-found")


async def test_what_is_left_out_has_defaults(node: NodeProcess, base_image: str) -> None:
    answer = await node.run_job(["bash", "-c", "cd /sys/class/net && echo *"], image=base_image, timeout_seconds=None)
    assert completed(answer)["stdout"] == "lo\n"
    assert answer.headers["fumehood-effective-timeout"] == "300"
    assert "fumehood-exit-reason" not in answer.headers


@pytest.mark.parametrize(("asked", "given"), [(1, "1"), (3600, "3600"), (3601, "3600"), (10**30, "3600")])
async def test_a_long_timeout_is_clamped_visibly(node: NodeProcess, base_image: str, asked: int, given: str) -> None:
    answer = await node.run_job(["true"], image=base_image, timeout_seconds=asked)
    assert completed(answer)
    assert answer.headers["fumehood-effective-timeout"] == given


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"version": 2}, "unsupported-version"),
        ({"extra": 1}, "invalid-request"),
        ({"job_id": "not-a-uuid"}, "invalid-request"),
        ({"sandbox": {"network_policy": "full"}}, "invalid-request"),
        ({"sandbox": {"timeout_seconds": 0}}, "invalid-request"),
        ({"sandbox": {"timeout_seconds": -1}}, "invalid-request"),
        ({"sandbox": {"command": []}}, "invalid-request"),
        ({"sandbox": {"image": "UPPER/case:tag"}}, "invalid-image-ref"),
        ({"sandbox": {"stdin": "x"}}, "invalid-request"),
    ],
    ids=str,
)
async def test_a_request_that_does_not_fit_is_refused(
    node: NodeProcess, base_image: str, change: dict[str, Any], code: str
) -> None:
    body = job_body(["true"], image=base_image)
    changed = {**body, **change, "sandbox": {**body["sandbox"], **change.get("sandbox", {})}}
    problem(await node.post(changed), 400, code)


async def test_ids_come_back_in_lower_case(node: NodeProcess, base_image: str) -> None:
    job_id, task_id = str(uuid.uuid4()).upper(), str(uuid.uuid4()).upper()
    body = completed(await node.run_job(["true"], image=base_image, job_id=job_id, task_id=task_id))
    assert (body["job_id"], body["task_id"]) == (job_id.lower(), task_id.lower())


async def test_health_is_open_and_plain(node: NodeProcess) -> None:
    async with httpx.AsyncClient(base_url=node.url, trust_env=False) as stranger:
        for path, text in (("/healthz", "ok"), ("/readyz", "ready")):
            answer = await stranger.get(path)
            assert (answer.status_code, answer.text) == (200, text)
            assert answer.headers["content-type"].startswith("text/plain")
        problem(await stranger.post(RUN_JOB, json={}), 401, "unauthenticated")
        wrong = {"authorization": "Bearer wrong"}
        problem(await stranger.post(RUN_JOB, json={}, headers=wrong), 401, "unauthenticated")


async def test_the_same_inputs_give_the_same_result(node: NodeProcess, base_image: str) -> None:
    script = "echo out; echo err >&2; seq 1000 | sort -r | head -3; env | sort | grep -v CYNODE; pwd; id; umask; exit 3"
    answers = await asyncio.gather(*(node.run_job(["bash", "-c", script], image=base_image) for _ in range(5)))
    results = {
        (body["status"], body["exit_code"], body["stdout"], body["stderr"])
        for body in (answer.json() for answer in answers)
    }
    assert len(results) == 1
    assert next(iter(results))[:2] == ("failed", 3)


# --- ends --------------------------------------------------------------------------------------------------


async def test_a_timeout(node: NodeProcess, base_image: str) -> None:
    job_id = str(uuid.uuid4())
    script = "echo before; echo error >&2; sleep 60"
    answer = await node.run_job(["bash", "-c", script], image=base_image, timeout_seconds=2, job_id=job_id)
    assert await node.containers(job_id=job_id) == []
    assert answer.status_code == 200
    body = answer.json()
    fits("run-job-response", body)
    assert body["status"] == "timeout"
    assert "exit_code" not in body
    assert (body["stdout"], body["stderr"]) == ("before\n", "error\n")


@pytest.mark.parametrize(
    ("image", "word"),
    [
        ("{registry}/fumehood/base:no-such-tag", "404"),
        ("{registry}/no/such/repository:1", "404"),
        ("{registry}/fumehood/base@sha256:" + "0" * 64, ""),
        ("127.0.0.1:9/nobody/listens:1", "cannot resolve"),
        ("registry.example.com/cynode/sandboxes/base:1", "registry"),
        ("docker.io/library/debian:12", ""),
    ],
)
async def test_an_image_that_cannot_be_had(node: NodeProcess, registry: str, image: str, word: str) -> None:
    answer = await node.run_job(["true"], image=image.format(registry=registry))
    assert answer.status_code == 200
    body = answer.json()
    fits("run-job-response", body)
    assert (body["status"], body["exit_code"], body["stdout"]) == ("failed", 125, "")
    assert body["stderr"].startswith("fumehood: ")
    assert word in body["stderr"]
    assert answer.headers["fumehood-exit-reason"] == "not_started"
    await node.nothing_left()


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (["no-such-program"], 127, "not found"),
        (["/no/such/program"], 127, "No such file"),
        (["/etc/passwd/below"], 127, "Not a directory"),
        (["/etc/passwd"], 126, "Permission denied"),
        (["/tmp"], 126, "Permission denied"),
    ],
)
async def test_a_program_that_cannot_be_executed(
    node: NodeProcess, base_image: str, command: list[str], code: int, words: str
) -> None:
    answer = await node.run_job(command, image=base_image)
    body = answer.json()
    fits("run-job-response", body)
    assert (body["status"], body["exit_code"], body["stdout"]) == ("failed", code, "")
    assert words in body["stderr"]
    assert answer.headers["fumehood-exit-reason"] == "not_started"


# --- the environment ---------------------------------------------------------------------------------------


async def test_whose_environment_it_is(node: NodeProcess, base_image: str) -> None:
    """The image's, then the request's, then ours; nothing of the node's."""
    asked = {
        "LANG": "of the request",
        "KEY": "VALUE",
        "EMPTY": "",
        "HOME": "/root",
        "CYNODE_TASK_ID": "forged",
        "CYNODE_JOB_ID": "forged",
        "CYNODE_WORKSPACE_DIR": "/forged",
        "CYNODE_OTHER": "is the caller's",
    }
    body = completed(await node.run_job(["env", "-0"], image=base_image, env=asked))
    seen = dict(item.split("=", 1) for item in body["stdout"].split("\0") if item)
    assert seen == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "of the request",
        "KEY": "VALUE",
        "EMPTY": "",
        "CYNODE_OTHER": "is the caller's",
        "HOME": "/workspace",
        "CYNODE_TASK_ID": body["task_id"],
        "CYNODE_JOB_ID": body["job_id"],
        "CYNODE_WORKSPACE_DIR": "/workspace",
    }
    assert CANARY not in body["stdout"]


async def test_the_images_own_environment_stands_where_nobody_overrides_it(node: NodeProcess, base_image: str) -> None:
    body = completed(await node.run_job(["bash", "-c", 'echo "$LANG $HOME $PWD"'], image=base_image))
    assert body["stdout"] == "C.UTF-8 /workspace /workspace\n"


# --- the same job again ------------------------------------------------------------------------------------


async def test_a_job_sent_twice_at_once_runs_once(node: NodeProcess, base_image: str) -> None:
    body = job_body(["bash", "-c", f"{ONCE}; sleep 1"], image=base_image)
    answers = [completed(answer) for answer in await asyncio.gather(*(node.post(body) for _ in range(6)))]
    assert len({answer["stdout"] for answer in answers}) == 1
    assert await containers_made(body["job_id"]) == 1


async def test_a_job_sent_again_is_not_run_again(node: NodeProcess, base_image: str) -> None:
    body = job_body(["bash", "-c", f"{ONCE}; exit 9"], image=base_image)
    first, second = await node.post(body), await node.post(body)
    assert first.json() == second.json()
    assert first.json()["exit_code"] == 9
    assert first.headers["fumehood-effective-timeout"] == second.headers["fumehood-effective-timeout"]
    assert await containers_made(body["job_id"]) == 1


@pytest.mark.parametrize("change", [{"command": ["false"]}, {"env": {"A": "b"}}, {"timeout_seconds": 7}], ids=str)
async def test_another_job_under_a_known_id_is_a_conflict(
    node: NodeProcess, base_image: str, change: dict[str, Any]
) -> None:
    body = job_body(["true"], image=base_image)
    completed(await node.post(body))
    problem(await node.post({**body, "sandbox": {**body["sandbox"], **change}}), 409, "conflict")
    completed(await node.post(body))


async def test_a_running_job_is_not_joined_by_another_body(node: NodeProcess, base_image: str) -> None:
    body = job_body(["sleep", "2"], image=base_image)
    first = asyncio.create_task(node.post(body))
    await running(node, body["job_id"])
    problem(await node.post({**body, "task_id": str(uuid.uuid4())}), 409, "conflict")
    completed(await first)


async def test_a_caller_that_goes_away_finds_its_result_later(node: NodeProcess, base_image: str) -> None:
    body = job_body(["bash", "-c", f"{ONCE}; sleep 1; echo end"], image=base_image)
    first = asyncio.create_task(node.post(body))
    await running(node, body["job_id"])
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first
    joined = completed(await node.post(body))
    replayed = completed(await node.post(body))
    assert joined == replayed
    assert joined["stdout"].endswith("end\n")
    assert await containers_made(body["job_id"]) == 1


async def test_a_result_outlives_the_node(small_node: NodeProcess, base_image: str) -> None:
    body = job_body(["bash", "-c", ONCE], image=base_image)
    first = completed(await small_node.post(body))
    assert await containers_made(body["job_id"]) == 1
    ended = time.time()
    assert await small_node.stop() == 0
    await small_node.start()
    assert completed(await small_node.post(body)) == first
    assert await containers_made(body["job_id"], after=ended) == 0


# --- the node's limits, and its end ------------------------------------------------------------------------


async def test_a_node_that_is_full_says_so(small_node: NodeProcess, base_image: str) -> None:
    body = job_body(["bash", "-c", "sleep 600; echo done"], image=base_image, timeout_seconds=600)
    first = asyncio.create_task(post_when_free(small_node, body))
    await running(small_node, body["job_id"])
    refused = await small_node.run_job(["true"], image=base_image)
    problem(refused, 503, "overloaded")
    assert int(refused.headers["retry-after"]) >= 1
    assert await small_node.ready(), "a full node is not a broken one"
    joined = asyncio.create_task(small_node.post(body))  # its own job needs no slot
    await end_sleep(small_node, body["job_id"])
    assert completed(await first) == completed(await joined)
    await small_node.nothing_left()
    completed(await post_when_free(small_node, job_body(["true"], image=base_image)))


async def test_a_node_that_is_told_to_stop_finishes_what_it_began(small_node: NodeProcess, base_image: str) -> None:
    body = job_body(["bash", "-c", f"{ONCE}; sleep 600; echo done"], image=base_image, timeout_seconds=600)
    first = asyncio.create_task(post_when_free(small_node, body))
    await running(small_node, body["job_id"])
    small_node.signal(signal.SIGTERM)

    async def draining() -> bool:
        return not await small_node.ready()

    await until(draining, what="a node that drains says that it is ready")
    refused = await small_node.run_job(["true"], image=base_image)
    problem(refused, 503, "draining")
    assert int(refused.headers["retry-after"]) >= 1
    joined = asyncio.create_task(small_node.post(body))
    await end_sleep(small_node, body["job_id"])
    answer = completed(await first)
    assert answer["stdout"].endswith("done\n")
    assert completed(await joined) == answer
    assert await small_node.wait(120) == 0
    assert await small_node.containers(probes=True) == []
    await small_node.start()
    assert completed(await small_node.post(body)) == answer


async def test_a_token_is_rotated_by_replacing_its_file(tmp_path: Path, docker_socket: Path) -> None:
    """And a file that is emptied shuts the door."""
    async with NodeProcess(tmp_path, env={"FUMEHOOD_TOKEN_OVERLAP_SECONDS": "4"}) as node:
        await rotate_and_empty(node)


async def rotate_and_empty(node: NodeProcess) -> None:
    old, new = node.token, f"new-{uuid.uuid4().hex}"

    async def status(token: str) -> int:
        async with node.client(token=token) as client:
            return (await client.post(RUN_JOB, json={})).status_code

    async def accepted(token: str) -> bool:
        return await status(token) == 400  # past the door, and then no good

    assert await accepted(old)
    assert not await accepted(new)
    write_token(node.token_file, new)
    await until(lambda: accepted(new), what="the new token is not taken")
    assert await accepted(old), "there is no overlap"

    async def refused() -> bool:
        return not await accepted(old)

    await until(refused, what="the old token is taken for ever")
    assert await accepted(new)
    node.token_file.write_text("")

    async def shut() -> bool:
        return await status(new) == 401

    await until(shut, what="no token at all, and the door is open")
    assert old not in node.log_file.read_text()
    assert new not in node.log_file.read_text()


# --- many --------------------------------------------------------------------------------------------------


@pytest.mark.storm
async def test_300_jobs_at_concurrency_8(node: NodeProcess, base_image: str) -> None:
    """Each has another output, on both streams, and another exit code."""
    gate = asyncio.Semaphore(8)
    script = 'echo "out $WORD"; echo "err $WORD" >&2; exit $CODE'

    async def one(client: httpx.AsyncClient, number: int) -> None:
        env = {"WORD": f"{number}-{uuid.uuid4().hex}", "CODE": str(number % 7)}
        body = job_body(["bash", "-c", script], image=base_image, env=env)
        async with gate:
            answer = await client.post(RUN_JOB, json=body)
        assert answer.status_code == 200, answer.text
        said = answer.json()
        assert (said["job_id"], said["task_id"]) == (body["job_id"], body["task_id"])
        assert (said["stdout"], said["stderr"]) == (f"out {env['WORD']}\n", f"err {env['WORD']}\n")
        assert (said["status"], said["exit_code"]) == ("failed" if number % 7 else "completed", number % 7)

    began = time.monotonic()
    async with node.client(timeout=120) as client:
        await asyncio.gather(*(one(client, number) for number in range(300)))
    print(f"300 jobs at concurrency 8: {300 / (time.monotonic() - began):.1f} a second")
    await node.nothing_left()
    assert await node.ready()


# --- strange requests --------------------------------------------------------------------------------------

schema = schemathesis.openapi.from_dict(contract("openapi/worker-api.json"))
OPERATIONS: dict[str, Any] = {one.ok().label: one.ok() for one in schema.get_all_operations() if isinstance(one, Ok)}


@pytest.mark.parametrize("label", OPERATIONS)
def test_no_request_surprises_the_node(node: NodeProcess, base_image: str, label: str) -> None:
    """Where a request names an image, it is made one that exists: so that what can run does run. (The library's own
    way of parametrizing gives all operations one name, and tests are distributed by name.)"""

    @given(case=OPERATIONS[label].as_strategy())
    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    def check(case: schemathesis.Case[Any]) -> None:
        body: Any = case.body
        sandbox: Any = body.get("sandbox") if isinstance(body, dict) else None
        if isinstance(sandbox, dict) and isinstance(sandbox.get("image"), str) and sandbox["image"]:
            long = type(sandbox.get("timeout_seconds")) is int and sandbox["timeout_seconds"] > 2
            body["sandbox"] = {**sandbox, "image": base_image, **({"timeout_seconds": 2} if long else {})}
        case.call_and_validate(base_url=node.url, headers={"Authorization": f"Bearer {node.token}"})

    check()
