"""House rules that no linter knows."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

SOURCE = Path(__file__).parents[2] / "src" / "fumehood"
READERS = {"environ", "environb", "getenv", "getenvb"}


def reads_of_the_environment(tree: ast.AST) -> Iterator[int]:
    """Lines that touch the process's environment: `os.environ` and its kin, however imported, and Typer's `envvar`."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr=name, lineno=line) if name in READERS:
                yield line
            case ast.ImportFrom(module="os", names=names, lineno=line) if READERS & {alias.name for alias in names}:
                yield line
            case ast.keyword(arg="envvar", lineno=line):
                yield line


def test_only_settings_reads_the_environment() -> None:
    """Every setting is found in one module, with its unit, its default and its reason."""
    found = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path != SOURCE / "settings" / "base.py"
        for line in reads_of_the_environment(ast.parse(path.read_text()))
    ]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos.environ['A']",
        "import os\nos.getenv('A')",
        "from os import environ",
        "from os import environb as e",
        "option(envvar='A')",
    ],
)
def test_the_rule_sees_every_way_to_read_it(code: str) -> None:
    """The check above is worth something only if it would notice."""
    assert list(reads_of_the_environment(ast.parse(code)))


def test_profiles_of_hypothesis_have_no_deadline_and_the_gate_no_chance() -> None:
    """A busy machine is not a counterexample, and a gate that tries new examples may fail without a change."""
    for name, derandomized in {"gate": True, "full": False}.items():
        profile = settings.get_profile(name)
        assert profile.deadline is None
        assert HealthCheck.too_slow in profile.suppress_health_check
        assert profile.derandomize is derandomized


def test_a_suite_in_the_background_can_interrupt_what_it_starts() -> None:
    """Of a process that was started as a shell starts one in the background."""
    asleep = "import sys, time; print('begun', flush=True); time.sleep(60)"
    code = (
        "import signal, sys\n"
        "from subprocess import PIPE, Popen\n"
        "assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN\n"
        "import tests.conftest\n"
        f"child = Popen([sys.executable, '-c', {asleep!r}], stdout=PIPE, stderr=PIPE)\n"
        "child.stdout.readline()\n"
        "child.send_signal(signal.SIGINT)\n"
        "child.communicate(timeout=50)\n"
        "print(child.returncode)\n"
    )
    ignoring = ["sh", "-c", 'trap "" INT; exec "$0" -c "$1"', sys.executable, code]
    done = subprocess.run(ignoring, cwd=SOURCE.parents[1], capture_output=True, timeout=100, check=True)
    assert int(done.stdout) == -signal.SIGINT
