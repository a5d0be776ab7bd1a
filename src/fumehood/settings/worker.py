"""Every setting of a worker of the console, with its unit, its default and the reason for that default.

Names and defaults are those of contract 5; so its variables begin with `WORKER_`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fumehood.errors import ConfigurationError
from fumehood.settings.base import LogSettings, check_bounds, check_rules, cores, is_loopback
from fumehood.settings.images import RegistryCredentials

DEFAULT_IMAGE = "python:slim"
LONGEST_SECRET = 4096
MOST_LABELS = 64

_WORKER_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SECRET = re.compile(rf"[\x21-\x7e]{{1,{LONGEST_SECRET}}}")
_TARGET = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):(?P<port>[0-9]{1,5})")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,62}=[^=,\x00-\x1f]{0,128}")


def named(variable: str, low: float | None = None, high: float | None = None) -> Mapping[str, Any]:
    """Of a field whose variable the contract names, and its bounds."""
    return {"variable": variable, **({} if low is None else {"low": low, "high": high})}


@dataclass(frozen=True, slots=True)
class WorkerSettings(LogSettings):
    """What an operator may decide about a worker. Bounds are checked however a value came in."""

    worker_id: str | None = field(default=None, metadata=named("WORKER_ID"))
    """Who it is at the console, as `fumehood worker create` said. None: look into `worker_credentials_file`."""

    worker_secret: str | None = field(default=None, repr=False, metadata=named("WORKER_SECRET"))
    """How it proves that. It never leaves this machine. None: look into `worker_credentials_file`."""

    worker_credentials_file: Path | None = field(default=None, metadata=named("WORKER_CREDENTIALS_FILE"))
    """The file (mode 0600) that `fumehood worker create` wrote, instead of the two above. None: no file."""

    worker_console_grpc_target: tuple[str, ...] = field(
        default=("127.0.0.1:50051",), metadata=named("WORKER_CONSOLE_GRPC_TARGET")
    )
    """Where the console listens, `HOST:PORT`; several, in a variable separated by commas, are tried in turn."""

    worker_console_tls: bool = field(default=False, metadata=named("WORKER_CONSOLE_TLS"))
    """Speak TLS to the console, and check it against the certificates that this machine trusts. Naming a file below
    says it, too. Without it the console must be on this machine."""

    worker_console_tls_ca_file: Path | None = field(default=None, metadata=named("WORKER_CONSOLE_TLS_CA_FILE"))
    """Certificates that the console's TLS is checked against. None: those that this machine trusts."""

    worker_console_tls_cert_file: Path | None = field(default=None, metadata=named("WORKER_CONSOLE_TLS_CERT_FILE"))
    """The worker's own certificate, where the console asks for one."""

    worker_console_tls_key_file: Path | None = field(default=None, metadata=named("WORKER_CONSOLE_TLS_KEY_FILE"))
    """The key of that certificate."""

    worker_heartbeat_interval_sec: int = field(default=5, metadata=named("WORKER_HEARTBEAT_INTERVAL_SEC", 1, 60))
    """Seconds between two heartbeats, unless the console asks for others."""

    worker_heartbeat_jitter_pct: int = field(default=20, metadata=named("WORKER_HEARTBEAT_JITTER_PCT", 0, 50))
    """Per cent by which each of these pauses is shorter or longer, so that many workers do not all come at once."""

    worker_terminal_lease_min_sec: int = field(default=60, metadata=named("WORKER_TERMINAL_LEASE_MIN_SEC", 1, 86_400))
    """The shortest lease of a session that anybody may ask for."""

    worker_terminal_lease_max_sec: int = field(default=1800, metadata=named("WORKER_TERMINAL_LEASE_MAX_SEC", 1, 86_400))
    """The longest one. A session that is still needed is given another before it ends."""

    worker_terminal_lease_default_sec: int = field(
        default=60, metadata=named("WORKER_TERMINAL_LEASE_DEFAULT_SEC", 1, 86_400)
    )
    """For whoever asks for none."""

    worker_terminal_output_limit_bytes: int = field(
        default=1_048_576, metadata=named("WORKER_TERMINAL_OUTPUT_LIMIT_BYTES", 1, 2 * 1024 * 1024)
    )
    """Bytes of stdout and of stderr, each, in the result of a command, and of a file in that of `terminalResource`. The
    bound keeps a result within one frame, however its bytes are written."""

    worker_python_exec_docker_image: str = field(
        default=DEFAULT_IMAGE, metadata=named("WORKER_PYTHON_EXEC_DOCKER_IMAGE")
    )
    """What `pythonExec` runs in."""

    worker_terminal_exec_docker_image: str = field(
        default=DEFAULT_IMAGE, metadata=named("WORKER_TERMINAL_EXEC_DOCKER_IMAGE")
    )
    """What sessions run in that name no image of their own."""

    worker_labels: tuple[str, ...] = field(default=(), metadata=named("WORKER_LABELS"))
    """`NAME=VALUE` that the worker says of itself; in a variable separated by commas."""

    worker_state_dir: Path = field(default=Path("/var/lib/fumehood-worker"), metadata=named("WORKER_STATE_DIR"))
    """Holds what must outlive the process: its sessions, the commands that it accepted, their output. One worker at a
    time; not the folder of a node."""

    worker_max_sessions: int = field(default=64, metadata=named("WORKER_MAX_SESSIONS", 1, 1024))
    """Sessions at once; a console takes no more of one worker. Each may use 256 MiB: beyond what the machine bears, all
    of them suffer."""

    worker_warm_sandboxes: int = field(default=0, metadata=named("WORKER_WARM_SANDBOXES", 0, 1024))
    """Idle sandboxes at most, started before they are asked for, with an interpreter that waits where they are for
    `pythonExec`; each is used once. None, unless an operator gives them the memory."""

    worker_warm_memory_mib: int = field(default=512, metadata=named("WORKER_WARM_MEMORY_MIB", 0, 1024 * 1024))
    """MiB of memory at most for all idle sandboxes. One takes about 5 on runc and 20 on gVisor, 10 more with an
    interpreter; 16, 64 and 16 are counted."""

    worker_policy_file: Path | None = field(default=None, metadata=named("WORKER_POLICY_FILE"))
    """The policy (YAML): which images run here, whose signatures they need, and how anything may be run. Replacing the
    file changes the policy at once. None: the development policy, which a worker of a console on another machine has
    only where `worker_development_policy` says so."""

    worker_development_policy: bool = field(default=False, metadata=named("WORKER_DEVELOPMENT_POLICY"))
    """Without a `worker_policy_file`, do the commands of a console on another machine under the development policy."""

    worker_drain_sec: int = field(default=60, metadata=named("WORKER_DRAIN_SEC", 1, 3600))
    """Seconds that a worker told to stop takes at most to end what runs and to remove its containers."""

    docker_socket: Path = Path("/var/run/docker.sock")
    """The Docker Engine's Unix socket, where every distribution's package puts it."""

    runtime: str | None = None
    """The engine's runtime by name (`runc`, `runsc`). None: the strongest one that proved itself at start-
    up."""

    unsigned_public_images: bool = True
    """Admit unsigned images of public registries: the development policy. Counts without a `worker_policy_file`
    only."""

    dns_upstreams: tuple[str, ...] = ()
    """Who answers the questions for names of sandboxes with a network, `ADDRESS` or `ADDRESS:PORT`; in a variable
    separated by commas. None: whom this machine itself asks."""

    registries: tuple[RegistryCredentials, ...] = field(default=(), metadata={"file_only": True})
    """Credentials for registries, from the configuration file only (`[[registries]]`)."""

    def __post_init__(self) -> None:
        check_bounds(self)
        check_rules(_rules(self))
        if not self.has_tls and not all(is_loopback(host_of(target)) for target in self.worker_console_grpc_target):
            raise ConfigurationError(
                "the console is on another machine, and would be spoken to without TLS: set WORKER_CONSOLE_TLS=true, "
                "or name its certificates with WORKER_CONSOLE_TLS_CA_FILE"
            )

    def check_policy(self) -> None:
        """For whoever starts a worker: commands that come from elsewhere need a policy that somebody wrote, or the word
        that none is wanted."""
        here = all(is_loopback(host_of(target)) for target in self.worker_console_grpc_target)
        if self.worker_policy_file is None and not self.worker_development_policy and not here:
            raise ConfigurationError(
                "this worker does the commands of a console on another machine, and has no policy: it would run "
                "unsigned images for whoever may ask there; name one with WORKER_POLICY_FILE, or say "
                "WORKER_DEVELOPMENT_POLICY=true if that is what you want"
            )

    @property
    def policy_file(self) -> Path | None:
        """By the name that all processes with an admission have it."""
        return self.worker_policy_file

    @property
    def has_tls(self) -> bool:
        files = (self.worker_console_tls_ca_file, self.worker_console_tls_cert_file, self.worker_console_tls_key_file)
        return self.worker_console_tls or any(file is not None for file in files)

    @property
    def labels(self) -> Mapping[str, str]:
        return dict(label.split("=", 1) for label in self.worker_labels)

    @property
    def concurrent_starts(self) -> int:
        """Of sandboxes: beyond two for each core the engine only gets slower."""
        return 2 * cores()


