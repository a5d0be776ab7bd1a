"""Image references: one strict reading of what people write, and one spelling of what it means. Pure.

The grammar is that of the distribution project (`[registry/]repository[:tag][@digest]`) with Docker's normalisation:
`python:3.12` is `docker.io/library/python:3.12`, and a reference with neither tag nor digest means `latest`.

It is stricter where two spellings could name one thing, because policies compare registries as strings: hosts are lower
case, ports have no leading zero, a host that looks like a number is a dotted IPv4 address (`127.1` and `2130706433`
reach the loopback on many systems and are refused), an IPv6 address takes its shortest form, and only SHA-256 digests
count. Errors say what is wrong and never repeat the text: somebody may have put a password into it.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from fumehood.errors import InvalidReferenceError

DEFAULT_REGISTRY = "docker.io"
DEFAULT_NAMESPACE = "library"
DEFAULT_TAG = "latest"

MAX_TEXT = 1024
"""More than the longest valid reference (about 720), checked first so that nothing below sees unbounded text."""
MAX_HOST = 253
MAX_REPOSITORY = 255
MAX_TAG = 128

_LEGACY_REGISTRY = "index.docker.io"
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_COMPONENT = re.compile(r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_IMAGE_ID = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ImageReference:
    """A reference in its normal form. Every value of this type is valid, whoever made it."""

    registry: str
    repository: str
    tag: str | None = None
    digest: str | None = None

    def __post_init__(self) -> None:
        check_registry(self.registry)
        _check_repository(self.repository)
        if self.registry == DEFAULT_REGISTRY and "/" not in self.repository:
            raise InvalidReferenceError(f"a repository on {DEFAULT_REGISTRY} needs a namespace, such as library/")
        if self.tag is None and self.digest is None:
            raise InvalidReferenceError("a reference needs a tag or a digest")
        if self.tag is not None:
            _check_tag(self.tag)
        if self.digest is not None and not is_digest(self.digest):
            raise InvalidReferenceError("the digest is not sha256: and 64 lower-case hexadecimal digits")

    @classmethod
    def parse(cls, text: str) -> ImageReference:
        """Read a reference as Docker would, or say what is wrong with it."""
        _check_text(text)
        name, digest = _split_digest(text)
        registry, rest = _split_registry(name)
        repository, colon, tag = rest.partition(":")
        if colon and not tag:
            raise InvalidReferenceError("there is a colon but no tag behind it")
        if registry == DEFAULT_REGISTRY and "/" not in repository:
            _refuse_image_id(repository)
            repository = f"{DEFAULT_NAMESPACE}/{repository}" if repository else ""
        if not tag and digest is None:
            tag = DEFAULT_TAG
        return cls(registry, repository, tag or None, digest)

    @property
    def name(self) -> str:
        """Registry and repository: what an engine must be told, next to the digest."""
        return f"{self.registry}/{self.repository}"

    @property
    def is_loopback(self) -> bool:
        """The registry is on this machine, by its name alone: nothing is looked up."""
        return is_loopback_registry(self.registry)

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag is not None else ""
        digest = f"@{self.digest}" if self.digest is not None else ""
        return f"{self.name}{tag}{digest}"


def is_digest(text: str) -> bool:
    """Exactly `sha256:` and 64 lower-case hexadecimal digits."""
    return _DIGEST.fullmatch(text) is not None


def is_loopback_host(host: str) -> bool:
    """`localhost`, 127.0.0.0/8 or ::1, with or without brackets. Other names of the loopback do not count."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def is_loopback_registry(registry: str) -> bool:
    """As `is_loopback_host`, for a host that may have a port."""
    return is_loopback_host(split_port(registry)[0])


def check_registry(registry: str) -> None:
    """Refuse what is not a registry host in its one spelling, such as `ghcr.io` or `[::1]:5000`."""
    if registry == _LEGACY_REGISTRY:
        raise InvalidReferenceError(f"{_LEGACY_REGISTRY} is an old name of {DEFAULT_REGISTRY}")
    host, port = split_port(registry)
    if port is not None and not (_PORT.fullmatch(port) and int(port) <= 65535):
        raise InvalidReferenceError("the registry's port is not a number from 1 to 65535 without leading zeros")
    check_host(host)
    if registry == host and not host.startswith("[") and "." not in host and host != "localhost":
        raise InvalidReferenceError("a registry without dot or port would read as part of the repository")


