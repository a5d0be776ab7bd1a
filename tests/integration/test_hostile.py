"""Hostile programs against a real node on the real engine, under every runtime.

Each attack is one job. It must get the right answer, and when it is over the node is ready, nothing of the attack is
left on the machine, and jobs of a neighbour that ran beside it gave their right results: `Hood.attack` sees to that.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import re
import socket
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import warm_node
from tests.conftest import TimeBounds, unavailable
from tests.integration import hostile_programs
from tests.integration.hostile_programs import OPEN
from tests.node_process import DOCKER_SOCKET, NodeProcess
from tests.noise import Watch
from tests.waiting import until

pytestmark = [pytest.mark.hostile, pytest.mark.timeout(600)]

SOURCE = Path(hostile_programs.__file__).read_text(encoding="utf-8")
CANARY = f"canary-{uuid.uuid4().hex}"
LIMIT = 262_144
MIB = 1024 * 1024
GROWTH = 64 * MIB
"""What no flood may add to the node's memory."""
NOISE = 20
"""Seconds that a job may take beyond its timeout: to make and remove a sandbox on a machine that does much else."""

COMPLETED = ("completed", 0, None)
TIMEOUT = ("timeout", None, None)
OOM = ("failed", 137, "oom")
LOST = ("failed", 137, "sandbox_lost")

_LINES = 10
_NEIGHBOUR = (
    f'i=0; while [ $i -lt {_LINES} ]; do i=$((i+1)); echo "$i $WORD"; sleep 0.3; done; echo "$WORD" >&2; exit 11'
)
"""Three seconds, so that the attack beside it meets it, whichever of the two was started more quickly."""


@dataclass(frozen=True)
class Answer:
    """A job's answer, and how long it took the caller."""

    http: httpx.Response
    seconds: float

    @property
    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = self.http.json()
        return body

    @property
    def end(self) -> tuple[str, int | None, str | None]:
        """Status, exit code and reason: what may never be wrong."""
        body = self.body
        return body.get("status", str(body)), body.get("exit_code"), self.http.headers.get("fumehood-exit-reason")

    @property
    def stdout(self) -> str:
        return str(self.body["stdout"])

    @property
    def stderr(self) -> str:
        return str(self.body["stderr"])

    @property
    def truncated(self) -> tuple[bool, bool]:
        return self.body["truncated"]["stdout"], self.body["truncated"]["stderr"]

    @property
    def span(self) -> tuple[dt.datetime, dt.datetime] | None:
        """When the program ran; None where none ever did."""
        if "started_at" not in self.body:
            return None
        return dt.datetime.fromisoformat(self.body["started_at"]), dt.datetime.fromisoformat(self.body["ended_at"])

    def doors(self) -> dict[str, str]:
        """What a program that tried many doors found."""
        assert self.end == COMPLETED, (self.end, self.stdout, self.stderr)
        found: dict[str, str] = json.loads(self.stdout.splitlines()[0])
        return found

    def open_doors(self) -> set[str]:
        return {name for name, how in self.doors().items() if how == OPEN}


