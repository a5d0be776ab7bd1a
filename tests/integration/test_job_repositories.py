"""Repositories of jobs, with the real git: from paths, servers and bundles to one tree; hostile ones to a refusal."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import gzip
import hashlib
import io
import os
import secrets
import shutil
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fumehood.broker.memory import MemoryBroker
from fumehood.broker.names import NODES_TENANT
from fumehood.errors import JobFailedError
from fumehood.images.development import DevelopmentPolicy
from fumehood.images.egress import EgressRules
from fumehood.jobs.types.sandbox_run import RepoMount, SandboxStatus
from fumehood.node.jobs.sandbox.options import SandboxJobOptions
from fumehood.node.jobs.sandbox.refused import RefusedError
from fumehood.node.jobs.sandbox.repo.opening import Repositories
from fumehood.node.jobs.sandbox.repo.tree import Kind, Tree
from tests.conftest import unavailable
from tests.integration.job_world import Jobs, git, jobs_in, repository
from tests.integration.network_world import ip
from tests.pushed_image import Document, Push, push_changed
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

HERE = Path(__file__).parent
MIB = 1024 * 1024
NOWHERE = EgressRules()
Change = Callable[[Path], None]


@dataclass
class World:
    """A worker's folder, one that it may use repositories of, and one that it may not."""

    folder: Path
    broker: MemoryBroker

    @property
    def allowed(self) -> Path:
        return self.folder / "allowed"

    def options(self, **changes: Any) -> SandboxJobOptions:
        base: dict[str, Any] = {"repo_roots": (self.allowed,), "blobs": self.broker.blobs(NODES_TENANT)}
        return SandboxJobOptions(worker_id="w", work_dir=self.folder / "work", **{**base, **changes})

    async def tree(
        self, source: str, ref: str | None = None, *, rules: EgressRules = NOWHERE, room: int = 64 * MIB, **changes: Any
    ) -> Tree:
        """Opened and closed again; nothing is left of it."""
        asked = RepoMount(source=source, **({"git_ref": ref} if ref else {}))
        try:
            async with Repositories(self.options(**changes)).opened(asked, lambda: rules, room) as tree:
                assert tree is not None
                return tree
        finally:
            assert list((self.folder / "work").glob("*/*")) == []

    async def refusal(self, source: str, ref: str | None = None, **changes: Any) -> str:
        with pytest.raises(RefusedError) as caught:
            await self.tree(source, ref, **changes)
        assert str(self.folder / "work") not in str(caught.value)
        return str(caught.value)

    async def uploaded(self, data: bytes) -> str:
        return "bundle:" + await self.broker.blobs(NODES_TENANT).put(data)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = World(tmp_path_factory.mktemp("world"), MemoryBroker())
    repository(made.allowed / "repo")
    repository(made.folder / "secret")
    (made.allowed / "outward").symlink_to(made.folder / "secret")
    (made.allowed / "inward").symlink_to("repo")
    (made.folder / "work").mkdir()
    return made


def paths(tree: Tree) -> dict[str, Kind]:
    return {entry.path: entry.kind for entry in tree.entries}


COMMITTED = {
    "src/hello.py": Kind.FILE,
    "run.sh": Kind.EXECUTABLE,
    "name with ' and é": Kind.FILE,
    "link": Kind.LINK,
}


# --- paths -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["{}/repo", "file://{}/repo", "{}/repo/../repo", "{}/inward"])
async def test_a_work_tree_is_what_was_committed(world: World, form: str) -> None:
    """Pinned to its commit and tree; what nobody committed is not in it."""
    tree = await world.tree(form.format(world.allowed))
    assert tree.commit == git(world.allowed / "repo", "rev-parse", "HEAD")
    assert tree.tree == git(world.allowed / "repo", "rev-parse", "HEAD^{tree}")
    assert paths(tree) == COMMITTED
    assert tree.time == 1_700_000_000


@pytest.mark.parametrize("ref", ["v1", "refs/tags/v1", "HEAD~1"])
async def test_a_ref_is_pinned(world: World, ref: str) -> None:
    """A branch, a tag, a commit; what git would have to work out is refused."""
    repo = world.allowed / "repo"
    first = git(repo, "rev-parse", "HEAD~1")
    if "~" in ref:
        assert "no branch" in await world.refusal(str(repo), ref)
        ref = first
    tree = await world.tree(str(repo), ref)
    assert (tree.commit, tree.tree) == (first, git(repo, "rev-parse", "HEAD~1^{tree}"))


