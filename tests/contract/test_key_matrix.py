"""Every route with every kind of key: who is let in, who is not, and that no byte of one tenant reaches another.

The routes come from the application itself: one that is added is tried without a change here, and one that has no rule,
no body or no parameter here fails.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from fastapi.routing import APIRoute
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.routing import Match, Route

from fumehood.broker.memory import MemoryBroker
from fumehood.broker.ports import Bucket, LogKind, LogName, LogRecord
from fumehood.control.callers import ADMIN as ADMINISTRATOR
from fumehood.control.callers import DEFAULT_TENANT, Scope
from fumehood.control.http import web
from fumehood.control.http.app import PATHS
from fumehood.control.http.rules import RULES
from fumehood.control.keys import NewKey
from fumehood.door.paths import Templates
from fumehood.verify.dsse import SigningKey
from fumehood.verify.keylist import KeyList
from fumehood.wire import blobref, sandbox_api, sign_in_api
from fumehood.wire.sandbox import RUN_STEP
from tests.contract.asgi_caller import Answer, Call, ask
from tests.contract.console_worker import MemoryWorker
from tests.contract.runner_harness import wish
from tests.contract.server_api_harness import ADMIN, SETTINGS, Api, digest_of
from tests.unit.index_world import encode, failed
from tests.unit.key_world import A_TENANTS, ALL_BUT_ADMIN
from tests.waiting import until

MARK = "m4rk3r"
"""Stands in everything that tenant A has and nobody else knows."""
NAME = "shared"
"""A name that all tenants use for something of their own."""
OPEN = {"/healthz": 200, "/readyz": 200, "/metrics": 200, "/v1/approvals": 401}
OPEN |= {"/v1/sign-in": 403, "/v1/sign-out": 403, "/": 307, web.ASSET_PATH: 404} | dict.fromkeys(web.PAGE_PATHS, 200)
"""Where no key is asked for, on a server that listens on loopback, and what a stranger is answered."""

DEFINITION = {
    "name": NAME,
    "description": MARK,
    "steps": [
        {"id": "ask", "approval": {"message": MARK}},
        {"id": "wait", "wait_signal": {"name": "s"}},
        {"id": "a", "task": f"{MARK}-type", "with": "input"},
    ],
}
SCHEDULE = {"workflow": NAME, "cron": "17 3 * * *", "labels": {"mark": MARK}}
WORKER = {"worker_id": "w1", "task_types": [f"{MARK}-type"], "max_tasks": 1}
BODIES: dict[str, Any] = {
    "apply_workflow": {"name": NAME, "steps": [{"id": "x", "task": "t"}]},
    "start_run": {"input": 1},
    "submit_job": {"job_type": "oa.retrieval_rerank.v1", "payload": {"user_task": "x", "candidates": []}},
    "cancel_job": None,
    "set_provider_aside": {"reason": "r"},
    "restore_provider": None,
    "put_receipt_keys": {"root": "0" * 64, "list": {}},
    "upload_bundle": MARK,
    "createRun": wish(),
    "stopRun": None,
    "cancel_run": {"reason": "r"},
    "retry_run": {"reason": "r"},
    "signal_run": {"data": 1},
    "approve_step": {},
    "reject_step": {},
    "make_approval_token": {"for": "somebody", "expires_in_seconds": 60},
    "skip_step": {"reason": "r"},
    "complete_step": {"output": 1, "reason": "r"},
    "sign_in": {"key": "guess"},
    "sign_out": None,
    "decide_with_token": {"token": "fha_x", "decision": "approve"},
    "put_schedule": {"workflow": NAME, "cron": "0 0 1 1 *"},
    "pause_schedule": None,
    "resume_schedule": None,
    "trigger_schedule": None,
    "rebuild_index": {},
    "connect_worker": WORKER,
    "poll_tasks": {"task_types": [f"{MARK}-type"], "max_tasks": 1, "timeout_ms": 0},
    "resolve_task": {"action": "complete", "output": 1},
    "set_task_type_limit": {"rate": "10/s", "burst": 5},
    "create_key": {"name": "k", "scopes": ["keys"]},
    "put_tenant": {"max_runs": 5},
    "create_worker": {"worker_id": "w2", "labels": {"zone": "a"}},
    "submit_command": {"capability": "echo", "payload": 1},
    "cancel_command": None,
    "create_sandbox": {"sandbox_id": NAME},
    "extend_sandbox": {"lease_seconds": 60},
    "run_in_sandbox": {"command": "echo"},
    "feed_sandbox_command": None,
    "resize_sandbox_command": {"rows": 1, "columns": 1},
    "signal_sandbox_command": {"signal": "SIGCONT"},
    "write_sandbox_file": None,
    "make_sandbox_folder": None,
}
"""By operation; those that read have none."""
QUERIES = {
    "feed_sandbox_command": "?offset=0",
    "read_sandbox_file": f"?path={MARK}",
    "write_sandbox_file": f"?path={MARK}-new",
    "list_sandbox_files": "?path=/workspace",
    "stat_sandbox_file": f"?path={MARK}",
    "remove_sandbox_file": f"?path={MARK}",
    "make_sandbox_folder": f"?path={MARK}-folder",
}
RAW = {"feed_sandbox_command", "write_sandbox_file", "upload_bundle"}
"""Whose bodies are bytes."""
SHOWN_TO_ITS_OWNER = {
    "list_workflows", "show_workflow", "list_runs", "list_dead_letters", "get_run", "run_history", "read_run_value",
    "run_events", "list_schedules", "get_schedule", "list_keys", "list_audit", "listRuns", "getRun", "getRunLogs",
    "followRun", "followRunLogs", "get_command", "follow_command", "list_sandboxes", "get_sandbox",
    "list_sandbox_commands", "get_sandbox_command", "follow_sandbox_command", "read_sandbox_file",
    "list_sandbox_files", "stat_sandbox_file", "get_job",
}  # fmt: skip
"""Where the mark is seen by whom it belongs to: what is never shown could not leak, and would prove nothing."""


OWNED = r"\{(run_id|job_id|key_id|sandbox_id|command_id)\}"
"""What belongs to one tenant, under a name of the cell's or of its own."""


