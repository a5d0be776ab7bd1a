"""The worker of `fumehood dev`: let in anew at each start, so that no earlier one can be there beside it."""

from __future__ import annotations

import hashlib
import json
import os
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from fumehood.cli import dev_demo
from fumehood.errors import ConfigurationError
from fumehood.settings import WorkerSettings
from fumehood.settings.base import said_under
from fumehood.settings.token_file import write_private
from fumehood.settings.worker import DEFAULT_IMAGE
from fumehood.wire.console.credentials_file import FILE_NAME, WorkerCredentials
from fumehood.wire.credential_api import CREDENTIALS_PATH

PYTHON = "127.0.0.1:5055/fumehood/python:1"
"""The image with Python that `scripts/images` makes."""
_ANSWER_BYTES = 64 * 1024
_SECONDS = 30.0


def name_in(folder: Path) -> str:
    """Of the worker of a state folder. Containers bear it, and two of one name on a machine would take each other's."""
    return "dev-" + hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:8]


def images(policy: Path | None) -> dict[str, str]:
    """Variables that set the worker's images to `PYTHON`, which needs no network, if that image can be had. An image
    that somebody chose stays."""
    settings, chosen = WorkerSettings.load(), said_under("WORKER_")
    images = {
        "WORKER_PYTHON_EXEC_DOCKER_IMAGE": settings.worker_python_exec_docker_image,
        "WORKER_TERMINAL_EXEC_DOCKER_IMAGE": settings.worker_terminal_exec_docker_image,
    }
    unset = [name for name, image in images.items() if image == DEFAULT_IMAGE and name not in chosen]
    if not unset or dev_demo.found(policy, [PYTHON])[1]:
        return {}
    return dict.fromkeys(unset, PYTHON)


def let_in(folder: Path, server_url: str, token: str) -> Path:
    """The file with its credentials."""
    name = name_in(folder)
    try:
        _ask("DELETE", f"{server_url}{CREDENTIALS_PATH}/{name}", token)
    except HTTPError as error:
        if error.code != 404:
            raise _trouble(error) from error
    try:
        made = _ask("POST", f"{server_url}{CREDENTIALS_PATH}", token, {"worker_id": name})
    except HTTPError as error:
        raise _trouble(error) from error
    said = WorkerCredentials(worker_id=made["worker_id"], worker_secret=made["worker_secret"])
    file = folder / FILE_NAME
    write_private(file, said.encode().rstrip())
    return file


def _ask(method: str, url: str, token: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    request = Request(url, method=method, headers={"authorization": f"Bearer {token}"})
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("content-type", "application/json")
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=_SECONDS) as answer:
            found: dict[str, Any] = json.loads(answer.read(_ANSWER_BYTES))
            return found
    except HTTPError:
        raise
    except (OSError, HTTPException, ValueError) as error:
        raise ConfigurationError(f"the server does not let a worker in: {type(error).__name__}") from error


def _trouble(error: HTTPError) -> ConfigurationError:
    with error:
        said = error.read(_ANSWER_BYTES).decode("utf-8", "replace")
    return ConfigurationError(f"the server does not let a worker in: {said[:500]}")
