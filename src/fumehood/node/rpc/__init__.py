"""The worker's end of the console's stream. Nothing else of a node speaks gRPC."""
