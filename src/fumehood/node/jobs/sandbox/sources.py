"""What `repo.source` names: nothing, a path of this machine, a git server, or a bundle that was uploaded. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from fumehood.images.egress import plain_name
from fumehood.node.jobs.sandbox.refused import RefusedError, shown

BUNDLE: Final = "bundle:"
FILE: Final = "file://"
_BUNDLE = re.compile(r"bundle:(sha256:[0-9a-f]{64})")
_PORTS: Final = {"https": 443, "http": 80}
_PATH = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*")
_REF = re.compile(r"[^\x00-\x20\x7f~^:?*\[\\]+")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class LocalPath:
    path: str


@dataclass(frozen=True, slots=True)
class GitUrl:
    """In its one spelling; without a name, a password or a query."""

    scheme: str
    host: str
    port: int
    path: str

    def __str__(self) -> str:
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{self.host}{port}{self.path}"


@dataclass(frozen=True, slots=True)
class Bundle:
    ref: str
    """Of the blob: `sha256:…`."""


Source = LocalPath | GitUrl | Bundle


def parse_source(text: str) -> Source | None:
    """`None`: the workspace stays empty."""
    if not text:
        return None
    if text.startswith(BUNDLE):
        found = _BUNDLE.fullmatch(text)
        if found is None:
            raise RefusedError("a bundle is named as it was when it was uploaded: bundle:sha256: and 64 hex digits")
        return Bundle(found[1])
    if text.startswith("/"):
        return LocalPath(text)
    if text.startswith(FILE):
        return LocalPath(_file_path(text))
    return _git_url(text)


def _file_path(text: str) -> str:
    try:
        path = unquote(text.removeprefix(FILE), errors="strict")
    except UnicodeDecodeError:
        path = ""
    if not path.startswith("/") or "\0" in path:
        raise RefusedError(f"{shown(text)} is no path of this machine: it must be file:///…")
    return path


def _git_url(text: str) -> GitUrl:
    """Errors do not repeat it: somebody may have put a password into it."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise RefusedError("the repository's address cannot be read") from None
    if parts.scheme not in _PORTS:
        raise RefusedError("a repository is a path, https://…, file:///… or bundle:sha256:…")
    if "@" in parts.netloc:
        raise RefusedError("a repository's address has no user name and no password in it")
    if parts.query or parts.fragment or not _PATH.fullmatch(parts.path):
        raise RefusedError("a repository's address is a scheme, a name and a path, and nothing else")
    host = plain_name(parts.hostname or "")
    if host is None:
        raise RefusedError("a git server is named by a name with a dot in it, in ASCII; addresses are refused")
    return GitUrl(parts.scheme, host, port if port is not None else _PORTS[parts.scheme], parts.path)


def check_ref(ref: str) -> str:
    """A branch, a tag or a whole commit id, and nothing that git could read as something else."""
    parts = ref.split("/")
    plain = (
        _REF.fullmatch(ref) is not None
        and all(part and not part.startswith((".", "-")) and not part.endswith((".lock", ".")) for part in parts)
        and ".." not in ref
        and "@{" not in ref
        and not ref.startswith("+")
    )
    if not plain:
        raise RefusedError(f"{shown(ref)} is no branch, no tag and no commit")
    return ref


def is_commit(ref: str) -> bool:
    return _COMMIT.fullmatch(ref) is not None