@dataclass(frozen=True)
class Hood:
    """A node of one runtime, shared by the attacks."""

    node: NodeProcess
    runtime: str
    base: str
    python: str
    looked_at: list[int] = field(default_factory=lambda: [0])
    """How many lines of the node's log earlier attacks have answered for."""

    async def attack(self, command: Sequence[str], *, image: str | None = None, **options: Any) -> Answer:
        """Run an attack beside neighbours; then look at what it left."""
        for _ in range(12):  # a short attack may miss its neighbours: then it is no proof
            answer, neighbours = await self._beside(command, image=image or self.python, **options)
            if answer.span is None or any(_overlap(answer.span, span) for span in neighbours):
                break
        else:
            raise AssertionError("no neighbour ran beside the attack")
        await self.unharmed()
        return answer

    async def program(self, *words: str, **options: Any) -> Answer:
        """One of `hostile_programs` as an attack."""
        return await self.attack(program(*words), **options)

    async def shell(self, script: str, **options: Any) -> Answer:
        return await self.attack(["bash", "-c", script], image=self.base, **options)

    async def run(self, command: Sequence[str], *, image: str, **options: Any) -> Answer:
        began = Watch()
        answer = await self.node.run_job(command, image=image, **options)
        return Answer(answer, began.seconds)

    async def _beside(self, command: Sequence[str], **options: Any) -> tuple[Answer, list[Any]]:
        attack = asyncio.create_task(self.run(command, **options))
        spans = [await self._neighbour()]
        while not attack.done():
            spans.append(await self._neighbour())
        return await attack, spans

    async def _neighbour(self) -> tuple[dt.datetime, dt.datetime] | None:
        word = uuid.uuid4().hex
        answer = await self.run(["bash", "-c", _NEIGHBOUR], image=self.base, env={"WORD": word})
        assert answer.end == ("failed", 11, None), answer.body
        assert answer.stdout == "".join(f"{number} {word}\n" for number in range(1, _LINES + 1))
        assert answer.stderr == f"{word}\n"
        return answer.span

    async def unharmed(self) -> None:
        """Ready, and nothing left behind."""
        assert self.node.alive, self.node.log_tail()
        await until(self.node.ready, what="the node is not ready after the attack")
        await self.node.nothing_left()
        lines = self.node.logs()
        new, self.looked_at[0] = lines[self.looked_at[0] :], len(lines)
        assert not [line for line in new if line.get("level") in ("error", "critical")]


Span = tuple[dt.datetime, dt.datetime]


def _overlap(one: Span | None, other: Span | None) -> bool:
    return one is not None and other is not None and one[0] <= other[1] and other[0] <= one[1]


def program(*words: str) -> list[str]:
    return ["python3", "-c", SOURCE, *words]


def on_the_machine(marker: str) -> list[str]:
    """Processes of the whole machine that bear the marker in their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if marker.encode() in (folder / "cmdline").read_bytes():
                    found.append(folder.name)
    return found


def require_runtime(name: str) -> None:
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(DOCKER_SOCKET)), base_url="http://engine") as engine:
        if name not in engine.get("/info").json()["Runtimes"]:
            unavailable(f"the engine has no runtime {name}: run scripts/services up")


def _hood(kind: str, folder: Path, images: Mapping[str, str], **settings: str) -> Iterator[Hood]:
    runtime, _, warm = kind.partition("-")
    require_runtime(runtime)
    env = {"NODE_CANARY": CANARY, "FUMEHOOD_SLOTS": "8", **settings}
    node = NodeProcess(folder, runtime=runtime, env=env)
    if warm:
        node.program = warm_node.__name__
    with node:
        yield Hood(node, runtime, images["base"], images["python"])


KINDS = [
    "runc",
    pytest.param("runsc-warm", marks=pytest.mark.gvisor),
    *(pytest.param(kind, marks=pytest.mark.record) for kind in ("runc-warm", "runsc")),
]
"""Of the warm ones every sandbox, a neighbour's too, was started before anybody asked for it. Each runtime is attacked
in CI, one out of a pool and one not; the other two when a release is recorded."""


@pytest.fixture(scope="module", params=KINDS)
def hood(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    docker_socket: Path,
    images: dict[str, str],
) -> Iterator[Hood]:
    yield from _hood(request.param, tmp_path_factory.mktemp("hood"), images)


@pytest.fixture(scope="module")
def root_hood(tmp_path_factory: pytest.TempPathFactory, docker_socket: Path, images: dict[str, str]) -> Iterator[Hood]:
    """A node that lets programs be the image's root, on the runtime that was proven to hold root back."""
    yield from _hood("runc", tmp_path_factory.mktemp("root-hood"), images, FUMEHOOD_RUN_AS="image")


# --- using everything up -----------------------------------------------------------------------------------