@pytest.mark.parametrize("ref", ["nothing", "ab" * 20, "--upload-pack=/bin/sh", "a:b", "-x", "a..b", "@{-1}", "a b"])
async def test_a_ref_that_is_none(world: World, ref: str) -> None:
    assert await world.refusal(str(world.allowed / "repo"), ref)


async def test_a_tag_is_not_a_commit(world: World) -> None:
    """The id of a tag's object leads to a commit, and is not its id."""
    repo = world.allowed / "repo"
    assert "leads to one" in await world.refusal(str(repo), git(repo, "rev-parse", "v1"))


async def test_a_bare_repository(world: World) -> None:
    git(world.allowed, "clone", "-q", "--bare", "repo", "bare.git")
    assert (await world.tree(str(world.allowed / "bare.git"))).tree == (await world.tree(f"{world.allowed}/repo")).tree


async def test_a_shallow_clone_is_enough(world: World) -> None:
    git(world.allowed, "clone", "-q", "--depth=1", f"file://{world.allowed}/repo", "shallow")
    assert paths(await world.tree(f"{world.allowed}/shallow")) == COMMITTED


async def test_a_plain_folder_has_the_tree_that_git_would_give_it(world: World) -> None:
    plain = world.allowed / "plain"
    shutil.copytree(world.allowed / "repo", plain, symlinks=True, ignore=shutil.ignore_patterns(".git", "uncommitted"))
    (plain / "empty").mkdir()
    tree = await world.tree(str(plain))
    assert (tree.commit, tree.tree) == (None, git(world.allowed / "repo", "rev-parse", "HEAD^{tree}"))
    assert "leave git_ref out" in await world.refusal(str(plain), "main")


@pytest.mark.parametrize(
    "source", ["{folder}/secret", "{allowed}/outward", "{allowed}/../secret", "{allowed}/nothing", "/", "/etc"]
)
async def test_what_is_not_beneath_an_allowed_folder(world: World, source: str) -> None:
    """Nobody is told whether it is there."""
    said = await world.refusal(source.format(folder=world.folder, allowed=world.allowed))
    assert "is no folder beneath one" in said


async def test_without_allowed_folders_no_path_may_be_used(world: World) -> None:
    assert "is no folder beneath one" in await world.refusal(f"{world.allowed}/repo", repo_roots=())


# --- hostile repositories ----------------------------------------------------------------------------------


def borrowed(repo: Path) -> None:
    (repo / ".git/objects/info/alternates").write_text(f"{repo.parents[1]}/secret/.git/objects\n")


def common(repo: Path) -> None:
    (repo / ".git/commondir").write_text(f"{repo.parents[1]}/secret/.git\n")


def elsewhere(repo: Path) -> None:
    shutil.rmtree(repo / ".git")
    (repo / ".git").write_text(f"gitdir: {repo.parents[1]}/secret/.git\n")


def linked_folder(repo: Path) -> None:
    shutil.rmtree(repo / ".git")
    (repo / ".git").symlink_to(repo.parents[1] / "secret/.git")


def linked_objects(repo: Path) -> None:
    shutil.rmtree(repo / ".git/objects")
    (repo / ".git/objects").symlink_to(repo.parents[1] / "secret/.git/objects")


def linked_head(repo: Path) -> None:
    (repo / ".git/HEAD").unlink()
    (repo / ".git/HEAD").symlink_to(repo.parents[1] / "secret/.git/HEAD")


@pytest.mark.parametrize("change", [borrowed, common, elsewhere, linked_folder, linked_objects, linked_head])
async def test_a_repository_that_leads_out_of_its_folder(world: World, change: Change) -> None:
    """However it does it: nothing of the other one is read."""
    repo = repository(world.allowed / f"hostile-{change.__name__}")
    change(repo)
    assert await world.refusal(str(repo))


