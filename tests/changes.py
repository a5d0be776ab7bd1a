"""What the gate tests for a change, from the paths that differ from the commit named in `.ci/base`.

    python -m tests.changes kind       prints `docs` if only pages changed, else `code`
    python -m tests.changes ignored    prints `--ignore=…` for tests of areas that the change does not touch
    python -m tests.changes untouched  prints the names of the areas that the change does not touch
    python -m tests.changes run        runs what the change adds to the gate

Without a base, or if it is no ancestor of HEAD, every path counts as changed.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from tests import suites

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = ("docs/*.md", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "mkdocs.yml", ".ci/base")
EVERYWHERE: Final = (
    "requirements/*",
    "pyproject.toml",
    "scripts/*",
    "noxfile.py",
    ".ci/run",
    "tests/changes.py",
    "tests/suites.py",
)
"""A change of these touches every area. One of `contracts/` touches the warden's at most: every gate compares the other
sources with them."""
STORIES: Final = "tests/examples/test_stories.py"
OURS: Final = "tests/unit/test_changes.py"
NO_TESTS: Final = 5
"""Pytest's exit code if no test was selected."""
SITE: Final = ("tests/examples/test_docs.py", "tests/examples/test_site.py")


@dataclass(frozen=True)
class Area:
    """Tests that the gate runs only if the sources they guard, or they themselves, changed.

    With `marks` they are outside the gate, and a change of their sources adds them. Without, they are in the gate, and
    `.ci/run` ignores them if nothing changed that they or their helpers import, either.
    """

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    marks: str | None = None


