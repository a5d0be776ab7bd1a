"""What a request means before anything runs: places, globs, sources, previews, and where its image is looked for."""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import re
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.errors import (
    ConfigurationError,
    DigestResolutionError,
    ImageDeniedError,
    ImageNotFoundError,
    RegistryUnavailableError,
    WardenProtocolError,
)
from fumehood.images import Admission, DevelopmentPolicy
from fumehood.images.admission import SignatureStatus
from fumehood.images.reference import ImageReference
from fumehood.images.signatures import Verification
from fumehood.jobs.types.sandbox_run import PREVIEW_BYTES, SandboxRunRequest
from fumehood.node.jobs.sandbox.asked import Asked
from fumehood.node.jobs.sandbox.commands import exit_code_of
from fumehood.node.jobs.sandbox.globs import Globs
from fumehood.node.jobs.sandbox.previews import Printed, Room
from fumehood.node.jobs.sandbox.refused import RefusedError
from fumehood.node.jobs.sandbox.repo.tree import check_path, check_together
from fumehood.node.jobs.sandbox.sources import Bundle, GitUrl, LocalPath, check_ref, parse_source
from fumehood.sandbox.capture import STDERR, STDOUT
from fumehood.sandbox.spec import End, Outcome, Stage, StreamEnd
from fumehood.sandbox.warden.outcome import from_ms
from tests.unit.policy_world import GOOD, Says, policy

DIGEST = "sha256:" + "ab" * 32
NAMES = st.text("ab.*?[]-", min_size=1, max_size=4)


def request(**asked: Any) -> SandboxRunRequest:
    return SandboxRunRequest.model_validate(
        {"sandbox": {"image_digest": DIGEST, **asked.pop("sandbox", {})}, "commands": [{"cmd": "true"}], **asked}
    )


# --- places ------------------------------------------------------------------------------------------------


def test_limits_are_the_requests_own() -> None:
    resources = {"memory_mb": 64, "cpus": 1.5, "disk_mb": 3, "timeout_secs": 7}
    asked = Asked.of(request(sandbox={"resources": resources}))
    mib = 1024 * 1024
    assert (asked.limits.memory_bytes, asked.limits.cpu_millis) == (64 * mib, 1500)
    assert (asked.limits.workspace_bytes, asked.limits.file_bytes, asked.room) == (3 * mib, 3 * mib, 3 * mib)
    assert (asked.wish.memory_mib, asked.wish.cpu_millis, asked.wish.timeout_seconds) == (64, 1500, 7)


@given(mount=st.text("/.abtmpworksce", max_size=20), workdir=st.text("/.abworkspce", min_size=1, max_size=20))
def test_every_place_is_beneath_the_mount_and_that_can_be_written(mount: str, workdir: str) -> None:
    """Whatever is written: it is refused, or lies where it should."""
    try:
        asked = Asked.of(request(repo={"mount_path": mount or "/"}, commands=[{"cmd": "x", "workdir": workdir}]))
    except RefusedError:
        return
    top, inner = PurePosixPath(asked.mount), PurePosixPath(asked.workdirs[0])
    assert top.is_relative_to("/workspace") or top.is_relative_to("/tmp")
    assert inner.is_relative_to(top)
    assert ".." not in inner.parts
    assert not asked.mount.startswith("//")


# --- globs -------------------------------------------------------------------------------------------------


def taken(glob: str, path: str) -> bool:
    globs = Globs((glob,))
    state = globs.start()
    *folders, name = path.split("/")
    for folder in folders:
        state = globs.enter(state, folder)
        if not state:
            return False
    return globs.takes(state, name)


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("a", ["a"], ["b", "a/a", "A"]),
        ("*", ["a", ".a"], ["a/b"]),
        ("*.txt", ["a.txt", ".txt"], ["a.txtx", "a/b.txt"]),
        ("**", ["a", "a/b/c"], []),
        ("**/*.py", ["a.py", "a/b.py", "a/b/c.py"], ["a.pyc"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "b/a"]),
        ("a/**/z", ["a/z", "a/b/c/z"], ["z", "a/zz"]),
        ("**/b/**", ["b/c", "a/b/c/d"], ["a/b", "c"]),
        ("[ab]?", ["ax", "b1"], ["cx", "a"]),
    ],
)
def test_what_a_glob_matches(glob: str, yes: list[str], no: list[str]) -> None:
    assert [path for path in yes if not taken(glob, path)] == []
    assert [path for path in no if taken(glob, path)] == []


