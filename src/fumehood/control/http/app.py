"""The ASGI application of the server's HTTP door.

`/healthz` and `/readyz` are open, and so are the web console's files, and `/v1/approvals` and `/v1/sign-in`, whose
callers bring their token in the body. `/metrics` is open where the server listens on loopback. Everything else needs a
token that allows it, as `rules.py` says: the administrator's, the workers', or an API key; and paths that do not exist
need one too, so that a stranger learns nothing about the door but that it is shut. A browser that has signed in sends a
cookie instead, which `sign_in.py` turns into the token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp

from fumehood.control.bridge import Bridge
from fumehood.control.console.dialled import Dialled
from fumehood.control.console.output_streams import OutputOptions, OutputStreams
from fumehood.control.http import bridge as bridge_door
from fumehood.control.http import (
    bundles,
    commands,
    events,
    health,
    index,
    jobs,
    keys,
    orders,
    receipt_keys,
    receipts,
    run_logs,
    runner,
    runner_streams,
    runs,
    sandbox_commands,
    sandbox_files,
    sandboxes,
    schedules,
    schema,
    sign_in,
    task_types,
    web,
    worker_credentials,
    workers,
    workflows,
)
from fumehood.control.http.gate import Gate
from fumehood.control.http.output_following import Followers
from fumehood.control.http.rules import OPENAPI_PATH, RULES, Rule, Rules
from fumehood.control.service import Service
from fumehood.control.telemetry import Telemetry
from fumehood.door.app import BODY_SECONDS, Door
from fumehood.door.middleware import BodyLimits
from fumehood.door.tokens import TokenSource
from fumehood.settings import ServerSettings, is_loopback

DESCRIPTION = (
    "Apply workflows, start runs of them, see where they stand; run single images in sandboxes; have commands done, "
    "and work in sandboxes that live on; and for workers: take tasks and resolve them."
)
PATHS = (
    *commands.PATHS,
    *jobs.PATHS,
    *bundles.PATHS,
    *sandboxes.PATHS,
    *sandbox_commands.PATHS,
    *sandbox_files.PATHS,
    *workflows.PATHS,
    *runs.PATHS,
    *runner.PATHS,
    *runner_streams.PATHS,
    *run_logs.PATHS,
    *orders.PATHS,
    *index.PATHS,
    *events.PATHS,
    *schedules.PATHS,
    *task_types.PATHS,
    *workers.PATHS,
    *worker_credentials.PATHS,
    *keys.PATHS,
    *receipt_keys.PATHS,
    *receipts.PATHS,
    *bridge_door.PATHS,
    *health.PATHS,
    *sign_in.PATHS,
    *web.PATHS,
    OPENAPI_PATH,
)
MODELS: schema.Models = [
    *bridge_door.MODELS,
    *orders.MODELS,
    *index.MODELS,
    *events.MODELS,
    *runner.MODELS,
    *runner_streams.MODELS,
    *run_logs.MODELS,
    *schedules.MODELS,
    *task_types.MODELS,
    *workers.MODELS,
    *worker_credentials.MODELS,
    *keys.MODELS,
    *receipt_keys.MODELS,
    *receipts.MODELS,
    *commands.MODELS,
    *jobs.MODELS,
    *bundles.MODELS,
    *sandboxes.MODELS,
    *sandbox_commands.MODELS,
    *sandbox_files.MODELS,
    *sign_in.MODELS,
]


@dataclass(frozen=True, slots=True)
class Neighbour:
    """An application with a path at this door that asks this API like anybody else."""

    path: str
    methods: tuple[str, ...]
    app: ASGIApp
    body_bytes: int
    """Of what is sent to it."""


def create_app(
    service: Service,
    bridge: Bridge,
    *,
    settings: ServerSettings,
    tokens: TokenSource,
    bridge_tokens: TokenSource,
    telemetry: Telemetry,
    body_seconds: float = BODY_SECONDS,
    output_options: OutputOptions | None = None,
    neighbour: Neighbour | None = None,
) -> FastAPI:
    """Put the door together around a server; with a neighbour, who has a path of his own behind the same guards."""
    telemetry.metrics.ready.set_function(lambda: service.is_ready)
    telemetry.metrics.polls.set_function(lambda: bridge.polls)
    telemetry.metrics.streams.set_function(lambda: len(bridge.workers))
    telemetry.metrics.event_streams.set_function(lambda: len(service.events))
    gate = Gate(
        tokens=tokens, bridge_tokens=bridge_tokens, keys=service.keys, audit=service.audit, rules=_rules(neighbour)
    )
    is_still_allowed = events.as_the_keeper_says(gate)
    cookies = sign_in.Cookies(service.broker)
    desk = service.desk
    followers = Followers(OutputStreams(lambda: service.is_draining, output_options), is_still_allowed)
    door = Door(
        title="Fumehood API",
        description=DESCRIPTION,
        routers=[
            commands.commands_router(desk.commands, followers),
            workflows.workflows_router(service.workflows),
            jobs.jobs_router(service.jobs, service.providers),
            bundles.bundles_router(service.bundles),
            runs.runs_router(service.runs, telemetry),
            orders.orders_router(service.orders),
            index.index_router(service.index),
            events.events_router(service.events, is_still_allowed=is_still_allowed),
            runner.runner_router(runner.RunnerParts(service.runner, service.runner_list, telemetry)),
            runner_streams.runner_streams_router(service.runner, service.events, is_still_allowed=is_still_allowed),
            run_logs.run_logs_router(
                service.runner, service.run_logs, service.events, is_still_allowed=is_still_allowed
            ),
            sandboxes.sandboxes_router(desk.sandboxes),
            sandbox_commands.sandbox_commands_router(desk.sandboxes, followers),
            sandbox_files.sandbox_files_router(desk.sandboxes),
            schedules.schedules_router(service.schedules),
            task_types.task_types_router(service.rates, service.directory),
            workers.workers_router(service.directory),
            worker_credentials.worker_credentials_router(service.desk.credentials),
            keys.keys_router(service.keys, service.index),
            receipt_keys.receipt_keys_router(service.receipt_keys),
            receipts.receipts_router(service.runner, service.run_receipts),
            bridge_door.bridge_router(bridge, Dialled(service.desk.presence, service.desk.exchange)),
            health.health_router(service, telemetry),
            sign_in.sign_in_router(cookies, gate.knows),
            web.web_router(),
        ],
        components=lambda: schema.components(MODELS),
        announce=[tokens, bridge_tokens],
        complete=_with_scope,
    )
    paths: tuple[str, ...] = PATHS
    long_bodies = {**sandbox_files.LONG_BODIES, **bundles.LONG_BODIES, **sign_in.BODIES}
    if neighbour is not None:
        door.beside(neighbour.path, neighbour.methods, neighbour.app)
        paths = (*PATHS, neighbour.path)
        long_bodies |= {("POST", neighbour.path): BodyLimits(neighbour.body_bytes, body_seconds)}
    door.guard(
        telemetry=telemetry,
        paths=paths,
        open_paths=_open_paths(settings),
        keeper=gate,
        body_limit=settings.body_limit_bytes,
        body_seconds=body_seconds,
        long_bodies=long_bodies,
    )
    door.add_middleware(sign_in.CookieSignIn, cookies=cookies)
    return door


def _rules(neighbour: Neighbour | None) -> Rules:
    """Whoever is known may come to the neighbour: what he asks for there is asked for here again, with the same key."""
    if neighbour is None:
        return RULES
    return {**RULES, **{(method, neighbour.path): Rule(None) for method in neighbour.methods}}


def _with_scope(method: str, path: str, operation: dict[str, Any]) -> None:
    """What a key needs for it."""
    rule = RULES.get((method, path))
    if rule is not None and rule.scope is not None:
        operation["x-fumehood-scope"] = rule.scope.value


def _open_paths(settings: ServerSettings) -> set[str]:
    always = {health.HEALTH_PATH, health.READY_PATH, *orders.OPEN_PATHS, *sign_in.PATHS, *web.PATHS}
    return always | ({health.METRICS_PATH} if is_loopback(settings.host) else set())
