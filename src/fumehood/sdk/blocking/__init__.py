# Made by scripts/derive-sync from sdk/aio/__init__.py; edit that, not this.
"""The SDK for programs with an event loop; `sdk/blocking` is derived from it by `scripts/derive-sync`."""
