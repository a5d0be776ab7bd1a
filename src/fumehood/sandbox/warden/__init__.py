"""The node's end of the warden: codec, client and the binary itself. See `contracts/warden-protocol.md`."""
