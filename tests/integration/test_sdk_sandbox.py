"""The SDK's sandboxes as their users have them: a server and a worker as processes, and real containers."""

from __future__ import annotations

import hashlib
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from fumehood import (
    AsyncClient,
    AsyncSandbox,
    Client,
    CommandFailedError,
    FileChange,
    FileEvent,
    InvalidPayloadError,
    Sandbox,
    SandboxFileNotFoundError,
    SandboxGoneError,
    SetupFailedError,
    Template,
    WaitTimeoutError,
)
from tests.conftest import TimeBounds
from tests.console_process import ConsoleCell, docker

PATIENCE = 240.0


@pytest.fixture(scope="module")
def cell(docker_socket: Path, python_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleCell]:
    with ConsoleCell(tmp_path_factory.mktemp("sdk"), python_image, servers=1) as made:
        made.worker()
        yield made


@pytest.fixture(scope="module")
def client(cell: ConsoleCell) -> Iterator[Client]:
    with Client(cell.servers[0].url, key=cell.servers[0].token) as made:
        yield made


@pytest.fixture(scope="module")
def sandbox(client: Client) -> Iterator[Sandbox]:
    with Sandbox.create(client=client, lease_seconds=1800, memory_mib=512, env={"WHO": "you"}) as made:
        yield made


@pytest.fixture
async def elsewhere(cell: ConsoleCell, sandbox: Sandbox) -> AsyncIterator[AsyncSandbox]:
    """The same one, for coroutines."""
    server = cell.servers[0]
    async with (
        AsyncClient(server.url, key=server.token) as client,
        await AsyncSandbox.connect(sandbox.id, client=client) as found,
    ):
        yield found


# --- commands ----------------------------------------------------------------------------------------------


def test_ends_are_told_apart(sandbox: Sandbox) -> None:
    run = sandbox.commands.run
    result = run("echo hello $WHO; echo oh >&2; exit 3")
    assert (result.stdout, result.stderr, result.status, result.exit_code) == ("hello you\n", "oh\n", "exited", 3)
    assert result.started_at is not None
    assert result.ended_at is not None
    assert result.started_at <= result.ended_at
    assert run(["python3", "-c", "print(6 * 7)"]).stdout == "42\n"
    assert run(["echo", "$WHO; exit 9"]).stdout == "$WHO; exit 9\n"
    assert run("pwd; echo $A", cwd="/tmp", env={"A": "b"}).stdout == "/tmp\nb\n"
    killed = run("kill -TERM $$")
    assert (killed.status, killed.signal, killed.exit_code) == ("signaled", "SIGTERM", None)
    late = run("echo begun; sleep 60", timeout=1)
    assert (late.status, late.stdout, late.exit_code, late.ok) == ("timed_out", "begun\n", None, False)
    missing = run(["no-such-program"])
    assert (missing.status, missing.exit_code, missing.ok) == ("not_started", None, False)
    assert missing.detail
    with pytest.raises(CommandFailedError, match="did not start"):
        missing.check()


def test_a_full_memory_is_told(client: Client) -> None:
    with Sandbox.create(client=client, memory_mib=64) as small:
        result = small.commands.run(["python3", "-c", "x = bytearray(10**9); print(len(x))"])
    assert (result.status, result.ok, result.stdout) == ("oom", False, "")
    with pytest.raises(CommandFailedError, match=r"memory was full\n.*memory_mib="):
        result.check()


def test_a_full_pipe_both_ways_and_every_byte(sandbox: Sandbox) -> None:
    given = bytes(range(256)) * 16_384  # four MiB in, ten out
    heard: list[str] = []
    result = sandbox.commands.run("tee copy | base64; sha256sum < copy >&2", input=given, on_stderr=heard.append)
    assert result.ok
    assert not result.stdout_truncated
    assert result.stderr.split()[0] == hashlib.sha256(given).hexdigest()
    assert "".join(heard) == result.stderr
    assert sandbox.commands.run("base64 -d | sha256sum", input=result.stdout).stdout == result.stderr