def check_host(host: str) -> None:
    """Refuse a host that is not a plain name, a dotted IPv4 address, or a shortest IPv6 address in brackets."""
    if not host.startswith("["):
        _check_host_name(host)
    elif host != _shortest_ipv6(host):
        raise InvalidReferenceError("the registry's IPv6 address is not in its shortest form")


def _check_text(text: str) -> None:
    if not text:
        raise InvalidReferenceError("the reference is empty")
    if len(text) > MAX_TEXT:
        raise InvalidReferenceError(f"the reference is longer than {MAX_TEXT} characters")
    if any(character.isspace() for character in text):
        raise InvalidReferenceError("the reference contains white space")
    if not text.isascii() or not text.isprintable():
        raise InvalidReferenceError("the reference contains a control character or one that is not ASCII")
    if "://" in text:
        raise InvalidReferenceError("the reference starts with a scheme such as https://, which does not belong there")


def _split_digest(text: str) -> tuple[str, str | None]:
    name, at, digest = text.partition("@")
    if not at:
        return name, None
    if "/" in digest or "@" in digest:
        raise InvalidReferenceError("credentials (something@host) do not belong in a reference")
    if not is_digest(digest):
        raise InvalidReferenceError("what follows @ is not sha256: and 64 lower-case hexadecimal digits")
    return name, digest


def _split_registry(name: str) -> tuple[str, str]:
    """Docker's rule: the first part is a registry if it could not be part of a repository on Docker Hub."""
    first, slash, rest = name.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        return DEFAULT_REGISTRY, name
    if first == _LEGACY_REGISTRY:
        return DEFAULT_REGISTRY, rest
    host, port = split_port(first)
    if host.startswith("["):
        host = _shortest_ipv6(host)
    return (host if port is None else f"{host}:{port}"), rest


def split_port(registry: str) -> tuple[str, str | None]:
    """Host and port as they are written; neither is checked."""
    if registry.startswith("["):
        host, bracket, rest = registry.partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise InvalidReferenceError(
                "the registry's IPv6 address must be in brackets, followed by nothing but a port"
            )
        return host + bracket, rest[1:] if rest else None
    host, colon, port = registry.partition(":")
    return host, port if colon else None


def _shortest_ipv6(bracketed: str) -> str:
    text = bracketed[1:-1]
    if "%" in text or "." in text or text != text.lower():
        raise InvalidReferenceError("the registry's IPv6 address has a zone, dots or upper-case digits")
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        raise InvalidReferenceError("the registry's IPv6 address is not valid") from None
    if address.ipv4_mapped is not None:
        raise InvalidReferenceError("the registry is an IPv4 address written as IPv6: write it as IPv4")
    return f"[{address}]"


def _check_host_name(host: str) -> None:
    if host != host.lower():
        raise InvalidReferenceError("the registry's host must be lower case")
    labels = host.split(".")
    if len(host) > MAX_HOST or not all(_LABEL.fullmatch(label) for label in labels):
        raise InvalidReferenceError("the registry is not a valid host name")
    if _NUMERIC_LABEL.fullmatch(labels[-1]) and not _is_ipv4(host):
        raise InvalidReferenceError("the registry looks like an IPv4 address but is not four plain decimal numbers")


def _is_ipv4(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True


def _check_repository(repository: str) -> None:
    if not repository:
        raise InvalidReferenceError("the repository's name is missing")
    if len(repository) > MAX_REPOSITORY:
        raise InvalidReferenceError(f"the repository's name is longer than {MAX_REPOSITORY} characters")
    if repository != repository.lower():
        raise InvalidReferenceError("the repository's name must be lower case")
    if not all(_COMPONENT.fullmatch(component) for component in repository.split("/")):
        raise InvalidReferenceError(
            "each part of the repository's name must be letters and digits, joined by '.', '_', '__' or dashes"
        )


def _check_tag(tag: str) -> None:
    if len(tag) > MAX_TAG:
        raise InvalidReferenceError(f"the tag is longer than {MAX_TAG} characters")
    if not _TAG.fullmatch(tag):
        raise InvalidReferenceError("the tag must be letters, digits, '_', '.' and '-', and not start with '.' or '-'")


def _refuse_image_id(repository: str) -> None:
    """Docker reads 64 hexadecimal digits as the id of a local image, never as a repository."""
    if _IMAGE_ID.fullmatch(repository):
        raise InvalidReferenceError("64 hexadecimal digits are an image id, not a reference")
