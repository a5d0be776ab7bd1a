"""Sandboxes on a Docker Engine: the only home of its API and of `aiohttp`."""

from fumehood.sandbox.docker.driver import DockerDriver
from fumehood.sandbox.docker.options import DockerOptions

__all__ = ["DockerDriver", "DockerOptions"]