_SANDBOX: Final = ("src/fumehood/sandbox/*", "warden/*", "hatch_build.py")
AREAS: Final = {
    "hostile": Area(
        (*_SANDBOX, "tests/integration/hostile_*.py"),
        (
            "tests/integration/test_hostile.py",
            "tests/integration/test_hostile_abi.py",
            "tests/integration/test_hostile_files.py",
            "tests/integration/test_doctor_attack.py",
            "tests/integration/test_sandbox_jobs_hostile.py",
        ),
        "hostile and not (gvisor or timed or record)",
    ),
    "drivers": Area(
        _SANDBOX,
        (
            "tests/conformance/test_drivers.py",
            "tests/conformance/test_drivers_for_runs.py",
            "tests/conformance/test_drivers_for_sessions.py",
            "tests/conformance/test_drivers_for_waiting.py",
        ),
        "gvisor and not (timed or record)",
    ),
    "images": Area(
        ("src/fumehood/images/*",),
        (
            "tests/integration/test_admission_command.py",
            "tests/integration/test_admission_policy.py",
            "tests/integration/test_signatures.py",
            "tests/integration/test_signatures_keyless.py",
        ),
    ),
    "warden": Area(
        ("warden/*", "hatch_build.py", "src/fumehood/sandbox/warden/*", "contracts/*warden*"),
        ("tests/unit/test_warden_binary.py", "tests/unit/test_warden_files.py"),
    ),
    "pool": Area(
        (*_SANDBOX, "src/fumehood/storage/*"),
        ("tests/unit/test_pool_interpreter.py", "tests/integration/test_pool_real.py"),
    ),
    "networks": Area(
        (*_SANDBOX, "src/fumehood/images/*", "tests/integration/network_*.py"),
        ("tests/integration/test_network_profiles.py", "tests/integration/test_network_keeping.py"),
    ),
    "repositories": Area(
        ("src/fumehood/jobs/*", "src/fumehood/node/jobs/*"), ("tests/integration/test_job_repositories.py",)
    ),
    "access": Area(
        ("src/fumehood/broker/*", "src/fumehood/control/console/*"),
        (
            "tests/faults/test_console_access.py",
            "tests/faults/test_node_access.py",
            "tests/faults/test_provider_access.py",
        ),
    ),
    "links": Area(
        (
            "src/fumehood/node/rpc/*",
            "src/fumehood/node/console/*",
            "src/fumehood/control/rpc/*",
            "src/fumehood/control/console/*",
            "src/fumehood/wire/console/*",
        ),
        (
            "tests/integration/test_console_rpc.py",
            "tests/integration/test_worker_link.py",
            "tests/integration/test_worker_process.py",
        ),
    ),
    "web": Area(
        (
            "web/*",
            "hatch_build.py",
            "contracts/openapi/*",
            "src/fumehood/control/*",
            "src/fumehood/door/*",
            "src/fumehood/node/console/*",
            "src/fumehood/sandbox/sessions/*",
        ),
        tuple(sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/e2e/test_web_*.py"))),
    ),
    "examples": Area(
        ("examples/*", "src/fumehood/cli/*", "src/fumehood/sdk/*", "tests/examples/*"),
        ("tests/examples",),
        "example and not (timed or quarantine or record)",
    ),
}


def changed(root: Path = ROOT) -> list[str] | None:
    """The paths that differ from the base; None if there is no usable base."""
    try:
        base = (root / ".ci" / "base").read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    git = ["git", "-C", str(root)]
    ancestor = subprocess.run([*git, "merge-base", "--is-ancestor", base, "HEAD"], check=False, capture_output=True)
    if not base or ancestor.returncode != 0:
        return None
    names = subprocess.run(
        [*git, "diff", "--name-only", "--no-renames", "-z", base], check=True, capture_output=True
    ).stdout
    new = subprocess.run([*git, "ls-files", "-o", "-z", "--exclude-standard"], check=True, capture_output=True).stdout
    return sorted(filter(None, (names + new).decode().split("\0")))


def _matches(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def is_docs_only(paths: Sequence[str] | None) -> bool:
    return bool(paths) and all(_matches(path, PAGES) for path in paths or ())


def touched(paths: Sequence[str] | None) -> list[str]:
    """The areas that a change touches: by their sources, their tests, or what these import."""
    if paths is None or any(_matches(path, EVERYWHERE) for path in paths):
        return list(AREAS)
    return [
        name
        for name, area in AREAS.items()
        if any(_matches(path, area.sources + area.tests) for path in paths)
        or (area.marks is None and not imports(area.tests).isdisjoint(paths))
    ]


def imports(tests: Sequence[str]) -> set[str]:
    """The modules of the project that these tests import, directly or through their helpers and `conftest.py`."""
    found: set[str] = set()
    waiting = [ROOT / test for test in tests]
    while waiting:
        module = waiting.pop()
        path = str(module.relative_to(ROOT))
        if path in found:
            continue
        found.add(path)
        if path.startswith("tests/"):
            waiting += filter(
                Path.exists, (folder / "conftest.py" for folder in module.parents if ROOT in folder.parents)
            )
            waiting += _imported(module)
    return found


def _imported(module: Path) -> list[Path]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update((node.module, *(f"{node.module}.{alias.name}" for alias in node.names)))
    places = {"tests": ROOT, "fumehood": ROOT / "src"}
    bases = [places[name.split(".")[0]].joinpath(*name.split(".")) for name in names if name.split(".")[0] in places]
    return [path for base in bases for path in (base.with_suffix(".py"), base / "__init__.py") if path.exists()]


def ignored(paths: Sequence[str] | None) -> list[str]:
    """The tests that would be in the gate, of areas that a change does not touch."""
    quiet = AREAS.keys() - set(touched(paths))
    return sorted(test for name in quiet if AREAS[name].marks is None for test in AREAS[name].tests)


def modules_naming(pages: Sequence[str]) -> list[str]:
    """The test modules that name one of these pages, besides those of the site."""
    names = {f'"{name}"' for page in pages for name in (page, Path(page).name)}
    modules = sorted((ROOT / "tests").rglob("test_*.py"))
    naming = [module for module in modules if any(name in module.read_text(encoding="utf-8") for name in names)]
    return [name for module in naming if (name := str(module.relative_to(ROOT))) not in (*SITE, OURS)]


def added(paths: Sequence[str] | None) -> list[tuple[str, ...]]:
    """The runs of `tests.suites` that a change adds: touched areas outside the gate, and changed pages."""
    areas = [name for name in touched(paths) if AREAS[name].marks]
    runs = [(f"changed-{name}", *AREAS[name].tests, "-m", str(AREAS[name].marks)) for name in areas]
    pages = [path for path in paths or () if _matches(path, PAGES) and path.endswith(".md")]
    docs_only = is_docs_only(paths)
    if docs_only:
        runs.append(("site", *SITE))
    if pages and "examples" not in areas:
        marks = "not (timed or quarantine or record)" if docs_only else str(AREAS["examples"].marks)
        modules = modules_naming(pages)
        if STORIES in modules:
            modules.remove(STORIES)
            runs.append(("stories", STORIES, "-m", marks, "-k", " or ".join(pages)))
        if modules:
            runs.append(("pages", *modules, "-m", marks))
    return runs


def run(paths: Sequence[str] | None) -> int:
    """0 if everything that is added passes. No test has to play a changed page; an area without tests is an error."""
    codes = [(name, suites.run(name, arguments)) for name, *arguments in added(paths)]
    return int(any(code != 0 and not (code == NO_TESTS and name in ("stories", "pages")) for name, code in codes))


if __name__ == "__main__":
    paths = changed()
    match sys.argv[1:]:
        case ["kind"]:
            print("docs" if is_docs_only(paths) else "code")
        case ["ignored"]:
            print(" ".join(f"--ignore={test}" for test in ignored(paths)))
        case ["untouched"]:
            print(*(AREAS.keys() - set(touched(paths))))
        case ["run"]:
            sys.exit(run(paths))
        case _:
            sys.exit(__doc__)
