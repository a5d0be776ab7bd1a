"""Images that differ from a test image only in the command that they declare."""

from __future__ import annotations

from fumehood.sandbox.spec import ImageCommand
from tests.pushed_image import Document, Push, push_changed


def push_declaring(reference: str, declared: ImageCommand) -> str:
    """Its reference. The same declaration always makes the same digest."""

    def declare(manifest: Document, config: Document, push: Push) -> None:
        config["config"] |= {"Entrypoint": list(declared.entrypoint) or None, "Cmd": list(declared.cmd) or None}

    return push_changed(reference, declare)
