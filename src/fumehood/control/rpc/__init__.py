"""The gRPC door of a server: where workers dial in."""