async def test_hooks_filters_and_configuration_are_not_used(world: World) -> None:
    """Everything that a repository may have run on its owner's behalf leaves a mark, and none is there afterwards."""
    repo, mark = repository(world.allowed / "trap"), world.folder / "sprung"
    program = world.folder / "trap.sh"
    program.write_text(f"#!/bin/sh\ntouch {mark}\ncat\n")
    program.chmod(0o755)
    for hook in ("post-checkout", "pre-commit", "reference-transaction", "post-index-change"):
        (repo / ".git/hooks").mkdir(exist_ok=True)
        shutil.copy(program, repo / ".git/hooks" / hook)
    for name in (
        "core.fsmonitor",
        "core.sshCommand",
        "filter.x.smudge",
        "filter.x.clean",
        "uploadpack.packObjectsHook",
    ):
        git(repo, "config", name, str(program))
    git(repo, "config", "core.hooksPath", str(repo / ".git/hooks"))
    (repo / ".git/info").mkdir(exist_ok=True)
    (repo / ".git/info/attributes").write_text("* filter=x\n")
    assert paths(await world.tree(str(repo))) == COMMITTED
    assert not mark.exists()


def object_id(repo: Path, kind: str, data: bytes) -> str:
    """An object that git's own commands would not make."""
    words = ["git", "hash-object", "-w", "--literally", "-t", kind, "--stdin"]
    return subprocess.run(words, cwd=repo, input=data, check=True, capture_output=True).stdout.decode().strip()


def committed(repo: Path, *entries: tuple[bytes, bytes, str]) -> None:
    """A commit of a tree with these modes, names and objects, whatever they are."""
    data = b"".join(mode + b" " + name + b"\0" + bytes.fromhex(one) for mode, name, one in entries)
    tree = object_id(repo, "tree", data)
    commit = git(repo, "commit-tree", tree, "-m", "x")
    git(repo, "update-ref", "refs/heads/main", commit)


@pytest.mark.parametrize("name", [b"..", b".", b".git", b".GIT", b"a/../../b", b"x" * 300])
async def test_names_that_lead_out_are_refused(world: World, name: bytes) -> None:
    repo = repository(world.allowed / f"name-{hashlib.sha1(name).hexdigest()[:8]}")
    committed(repo, (b"100644", name, object_id(repo, "blob", b"hostile")))
    assert "cannot be written" in (said := await world.refusal(str(repo))) or "too long" in said


async def test_a_file_that_is_a_folder_too(world: World) -> None:
    repo = repository(world.allowed / "both")
    blob = object_id(repo, "blob", b"x")
    inner = object_id(repo, "tree", b"100644 b\0" + bytes.fromhex(blob))
    committed(repo, (b"100644", b"a", blob), (b"40000", b"a", inner))
    assert "as a file and as a folder" in await world.refusal(str(repo))


async def test_an_object_that_is_not_what_its_name_says(world: World) -> None:
    """The tree's hash is worth something only because every object under it was hashed again."""
    repo = repository(world.allowed / "forged")
    blob = git(repo, "rev-parse", "HEAD:src/hello.py")
    other = git(repo, "rev-parse", "HEAD~1:src/hello.py")
    there, forged = (repo / ".git/objects" / one[:2] / one[2:] for one in (blob, other))
    there.chmod(0o644)
    there.write_bytes(forged.read_bytes())
    assert await world.refusal(str(repo))


async def test_replacements_do_not_count(world: World) -> None:
    """`refs/replace` would put another content under a hash."""
    repo = repository(world.allowed / "replaced")
    before = (await world.tree(str(repo))).tree
    git(repo, "replace", git(repo, "rev-parse", "HEAD"), git(repo, "rev-parse", "HEAD~1"))
    assert (await world.tree(str(repo))).tree == before


@pytest.mark.parametrize(
    ("bounds", "word"),
    [({"repo_files": 3}, "4 files"), ({"room": 4096}, "room for 4096"), ({"repo_bytes": 2000}, "more than")],
)
async def test_a_repository_that_is_too_large(world: World, bounds: dict[str, Any], word: str) -> None:
    assert word in await world.refusal(str(world.allowed / "repo"), **bounds)


async def test_a_submodule_is_an_empty_folder(world: World) -> None:
    """Nothing is fetched that the repository names."""
    repo = repository(world.allowed / "super")
    git(repo, "update-index", "--add", "--cacheinfo", f"160000,{'12' * 20},module")
    git(repo, "commit", "-q", "-m", "module")
    assert paths(await world.tree(str(repo))) == {**COMMITTED, "module": Kind.MODULE}


# --- bundles -----------------------------------------------------------------------------------------------


