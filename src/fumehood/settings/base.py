"""Where settings come from, and how they are held to their types and bounds.

This module is the only reader of the environment. A value comes from, in falling order: an override (a flag
of the command line), a variable `FUMEHOOD_<NAME>`, the TOML file, the default. A name that nobody knows is an
error in all three places, because a misspelt limit that is silently ignored is a limit that does not exist. A name of
another process is known: one environment, and one file, may serve a machine that runs both.
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
from typing import Any, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

from fumehood.errors import ConfigurationError

T = TypeVar("T")

PREFIX = "FUMEHOOD_"
WIRE_PREFIX = "DAGNATS_"
"""Of variables that the wire protocol names."""
CONFIG_VARIABLE = "FUMEHOOD_CONFIG"
"""Names the TOML file where the command line does not."""

NOT_OURS = ("FUMEHOOD_SERVICES_", "FUMEHOOD_TEST_")
"""Variables of the development scripts and the tests, which share the prefix."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
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


def is_name(text: str | None) -> bool:
    """Whether a text may name a process; None does, too: a random name is made for it."""
    return text is None or _NAME.fullmatch(text) is not None


def is_url(text: str | None) -> bool:
    """Whether a text can be the address of an HTTP service; None is, too: there is no such service."""
    return text is None or text.startswith(("http://", "https://"))


def is_public_key(text: str | None) -> bool:
    """Whether a text is an Ed25519 public key as we write them; None is, too: none was given."""
    return text is None or re.fullmatch(r"[0-9a-f]{64}", text) is not None


PUBLIC_KEY_RULE = "must be a public key: 64 digits of 0-9 and a-f"
NAME_RULE = "must be at most 64 letters, digits, dots, dashes and underscores, and begin with one of the first two"


def config_folder(env: Mapping[str, str] | None = None) -> Path:
    """Where a person's own configuration lies. As the convention has it, a path that is not absolute does not count."""
    env = os.environ if env is None else env
    home = Path(env.get("XDG_CONFIG_HOME", ""))
    return (home if home.is_absolute() else Path("~/.config").expanduser()) / "fumehood"


def cores() -> int:
    """The processors that this process may really use, which a container or `taskset` can make fewer."""
    return len(os.sched_getaffinity(0))


def within(default: T, low: float, high: float) -> T:
    """A field with a default and inclusive bounds."""
    made: T = field(default=default, metadata={"low": low, "high": high})
    return made


@dataclass(frozen=True, slots=True)
class Access:
    """The token of one door, and where it comes from."""

    name: str
    """Of the setting: `worker_api` for `worker_api_token`."""
    option: str
    """Of the command line, for whoever is told what to do."""
    token: str | None = field(default=None, repr=False)
    file: Path | None = None
    config: Path | None = None
    """The configuration file, when the token stands in it, so that replacing it rotates too."""
    overlap_seconds: float = 300.0
    insecure: bool = False


class Settings:
    """The base of each process's settings: frozen dataclasses whose fields have a unit, a default and a reason.

    `TOKENS` names its tokens: for each `x` there are the fields `x_token`, `x_token_file` and `x_token_config`.
    """

    __slots__ = ()
    TOKENS: tuple[str, ...] = ()

    @classmethod
    def load(cls, env: Mapping[str, str] | None = None, config_file: Path | None = None, **overrides: object) -> Self:
        """Read all sources. An override of None counts as not given, as an unset flag of a command line is."""
        env = os.environ if env is None else env
        if config_file is None and CONFIG_VARIABLE in env:
            config_file = Path(env[CONFIG_VARIABLE])
        from_file = _from_file(cls, config_file) if config_file else {}
        values = _layered(cls, from_file, _from_env(cls, env), _from_overrides(cls, overrides))
        for token in (f"{name}_token" for name in cls.TOKENS):
            if token in from_file and values.get(token) is from_file[token]:
                values[f"{token}_config"] = config_file
        return cls(**values)


@dataclass(frozen=True, slots=True)
class LogSettings(Settings):
    """What a process of ours logs: the same for all of them."""

    log_level: Literal["debug", "info", "warning", "error"] | None = None
    """Lines below this level are not logged. None: `info`; with `fumehood dev`, `warning`."""


