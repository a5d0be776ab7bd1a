"""Every setting of a server, with its unit, its default and the reason for that default."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from fumehood.errors import ConfigurationError
from fumehood.settings.base import (
    NAME_RULE,
    PUBLIC_KEY_RULE,
    Access,
    check_bounds,
    check_door,
    check_rules,
    is_loopback,
    is_name,
    is_public_key,
    is_url,
    within,
)
from fumehood.settings.broker import BrokerSettings, broker_rules
from fumehood.settings.images import RegistryCredentials

_HOST = re.compile(r"[A-Za-z0-9.-]+(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?")
GIB = 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServerSettings(BrokerSettings):
    """What an operator may decide about a server. All servers of a cell should have the same broker settings."""

    TOKENS = ("api", "bridge")

    server_id: str | None = None
    """The server's name in metrics and logs. None: a random one for each start, since a server keeps nothing."""

    host: str = "127.0.0.1"
    """Address to listen on. Loopback, so that opening the server to a network is a decision somebody made."""

    port: int = within(8080, 0, 65_535)
    """TCP port of the HTTP API. 0: any free one."""

    grpc_host: str = "127.0.0.1"
    """Address that workers dial in to. Anywhere but on loopback they are spoken to over TLS only."""

    grpc_port: int = within(50_051, 0, 65_535)
    """TCP port of the console, where workers dial in: where they look unless told otherwise. 0: any free one."""

    grpc_tls_cert_file: Path | None = None
    """The console's certificate, with those between it and its authority (PEM). Replacing it counts from the next
    connection on. None: plain text, on loopback only."""

    grpc_tls_key_file: Path | None = None
    """The key of that certificate."""

    grpc_client_ca_file: Path | None = None
    """Authorities (PEM) of one of which a worker must show a certificate, beside its signed hello. None: the hello is
    enough."""

    grpc_max_streams: int = within(1024, 1, 65_536)
    """Workers at one server at once. What a worker has not read yet waits here, so each is a claim on memory."""

    api_token: str | None = field(default=None, repr=False)
    """The administrator's bearer token. None: look into `api_token_file`; without that too, every request to the
    API is refused."""

    api_token_file: Path | None = None
    """A file that holds only the administrator's token, readable by its owner alone; replacing it rotates the token.
    None: no file."""

    api_token_config: Path | None = field(default=None, metadata={"derived": True})
    """Not a setting: the configuration file, when the token stands in it, so that replacing it rotates too."""

    bridge_token: str | None = field(default=None, repr=False, metadata={"variable": "DAGNATS_BRIDGE_TOKEN"})
    """The bearer token of workers that come over HTTP; its variable is named by the wire protocol. None: look into
    `bridge_token_file`; without that too, every such worker is refused."""

    bridge_token_file: Path | None = None
    """A file that holds only the workers' token, readable by its owner alone; replacing it rotates the token. None:
    no file."""

    bridge_token_config: Path | None = field(default=None, metadata={"derived": True})
    """Not a setting: the configuration file, when the token stands in it, so that replacing it rotates too."""

    token_overlap_seconds: float = within(300.0, 0, 86_400)
    """Seconds that an old token lives on after a rotation: long enough to bring all callers over by hand."""

    insecure: bool = False
    """Let everybody in without a token. Only on a loopback `host`."""

    body_limit_bytes: int = within(10 * 1024 * 1024, 1024, 1024 * 1024 * 1024)
    """Bytes of a request's body, counted while reading. 10 MiB is far above any definition."""

    mcp: bool = True
    """Whether agent programs may come to `/mcp`, with the same keys as everybody. It asks the API as they would, so it
    opens nothing that is not open already."""

    mcp_hosts: tuple[str, ...] = ()
    """Names (`HOST` or `HOST:PORT`) under which `/mcp` may be reached beside those of loopback; in a variable separated
    by commas. Needed behind a proxy on the same machine. Empty: any name where `host` is no loopback address, so that
    a page in a browser gains nothing that its visitor's key does not give."""

    nats_servers: tuple[str, ...] = ("nats://127.0.0.1:4222",)
    """Addresses of the broker, without credentials, since addresses appear in logs; in a variable separated by
    commas. Any one of a cluster is enough to find the others. A broker on this machine is what most begin with."""

    partitions: int = within(1, 1, 4096)
    """Parts that runs are spread over. Fixed when a cell is made, and written in the broker's configuration too:
    150 to 250 five-step runs a second for each."""

    replicas: int = within(1, 1, 5)
    """Copies of everything on the broker: 1 on a laptop, 3 or 5 in production."""

    storage_bytes: int = within(8 * GIB, GIB, 1024 * 1024 * GIB)
    """Bytes that all streams together may use on each server of the broker. They refuse when full; none forgets."""

    index_dir: Path | None = None
    """Where the server keeps its index of runs while it lives, in a folder of its own; about 1 KiB for each run. None:
    where temporary files belong. Nothing there is worth keeping."""

    retention_seconds: float = within(604_800.0, 0, 315_360_000)
    """Seconds that a run stays as it is after its end, so that it can be taken up again: a week, in which somebody will
    have looked. Then it is archived, and can be read but not changed. 0: never; else at least 600, which is longer
    than anybody holds the start of a run."""

    policy_file: Path | None = None
    """The policy (YAML) under which images of the Runner API are admitted; each node admits them again under its own.
    Replacing the file changes the policy at once. None: the development policy."""

    unsigned_public_images: bool = True
    """Admit unsigned images of public registries: the development policy, said in every run's evidence. Counts without
    a `policy_file` only."""

    registries: tuple[RegistryCredentials, ...] = field(default=(), metadata={"file_only": True})
    """Credentials for registries, from the configuration file only (`[[registries]]`)."""

    receipt_root: str | None = None
    """The public key (hex) of the only root whose list of receipt keys counts here. None: that of the first list that
    an administrator publishes. Set it on all servers where an administrator's token must not be enough to change it."""

    job_modules: tuple[str, ...] = ()
    """Modules with job types of the operator's own, by their import path; in a variable separated by commas. Providers
    of such a type need the same."""

    job_wait_seconds: int = within(30, 1, 86_400)
    """Seconds that an execution of a job waits for a provider to begin it, where fewer are there than the job wants;
    then the job fails for want of providers."""

    job_busy_seconds: int = within(600, 1, 86_400)
    """The same where there are enough of them: they may all be busy."""

    drain_seconds: int = within(10, 0, 3600)
    """Seconds that a server told to stop gives requests under way. What they started is in the broker by then."""

    otlp_endpoint: str | None = None
    """Base URL of an OpenTelemetry collector (OTLP over HTTP). None: spans are made but sent nowhere."""

    def __post_init__(self) -> None:
        check_bounds(self)
        check_door(self.host, self.insecure, self.api, self.bridge)
        check_rules(_rules(self))
        if self.grpc_tls_cert_file is None and not is_loopback(self.grpc_host):
            raise ConfigurationError(
                "workers would be spoken to in plain text: set grpc_tls_cert_file and grpc_tls_key_file, or let "
                "grpc_host be a loopback address"
            )

    @property
    def api(self) -> Access:
        """Who may apply workflows, and start, see and cancel runs."""
        return Access(
            name="api",
            option="--token-file",
            token=self.api_token,
            file=self.api_token_file,
            config=self.api_token_config,
            overlap_seconds=self.token_overlap_seconds,
            insecure=self.insecure,
        )

    @property
    def bridge(self) -> Access:
        """Who may take tasks over HTTP."""
        return Access(
            name="bridge",
            option="--bridge-token-file",
            token=self.bridge_token,
            file=self.bridge_token_file,
            config=self.bridge_token_config,
            overlap_seconds=self.token_overlap_seconds,
            insecure=self.insecure,
        )


def _rules(s: ServerSettings) -> dict[str, bool]:
    return {
        f"server_id {NAME_RULE}": is_name(s.server_id),
        "nats_servers must name at least one address like nats://HOST:PORT": bool(s.nats_servers),
        **broker_rules(s),
        "grpc_tls_cert_file and grpc_tls_key_file belong together": (s.grpc_tls_cert_file is None)
        == (s.grpc_tls_key_file is None),
        "grpc_client_ca_file needs grpc_tls_cert_file": s.grpc_client_ca_file is None
        or s.grpc_tls_cert_file is not None,
        "retention_seconds must be 0 or at least 600": s.retention_seconds == 0 or s.retention_seconds >= 600,
        f"receipt_root {PUBLIC_KEY_RULE}": is_public_key(s.receipt_root),
        "mcp_hosts must be names like HOST or HOST:PORT": all(_HOST.fullmatch(host) for host in s.mcp_hosts),
        "otlp_endpoint must begin with http:// or https://": is_url(s.otlp_endpoint),
    }
