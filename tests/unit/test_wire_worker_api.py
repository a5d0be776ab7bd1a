"""The Worker API's models: what is taken, what is refused, and how an answer is written."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fumehood.errors import InvalidRequestError, UnsupportedVersionError
from fumehood.wire import strict_json
from fumehood.wire.base import canonical_sha256
from fumehood.wire.worker_api import (
    JobStatus,
    NetworkPolicy,
    RunJobRequest,
    RunJobResponse,
    Truncated,
    parse_run_job_request,
)

TASK, JOB = "11111111-1111-1111-1111-11111111111A", "22222222-2222-2222-2222-22222222222b"
NOON = dt.datetime(2026, 2, 16, 12, tzinfo=dt.UTC)


def request(**changes: Any) -> dict[str, Any]:
    return {"version": 1, "task_id": TASK, "job_id": JOB, "sandbox": sandbox()} | changes


def sandbox(**changes: Any) -> dict[str, Any]:
    return {"image": "registry.example.com/base:1", "command": ["echo", "hello"]} | changes


def parse(value: object) -> RunJobRequest:
    return parse_run_job_request(json.dumps(value).encode())


def response(**changes: Any) -> RunJobResponse:
    fields: dict[str, Any] = {
        "task_id": TASK,
        "job_id": JOB,
        "status": JobStatus.COMPLETED,
        "exit_code": 0,
        "stdout": "",
        "stderr": "",
        "started_at": NOON,
        "ended_at": NOON,
        "truncated": Truncated(stdout=False, stderr=False),
    }
    return RunJobResponse(**fields | changes)


def test_the_smallest_request_gets_the_defaults() -> None:
    parsed = parse(request())
    assert parsed.sandbox.command == ("echo", "hello")
    assert parsed.sandbox.env == {}
    assert parsed.sandbox.timeout_seconds is None
    assert parsed.sandbox.network_policy is NetworkPolicy.RESTRICTED


def test_a_whole_number_is_an_integer_however_it_is_written() -> None:
    parsed = parse(request(version=1.0, sandbox=sandbox(timeout_seconds=2.0)))
    assert parsed == parse(request(sandbox=sandbox(timeout_seconds=2)))
    assert type(parsed.sandbox.timeout_seconds) is int
    with pytest.raises(UnsupportedVersionError):
        parse(request(version=2.0))


def test_uuids_become_lower_case() -> None:
    assert parse(request()).task_id == TASK.lower()
    assert json.loads(response().model_dump_json())["task_id"] == TASK.lower()


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (request(extra=1), "extra"),
        (request(sandbox=sandbox(extra=1)), "sandbox.extra"),
        (request(version="1"), "version: must be an integer"),
        (request(version=True), "version"),
        (request(version=1.5), "version"),
        (request(version=None), "version"),
        (request(task_id="nobody"), "task_id: must be a UUID"),
        (request(task_id=TASK.replace("-", "")), "task_id"),
        (request(task_id="{" + TASK + "}"), "task_id"),
        (request(job_id=JOB + "\n"), "job_id"),
        (request(job_id=7), "job_id"),
        (request(sandbox=None), "sandbox"),
        (request(sandbox=[]), "sandbox"),
        (request(sandbox=sandbox(image="")), "sandbox.image"),
        (request(sandbox=sandbox(image=None)), "sandbox.image"),
        (request(sandbox=sandbox(command=[])), "sandbox.command"),
        (request(sandbox=sandbox(command=[""])), "sandbox.command: the first item"),
        (request(sandbox=sandbox(command="ls")), "sandbox.command"),
        (request(sandbox=sandbox(command=["a", 1])), "sandbox.command.1: must be text"),
        (request(sandbox=sandbox(command=["a", "b\0c"])), "sandbox.command.1"),
        (request(sandbox=sandbox(env=None)), "sandbox.env"),
        (request(sandbox=sandbox(env=[])), "sandbox.env"),
        (request(sandbox=sandbox(env={"A": 1})), "sandbox.env: a value must be text"),
        (request(sandbox=sandbox(env={"A": "b\0"})), "sandbox.env: a value must not contain the character NUL"),
        (request(sandbox=sandbox(env={"A=B": "c"})), "sandbox.env: a name must not be empty or contain `=`"),
        (request(sandbox=sandbox(env={"A\0": "c"})), "sandbox.env"),
        (request(sandbox=sandbox(env={"": "c"})), "sandbox.env"),
        (request(sandbox=sandbox(timeout_seconds=0)), "sandbox.timeout_seconds: must be at least 1"),
        (request(sandbox=sandbox(timeout_seconds=-1)), "sandbox.timeout_seconds"),
        (request(sandbox=sandbox(timeout_seconds="1")), "sandbox.timeout_seconds"),
        (request(sandbox=sandbox(timeout_seconds=True)), "sandbox.timeout_seconds: must be an integer"),
        (request(sandbox=sandbox(timeout_seconds=1.5)), "sandbox.timeout_seconds"),
        (request(sandbox=sandbox(timeout_seconds=None)), "sandbox.timeout_seconds"),
        (request(sandbox=sandbox(network_policy="full")), "sandbox.network_policy: must be 'restricted' or 'none'"),
        (request(sandbox=sandbox(network_policy=None)), "sandbox.network_policy"),
        ([], "the body"),
        ("x", "the body"),
        (None, "the body"),
        ({}, "version: is missing"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(body: object, place: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse(body)
    assert caught.value.code == "invalid-request"
    assert caught.value.detail.startswith(place)


@pytest.mark.parametrize("field", ["version", "task_id", "job_id", "sandbox"])
def test_every_top_level_field_is_required(field: str) -> None:
    body = request()
    del body[field]
    with pytest.raises(InvalidRequestError, match=f"{field}: is missing"):
        parse(body)


def test_another_version_is_named_before_anything_else_is_looked_at() -> None:
    with pytest.raises(UnsupportedVersionError) as caught:
        parse({"version": 2, "whatever": None})
    assert caught.value.detail == "version 2 was received; supported is 1"


def test_values_never_show_in_a_complaint() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse(request(sandbox=sandbox(env={"KEY": "hush\0hush"}, timeout_seconds="hush")))
    assert "hush" not in caught.value.detail


@pytest.mark.parametrize("env", [{"HUSH": 1}, {"HUSH": "a\0"}, {"HUSH=": "a"}, {"HUSH\0": "a"}, {"HUSH": {"HUSH": []}}])
def test_names_in_the_environment_never_show_in_a_complaint(env: dict[str, Any]) -> None:
    """Templates put secrets on the wrong side of the colon."""
    with pytest.raises(InvalidRequestError) as caught:
        parse(request(sandbox=sandbox(env=env)))
    assert "HUSH" not in caught.value.detail


def test_the_same_complaint_is_made_once() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse(request(sandbox=sandbox(env={str(number): number for number in range(9)})))
    assert caught.value.detail == "sandbox.env: a value must be text"


def test_broken_json_is_shown_where_it_breaks() -> None:
    with pytest.raises(InvalidRequestError, match=r"line 2, column 7$"):
        strict_json.loads(b'{"a": 1,\n "b": }')


def test_a_complaint_stays_short() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse(request(**{f"{number}" * 1000: 1 for number in range(10, 60)}))
    assert len(caught.value.detail) < 1000
    assert caught.value.detail.endswith("and 45 more")


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"{} {}", "not valid JSON"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (b'{"version": ' + b"1" * 5000 + b"}", "too large"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b'{"a": 1, "a": 1}', "same key twice"),
        (b'{"x": {"a": 1, "\\u0061": 1}}', "same key twice"),
        (b'{"a": NaN}', "holds NaN, which is not JSON"),
        (b'{"a": -Infinity}', "holds -Infinity, which is not JSON"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"\\uDFFF": 1}', "surrogate"),
        (b"[" * 1_000_000, "nested too deeply"),
        (b'{"a":' * 1_000_000, "nested too deeply"),
    ],
)
def test_ambiguous_json_is_refused(body: bytes, complaint: str) -> None:
    with pytest.raises(InvalidRequestError, match=complaint):
        strict_json.loads(body)


def test_a_whole_surrogate_pair_is_a_character() -> None:
    assert strict_json.loads(b'"\\ud83d\\ude00"') == "\N{GRINNING FACE}"


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_parser(body: bytes) -> None:
    try:
        parse_run_job_request(body)
    except InvalidRequestError:
        return


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)


@given(json_values)
def test_valid_json_means_the_same_as_before(value: object) -> None:
    assert strict_json.loads(json.dumps(value).encode()) == value


def test_the_hash_ignores_blanks_order_case_and_defaults() -> None:
    plain = parse(request())
    spelt = {
        "sandbox": {"network_policy": "restricted", "env": {}, **sandbox()},
        "job_id": JOB.upper(),
        "task_id": TASK.lower(),
        "version": 1,
    }
    assert canonical_sha256(parse_run_job_request(json.dumps(spelt, indent=4).encode())) == canonical_sha256(plain)


def test_the_hash_is_over_what_was_said_so_that_later_fields_do_not_change_it() -> None:
    said = {"version": 1, "task_id": TASK.lower(), "job_id": JOB.lower(), "sandbox": sandbox()}
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    assert canonical_sha256(parse(request())) == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    "changed",
    [
        request(task_id=JOB),
        request(sandbox=sandbox(command=["echo", "hello "])),
        request(sandbox=sandbox(command=["hello", "echo"])),
        request(sandbox=sandbox(env={"A": ""})),
        request(sandbox=sandbox(timeout_seconds=300)),
        request(sandbox=sandbox(network_policy="none")),
    ],
)
def test_the_hash_sees_every_difference_of_meaning(changed: dict[str, Any]) -> None:
    assert canonical_sha256(parse(changed)) != canonical_sha256(parse(request()))


def test_a_request_written_again_can_be_read_again() -> None:
    parsed = parse(request(sandbox=sandbox(env={"A": "="})))
    assert parse_run_job_request(parsed.model_dump_json().encode()) == parsed


def test_times_are_utc_with_milliseconds_and_end_with_z() -> None:
    east = NOON.astimezone(dt.timezone(dt.timedelta(hours=5)))
    answer = response(started_at=east, ended_at=NOON + dt.timedelta(microseconds=250_999))
    written = json.loads(answer.model_dump_json())
    assert written["started_at"] == "2026-02-16T12:00:00.000Z"
    assert written["ended_at"] == "2026-02-16T12:00:00.250Z"
    assert RunJobResponse.model_validate_json(answer.model_dump_json()) == answer


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValidationError):
        response(started_at=NOON.replace(tzinfo=None))


def test_exit_code_is_absent_and_not_null_on_timeout() -> None:
    timeout = response(status=JobStatus.TIMEOUT, exit_code=None)
    assert "exit_code" not in json.loads(timeout.model_dump_json())
    assert RunJobResponse.model_validate_json(timeout.model_dump_json()) == timeout


def _timeout_json() -> str:
    fields = json.loads(response().model_dump_json()) | {"status": "timeout"}
    del fields["exit_code"]
    return json.dumps(fields)


@pytest.mark.parametrize("changes", [{"status": JobStatus.TIMEOUT}, {"exit_code": 256}, {"exit_code": -1}])
def test_an_answer_that_contradicts_itself_cannot_be_made(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        response(**changes)


def test_completed_and_failed_need_their_exit_code() -> None:
    for status in ("completed", "failed"):
        with pytest.raises(ValidationError):
            RunJobResponse.model_validate_json(_timeout_json().replace('"timeout"', f'"{status}"'))


def test_a_stored_answer_is_read_back_equal() -> None:
    answer = response(stdout="\N{GRINNING FACE}\n", exit_code=3, status=JobStatus.FAILED)
    assert RunJobResponse.model_validate_json(answer.model_dump_json()) == answer
