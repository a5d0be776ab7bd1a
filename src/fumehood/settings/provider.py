"""Every setting of a provider of jobs, with its unit, its default and the reason for that default.

What only a provider has begins with `PROVIDER_`. What it shares with the other processes of its machine (the broker,
the engine, the policy, the modules of job types) has the name that it has there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fumehood.errors import ConfigurationError
from fumehood.settings.base import check_bounds, check_rules, cores, is_url
from fumehood.settings.broker import BrokerSettings, broker_rules, is_here
from fumehood.settings.images import RegistryCredentials
from fumehood.settings.worker import named

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_WAY = re.compile(r"[a-z][a-z0-9._]{0,95}=[a-z][a-z0-9_-]{0,63}")
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


@dataclass(frozen=True, slots=True)
class ProviderSettings(BrokerSettings):
    """What an operator may decide about a provider. Bounds are checked however a value came in."""

    provider_name: str | None = field(default=None, metadata=named("PROVIDER_NAME"))
    """Who it is in receipts, verdicts and the list of keys: its user at the broker, which lets nobody register under
    another name. None: what `nats_user` says."""

    provider_state_dir: Path = field(default=Path("/var/lib/fumehood-provider"), metadata=named("PROVIDER_STATE_DIR"))
    """Holds its receipt key and what its sandboxes need. One provider at a time; not the folder of a node."""

    provider_job_types: tuple[str, ...] = field(default=(), metadata=named("PROVIDER_JOB_TYPES"))
    """The job types that it does; in a variable separated by commas. None: all that it has the means for."""

    provider_handlers: tuple[str, ...] = field(default=(), metadata=named("PROVIDER_HANDLERS"))
    """How it does them, `TYPE=HANDLER`, as in `oa.retrieval_rerank.v1=openai`; in a variable separated by commas. None:
    each in the way that the type names first, which needs no service."""

    job_modules: tuple[str, ...] = ()
    """Python modules with job types of your own, by their import path; in a variable separated by commas. The servers
    need the same ones."""

    provider_concurrency: int | None = field(default=None, metadata=named("PROVIDER_CONCURRENCY", 1, 1024))
    """Executions at once. None: one for each core, since local handlers compute more than they wait."""

    provider_drain_sec: int = field(default=60, metadata=named("PROVIDER_DRAIN_SEC", 0, 3600))
    """Seconds that a provider told to stop waits for what it does; what takes longer is given to others at once."""

    provider_openai_base_url: str | None = field(default=None, metadata=named("PROVIDER_OPENAI_BASE_URL"))
    """An endpoint that speaks the OpenAI protocol, as in `http://127.0.0.1:8000/v1`. None: there is none, and nothing
    is done by `openai`. Requests go there as they are: what is in them is seen there."""

    provider_openai_model: str | None = field(default=None, metadata=named("PROVIDER_OPENAI_MODEL"))
    """The model that is asked for there; provenance names it. Needed where there is an endpoint."""

    provider_openai_api_key_file: Path | None = field(default=None, metadata=named("PROVIDER_OPENAI_API_KEY_FILE"))
    """A file (mode 0600) that holds only the key for it. None: it asks for none."""

    provider_openai_timeout_sec: float = field(default=60.0, metadata=named("PROVIDER_OPENAI_TIMEOUT_SEC", 1, 3600))
    """Seconds for one try: to connect, and between two parts of an answer."""

    provider_openai_max_retries: int = field(default=3, metadata=named("PROVIDER_OPENAI_MAX_RETRIES", 0, 10))
    """How often it is asked again after an answer that says "later", or none."""

    provider_openai_deadline_sec: float = field(default=240.0, metadata=named("PROVIDER_OPENAI_DEADLINE_SEC", 1, 7200))
    """Seconds for all questions of one job, with their repetitions and the waits between them."""

    provider_openai_max_tokens: int = field(default=4096, metadata=named("PROVIDER_OPENAI_MAX_TOKENS", 16, 1_000_000))
    """Tokens of one answer; it may have four times as many where these were too few."""

    provider_openai_plain_http: bool = field(default=False, metadata=named("PROVIDER_OPENAI_PLAIN_HTTP"))
    """Whether an endpoint on another machine may be asked over `http:`: the key and the code can then be read on the
    way."""

    provider_openai_max_input_chars: int = field(
        default=200_000, metadata=named("PROVIDER_OPENAI_MAX_INPUT_CHARS", 1000, 10_000_000)
    )
    """Characters of one question to it. Longer ones are refused, never cut: an answer to half a question is none. The
    default fits models with 64 Ki tokens of context."""

    provider_repo_roots: tuple[str, ...] = field(default=(), metadata=named("PROVIDER_REPO_ROOTS"))
    """Folders of this machine that requests may name repositories in, as absolute paths; in a variable separated by
    commas. None: no path of this machine may be named. Whoever may submit a job reads what is in them."""

    docker_socket: Path = Path("/var/run/docker.sock")
    """The Docker Engine's Unix socket, where every distribution's package puts it."""

    runtime: str | None = None
    """The engine's runtime by name (`runc`, `runsc`). None: the strongest one that proved itself at start-
    up."""

    policy_file: Path | None = None
    """The policy (YAML): which images run here, whose signatures they need, and how anything may be run. Replacing the
    file changes the policy at once. None: the development policy."""

    development_policy: bool = False
    """Let a provider without a `policy_file` run sandboxes for a broker on another machine: whoever may submit jobs
    there then runs unsigned images here. Not needed where the broker is on this machine."""

    unsigned_public_images: bool = True
    """Admit unsigned images of public registries: the development policy. Counts without a `policy_file` only."""

    dns_upstreams: tuple[str, ...] = ()
    """Who answers the questions for names of sandboxes with a network, `ADDRESS` or `ADDRESS:PORT`; in a variable
    separated by commas. None: whom this machine itself asks."""

    registries: tuple[RegistryCredentials, ...] = field(default=(), metadata={"file_only": True})
    """Credentials for registries, from the configuration file only (`[[registries]]`)."""

    def __post_init__(self) -> None:
        check_bounds(self)
        check_rules({**broker_rules(self), **_rules(self)})

    @property
    def worker_id(self) -> str:
        """`ConfigurationError` where nobody said."""
        found = self.provider_name or self.nats_user
        if found is None:
            raise ConfigurationError("a provider needs a name: give PROVIDER_NAME, or a nats_user, whose name it bears")
        return found

    @property
    def at_once(self) -> int:
        """Executions at once, the default resolved for this machine."""
        return self.provider_concurrency if self.provider_concurrency is not None else cores()

    @property
    def concurrent_starts(self) -> int:
        """Of sandboxes: beyond two for each core the engine only gets slower."""
        return 2 * cores()

    @property
    def ways(self) -> Mapping[str, str]:
        parts = (way.partition("=") for way in self.provider_handlers)
        return {job_type: handler for job_type, _, handler in parts}

    def check_policy(self) -> None:
        """For whoever runs sandboxes: what comes from elsewhere needs a policy that somebody wrote, or the word that
        none is wanted."""
        if self.policy_file is None and not self.development_policy and not all(map(is_here, self.nats_servers)):
            raise ConfigurationError(
                "this provider runs sandboxes for a broker on another machine, and has no policy_file: it would run "
                "unsigned images; give it the same policy_file as the servers, say development_policy = true if that "
                "is what you want, or leave oa.sandbox_run.v1 out of PROVIDER_JOB_TYPES"
            )


def _rules(s: ProviderSettings) -> dict[str, bool]:
    return {
        "PROVIDER_NAME must be 1 to 64 letters, digits, dashes and underscores": s.provider_name is None
        or _NAME.fullmatch(s.provider_name) is not None,
        "PROVIDER_NAME must be the nats_user: the broker lets nobody register under another name": s.provider_name
        is None
        or s.nats_user in (None, s.provider_name),
        "PROVIDER_STATE_DIR must be an absolute path": s.provider_state_dir.is_absolute(),
        "PROVIDER_HANDLERS must be like TYPE=HANDLER": all(map(_WAY.fullmatch, s.provider_handlers)),
        "PROVIDER_HANDLERS names a type twice": len(s.ways) == len(s.provider_handlers),
        "job_modules must be import paths, like acme.jobs.echo": all(map(_MODULE.fullmatch, s.job_modules)),
        "PROVIDER_REPO_ROOTS must be absolute paths": all(Path(one).is_absolute() for one in s.provider_repo_roots),
        "docker_socket must be an absolute path": s.docker_socket.is_absolute(),
        "runtime must not be empty": s.runtime != "",
        **_chat_rules(s),
    }


def _chat_rules(s: ProviderSettings) -> dict[str, bool]:
    given = (s.provider_openai_base_url is None, s.provider_openai_model is None)
    return {
        "PROVIDER_OPENAI_BASE_URL must begin with http:// or https://": is_url(s.provider_openai_base_url),
        "PROVIDER_OPENAI_BASE_URL and PROVIDER_OPENAI_MODEL belong together": given[0] == given[1],
        "PROVIDER_OPENAI_API_KEY_FILE needs PROVIDER_OPENAI_BASE_URL": s.provider_openai_api_key_file is None
        or not given[0],
    }
