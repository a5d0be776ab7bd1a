"""Ten typical mistakes, made on the real system: what comes out is what docs/howto/mistakes.md shows, to the letter.

Each names cause and remedy in at most three lines, and no traceback is among them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.dev_process import Dev
from tests.examples.markdown import ROOT, Scene, story
from tests.examples.terminal import Terminal

PAGE = "docs/howto/mistakes.md"
MISTAKES = [
    "No server",
    "A wrong token",
    "An unknown image",
    "A denied image",
    "A timeout",
    "Too little memory",
    "A sandbox that somebody killed",
    "Bad YAML",
    "A port that is taken",
    "No Docker",
]
VOLATILE = re.compile(r"(?<=cmd-)[0-9a-f]{32}|\b[0-9a-f]{32}\b|(?<=\(process )\d+")
"""Ids of runs, commands and requests, and of processes."""
NOTICES = re.compile(
    r"^fumehood: (?:\S+ is (?:queued|starting): |there may be more of std(?:out|err) than is shown here).*\n",
    re.MULTILINE,
)
"""Told after ten seconds, on a slow machine; and of a sandbox whose end came before the end of its output was heard."""
SDK = "mistakes.py"
HEADS = re.compile(r"^[a-zA-Z ]+: \w+Error, [a-z-]+\n", re.MULTILINE)
"""Before each error that it prints."""


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory, dev: Dev) -> Iterator[Terminal]:
    folder = tmp_path_factory.mktemp("terminal")
    (folder / ".local/state").mkdir(parents=True)
    (folder / ".local/state/fumehood").symlink_to(dev.state)
    port = dev.server_url.rpartition(":")[2]
    with Terminal(folder, {"8080": port}, {"FUMEHOOD_URL": dev.server_url}) as made:
        for scene in story(PAGE):
            if scene.file:
                made.save(scene.file, scene.text)
        yield made


def typed() -> list[Scene]:
    return [scene for scene in story(PAGE) if not scene.file]


def comparable(text: str) -> str:
    return VOLATILE.sub("…", NOTICES.sub("", text))


def title(scene: Scene) -> str:
    return next(iter(scene.text.splitlines()))[:60]


def test_all_ten_are_on_the_page() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    found = re.findall(r"^### (.+)$", text, re.MULTILINE)
    assert found == MISTAKES
    assert all(scene.prints for scene in typed())


@pytest.mark.parametrize("scene", typed(), ids=title)
def test_a_mistake_is_told_as_the_page_says(terminal: Terminal, scene: Scene) -> None:
    printed = comparable(terminal.type(scene.text))
    assert printed == comparable(terminal.here(scene.prints or ""))
    assert "Traceback" not in printed


@pytest.mark.parametrize("scene", typed(), ids=title)
def test_it_takes_at_most_three_lines(scene: Scene) -> None:
    """On the command line from `fumehood:` on to the exit code; from Python after the line with its class."""
    said = scene.prints or ""
    if SDK in scene.text:
        errors = HEADS.split(said)[1:]
        assert len(errors) == len(MISTAKES) - 2
    else:
        errors = [said.partition("fumehood: ")[2].partition("exit code")[0]]
    told = [error.rstrip("\n").split("\n") for error in errors]
    assert all(told[0])
    assert all(len(lines) <= 3 for lines in told), told


# --- what dev brings along ---------------------------------------------------------------------------------


def test_the_demo_runs_at_once(terminal: Terminal) -> None:
    shown = terminal.type('fumehood workflow run hello --input \'{"who": "Ada"}\' --wait --json\n')
    found = json.loads(shown)
    assert (found["status"], found["output"]["greeting"]) == ("succeeded", "hello, Ada")
    assert re.fullmatch(r"user \d+, network lo", found["output"]["sandbox"])


def test_what_dev_says_to_try_works(terminal: Terminal, dev: Dev) -> None:
    """But for the shell, which wants a person."""
    said = dev.log.read_text().partition("try, in another terminal:\n")[2].splitlines()
    commands = [line.strip() for line in said if line.startswith("  fumehood ")]
    assert [line.split()[1] for line in commands] == ["run", "workflow", "session", "session"]
    assert terminal.type(f"{commands[0]} 2>&1\n").endswith("hello\n")
    assert "succeeded" in terminal.type(f"{commands[1]}\n")
    assert terminal.type(f"{commands[2]}\n") == "lab\n"
    terminal.type("fumehood session rm lab\n")


def test_an_edit_of_the_policy_counts_at_once(terminal: Terminal, dev: Dev) -> None:
    policy = dev.state / "policy.yaml"
    before, draft = policy.read_text(), policy.with_suffix(".new")
    run = "fumehood run 127.0.0.1:5055/fumehood/base:1 --memory 256 -- echo back 2>&1 || true\n"
    try:
        draft.write_text(f"{before}limits: {{memory_mib: 128}}\n")
        draft.replace(policy)
        assert "memory_mib 256 is above what the policy dev allows: 128 MiB" in terminal.type(run)
    finally:
        draft.write_text(before)
        draft.replace(policy)
    assert comparable(terminal.type(run)) == "back\n"