def host_of(target: str) -> str:
    """Of `HOST:PORT`."""
    return target.rpartition(":")[0].removeprefix("[").removesuffix("]")


def _is_target(text: str) -> bool:
    found = _TARGET.fullmatch(text)
    return found is not None and 1 <= int(found["port"]) <= 65_535


def _rules(s: WorkerSettings) -> dict[str, bool]:
    return {**_identity_rules(s), **_console_rules(s), **_session_rules(s)}


def _identity_rules(s: WorkerSettings) -> dict[str, bool]:
    given = s.worker_id is not None or s.worker_secret is not None
    return {
        "WORKER_ID must be 1 to 64 letters, digits, dashes and underscores": s.worker_id is None
        or _WORKER_ID.fullmatch(s.worker_id) is not None,
        f"WORKER_SECRET must be at most {LONGEST_SECRET} visible ASCII characters": s.worker_secret is None
        or _SECRET.fullmatch(s.worker_secret) is not None,
        "WORKER_ID and WORKER_SECRET belong together": (s.worker_id is None) == (s.worker_secret is None),
        "WORKER_ID and WORKER_CREDENTIALS_FILE are both set: give one of them": not given
        or s.worker_credentials_file is None,
        f"WORKER_LABELS must be at most {MOST_LABELS} of NAME=VALUE": len(s.worker_labels) <= MOST_LABELS
        and all(_LABEL.fullmatch(label) for label in s.worker_labels),
    }


