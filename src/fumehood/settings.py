"""Every setting of a node, with its unit, its default and the reason for that default.

This module is the only reader of the environment. A value comes from, in falling order: an override (a flag
of the command line), a variable `FUMEHOOD_<NAME>`, the TOML file, the default. A name that nobody knows is an
error in all three places, because a misspelt limit that is silently ignored is a limit that does not exist.
Messages name the setting, and the file where there is one, and never repeat a value: it may be a secret.
"""

from __future__ import annotations

import dataclasses
import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from fumehood.errors import ConfigurationError

T = TypeVar("T")

PREFIX = "FUMEHOOD_"
CONFIG_VARIABLE = "FUMEHOOD_CONFIG"
"""Names the TOML file where the command line does not."""

NOT_OURS = ("FUMEHOOD_SERVICES_", "FUMEHOOD_TEST_")
"""Variables of the development scripts and the tests, which share the prefix."""

_TOKEN_WAYS = frozenset({"worker_api_token", "worker_api_token_file"})
_NODE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")


def is_loopback(host: str) -> bool:
    """Whether an address to bind to is reachable from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_token(text: str) -> bool:
    """Whether a text can travel as a bearer token: visible ASCII, at least one character."""
    return _TOKEN.fullmatch(text) is not None


def cores() -> int:
    """The processors that this process may really use, which a container or `taskset` can make fewer."""
    return len(os.sched_getaffinity(0))


def _within(default: T, low: float, high: float) -> T:
    """A field with a default and inclusive bounds."""
    made: T = field(default=default, metadata={"low": low, "high": high})
    return made


@dataclass(frozen=True, slots=True)
class RegistryCredentials:
    """How to reach one registry. Secrets stay in files of their own, so that this value can be logged."""

    host: str
    username: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    """Certificates that this registry's TLS is checked against; None: the system's."""

    def __post_init__(self) -> None:
        if not self.host:
            raise ConfigurationError("registries: host is empty")
        if (self.username is None) != (self.password_file is None):
            raise ConfigurationError("registries: username and password_file belong together")


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What an operator may decide about a node. Bounds are checked however a value came in."""

    node_id: str | None = None
    """The node's name in labels, metrics and receipts. None: a random one, made once and kept in
    `state_dir`."""

    state_dir: Path = Path("/var/lib/fumehood")
    """Holds the ledger, the node's id and its lock. The place that Linux distributions keep for service
    state."""

    host: str = "127.0.0.1"
    """Address to listen on. Loopback, so that opening the node to a network is a decision somebody made."""

    port: int = _within(8090, 0, 65_535)
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

    token_overlap_seconds: float = _within(300.0, 0, 86_400)
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

    slots: int | None = _within(None, 1, 4096)
    """Jobs that run at once. None: 4 for each core, since most jobs wait more than they compute."""

    queue: int = _within(16, 0, 65_536)
    """Jobs that may wait for a slot. Short on purpose: a caller should try another node, not wait here."""

    queue_wait_seconds: float = _within(30.0, 0, 3600)
    """Seconds that a job waits for a slot before it is refused: less than the patience of common HTTP
    clients."""

    concurrent_starts: int | None = _within(None, 1, 1024)
    """Sandboxes started at once. None: 2 for each core; beyond that the engine only gets slower."""

    default_timeout_seconds: int = _within(300, 1, 86_400)
    """Seconds a job may run when it names no timeout; fixed by the Worker API's decisions."""

    max_timeout_seconds: int = _within(3600, 1, 86_400)
    """Seconds that no job may pass; a longer wish is clamped, visibly."""

    output_limit_bytes: int = _within(262_144, 0, 64 * 1024 * 1024)
    """Bytes kept of stdout and of stderr, each; the rest is counted and hashed but not returned."""

    body_limit_bytes: int = _within(10 * 1024 * 1024, 1024, 1024 * 1024 * 1024)
    """Bytes of a request's body, counted while reading. 10 MiB is far above any argv and environment."""

    result_retention_seconds: int = _within(86_400, 60, 366 * 86_400)
    """Seconds that a finished job's answer is kept for a replay of its `job_id`."""

    orphan_seconds: int = _within(30, 1, 3600)
    """Seconds that a sandbox lives on without its node: enough for a restart or an upgrade."""

    drain_seconds: int = _within(60, 0, 86_400)
    """Seconds that a node told to stop waits for running jobs. Those that take longer are not lost: the next
    node goes on with them."""

    pull_timeout_seconds: int = _within(600, 1, 86_400)
    """Seconds for fetching one image; large images over slow lines take minutes."""

    memory_mib: int = _within(512, 16, 1024 * 1024)
    """MiB of memory for each sandbox, files in `/workspace` and `/tmp` included; swap is always off."""

    cpu_millis: int = _within(1000, 10, 1_024_000)
    """Thousandths of a core for each sandbox."""

    pids: int = _within(256, 8, 1_048_576)
    """Processes and threads in each sandbox: above what compilers need, far below a fork bomb."""

    workspace_mib: int = _within(256, 1, 1024 * 1024)
    """MiB of `/workspace`."""

    tmp_mib: int = _within(64, 1, 1024 * 1024)
    """MiB of `/tmp`."""

    read_only_root: bool = True
    """Whether the image's own files are read-only in the sandbox. Without it a program can fill the host's disk:
    nothing bounds what it writes beside `/workspace` and `/tmp`."""

    unsigned_public_images: bool = True
    """Admit unsigned images of public registries: the development policy, said in every job's evidence."""

    registries: tuple[RegistryCredentials, ...] = ()
    """Credentials for registries, from the configuration file only (`[[registries]]`)."""

    otlp_endpoint: str | None = None
    """Base URL of an OpenTelemetry collector (OTLP over HTTP). None: spans are made but sent nowhere."""

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            _check_bounds(item, getattr(self, item.name))
        _check_shapes(self)
        _check_pairs(self)

    @property
    def effective_slots(self) -> int:
        """Jobs at once, the default resolved for this machine."""
        return self.slots if self.slots is not None else 4 * cores()

    @property
    def effective_concurrent_starts(self) -> int:
        """Starts at once, the default resolved for this machine."""
        return self.concurrent_starts if self.concurrent_starts is not None else 2 * cores()

    def effective_timeout(self, asked: int | None) -> int:
        """The seconds that a job gets: what it asked for, clamped, or the default."""
        return min(self.default_timeout_seconds if asked is None else asked, self.max_timeout_seconds)

    @classmethod
    def load(
        cls, env: Mapping[str, str] | None = None, config_file: Path | None = None, **overrides: object
    ) -> NodeSettings:
        """Read all sources. An override of None counts as not given, as an unset flag of a command
        line is."""
        env = os.environ if env is None else env
        if config_file is None and CONFIG_VARIABLE in env:
            config_file = Path(env[CONFIG_VARIABLE])
        from_file = _from_file(config_file) if config_file else {}
        values = _layered(from_file, _from_env(env), _from_overrides(overrides))
        if "worker_api_token" in from_file and values.get("worker_api_token") is from_file["worker_api_token"]:
            values["worker_api_token_config"] = config_file
        return cls(**values)


