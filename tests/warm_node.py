"""`python -m tests.warm_node node …` is `python -m fumehood node …` with a pool out of which every sandbox comes."""

from __future__ import annotations

from unittest.mock import patch

from fumehood.cli import node_process
from fumehood.cli.main import main
from tests.always_warm import AlwaysWarm

if __name__ == "__main__":
    with patch.object(node_process, "PooledDriver", AlwaysWarm):
        main()