def _console_rules(s: WorkerSettings) -> dict[str, bool]:
    return {
        "WORKER_CONSOLE_GRPC_TARGET must be like HOST:PORT": bool(s.worker_console_grpc_target)
        and all(map(_is_target, s.worker_console_grpc_target)),
        "WORKER_CONSOLE_TLS_CERT_FILE and WORKER_CONSOLE_TLS_KEY_FILE belong together": (
            s.worker_console_tls_cert_file is None
        )
        == (s.worker_console_tls_key_file is None),
    }


def _session_rules(s: WorkerSettings) -> dict[str, bool]:
    low, high = s.worker_terminal_lease_min_sec, s.worker_terminal_lease_max_sec
    return {
        "WORKER_TERMINAL_LEASE_MIN_SEC is above WORKER_TERMINAL_LEASE_MAX_SEC": low <= high,
        "WORKER_TERMINAL_LEASE_DEFAULT_SEC must lie between the shortest and the longest lease": low
        <= s.worker_terminal_lease_default_sec
        <= high,
        "docker_socket must be an absolute path": s.docker_socket.is_absolute(),
        "WORKER_STATE_DIR must be an absolute path": s.worker_state_dir.is_absolute(),
        "runtime must not be empty": s.runtime != "",
        "the images of WORKER_PYTHON_EXEC_DOCKER_IMAGE and WORKER_TERMINAL_EXEC_DOCKER_IMAGE must not be empty": ""
        not in (s.worker_python_exec_docker_image, s.worker_terminal_exec_docker_image),
    }
