"""The SDK's asynchronous flavour against the real server, with a worker whose sandboxes are in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fumehood import (
    AsyncClient,
    AsyncSandbox,
    CommandFailedError,
    CommandNotFoundError,
    FileChange,
    FileEvent,
    InvalidPayloadError,
    InvalidRequestError,
    IsFolderError,
    LimitExceededError,
    NoCapacityError,
    NoWorkerError,
    SandboxFileError,
    SandboxFileNotFoundError,
    SandboxGoneError,
    SetupFailedError,
    Template,
    WaitTimeoutError,
    WorkerLostError,
)
from fumehood.sdk.aio.transport import AsyncTransport
from fumehood.sdk.connection import Connection
from fumehood.wire.console.codes import Reason
from tests.contract.console_harness import Desk, desk
from tests.waiting import until

PATIENCE = 120.0


@pytest.fixture
async def there() -> AsyncIterator[Desk]:
    async with desk(real=True) as made:
        yield made


@pytest.fixture
async def client(there: Desk) -> AsyncClient:
    connection = Connection(str(there.client.base_url), None, direct=True)
    return AsyncClient(transport=AsyncTransport(connection, http=there.client))


@pytest.fixture
async def sandbox(client: AsyncClient) -> AsyncSandbox:
    return await AsyncSandbox.create(client=client)


async def test_a_sandbox_is_made_found_listed_extended_and_removed(there: Desk, client: AsyncClient) -> None:
    made = await AsyncSandbox.create(
        "127.0.0.1:5055/a:1", name="mine", memory_mib=256, env={"A": "b"}, network="dns-only", client=client
    )
    assert (made.id, made.image, made.image_digest) == ("mine", "127.0.0.1:5055/a:1", "sha256:" + "1" * 64)
    wish = there.session("mine").wish
    assert (wish.memory_mib, wish.env, wish.network, wish.lease_ttl_sec) == (256, {"A": "b"}, "dns-only", 300)
    found = await AsyncSandbox.connect("mine", client=client)
    info = await found.info()
    assert (info.network, info.runtime, info.running_commands) == ("dns-only", "runc", 0)
    later = await found.extend(1200)
    assert info.lease_expires_at is not None
    assert later.lease_expires_at is not None
    assert later.lease_expires_at > info.lease_expires_at
    await AsyncSandbox.create(client=client)
    assert len(await AsyncSandbox.list(client=client)) == 2
    assert len(await AsyncSandbox.list(limit=1, client=client)) == 1
    assert await found.kill()
    assert not await made.kill()
    with pytest.raises(SandboxGoneError):
        await AsyncSandbox.connect("mine", client=client)


async def test_leaving_removes_it_whatever_happened(there: Desk, client: AsyncClient) -> None:
    with pytest.raises(ZeroDivisionError):
        async with await AsyncSandbox.create(client=client):
            raise ZeroDivisionError
    assert there.worker.sessions == {}
    assert await AsyncSandbox.list(client=client) == []  # the client is not closed: it was the caller's


async def test_what_somebody_made_before_is_found_and_left_alone(client: AsyncClient) -> None:
    first = await AsyncSandbox.create(name="shared", client=client)
    await first.files.write("kept", "as it was")
    template = Template(files={"kept": "prepared anew"})
    async with await AsyncSandbox.create(name="shared", template=template, client=client) as found:
        assert found.id == first.id
    assert await first.files.read("kept") == "as it was"
    async with await AsyncSandbox.create(name="own", client=client):
        assert {one.id for one in await AsyncSandbox.list(client=client)} == {"shared", "own"}
    assert [one.id for one in await AsyncSandbox.list(client=client)] == ["shared"]


async def test_of_two_programs_that_ask_for_one_name_only_one_prepares_and_removes_it(
    there: Desk, client: AsyncClient
) -> None:
    template = Template(setup=["echo x"])
    both = [AsyncSandbox.create(name="shared", template=template, client=client) for _ in range(2)]
    made, found = sorted(await asyncio.gather(*both), key=lambda one: not one.created)
    assert (made.created, found.created) == (True, False)
    assert len(there.session("shared").processes) == 1
    async with found:
        pass
    assert (await made.info()).id == "shared"
    async with made:
        pass
    assert there.worker.sessions == {}


async def test_a_program_that_is_refused_a_name_leaves_the_sandbox_that_has_it(
    there: Desk, client: AsyncClient
) -> None:
    both = [AsyncSandbox.create(image, name="shared", client=client) for image in ("base:1", "base:2")]
    outcomes = await asyncio.gather(*both, return_exceptions=True)
    assert [type(one) for one in outcomes].count(InvalidPayloadError) == 1
    assert len(there.worker.sessions) == 1


@pytest.mark.parametrize("was_there", [False, True])
async def test_a_program_that_is_interrupted_removes_what_it_made_and_nothing_else(
    there: Desk, client: AsyncClient, was_there: bool
) -> None:
    if was_there:
        await AsyncSandbox.create(name="shared", client=client)
    there.worker.answers_create = asyncio.Event()
    creating = asyncio.create_task(AsyncSandbox.create(name="shared", client=client))
    await until(lambda: there.worker.calls.count("session.create") == 1 + was_there)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert len(there.worker.sessions) == was_there


async def test_input_goes_on_behind_what_others_gave(sandbox: AsyncSandbox) -> None:
    started = await sandbox.commands.start("cat", stdin=True)
    other = await sandbox.commands.attach(started.id)
    await started.send("one\n")
    await other.send("two\n")
    await started.send("SIX\n")
    await other.close_stdin()
    assert (await started.wait(timeout=PATIENCE)).stdout == "one\ntwo\nSIX\n"


async def test_a_command_runs_and_its_output_is_heard_as_it_comes(there: Desk, sandbox: AsyncSandbox) -> None:
    heard: list[str] = []

    async def hear(text: str) -> None:
        heard.append(text)
        (process,) = there.session(sandbox.id).processes.values()
        process.may_go_on.set()

    result = await sandbox.commands.run("echo one; wait; echo two; err oh; exit 4", on_stdout=hear)
    assert heard == ["one\n", "two\n"]
    assert (result.stdout, result.stderr, result.exit_code) == ("one\ntwo\n", "oh\n", 4)
    with pytest.raises(CommandFailedError, match="it exited with 4: oh"):
        await sandbox.commands.run("err oh; exit 4", check=True)


async def test_input_larger_than_a_request_goes_both_ways(sandbox: AsyncSandbox) -> None:
    """The worker takes no more than it has room for, and has room when its output is read."""
    given = bytes(range(256)) * 3000
    result = await sandbox.commands.run("cat", input=given)
    assert result.stdout_bytes == given
    assert not result.stdout_truncated


async def test_a_timeout_is_the_sandboxs_own_and_waiting_is_ours(sandbox: AsyncSandbox) -> None:
    result = await sandbox.commands.run("echo begun; sleep", timeout=0.1)
    assert (result.status, result.stdout, result.exit_code) == ("timed_out", "begun\n", None)
    command = await sandbox.commands.start("sleep")
    with pytest.raises(WaitTimeoutError):
        await command.wait(timeout=0.1)
    assert await command.status() == "running"
    assert await command.kill()
    assert (await command.wait(timeout=PATIENCE)).signal == "SIGKILL"
    assert not await sandbox.commands.kill(command.id)


async def test_a_cancelled_task_takes_its_command_along(there: Desk, sandbox: AsyncSandbox) -> None:
    begun = asyncio.Event()
    task = asyncio.create_task(sandbox.commands.run("echo x; sleep", on_stdout=lambda _: begun.set()))
    await asyncio.wait_for(begun.wait(), PATIENCE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (process,) = there.session(sandbox.id).processes.values()
    assert process.signal == 9


async def test_a_command_is_found_again_and_fed(sandbox: AsyncSandbox) -> None:
    started = await sandbox.commands.start("cat", stdin=True)
    await started.send("one ")
    found = await sandbox.commands.attach(started.id)
    await found.send("two")
    await found.close_stdin()
    assert (await found.wait(timeout=PATIENCE)).stdout == "one two"
    assert [one.id for one in await sandbox.commands.list()] == [started.id]
    with pytest.raises(CommandNotFoundError):
        await sandbox.commands.attach("no-such-command-at-all")
    assert not await sandbox.commands.kill("no-such-command-at-all")


async def test_one_that_does_not_read_is_not_waited_for_for_ever(sandbox: AsyncSandbox) -> None:
    command = await sandbox.commands.start("sleep", stdin=True)
    with pytest.raises(WaitTimeoutError, match="the command took 65536 bytes of 100000 in time"):
        await command.send(b"x" * 100_000, timeout=0.3)


async def test_a_sandbox_that_goes_is_an_end_of_its_commands(sandbox: AsyncSandbox) -> None:
    begun = asyncio.Event()
    running = asyncio.create_task(sandbox.commands.run("echo x; sleep", on_stdout=lambda _: begun.set()))
    await asyncio.wait_for(begun.wait(), PATIENCE)
    waiting = await sandbox.commands.start("sleep")
    await sandbox.kill()
    result = await asyncio.wait_for(running, PATIENCE)
    assert (result.status, result.stdout, result.ok) == ("sandbox_lost", "x\n", False)
    assert (await waiting.wait(timeout=PATIENCE)).status == "sandbox_lost"
    with pytest.raises(SandboxGoneError):
        await sandbox.commands.run("echo x")


async def test_a_terminal_is_typed_at_and_resized(there: Desk, sandbox: AsyncSandbox) -> None:
    terminal = await sandbox.pty.open(rows=30, columns=100, command="cat")
    process = there.session(sandbox.id).processes[terminal.id]
    assert (process.terminal, process.size) == (True, (30, 100))
    await terminal.send("keys")
    await terminal.resize(40, 120)
    assert process.size == (40, 120)
    await terminal.close_stdin()
    assert [piece.text async for piece in terminal.output()] == ["keys"]


async def test_a_lease_does_not_end_under_somebody_who_waits(
    there: Desk, sandbox: AsyncSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fumehood.sdk.aio.following.KEEP_SECONDS", 0.0)
    there.session(sandbox.id).lease_ms = before = 0
    await sandbox.commands.run("echo x")
    assert there.session(sandbox.id).lease_ms > before


# --- templates ---------------------------------------------------------------------------------------------


async def test_a_template_is_applied(there: Desk, client: AsyncClient) -> None:
    template = Template("base:1", env={"A": "1", "B": "2"}, memory_mib=64, files={"a.txt": "hi"}, setup=["echo x"])
    made = await AsyncSandbox.create(template=template, env={"B": "3"}, memory_mib=128, client=client)
    session = there.session(made.id)
    assert (session.wish.image, session.wish.env, session.wish.memory_mib) == ("base:1", {"A": "1", "B": "3"}, 128)
    assert session.files["/workspace/a.txt"] == b"hi"
    assert [one.argv for one in session.processes.values()] == [("sh", "-c", "echo x")]


async def test_a_setup_that_fails_leaves_nothing_behind(there: Desk, client: AsyncClient) -> None:
    with pytest.raises(SetupFailedError, match="setup command 2 exited with 7: not found") as failed:
        await AsyncSandbox.create(template=Template(setup=["echo a", "err not found; exit 7"]), client=client)
    assert failed.value.result.exit_code == 7
    with pytest.raises(SetupFailedError):
        await AsyncSandbox.create(name="mine", template=Template(setup=["exit 1"]), client=client)
    assert there.worker.sessions == {}
    with pytest.raises(InvalidRequestError):
        Template(setup="echo a")
    with pytest.raises(InvalidRequestError):
        await AsyncSandbox.create("base:1", template=Template("base:1"), client=client)


# --- files -------------------------------------------------------------------------------------------------


async def test_files_are_written_read_listed_and_removed(sandbox: AsyncSandbox) -> None:
    files = sandbox.files
    await files.write("a/b.txt", "grüße", mode=0o600)
    await files.write("a/c.bin", b"\xff")
    await files.make_folder("a/d")
    assert await files.read("a/b.txt") == "grüße"
    found = await files.stat("a/b.txt")
    assert (found.name, found.kind, found.size_bytes, found.mode) == ("b.txt", "file", 7, 0o600)
    with pytest.raises(SandboxFileError, match="no text in UTF-8\nread_bytes"):
        await files.read("a/c.bin")
    assert await files.read_bytes("a/c.bin") == b"\xff"
    with pytest.raises(IsFolderError):
        await files.read("a/d")
    with pytest.raises(SandboxFileNotFoundError):
        await files.read("nothing")
    assert not await files.exists("nothing")
    with pytest.raises(LimitExceededError):
        await files.read("a/b.txt", max_bytes=6)
    await files.make_folder("a")
    with pytest.raises(SandboxFileError, match="not empty"):
        await files.remove("a")
    await files.remove("a", recursive=True)
    assert not await files.exists("a/b.txt")


async def test_changes_are_told_as_two_looks_tell_them(sandbox: AsyncSandbox) -> None:
    await sandbox.files.write("old.txt", "1")
    changes = await sandbox.files.watch(interval=0.01)
    await sandbox.files.write("old.txt", "22")
    assert await anext(changes) == FileEvent(FileChange.CHANGED, "old.txt")
    await sandbox.files.remove("old.txt")
    assert await anext(changes) == FileEvent(FileChange.REMOVED, "old.txt")
    await sandbox.files.write("new.txt", "")
    assert await anext(changes) == FileEvent(FileChange.CREATED, "new.txt")
    await sandbox.kill()
    with pytest.raises(SandboxGoneError):
        await anext(changes)


async def test_a_folder_goes_in_and_comes_out(sandbox: AsyncSandbox, tmp_path: Path) -> None:
    source = tmp_path / "src"
    (source / "deep").mkdir(parents=True)
    (source / "main.py").write_text("print(1)")
    (source / "deep" / "run").write_bytes(b"x" * 600_000)
    (source / "deep" / "run").chmod(0o755)
    (source / "link").symlink_to("/etc/passwd")
    await sandbox.files.make_folder("to")
    await sandbox.files.make_folder("to/deep")
    sent = await sandbox.files.upload(source, "to")
    assert (sent.files, sent.folders, sent.size_bytes) == (2, 1, 600_008)
    assert sent.skipped == [f"{source / 'link'}: neither a file nor a folder"]
    came = await sandbox.files.download("to", tmp_path / "back")
    assert (came.files, came.folders, came.size_bytes) == (2, 1, 600_008)
    assert (tmp_path / "back" / "deep" / "run").read_bytes() == b"x" * 600_000
    assert (tmp_path / "back" / "deep" / "run").stat().st_mode & 0o100
    assert not list(tmp_path.glob(".fumehood-*"))  # noqa: ASYNC240 - nothing else runs


# --- what can go wrong -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (Reason.NO_CAPACITY, NoCapacityError),
        (Reason.WORKER_LOST, WorkerLostError),
        (Reason.INVALID_PAYLOAD, InvalidPayloadError),
    ],
)
async def test_what_a_worker_says_is_an_error_of_its_own(
    there: Desk, client: AsyncClient, monkeypatch: pytest.MonkeyPatch, reason: Reason, kind: type[Exception]
) -> None:
    monkeypatch.setattr("fumehood.sdk.aio.transport.TRIES", 1)
    monkeypatch.setattr("fumehood.control.console.sandboxes.RETRIES_SECONDS", 0.2)
    there.worker.failing = reason
    with pytest.raises(kind) as error:
        await AsyncSandbox.create(client=client)
    assert len(str(error.value).splitlines()) == 2


async def test_without_a_worker_it_is_told_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fumehood.sdk.aio.transport.TRIES", 1)
    async with desk(connected=False) as there:
        client = AsyncClient(transport=AsyncTransport(Connection("http://x", None, direct=True), http=there.client))
        with pytest.raises(NoWorkerError, match="fumehood worker"):
            await AsyncSandbox.create(client=client)
