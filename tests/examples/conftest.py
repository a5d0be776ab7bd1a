"""One real `fumehood dev` for all examples, of the built wheel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.dev_process import Dev, running_dev
from tests.examples import installed

LONGEST_TEST_SECONDS = 1500


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first of them waits until the package is built and installed."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(LONGEST_TEST_SECONDS))


@pytest.fixture(scope="session")
def dev(docker_socket: Path, images: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    with running_dev(tmp_path_factory.mktemp("dev"), python=installed.python()) as made:
        yield made