@dataclass(frozen=True)
class Way:
    """A route with one of its methods."""

    method: str
    template: str
    operation: str

    def __str__(self) -> str:
        return f"{self.method} {self.template}"


def routes() -> list[Route | APIRoute]:
    """All of the application's, in the order in which the framework tries them."""
    found: list[Any] = []
    for route in Api().app.routes:
        included = getattr(route, "original_router", None)
        found += [route] if included is None else included.routes
    assert all(isinstance(route, Route | APIRoute) for route in found), "a kind of route that this test does not know"
    return found


ROUTES = routes()
WAYS = [
    Way(method, route.path, getattr(route, "operation_id", None) or route.name)
    for route in ROUTES
    for method in sorted(set(route.methods or ()) - {"HEAD"})
]


@dataclass
class World:
    """A server with three tenants, of which A (`acme`) has everything."""

    api: Api
    run_id: str = ""
    image_run_id: str = ""
    """Of the Runner API, whose paths know no other runs."""
    job_id: str = ""
    key_id: str = ""
    digest: str = ""
    command_id: str = ""
    """Of a worker's command; the one in a sandbox is called otherwise."""
    inside_id: str = ""
    tokens: dict[str, str] = field(default_factory=dict)

    @property
    def secrets(self) -> tuple[str, ...]:
        """What only A may ever be told."""
        return (
            MARK,
            self.run_id,
            self.image_run_id,
            self.job_id,
            self.key_id,
            self.digest,
            self.command_id,
            self.inside_id,
        )

    def path(self, way: Way, **others: str) -> str:
        run_id = self.image_run_id if way.template.startswith("/runs/") else self.run_id
        given = {
            "name": NAME, "run_id": run_id, "job_id": self.job_id,
            "step": "ask", "signal": "s", "digest": self.digest, "tenant": "acme",
            "page": "runs", "item": run_id, "asset": "other.js",
            "key_id": self.key_id, "worker_id": "w1", "task_id": f"{self.run_id}.a", "task_type": f"{MARK}-type",
            "sandbox_id": NAME, "command_id": self.inside_id if "sandboxes" in way.template else self.command_id,
        } | others  # fmt: skip
        path = re.sub(r"\{([a-z_]+)\}", lambda found: given[found[1]], way.template)
        return path + QUERIES.get(way.operation, "")

    async def key(self, tenant: str, scopes: frozenset[Scope], name: str = "k") -> str:
        key, token = await self.api.service.keys.create(NewKey(name, scopes, tenant), ADMINISTRATOR)
        if name != "k":
            self.key_id = key.id
        return token

    async def ask(self, way: Way, token: str | None, **others: str) -> Answer:
        body = BODIES.get(way.operation)
        kind = "application/octet-stream" if way.operation in RAW else "application/json"
        return await ask(self.api.app, way.method, self.path(way, **others), token, body, media_type=kind)

    def leaks(self, answer: Answer, *, but: str = "") -> list[str]:
        """What of A's is in an answer; `but` what whoever asked said itself."""
        return [one for one in self.secrets if one.encode() in answer.said and one not in but]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    api = Api()
    watching = asyncio.create_task(api.service.key_store.work())
    async with api.service.index.working(), api.service.desk.working(), api.deciding():
        await MemoryWorker("dialled").connect(api.service.desk)
        made = World(api)
        await planted(made)
        yield made
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def planted(world: World) -> None:
    """All that a tenant can have, marked; and the keys."""
    for name, tenant in (("a", "acme"), ("b", "globex"), ("c", DEFAULT_TENANT)):
        world.tokens[name] = await world.key(tenant, A_TENANTS)
    app, mine = world.api.app, world.tokens["a"]
    given = {"text": MARK + "x" * blobref.INLINE_BYTES}
    world.digest = hashlib.sha256(blobref.encode(given)).hexdigest()
    other = {**DEFINITION, "name": f"{MARK}-only"}
    for path, body in (
        (f"/v1/workflows/{NAME}", DEFINITION),
        (f"/v1/workflows/{MARK}-only", other),
        (f"/v1/schedules/{NAME}", SCHEDULE),
        (f"/v1/schedules/{MARK}-only", SCHEDULE),
    ):
        assert (await ask(app, "PUT", path, mine, body)).status == 201
    start = {"input": given, "labels": {"mark": MARK}, "idempotency_key": "k"}
    world.run_id = (await ask(app, "POST", f"/v1/workflows/{NAME}/runs", mine, start)).json()["run_id"]
    image = wish(image_ref=f"127.0.0.1:5055/{MARK}:1", workflow_context={"mark": MARK})
    world.image_run_id = (await ask(app, "POST", "/runs", mine, image)).json()["run_id"]
    printed = LogRecord(LogKind.OUT, data=MARK.encode())
    await world.api.service.broker.logs.append(LogName(world.image_run_id, RUN_STEP, 1), printed)
    error = {"code": "boom", "message": MARK}
    line = encode(failed(tenant="acme", labels={"mark": MARK}, error=error))
    await MemoryBroker(world.api.memory).bucket(Bucket.SUMMARIES).put("run-dead", line)
    await world.key("acme", frozenset({Scope.RUNS_READ}), f"{MARK}-key")
    await planted_job(world)
    await planted_sandbox(world)
    await known(world, "/v1/runs")