async def test_a_fork_bomb_ends_at_its_timeout(hood: Hood) -> None:
    marker = f"bomb-{uuid.uuid4().hex}"
    answer = await hood.program("fork_bomb", marker, timeout_seconds=4)
    # gVisor may run out of memory first, or fall over its own limit of threads. Both are said as what they are.
    assert answer.end in ((TIMEOUT,) if hood.runtime == "runc" else (TIMEOUT, OOM, LOST))
    assert answer.stdout == "begun\n"
    assert not on_the_machine(marker)


async def test_a_fork_bomb_whose_leader_exits_is_swept_away(hood: Hood) -> None:
    marker = f"bomb-{uuid.uuid4().hex}"
    answer = await hood.shell(f": {marker}; f() {{ f | f & }}; f; exit 9", timeout_seconds=30)
    # bash that cannot make its first child says so, and ends with 254: the bomb was quicker than its own leader
    assert answer.end in (("failed", 9, None), ("failed", 254, None))
    assert not on_the_machine(marker)


async def test_threads_are_bounded(hood: Hood) -> None:
    answer = await hood.program("thread_bomb", timeout_seconds=8)
    if hood.runtime == "runc":
        assert answer.end == COMPLETED
        assert int(answer.stdout) < 256
    else:
        assert answer.end in (COMPLETED, TIMEOUT, OOM, LOST)


def refused_memory(hood: Hood, answer: Answer) -> bool:
    """Newer versions of gVisor refuse memory in time: nobody is killed, and Python ends by itself, often wordless."""
    return hood.runtime == "runsc" and answer.end == ("failed", 1, None)


async def test_running_out_of_memory_is_told_apart(hood: Hood) -> None:
    answer = await hood.program("hog")
    assert answer.stdout == ""
    assert answer.stderr.startswith("begun\n")
    if not refused_memory(hood, answer):
        assert answer.end == OOM
        assert answer.stderr == "begun\n"


async def test_a_shell_whose_child_ran_out_of_memory(hood: Hood) -> None:
    """bash exits with 137 of its own accord; the cause is still memory. (Older gVisor ends as a whole then.)"""
    answer = await hood.attack(["bash", "-c", 'python3 -c "$1" hog; exit $?', "bash", SOURCE])
    assert answer.end == OOM or refused_memory(hood, answer)
    assert answer.stdout == ""
    assert answer.stderr.startswith("begun\n")


async def test_a_child_out_of_memory_with_a_parent_that_fails_like_it(hood: Hood) -> None:
    assert (await hood.program("hog_in_child", "fail")).end == OOM


async def test_a_program_that_copes_with_its_childs_end_has_succeeded(hood: Hood) -> None:
    answer = await hood.program("hog_in_child", "cope")
    if hood.runtime == "runc":
        assert answer.end == COMPLETED
        assert answer.stdout == "child killed: True\n"
    else:  # gVisor refuses memory, or its memory is one process for the kernel and goes as a whole
        assert answer.end in (COMPLETED, OOM)


@pytest.mark.parametrize("script", ["exit 137", "kill -KILL $$", "bash -c 'kill -KILL $$'; exit 137"])
async def test_137_without_the_oom_killer_is_not_called_oom(hood: Hood, script: str) -> None:
    status, code, reason = (await hood.shell(script)).end
    assert (status, code) == ("failed", 137)
    assert reason in (None, "signal")


@pytest.mark.parametrize(("folder", "size"), [("/workspace", 256 * MIB), ("/tmp", 64 * MIB), ("/dev/shm", 16 * MIB)])
async def test_a_disk_filler_fills_only_its_own(hood: Hood, folder: str, size: int) -> None:
    answer = await hood.program("fill", folder, timeout_seconds=60)
    assert answer.end == COMPLETED
    found = json.loads(answer.stdout)
    assert found["reason"] == "ENOSPC"
    assert found["bytes"] <= size


