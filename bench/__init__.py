"""Fumehood beside the bare engine: `python -m bench`. What is measured, and how to read it, is in README.md."""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
"""Read when gRPC is imported. Its handlers can crash a process that is started beside a stream, before its program
runs."""
