"""A program that fights its owner over files: the owner never leaves the root, never hangs, never gets half a file."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from fumehood.errors import FileOperationError, SandboxLostError
from fumehood.images.admission import Admission, AdmittedImage
from fumehood.images.development import DevelopmentPolicy
from fumehood.images.registry import RegistryClient
from fumehood.sandbox.capture import STDOUT, Capture
from fumehood.sandbox.docker import DockerDriver, DockerOptions
from fumehood.sandbox.driver import Driver, FileKind, Files, Handle
from fumehood.sandbox.spec import MIB, WORKSPACE, Command, End, Limits, Outcome, SandboxSpec
from tests.always_warm import always_warm
from tests.integration import hostile_programs
from tests.integration.hostile_programs import INSIDE
from tests.node_process import remove_containers
from tests.waiting import until

pytestmark = [pytest.mark.hostile, pytest.mark.timeout(600)]

SOURCE = Path(hostile_programs.__file__).read_text(encoding="utf-8")
REFUSALS = {errno.ELOOP, errno.ENOENT, errno.ENOTDIR, errno.EXDEV, errno.EAGAIN}
"""What may be said of a path while somebody swaps it. EAGAIN: `openat2` saw the race itself."""

ROUNDS = 30
KINDS = [
    "runc",
    pytest.param("runsc-warm", marks=pytest.mark.gvisor),
    *(pytest.param(kind, marks=pytest.mark.record) for kind in ("runc-warm", "runsc")),
]
"""With and without a pool; the other two of the four when a release is recorded."""


@dataclass(frozen=True)
class Fight:
    """A sandbox with a hostile program in it, seen by its owner."""

    driver: Driver
    handle: Handle
    capture: Capture
    files: Files
    job: asyncio.Task[Outcome]

    def outside(self, root: str) -> Files:
        return self.driver.files(self.handle, root=root)


@dataclass(frozen=True)
class Ring:
    """Where fights take place."""

    driver: Driver
    image: AdmittedImage
    runtime: str

    @asynccontextmanager
    async def fight(self, *words: str) -> AsyncIterator[Fight]:
        """Begins when the program says so. When it ends the warden must still be in charge of the program."""
        limits = Limits(memory_bytes=768 * MIB, workspace_inodes=200_000)
        spec = SandboxSpec(uuid.uuid4().hex, self.image, limits=limits, runtime=self.runtime)
        handle = await self.driver.prepare(spec)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self.driver.destroy, handle)
            await self.driver.start(handle)
            capture = Capture(64 * 1024)
            command = Command(("python3", "-c", SOURCE, *words), env={"PATH": "/usr/bin:/bin"})
            job = asyncio.create_task(self.driver.run(handle, command, capture, command_id=1))
            stack.push_async_callback(_abandon, job)
            begun = "the program has not begun"
            await until(lambda: b"begun" in capture.kept(STDOUT) or job.done(), 60, what=begun)
            yield Fight(self.driver, handle, capture, self.driver.files(handle, root=WORKSPACE), job)
            if not job.done():
                await self.driver.signal(handle, 1, 9, everything=True)
            assert (await job).end in (End.EXITED, End.SIGNALED)


async def _abandon(job: asyncio.Task[Outcome]) -> None:
    job.cancel()
    await asyncio.gather(job, return_exceptions=True)


@pytest.fixture(params=KINDS)
async def ring(
    request: pytest.FixtureRequest, tmp_path: Path, docker_socket: Path, python_image: str
) -> AsyncIterator[Ring]:
    node_id = f"hostile-files-{uuid.uuid4().hex}"
    async with RegistryClient() as registry:
        image = await Admission(DevelopmentPolicy(), registry).admit(python_image)
    runtime, _, warm = request.param.partition("-")
    engine = DockerDriver(DockerOptions(node_id=node_id, state_dir=tmp_path, socket=docker_socket))
    driver = await always_warm(engine, tmp_path) if warm else engine
    try:
        yield Ring(driver, image, runtime)
        assert await driver.list({}) == [], "the fight left a sandbox behind"
    finally:
        await driver.close()
        await asyncio.to_thread(remove_containers, node_id)


@dataclass
class Tally:
    """What the owner's attempts came to. A fight in which one side never had the upper hand proves nothing."""

    done: int = 0
    refused: int = 0

    @contextlib.contextmanager
    def attempt(self, *also: int) -> Iterator[None]:
        """An operation may be refused, but only for what the program really did to its path."""
        number = 0
        try:
            yield
        except FileOperationError as error:
            number = error.errno
        assert number in REFUSALS | {0, *also}, errno.errorcode.get(number)
        self.done += number == 0
        self.refused += number != 0


