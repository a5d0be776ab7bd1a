"""The demo of `fumehood dev`: a workflow of sandboxes that can be run at once, with no worker of one's own.

Its image is the first that can really be had: of this machine's registry, or else the one that the worker has by
default. Where neither can be had, that is said, with the reason.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fumehood.cli.client import Api, ApiError
from fumehood.cli.exits import CommandError
from fumehood.cli.image import decided
from fumehood.cli.show import plain
from fumehood.settings import NodeSettings
from fumehood.settings.token_file import write_private

NAME: Final = "hello"
FILE: Final = "hello.yaml"
"""For whoever wants to see how it is made: what was applied."""
APPLIED: Final = "hello.applied.json"
"""The digest of the definition that we applied: another one is somebody's own, and is left alone."""
IMAGES: Final = ("127.0.0.1:5055/fumehood/base:1", "docker.io/library/python:slim")
ASK_SECONDS: Final = 5.0
PATH: Final = f"/v1/workflows/{NAME}"

_DEFINITION: Final = """\
# The demo of `fumehood dev`: three sandboxes, and a person where the input asks for one.
#   fumehood workflow run hello --watch
#   fumehood workflow run hello --input '{{"who": "Ada", "ask": true}}'     then: fumehood runs approve RUN ask
name: hello
description: Greets, looks around in a sandbox, and reports; the demo of `fumehood dev`
deadline: 15m
steps:
  - id: greet
    with: "input != null && has(input.who) ? input.who : 'world'"
    sandbox:                                   # what `with` gives is JSON on its standard input
      image: {image}
      command: [sh, -c, 'printf "hello, %s" "$(tr -d \\")"']
      must_succeed: true
  - id: look
    sandbox:
      image: {image}
      command: [sh, -c, 'printf "user %s, network %s" "$(id -u)" "$(sed -n "3s/:.*//p" /proc/net/dev | tr -d " ")"']
      must_succeed: true
  - id: ask
    needs: [greet, look]
    when: "input != null && has(input.ask) && input.ask"
    approval: {{message: "Shall it be told?", timeout: 10m}}
  - id: report
    needs: [greet, look, ask]
    with: {{said: steps.greet.output.stdout, seen: steps.look.output.stdout}}
    sandbox:
      image: {image}
      command: [sh, -c, 'cat']
      must_succeed: true
output: {{greeting: steps.greet.output.stdout, sandbox: steps.look.output.stdout}}
"""


@dataclass(frozen=True, slots=True)
class Demo:
    """What became of it."""

    image: str
    trouble: str = ""
    """Why its image cannot be had now; the workflow is there all the same, for when it can."""
    applied: bool = True
    """False: somebody's own workflow has the name."""


def definition(image: str) -> str:
    return _DEFINITION.format(image=image)


def prepare(folder: Path, policy: Path | None, url: str, token: str) -> Demo:
    """Apply the workflow, and find out whether its image is to be had. `policy`: by which file of ours the node
    decides, if by one."""
    image, trouble = found(policy)
    write_private(folder / FILE, definition(image).rstrip("\n"))
    api = Api(url, token)
    try:
        applied = _apply(api, folder, definition(image))
    except CommandError as error:
        return Demo(image, plain(error.detail), applied=False)
    finally:
        api.close()
    return Demo(image, trouble, applied)


def found(policy: Path | None, images: Sequence[str] = ()) -> tuple[str, str]:
    """An image that would be admitted now, or the last one and why it would not."""
    settings = NodeSettings.load(policy_file=policy)
    image = trouble = ""
    for image in images or IMAGES:
        trouble = asyncio.run(_trouble(settings, image))
        if not trouble:
            break
    return image, trouble


async def _trouble(settings: NodeSettings, image: str) -> str:
    try:
        async with asyncio.timeout(ASK_SECONDS):
            evidence, unknown = await decided(settings, image)
    except TimeoutError:
        return f"its registry gave no answer within {ASK_SECONDS:g} s"
    denied = unknown or evidence["denial_reason"] is not None
    return plain(str(evidence.get("detail") or evidence["denial_reason"])) if denied else ""


def _apply(api: Api, folder: Path, text: str) -> bool:
    """Not over a workflow that somebody else made of it."""
    current = _current(api)
    if current is not None and current["digest"] != _remembered(folder):
        return False
    made: Mapping[str, Any] = api.put_text(PATH, text.encode(), "application/yaml")
    write_private(folder / APPLIED, json.dumps({"digest": made["digest"]}))
    return True


def _current(api: Api) -> Mapping[str, Any] | None:
    try:
        found: Mapping[str, Any] = api.get(PATH)
    except ApiError as error:
        if error.status != 404:
            raise
        return None
    return found


def _remembered(folder: Path) -> str | None:
    try:
        return str(json.loads((folder / APPLIED).read_text(encoding="utf-8"))["digest"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