# --- checks ------------------------------------------------------------------------------------------------


def _check_bounds(item: dataclasses.Field[Any], value: object) -> None:
    if "low" not in item.metadata or value is None:
        return
    low, high = item.metadata["low"], item.metadata["high"]
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigurationError(f"{item.name} must be between {low} and {high}")


def _check_shapes(s: NodeSettings) -> None:
    node_id = s.node_id is None or _NODE_ID.fullmatch(s.node_id) is not None
    token = s.worker_api_token is None or is_token(s.worker_api_token)
    otlp = s.otlp_endpoint is None or s.otlp_endpoint.startswith(("http://", "https://"))
    rules = {
        "node_id must be at most 64 letters, digits, dots, dashes and underscores, and begin with one of the first "
        "two": node_id,
        "host must not be empty": s.host != "",
        "worker_api_token must be visible ASCII characters without a blank": token,
        "docker_socket must be an absolute path": s.docker_socket.is_absolute(),
        "runtime must not be empty": s.runtime != "",
        "run_as must be `sandbox` or `image`": s.run_as in ("sandbox", "image"),
        "otlp_endpoint must begin with http:// or https://": otlp,
    }
    for rule, fits in rules.items():
        if not fits:
            raise ConfigurationError(rule)


def _check_pairs(s: NodeSettings) -> None:
    if s.default_timeout_seconds > s.max_timeout_seconds:
        raise ConfigurationError("default_timeout_seconds is above max_timeout_seconds")
    if s.insecure and not is_loopback(s.host):
        raise ConfigurationError("insecure is allowed only on a loopback host")
    if s.worker_api_token is not None and s.worker_api_token_file is not None:
        raise ConfigurationError("worker_api_token and worker_api_token_file are both set: give one of them")