async def planted_job(world: World) -> None:
    """One that waits for providers, with a judge's name of its own."""
    root = SigningKey.generate()
    keys = KeyList(version=1, issued_at=dt.datetime.now(dt.UTC))
    await world.api.service.receipt_keys.publish({"root": root.public_key.hex(), "list": keys.sign(root)})
    verification = {"mode": "subjective", "redundancy": 2, "adjudication": "majority_vote", "judge_model": MARK}
    payload = {"user_task": MARK, "candidates": [], "verification": verification}
    body = {"job_type": "oa.retrieval_rerank.v1", "payload": payload}
    answer = await ask(world.api.app, "POST", "/v1/jobs", world.tokens["a"], body)
    assert answer.status == 201, answer.body
    world.job_id = answer.json()["job_id"]


async def planted_sandbox(world: World) -> None:
    """And a command, in it and without it, and a file."""
    app, mine, path = world.api.app, world.tokens["a"], f"/v1/sandboxes/{NAME}"
    command = {"capability": "echo", "payload": MARK}
    world.command_id = (await ask(app, "POST", "/v1/commands", mine, command)).json()["command_id"]
    wish = {"sandbox_id": NAME, "image": f"127.0.0.1:5055/{MARK}:1"}
    assert (await ask(app, "POST", "/v1/sandboxes", mine, wish)).status == 201
    started = await ask(app, "POST", f"{path}/commands", mine, {"command": f"echo {MARK}"})
    world.inside_id = started.json()["command_id"]
    file = f"{path}/files/content?path={MARK}"
    written = await ask(app, "PUT", file, mine, MARK, media_type="application/octet-stream")
    assert written.status == 200, written.body