def packed(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as archive:
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return made.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, *, to: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, to, mode
    return info


async def test_a_git_bundle(world: World) -> None:
    repo, file = world.allowed / "repo", world.folder / "a.bundle"
    git(repo, "bundle", "create", str(file), "--all", "HEAD")
    source = await world.uploaded(file.read_bytes())
    head = await world.tree(source)
    assert (head.commit, head.tree) == (git(repo, "rev-parse", "HEAD"), git(repo, "rev-parse", "HEAD^{tree}"))
    first = git(repo, "rev-parse", "HEAD~1")
    assert (await world.tree(source, first)).commit == (await world.tree(source, "v1")).commit == first
    assert "has no 'nothing'" in await world.refusal(source, "nothing")


async def test_a_git_bundle_of_one_branch_needs_no_ref(world: World) -> None:
    file = world.folder / "b.bundle"
    git(world.allowed / "repo", "bundle", "create", str(file), "main")
    assert paths(await world.tree(await world.uploaded(file.read_bytes()))) == COMMITTED


@pytest.mark.parametrize("form", ["tar", "tar.gz"])
async def test_an_archive_of_git_has_the_same_tree(world: World, form: str) -> None:
    repo, file = world.allowed / "repo", world.folder / f"a.{form}"
    git(repo, "archive", f"--format={form}", "-o", str(file), "HEAD")
    tree = await world.tree(await world.uploaded(file.read_bytes()))
    assert (tree.commit, tree.tree) == (None, git(repo, "rev-parse", "HEAD^{tree}"))


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
async def test_an_archive_of_any_form(world: World, form: int) -> None:
    long = "d" * 90 + "/" + "e" * 90 + ("/" + "f" * 120 if form != tarfile.USTAR_FORMAT else "")
    data = packed(
        (member("./a"), b"one"),
        (member(long, mode=0o755), b"two"),
        (member("again", tarfile.LNKTYPE, to="./a"), b""),
        (member("dir", tarfile.DIRTYPE), b""),
        (member("dir/link", tarfile.SYMTYPE, to="../a"), b""),
        form=form,
    )
    tree = await world.tree(await world.uploaded(data))
    assert paths(tree) == {"a": Kind.FILE, long: Kind.EXECUTABLE, "again": Kind.FILE, "dir/link": Kind.LINK}
    by_path = {entry.path: entry.object_id for entry in tree.entries}
    assert by_path["a"] == by_path["again"]


HOSTILE = [
    (member("../up"), b"x"),
    (member("a/../../up"), b"x"),
    (member("/etc/passwd"), b"x"),
    (member(".git/config"), b"x"),
    (member("a/.git/hooks/post-checkout"), b"x"),
    (member("out", tarfile.SYMTYPE, to="/etc/passwd"), b""),
    (member("out", tarfile.SYMTYPE, to="../../etc"), b""),
    (member("a/out", tarfile.SYMTYPE, to="../../etc"), b""),
    (member("hard", tarfile.LNKTYPE, to="/etc/passwd"), b""),
    (member("hard", tarfile.LNKTYPE, to="missing"), b""),
    (member("device", tarfile.CHRTYPE), b""),
    (member("pipe", tarfile.FIFOTYPE), b""),
    (member("x" * 300), b"x"),
]


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda one: one[0].name[:20] + one[0].linkname)
async def test_hostile_archives(world: World, hostile: tuple[tarfile.TarInfo, bytes]) -> None:
    assert await world.refusal(await world.uploaded(packed((member("good"), b"x"), hostile)))


async def test_a_file_beneath_a_link_is_no_way_out(world: World) -> None:
    """In a tree of git nothing lies beneath a link: the later one takes its place, or the archive is refused."""
    data = packed((member("a", tarfile.SYMTYPE, to="b"), b""), (member("a/x"), b"x"))
    source = await world.uploaded(data)
    with contextlib.suppress(RefusedError):
        assert paths(await world.tree(source)) == {"a/x": Kind.FILE}


def bomb() -> bytes:
    """A few KB that become 200 MB."""
    made = io.BytesIO()
    with gzip.GzipFile(fileobj=made, mode="wb", compresslevel=9) as file:
        info = member("big")
        info.size = 200 * MIB
        file.write(info.tobuf())
        for _ in range(200):
            file.write(bytes(MIB))
        file.write(bytes(1024))
    return made.getvalue()


