"""What each route asks of a key, and what it is called in the audit list: the whole of it on one page.

A route that is not here is the administrator's alone; `test_every_route_has_a_rule` finds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fumehood.control.callers import Scope
from fumehood.control.http import bridge, health, web
from fumehood.wire import (
    bundle_api,
    command_api,
    credential_api,
    directory_api,
    event_api,
    index_api,
    job_api,
    key_api,
    order_api,
    receipt_api,
    run_api,
    runner_api,
    sandbox_api,
    schedule_api,
    sign_in_api,
    task_type_api,
)


@dataclass(frozen=True, slots=True)
class Rule:
    scope: Scope | None
    """None: whoever is known; on a path that is open to all, whoever comes."""
    action: str | None = None
    """Its name in the audit list; None: it changes nothing, or what it changes is a worker's everyday business, which
    the histories of runs tell of, or a keystroke of somebody whose command is in the list."""


Rules = Mapping[tuple[str, str], Rule]
"""By method and path."""

OPENAPI_PATH = "/openapi.json"

RULES: Rules = {
    ("PUT", run_api.WORKFLOW_PATH): Rule(Scope.WORKFLOWS_WRITE, "workflow.applied"),
    ("GET", run_api.WORKFLOWS_PATH): Rule(Scope.WORKFLOWS_READ),
    ("GET", run_api.WORKFLOW_PATH): Rule(Scope.WORKFLOWS_READ),
    # runs
    ("POST", run_api.START_PATH): Rule(Scope.RUNS_WRITE, "run.started"),
    ("GET", index_api.RUNS_PATH): Rule(Scope.RUNS_READ),
    ("GET", index_api.DEAD_LETTERS_PATH): Rule(Scope.RUNS_READ),
    ("GET", index_api.STATISTICS_PATH): Rule(Scope.RUNS_READ),
    ("GET", run_api.RUN_PATH): Rule(Scope.RUNS_READ),
    ("GET", run_api.HISTORY_PATH): Rule(Scope.RUNS_READ),
    ("GET", run_api.BLOB_PATH): Rule(Scope.RUNS_READ),
    ("GET", run_api.LOGS_PATH): Rule(Scope.RUNS_READ),
    ("GET", run_api.LOG_STREAM_PATH): Rule(Scope.RUNS_READ),
    ("GET", event_api.RUN_EVENTS_PATH): Rule(Scope.RUNS_READ),
    ("GET", event_api.EVENTS_PATH): Rule(Scope.RUNS_READ),
    ("POST", run_api.CANCEL_PATH): Rule(Scope.RUNS_WRITE, "run.cancelled"),
    ("POST", order_api.SIGNAL_PATH): Rule(Scope.RUNS_WRITE, "run.signalled"),
    ("POST", order_api.RETRY_PATH): Rule(Scope.RUNS_REPAIR, "run.retried"),
    ("POST", order_api.SKIP_PATH): Rule(Scope.RUNS_REPAIR, "step.skipped"),
    ("POST", order_api.COMPLETE_PATH): Rule(Scope.RUNS_REPAIR, "step.completed"),
    ("POST", order_api.APPROVE_PATH): Rule(Scope.RUNS_APPROVE, "step.approved"),
    ("POST", order_api.REJECT_PATH): Rule(Scope.RUNS_APPROVE, "step.rejected"),
    ("POST", order_api.TOKEN_PATH): Rule(Scope.RUNS_APPROVE, "token.created"),
    ("POST", order_api.APPROVALS_PATH): Rule(None, "token.used"),
    # runs of single images
    ("POST", runner_api.RUNS_PATH): Rule(Scope.RUNS_WRITE, "run.created"),
    ("GET", runner_api.RUNS_PATH): Rule(Scope.RUNS_READ),
    ("GET", runner_api.RUN_PATH): Rule(Scope.RUNS_READ),
    ("GET", runner_api.LOGS_PATH): Rule(Scope.RUNS_READ),
    ("GET", runner_api.LOG_STREAM_PATH): Rule(Scope.RUNS_READ),
    ("GET", runner_api.EVENTS_PATH): Rule(Scope.RUNS_READ),
    ("POST", runner_api.STOP_PATH): Rule(Scope.RUNS_WRITE, "run.stopped"),
    # jobs
    ("POST", job_api.JOBS_PATH): Rule(Scope.RUNS_WRITE, "job.submitted"),
    ("POST", bundle_api.BUNDLES_PATH): Rule(Scope.RUNS_WRITE, "bundle.uploaded"),
    ("GET", job_api.JOB_PATH): Rule(Scope.RUNS_READ),
    ("POST", job_api.CANCEL_JOB_PATH): Rule(Scope.RUNS_WRITE, "job.cancelled"),
    ("GET", job_api.JOB_TYPES_PATH): Rule(None),
    ("GET", job_api.JOB_TYPE_PATH): Rule(None),
    ("GET", job_api.PROVIDERS_PATH): Rule(Scope.WORKERS),
    ("POST", job_api.SET_ASIDE_PATH): Rule(Scope.ALL, "provider.set_aside"),
    ("POST", job_api.RESTORE_PATH): Rule(Scope.ALL, "provider.restored"),
    # commands of workers
    ("POST", command_api.COMMANDS_PATH): Rule(Scope.SANDBOXES_WRITE, "command.submitted"),
    ("GET", command_api.COMMAND_PATH): Rule(Scope.SANDBOXES_READ),
    ("GET", command_api.STREAM_PATH): Rule(Scope.SANDBOXES_READ),
    ("POST", command_api.CANCEL_PATH): Rule(Scope.SANDBOXES_WRITE, "command.cancelled"),
    # sandboxes that live on
    ("POST", sandbox_api.SANDBOXES_PATH): Rule(Scope.SANDBOXES_WRITE, "sandbox.created"),
    ("GET", sandbox_api.SANDBOXES_PATH): Rule(Scope.SANDBOXES_READ),
    ("GET", sandbox_api.SANDBOX_PATH): Rule(Scope.SANDBOXES_READ),
    ("POST", sandbox_api.EXTEND_PATH): Rule(Scope.SANDBOXES_WRITE, "sandbox.extended"),
    ("DELETE", sandbox_api.SANDBOX_PATH): Rule(Scope.SANDBOXES_WRITE, "sandbox.removed"),
    ("POST", sandbox_api.COMMANDS_PATH): Rule(Scope.SANDBOXES_WRITE, "command.started"),
    ("GET", sandbox_api.COMMANDS_PATH): Rule(Scope.SANDBOXES_READ),
    ("GET", sandbox_api.COMMAND_PATH): Rule(Scope.SANDBOXES_READ),
    ("GET", sandbox_api.OUTPUT_PATH): Rule(Scope.SANDBOXES_READ),
    ("POST", sandbox_api.STDIN_PATH): Rule(Scope.SANDBOXES_WRITE),
    ("POST", sandbox_api.RESIZE_PATH): Rule(Scope.SANDBOXES_WRITE),
    ("POST", sandbox_api.SIGNAL_PATH): Rule(Scope.SANDBOXES_WRITE, "command.signalled"),
    ("GET", sandbox_api.CONTENT_PATH): Rule(Scope.SANDBOXES_READ),
    ("PUT", sandbox_api.CONTENT_PATH): Rule(Scope.SANDBOXES_WRITE, "file.written"),
    ("GET", sandbox_api.LIST_PATH): Rule(Scope.SANDBOXES_READ),
    ("GET", sandbox_api.STAT_PATH): Rule(Scope.SANDBOXES_READ),
    ("DELETE", sandbox_api.FILES_PATH): Rule(Scope.SANDBOXES_WRITE, "file.removed"),
    ("POST", sandbox_api.FOLDERS_PATH): Rule(Scope.SANDBOXES_WRITE, "folder.made"),
    # schedules
    ("GET", schedule_api.SCHEDULES_PATH): Rule(Scope.SCHEDULES_READ),
    ("GET", schedule_api.SCHEDULE_PATH): Rule(Scope.SCHEDULES_READ),
    ("PUT", schedule_api.SCHEDULE_PATH): Rule(Scope.SCHEDULES_WRITE, "schedule.changed"),
    ("DELETE", schedule_api.SCHEDULE_PATH): Rule(Scope.SCHEDULES_WRITE, "schedule.deleted"),
    ("POST", schedule_api.PAUSE_PATH): Rule(Scope.SCHEDULES_WRITE, "schedule.paused"),
    ("POST", schedule_api.RESUME_PATH): Rule(Scope.SCHEDULES_WRITE, "schedule.resumed"),
    ("POST", schedule_api.TRIGGER_PATH): Rule(Scope.SCHEDULES_WRITE, "schedule.triggered"),
    # workers
    ("POST", bridge.CONNECT_PATH): Rule(Scope.WORKERS),
    ("POST", bridge.POLL_PATH): Rule(Scope.WORKERS),
    ("POST", bridge.RESOLVE_PATH): Rule(Scope.WORKERS),
    ("GET", bridge.CHECKPOINT_PATH): Rule(Scope.WORKERS),
    ("DELETE", bridge.WORKER_PATH): Rule(Scope.WORKERS, "worker.drained"),
    ("GET", directory_api.WORKERS_PATH): Rule(Scope.WORKERS),
    ("GET", task_type_api.TASK_TYPES_PATH): Rule(Scope.WORKERS),
    ("PUT", task_type_api.LIMIT_PATH): Rule(Scope.ALL, "limit.changed"),
    ("DELETE", task_type_api.LIMIT_PATH): Rule(Scope.ALL, "limit.removed"),
    ("POST", credential_api.CREDENTIALS_PATH): Rule(Scope.ALL, "worker.created"),
    ("GET", credential_api.CREDENTIALS_PATH): Rule(Scope.ALL),
    ("DELETE", credential_api.CREDENTIAL_PATH): Rule(Scope.ALL, "worker.revoked"),
    # receipts
    ("GET", runner_api.RECEIPT_PATH): Rule(Scope.RUNS_READ),
    ("GET", run_api.RECEIPT_PATH): Rule(Scope.RUNS_READ),
    ("GET", command_api.RECEIPT_PATH): Rule(Scope.SANDBOXES_READ),
    ("GET", sandbox_api.RECEIPT_PATH): Rule(Scope.SANDBOXES_READ),
    ("GET", receipt_api.RECEIPT_KEYS_PATH): Rule(None),
    ("PUT", receipt_api.RECEIPT_KEYS_PATH): Rule(Scope.ALL, "receipt_keys.published"),
    # keys
    ("POST", key_api.KEYS_PATH): Rule(Scope.KEYS, "key.created"),
    ("GET", key_api.KEYS_PATH): Rule(Scope.KEYS),
    ("DELETE", key_api.KEY_PATH): Rule(Scope.KEYS, "key.revoked"),
    ("GET", key_api.AUDIT_PATH): Rule(Scope.KEYS),
    ("GET", key_api.CALLER_PATH): Rule(None),
    ("POST", sign_in_api.SIGN_IN_PATH): Rule(None),
    ("POST", sign_in_api.SIGN_OUT_PATH): Rule(None),
    # the cell
    ("GET", key_api.TENANTS_PATH): Rule(Scope.ALL),
    ("GET", key_api.TENANT_PATH): Rule(Scope.ALL),
    ("PUT", key_api.TENANT_PATH): Rule(Scope.ALL, "tenant.changed"),
    ("GET", index_api.INDEX_PATH): Rule(Scope.ALL),
    ("POST", index_api.REBUILD_PATH): Rule(Scope.ALL, "index.rebuilt"),
    ("GET", health.METRICS_PATH): Rule(Scope.ALL),
    ("GET", health.HEALTH_PATH): Rule(None),
    ("GET", health.READY_PATH): Rule(None),
    ("GET", OPENAPI_PATH): Rule(None),
    **{("GET", path): Rule(None) for path in web.PATHS},
}