def test_more_than_is_wanted_is_said_to_be_cut(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("head -c 3000000 /dev/zero | tr '\\0' x", max_output_bytes=1_000_000)
    assert (len(result.stdout), result.stdout_truncated, result.exit_code) == (1_000_000, True, 0)


def test_what_nobody_read_in_time_is_said_to_be_missing(sandbox: Sandbox) -> None:
    command = sandbox.commands.start("head -c 20000000 /dev/zero | tr '\\0' x")
    result = command.wait(timeout=PATIENCE)
    assert (result.exit_code, result.stdout_truncated) == (0, True)
    assert len(result.stdout) < 20_000_000 == result.info.stdout_bytes


def test_a_command_is_started_found_fed_signalled_and_killed(sandbox: Sandbox) -> None:
    command = sandbox.commands.start("trap 'echo term; exit 5' TERM; read line; echo got $line; cat", stdin=True)
    output = command.output()
    command.send("one\n")
    assert next(output).text == "got one\n"
    found = sandbox.commands.attach(command.id)
    found.send("two\n")
    assert next(output).text == "two\n"
    with pytest.raises(WaitTimeoutError):
        found.wait(timeout=0.2)
    assert command.status() == "running"
    found.close_stdin()
    assert found.wait(timeout=PATIENCE).stdout == "got one\ntwo\n"
    assert [piece.text for piece in output] == []

    other = sandbox.commands.start("sleep 1000")
    assert other.id in [one.id for one in sandbox.commands.list()]
    assert sandbox.commands.kill(other.id)
    assert other.wait(timeout=PATIENCE).signal == "SIGKILL"
    assert not other.kill()


def test_interrupting_takes_the_command_along(sandbox: Sandbox) -> None:
    def interrupt(text: str) -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        sandbox.commands.run("echo begun; sleep 1000; echo survived > late", on_stdout=interrupt)
    command = sandbox.commands.attach(sandbox.commands.list()[-1].id)
    assert command.wait(timeout=PATIENCE).signal == "SIGKILL"
    assert not sandbox.files.exists("late")


def test_a_sandbox_that_is_killed_ends_its_commands_with_nothing_known(client: Client) -> None:
    doomed = Sandbox.create(client=client)
    begun = threading.Event()
    ends: list[str] = []

    def run() -> None:
        result = doomed.commands.run("echo begun; sleep 1000", on_stdout=lambda _: begun.set())
        ends.append(result.status)

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(PATIENCE)
    (container,) = docker("ps", "-q", "--filter", f"label=fumehood.session={doomed.id}").split()
    docker("kill", container)
    thread.join(PATIENCE)
    assert ends == ["sandbox_lost"]
    with pytest.raises(SandboxGoneError):
        doomed.commands.run("true")


def test_many_at_once(sandbox: Sandbox) -> None:
    said: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: said.append(sandbox.commands.run(f"sleep 0.2; echo {n}").stdout))
        for n in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(map(int, said)) == list(range(12))


# --- sandboxes ---------------------------------------------------------------------------------------------


def test_leaving_removes_it_and_all_that_is_in_it(client: Client) -> None:
    made = Sandbox.create(client=client, name="short-lived")
    assert (made.id, made.info().runtime) == ("short-lived", "runc")
    with pytest.raises(ZeroDivisionError), made:
        raise ZeroDivisionError
    with pytest.raises(SandboxGoneError):
        Sandbox.connect("short-lived", client=client)
    assert "short-lived" not in [one.id for one in Sandbox.list(client=client)]


def test_a_lease_is_extended_and_kept_in_bounds(client: Client) -> None:
    with Sandbox.create(client=client, lease_seconds=60) as made:
        before = made.info().lease_expires_at
        after = made.extend(600).lease_expires_at
        assert before is not None
        assert after is not None
        assert after > before
        with pytest.raises(InvalidPayloadError, match="between 60 and 1800"):
            made.extend(80_000)


def test_a_template_is_all_or_nothing(client: Client) -> None:
    template = Template(env={"NAME": "you"}, files={"a/t.txt": "hello"}, setup=["cp a/t.txt b.txt", ["touch", "$c"]])
    with Sandbox.create(template=template, client=client) as made:
        assert made.commands.run("cat b.txt; echo $NAME; ls -- '$c'").stdout == "helloyou\n$c\n"
    before = {one.id for one in Sandbox.list(client=client)}
    with pytest.raises(SetupFailedError, match=r"setup command 1 exited with 127: .*not found") as failed:
        Sandbox.create(template=Template(setup=["no-such-thing"]), client=client)
    assert failed.value.result.exit_code == 127
    assert {one.id for one in Sandbox.list(client=client)} == before


# --- files -------------------------------------------------------------------------------------------------


