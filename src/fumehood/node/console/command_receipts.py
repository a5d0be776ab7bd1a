"""Receipts of what the console had this worker do: commands, and the ends of commands in sessions.

A command's request is what was dispatched: `{"capability", "payload_sha256"}`, the hash being that of the payload's own
bytes, which no server writes anew. That of a command in a session is the program as it was begun: `argv`, `cwd`, `env`,
`stdin`, `terminal` and `timeout_ms`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from fumehood.errors import CommandFailedError
from fumehood.node.claims import RETURNED, STDERR, STDOUT, image_of, observed_of, sha256, stream_sizes, stream_subjects
from fumehood.node.console.duty import Duty
from fumehood.node.receipts import Receipts, Said
from fumehood.sandbox.sessions.records import Ending
from fumehood.sandbox.sessions.sessions import Sessions
from fumehood.sandbox.sessions.values import ProcessFacts
from fumehood.sandbox.spec import Outcome as Ended
from fumehood.verify.receipt import Asked, Image, Kind, Outcome
from fumehood.wire import receipts as wire
from fumehood.wire.canonical import json_sha256
from fumehood.wire.console.console_pb2 import Result
from fumehood.wire.console.sessions import Method

RESULT: Final = "result"
"""The subject that is a command's result, byte for byte."""
SUCCEEDED, FAILED = "succeeded", "failed"


class CommandReceipts:
    def __init__(self, receipts: Receipts) -> None:
        self._receipts = receipts
        self.sessions: Sessions | None = None
        """Once there are any: they sign, too, and so come later."""

    def of_session_command(self, ending: Ending) -> str:
        return wire.encoded(self._receipts.issue(lambda: _of_ending(ending))).decode()

    def of_command(self, duty: Duty, result: Result) -> bytes:
        """What the handler saw, and how the program in it ended, if there was one."""
        process = self._process(duty.dispatch.command_id)
        return wire.encoded(self._receipts.issue(lambda: _of_duty(duty, result, process)))

    def _process(self, command_id: str) -> ProcessFacts | None:
        try:
            return None if self.sessions is None else self.sessions.process(command_id)
        except CommandFailedError:
            return None


def _of_duty(duty: Duty, result: Result, process: ProcessFacts | None) -> Said:
    dispatch, session, texts = duty.dispatch, duty.witness.session, duty.witness.texts
    failed = result.WhichOneof("end") == "error"
    ended = process.outcome if process is not None else None
    returned = {} if texts is None or failed else _returned(*texts)
    sandbox = _sandbox(session.evidence, session.image, session.image_digest) if session is not None else (None, {})
    return Said(
        kind=Kind.COMMAND,
        task={
            "command_id": dispatch.command_id,
            "session_id": session.name.session_id if session else None,
        },
        request=Asked(
            sha256=json_sha256({"capability": dispatch.capability, "payload_sha256": sha256(dispatch.payload_json)}),
            type=dispatch.capability,
            tenant=dispatch.owner or None,
        ),
        outcome=Outcome(
            status=FAILED if failed else SUCCEEDED,
            reason=result.error.code if failed else _reason(ended),
            exit_code=ended.exit_code if ended is not None else None,
            signal=ended.signal if ended is not None else None,
        ),
        subjects={**_streams(ended), **returned, RESULT: None if failed else sha256(result.payload_json)},
        image=sandbox[0],
        observed={**_limited(sandbox[1], dispatch.timeout_ms), **_sizes(ended)},
        started_at=ended.started_at if ended is not None else duty.began,
        finished_at=max(duty.began, dt.datetime.now(dt.UTC)),
    )


def _of_ending(ending: Ending) -> Said:
    record, session, outcome = ending.record, ending.session, ending.record.outcome
    assert outcome is not None, "it has ended"
    asked = asdict(ending.wish) if ending.wish is not None else {"sha256": record.sha256}
    asked.pop("command_id", None)
    sandbox = _sandbox(session.evidence, session.wish.image, session.image_digest) if session else (None, {})
    timeout_ms = ending.wish.timeout_ms if ending.wish is not None else 0
    return Said(
        kind=Kind.COMMAND,
        task={"command_id": record.command_id, "session_id": record.name.session_id},
        request=Asked(sha256=json_sha256(asked), type=Method.START.value, tenant=record.name.owner or None),
        outcome=Outcome(
            status=outcome.end.value,
            reason="stopped" if outcome.killed_by_owner else None,
            exit_code=outcome.exit_code,
            signal=outcome.signal,
        ),
        subjects=_streams(outcome),
        image=sandbox[0],
        observed={**_limited(sandbox[1], timeout_ms), **_sizes(outcome), "stdin_bytes": record.stdin_bytes},
        started_at=outcome.started_at,
        finished_at=max(outcome.started_at, outcome.ended_at),
    )


def _reason(ended: Ended | None) -> str | None:
    return ended.end.value if ended is not None else None


def _streams(ended: Ended | None) -> dict[str, str]:
    return {} if ended is None else stream_subjects({STDOUT: ended.stdout, STDERR: ended.stderr})


def _sizes(ended: Ended | None) -> dict[str, Any]:
    return {} if ended is None else stream_sizes({STDOUT: ended.stdout, STDERR: ended.stderr})


def _returned(stdout: str, stderr: str) -> dict[str, str]:
    return {STDOUT + RETURNED: sha256(stdout.encode()), STDERR + RETURNED: sha256(stderr.encode())}


def _sandbox(evidence: Mapping[str, Any], reference: str, digest: str) -> tuple[Image | None, dict[str, Any]]:
    """The image that runs in a session, with why it was let in, as far as that is remembered; and what was observed."""
    image = image_of(evidence) or (Image(digest=digest, reference=reference) if digest else None)
    return image, observed_of(evidence)


def _limited(observed: Mapping[str, Any], timeout_ms: int) -> dict[str, Any]:
    """With the time that the command had, if that was bounded."""
    if not timeout_ms:
        return dict(observed)
    return {**observed, "limits": {**observed.get("limits", {}), "timeout_ms": timeout_ms}}
