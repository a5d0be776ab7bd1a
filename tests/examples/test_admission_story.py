"""The page about the policy file, as somebody reads it: with a registry, an image and the real cosign."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from fumehood.images.policy_schema import PolicyDocument
from fumehood.wire.yaml_lines import YamlDocument
from tests.examples import installed
from tests.examples.markdown import ROOT, story
from tests.examples.terminal import Terminal
from tests.examples.test_stories import play
from tests.integration.cosign_world import Repository

PAGE = "docs/howto/admit-images.md"


@pytest.fixture
def image(registry: str) -> Iterator[str]:
    """A repository of this test's own with an image under the tag 1."""
    with httpx.Client(base_url=f"http://{registry}", trust_env=False) as client:
        repository = Repository(client, registry)
        repository.image("1")
        yield repository.name


@pytest.mark.example
def test_the_page_works_as_written(tmp_path: Path, services: dict[str, str], image: str) -> None:
    """Only the repository is another one than a reader's."""
    folder = image.rpartition("/")[0]
    places = {"registry.example/team/tool": image, "registry.example/team": folder}
    cosign = Path(services["FUMEHOOD_TEST_COSIGN"]).parent
    path = {"PATH": f"{installed.bin_folder()}:{cosign}:{os.environ['PATH']}"}
    with Terminal(tmp_path, places, path) as terminal:
        play(story(PAGE), terminal)


def test_every_yaml_of_the_page_is_one() -> None:
    """The parts that are not typed in are parts of a policy, too."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    found = re.findall(r"^```yaml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(found) == 3
    for yaml in found:
        head = "" if yaml.startswith("version:") else f"version: 1\nname: {uuid.uuid4().hex}\nrules: []\n"
        PolicyDocument.model_validate(YamlDocument(head + yaml).value)
