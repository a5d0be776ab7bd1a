"""Names on the wire: what may become part of a subject, and which partition a run belongs to.

A subject is built from ids that callers choose, so every id is checked here before it becomes one: a dot, a
wildcard or a space in a run id would be another subject. The partition is computed by the server (an account
mapping with `partition()`) for workers, who know nothing of partitions, and here for ourselves; both must agree for
ever (`test_broker.py::test_the_server_and_we_agree_on_every_runs_partition`).
"""

from __future__ import annotations

import functools
import re

from fumehood.errors import InvalidRequestError

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,128}")
_TASK_TYPE = re.compile(r"(?=.{1,128}\Z)[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_KEY = re.compile(r"(?=.{1,512}\Z)[A-Za-z0-9_=-]+(?:\.[A-Za-z0-9_=-]+)*")
_MESSAGE_ID = re.compile(r"[\x21-\x7e]{1,640}")
_BLOB = re.compile(r"sha256:[0-9a-f]{64}")

DEFAULT_TENANT = "default"
NODES_TENANT = "nodes"
"""Whose blobs hold what sandboxes printed: of all tenants, so that no worker may be of this one."""


def _checked(pattern: re.Pattern[str], text: str, what: str) -> str:
    if pattern.fullmatch(text) is None:
        raise InvalidRequestError(f"{what} may only match {pattern.pattern}")
    return text


def token(text: str, what: str = "an id") -> str:
    """A run id, step id, timer id, worker id or tenant."""
    return _checked(_TOKEN, text, what)


def is_token(text: str) -> bool:
    return _TOKEN.fullmatch(text) is not None


def task_type(text: str) -> str:
    """A task type: as a token, and dots inside."""
    return _checked(_TASK_TYPE, text, "a task type")


def key(text: str) -> str:
    """A key of a bucket: tokens joined by dots."""
    return _checked(_KEY, text, "a key")


def key_prefix(text: str) -> str:
    """What `keys` and `watch` select by: nothing, or whole tokens (`run-1` selects `run-1.a`, not `run-10.a`)."""
    return key(text) if text else ""


def message_id(text: str) -> str:
    """An id that travels in a header: visible ASCII, so that no line can be smuggled in."""
    return _checked(_MESSAGE_ID, text, "a message id")


def blob_hash(ref: str) -> str:
    """The hex part of a blob's reference."""
    return _checked(_BLOB, ref, "a blob reference").removeprefix("sha256:")


def fnv1a_32(text: str) -> int:
    """The hash behind the server's `partition()`."""
    value = 2_166_136_261
    for byte in text.encode():
        value = ((value ^ byte) * 16_777_619) & 0xFFFF_FFFF
    return value


@functools.lru_cache(maxsize=16_384)
def partition_of(run_id: str, partitions: int) -> int:
    """The partition that holds all subjects of a run. Remembered: each message of a run asks for it several times."""
    return fnv1a_32(token(run_id, "a run id")) % partitions


def consumer_of(kind: str) -> str:
    """The published name of a task type's consumer. A dot cannot be in it, and `=` cannot be in a task type."""
    return "task-" + task_type(kind).replace(".", "=2E")


def task_subject(kind: str, run_id: str) -> str:
    return f"task.{task_type(kind)}.{token(run_id, 'a run id')}"


def task_filter(kind: str) -> str:
    return f"task.{task_type(kind)}.*"
