"""Every setting of a node, with its unit, its default and the reason for that default."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fumehood.errors import ConfigurationError
from fumehood.settings.base import (
    NAME_RULE,
    Access,
    check_bounds,
    check_door,
    check_rules,
    cores,
    is_name,
    is_url,
    within,
)
from fumehood.settings.broker import BrokerSettings, broker_rules, is_here
from fumehood.settings.images import RegistryCredentials


@dataclass(frozen=True, slots=True)
class NodeSettings(BrokerSettings):
    """What an operator may decide about a node. Bounds are checked however a value came in. Without `nats_servers` it
    takes no tasks, and there is only its Worker API."""

    TOKENS = ("worker_api",)

    node_id: str | None = None
    """The node's name in labels, metrics and receipts. None: a random one, made once and kept in
    `state_dir`."""

    state_dir: Path = Path("/var/lib/fumehood")
    """Holds the ledger, the node's id and its lock. The place that Linux distributions keep for service
    state."""

    host: str = "127.0.0.1"
    """Address to listen on. Loopback, so that opening the node to a network is a decision somebody made."""

    port: int = within(8090, 0, 65_535)
    """TCP port of the Worker API. 0: any free one."""

    worker_api_token: str | None = field(default=None, repr=False)
    """The bearer token. None: look into `worker_api_token_file`; without that too, every request is
    refused."""

    worker_api_token_file: Path | None = None
    """A file that holds only the token, readable by its owner alone; replacing it rotates the token. None:
    no file."""

    worker_api_token_config: Path | None = field(default=None, metadata={"derived": True})
    """Not a setting: the configuration file, when the token stands in it, so that replacing it
    rotates too."""

    token_overlap_seconds: float = within(300.0, 0, 86_400)
    """Seconds that an old token lives on after a rotation: long enough to bring all callers over by hand."""

    insecure: bool = False
    """Let everybody in without a token. Only on a loopback `host`."""

    docker_socket: Path = Path("/var/run/docker.sock")
    """The Docker Engine's Unix socket, where every distribution's package puts it."""

    runtime: str | None = None
    """The engine's runtime by name (`runc`, `runsc`). None: the strongest one that proved itself at start-
    up."""

    run_as: Literal["sandbox", "image"] = "sandbox"
    """`sandbox`: commands run as an unprivileged user of ours. `image`: as the image's own user, root
    included where the runtime was proven to bear it. The safe one is the default."""

    slots: int | None = within(None, 1, 4096)
    """Jobs that run at once. None: 4 for each core, since most jobs wait more than they compute."""

    queue: int = within(16, 0, 65_536)
    """Jobs that may wait for a slot. Short on purpose: a caller should try another node, not wait here."""

    queue_wait_seconds: float = within(30.0, 0, 3600)
    """Seconds that a job waits for a slot before it is refused: less than the patience of common HTTP
    clients."""

    concurrent_starts: int | None = within(None, 1, 1024)
    """Sandboxes started at once. None: 2 for each core; beyond that the engine only gets slower."""

    warm_sandboxes: int = within(0, 0, 1024)
    """Idle sandboxes at most, of images in use, started before they are asked for; each is used once. None, unless an
    operator gives them the memory."""

    warm_memory_mib: int = within(512, 0, 1024 * 1024)
    """MiB of memory at most for all idle sandboxes. One takes about 5 on runc and 20 on gVisor; 16 and 64 are
    counted."""

    default_timeout_seconds: int = within(300, 1, 86_400)
    """Seconds a job may run when it names no timeout; fixed by the Worker API's decisions."""

    max_timeout_seconds: int = within(3600, 1, 86_400)
    """Seconds that no job may pass; a longer wish is clamped, visibly."""

    output_limit_bytes: int = within(262_144, 0, 64 * 1024 * 1024)
    """Bytes kept of stdout and of stderr, each; the rest is counted and hashed but not returned."""

    body_limit_bytes: int = within(10 * 1024 * 1024, 1024, 1024 * 1024 * 1024)
    """Bytes of a request's body, counted while reading. 10 MiB is far above any argv and environment."""

    result_retention_seconds: int = within(86_400, 60, 366 * 86_400)
    """Seconds that a finished job's answer is kept for a replay of its `job_id`."""

    orphan_seconds: int = within(30, 1, 3600)
    """Seconds that a sandbox lives on without its node: enough for a restart or an upgrade."""

    drain_seconds: int = within(60, 0, 86_400)
    """Seconds that a node told to stop waits for running jobs. Those that take longer are not lost: the next
    node goes on with them."""

    pull_timeout_seconds: int = within(600, 1, 86_400)
    """Seconds for fetching one image; large images over slow lines take minutes."""

    memory_mib: int = within(512, 16, 1024 * 1024)
    """MiB of memory for each sandbox, files in `/workspace` and `/tmp` included; swap is always off."""

    cpu_millis: int = within(1000, 10, 1_024_000)
    """Thousandths of a core for each sandbox."""

    pids: int = within(256, 8, 1_048_576)
    """Processes and threads in each sandbox: above what compilers need, far below a fork bomb."""

    workspace_mib: int = within(256, 1, 1024 * 1024)
    """MiB of `/workspace`."""

    tmp_mib: int = within(64, 1, 1024 * 1024)
    """MiB of `/tmp`."""

    read_only_root: bool = True
    """Whether the image's own files are read-only in the sandbox. Without it a program can fill the host's disk:
    nothing bounds what it writes beside `/workspace` and `/tmp`."""

    unsigned_public_images: bool = True
    """Admit unsigned images of public registries: the development policy, said in every job's evidence. Counts without
    a `policy_file` only."""

    policy_file: Path | None = None
    """The policy (YAML): which images run here, whose signatures they need, and how anything may be run. Replacing the
    file changes the policy at once. None: the development policy."""

    development_policy: bool = False
    """Let a node without a `policy_file` take tasks of a broker on another machine: whoever may apply a workflow there
    then runs unsigned images here. Not needed where the broker is on this machine."""

    dns_upstreams: tuple[str, ...] = ()
    """Who answers the questions for names of sandboxes with a network, `ADDRESS` or `ADDRESS:PORT`; in a variable
    separated by commas. None: whom this machine itself asks."""

    registries: tuple[RegistryCredentials, ...] = field(default=(), metadata={"file_only": True})
    """Credentials for registries, from the configuration file only (`[[registries]]`)."""

    otlp_endpoint: str | None = None
    """Base URL of an OpenTelemetry collector (OTLP over HTTP). None: spans are made but sent nowhere."""

    def __post_init__(self) -> None:
        check_bounds(self)
        check_door(self.host, self.insecure, self.worker_api)
        check_rules(_rules(self))

    @property
    def worker_api(self) -> Access:
        """Who may run jobs."""
        return Access(
            name="worker_api",
            option="--token-file",
            token=self.worker_api_token,
            file=self.worker_api_token_file,
            config=self.worker_api_token_config,
            overlap_seconds=self.token_overlap_seconds,
            insecure=self.insecure,
        )

    @property
    def effective_slots(self) -> int:
        """Jobs at once, the default resolved for this machine."""
        return self.slots if self.slots is not None else 4 * cores()

    @property
    def effective_concurrent_starts(self) -> int:
        """Starts at once, the default resolved for this machine."""
        return self.concurrent_starts if self.concurrent_starts is not None else 2 * cores()

    def check_policy(self) -> None:
        """For whoever starts a node: tasks that come from elsewhere need a policy that somebody wrote, or the word that
        none is wanted."""
        if self.policy_file is None and not self.development_policy and not all(map(is_here, self.nats_servers)):
            raise ConfigurationError(
                "this node takes tasks of a broker on another machine, and has no policy_file: it would run unsigned "
                "images, whatever the servers' policy says; give it the same policy_file as the servers, or say "
                "development_policy = true if that is what you want"
            )

    def effective_timeout(self, asked: int | None) -> int:
        """The seconds that a job gets: what it asked for, clamped, or the default."""
        return min(self.default_timeout_seconds if asked is None else asked, self.max_timeout_seconds)


def _rules(s: NodeSettings) -> dict[str, bool]:
    return {
        f"node_id {NAME_RULE}": is_name(s.node_id),
        **broker_rules(s),
        "docker_socket must be an absolute path": s.docker_socket.is_absolute(),
        "runtime must not be empty": s.runtime != "",
        "otlp_endpoint must begin with http:// or https://": is_url(s.otlp_endpoint),
        "default_timeout_seconds is above max_timeout_seconds": s.default_timeout_seconds <= s.max_timeout_seconds,
    }
