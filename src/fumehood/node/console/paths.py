"""Paths of files in a session, as callers write them, and what stood in the way of an operation on one."""

from __future__ import annotations

import errno
import posixpath

from fumehood.errors import CommandFailedError, FileOperationError
from fumehood.sandbox.spec import WORKSPACE
from fumehood.wire.console.codes import Reason

SHOWN = 200
"""Characters of a path in an error."""

_NOT_THERE = frozenset({errno.ENOENT, errno.ENAMETOOLONG})


def beneath_root(path: str) -> str:
    """A path for `Files` rooted at `/`: an absolute one as it is, another one in the workspace.

    `.` and `..` are worked out on the words alone, and never lead above the root. Links are not followed, so there is
    nothing else that they could mean.
    """
    return posixpath.normpath(posixpath.join("/", WORKSPACE, path)).lstrip("/")


def shown(path: str) -> str:
    return path if len(path) <= SHOWN else path[:SHOWN] + "…"


def failure(error: FileOperationError, path: str) -> CommandFailedError:
    """By the sandbox's errno. A link is no file here: it would lead wherever its writer wants."""
    name = shown(path)
    if error.errno in _NOT_THERE:
        return CommandFailedError(Reason.FILE_NOT_FOUND, f"there is no file {name}")
    if error.errno == errno.ENOTDIR:
        return CommandFailedError(Reason.FILE_NOT_FOUND, f"{name}: what should be a folder is none")
    if error.errno == errno.ELOOP:
        return CommandFailedError(Reason.FILE_NOT_FOUND, f"{name} is a link, or leads through one: none is followed")
    if error.errno == errno.EISDIR:
        return CommandFailedError(Reason.PATH_IS_DIRECTORY, f"{name} is a folder")
    if error.errno == errno.EFBIG:
        return CommandFailedError(Reason.FILE_TOO_LARGE, f"{name}: {error.detail}")
    return CommandFailedError(Reason.FILE_ERROR, f"{name}: {error.detail}")
