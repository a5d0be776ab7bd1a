"""Which tests the gate runs for which changed paths."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import changes, suites

HOSTILE = "tests/integration/test_hostile.py"
SIGNATURES = "tests/integration/test_signatures.py"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One commit with a page and a source file."""
    git(tmp_path, "init", "--quiet")
    for name in ("docs/page.md", "src/code.py", ".ci/other"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    commit(tmp_path)
    return tmp_path


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True, text=True).stdout


def commit(folder: Path) -> str:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "x")
    return git(folder, "rev-parse", "HEAD").strip()


def test_changes_are_counted_from_the_base(repository: Path) -> None:
    (repository / ".ci" / "base").write_text(git(repository, "rev-parse", "HEAD"))
    (repository / "docs" / "page.md").write_text("2")
    commit(repository)
    (repository / "src" / "new.py").write_text("1")
    git(repository, "mv", "src/code.py", "docs/code.md")
    assert changes.changed(repository) == [".ci/base", "docs/code.md", "docs/page.md", "src/code.py", "src/new.py"]


@pytest.mark.parametrize("base", [None, "", "0" * 40, "side"])
def test_without_a_usable_base_everything_counts_as_changed(repository: Path, base: str | None) -> None:
    if base == "side":  # a commit that is no ancestor
        git(repository, "checkout", "--quiet", "-b", "side")
        (repository / "src" / "code.py").write_text("2")
        base = commit(repository)
        git(repository, "checkout", "--quiet", "-")
    if base is not None:
        (repository / ".ci" / "base").write_text(base)
    paths = changes.changed(repository)
    assert paths is None
    assert not changes.is_docs_only(paths)
    assert changes.touched(paths) == list(changes.AREAS)
    assert changes.ignored(paths) == []


def test_change_of_pages_alone_runs_the_tests_that_name_them() -> None:
    paths = [".ci/base", "docs/howto/run-images.md", "docs/howto/mistakes.md"]
    assert changes.is_docs_only(paths)
    names = {name: words for name, *words in changes.added(paths)}
    assert set(names) == {"site", "stories", "pages"}
    assert names["stories"][-1] == "docs/howto/run-images.md or docs/howto/mistakes.md"
    assert "tests/e2e/test_mistakes.py" in names["pages"]


@pytest.mark.parametrize("path", ["docs/generate.py", "src/fumehood/errors.py", "tests/conftest.py"])
def test_change_of_a_page_and_anything_else_is_not_one_of_pages_alone(path: str) -> None:
    assert not changes.is_docs_only(["README.md", path])


def test_change_in_the_sandbox_runs_the_hostile_suite_and_the_drivers_on_gvisor() -> None:
    added = {name: words for name, *words in changes.added(["src/fumehood/sandbox/docker/plan.py"])}
    assert set(added) == {"changed-hostile", "changed-drivers"}
    assert HOSTILE in added["changed-hostile"]
    assert added["changed-drivers"][-1].startswith("gvisor")


@pytest.mark.parametrize(
    ("path", "area"),
    [
        ("tests/examples/markdown.py", "examples"),
        ("tests/integration/hostile_programs.py", "hostile"),
        ("src/fumehood/control/console/credentials.py", "links"),
        ("src/fumehood/wire/sealed.py", "access"),
        ("warden/src/main.c", "warden"),
        ("contracts/golden/warden/frames.json", "warden"),
        ("contracts/warden-protocol.md", "warden"),
        ("tests/integration/network_probe.py", "networks"),
        ("src/fumehood/images/development.py", "networks"),
        ("tests/changes.py", "hostile"),
        ("src/fumehood/storage/database.py", "pool"),
    ],
)
def test_areas_are_touched_by_their_tests_and_by_what_these_import(path: str, area: str) -> None:
    assert area in changes.touched([path])


@pytest.mark.parametrize(
    ("codes", "passed"),
    [
        ({}, True),
        ({"stories": 5, "pages": 5}, True),  # no test plays the page
        ({"pages": 1}, False),
        ({"changed-hostile": 5}, False),
        ({"changed-hostile": -9}, False),  # killed
        ({"changed-hostile": -9, "site": 0}, False),
    ],
)
def test_what_a_change_adds_must_pass(codes: dict[str, int], passed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "added", lambda paths: [(name, "-q") for name in codes])
    monkeypatch.setattr(suites, "run", lambda name, arguments: codes[name])
    assert (changes.run([]) == 0) == passed


@pytest.mark.parametrize(
    "path",
    ["src/fumehood/images/policy.py", SIGNATURES, "tests/integration/cosign_world.py", "requirements/runtime.txt"],
)
def test_tests_of_an_area_run_if_it_changed(path: str) -> None:
    assert SIGNATURES not in changes.ignored([path])


@pytest.mark.parametrize("path", ["src/fumehood/engine/fold.py", "contracts/sdk-surface.txt"])
def test_tests_of_an_untouched_area_are_ignored(path: str) -> None:
    assert SIGNATURES in changes.ignored([path])
    assert changes.added([path]) == []


def test_every_area_names_files_that_exist() -> None:
    """A renamed file would otherwise fall out of the gate."""
    for area in changes.AREAS.values():
        for test in area.tests:
            assert (changes.ROOT / test).exists(), test
        for source in area.sources:
            assert list(changes.ROOT.glob(source)), source
