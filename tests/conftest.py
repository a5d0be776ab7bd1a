"""What every suite may ask for: the services of `scripts/services` and the images of `scripts/images`.

One rule for all of them: what is missing on a developer's machine skips the test, and fails it where CI is set.
A suite that quietly ran nothing must not look green.
"""

from __future__ import annotations

import io
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
import structlog
from hypothesis import HealthCheck, settings

from fumehood.door.logs import configure_logging

DOCKER_SOCKET = Path("/var/run/docker.sock")

settings.register_profile(
    "gate",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "full",
    settings.get_profile("gate"),
    derandomize=False,
    max_examples=100,
    print_blob=True,
)
settings.load_profile("gate")
"""The gate runs the same examples every time; `nox -s full` chooses the other profile, with new ones. No profile has a
deadline: on a busy machine the clock says nothing about the code."""


def hear_interrupts() -> None:
    """Restore SIGINT: a shell ignores it in background jobs, and everything that a test starts would inherit that.
    `test_a_suite_in_the_background_can_interrupt_what_it_starts`"""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


hear_interrupts()

structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)
"""The default draws every traceback in colours, with the values of all variables, which takes half a second."""


def unavailable(what: str) -> NoReturn:
    """Skip here, fail in CI."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} (and this is CI)", pytrace=False)
    pytest.skip(what)


def services_dir() -> Path:
    return Path(os.environ.get("FUMEHOOD_SERVICES_DIR") or "/var/tmp/fumehood-services")


def read_env_file(name: str, made_by: str) -> dict[str, str]:
    """The KEY=VALUE lines of a file that one of the scripts wrote."""
    path = services_dir() / name
    if not path.exists():
        unavailable(f"no {path}: run {made_by}")
    return dict(line.split("=", 1) for line in path.read_text().splitlines() if line)


def require_listener(family: socket.AddressFamily, address: str | tuple[str, int], what: str) -> None:
    with socket.socket(family) as probe:
        probe.settimeout(5)
        if probe.connect_ex(address) != 0:
            unavailable(f"{what} does not answer on {address}: run scripts/services up")


class TimeBounds:
    """Upper bounds on elapsed time and on what depends on it, which only the `timed` twin of a test asserts."""

    def __init__(self, *, checked: bool) -> None:
        self._checked = checked

    def check(self, found: float, most: float, unit: str = "seconds") -> None:
        assert not self._checked or found < most, f"{found:.2f} {unit}, at most {most:g}"


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.timed)], ids=["untimed", "timed"])
def time_bounds(request: pytest.FixtureRequest) -> TimeBounds:
    """Splits a test in two: the gate runs its behaviour, and `nox -s full` its behaviour within its time."""
    return TimeBounds(checked=request.param)


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What a program of ours writes into its log: a JSON document on each line."""
    ours, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    out = io.StringIO()
    configure_logging(json=True, stream=out)
    yield out
    structlog.configure(**ours)
    root.handlers[:], root.level = handlers, level


@pytest.fixture(scope="session")
def services() -> dict[str, str]:
    """Addresses and credentials, as `scripts/services up` wrote them."""
    return read_env_file("services.env", "scripts/services up")


@pytest.fixture(scope="session")
def docker_socket() -> Path:
    """The socket of a Docker Engine that answers."""
    require_listener(socket.AF_UNIX, str(DOCKER_SOCKET), "the Docker Engine")
    return DOCKER_SOCKET


@pytest.fixture(scope="session")
def registry(services: dict[str, str]) -> str:
    """HOST:PORT of the open registry."""
    address = services["FUMEHOOD_TEST_REGISTRY"]
    host, _, port = address.partition(":")
    require_listener(socket.AF_INET, (host, int(port)), "the registry")
    return address


@pytest.fixture(scope="session")
def images(registry: str) -> dict[str, str]:
    """Every test image: its name and its reference by digest."""
    return read_env_file("images.env", "scripts/images")


@pytest.fixture(scope="session")
def base_image(images: dict[str, str]) -> str:
    """bash and coreutils."""
    return images["base"]


@pytest.fixture(scope="session")
def python_image(images: dict[str, str]) -> str:
    """bash, coreutils and python3."""
    return images["python"]