async def known(world: World, path: str) -> None:
    """Both runs are in the list."""

    async def listed() -> bool:
        said = (await ask(world.api.app, "GET", path, world.tokens["a"])).body.decode()
        return world.run_id in said and world.image_run_id in said

    await until(listed)


async def revoked(world: World) -> str:
    service = world.api.service
    key, token = await service.keys.create(NewKey("k", A_TENANTS, "acme"), ADMINISTRATOR)
    await service.keys.revoke(key.id, ADMINISTRATOR)
    return token


async def having(world: World, scope: Scope | None) -> str:
    """A key of A with exactly this scope; of the cell where a tenant's key cannot have it."""
    tenant = DEFAULT_TENANT if scope in (Scope.WORKERS, Scope.ALL) else "acme"
    return await world.key(tenant, frozenset({scope or Scope.RUNS_READ}))


# --- the table ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_route_has_a_rule(way: Way) -> None:
    assert (way.method, way.template) in RULES
    assert way.template in PATHS


def test_every_rule_has_a_route() -> None:
    assert set(RULES) == {(way.method, way.template) for way in WAYS}


def test_whatever_changes_something_has_a_name_in_the_audit_list() -> None:
    unnamed = {key for key, rule in RULES.items() if rule.action is None and key[0] != "GET"}
    typed = (sandbox_api.STDIN_PATH, sandbox_api.RESIZE_PATH)
    cookies = (sign_in_api.SIGN_IN_PATH, sign_in_api.SIGN_OUT_PATH)
    workers = ("/v1/workers/connect", "/v1/tasks/poll", "/v1/tasks/{task_id}/resolve")
    assert unnamed == {("POST", path) for path in (*workers, *typed, *cookies)}
    named = [rule.action for rule in RULES.values() if rule.action is not None]
    assert len(named) == len(set(named))
    assert all(key[0] != "GET" for key, rule in RULES.items() if rule.action is not None)


STRANGE = (
    "a", ":cancel", ":extend", ":resize", ":retry", ":approve", ":rebuild", "..", " ", "\n", "v1", "runs", "connect",
    "poll", "steps",
)  # fmt: skip
PIECE = st.sampled_from(STRANGE)
SEGMENT = st.lists(PIECE, min_size=1, max_size=3).map("".join)