def header_bomb() -> bytes:
    info = member("pax", tarfile.XHDTYPE)
    info.size = 150 * MIB
    return gzip.compress(info.tobuf(tarfile.USTAR_FORMAT) + bytes(MIB))


def many() -> bytes:
    return packed(*((member(f"f{number}"), b"") for number in range(101)))


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (bomb(), "bytes that one may have"),
        (header_bomb(), "header that is too long"),
        (many(), "more than 100 files"),
        (packed((member("a"), b"x" * 5000))[:2000], "cut off"),
        (gzip.compress(b"no archive at all" * 100), "damaged"),
        (gzip.compress(packed((member("a"), b"x")))[:-30], "damaged"),
        (b"neither", "neither a git bundle nor"),
        (b"# v2 git bundle\n" + b"ab" * 20 + b" refs/heads/main\n\nPACKgarbage", "git could not read"),
        (b"# v2 git bundle\n", "0 refs"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",  # bytes have the time in them
)
async def test_bombs_and_damaged_archives(world: World, data: bytes, word: str) -> None:
    assert word in await world.refusal(await world.uploaded(data), repo_files=100)


async def test_a_bundle_that_was_never_uploaded(world: World) -> None:
    assert "upload it again" in await world.refusal(f"bundle:sha256:{'0' * 64}")


# --- servers -----------------------------------------------------------------------------------------------


def certificate(folder: Path) -> tuple[Path, Path]:
    """For git.test, by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "git.test")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("git.test")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, secret = folder / "cert.pem", folder / "key.pem"
    pem.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    secret.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return pem, secret


@dataclass(frozen=True)
class Server:
    """Where a git server is, and how a worker gets there."""

    net: str
    ca_file: Path

    @property
    def way(self) -> dict[str, Any]:
        return {"dns_upstreams": (f"{self.net}.2",), "ca_file": self.ca_file}


@pytest.fixture(scope="module")
def server(world: World) -> Iterator[Server]:
    """A real git server with a public address, beside this machine."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        unavailable("a server with a public address needs root and iproute2")
    pem, secret = certificate(world.folder)
    served = world.folder / "served"
    served.mkdir()
    git(served, "clone", "-q", "--bare", str(world.allowed / "repo"), "repo.git")
    git(served / "repo.git", "update-server-info")
    large = repository(world.folder / "large")
    (large / "random").write_bytes(secrets.token_bytes(3 * MIB))
    git(large, "add", "random")
    git(large, "commit", "-q", "-m", "large")
    git(served, "clone", "-q", "--bare", str(large), "large.git")
    name = f"fhg{secrets.token_hex(3)}"
    net = f"{49 + secrets.randbelow(2)}.{secrets.randbelow(256)}.{secrets.randbelow(256)}"
    ip("netns", "add", name)
    try:
        ip("link", "add", name, "type", "veth", "peer", "name", "out", "netns", name)
        ip("addr", "add", f"{net}.1/24", "dev", name)
        ip("link", "set", name, "up")
        ip("-n", name, "addr", "add", f"{net}.2/24", "dev", "out")
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "link", "set", "out", "up")
        script = [sys.executable, str(HERE / "git_outside.py"), net, str(served), str(pem), str(secret)]
        with subprocess.Popen(
            ["ip", "netns", "exec", name, *script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            try:
                yield Server(net, pem)
            finally:
                process.terminate()
    finally:
        ip("netns", "delete", name)


ALLOWED = EgressRules.parse(["git.test:80", "git.test:443", "private.test:80", "meta.test:80", "gone.test:80"])


@pytest.mark.parametrize("url", ["https://git.test/smart/repo.git", "http://git.test/smart/repo.git"])
@pytest.mark.parametrize("ref", [None, "main", "v1", "commit"])
async def test_a_repository_of_a_server(world: World, server: Server, url: str, ref: str | None) -> None:
    repo = world.allowed / "repo"
    wanted = git(repo, "rev-parse", "HEAD~1" if ref in ("v1", "commit") else "HEAD")
    tree = await world.tree(url, wanted if ref == "commit" else ref, rules=ALLOWED, **server.way)
    assert (tree.commit, tree.tree) == (wanted, git(repo, "rev-parse", f"{wanted}^{{tree}}"))


@pytest.mark.parametrize("ref", [None, "v1", "commit"])
async def test_a_server_of_plain_files(world: World, server: Server, ref: str | None) -> None:
    """One that knows nothing of git gives all it has, and the commit is among it."""
    wanted = git(world.allowed / "repo", "rev-parse", "HEAD~1" if ref else "HEAD")
    url = "http://git.test/dumb/repo.git"
    tree = await world.tree(url, wanted if ref == "commit" else ref, rules=ALLOWED, **server.way)
    assert tree.commit == wanted


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("https://other.test/smart/repo.git", "not among the names"),
        ("http://git.test:8080/smart/repo.git", "not among the names"),
        ("http://private.test/repo.git", "not public"),
        ("http://meta.test/latest/meta-data", "not public"),
        ("http://git.test/moved/repo.git", "not among the names"),
        ("https://git.test/smart/nothing.git", "no such repository"),
        ("http://127.0.0.1/repo.git", "addresses are refused"),
        ("http://localhost/repo.git", "addresses are refused"),
        ("https://user:password@git.test/smart/repo.git", "no password"),
        ("https://git.test/smart/repo.git?x=1", "and nothing else"),
        ("ssh://git.test/repo.git", "a repository is a path"),
        ("ext::sh -c touch% /tmp/x", "a repository is a path"),
        ("git@git.test:repo.git", "a repository is a path"),
        ("--upload-pack=/bin/sh", "a repository is a path"),
    ],
)
async def test_where_git_may_not_go(world: World, server: Server, url: str, word: str) -> None:
    said = await world.refusal(url, rules=ALLOWED, **server.way)
    assert word in said
    assert "user:password" not in said


