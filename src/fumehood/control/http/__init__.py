"""The server's HTTP door: workflows and runs, the bridge for workers, health and metrics."""
