"""The node's HTTP door: the Worker API, health and metrics."""