async def test_a_sandbox_filled_in_every_place_at_once_is_out_of_memory_at_worst(hood: Hood) -> None:
    """256 + 64 + 16 MiB of files and a program's own memory are more than the 512 MiB that there are."""
    fill = [
        "bash",
        "-c",
        'for d in /workspace /tmp /dev/shm; do python3 -c "$1" fill $d; done; exec python3 -c "$1" hog',
    ]
    answer = await hood.attack([*fill, "bash", SOURCE])
    assert answer.end == OOM
    assert answer.stdout.count("ENOSPC") == 3


async def test_an_inode_filler_fills_only_its_own(hood: Hood) -> None:
    answer = await hood.program("fill_inodes", "/workspace", "70000", timeout_seconds=60)
    assert answer.end == COMPLETED
    found = json.loads(answer.stdout)
    if hood.runtime == "runc":
        assert found["reason"] == "ENOSPC"
        assert found["files"] <= 65_536
    else:  # gVisor counts no inodes: memory is the bound, as for everything in its own kernel
        assert found == {"files": 69_999, "reason": ""}


async def test_descriptors_are_bounded(hood: Hood) -> None:
    answer = await hood.program("fill_descriptors")
    assert answer.end == COMPLETED
    assert int(answer.stdout) <= 1024


async def test_a_file_larger_than_allowed_ends_its_writer_only(hood: Hood) -> None:
    answer = await hood.shell("trap '' XFSZ; head -c 300M /dev/zero > /workspace/big; echo $?")
    assert answer.end == COMPLETED
    assert answer.stdout == "1\n"


# --- floods ------------------------------------------------------------------------------------------------


