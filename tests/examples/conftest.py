"""One real `fumehood dev` for all examples, of the built wheel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dev_process import Dev, running_dev, worker_images
from tests.examples import installed

LONGEST_TEST_SECONDS = 1500


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first of them waits until the package is built and installed."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(LONGEST_TEST_SECONDS))


@pytest.fixture(scope="session")
def dev(docker_socket: Path, python_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    folder, images = tmp_path_factory.mktemp("dev"), worker_images(python_image)
    with running_dev(folder, python=installed.python(), env=images) as made:
        yield made
