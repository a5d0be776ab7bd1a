"""What is said of a request that is not as it must be: about the caller's field, in plain words."""

from __future__ import annotations

from typing import Any

import pytest

from fumehood.errors import InvalidRequestError
from fumehood.wire.base import WireModel, validate
from fumehood.wire.credential_api import CreateWorkerRequest
from fumehood.wire.sandbox_api import RunCommandRequest, SignalCommandRequest

NAMES = "'SIGHUP', 'SIGINT', 'SIGQUIT', 'SIGKILL', 'SIGUSR1', 'SIGUSR2', 'SIGTERM', 'SIGCONT', 'SIGSTOP' or 'SIGTSTP'"
CHOSEN = {"command": "true", "command_id": "short"}


@pytest.mark.parametrize(
    ("kind", "data", "said"),
    [
        (RunCommandRequest, {"command": []}, "command: must not be empty"),
        (RunCommandRequest, {"command": ""}, "command: must not be empty or contain the character NUL"),
        (RunCommandRequest, {"command": 5}, "command: must be text or an array"),
        (RunCommandRequest, {"command": ["a", 1]}, "command.1: must be text"),
        (RunCommandRequest, {"command": ["\0"]}, "command.0: must not contain the character NUL"),
        (RunCommandRequest, CHOSEN, "command_id: must be 16 to 64 letters, digits, dashes and underscores"),
        (SignalCommandRequest, {"signal": "SIGNONE"}, f"signal: must be {NAMES} or an integer"),
        (SignalCommandRequest, {"signal": 99}, "signal: must be at most 64"),
        (
            CreateWorkerRequest,
            {"worker_id": "a b"},
            "worker_id: must be 1 to 64 letters, digits, dashes and underscores",
        ),
    ],
)
def test_what_is_wrong_is_said_of_what_was_meant(kind: type[WireModel], data: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        validate(kind, data, versioned=False)
    assert refused.value.detail == said


def test_a_label_with_a_wrong_name_is_not_blamed_on_its_value() -> None:
    with pytest.raises(InvalidRequestError, match=r"^labels: a name must be 1 to 63 letters"):
        validate(CreateWorkerRequest, {"worker_id": "a", "labels": {"?": "1"}}, versioned=False)
