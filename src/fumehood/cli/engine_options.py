"""The engine as the settings of a process say it: of a node, of a worker that dialled in, of a provider."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from fumehood.cli.admission import Admitting
from fumehood.sandbox.docker import DockerOptions


class EngineSettings(Protocol):
    """What all of them are told about the engine."""

    @property
    def docker_socket(self) -> Path: ...

    @property
    def runtime(self) -> str | None: ...

    @property
    def dns_upstreams(self) -> tuple[str, ...]: ...


def docker_options(
    settings: EngineSettings, node_id: str, state_dir: Path, images: Admitting, **more: Any
) -> DockerOptions:
    """`more` are options of which only some have a setting."""
    return DockerOptions(
        node_id=node_id,
        state_dir=state_dir,
        socket=settings.docker_socket,
        runtime=settings.runtime,
        credentials=images.engine_auth,
        egress=lambda: images.admission.policy.egress,
        dns_upstreams=settings.dns_upstreams,
        **more,
    )
