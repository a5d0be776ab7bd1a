"""Which job types a provider serves, and how: what its operator names, or all that it has the means for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fumehood.errors import ConfigurationError
from fumehood.jobs.base import Handler, Workbench
from fumehood.jobs.registry import AnyType, Registry


@dataclass(frozen=True, slots=True)
class Served:
    """A handler for each type that is served, and why the others are not."""

    handlers: Mapping[str, Handler[Any, Any]]
    left_out: Mapping[str, str]


def served(
    registry: Registry,
    workbench: Workbench,
    *,
    types: Sequence[str],
    ways: Mapping[str, str],
    without: Mapping[str, str] | None = None,
) -> Served:
    """Types that were named must work; `ConfigurationError` says why one does not. `ways`: which handler does a type,
    where that is not the type's first one. `without`: types that are known not to work here, and why."""
    for name in (*types, *ways):
        if name not in registry:
            raise ConfigurationError(f"there is no job type {name}; there are {', '.join(registry)}")
    handlers: dict[str, Handler[Any, Any]] = {}
    left_out: dict[str, str] = {}
    for name in dict.fromkeys(types or registry):
        try:
            if (reason := (without or {}).get(name)) is not None:
                raise ConfigurationError(f"{name} cannot be served: {reason}")
            handlers[name] = _made(registry[name], ways.get(name), workbench)
        except ConfigurationError as error:
            if name in types or name in ways:
                raise
            left_out[name] = error.detail
    if not handlers:
        raise ConfigurationError("this provider can serve no job type: " + "; ".join(left_out.values()))
    return Served(handlers, left_out)


def _made(kind: AnyType, way: str | None, workbench: Workbench) -> Handler[Any, Any]:
    chosen = next(iter(kind.handlers)) if way is None else way
    if chosen not in kind.handlers:
        raise ConfigurationError(f"{kind.name} is not done by {chosen}: there is {', '.join(kind.handlers)}")
    try:
        return kind.handlers[chosen](workbench)
    except ImportError as error:
        raise ConfigurationError(
            f"{kind.name} by {chosen} needs the package {error.name}, which is not installed "
            "(fumehood[jobs] has those of the built-in types)"
        ) from error
