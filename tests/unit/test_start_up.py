"""What commands load before they do anything: each only what it needs."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HELP_RATIO = 2.0
"""Processor time of the help to that of importing what Typer draws it with. Measured: 0.9 to 1.4."""

COMMANDS = {
    "aiohttp", "cel", "click", "cryptography", "fastapi", "grpc", "httpx", "mcp", "nats", "opentelemetry",
    "prometheus_client", "prompt_toolkit", "starlette", "structlog", "uvicorn", "uvloop", "yaml",
}  # fmt: skip
"""Packages that only a running command needs."""
ROOT = {*COMMANDS, "importlib.metadata", "pydantic"}
"""The root's help needs no values of options either, which Typer checks with Pydantic."""
PROCESSES = {"aiohttp", "fastapi", "grpc", "mcp", "nats", "opentelemetry", "prompt_toolkit"}
"""`dev` starts the processes that need these."""


def loaded_of(modules: set[str], program: str) -> str:
    code = textwrap.dedent(program) + f"print([name for name in sorted({modules!r}) if name in sys.modules])\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    return done.stdout.splitlines()[-1]


def loaded_by_help(modules: set[str], *words: str) -> str:
    program = f"""\
        import sys
        from fumehood.cli.main import main
        sys.argv = ["fumehood", *{words!r}, "--help"]
        try:
            main()
        except SystemExit as ended:
            assert ended.code == 0
        """
    return loaded_of(modules, program)


@pytest.mark.parametrize(
    ("words", "modules"),
    [((), ROOT), (("node",), COMMANDS), (("server",), COMMANDS), (("dev",), PROCESSES)],
    ids=["root", "node", "server", "dev"],
)
def test_help_does_not_load_what_only_the_command_needs(words: tuple[str, ...], modules: set[str]) -> None:
    assert loaded_by_help(modules, *words) == "[]"


@pytest.mark.parametrize(
    ("process", "modules"),
    [
        ("node", {"cel", "cryptography.x509", "grpc", "mcp", "prompt_toolkit", "yaml", "fumehood.images.policy_file"}),
        ("worker", {"cel", "cryptography.x509", "fastapi", "mcp", "nats", "prompt_toolkit", "yaml"}),
        ("server", {"cryptography.x509", "mcp"}),
    ],
    ids=["node", "worker", "server"],
)
def test_a_process_does_not_load_what_it_may_never_need(process: str, modules: set[str]) -> None:
    """A policy file, for one, is read only where the settings name it."""
    assert loaded_of(modules, f"import sys, fumehood.cli.{process}_process\n") == "[]"


@pytest.mark.timed
def test_help_takes_little_processor_time(tmp_path: Path) -> None:
    """The best of five interleaved runs each; one before them compiles the modules."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(tmp_path)

    def seconds_of(*words: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *words], env=env, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    commands = (("-m", "fumehood", "--help"), ("-c", "import typer.rich_utils"))
    ours, bare = zip(*[[seconds_of(*command) for command in commands] for _ in range(6)][1:], strict=True)
    assert min(ours) <= HELP_RATIO * min(bare), (ours, bare)
