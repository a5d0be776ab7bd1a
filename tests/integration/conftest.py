"""What the suites with real parts share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import unavailable
from tests.integration.cosign_world import Cosign, Repository


@pytest.fixture
def cosign(services: dict[str, str], tmp_path: Path) -> Cosign:
    """The real binary, with a home that no other test uses."""
    return make_cosign(services, tmp_path)


def make_cosign(services: dict[str, str], home: Path) -> Cosign:
    binary = services.get("FUMEHOOD_TEST_COSIGN")
    if not binary:
        unavailable("no cosign: run scripts/services up")
    return Cosign(Path(binary), home)


@pytest.fixture
def repository(registry: str) -> Iterator[Repository]:
    """A repository of the open registry that no other test uses."""
    with httpx.Client(base_url=f"http://{registry}", trust_env=False) as client:
        yield Repository(client, registry)