@given(
    parts=st.lists(st.one_of(st.just("**"), NAMES), min_size=1, max_size=4),
    path=st.lists(NAMES, min_size=1, max_size=4),
)
def test_globs_are_compared_part_by_part(parts: list[str], path: list[str]) -> None:
    """Against a plain recursive definition."""

    def fits(globs: list[str], names: list[str]) -> bool:
        if not globs:
            return not names
        if globs[0] == "**":
            return fits(globs[1:], names) or (bool(names) and fits(globs, names[1:]))
        return bool(names) and fnmatch.fnmatchcase(names[0], globs[0]) and fits(globs[1:], names[1:])

    whole = [*parts, "*"] if parts[-1] == "**" else parts
    assert taken("/".join(parts), "/".join(path)) == fits(whole, path)


def test_no_glob_holds_up_whoever_compares_it() -> None:
    """`**` again and again is one of them; more folders than are ever looked through are refused."""
    globs = Globs(("**/" * 1300 + "x",) * 64)
    state = globs.start()
    assert len(state) == 2 * 64
    assert globs.takes(globs.enter(state, "folder"), "x")
    with pytest.raises(RefusedError, match="more than 64 folders"):
        Globs(("*/" * 64 + "x",))


# --- sources -----------------------------------------------------------------------------------------------


def test_what_a_source_names() -> None:
    assert parse_source("") is None
    assert parse_source("/a b") == LocalPath("/a b")
    assert parse_source("file:///a%20b") == LocalPath("/a b")
    assert parse_source(f"bundle:{DIGEST}") == Bundle(DIGEST)
    url = parse_source("https://Git.Example:443/team/repo.git")
    assert url == GitUrl("https", "git.example", 443, "/team/repo.git")
    assert str(url) == "https://git.example/team/repo.git"


@given(st.text(max_size=40))
def test_every_other_source_is_refused_in_words(text: str) -> None:
    with contextlib.suppress(RefusedError):
        found = parse_source(text)
        assert found is None or isinstance(found, LocalPath | GitUrl | Bundle)


@given(st.text(max_size=20))
def test_a_ref_can_be_read_in_one_way_only(text: str) -> None:
    """No option, no second ref, no expression of git's."""
    try:
        ref = check_ref(text)
    except RefusedError:
        return
    assert ref
    assert not ref.startswith(("-", "+", "^", "/"))
    assert not re.search(r"[\x00-\x20~^:?*\[\\]|\.\.|@\{", ref)


@pytest.mark.parametrize(
    "path", ["..", "a/../b", "a//b", "", ".", ".git", "x/.GiT/y", "a\0b", "n" * 256, "d/" * 61 + "x"]
)
def test_names_that_cannot_be_written(path: str) -> None:
    with pytest.raises(RefusedError):
        check_path(path)


def test_a_tree_in_which_nothing_is_twice() -> None:
    check_together(["a", "b/c", "b/d", "ab"])
    for twice in (["a", "a"], ["a", "a/b"], ["a/b/c", "a/b"]):
        with pytest.raises(RefusedError):
            check_together(twice)


# --- output ------------------------------------------------------------------------------------------------


@given(data=st.binary(max_size=200), cuts=st.lists(st.integers(0, 200), max_size=5), again=st.integers(0, 50))
def test_all_that_was_printed_is_hashed_once(data: bytes, cuts: list[int], again: int) -> None:
    """However it comes in pieces, and if some of them come again."""
    printed, at = Printed(), 0
    for cut in [*sorted(cuts), len(data)]:
        begin = max(0, at - again)
        printed.write(STDOUT, begin, data[begin : max(at, cut)])
        at = max(at, min(cut, len(data)))
    assert printed.sha256(STDOUT) == hashlib.sha256(data).hexdigest()
    end = StreamEnd(len(data), hashlib.sha256(data).hexdigest())
    nothing = StreamEnd(0, hashlib.sha256().hexdigest())
    printed.check(Outcome(End.EXITED, from_ms(0), from_ms(0), exit_code=0, stdout=end, stderr=nothing))
    for other in (StreamEnd(1, "0" * 64), None):
        with pytest.raises(WardenProtocolError):
            printed.check(Outcome(End.EXITED, from_ms(0), from_ms(0), exit_code=0, stdout=end, stderr=other))


def test_a_gap_is_no_output() -> None:
    with pytest.raises(WardenProtocolError):
        Printed().write(STDERR, 1, b"x")


@given(st.binary(max_size=64))
def test_a_preview_is_utf8_of_bounded_length(tail: bytes) -> None:
    printed = Printed()
    printed.write(STDOUT, 0, b"x" * (PREVIEW_BYTES - 20) + tail)
    assert len(printed.preview(STDOUT).encode()) <= PREVIEW_BYTES


