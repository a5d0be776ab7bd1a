"""The networks of sandboxes: who may talk to whom, decided outside of them. The engine's part: `docker/networks.py`."""
