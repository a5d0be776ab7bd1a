"""All that a worker of the console can do, put together."""

from __future__ import annotations

from collections.abc import Mapping

from fumehood.node.console.capabilities import Programs, Rules
from fumehood.node.console.duty import Handler
from fumehood.node.console.file_calls import FileCalls
from fumehood.node.console.leases import LeaseRule
from fumehood.node.console.making import Making
from fumehood.node.console.resource import Resources
from fumehood.node.console.session_calls import SessionCalls
from fumehood.node.console.uploads import Uploads
from fumehood.sandbox.sessions.sessions import Sessions
from fumehood.settings import WorkerSettings


def rules_of(settings: WorkerSettings) -> Rules:
    return Rules(
        python_image=settings.worker_python_exec_docker_image,
        terminal_image=settings.worker_terminal_exec_docker_image,
        lease=LeaseRule(
            settings.worker_terminal_lease_min_sec,
            settings.worker_terminal_lease_max_sec,
            settings.worker_terminal_lease_default_sec,
        ),
        output_limit=settings.worker_terminal_output_limit_bytes,
        most_sessions=settings.worker_max_sessions,
    )


def handlers(sessions: Sessions, rules: Rules, uploads: Uploads) -> Mapping[str, Handler]:
    """By the name of what is dispatched: the four capabilities, and every session call."""
    making = Making(sessions, rules.most_sessions)
    sessions.on_change(uploads.session_changed)
    return {
        **Programs(sessions, rules, making).handlers(),
        **Resources(sessions, rules).handlers(),
        **SessionCalls(sessions, rules, making).handlers(),
        **FileCalls(sessions, uploads).handlers(),
    }
