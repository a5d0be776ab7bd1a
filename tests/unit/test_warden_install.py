"""The warden's binary on a machine that has none yet."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fumehood.sandbox.warden.binary import bundled, install


def test_the_first_sandboxes_may_come_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        for number in range(10):
            folder = tmp_path / str(number)
            (found,) = set(threads.map(lambda _: install(folder), range(8)))  # noqa: B023 - it is over before the next
            assert found.read_bytes() == bundled()
            assert list(found.parent.iterdir()) == [found]