async def test_a_server_that_is_not_trusted(world: World, server: Server) -> None:
    """Its certificate is by nobody whom this machine trusts."""
    with pytest.raises(JobFailedError) as caught:
        await world.tree("https://git.test/smart/repo.git", rules=ALLOWED, dns_upstreams=server.way["dns_upstreams"])
    assert (caught.value.reason, caught.value.again) == ("repo_unavailable", True)


async def test_a_name_that_leads_nowhere_may_come_back(world: World, server: Server) -> None:
    with pytest.raises(JobFailedError) as caught:
        await world.tree("http://gone.test/repo.git", rules=ALLOWED, **server.way)
    assert (caught.value.reason, caught.value.again) == ("repo_unavailable", True)


async def test_a_repository_that_grows_too_large_is_stopped_while_it_comes(world: World, server: Server) -> None:
    said = await world.refusal("http://git.test/smart/large.git", rules=ALLOWED, repo_bytes=MIB, **server.way)
    assert f"more than the {MIB} bytes" in said


async def test_fetching_ends_in_time_and_leaves_no_process(world: World, server: Server) -> None:
    with pytest.raises(JobFailedError) as caught:
        await world.tree("http://git.test/smart/repo.git", rules=ALLOWED, fetch_seconds=0.001, **server.way)
    assert caught.value.reason == "repo_unavailable"


# --- in a sandbox ------------------------------------------------------------------------------------------


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["runc", pytest.param("runsc", marks=pytest.mark.gvisor)]
)
async def jobs(
    world: World,
    server: Server,
    tmp_path_factory: pytest.TempPathFactory,
    docker_socket: Path,
    python_image: str,
    request: pytest.FixtureRequest,
) -> AsyncIterator[Jobs]:
    policy = DevelopmentPolicy(egress=ALLOWED, job_repositories=(python_image.partition("@")[0],))
    options = {"repo_roots": (world.allowed,), "blobs": world.broker.blobs(NODES_TENANT), **server.way}
    folder = tmp_path_factory.mktemp("jobs")
    async with jobs_in(
        folder, docker_socket, python_image, policy=policy, runtime=str(request.param), **options
    ) as made:
        yield made


def without_tar(manifest: Document, config: Document, push: Push) -> None:
    """Nothing is found by its name."""
    config["config"]["Env"] = ["PATH=/nowhere"]