async def _flood(hood: Hood, mebibytes: int, timeout_seconds: int) -> None:
    hood.node.reset_peak()
    before = hood.node.rss_bytes()
    answer = await hood.program(
        "flood", str(mebibytes), timeout_seconds=timeout_seconds, answer_timeout=timeout_seconds + 30
    )
    grown = hood.node.rss_bytes(peak=True) - before
    print(f"{hood.runtime}: {mebibytes} MiB in {answer.seconds:.1f} s, the node grew by {grown / MIB:.1f} MiB")
    assert answer.end == COMPLETED
    assert answer.truncated == (True, False)
    assert answer.stdout == "flood---" * (LIMIT // 8)
    assert grown < GROWTH
    assert answer.seconds < timeout_seconds + NOISE


async def test_a_flood_that_ends(hood: Hood) -> None:
    await _flood(hood, 200, timeout_seconds=150)


@pytest.mark.record
@pytest.mark.timeout(900)
@pytest.mark.parametrize("runtime", ["runc", pytest.param("runsc", marks=pytest.mark.gvisor)])
async def test_a_flood_of_2_gib(tmp_path: Path, docker_socket: Path, images: dict[str, str], runtime: str) -> None:
    with contextlib.contextmanager(_hood)(runtime, tmp_path, images) as hood:
        await _flood(hood, 2048, timeout_seconds=600)


async def test_a_flood_that_never_ends(hood: Hood, time_bounds: TimeBounds) -> None:
    hood.node.reset_peak()
    before = hood.node.rss_bytes()
    answer = await hood.attack(["yes"], timeout_seconds=10)
    assert answer.end == TIMEOUT
    assert answer.truncated == (True, False)
    assert answer.stdout == "y\n" * (LIMIT // 2)
    assert hood.node.rss_bytes(peak=True) - before < GROWTH
    time_bounds.check(answer.seconds, 10 + NOISE)


async def test_a_flood_on_both_streams_keeps_them_apart(hood: Hood) -> None:
    answer = await hood.shell("yes out & yes err >&2 & sleep 2; exit 4")
    assert answer.end == ("failed", 4, None)
    assert answer.truncated == (True, True)
    assert set(answer.stdout.split("\n")[:-1]) == {"out"}
    assert set(answer.stderr.split("\n")[:-1]) == {"err"}


# --- outliving, and not dying ------------------------------------------------------------------------------


async def test_a_child_that_left_its_session_does_not_outlive_a_timeout(hood: Hood, time_bounds: TimeBounds) -> None:
    marker = f"outlive-{uuid.uuid4().hex}"
    job = asyncio.create_task(hood.run(program("outlive", marker, "sleep"), image=hood.python, timeout_seconds=5))
    await until(hood.node.containers, what="the job has no container")
    (container,) = await hood.node.containers()
    if hood.runtime == "runc":  # gVisor's processes cannot be seen from outside, only itself
        await until(lambda: len(on_the_machine(marker)) >= 2, what="the child is not there")
    answer = await job
    left = on_the_machine(marker), on_the_machine(container["Id"]), await hood.node.containers()
    assert left == ([], [], [])
    assert answer.end == TIMEOUT
    assert answer.stdout == f"begun {marker}\n"
    time_bounds.check(answer.seconds, 5 + 3)
    await hood.unharmed()


async def test_a_daemon_left_behind_does_not_outlive_its_job(hood: Hood, time_bounds: TimeBounds) -> None:
    marker = f"daemon-{uuid.uuid4().hex}"
    answer = await hood.program("outlive", marker, "exit")
    assert answer.end == COMPLETED
    assert answer.stdout == f"begun {marker}\n"
    time_bounds.check(answer.seconds, 30)
    assert not on_the_machine(marker)


async def test_zombies_do_no_harm(hood: Hood) -> None:
    answer = await hood.program("zombies", "120")
    assert answer.end == COMPLETED
    assert answer.stdout == "120\n"


async def test_a_program_that_stops_itself_is_ended_by_its_timeout(hood: Hood, time_bounds: TimeBounds) -> None:
    answer = await hood.program("stop_yourself", timeout_seconds=3)
    assert answer.end == TIMEOUT
    assert answer.stdout == "begun\n"
    time_bounds.check(answer.seconds, 3 + 3)


@pytest.mark.parametrize(("whom", "code"), [("group", 137), ("session", 143)])
async def test_a_program_that_kills_its_own_group(hood: Hood, whom: str, code: int) -> None:
    answer = await hood.program("kill_group", whom)
    assert answer.end == ("failed", code, "signal")
    assert answer.stdout == "begun\n"


async def test_killing_everybody_does_not_reach_the_warden(hood: Hood) -> None:
    answer = await hood.program("kill_everybody")
    assert answer.open_doors() == set()
    assert answer.stdout.splitlines()[1:] == ["alive"]


# --- devices, /proc, /sys, the root ------------------------------------------------------------------------

HARMLESS = {
    "runc": set[str](),
    # Within gVisor's own kernel, and without meaning there: its OOM killer is the host's, its scheduler too.
    "runsc": {"less oom_score_adj", "priority", "list fd"},
}
"""Doors that open onto nothing."""

TRIES = ["system_files", "devices", "read_only_root", "warden_file", "mounts", "kernel", "trace", "raw_sockets"]


@pytest.mark.parametrize("name", [*TRIES, "warden_process"])
async def test_no_door_is_open(hood: Hood, name: str) -> None:
    answer = await hood.program(name)
    assert answer.open_doors() <= HARMLESS[hood.runtime]
    assert len(answer.doors()) > 1


async def test_the_warden_is_all_that_lies_in_its_folder(hood: Hood) -> None:
    answer = await hood.program("warden_file")
    assert json.loads(answer.stdout.splitlines()[1]) == ["warden"]


async def test_programs_have_no_privileges(hood: Hood) -> None:
    answer = await hood.program("root_or_not")
    assert json.loads(answer.stdout)["uid"] == 65532
    assert json.loads(answer.stdout)["capabilities"] == "0" * 16


# --- the image's root --------------------------------------------------------------------------------------

ROOTS = {"/dev", "1/oom_score_adj", "1/clear_refs", "list fd"}
"""What root may do here: use the 64 MiB of /dev that count as its memory, make the warden die first when memory ends
(which is then said), forget which pages the warden used, and count its descriptors."""


@pytest.mark.parametrize("name", [*TRIES, "warden_process"])
async def test_no_door_is_open_to_root(root_hood: Hood, name: str) -> None:
    answer = await root_hood.program(name)
    assert answer.open_doors() <= ROOTS


async def test_root_has_no_capabilities(root_hood: Hood) -> None:
    answer = await root_hood.program("root_or_not")
    assert json.loads(answer.stdout)["uid"] == 0
    assert json.loads(answer.stdout)["capabilities"] == "0" * 16


async def test_root_killing_everybody_does_not_reach_the_warden(root_hood: Hood) -> None:
    answer = await root_hood.program("kill_everybody")
    assert answer.open_doors() == set()
    assert answer.stdout.splitlines()[1:] == ["alive"]


async def test_root_does_not_outlive_its_timeout(root_hood: Hood) -> None:
    marker = f"outlive-{uuid.uuid4().hex}"
    answer = await root_hood.program("outlive", marker, "sleep", timeout_seconds=3)
    assert answer.end == TIMEOUT
    assert not on_the_machine(marker)


async def test_root_fills_only_its_own(root_hood: Hood) -> None:
    answer = await root_hood.program("fill", "/dev", timeout_seconds=60)
    assert answer.end == COMPLETED
    assert json.loads(answer.stdout)["reason"] == "ENOSPC"
    assert json.loads(answer.stdout)["bytes"] <= 64 * MIB


async def test_root_that_makes_the_warden_die_of_memory_gets_the_truth(root_hood: Hood) -> None:
    """Without the warden nobody knows how the program ended, but why it ended is known."""
    answer = await root_hood.attack(
        ["bash", "-c", 'echo 1000 > /proc/1/oom_score_adj; python3 -c "$1" hog_in_child cope', "bash", SOURCE]
    )
    assert answer.end in (OOM, COMPLETED)  # whom the kernel took: the warden, or the child


async def test_root_finds_no_secret(root_hood: Hood) -> None:
    await _finds_no_secret(root_hood)


async def test_root_is_refused_where_it_is_not_held_back(
    tmp_path: Path, docker_socket: Path, images: dict[str, str]
) -> None:
    with contextlib.contextmanager(_hood)("runsc", tmp_path, images, FUMEHOOD_RUN_AS="image") as hood:
        answer = await hood.run(["id"], image=hood.base)
        assert answer.end == ("failed", 125, "not_started")
        assert "root is refused" in answer.stderr
        assert "runsc" in answer.stderr
        await hood.unharmed()


# --- the network -------------------------------------------------------------------------------------------


@dataclass
class Listener:
    """Somebody on the host who must never be reached."""

    tcp: socket.socket
    udp: socket.socket

    @property
    def target(self) -> str:
        host, port = self.tcp.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def reached(self) -> bool:
        for door in (self.tcp, self.udp):
            with contextlib.suppress(BlockingIOError):
                door.accept() if door is self.tcp else door.recv(16)
                return True
        return False


@contextlib.contextmanager
def listeners() -> Iterator[list[Listener]]:
    """One on each address of this machine, the engine's bridge among them."""
    made: list[Listener] = []
    with contextlib.ExitStack() as stack:
        for family, host in _addresses():
            tcp = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            udp = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
            try:
                tcp.bind((host, 0))
                udp.bind((host, tcp.getsockname()[1]))
            except OSError:
                continue
            tcp.listen()
            tcp.setblocking(False)
            udp.setblocking(False)
            made.append(Listener(tcp, udp))
        yield made


def _addresses() -> list[tuple[socket.AddressFamily, str]]:
    found = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
    routes = Path("/proc/net/fib_trie").read_text() if Path("/proc/net/fib_trie").exists() else ""
    local = re.findall(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL", routes)
    return found + [(socket.AF_INET, host) for host in sorted(set(local)) if not host.startswith("127.")]


@pytest.mark.parametrize("policy", ["none", "restricted"])
async def test_nothing_of_the_host_or_the_network_can_be_reached(hood: Hood, registry: str, policy: str) -> None:
    with listeners() as listening:
        targets = [listener.target for listener in listening]
        targets += [registry, "169.254.169.254:80", "169.254.170.2:80", "[fe80::1]:80", "8.8.8.8:53", "0.0.0.0:5055"]
        targets += [f"127.0.0.1:{httpx.URL(hood.node.url).port}"]
        answer = await hood.program("reach", *targets, network_policy=policy)
        found = answer.doors()
        assert found.pop("interfaces") == "lo"
        assert set(found.values()) & {OPEN} == set(), found
        assert len(found) > 2 * len(targets)
        assert not any(listener.reached() for listener in listening)


# --- secrets -----------------------------------------------------------------------------------------------


async def _finds_no_secret(hood: Hood) -> None:
    words = {hood.node.token, "FUMEHOOD_", CANARY, "NODE_CANARY", hood.node.node_id}
    answer = await hood.program("secrets", *words, "CYNODE_JOB_ID")
    assert answer.end == COMPLETED
    found = json.loads(answer.stdout)
    assert all("CYNODE_JOB_ID" in place for place in found["found"]), found["found"]
    assert found["found"], "the search finds nothing at all, so it proves nothing"
    assert set(found["environ"]) == {
        "PATH",
        "LANG",
        "HOME",
        "CYNODE_TASK_ID",
        "CYNODE_JOB_ID",
        "CYNODE_WORKSPACE_DIR",
    }
    ours = {path for path in found["mounts"] if not path.startswith(("/proc", "/sys", "/dev", "/etc/"))}
    assert ours == {"/", "/tmp", "/workspace", "/.fumehood/warden"}


async def test_no_secret_of_the_node_is_visible(hood: Hood) -> None:
    await _finds_no_secret(hood)


# --- output ------------------------------------------------------------------------------------------------


async def test_bytes_shaped_like_frames_are_only_output(hood: Hood) -> None:
    answer = await hood.program("impersonate")
    assert answer.end == ("failed", 3, None)
    whole = hostile_programs.impersonation()
    assert answer.truncated == (False, False)
    assert answer.stdout == answer.stderr == whole.decode("utf-8", "replace")


async def test_descriptors_that_were_never_given_lead_nowhere(hood: Hood) -> None:
    answer = await hood.program("wild_descriptors")
    assert answer.end == ("failed", 5, None)
    assert json.loads(answer.stdout) == ["EBADF"]


async def test_a_program_that_closes_its_streams_is_waited_for(hood: Hood) -> None:
    answer = await hood.program("close_streams")
    assert answer.end == ("failed", 7, None)
    assert (answer.stdout, answer.stderr) == ("before\n", "")


async def test_what_lies_in_a_large_pipe_at_the_end_is_not_lost(hood: Hood) -> None:
    answer = await hood.program("big_pipe")
    assert answer.end == COMPLETED
    assert answer.truncated == (True, False)
    assert answer.stdout == "y" * LIMIT


@pytest.mark.parametrize(
    ("written", "text", "cut"),
    [
        ([(b"a\xff\xfeb\xc3(\xe2\x82", 1)], "a\ufffd\ufffdb\ufffd(\ufffd", False),
        ([(b"a\0b\0", 1)], "a\0b\0", False),
        ([(b"x", LIMIT)], "x" * LIMIT, False),
        ([(b"x", LIMIT + 1)], "x" * LIMIT, True),
        ([(b"x", LIMIT - 2), ("é".encode(), 1)], "x" * (LIMIT - 2) + "é", False),
        ([(b"x", LIMIT - 1), ("é".encode(), 1)], "x" * (LIMIT - 1), True),
        ([("€".encode(), 90_000)], "€" * (LIMIT // 3), True),
        ([("😀".encode(), 65_536)], "😀" * 65_536, False),
        ([(b"x", LIMIT - 1), (b"\xc3", 1)], "x" * (LIMIT - 1) + "\ufffd", False),
    ],
    ids=["invalid", "nul", "limit", "limit+1", "fits", "cut in two", "three bytes", "four bytes", "invalid at limit"],
)
async def test_output_is_cut_at_a_byte_and_is_valid_text(
    hood: Hood, written: list[tuple[bytes, int]], text: str, cut: bool
) -> None:
    """Both streams at once."""
    data = f"data = b''.join(piece * count for piece, count in {written!r})"
    script = f"import sys; {data}; sys.stdout.buffer.write(data); sys.stderr.buffer.write(data)"
    answer = await hood.run(["python3", "-c", script], image=hood.python)
    assert answer.end == COMPLETED
    assert answer.stdout == answer.stderr == text
    assert answer.truncated == (cut, cut)


# --- arguments and environment -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        {"command": ["echo", "a\0b"]},
        {"command": ["ec\0ho"]},
        {"env": {"A": "b\0c"}},
        {"env": {"A\0": "b"}},
        {"env": {"A=B": "c"}},
        {"env": {"": "c"}},
    ],
)
async def test_nul_and_broken_names_are_refused(hood: Hood, bad: dict[str, Any]) -> None:
    answer = await hood.run(**{"command": ["true"], "image": hood.base, **bad})
    assert answer.http.status_code == 400
    assert answer.body["type"] == "urn:fumehood:problem:invalid-request"


async def test_a_lone_surrogate_is_refused(hood: Hood) -> None:
    """JSON can spell it, UTF-8 and so argv cannot."""
    body = json.dumps({"version": 1, "task_id": str(uuid.uuid4()), "job_id": str(uuid.uuid4())})[:-1]
    body += ', "sandbox": {"image": ' + json.dumps(hood.base) + ', "command": ["echo", "\\ud800"]}}'
    async with hood.node.client() as client:
        headers = {"content-type": "application/json"}
        answer = await client.post("/v1/worker/jobs:run", content=body, headers=headers)
    assert answer.status_code == 400
    await hood.unharmed()


async def test_an_argument_of_1_mib_is_too_long_for_the_kernel(hood: Hood) -> None:
    answer = await hood.attack(program("arguments", "x" * MIB))
    assert answer.end == ("failed", 126, "not_started")
    assert "too long" in answer.stderr  # E2BIG; gVisor says ENAMETOOLONG


async def test_1_mib_in_many_arguments_arrives_whole(hood: Hood) -> None:
    words = [f"{number:064d}" for number in range(MIB // 64)]
    answer = await hood.attack(program("arguments", *words))
    assert answer.end == COMPLETED
    assert answer.stdout == f"{len(words)} {MIB} {zlib.crc32(''.join(words).encode())}\n"


async def test_3_mib_of_arguments_fail_truthfully(hood: Hood) -> None:
    answer = await hood.attack(program("arguments", *(f"{number:064d}" for number in range(3 * MIB // 64))))
    assert answer.http.status_code == 200, answer.body
    assert answer.end in (("failed", 125, "not_started"), ("failed", 126, "not_started"))
    assert answer.stdout == ""
    assert answer.stderr.startswith("fumehood: ")


async def test_a_large_environment_arrives_whole(hood: Hood) -> None:
    env = {f"VARIABLE_{number}": f"{number:0100000d}" for number in range(10)}
    script = 'for n in 0 1 2 3 4 5 6 7 8 9; do v=VARIABLE_$n; echo "${#v} $n ${!v:99998} ${!v:0:2}"; done'
    answer = await hood.attack(["bash", "-c", script], image=hood.base, env=env)
    assert answer.end == COMPLETED
    assert answer.stdout == "".join(f"10 {number} 0{number} 00\n" for number in range(10))


async def test_an_environment_that_is_too_large_fails_truthfully(hood: Hood) -> None:
    answer = await hood.attack(["true"], image=hood.base, env={f"V{number}": "x" * 100_000 for number in range(40)})
    assert answer.http.status_code == 200, answer.body
    assert answer.end in (("failed", 125, "not_started"), ("failed", 126, "not_started"))
    assert answer.stderr.startswith("fumehood: ")
