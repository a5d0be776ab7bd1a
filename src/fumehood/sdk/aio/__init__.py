"""The SDK for programs with an event loop; `sdk/blocking` is derived from it by `scripts/derive-sync`."""
