"""The SDK's surface: what it exports is pinned, and costs nothing until it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fumehood

NAMES = sorted(fumehood.__all__)


def test_the_public_names_are_told() -> None:
    """Which they are is pinned in `contracts/sdk-surface.txt`."""
    assert len(set(NAMES)) == len(NAMES)
    assert set(NAMES) <= set(dir(fumehood))


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_there(name: str) -> None:
    found = getattr(fumehood, name)
    assert getattr(fumehood, name) is found
    assert name == "__version__" or found.__doc__


def test_no_other_name_is_made_up() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Wroker'"):
        fumehood.Wroker  # noqa: B018


def test_importing_the_package_loads_no_client_of_the_broker() -> None:
    """The command line starts in the time of what it needs."""
    program = "import sys, fumehood; print([name for name in ('nats', 'pydantic', 'httpx') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.strip() == "[]"
