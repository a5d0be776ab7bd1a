"""The engine: what a workflow means. Pure functions: no await, no clock, no randomness, no broker."""