@pytest.mark.parametrize("mount", ["/workspace", "/tmp/deep/er"])
async def test_a_repository_is_mounted_as_it_is(world: World, jobs: Jobs, mount: str) -> None:
    """Contents, modes, links and odd names; the commit and its tree are in the answer and in what was observed."""
    repo = world.allowed / "repo"
    done = await jobs.run(
        './run.sh; python3 src/hello.py; cat "name with \' and é"; readlink link; cat link',
        "stat -c '%a %F %n' run.sh src src/hello.py link; ls -A | wc -l; stat -c %Y run.sh",
        {"cmd": "pwd; touch new", "workdir": "src"},
        repo={"source": str(repo), "mount_path": mount},
        artifacts=["src/*", "link"],
    )
    assert done.status is SandboxStatus.SUCCESS, done.error
    assert done.runs[0].stdout_preview == "ran\nhello again\nodd\nsrc/hello.py\nprint('hello again')\n"
    assert done.runs[1].stdout_preview == (
        "755 regular file run.sh\n755 directory src\n644 regular file src/hello.py\n777 symbolic link link\n"
        "4\n1700000000\n"
    )
    assert done.runs[2].stdout_preview == f"{mount}/src\n"
    assert (done.repo_commit, done.repo_tree) == (
        git(repo, "rev-parse", "HEAD"),
        git(repo, "rev-parse", "HEAD^{tree}"),
    )
    assert jobs.told.facts["repo"] == {"commit": done.repo_commit, "tree": done.repo_tree, "files": 4}
    assert [one.path for one in done.artifacts] == ["src/hello.py", "src/new"]


async def test_a_servers_repository_in_a_sandbox_without_a_network(jobs: Jobs) -> None:
    """Git goes out; what runs over what it brought does not."""
    done = await jobs.run("cat src/hello.py", repo={"source": "https://git.test/smart/repo.git", "git_ref": "v1"})
    assert (done.status, done.runs[0].stdout_preview) == (SandboxStatus.SUCCESS, "print('hello')\n")
    assert jobs.told.facts["isolation"]["network"] == "none"


async def test_a_link_to_the_outside_leads_to_the_images_own_files(world: World, jobs: Jobs) -> None:
    """It is part of the tree, and so it is made; it leads to the sandbox's passwd, never to the host's, and what is
    behind it is no artifact."""
    repo = repository(world.allowed / f"leak-{secrets.token_hex(4)}")
    mark = world.folder / "host-only"
    mark.write_text("of the host")
    (repo / "passwd").symlink_to("/etc/passwd")
    (repo / "host").symlink_to(mark)
    git(repo, "add", "passwd", "host")
    git(repo, "commit", "-q", "-m", "links")
    done = await jobs.run("cat host", repo={"source": str(repo)}, artifacts=["*"])
    assert done.status is SandboxStatus.FAILED
    assert {one.path for one in done.artifacts} == {"run.sh", "name with ' and é"}


async def test_an_image_without_tar(world: World, jobs: Jobs) -> None:
    """Files come through the warden; links, which it does not make, are refused and said."""
    digest = push_changed(jobs.image, without_tar).partition("@")[2]
    repo = repository(world.allowed / f"no-tar-{secrets.token_hex(4)}")
    refused = await jobs.run("true", repo={"source": str(repo)}, sandbox={"image_digest": digest})
    assert (refused.status, refused.runs) == (SandboxStatus.ERROR, ())
    assert "has no tar" in (refused.error or "")
    git(repo, "rm", "-q", "link")
    git(repo, "update-index", "--add", "--cacheinfo", f"160000,{'12' * 20},module")
    git(repo, "commit", "-q", "-m", "no links")
    done = await jobs.run(
        "./run.sh; stat -c '%a %F %n' run.sh src/hello.py module",
        repo={"source": str(repo)},
        sandbox={"image_digest": digest},
        env={"PATH": "/usr/bin:/bin"},
    )
    assert done.runs[0].stdout_preview == (
        "ran\n755 regular file run.sh\n644 regular file src/hello.py\n755 directory module\n"
    ), done.error


async def test_many_files(world: World, jobs: Jobs) -> None:
    folder = world.allowed / f"many-{secrets.token_hex(4)}"
    folder.mkdir()
    for number in range(600):
        inner = folder / str(number % 20)
        inner.mkdir(exist_ok=True)
        (inner / str(number)).write_text(str(number))
    done = await jobs.run("find . -type f | wc -l; cat 7/587", repo={"source": str(folder)})
    assert done.runs[0].stdout_preview == "600\n587"


async def test_a_cancelled_fetch_leaves_nothing(world: World) -> None:
    """Neither a process nor a file."""
    task = asyncio.create_task(world.tree(str(world.allowed / "repo")))

    async def copies() -> bool:
        return any((world.folder / "work").glob("*/*/source.git"))

    await until(copies, what="the repository is being copied")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
