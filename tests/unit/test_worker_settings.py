"""Settings of a worker: the contract's names and defaults, and who it is."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from fumehood.cli.worker_identity import claim, identity_of
from fumehood.errors import ConfigurationError
from fumehood.node.console.worker import rules_of
from fumehood.settings import NodeSettings, WorkerSettings, environment_for, strays

SECRET = base64.urlsafe_b64encode(bytes(range(32))).decode().rstrip("=")  # the same in every process of pytest


def test_the_defaults_of_the_contract() -> None:
    settings = WorkerSettings.load(env={})
    assert settings.worker_console_grpc_target == ("127.0.0.1:50051",)
    assert (settings.worker_heartbeat_interval_sec, settings.worker_heartbeat_jitter_pct) == (5, 20)
    rules = rules_of(settings)
    assert (rules.lease.shortest, rules.lease.longest, rules.lease.default) == (60, 1800, 60)
    assert rules.output_limit == 1_048_576
    assert (rules.python_image, rules.terminal_image) == ("python:slim", "python:slim")


def test_every_variable_of_the_contract() -> None:
    settings = WorkerSettings.load(
        env={
            "WORKER_ID": "w1",
            "WORKER_SECRET": SECRET,
            "WORKER_CONSOLE_GRPC_TARGET": "a.example:1, [::1]:2",
            "WORKER_CONSOLE_TLS": "true",
            "WORKER_HEARTBEAT_INTERVAL_SEC": "7",
            "WORKER_HEARTBEAT_JITTER_PCT": "10",
            "WORKER_TERMINAL_LEASE_MIN_SEC": "1",
            "WORKER_TERMINAL_LEASE_MAX_SEC": "9",
            "WORKER_TERMINAL_LEASE_DEFAULT_SEC": "5",
            "WORKER_TERMINAL_OUTPUT_LIMIT_BYTES": "10",
            "WORKER_PYTHON_EXEC_DOCKER_IMAGE": "p",
            "WORKER_TERMINAL_EXEC_DOCKER_IMAGE": "t",
            "WORKER_LABELS": "zone=a, gpu=",
            "WORKER_STATE_DIR": "/srv/worker",
            "WORKER_MAX_SESSIONS": "3",
            "WORKER_POLICY_FILE": "/etc/policy.yaml",
            "WORKER_DEVELOPMENT_POLICY": "true",
        }
    )
    assert identity_of(settings) == ("w1", SECRET)
    assert settings.worker_console_grpc_target == ("a.example:1", "[::1]:2")
    assert (settings.has_tls, settings.labels) == (True, {"zone": "a", "gpu": ""})
    rules = rules_of(settings)
    assert (rules.lease.shortest, rules.lease.longest, rules.lease.default, rules.output_limit) == (1, 9, 5, 10)
    assert (rules.python_image, rules.terminal_image) == ("p", "t")
    assert (settings.worker_state_dir, settings.worker_max_sessions) == (Path("/srv/worker"), 3)
    assert (settings.policy_file, settings.worker_development_policy) == (Path("/etc/policy.yaml"), True)
    assert SECRET not in repr(settings)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"WORKER_ID": "w"}, "WORKER_ID and WORKER_SECRET belong together"),
        ({"WORKER_SECRET": "s"}, "WORKER_ID and WORKER_SECRET belong together"),
        ({"WORKER_ID": "a b", "WORKER_SECRET": "s"}, "WORKER_ID must be 1 to 64"),
        ({"WORKER_ID": "w", "WORKER_SECRET": "a b"}, "WORKER_SECRET must be"),
        ({"WORKER_ID": "w", "WORKER_SECRET": "s", "WORKER_CREDENTIALS_FILE": "/f"}, "give one of them"),
        ({"WORKER_CONSOLE_GRPC_TARGET": "console"}, "must be like HOST:PORT"),
        ({"WORKER_CONSOLE_GRPC_TARGET": "console:0"}, "must be like HOST:PORT"),
        ({"WORKER_CONSOLE_GRPC_TARGET": "10.0.0.1:50051"}, "set WORKER_CONSOLE_TLS=true"),
        ({"WORKER_CONSOLE_GRPC_TARGET": "127.0.0.1:1,10.0.0.1:1"}, "set WORKER_CONSOLE_TLS=true"),
        ({"WORKER_CONSOLE_TLS_KEY_FILE": "/k"}, "belong together"),
        ({"WORKER_HEARTBEAT_INTERVAL_SEC": "0"}, "worker_heartbeat_interval_sec must be between 1 and 60"),
        ({"WORKER_TERMINAL_LEASE_MIN_SEC": "61"}, "WORKER_TERMINAL_LEASE_DEFAULT_SEC must lie between"),
        ({"WORKER_TERMINAL_LEASE_MIN_SEC": "1801"}, "is above WORKER_TERMINAL_LEASE_MAX_SEC"),
        ({"WORKER_TERMINAL_OUTPUT_LIMIT_BYTES": "99999999"}, "worker_terminal_output_limit_bytes must be between"),
        ({"WORKER_LABELS": "zone"}, "NAME=VALUE"),
        ({"WORKER_MAX_SESSIONS": "1025"}, "worker_max_sessions must be between 1 and 1024"),
        ({"WORKER_STATE_DIR": "state"}, "WORKER_STATE_DIR must be an absolute path"),
        ({"WORKER_TERMINAL_EXEC_DOCKER_IMAGE": ""}, "is empty"),
    ],
)
def test_what_cannot_be(env: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        WorkerSettings.load(env=env)
    assert message in caught.value.detail


@pytest.mark.parametrize("targets", ["console.example:50051", "127.0.0.1:50051,console.example:50051"])
def test_commands_from_elsewhere_need_a_policy(targets: str) -> None:
    """Or the word that none is wanted: without one, unsigned images would run for whoever may ask there."""
    env = {"WORKER_CONSOLE_GRPC_TARGET": targets, "WORKER_CONSOLE_TLS": "true"}
    with pytest.raises(ConfigurationError, match="WORKER_POLICY_FILE, or say WORKER_DEVELOPMENT_POLICY=true"):
        WorkerSettings.load(env=env).check_policy()
    for word in ({"WORKER_POLICY_FILE": "/p"}, {"WORKER_DEVELOPMENT_POLICY": "true"}):
        WorkerSettings.load(env=env | word).check_policy()
    WorkerSettings.load(env={}).check_policy()


def test_the_worker_secret_is_no_other_process_business() -> None:
    env = {"WORKER_ID": "w", "WORKER_SECRET": SECRET, "PATH": "/bin", "WORKER_CONNECTIONS": "4"}
    assert (
        environment_for(NodeSettings, env) == environment_for(None, env) == {"PATH": "/bin", "WORKER_CONNECTIONS": "4"}
    )
    assert environment_for(WorkerSettings, env) == env


def test_a_misspelt_variable_is_seen() -> None:
    """It is not refused: others, Kubernetes among them, have such names, too."""
    env = {"WORKER_ID": "w", "WORKER_SECERT": "x", "PATH": "/bin"}
    assert strays(WorkerSettings, "WORKER_", env) == ["WORKER_SECERT"]


# --- the file of `fumehood worker create` ------------------------------------------------------------------


def credentials(folder: Path, text: str, mode: int = 0o600) -> WorkerSettings:
    path = folder / "worker-credentials.json"
    path.write_text(text)
    path.chmod(mode)
    return WorkerSettings.load(env={"WORKER_CREDENTIALS_FILE": str(path)})


def test_the_file_with_the_credentials(tmp_path: Path) -> None:
    text = json.dumps({"worker_id": "w1", "worker_secret": SECRET, "created_at": "now"})
    assert identity_of(credentials(tmp_path, text)) == ("w1", SECRET)


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        (json.dumps({"worker_id": "w", "worker_secret": SECRET}), 0o640, "chmod 600"),
        (json.dumps({"worker_id": "w", "worker_secret": SECRET}), 0o604, "chmod 600"),
        (json.dumps({"worker_id": "w"}), 0o600, "is not one that `fumehood worker create` wrote"),
        (json.dumps([SECRET]), 0o600, "is not one that `fumehood worker create` wrote"),
        (json.dumps({"worker_id": "w", "worker_secret": "short"}), 0o600, "secret is not one that"),
        (SECRET, 0o600, "is not JSON"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str, mode: int, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        identity_of(credentials(tmp_path, text, mode))
    assert message in caught.value.detail
    assert SECRET not in caught.value.detail


def test_no_file_and_no_credentials(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="fumehood worker create"):
        identity_of(WorkerSettings.load(env={}))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        identity_of(WorkerSettings.load(env={"WORKER_CREDENTIALS_FILE": str(tmp_path / "none")}))
    with pytest.raises(ConfigurationError, match="not a regular file"):
        identity_of(WorkerSettings.load(env={"WORKER_CREDENTIALS_FILE": str(tmp_path)}))


def test_a_folder_is_one_workers(tmp_path: Path) -> None:
    """Under another name it would not find the containers that its folder knows of."""
    for _ in range(2):
        claim(tmp_path, "w1")
    with pytest.raises(ConfigurationError, match="belongs to the worker w1, and this one is w2"):
        claim(tmp_path, "w2")