def test_previews_of_one_job_have_a_bound_together() -> None:
    """As JSON, where a character may take six bytes: what does not fit is left out, and smaller ones still fit."""
    room = Room(100)
    assert room.taken("a" * 50) == "a" * 50
    assert room.taken("\x01" * 10) is None
    assert room.taken("b" * 40) == "b" * 40


@pytest.mark.parametrize(
    ("end", "facts", "code"),
    [
        (End.EXITED, {"exit_code": 3}, 3),
        (End.SIGNALED, {"signal": 9}, 137),
        (End.OOM, {"exit_code": 137}, 137),
        (End.TIMED_OUT, {}, 124),
        (End.NOT_STARTED, {"stage": Stage.EXEC, "errno": 2}, 127),
        (End.NOT_STARTED, {"stage": Stage.EXEC, "errno": 13}, 126),
        (End.NOT_STARTED, {"stage": Stage.DIRECTORY, "errno": 2}, 126),
    ],
)
def test_exit_codes(end: End, facts: dict[str, Any], code: int) -> None:
    assert exit_code_of(Outcome(end, from_ms(0), from_ms(0), **facts)) == code


# --- images by their digest --------------------------------------------------------------------------------


class Shelves:
    """Registries that have, or do not have, or do not answer."""

    def __init__(self, **by_host: Any) -> None:
        self._by_host = by_host
        self.asked: list[str] = []

    async def resolve(self, reference: ImageReference) -> str:
        self.asked.append(str(reference))
        found = self._by_host[reference.registry.partition(".")[0]]
        if isinstance(found, Exception):
            raise found
        return DIGEST


MISSING, AWAY = DigestResolutionError("404"), RegistryUnavailableError("away")
THREE = ("one.example/x", "two.example/x", "three.example/x")


def development(shelves: Shelves) -> Admission:
    hosts = frozenset(name.partition("/")[0] for name in THREE)
    return Admission(DevelopmentPolicy(registries=hosts, job_repositories=THREE), shelves)


async def test_the_first_repository_that_has_it() -> None:
    shelves = Shelves(one=MISSING, two=True, three=True)
    image = await development(shelves).find(DIGEST)
    assert image.pinned == f"two.example/x@{DIGEST}"
    assert shelves.asked == [f"one.example/x@{DIGEST}", f"two.example/x@{DIGEST}"]


async def test_one_that_is_away_is_passed_by_and_not_forgotten() -> None:
    """Another one may have it; where none has, nobody can say that it is nowhere."""
    assert (await development(Shelves(one=AWAY, two=MISSING, three=True)).find(DIGEST)).digest == DIGEST
    with pytest.raises(RegistryUnavailableError):
        await development(Shelves(one=MISSING, two=AWAY, three=MISSING)).find(DIGEST)


async def test_a_digest_that_none_has() -> None:
    with pytest.raises(ImageNotFoundError, match="none of the repositories"):
        await development(Shelves(one=MISSING, two=MISSING, three=MISSING)).find(DIGEST)
    with pytest.raises(ImageNotFoundError, match="it names none"):
        await Admission(DevelopmentPolicy(job_repositories=()), Shelves()).find(DIGEST)


JOBS = "jobs: {repositories: [registry.example/team/tool, '127.0.0.1:5000/base']}\n"


async def test_the_rule_of_the_repository_decides(tmp_path: Path) -> None:
    """What is found is judged like any other image: here its signature is missing."""
    missing = Says(Verification(SignatureStatus.MISSING, detail="none"))
    rules = policy(tmp_path, GOOD + JOBS, missing)
    assert rules.job_repositories == ("registry.example/team/tool", "127.0.0.1:5000/base")
    with pytest.raises(ImageDeniedError) as caught:
        await Admission(rules, Shelves(registry=True)).find(DIGEST)
    assert caught.value.reason == "signature_missing"
    assert missing.asked[0][1] == DIGEST


@pytest.mark.parametrize(
    ("named", "word"),
    [
        ("other.example/x", "no rule is for it"),
        ("registry.example/team/tool:1", "without a tag"),
        (f"registry.example/team/tool@{DIGEST}", "without a digest"),
        ("registry.example/team/Tool", "line"),
        ("registry.example/team/a, registry.example/team/a", "twice"),
        ("", "line"),
    ],
)
def test_a_policy_whose_repositories_are_wrong(tmp_path: Path, named: str, word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        policy(tmp_path, f"{GOOD}jobs: {{repositories: [{named}]}}\n")
