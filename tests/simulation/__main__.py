"""`python -m tests.simulation SEED`: one world again, exactly as it was."""

from __future__ import annotations

import asyncio
import sys

from tests.simulation.world import live

print(asyncio.run(live(int(sys.argv[1]))))