def test_files_in_and_out(sandbox: Sandbox, tmp_path: Path) -> None:
    files = sandbox.files
    files.write("notes/a.txt", "grüße", mode=0o600)
    assert files.read("notes/a.txt") == "grüße"
    assert (files.stat("notes/a.txt").mode, files.stat("notes").kind) == (0o600, "folder")
    assert [one.path for one in files.list("notes")] == ["notes/a.txt"]
    with pytest.raises(SandboxFileNotFoundError):
        files.read("nothing")
    files.make_folder("notes/deep/deeper")
    files.remove("notes", recursive=True)
    assert not files.exists("notes")

    source = tmp_path / "src"
    (source / "bin").mkdir(parents=True)
    (source / "bin" / "hello").write_text("#!/bin/sh\necho hello\n")
    (source / "bin" / "hello").chmod(0o755)
    (source / "data").write_bytes(bytes(range(256)) * 10_000)
    files.upload(source, "up")
    assert files.upload(source, "up").folders == 1, "a folder that is there is filled"
    assert sandbox.commands.run("up/bin/hello").stdout == "hello\n"
    files.download("up", tmp_path / "back")
    assert (tmp_path / "back" / "data").read_bytes() == (source / "data").read_bytes()


def test_what_a_hostile_sandbox_leaves_never_gets_out_of_the_folder(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("mine")
    sandbox.commands.run(
        "mkdir -p evil/sub; ln -s /etc/passwd evil/link; ln -s .. evil/sub/up; ln -s / evil/root; mkfifo evil/pipe; "
        f"ln -s {secret} evil/secret; printf x > \"$(printf 'evil/\\377')\"; echo fine > evil/fine",
        check=True,
    )
    done = sandbox.files.download("evil", tmp_path / "got")
    assert sorted(str(path.relative_to(tmp_path / "got")) for path in (tmp_path / "got").rglob("*")) == ["fine", "sub"]
    assert (done.files, len(done.skipped)) == (1, 6)
    assert secret.read_text() == "mine"


def test_changes_are_seen(sandbox: Sandbox) -> None:
    sandbox.files.make_folder("watched/below")
    changes = sandbox.files.watch("watched", recursive=True, interval=0.05)
    sandbox.commands.run("echo 1 > watched/below/new")
    assert next(changes) == FileEvent(FileChange.CREATED, "watched/below/new")
    sandbox.commands.run("echo 22 >> watched/below/new")
    assert next(changes) == FileEvent(FileChange.CHANGED, "watched/below/new")
    sandbox.commands.run("rm watched/below/new")
    assert next(changes) == FileEvent(FileChange.REMOVED, "watched/below/new")


def test_a_terminal_is_sat_at(sandbox: Sandbox) -> None:
    terminal = sandbox.pty.open(rows=30, columns=100)
    drawing, drawn = terminal.output(), ""

    def until(what: str) -> None:
        """Keys that come before their time are for another program."""
        nonlocal drawn
        while what not in drawn:
            drawn += next(drawing).text
        drawn = drawn.partition(what)[2]

    terminal.send("stty size; tty >/dev/null && echo yes-$((1+1))\n")
    until("30 100")
    until("yes-2")
    terminal.resize(40, 120)
    terminal.send("sh -c 'stty size; echo up-$((2+2)); exec sleep 1000'\n")
    until("40 120")
    until("up-4")
    terminal.send("\x03")
    until("^C")
    terminal.send("exit 7\n")
    result = terminal.wait(timeout=PATIENCE)
    assert result.exit_code == 7


# --- the other flavour -------------------------------------------------------------------------------------


async def test_the_same_for_coroutines(elsewhere: AsyncSandbox, tmp_path: Path, time_bounds: TimeBounds) -> None:
    given = bytes(range(256)) * 4096
    result = await elsewhere.commands.run("base64", input=given, check=True)
    assert (await elsewhere.commands.run("base64 -d", input=result.stdout)).stdout_bytes == given
    command = await elsewhere.commands.start("cat", stdin=True)
    await command.send("hello")
    await command.close_stdin()
    assert [piece.text async for piece in command.output()] == ["hello"]
    await elsewhere.files.write("async/a.txt", "x")
    assert (await elsewhere.files.download("async", tmp_path / "got")).files == 1
    terminal = await elsewhere.pty.open(command="tty")
    assert "/dev/" in (await terminal.wait(timeout=PATIENCE)).stdout
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        await (await elsewhere.commands.start("sleep 1000")).wait(timeout=0.2)
    time_bounds.check(time.monotonic() - began, PATIENCE)
