"""The contract's payloads and results: exactly their fields, exactly their bounds, cut at the exact byte."""

from __future__ import annotations

import contextlib
import datetime as dt
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fumehood.errors import CommandFailedError, FileOperationError
from fumehood.node.console import mime, paths
from fumehood.node.console.leases import LeaseRule
from fumehood.node.console.telling import cut, ended_of, exit_code_of
from fumehood.sandbox.sessions.values import Captured, ProcessFacts, SessionName
from fumehood.sandbox.spec import End, Outcome, Stage
from fumehood.wire.base import WireModel
from fumehood.wire.console.payloads import (
    LONGEST_ARGUMENT,
    PythonExec,
    PythonExecResult,
    ResourceAction,
    TerminalExec,
    TerminalExecResult,
    TerminalResource,
    TerminalResourceResult,
    read,
    written,
)

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def refused(kind: type[WireModel], payload: object) -> str:
    with pytest.raises(CommandFailedError) as caught:
        read(kind, payload if isinstance(payload, bytes) else json.dumps(payload).encode())
    assert caught.value.reason == "invalid_payload"
    return caught.value.detail


# --- payloads ----------------------------------------------------------------------------------------------


def test_the_defaults_of_the_contract() -> None:
    asked = read(TerminalExec, b'{"command": "ls"}')
    assert (asked.session_id, asked.create_if_missing, asked.lease_ttl_sec) == (None, False, None)
    looked = read(TerminalResource, b'{"session_id": "s", "file_path": "f"}')
    assert looked.action is ResourceAction.VALIDATE


