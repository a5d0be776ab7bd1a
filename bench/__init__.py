"""Fumehood beside the bare engine: `python -m bench`. What is measured, and how to read it, is in README.md."""
