"""Who a worker is at the console: from its settings, or from the file that `fumehood worker create` wrote."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from fumehood.errors import ConfigurationError, InvalidRequestError
from fumehood.settings import WorkerSettings
from fumehood.settings.token_file import write_private
from fumehood.wire.console.credentials_file import FILE_NAME
from fumehood.wire.console.hello import derive_key

LONGEST_FILE = 64 * 1024
ID_FILE = "worker-id"


def identity_of(settings: WorkerSettings) -> tuple[str, str]:
    """The worker's id and its secret, which is one that the console can have made."""
    worker_id, secret = _found(settings)
    try:
        derive_key(worker_id, secret)
    except InvalidRequestError as error:
        raise ConfigurationError(error.detail) from None
    return worker_id, secret


def _found(settings: WorkerSettings) -> tuple[str, str]:
    if settings.worker_id is not None and settings.worker_secret is not None:
        return settings.worker_id, settings.worker_secret
    if settings.worker_credentials_file is None:
        raise ConfigurationError(
            "a worker needs to know who it is: make credentials with `fumehood worker create NAME`, and set "
            f"WORKER_CREDENTIALS_FILE={FILE_NAME}, or WORKER_ID and WORKER_SECRET"
        )
    return _from_file(settings.worker_credentials_file)


def _from_file(path: Path) -> tuple[str, str]:
    said = _read(path)
    worker_id, secret = (said.get(name) if isinstance(said, dict) else None for name in ("worker_id", "worker_secret"))
    if not isinstance(worker_id, str) or not isinstance(secret, str) or not worker_id or not secret:
        raise ConfigurationError(f"the credentials file {path} is not one that `fumehood worker create` wrote")
    return worker_id, secret


def _read(path: Path) -> Any:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigurationError(f"the credentials file {path} cannot be read: {error.strerror}") from error
    try:
        _check_private(path, os.fstat(fd).st_mode)
        return json.loads(os.read(fd, LONGEST_FILE))
    except ValueError:
        raise ConfigurationError(f"the credentials file {path} is not JSON") from None
    finally:
        os.close(fd)


def _check_private(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise ConfigurationError(f"the credentials file {path} is not a regular file")
    if mode & 0o077:
        raise ConfigurationError(
            f"the credentials file {path} is accessible to others than its owner (mode {stat.S_IMODE(mode):04o}): "
            f"chmod 600 {path}"
        )


def claim(folder: Path, worker_id: str) -> None:
    """Containers bear their worker's name: under another one nobody would find those that this folder knows of. Whoever
    calls has the folder's lock."""
    path = folder / ID_FILE
    try:
        known = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        write_private(path, worker_id)
        return
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    if known != worker_id:
        raise ConfigurationError(
            f"the state folder {folder} belongs to the worker {known}, and this one is {worker_id}: give it another "
            f"folder with WORKER_STATE_DIR"
        )