@pytest.mark.parametrize(
    ("kind", "payload", "message"),
    [
        (PythonExec, b"", "not valid JSON"),
        (PythonExec, b"\xff", "not valid UTF-8"),
        (PythonExec, [], "must be a JSON object"),
        (PythonExec, {}, "code: is missing"),
        (PythonExec, {"code": None}, "code: must be text"),
        (PythonExec, {"code": ""}, "code: must not be empty"),
        (PythonExec, {"code": "a\0b"}, "NUL"),
        (PythonExec, b'{"code": "1", "code": "2"}', "same key twice"),
        (PythonExec, {"code": "1", "args": []}, "args: is not a field of this contract"),
        (PythonExec, {"code": "é" * (LONGEST_ARGUMENT // 2 + 1)}, "at most 131071 bytes"),
        (TerminalExec, {"command": "ls", "session_id": None}, "leave the field out"),
        (TerminalExec, {"command": "ls", "session_id": ""}, "1 to 128 letters"),
        (TerminalExec, {"command": "ls", "session_id": "a/b"}, "1 to 128 letters"),
        (TerminalExec, {"command": "ls", "create_if_missing": 1}, "true or false"),
        (TerminalExec, {"command": "ls", "lease_ttl_sec": "60"}, "must be an integer"),
        (TerminalExec, {"command": "ls", "lease_ttl_sec": True}, "must be an integer"),
        (TerminalExec, {"command": "ls", "lease_ttl_sec": 60.5}, "must be an integer"),
        (TerminalResource, {"file_path": "f"}, "session_id: is missing"),
        (TerminalResource, {"session_id": "s"}, "file_path: is missing"),
        (TerminalResource, {"session_id": "s", "file_path": "f", "action": "write"}, "'validate' or 'read'"),
        (TerminalResource, {"session_id": "s", "file_path": "f", "action": None}, "'validate' or 'read'"),
    ],
)
def test_what_does_not_fit_is_named(kind: type[WireModel], payload: object, message: str) -> None:
    assert message in refused(kind, payload)


def test_a_value_is_never_told_back() -> None:
    """It may be a secret."""
    assert "hunter2" not in refused(TerminalExec, {"command": ["hunter2"], "session_id": "hunter2 x"})


def test_the_longest_program() -> None:
    """As the kernel counts: bytes."""
    assert len(read(PythonExec, json.dumps({"code": "é" * (LONGEST_ARGUMENT // 2)}).encode()).code) == 65_535


@given(st.binary())
def test_any_bytes_are_a_payload_or_an_error_of_ours(data: bytes) -> None:
    for kind in (PythonExec, TerminalExec, TerminalResource):
        with contextlib.suppress(CommandFailedError):
            read(kind, data)


# --- results -----------------------------------------------------------------------------------------------


def test_the_results_of_the_contract_field_by_field() -> None:
    python = PythonExecResult(output="o", stderr="e", exit_code=0)
    assert written(python) == b'{"output":"o","stderr":"e","exit_code":0}'
    cut_off = PythonExecResult(output="o", stderr="e", exit_code=0, output_truncated=True, stderr_truncated=True)
    assert json.loads(written(cut_off)).keys() == {
        "output", "stderr", "exit_code", "output_truncated", "stderr_truncated",
    }  # fmt: skip
    terminal = TerminalExecResult(
        session_id="s",
        created=True,
        stdout="",
        stderr="",
        exit_code=0,
        stdout_truncated=False,
        stderr_truncated=False,
        lease_expires_unix_ms=1,
    )
    assert written(terminal) == (
        b'{"session_id":"s","created":true,"stdout":"","stderr":"","exit_code":0,"stdout_truncated":false,'
        b'"stderr_truncated":false,"lease_expires_unix_ms":1}'
    )
    looked = TerminalResourceResult(session_id="s", file_path="f", mime_type="text/plain", size_bytes=0)
    assert written(looked) == b'{"session_id":"s","file_path":"f","mime_type":"text/plain","size_bytes":0}'
    with_blob = looked.model_copy(update={"blob": ""})
    assert json.loads(written(with_blob))["blob"] == ""


# --- output ------------------------------------------------------------------------------------------------


@given(st.binary(max_size=64), st.integers(0, 64))
@example(b"x" * 10, 10)
@example(b"x" * 11, 10)
def test_a_stream_is_cut_at_the_byte(data: bytes, limit: int) -> None:
    """The flag is true exactly when something was cut off, and what is kept is what was first."""
    text, truncated = cut(data, len(data), limit)
    assert truncated == (len(data) > limit)
    if not truncated:
        assert text == data.decode("utf-8", "replace")
    else:
        assert data[:limit].decode("utf-8", "replace").startswith(text)


@given(st.text(max_size=64), st.integers(0, 128))
def test_text_is_cut_between_characters(text: str, limit: int) -> None:
    """A program that wrote text is never said to have written something else."""
    data = text.encode()
    kept, truncated = cut(data[:limit], len(data), limit)
    assert text.startswith(kept)
    assert len(kept.encode()) <= limit
    assert truncated == (len(data) > limit)
    if truncated:
        assert limit - len(kept.encode()) < 4, "no whole character was lost"


@given(st.binary(max_size=64))
def test_every_output_can_be_told(data: bytes) -> None:
    text, _ = cut(data, len(data), 32)
    assert json.loads(written(PythonExecResult(output=text, stderr="", exit_code=0)))["output"] == text


# --- ends --------------------------------------------------------------------------------------------------


def ended(end: End, **more: object) -> ProcessFacts:
    outcome = Outcome(end, NOW, NOW, **more)  # type: ignore[arg-type]
    return ProcessFacts("c", SessionName("o", "s"), ("prog",), False, 0, 0, 0, 0, outcome)


@pytest.mark.parametrize(
    ("process", "code"),
    [
        (ended(End.EXITED, exit_code=0), 0),
        (ended(End.EXITED, exit_code=255), 255),
        (ended(End.SIGNALED, signal=15), 143),
        (ended(End.OOM), 137),
        (ended(End.OOM, signal=9), 137),
    ],
)
def test_an_end_as_a_number(process: ProcessFacts, code: int) -> None:
    assert exit_code_of(process) == code


@pytest.mark.parametrize(
    ("process", "reason"),
    [
        (ended(End.TIMED_OUT), "deadline_exceeded"),
        (ended(End.NOT_STARTED, errno=2, stage=Stage.EXEC), "execution_failed"),
        (ended(End.SANDBOX_LOST), "execution_failed"),
        (ended(End.EXITED), "execution_failed"),
    ],
)
def test_an_end_that_is_no_number(process: ProcessFacts, reason: str) -> None:
    """What is not known is never a result."""
    with pytest.raises(CommandFailedError) as caught:
        ended_of(process, Captured(b"", b"", 0, 0), 10)
    assert caught.value.reason == reason


@given(st.binary(max_size=20), st.integers(0, 20), st.integers(1, 12))
def test_no_result_tells_less_than_there_was(data: bytes, kept: int, limit: int) -> None:
    """What is kept is the beginning of a stream as far as the limit, or the result is an error."""
    process = ended(End.EXITED, exit_code=0)
    captured = Captured(data[: min(kept, limit)], b"", len(data), 0)
    if kept >= min(len(data), limit):
        assert ended_of(process, captured, limit).stdout_truncated == (len(data) > limit)
    else:
        with pytest.raises(CommandFailedError, match="its output is gone"):
            ended_of(process, captured, limit)


# --- leases ------------------------------------------------------------------------------------------------


@given(st.integers(), st.integers(1, 1000), st.integers(0, 1000), st.integers(0, 1000))
def test_a_lease_is_as_asked_or_refused(asked: int, low: int, default: int, high: int) -> None:
    """Never more, never less."""
    rule = LeaseRule(low, low + default + high, low + default)
    if low <= asked <= rule.longest:
        assert rule.milliseconds(asked) == asked * 1000
    else:
        with pytest.raises(CommandFailedError) as caught:
            rule.milliseconds(asked)
        assert caught.value.reason == "invalid_payload"
    assert rule.milliseconds(None) == rule.default * 1000


# --- paths and kinds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "beneath"),
    [
        ("a", "workspace/a"),
        ("/a", "a"),
        ("/", ""),
        (".", "workspace"),
        ("../x", "x"),
        ("../../../x", "x"),
        ("//x", "x"),
        ("a//b/./c/", "workspace/a/b/c"),
    ],
)
def test_where_a_path_leads(path: str, beneath: str) -> None:
    assert paths.beneath_root(path) == beneath


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=30))
def test_no_path_leads_out(path: str) -> None:
    found = paths.beneath_root(path)
    assert not found.startswith("/")
    assert ".." not in found.split("/")


@pytest.mark.parametrize(
    ("number", "reason"),
    [(2, "file_not_found"), (20, "file_not_found"), (40, "file_not_found"), (36, "file_not_found"),
     (21, "path_is_directory"), (27, "file_too_large"), (13, "file_error"), (22, "file_error"), (28, "file_error")],
)  # fmt: skip
def test_what_an_errno_means(number: int, reason: str) -> None:
    failure = paths.failure(FileOperationError("why", errno=number), "some/file" + "x" * 5000)
    assert (failure.reason, len(failure.detail) < 400) == (reason, True)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.txt", "text/plain"),
        ("a.PNG", "image/png"),
        ("a.json", "application/json"),
        ("a.md", "text/markdown"),
        ("a.tar.gz", "application/gzip"),
        ("data:text.csv", "text/csv"),
        ("some.folder/noname", None),
        (".bashrc", None),
    ],
)
def test_what_a_name_tells(name: str, kind: str | None) -> None:
    assert mime.by_name(name) == kind


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=50), st.integers(0, 200))
def test_text_is_known_wherever_the_look_ends(text: str, at: int) -> None:
    head = text.encode()[:at]
    assert mime.by_content(head, whole=len(head) == len(text.encode())) == mime.TEXT


@pytest.mark.parametrize(("head", "whole"), [(b"\0", True), (b"a\xff", False), (b"\xc3", True)])
def test_bytes_are_no_text(head: bytes, whole: bool) -> None:
    assert mime.by_content(head, whole=whole) == mime.BYTES