def environment_for(kind: type[Settings] | None, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a child process of this kind may see of our environment: not the settings that are only another kind's, some
    of which are tokens. None: a program that is not ours, and sees none of them."""
    env = os.environ if env is None else env
    ours = {variable for process in _processes() for variable in variables(process)}
    if kind is None:
        kept = (name for name in env if not name.startswith((PREFIX, WIRE_PREFIX)) and name not in ours)
        return {name: env[name] for name in kept}
    others = ours - variables(kind).keys()
    return {name: value for name, value in env.items() if name not in others}


def said_under(prefix: str) -> dict[str, str]:
    """The variables of our environment that begin so."""
    return {name: value for name, value in os.environ.items() if name.startswith(prefix)}


def strays(kind: type[Settings], prefix: str, env: Mapping[str, str] | None = None) -> list[str]:
    """Variables that look like settings of this kind and are none: misspelt, or those of another program. For prefixes
    that are not ours alone, where they cannot be refused."""
    env = os.environ if env is None else env
    return sorted(name for name in env if name.startswith(prefix) and name not in variables(kind))


# --- checks ------------------------------------------------------------------------------------------------


def check_bounds(settings: Any) -> None:
    for item in dataclasses.fields(settings):
        _check_bounds(item, getattr(settings, item.name))


def _check_bounds(item: dataclasses.Field[Any], value: object) -> None:
    if "low" not in item.metadata or value is None:
        return
    low, high = item.metadata["low"], item.metadata["high"]
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigurationError(f"{item.name} must be between {low} and {high}")


def check_rules(rules: Mapping[str, bool]) -> None:
    """Each rule as a sentence, and whether it is kept."""
    for rule, fits in rules.items():
        if not fits:
            raise ConfigurationError(rule)


def check_door(host: str, insecure: bool, *accesses: Access) -> None:
    """What is the same for every door."""
    check_rules({"host must not be empty": host != ""})
    if insecure and not is_loopback(host):
        raise ConfigurationError("insecure is allowed only on a loopback host")
    for access in accesses:
        name = f"{access.name}_token"
        if access.token is not None and not is_token(access.token):
            raise ConfigurationError(f"{name} must be visible ASCII characters without a blank")
        if access.token is not None and access.file is not None:
            raise ConfigurationError(f"{name} and {name}_file are both set: give one of them")


def _layered(cls: type[Settings], *sources: dict[str, Any]) -> dict[str, Any]:
    """Later sources win. Whoever names one way to get a token takes the other way of an earlier source away."""
    values: dict[str, Any] = {}
    for source in sources:
        for ways in ({f"{name}_token", f"{name}_token_file"} for name in cls.TOKENS):
            if ways & source.keys():
                values = {name: value for name, value in values.items() if name not in ways}
        values |= source
    return values


# --- sources -----------------------------------------------------------------------------------------------


def variables(cls: Any) -> dict[str, str]:
    """Each setting that a variable may give, by its variable."""
    return {
        item.metadata.get("variable", PREFIX + item.name.upper()): item.name
        for item in dataclasses.fields(cls)
        if not item.metadata.get("derived") and not item.metadata.get("file_only")
    }


def _kinds(cls: Any) -> dict[str, Any]:
    """Each setting that may be given, with its type; `X | None` counts as `X`."""
    hints = get_type_hints(cls)
    return {
        item.name: _without_none(hints[item.name])
        for item in dataclasses.fields(cls)
        if not item.metadata.get("derived")
    }


def _without_none(hint: Any) -> Any:
    rest = [part for part in get_args(hint) if part is not NoneType]
    return rest[0] if NoneType in get_args(hint) else hint


def _processes() -> list[type[Settings]]:
    """All kinds of settings, and what they share; the package imports every one."""
    found = Settings.__subclasses__()
    for kind in found:  # grows while it is gone through
        found += kind.__subclasses__()
    return found


def _from_env(cls: Any, env: Mapping[str, str]) -> dict[str, Any]:
    kinds, ours = _kinds(cls), variables(cls)
    known = {variable for kind in _processes() for variable in variables(kind)} | {CONFIG_VARIABLE}
    for variable in sorted(name for name in env if name.startswith(PREFIX) and not name.startswith(NOT_OURS)):
        if variable not in known:
            raise _unknown(variable, known)
    return {
        name: _from_text(variable, kinds[name], env[variable]) for variable, name in ours.items() if variable in env
    }


def _from_file(cls: Any, path: Path) -> dict[str, Any]:
    tables, ours = _read_config(path), _kinds(cls)
    known = {name: kind for process in _processes() for name, kind in _kinds(process).items()} | ours
    try:
        typed = _typed(tables, known)
    except ConfigurationError as error:
        raise ConfigurationError(f"the configuration file {path}: {error.detail}") from None
    return {name: value for name, value in typed.items() if name in ours}


def _read_config(path: Path) -> dict[str, Any]:
    """The configuration file's tables, unchecked."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"the configuration file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"the configuration file {path} is not UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"the configuration file {path} is not valid TOML: {error}") from error


def _from_overrides(cls: Any, overrides: Mapping[str, object]) -> dict[str, Any]:
    return _typed({name: value for name, value in overrides.items() if value is not None}, _kinds(cls))


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
    words[tuple[str, ...]] = _comma_separated
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


def _comma_separated(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _digits_to_int(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise ValueError
    return int(text)


def _from_value(name: str, kind: Any, value: object) -> object:
    """A value of a file or an override, held to its type without guessing: no `"1"` for 1, no
    `true` for 1."""
    if get_origin(kind) is tuple:
        return _list_of(name, get_args(kind)[0], value)
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ConfigurationError(f"{name} must be one of {', '.join(get_args(kind))}")
        return value
    if type(value) is not kind:
        raise ConfigurationError(f"{name} must be {_WORDS[kind]}")
    return value


def _list_of(name: str, kind: Any, value: object) -> tuple[Any, ...]:
    """A list of texts, or of tables that each make one value of a dataclass."""
    if isinstance(value, tuple) and all(isinstance(item, kind) for item in value):
        return value
    table = dataclasses.is_dataclass(kind)
    if not isinstance(value, list) or not all(isinstance(item, dict if table else kind) for item in value):
        raise ConfigurationError(f"{name} must be a list of {'tables' if table else 'texts'}")
    return tuple(_from_table(name, kind, item) for item in value) if table else tuple(value)


def _from_table(name: str, kind: Any, table: dict[str, Any]) -> Any:
    kinds = {key: _without_none(hint) for key, hint in get_type_hints(kind).items()}
    typed = _typed(table, kinds, where=f"{name}." if name else "")
    for item in dataclasses.fields(kind):
        if item.default is dataclasses.MISSING and item.name not in typed:
            raise ConfigurationError(f"{name}: each table needs a {item.name}" if name else f"{item.name} is missing")
    return kind(**typed)


def load_table(kind: type[T], path: Path) -> T:
    """A file that is no process's configuration, as one value of a dataclass: no variables, no flags, other names."""
    table = _read_config(path)
    try:
        made: T = _from_table("", kind, table)
    except ConfigurationError as error:
        raise ConfigurationError(f"the configuration file {path}: {error.detail}") from None
    return made
