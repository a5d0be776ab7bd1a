"""Which images a rule is about: a registry and a repository, or all repositories beneath one. Pure.

| pattern | matches |
|---|---|
| `registry.example/team/tool` | this repository |
| `registry.example/team/*` | every repository right beneath `team/` |
| `registry.example/team/**` | every repository beneath `team/`, however deep |
| `registry.example/**` | the whole registry |
| `127.0.0.1:*/**` | a registry on this host, whatever its port, or without one |

A pattern is compared with references in their normal form, so it is written in that form: `docker.io/library/python`,
not `python`. Where two spellings could be meant, neither is guessed. Stars stand nowhere else: `team-*` would let in
whoever can make a repository with such a name, and `*.example` whoever can make a host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self, final

from fumehood.errors import InvalidReferenceError
from fumehood.images.reference import DEFAULT_NAMESPACE, DEFAULT_REGISTRY, ImageReference, check_registry, split_port

MAX_TEXT: Final = 1024
_ANY_PORT: Final = ":*"
_DEEP: Final = "**"
_ONE: Final = "*"
_EXAMPLE: Final = "such as registry.example/team/tool, registry.example/team/* or registry.example/**"


@final
@dataclass(frozen=True, slots=True)
class ImagePattern:
    """One pattern; made by `parse`."""

    host: str
    """With its port, if it has one and not any."""
    any_port: bool
    path: tuple[str, ...]
    """The parts of the repository's name that are fixed."""
    rest: str
    """What may follow them: nothing, `*` (one part) or `**` (one or more)."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """`ValueError` says in words what is wrong."""
        registry, slash, repository = text.partition("/")
        if not slash or len(text) > MAX_TEXT:
            raise ValueError(f"a pattern is a registry and a repository, {_EXAMPLE}")
        path, rest = _split_path(repository)
        any_port = registry.endswith(_ANY_PORT)
        host = registry.removesuffix(_ANY_PORT)
        _check_host(host, any_port)
        _check_path(host, path, rest)
        return cls(host, any_port, path, rest)

    def matches(self, reference: ImageReference) -> bool:
        return self._is_registry(reference.registry) and self._is_path(tuple(reference.repository.split("/")))

    def wider(self) -> Iterator[ImagePattern]:
        """Every pattern that matches all that this one does, itself included: behind any of them it would be dead."""
        hosts = {(self.host, self.any_port), (split_port(self.host)[0], True)}
        shapes = {(self.path, self.rest)}
        if self.rest == "":
            shapes.add((self.path[:-1], _ONE))
        deepest = len(self.path) if self.rest else len(self.path) - 1
        shapes |= {(self.path[:end], _DEEP) for end in range(deepest + 1)}
        for host, any_port in hosts:
            yield from (ImagePattern(host, any_port, path, rest) for path, rest in shapes)

    def _is_registry(self, registry: str) -> bool:
        return registry == self.host or (self.any_port and split_port(registry)[0] == self.host)

    def _is_path(self, parts: tuple[str, ...]) -> bool:
        beyond = len(parts) - len(self.path)
        fits = {"": beyond == 0, _ONE: beyond == 1, _DEEP: beyond >= 1}[self.rest]
        return fits and parts[: len(self.path)] == self.path

    def __str__(self) -> str:
        rest = (self.rest,) if self.rest else ()
        return "/".join((self.host + (_ANY_PORT if self.any_port else ""), *self.path, *rest))


def _split_path(repository: str) -> tuple[tuple[str, ...], str]:
    parts = tuple(repository.split("/"))
    rest = parts[-1] if parts[-1] in (_ONE, _DEEP) else ""
    path = parts[:-1] if rest else parts
    if any("*" in part for part in path):
        raise ValueError("a star stands for whole parts at the end of a repository, as /* or /**, and for a port")
    if any("@" in part or ":" in part for part in path):
        raise ValueError("a pattern has neither tag nor digest: rules are about repositories")
    return path, rest


def _check_host(host: str, any_port: bool) -> None:
    if "*" in host:
        raise ValueError("a registry is named in full: only its port may be a star, as in 127.0.0.1:*/**")
    try:
        if any_port and split_port(host)[1] is not None:
            raise ValueError("the registry has two ports")
        check_registry(f"{host}:1" if any_port else host)  # any port: a name without a dot is a registry, too
    except InvalidReferenceError as error:
        raise ValueError(f"{error.detail} (a pattern names its registry, {_EXAMPLE})") from None


def _check_path(host: str, path: tuple[str, ...], rest: str) -> None:
    """That some reference can match: a rule that nothing matches is a mistake that nobody would see."""
    filled = "/".join((*path, *(("x",) if rest else ())))
    if host == DEFAULT_REGISTRY and len(path) + bool(rest) < 2 and rest != _DEEP:
        meant = "/".join((host, DEFAULT_NAMESPACE, *path, *((rest,) if rest else ())))
        raise ValueError(f"repositories on {DEFAULT_REGISTRY} have a namespace: write {meant}, or {host}/**")
    try:
        ImageReference("registry.example", filled, tag="any")
    except InvalidReferenceError as error:
        raise ValueError(error.detail) from None
