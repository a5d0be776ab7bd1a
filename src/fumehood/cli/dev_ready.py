"""What `fumehood dev` says once it is ready: where everything is, and what to type next."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from fumehood.cli.dev_demo import NAME, Demo
from fumehood.cli.dev_policy import DevPolicy
from fumehood.cli.processes import HOST
from fumehood.sdk.own_dev import STATE, WORD
from fumehood.settings.token_file import write_private


@dataclass(frozen=True, slots=True)
class Ready:
    """All that there is to tell."""

    folder: Path
    facts: Mapping[str, Any]
    """What the ready file says."""
    token_files: Sequence[Path]
    """Where tokens lie; those of the configuration are not among them."""
    policy: DevPolicy | None = None
    """None: every process was given one by somebody else."""
    demo: Demo | None = None
    """None without a node: nothing could run it."""

    def tell(self, console: Console, ready_file: Path | None) -> None:
        pids = self.facts["pids"]
        word = {"url": self.facts["server_url"], "pid": pids["server"]}
        word |= {"nats_url": self._nats_url(), "nats_pid": pids["nats"]}
        write_private(self.folder / WORD, json.dumps(word))
        if ready_file is not None:
            write_private(ready_file, json.dumps(self.facts))
        first = "[bold green]ready[/]"
        for name, value in self._places():
            console.print(f"{first:5}  {name:<11} {escape(value)}", soft_wrap=True, highlight=False)
            first = ""
        for words in self._notices():
            console.print(f"[yellow]note:[/] {escape(words)}", soft_wrap=True, highlight=False)
        console.print("\ntry, in another terminal:")
        for words in self.next_commands():
            console.print(f"  {escape(words)}", soft_wrap=True, highlight=False)

    def _places(self) -> Iterator[tuple[str, str]]:
        facts = self.facts
        yield "API", facts["server_url"]
        token = self._own_token()
        yield "web", f"{facts['server_url']}/ui" + (f", with the key in {token}" if token is not None else "")
        if "node_url" in facts:
            yield "Worker API", facts["node_url"]
        yield "console", facts["grpc_target"]
        if "providers" in facts:
            yield "providers", ", ".join(facts["providers"]) or "none: pip install 'fumehood[jobs]'"
        yield "NATS", self._nats_url()
        yield "tokens in", token_places(self.folder, self.token_files, len(facts["tokens"]))
        if self.policy is not None:
            yield "policy", f"{self.policy.path}{' (edited)' if self.policy.edited else ''}"
        yield "stop with", "Ctrl-C"

    def _nats_url(self) -> str:
        """Without the worker's password."""
        return f"nats://{HOST}:{self.facts['nats_url'].rpartition(':')[2]}"

    def _notices(self) -> Iterator[str]:
        if self.policy is not None and self.policy.ignored:
            yield (
                f"{self.policy.path} was edited, and counts alone: unsigned_public_images and [[registries]] admit or "
                "deny nothing beside it"
            )
        if self.demo is not None and self.demo.trouble:
            yield f"the image of the demo cannot be had ({self.demo.image}): {self.demo.trouble}"
        elif self.demo is not None and not self.demo.applied:
            yield f"the workflow {NAME} is your own, and was left as it is"

    def next_commands(self) -> Iterator[str]:
        """As they can be typed; with where the server is, where the command line would not find it by itself."""
        if self.folder.resolve() != STATE.expanduser().resolve() or not self._own_token():
            token = self._own_token() or Path("FILE_WITH_THE_TOKEN")
            yield f"export FUMEHOOD_URL={self.facts['server_url']} FUMEHOOD_API_KEY_FILE={shlex.quote(str(token))}"
        if self.demo is None:
            yield "fumehood worker ls"
            yield "fumehood workflow --help"
            return
        yield f"fumehood run {self.demo.image} -- echo hello"
        yield f"fumehood workflow run {NAME} --watch"
        yield f"fumehood session new --name lab {self.demo.image}"
        yield "fumehood session shell lab"

    def _own_token(self) -> Path | None:
        file = self.folder / "api.token"
        return file if file in self.token_files else None


def token_places(folder: Path, files: Sequence[Path], many: int) -> str:
    """Ours lie together; one that somebody configured is where that was said."""
    own = [file for file in files if file.parent == folder]
    places = [f"{folder}/*.token"] if own else []
    places += [str(file) for file in files if file not in own]
    return ", ".join(places + (["your configuration"] if len(files) < many else []))