@settings(max_examples=300, deadline=None)
@given(way=st.sampled_from(WAYS), segments=st.lists(SEGMENT, min_size=4, max_size=4))
def test_the_guard_and_the_framework_agree_on_the_route(way: Way, segments: list[str]) -> None:
    """The guard decides by the template; another route must never be run under its rule."""
    values = iter(segments)
    path = re.sub(r"\{[a-z_]+\}", lambda _: next(values), way.template)
    scope = {"type": "http", "method": way.method, "path": path, "root_path": ""}
    run = next((route for route in ROUTES if route.matches(scope)[0] is Match.FULL), None)
    decided = TEMPLATES.of(path)
    if run is None or run.path == decided:
        return
    methods = {method for method, template in RULES if template == decided}
    assert way.method not in methods, "it would be let in by another route's rule, and not be sent away before"


TEMPLATES = Templates(PATHS)


# --- the matrix --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [way for way in WAYS if way.template not in OPEN], ids=str)
async def test_each_kind_of_key_gets_what_it_may(way: Way, world: World) -> None:
    scope = RULES[way.method, way.template].scope
    is_tenants = scope is None or scope in A_TENANTS
    for token in (None, "wrong", "fhk_" + "0" * 21 + "_" + "A" * 43, await revoked(world)):
        answer = await world.ask(way, token)
        assert answer.status == 401, answer.body
        assert not world.leaks(answer)
    for name in ("b", "c"):
        answer = await world.ask(way, world.tokens[name])
        assert answer.status not in (401, 500), answer.body
        assert (answer.status == 403) is not is_tenants, answer.body
        assert not world.leaks(answer), answer.body
        if is_tenants and re.search(OWNED, way.template):
            assert answer.status == 404, answer.body
    if scope is not None:
        without = await world.key("acme", A_TENANTS - {scope})
        answer = await world.ask(way, without)
        assert answer.status == 403, answer.body
        assert not world.leaks(answer)
    for token in (await having(world, scope), ADMIN):
        answer = await world.ask(way, token)
        assert answer.status not in (401, 403, 500, 503), answer.body
        assert answer.status < 500


@pytest.mark.parametrize("way", [way for way in WAYS if way.template in OPEN], ids=str)
async def test_what_is_open_is_open_and_shows_nothing(way: Way, world: World) -> None:
    for token in (None, "wrong", world.tokens["b"]):
        answer = await world.ask(way, token)
        assert answer.status == OPEN[way.template]
        assert not world.leaks(answer)


@pytest.mark.parametrize("way", [way for way in WAYS if re.search(OWNED, way.template)], ids=str)
async def test_anothers_is_told_apart_from_none_by_no_byte(way: Way, world: World) -> None:
    for name in ("b", "c"):
        token = world.tokens[name]
        foreign = await world.ask(way, token)
        others = {
            "run_id": "run-" + "0" * 32,
            "job_id": "job-" + "0" * 32,
            "key_id": "0" * 21,
            "sandbox_id": "nobody",
            "command_id": "0" * 36,
        }
        unknown = await world.ask(way, token, **others)
        assert (foreign.status, foreign.headers, foreign.body) == (unknown.status, unknown.headers, unknown.body)


@pytest.mark.parametrize(
    "way", [way for way in WAYS if "{name}" in way.template and way.operation != "apply_workflow"], ids=str
)
async def test_a_name_is_a_tenants_own_for_every_route(way: Way, world: World) -> None:
    """Nothing that B does with the name changes what A has under it."""
    mine = {path: await ask(world.api.app, "GET", path, world.tokens["a"]) for path in (WORKFLOW, SCHEDULE_PATH)}
    answer = await world.ask(way, world.tokens["b"])
    assert answer.status in (400, 404) or way.method == "PUT", answer.body
    for path, before in mine.items():
        assert (await ask(world.api.app, "GET", path, world.tokens["a"])).body == before.body


WORKFLOW, SCHEDULE_PATH = f"/v1/workflows/{NAME}", f"/v1/schedules/{NAME}"


