"""`fumehood dev`: everything there is so far, on one machine, with one command."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from http.client import HTTPException
from pathlib import Path
from typing import Annotated, Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

import typer
from rich.console import Console
from rich.markup import escape

from fumehood.cli.engine_access import engine_trouble
from fumehood.cli.node import write_private
from fumehood.errors import ConfigurationError
from fumehood.settings import NodeSettings

START_SECONDS = 120.0
STOP_SECONDS = 90.0
PATIENCE_SECONDS = 5.0
"""A node is ready sooner. After that the person at the terminal is told what it waits for."""

HOST = "127.0.0.1"
PR_SET_PDEATHSIG = 1

console = Console(stderr=True)


def dev(
    state: Annotated[Path, typer.Option("--state", help="Where everything is kept.")] = Path("~/.local/state/fumehood"),
    node_port: Annotated[int, typer.Option(help="Port of the node's Worker API; 0 takes any free one.")] = 8090,
    http_port: Annotated[int, typer.Option(help="Port of the server, once this version has one.")] = 8080,
    grpc_port: Annotated[int, typer.Option(help="Port of the gRPC console, once this version has one.")] = 8081,
    ready_file: Annotated[
        Path | None, typer.Option(help="Receives one JSON object, with the tokens, when all is ready.")
    ] = None,
) -> None:
    """Run a node on this machine for development: loopback only, images of loopback and public registries admitted.

    All other settings are the node's own, from FUMEHOOD_* variables.
    """
    folder = state.expanduser()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    token_file = _token(folder / "worker-api.token")
    _check_engine()
    _check_port(node_port, "--node-port")
    announced = folder / f"node-ready.{os.getpid()}.json"
    process = _start_node(folder, node_port, token_file, announced)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)  # also where a shell started us with SIGINT ignored
    try:
        facts = _wait(process, announced, node_port)
        _report(facts, process, token_file, ready_file)
        code = _ended(process.wait())
    except KeyboardInterrupt:
        console.print("stopping: running jobs get a moment; a second Ctrl-C leaves them to the next start")
        code = 0
    finally:
        announced.unlink(missing_ok=True)
        _stop(process)
    sys.exit(code)


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _token(path: Path) -> Path:
    """Made once, so that a client's configuration survives a restart."""
    if not path.exists():
        write_private(path, secrets.token_urlsafe(32))
    return path


def _ended(code: int) -> int:
    """Say how the node ended; an exit code that a shell understands."""
    how = f"ended with {code}" if code >= 0 else f"was killed by signal {-code}"
    console.print(f"[bold red]the node {how}[/]; its log above may tell why")
    return code if code >= 0 else 128 - code


def _check_engine() -> None:
    trouble = engine_trouble(NodeSettings.load().docker_socket)
    if trouble is not None:
        raise ConfigurationError(trouble.sentence)


def _check_port(port: int, option: str) -> None:
    if port == 0:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ConfigurationError(f"port {port} is taken: choose another one with {option}") from error


def _start_node(folder: Path, port: int, token_file: Path, announced: Path) -> subprocess.Popen[bytes]:
    places = ["--state", str(folder / "node"), "--token-file", str(token_file), "--ready-file", str(announced)]
    # A session of its own: Ctrl-C reaches this process alone, which then stops the node in order.
    return subprocess.Popen(
        [sys.executable, "-m", "fumehood", "node", "--port", str(port), "--host", HOST, *places],
        start_new_session=True,
        preexec_fn=_end_with_parent,  # noqa: PLW1509 - this process has one thread
    )


def _end_with_parent() -> None:
    """However `dev` ends, its node is told to stop: no node is left that holds the port and the state."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait(process: subprocess.Popen[bytes], announced: Path, port: int) -> dict[str, Any]:
    began = time.monotonic()
    ask_at, reason = began + PATIENCE_SECONDS, ""
    with console.status("starting the node, and running a first container to see that it can"):
        while (now := time.monotonic()) < began + START_SECONDS:
            if announced.exists():
                facts: dict[str, Any] = json.loads(announced.read_text(encoding="utf-8"))
                return facts
            if (code := process.poll()) is not None:
                sys.exit(code if code > 0 else _ended(code) or 1)
            if port and now >= ask_at:  # a port that the node chose itself is not known before it is ready
                ask_at, before, reason = now + 1, reason, _why_not(port) or reason
                if reason != before:
                    console.print(f"[yellow]not ready:[/] {escape(reason)}")
            time.sleep(0.05)
    because = f": {reason}" if reason else ""
    raise ConfigurationError(f"the node did not become ready in time{because}; `fumehood doctor` tells more")


def _why_not(port: int) -> str:
    """What the node says of itself; nothing while it says nothing."""
    try:
        build_opener(ProxyHandler({})).open(f"http://{HOST}:{port}/readyz", timeout=2).close()
    except HTTPError as error:
        with error:
            return error.read(1000).decode("utf-8", "replace")
    except (OSError, HTTPException):
        pass
    return ""


def _report(facts: dict[str, Any], process: subprocess.Popen[bytes], token_file: Path, ready_file: Path | None) -> None:
    token = token_file.read_text(encoding="utf-8").strip()
    ready = {
        "node_url": facts["node_url"],
        "tokens": {"worker_api": token},
        "pids": {"dev": os.getpid(), "node": process.pid},
    }
    if ready_file is not None:
        write_private(ready_file, json.dumps(ready))
    console.print(f"[bold green]ready[/]  Worker API  {facts['node_url']}")
    console.print(f"       token in    {token_file}", soft_wrap=True)
    console.print("       stop with   Ctrl-C")


def _stop(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(STOP_SECONDS)