async def test_a_path_that_is_swapped_under_the_owner_never_leads_out(ring: Ring) -> None:
    read, tally = set(), Tally()
    async with ring.fight("swap") as fight:
        files = fight.files
        for number in range(ROUNDS):
            for path in ("door/file", "leaf"):
                with tally.attempt():
                    read.add(await files.read(path, limit=100))
            with tally.attempt():
                await files.write(f"door/written-{number}", b"the owner's")
            with tally.attempt(errno.EEXIST):
                await files.mkdir(f"door/made-{number}/below", parents=True)
            with tally.attempt(errno.ENOTEMPTY):
                await files.remove("door/sub", recursive=True)
        outside = {entry.name for entry in await fight.outside("/tmp").list(".")}
        kept = await fight.outside("/tmp").read("sub/keep", limit=100)
    assert read == {INSIDE.encode()}
    assert outside == {"file", "sub", "outside-only"}
    assert kept == b"kept"
    assert min(tally.done, tally.refused) > 0, tally


async def test_a_folder_that_is_swapped_is_never_listed_elsewhere(ring: Ring) -> None:
    """Many times: the moment in which a second look at the name would go wrong is short."""
    tally = Tally()
    async with ring.fight("swap") as fight:
        for _ in range(5 * ROUNDS):
            with tally.attempt():
                assert "outside-only" not in {entry.name for entry in await fight.files.list("door")}
    assert min(tally.done, tally.refused) > 0, tally


async def test_the_owner_replaces_a_leaf_link_and_not_what_it_points_to(ring: Ring) -> None:
    tally = Tally()
    async with ring.fight("swap") as fight:
        for number in range(ROUNDS):
            with tally.attempt():
                await fight.files.write("leaf", f"inside {number}\n".encode())
            with tally.attempt():
                assert (await fight.files.stat("leaf")).kind in (FileKind.FILE, FileKind.LINK)
        assert await fight.outside("/tmp").read("file", limit=100) == b"outside\n"
    assert tally.done > 0


async def test_nothing_hangs_on_what_is_not_a_file(ring: Ring) -> None:
    refused = {"fifo": errno.EINVAL, "socket": errno.EINVAL, "deep": errno.EISDIR}
    refused |= dict.fromkeys(("zero", "loop", "environ", "up", "up/etc/passwd", "zero/x"), errno.ELOOP)
    async with ring.fight("nests") as fight:
        for path, number in refused.items():
            async with asyncio.timeout(60):
                with pytest.raises(FileOperationError) as caught:
                    await fight.files.read(path, limit=100)
                assert caught.value.errno == number, path
        for path in ("fifo", "zero", "loop"):
            with pytest.raises(FileOperationError) as caught:
                await fight.files.write(path, b"x")
            assert caught.value.errno in (errno.EINVAL, errno.ELOOP)
        for path in ("zero", "null", "random"):
            with pytest.raises(FileOperationError) as caught:
                await fight.outside("/dev").read(path, limit=100)
            assert caught.value.errno == errno.EINVAL
        kinds = {entry.name: entry.kind for entry in await fight.files.list(".")}
        assert kinds == {
            **dict.fromkeys(("fifo", "socket"), FileKind.OTHER),
            **dict.fromkeys(("zero", "loop", "environ", "up"), FileKind.LINK),
            "sparse": FileKind.FILE,
            "deep": FileKind.FOLDER,
        }


async def test_a_huge_file_is_refused_after_its_limit(ring: Ring) -> None:
    async with ring.fight("nests") as fight, asyncio.timeout(60):
        assert (await fight.files.stat("sparse")).size == 200 * MIB
        with pytest.raises(FileOperationError) as caught:
            await fight.files.read("sparse", limit=MIB)
        assert caught.value.errno == errno.EFBIG
        await fight.files.remove("sparse")


async def test_a_tree_deeper_than_any_stack_is_removed(ring: Ring) -> None:
    async with ring.fight("nests") as fight, asyncio.timeout(60):
        await fight.files.remove("deep", recursive=True)
        assert "deep" not in {entry.name for entry in await fight.files.list(".")}


async def test_a_folder_with_too_many_entries_is_an_error_not_half_a_listing(ring: Ring) -> None:
    async with ring.fight("many", "100001") as fight:
        with pytest.raises(FileOperationError) as caught:
            await fight.files.list("many")
        assert caught.value.errno == errno.EOVERFLOW
        await fight.files.remove("many/0")
        entries = await fight.files.list("many")
        assert {entry.name for entry in entries} == {str(number) for number in range(1, 100_001)}


async def test_a_reader_inside_never_sees_half_a_file(ring: Ring) -> None:
    async with ring.fight("watch") as fight:
        for number in range(40):
            await fight.files.write("shared", str(number % 8).encode() * 100_000)
        await fight.files.write("shared", b"9" * 100_000)
        await fight.job
        assert fight.capture.text(STDOUT, None) == "begun\ntorn 0\n"


async def test_a_program_that_kills_the_owners_helpers_gains_nothing(ring: Ring) -> None:
    """It runs under the same user as they do, so it may kill them: then the owner is told, and nothing is half done."""
    async with ring.fight("kill_always") as fight:
        for _ in range(ROUNDS):
            with contextlib.suppress(SandboxLostError):
                await fight.files.write("mine", b"x" * 100_000)
                assert await fight.files.read("mine", limit=100_000) == b"x" * 100_000
        assert not fight.job.done()
