"""Receipts in the SDK: what is checked, against what, and that nothing passes where nothing could be checked."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fumehood import (
    AsyncReceipt,
    CannotVerifyError,
    ConfigurationError,
    InvalidRequestError,
    NotFoundError,
    Receipt,
    RunFailedError,
    RunStatus,
    UnverifiedError,
)
from fumehood.sdk import receipt_keys
from fumehood.sdk.verification import Held, Holding
from fumehood.verify.dsse import to_file
from fumehood.verify.keylist import published
from fumehood.verify.receipt import Outcome
from fumehood.wire.sandbox import RunEnd
from tests.contract.runner_harness import IMAGE, report
from tests.unit.receipt_world import OTHER_ROOT, ROOT, key_list, listed, receipt
from tests.unit.sdk_client_world import ClientWorld, client_world, pinned_home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return pinned_home(tmp_path, monkeypatch, "w1")


@pytest_asyncio.fixture
async def there(home: Path) -> AsyncIterator[ClientWorld]:
    async with asyncio.timeout(120), client_world(deciding=False) as made:
        yield made


def changed(envelope: dict[str, Any], change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """The same signature on other words."""
    said = json.loads(base64.b64decode(envelope["payload"]))
    change(said)
    return {**envelope, "payload": base64.b64encode(json.dumps(said).encode()).decode()}


# --- one receipt -------------------------------------------------------------------------------------------


async def test_a_good_receipt_is_true_and_says_by_whom(home: Path, tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_bytes(b"hello\n")
    named: dict[str, Held] = {"stdout": "hello\n", "stderr": b""}
    ways: list[Held | dict[str, Held] | None] = [None, b"hello\n", "hello\n", tmp_path / "out.txt", named]
    for against in ways:
        found = await AsyncReceipt.of(receipt()).verify(against)
        assert found
        assert (found.ok, found.worker, found.reason, found.detail) == (True, "w1", None, "")
        assert found.check() is found
        assert str(found) == "ok: signed by w1"
    found = await AsyncReceipt.of(receipt()).verify()
    assert found.root == ROOT.public_key.hex()
    assert found.claims[0]["outputs"].keys() == {"stdout", "stderr"}
    assert found.key_id == found.claims[0]["worker"]["key_id"]
    assert found.view()["keys"]["version"] == 1
    assert any("proves who claimed this" in note for note in found.notes)


def test_a_receipt_in_a_file_needs_no_server(home: Path, tmp_path: Path) -> None:
    first = Receipt.of(receipt())
    first.save(tmp_path / "r.json")
    assert Receipt.load(tmp_path / "r.json").verify("hello\n")
    (tmp_path / "answer.json").write_bytes(to_file({"status": "ok", "receipt": receipt()}))
    assert Receipt.load(str(tmp_path / "answer.json")).verify()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".") and path.is_file()] == []
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Receipt.load(tmp_path / "nothing.json")
    (tmp_path / "odd.json").write_text("{} {}")
    with pytest.raises(UnverifiedError):
        Receipt.load(tmp_path / "odd.json")


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (
            lambda: changed(receipt(), lambda said: said["predicate"]["outcome"].update(exit_code=1)),
            "signature_invalid",
        ),
        (lambda: receipt("stranger"), "unknown_key"),
        (lambda: {**receipt(), "payloadType": "text/plain"}, "malformed"),
        (lambda: {"no": "receipt"}, "malformed"),
        (list, "malformed"),
    ],
)
async def test_a_bad_receipt_is_false_and_says_why(home: Path, bad: Callable[[], Any], reason: str) -> None:
    made = AsyncReceipt(None, "x")
    made._envelope = bad()
    found = await made.verify()
    assert not found
    assert (found.reason, found.worker, found.key_id, found.claims) == (reason, None, None, ())
    assert str(found).startswith("refused: ")
    with pytest.raises(UnverifiedError) as error:
        found.check()
    assert error.value.reason == reason


async def test_an_output_that_was_not_signed_is_refused(home: Path) -> None:
    made = AsyncReceipt.of(receipt())
    for against in ("goodbye\n", {"stderr": "hello\n"}, {"stdot": "hello\n"}, b""):
        found = await made.verify(against)
        assert bool(found) is (against == b""), "an empty output is that of stderr"
    assert (await made.verify({"stdot": "x"})).reason == "no_such_output"
    with pytest.raises(TypeError, match="given as bytes"):
        await made.verify(7)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        await made.verify(home / "nothing")


async def test_what_is_not_whole_here_is_said_not_to_be_checked(home: Path) -> None:
    found = await AsyncReceipt.of(receipt(), holding=Holding(parts=("stdout",))).verify()
    assert found.ok
    assert "stdout is not whole here, and was not checked" in found.notes


async def test_another_word_for_the_end_is_refused_where_the_code_is_the_same(home: Path) -> None:
    signed = receipt().copy()
    found = await AsyncReceipt.of(signed, holding=Holding(ended={"status": "timed_out"})).verify()
    assert (found.ok, found.reason) == (False, "outcome_mismatch")


async def test_a_receipt_of_something_else_is_refused_however_good_it_is(home: Path) -> None:
    """Whoever keeps receipts could hand out that of another command which printed the same."""
    for holding, reason in (
        (Holding(task={"run_id": "r1"}, outputs={"stdout": b"hello\n"}, ended={"exit_code": 0}), None),
        (Holding(task={"run_id": "r2"}), "task_mismatch"),
        (Holding(task={"command_id": "c1"}), "task_mismatch"),
        (Holding(request={"argv": ["true"]}), "request_mismatch"),
        (Holding(ended={"exit_code": 1}), "outcome_mismatch"),
        (Holding(ended={"exit_code": None}), "outcome_mismatch"),
        (Holding(ended={"signal": "SIGKILL"}), "outcome_mismatch"),
        (Holding(outputs={"stdout": b"hello"}), "output_mismatch"),
        (Holding(outputs={"result": b"hello"}), "no_such_output"),
    ):
        found = await AsyncReceipt.of(receipt(), holding=holding).verify()
        assert (bool(found), found.reason) == (reason is None, reason)


async def test_what_is_held_is_compared_to_the_byte(home: Path) -> None:
    signed = receipt(outputs={"stdout": b'{"a":1}'})
    assert await AsyncReceipt.of(signed).verify('{ "a": 1 }'), "as JSON it is the same"
    held = AsyncReceipt.of(signed, holding=Holding(outputs={"stdout": b'{ "a": 1 }'}))
    assert (await held.verify()).reason == "output_mismatch"


async def test_an_empty_stream_that_nobody_signed_is_noted(home: Path) -> None:
    held = AsyncReceipt.of(receipt(outputs={"result": b"x"}), holding=Holding(outputs={"stdout": b""}))
    found = await held.verify()
    assert found
    assert any("nothing is signed about stdout" in note for note in found.notes)


# --- whom to rely on ---------------------------------------------------------------------------------------


async def test_without_a_root_nothing_is_checked_and_nothing_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FUMEHOOD_RECEIPT_ROOT", raising=False)
    made = AsyncReceipt.of(receipt())
    with pytest.raises(CannotVerifyError, match="no root is pinned") as error:
        await made.verify()
    assert "fumehood receipts fetch --root" in error.value.remedy
    monkeypatch.setenv("FUMEHOOD_RECEIPT_ROOT", ROOT.public_key.hex())
    with pytest.raises(CannotVerifyError, match="no list of keys") as error:
        await made.verify()
    assert "receipts fetch" in error.value.remedy
    path = tmp_path / "keys.json"
    path.write_bytes(to_file(published(key_list(listed("w1")), ROOT)))
    assert await made.verify(keys_file=path)
    monkeypatch.setenv("FUMEHOOD_RECEIPT_KEYS_FILE", str(path))
    assert await made.verify()
    with pytest.raises(UnverifiedError) as refused:
        await made.verify(root=OTHER_ROOT.public_key.hex())
    assert refused.value.reason == "wrong_root"
    with pytest.raises(ConfigurationError, match="64 digits"):
        await made.verify(root="abc")


async def test_a_list_by_another_root_is_refused_whatever_it_says(home: Path) -> None:
    forged = published(key_list(listed("w1"), listed("stranger")), OTHER_ROOT)
    (home / "receipt-keys.json").write_bytes(to_file(forged | {"root": ROOT.public_key.hex()}))
    with pytest.raises(UnverifiedError, match=r"receipt-keys\.json"):
        await AsyncReceipt.of(receipt()).verify()


async def test_a_revoked_key_signs_nothing(home: Path) -> None:
    keys = key_list(listed("w1")).revoked("w1", key_list().issued_at, "lost")
    receipt_keys.keep_keys(published(keys, ROOT), None, ROOT.public_key)
    found = await AsyncReceipt.of(receipt()).verify()
    assert (bool(found), found.reason) == (False, "revoked_key")


async def test_nothing_is_fetched_that_could_not_be_checked(
    there: ClientWorld, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "receipt-root").unlink()
    with pytest.raises(CannotVerifyError):
        await there.client.receipts.of_run("nobody").verify()
    (home / "receipt-root").write_text(ROOT.public_key.hex())
    with pytest.raises(NotFoundError):
        await there.client.receipts.of_run("nobody").verify()


async def test_the_list_is_kept_if_it_is_by_the_root(home: Path) -> None:
    newer = key_list(listed("w1"), listed("n1"), version=7)
    async with client_world(receipt_root=ROOT.public_key.hex()) as there:
        answer = await there.api.client().put("/v1/receipt-keys", json=published(newer, ROOT))
        assert answer.is_success, answer.text
        assert await there.client.receipts.fetch_keys() == 7
        assert await AsyncReceipt.of(receipt("n1")).verify()
        with pytest.raises(UnverifiedError, match="another root"):
            await there.client.receipts.fetch_keys(OTHER_ROOT.public_key.hex())
    assert receipt_keys.pinned() == ROOT.public_key, "what is refused is not pinned"


# --- of runs -----------------------------------------------------------------------------------------------


async def test_a_run_of_an_image_with_its_receipt(there: ClientWorld) -> None:
    run = await there.client.runs.start_image(IMAGE, "echo hello", env={"A": "b"}, timeout=30, memory_mib=128)
    assert run.status == RunStatus.QUEUED
    with pytest.raises(NotFoundError, match="not ended") as error:
        await run.receipt().fetch()
    assert "wait for that first" in error.value.remedy
    leased = await there.node.begin()
    assert leased.task.sandbox is not None
    assert leased.task.sandbox["command"] == ["/bin/sh", "-c", "echo hello"]
    assert leased.task.sandbox["env"] == {"A": "b"}
    await there.node.print(leased, b"hello\n", b"oops\n")
    signed = receipt(task={"run_id": run.id, "step_id": "run"}, outcome=Outcome(status="succeeded", exit_code=0))
    await there.node.complete(leased, report(receipt=signed))
    assert (await run.wait(timeout=120)).check().exit_code == 0
    assert (run.ok, run.reason, run.image, run.has_ended) == (True, "exit", IMAGE, True)
    assert (run.image_digest or "").startswith("sha256:")
    assert run.evidence["resolved_digest"] == run.image_digest
    made = run.receipt()
    with pytest.raises(InvalidRequestError, match="not fetched"):
        made.envelope  # noqa: B018
    assert await made.verify("hello\n")
    assert made.envelope == signed
    assert await there.client.receipts.of_run(run.id).verify()
    assert await (await there.client.runs.get_image(run.id)).receipt().verify()


async def test_a_server_that_changes_an_exit_code_is_found_out(there: ClientWorld) -> None:
    run = await there.client.runs.start_image(IMAGE, ["true"])
    leased = await there.node.begin()
    failed = Outcome(status="failed", exit_code=3)
    signed = receipt(task={"run_id": run.id, "step_id": "run"}, outcome=failed)
    await there.node.complete(leased, report(RunEnd.SUCCEEDED, exit_code=0, receipt=signed))
    await run.wait(timeout=120)
    assert (await run.receipt().verify()).reason == "outcome_mismatch"


async def test_what_a_run_printed(there: ClientWorld) -> None:
    run = await there.client.runs.start_image(IMAGE)
    leased = await there.node.begin()
    await there.node.print(leased, b"one\ntwo\n", b"oops\n")
    await there.node.fail(leased, "exit", report(RunEnd.FAILED, exit_code=3, stdout="one\ntwo\n", stderr="oops\n"))
    await run.wait(timeout=120)
    told = [piece async for piece in run.follow()]
    assert "".join(piece.text for piece in told if piece.stream == "stdout") == "one\ntwo\n"
    assert "".join(piece.text for piece in told if piece.stream == "stderr") == "oops\n"
    assert (run.status, run.exit_code, run.ok) == (RunStatus.FAILED, 3, False)
    with pytest.raises(RunFailedError, match="is failed with exit code 3"):
        run.check()
