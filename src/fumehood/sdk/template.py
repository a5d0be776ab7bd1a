"""`Template`: what sandboxes are made from, when an image alone does not say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fumehood.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class Template:
    """An image, how large its sandboxes are and what they reach, files that are put into them, and commands that are
    run in them first. `Sandbox.create` makes a sandbox of it: all of it, or none. A setup command that fails removes
    the sandbox and raises `SetupFailedError`, with its output.

        from fumehood import Template

        template = Template(
            "python:3.12-slim",
            env={"GREETING": "hello"},
            files={"who.txt": "you"},
            setup=["tr a-z A-Z < who.txt > WHO.txt"],
        )
        with Sandbox.create(template=template) as sb:
            assert sb.commands.run("echo $GREETING $(cat WHO.txt)").stdout == "hello YOU\\n"
    """

    image: str | None = None
    """None: the worker's own."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Of every command; no secrets."""
    memory_mib: int | None = None
    cpu_millis: int | None = None
    network: str | None = None
    """`deny-all` unless said otherwise."""
    lease_seconds: int = 300
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    """By path; those that do not begin with a slash are beneath `/workspace`."""
    setup: Sequence[str | Sequence[str]] = ()
    """Commands, one after the other: words for the shell, or a program and its arguments."""
    setup_timeout: float = 600.0
    """Seconds that each of them may take."""

    def __post_init__(self) -> None:
        if isinstance(self.setup, str):
            raise InvalidRequestError("setup is a list of commands, not one text").advise('write setup=["…"]')

    def wish(self, **more: Any) -> dict[str, Any]:
        """The request that makes a sandbox of it; what is said beside it wins, and variables are added."""
        own = {
            "image": self.image,
            "memory_mib": self.memory_mib,
            "cpu_millis": self.cpu_millis,
            "network": self.network,
            "lease_seconds": self.lease_seconds,
        }
        env = {**self.env, **(more.pop("env", None) or {})}
        said = {**own, **{name: value for name, value in more.items() if value is not None}, "env": env or None}
        return {name: value for name, value in said.items() if value is not None}
