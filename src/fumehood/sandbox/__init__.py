"""Sandboxes: isolated containers in which other people's code runs under our warden."""