def _layered(*sources: dict[str, Any]) -> dict[str, Any]:
    """Later sources win. Whoever names one way to get the token takes the other way of an earlier source away."""
    values: dict[str, Any] = {}
    for source in sources:
        if _TOKEN_WAYS & source.keys():
            values = {name: value for name, value in values.items() if name not in _TOKEN_WAYS}
        values |= source
    return values


# --- sources -----------------------------------------------------------------------------------------------


def _kinds() -> dict[str, Any]:
    """Each setting that may be given, with its type; `X | None` counts as `X`."""
    hints = get_type_hints(NodeSettings)
    return {
        item.name: _without_none(hints[item.name])
        for item in dataclasses.fields(NodeSettings)
        if not item.metadata.get("derived")
    }


def _without_none(hint: Any) -> Any:
    rest = [part for part in get_args(hint) if part is not NoneType]
    return rest[0] if NoneType in get_args(hint) else hint


def _from_env(env: Mapping[str, str]) -> dict[str, Any]:
    kinds = _kinds()
    del kinds["registries"]
    values = {}
    for variable in sorted(name for name in env if name.startswith(PREFIX) and not name.startswith(NOT_OURS)):
        if variable == CONFIG_VARIABLE:
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in kinds or variable != variable.upper():
            raise _unknown(variable, (PREFIX + known.upper() for known in kinds))
        values[name] = _from_text(variable, kinds[name], env[variable])
    return values


def _from_file(path: Path) -> dict[str, Any]:
    tables = read_config(path)
    try:
        return _typed(tables, _kinds())
    except ConfigurationError as error:
        raise ConfigurationError(f"the configuration file {path}: {error.detail}") from None


def read_config(path: Path) -> dict[str, Any]:
    """The configuration file's tables, unchecked."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"the configuration file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"the configuration file {path} is not UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"the configuration file {path} is not valid TOML: {error}") from error


def _from_overrides(overrides: Mapping[str, object]) -> dict[str, Any]:
    return _typed({name: value for name, value in overrides.items() if value is not None}, _kinds())


def _typed(values: Mapping[str, object], kinds: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    for name in values:
        if name not in kinds:
            raise _unknown(where + name, (where + known for known in kinds))
    return {name: _from_value(where + name, kinds[name], value) for name, value in values.items()}


def _unknown(name: str, known: Iterable[str]) -> ConfigurationError:
    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    return ConfigurationError(f"unknown setting {name}{hint}")


def _from_text(name: str, kind: Any, text: str) -> object:
    """A variable's text as a typed value. An empty one is an error: it is nearly always a broken template."""
    if text == "":
        raise ConfigurationError(f"{name} is empty; leave it out for its default")
    words: dict[Any, Callable[[str], object]] = {bool: _word_to_bool, int: _digits_to_int, float: float}
    try:
        return _from_value(name, kind, words.get(kind, str)(text))
    except ValueError as error:
        raise ConfigurationError(f"{name} must be {_WORDS[kind]}") from error


_WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "text", Path: "a path"}


def _word_to_bool(text: str) -> bool:
    words = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in words:
        raise ValueError
    return words[text.lower()]


def _digits_to_int(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise ValueError
    return int(text)


def _from_value(name: str, kind: Any, value: object) -> object:
    """A value of a file or an override, held to its type without guessing: no `"1"` for 1, no
    `true` for 1."""
    if get_origin(kind) is tuple:
        return _registries(name, value)
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    wanted = str if get_origin(kind) is Literal else kind
    if type(value) is not wanted:
        raise ConfigurationError(f"{name} must be {_WORDS[wanted]}")
    return value


def _registries(name: str, value: object) -> tuple[RegistryCredentials, ...]:
    if isinstance(value, tuple) and all(isinstance(item, RegistryCredentials) for item in value):
        return value
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ConfigurationError(f"{name} must be a list of tables")
    hints = get_type_hints(RegistryCredentials)
    kinds = {key: _without_none(hint) for key, hint in hints.items()}
    tables = [_typed(item, kinds, where=f"{name}.") for item in value]
    if any("host" not in table for table in tables):
        raise ConfigurationError(f"{name}: each table needs a host")
    return tuple(RegistryCredentials(**table) for table in tables)
