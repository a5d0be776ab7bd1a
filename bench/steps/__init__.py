"""Durable runs a second, beside other libraries for durable work: `python -m bench steps`."""
