"""Sandboxes, their commands and files as they are shown."""

from __future__ import annotations

from fumehood.control.console.running import Printed
from fumehood.wire.console import sessions as wire
from fumehood.wire.sandbox_api import (
    FileInfo,
    FileKind,
    SandboxCommandStatus,
    SandboxCommandView,
    SandboxListItem,
    SandboxView,
)
from fumehood.wire.times import moment

_KINDS = {kind.value: kind for kind in FileKind}


def sandbox(view: wire.SessionView) -> SandboxView:
    return SandboxView(
        sandbox_id=view.session_id,
        image=view.image,
        image_digest=view.image_digest,
        created_at=moment(view.created_unix_ms),
        lease_expires_at=moment(view.lease_expires_unix_ms),
        network=view.network,
        runtime=view.runtime,
        running_commands=view.running_commands,
        worker_id=view.worker,
    )


def listed(view: wire.SessionView) -> SandboxListItem:
    return SandboxListItem(
        sandbox_id=view.session_id,
        image=view.image,
        created_at=moment(view.created_unix_ms),
        lease_expires_at=moment(view.lease_expires_unix_ms),
        worker_id=view.worker,
    )


def command(view: wire.CommandView, printed: Printed | None = None) -> SandboxCommandView:
    shown = SandboxCommandView(
        command_id=view.command_id,
        sandbox_id=view.session_id,
        status=SandboxCommandStatus(view.status.value),
        exit_code=view.exit_code,
        signal=view.signal,
        detail=view.detail,
        started_at=None if view.started_unix_ms is None else moment(view.started_unix_ms),
        ended_at=None if view.ended_unix_ms is None else moment(view.ended_unix_ms),
        command=list(view.argv),
        terminal=view.terminal,
        stdout_bytes=view.stdout_bytes,
        stderr_bytes=view.stderr_bytes,
        stdin_bytes=view.stdin_bytes,
    )
    if printed is None:
        return shown
    return shown.model_copy(
        update={
            "stdout": printed.stdout.text,
            "stderr": printed.stderr.text,
            "stdout_truncated": printed.stdout.truncated,
            "stderr_truncated": printed.stderr.truncated,
        }
    )


def file(view: wire.FileView) -> FileInfo:
    return FileInfo(
        name=view.name,
        kind=_KINDS.get(view.kind, FileKind.OTHER),
        size_bytes=view.size_bytes,
        mode=f"{view.mode & 0o7777:04o}",
        uid=view.uid,
        gid=view.gid,
        modified_at=moment(view.modified_unix_ms),
    )
