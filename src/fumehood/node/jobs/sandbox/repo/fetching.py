"""Fetching: one commit and its tree, into our own repository, where git computes the hash of all that comes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fumehood.node.jobs.sandbox.refused import RefusedError, shown
from fumehood.node.jobs.sandbox.repo.git import Git, GitFailedError
from fumehood.node.jobs.sandbox.sources import check_ref, is_commit
from fumehood.sandbox.spec import MIB

FETCHED: Final = "refs/fumehood/fetched"
ALL: Final = "refs/fumehood/all"
HEAD: Final = "HEAD"

_NOT_THERE: Final = ("couldn't find remote ref", "invalid refspec")
_NO_REPOSITORY: Final = (
    "not found",
    "does not appear to be a git repository",
    "Authentication failed",
    "could not read",
)
_ASK_FOR_ALL: Final = ("shallow", "not our ref", "unadvertised object")
"""A server that gives no single commit gives all of them: dumb ones, and old ones."""
_FETCH: Final = ("fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--no-auto-maintenance")


async def fetch(git: Git, url: str, ref: str | None, *, protocol: str, config: Sequence[str] = ()) -> str:
    """The commit that a ref stands for. `RefusedError` where the server says that there is no such thing,
    `GitFailedError` for all else that fails."""
    wanted = ref or HEAD
    try:
        await git.run(*_FETCH, "--depth=1", "--", url, f"+{wanted}:{FETCHED}", protocol=protocol, config=config)
    except GitFailedError as error:
        if not _has(error, _ASK_FOR_ALL):
            raise _told(error, wanted) from error
    else:
        return await _commit(git, FETCHED, wanted)
    return await _from_all(git, url, wanted, protocol, config)


async def fetch_bundle(git: Git, file: Path, ref: str | None) -> str:
    """As `fetch`. Without a ref it is the bundle's HEAD, or the only ref that it has."""
    if ref is None:
        heads = (await git.run("bundle", "list-heads", str(file), most_output=16 * MIB)).decode("utf-8", "replace")
        names = [line.partition(" ")[2] for line in heads.splitlines()]
        if HEAD not in names and len(names) != 1:
            raise RefusedError(f"the bundle has {len(names)} refs and no HEAD: name one of them as git_ref")
        ref = HEAD if HEAD in names else check_ref(names[0])
    if is_commit(ref):
        return await _from_all(git, str(file), ref, "file", ())
    try:
        await git.run(*_FETCH, "--", str(file), f"+{ref}:{FETCHED}", protocol="file")
    except GitFailedError as error:
        raise _told(error, ref) from error
    return await _commit(git, FETCHED, ref)


async def _from_all(git: Git, url: str, wanted: str, protocol: str, config: Sequence[str]) -> str:
    refs = (f"+refs/heads/*:{ALL}/heads/*", f"+refs/tags/*:{ALL}/tags/*")
    head = () if is_commit(wanted) else (f"+{wanted}:{FETCHED}",)
    try:
        await git.run(*_FETCH, "--", url, *refs, *head, protocol=protocol, config=config)
    except GitFailedError as error:
        raise _told(error, wanted) from error
    return await _commit(git, wanted if is_commit(wanted) else FETCHED, wanted)


async def _commit(git: Git, revision: str, wanted: str) -> str:
    try:
        said = await git.run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    except GitFailedError as error:
        raise RefusedError(f"{shown(wanted)} is no commit of the repository") from error
    found = said.decode("ascii").strip()
    if is_commit(wanted) and found != wanted:
        raise RefusedError(f"{shown(wanted)} is no commit of the repository, but something that leads to one")
    return found


def _told(error: GitFailedError, wanted: str) -> Exception:
    """What the server said no to; where it could not be asked, the error itself."""
    if _has(error, _NOT_THERE):
        return RefusedError(f"the repository has no {shown(wanted)}")
    if _has(error, _NO_REPOSITORY):
        return RefusedError(f"there is no such repository, or nobody may read it without a password: {error.line}")
    return error


def _has(error: GitFailedError, words: Sequence[str]) -> bool:
    return any(word in error.said for word in words)