@pytest.mark.parametrize("digest", ["own", "hash"])
async def test_a_hash_of_anothers_opens_nothing(digest: str, world: World) -> None:
    """B has a workflow of the same name, and a run of its own."""
    app, theirs = world.api.app, world.tokens["b"]
    shown = (await ask(app, "GET", WORKFLOW, world.tokens["a"])).json()["digest"]
    assert (await ask(app, "PUT", WORKFLOW, theirs, BODIES["apply_workflow"])).status == 201
    run_id = (await ask(app, "POST", f"{WORKFLOW}/runs", theirs, {"input": 1})).json()["run_id"]
    path = f"{WORKFLOW}?digest={shown}" if digest == "own" else f"/v1/runs/{run_id}/blobs/{world.digest}"
    answer = await ask(app, "GET", path, theirs)
    assert answer.status == 404
    assert not world.leaks(answer)


async def test_lists_with_every_filter_are_empty_for_another_tenant(world: World) -> None:
    app = world.api.app
    await known(world, "/v1/audit")
    for name in ("b", "c"):
        for path, found in (
            ("/v1/runs", "runs"),
            (f"/v1/runs?workflow={NAME}", "runs"),
            (f"/v1/runs?label=mark={MARK}", "runs"),
            (f"/v1/runs?parent={world.run_id}", "runs"),
            ("/v1/dead-letters", "runs"),
            ("/runs", "runs"),
            ("/runs?status=queued", "runs"),
            (f"/runs?image_digest={digest_of(f'127.0.0.1:5055/{MARK}:1')}", "runs"),
            (f"/v1/audit?target={world.image_run_id}", "entries"),
            ("/v1/workflows", "workflows"),
            ("/v1/sandboxes", "sandboxes"),
            ("/v1/schedules", "schedules"),
            (f"/v1/audit?target={world.run_id}", "entries"),
            (f"/v1/audit?target={NAME}", "entries"),
        ):
            answer = await ask(app, "GET", path, world.tokens[name])
            assert (answer.status, answer.json()[found]) == (200, []), path
        for path in ("/v1/keys?tenant=acme", "/v1/audit?tenant=acme"):
            answer = await ask(app, "GET", path, world.tokens[name])
            assert answer.status == 403
            assert not world.leaks(answer)


async def test_a_stream_of_all_runs_is_of_ones_own(world: World) -> None:
    app = world.api.app
    calls = {name: Call(app, "GET", "/v1/events", world.tokens[name]) for name in ("a", "b", "c")}

    async def open_() -> bool:
        return all(call.answer.status for call in calls.values())

    await until(open_)
    await ask(app, "POST", f"{WORKFLOW}/runs", world.tokens["a"], {"input": MARK})

    async def heard() -> bool:
        return MARK.encode() in calls["a"].answer.body

    await until(heard)
    assert not world.leaks(await calls["b"].finish(0.1))
    assert not world.leaks(await calls["c"].finish(0.1))
    await calls["a"].finish(0.1)


async def test_the_mark_is_where_its_owner_looks(world: World) -> None:
    seen = set()
    await known(world, "/v1/audit")
    for way in WAYS:
        if way.method == "GET" and way.template not in OPEN:
            answer = await world.ask(way, world.tokens["a"])
            if world.leaks(answer):
                seen.add(way.operation)
    assert seen == SHOWN_TO_ITS_OWNER


async def test_a_worker_of_the_cell_takes_every_tenants_tasks_and_a_tenants_key_none(world: World) -> None:
    """That is why the scope is the cell's to give."""
    poll = next(way for way in WAYS if way.operation == "poll_tasks")
    assert (await world.ask(poll, world.tokens["a"])).status == 403
    worker = await world.key(DEFAULT_TENANT, frozenset({Scope.WORKERS}))
    answer = await world.ask(poll, worker)
    assert answer.status == 200
    assert [task["run_id"] for task in answer.json()] == [world.run_id]


def test_the_kinds_of_keys_are_all_there_are() -> None:
    assert A_TENANTS | {Scope.WORKERS} == ALL_BUT_ADMIN
    assert {rule.scope for rule in RULES.values()} <= {*Scope, None}
    assert SETTINGS.host == "127.0.0.1"
