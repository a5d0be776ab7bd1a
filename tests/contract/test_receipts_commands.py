"""`fumehood receipts` and `fumehood verify` against a real server: a root, its list, and what is believed because of
them."""

from __future__ import annotations

import asyncio
import io
import json
import stat
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fumehood.broker.memory import MemoryBroker
from fumehood.broker.ports import Bucket
from fumehood.cli.main import main
from fumehood.door.server import make_server
from fumehood.verify.dsse import SigningKey, to_file
from fumehood.verify.keylist import KeyList, published
from fumehood.wire.jobs import Adjudication
from tests.contract.server_api_harness import ADMIN, Api
from tests.unit.job_document_world import TYPE, Job
from tests.unit.receipt_world import OTHER_ROOT, key_list, key_of, listed, receipt
from tests.waiting import wait_until

LONG_AGO = "2020-01-01T00:00:00Z"


@dataclass(frozen=True)
class Address:
    host: str = "127.0.0.1"
    port: int = 0


@dataclass
class Shell:
    """The command line of somebody with a home of his own, at a server of his own."""

    capfd: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch
    home: Path
    api: Api

    def run(self, *words: str, stdin: bytes = b"") -> tuple[int, str, str]:
        self.monkeypatch.setattr(sys, "argv", ["fumehood", *words])
        self.monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self.capfd.readouterr()
        try:
            main()
            code = 0
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 0
        out, err = self.capfd.readouterr()
        return code, out, err

    def good(self, *words: str) -> str:
        code, out, err = self.run(*words)
        assert code == 0, (words, out, err)
        return out

    def refused(self, reason: str, *words: str) -> str:
        code, out, err = self.run(*words)
        assert (code, f"({reason})" in err) == (1, True), (words, code, out, err)
        return err

    def wrong(self, hint: str, *words: str) -> None:
        """What was typed cannot be meant, and the line says how it could be."""
        code, out, err = self.run(*words)
        assert (code, hint in err) == (2, True), (words, code, out, err)
        assert "Traceback" not in err

    def failed(self, hint: str, *words: str) -> None:
        code, out, err = self.run(*words)
        assert (code, hint in err) == (1, True), (words, code, out, err)

    def file(self, name: str, content: bytes) -> str:
        (self.home / name).write_bytes(content)
        return str(self.home / name)

    def announce(self, worker: str, key: SigningKey | None) -> None:
        said: dict[str, Any] = {
            "worker_id": worker,
            "task_types": ["t"],
            "max_tasks": 1,
            "language": "",
            "transport": "",
        }
        said["metadata"] = {"receipt_key": key.public_key.hex()} if key is not None else {}
        workers = MemoryBroker(self.api.memory).bucket(Bucket.WORKERS)
        asyncio.run(workers.put(worker, json.dumps(said).encode()))


@pytest.fixture
def shell(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Shell]:
    api = Api()
    server = make_server(api.app, Address())
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FUMEHOOD_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("FUMEHOOD_API_KEY", ADMIN)
    yield Shell(capfd, monkeypatch, tmp_path, api)
    server.should_exit = True
    thread.join(120)


@pytest.fixture
def root(shell: Shell) -> str:
    """Made, with two workers enrolled."""
    public = shell.good("receipts", "init").strip()
    for worker in ("w1", "w2"):
        shell.good("receipts", "enroll", worker, "--key", key_of(worker).public_key.hex(), "--since", LONG_AGO)
    return public


# --- the story ---------------------------------------------------------------------------------------------


def test_from_a_root_to_a_receipt_that_is_believed_and_one_that_no_longer_is(shell: Shell, root: str) -> None:
    kept = shell.home / ".config/fumehood/root.key"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert kept.read_text().strip() not in shell.good("receipts", "list", "--root", root)
    assert "2 keys, version 2" in shell.good("receipts", "fetch", "--root", root)

    file, stdout = shell.file("r.json", to_file(receipt())), shell.file("stdout", b"hello\n")
    said = shell.good("verify", file, "--against", stdout, "--against", f"stdout={stdout}")
    assert "is stdout, as it was signed" in said
    for word in ("request", "evidence", "policy p1", "output stdout"):
        assert word in said

    shell.good("receipts", "revoke", "w1", "--reason", "its disk was sold")
    shell.good("verify", file)  # offline: nobody has told this machine yet
    shell.good("receipts", "fetch")
    assert "its disk was sold" in shell.refused("revoked_key", "verify", file)
    shell.good("verify", shell.file("r2.json", to_file(receipt("w2"))))


def test_what_is_changed_is_refused(shell: Shell, root: str) -> None:
    shell.good("receipts", "fetch", "--root", root)
    data = to_file(receipt())
    file = shell.file("r.json", data)
    shell.refused("output_mismatch", "verify", file, "--against", shell.file("stdout", b"hellO\n"))
    shell.refused("unknown_key", "verify", shell.file("s.json", to_file(receipt("stranger"))))
    shell.refused("malformed", "verify", shell.file("cut.json", data[:-9]))
    changed = data.replace(b'"payload":"ey', b'"payload":"eY')
    assert changed != data
    shell.refused("signature_invalid", "verify", shell.file("c.json", changed))
    document = published(key_list(listed("w1")), OTHER_ROOT)
    theirs = shell.file("theirs.json", to_file(document))
    shell.refused("wrong_root", "verify", file, "--keys", theirs)
    shell.refused("wrong_root", "verify", theirs)


def test_programs_are_told_the_same(shell: Shell, root: str) -> None:
    shell.good("receipts", "fetch", "--root", root)
    file = shell.file("r.json", to_file(receipt()))
    said = json.loads(shell.good("verify", file, "--json"))
    assert (said["ok"], said["kind"], said["reason"]) == (True, "receipt", None)
    assert said["chains"][0]["worker"]["id"] == "w1"
    code, out, _ = shell.run("verify", file, "--json", "--against", shell.file("x", b"x"))
    assert code == 1
    assert (json.loads(out)["ok"], json.loads(out)["reason"]) == (False, "output_mismatch")
    code, out, _ = shell.run("verify", "-", "--json", stdin=to_file(receipt()))
    assert (code, json.loads(out)["ok"]) == (0, True)
    code, out, _ = shell.run("verify", "-", "--json", stdin=json.dumps({"exit_code": 0, "receipt": receipt()}).encode())
    assert (code, json.loads(out)["ok"]) == (0, True)
    listing = json.loads(shell.good("receipts", "list", "--json"))
    assert (listing["pinned"], listing["version"]) == (True, 2)


def test_a_job_is_checked_with_its_request(shell: Shell, root: str) -> None:
    job = Job(["ab", "ab", "ba"], Adjudication.MAJORITY_VOTE, workers=["w1", "w2", "w3"])
    shell.good("receipts", "enroll", "w3", "--key", key_of("w3").public_key.hex(), "--since", LONG_AGO)
    shell.good("receipts", "fetch", "--root", root)
    document = job.document()
    file = shell.file("job.json", json.dumps(document, indent=2).encode() + b"\n")
    request = shell.file("request.json", json.dumps({"job_type": TYPE, "payload": job.payload}).encode())
    result = shell.file("result.json", json.dumps(document["result"]).encode())
    said = shell.good("verify", file, "--request", request, "--against", f"response={result}")
    assert "2 of 3 declare the same as execution 0" in said
    other = shell.file("other.json", json.dumps({**job.payload, "k": 1}).encode())
    shell.refused("request_mismatch", "verify", file, "--request", other)
    document["result"] = document["verdict"]["candidates"][2]["response"]
    shell.refused("result_mismatch", "verify", shell.file("lie.json", json.dumps(document).encode()))
    wrong = shell.file("wrong.json", json.dumps({"job_type": "oa.other.v1", "payload": {}}).encode())
    shell.wrong("another type", "verify", file, "--request", wrong)
    shell.wrong("user_task", "verify", file, "--request", shell.file("empty.json", b"{}"))


# --- roots -------------------------------------------------------------------------------------------------


def test_without_a_root_nothing_is_believed(shell: Shell, root: str) -> None:
    file = shell.file("r.json", to_file(receipt()))
    shell.wrong("cannot vouch for itself", "verify", file)
    shell.wrong("cannot vouch for itself", "receipts", "fetch")
    assert "server's word" in shell.run("receipts", "list")[2]
    shell.refused("wrong_root", "receipts", "fetch", "--root", OTHER_ROOT.public_key.hex())
    shell.refused("wrong_root", "receipts", "list", "--root", OTHER_ROOT.public_key.hex())
    assert not (shell.home / ".config/fumehood/receipt-root").exists()
    shell.monkeypatch.setenv("FUMEHOOD_RECEIPT_ROOT", root)
    shell.good("receipts", "fetch")
    shell.good("verify", file)


def test_a_pinned_root_is_not_replaced_in_passing(shell: Shell, root: str) -> None:
    shell.good("receipts", "fetch", "--root", root)
    pin = shell.home / ".config/fumehood/receipt-root"
    assert pin.read_text() == f"{root}\n"
    other = SigningKey.generate()
    pin.write_text(other.public_key.hex())
    shell.wrong("another root is pinned", "receipts", "fetch", "--root", root)
    shell.refused("wrong_root", "receipts", "fetch")


def test_typos_are_told_with_what_was_meant(shell: Shell, root: str) -> None:
    shell.good("receipts", "fetch", "--root", root)
    file = shell.file("r.json", to_file(receipt()))
    stdout = shell.file("stdout", b"hello\n")
    shell.wrong("64 digits", "verify", file, "--root", root[:-1])
    shell.wrong("cannot be read", "verify", str(shell.home / "nothing.json"))
    shell.wrong("cannot be read", "verify", file, "--against", str(shell.home / "nothing"))
    shell.wrong("NAME=FILE", "verify", file, "--against", f"={stdout}")
    shell.wrong("there is no list of keys at", "verify", file, "--keys", str(shell.home / "none"))
    shell.wrong("--request is for jobs", "verify", file, "--request", stdout)
    assert "did you mean stdout?" in shell.refused("no_such_output", "verify", file, "--against", f"stduot={stdout}")
    shell.refused("malformed", "verify", stdout)
    shell.failed("did you mean w1?", "receipts", "revoke", "w11", "--reason", "x")
    shell.failed("that was done already", "receipts", "retire", _retired(shell))
    shell.wrong("there already", "receipts", "init")
    shell.wrong("--key", "receipts", "enroll", "w9", "--key", "abc")
    shell.wrong("1 to 500", "receipts", "revoke", "w1", "--reason", "")
    shell.wrong("--since", "receipts", "enroll", "w9", "--key", root, "--since", "yesterday")
    shell.wrong("the list takes no such name", "receipts", "enroll", "w 9", "--key", root)
    shell.wrong("other texts", "receipts", "enroll", "w9", "--key", f"{1:02x}" + "0" * 62)
    shell.wrong("no root key at", "receipts", "retire", "w1", "--root-key", str(shell.home / "none"))
    kept = shell.home / ".config/fumehood/root.key"
    kept.chmod(0o644)
    shell.wrong("chmod 600", "receipts", "retire", "w1")
    kept.chmod(0o600)
    kept.write_text("nothing\n")
    shell.wrong("receipts init", "receipts", "retire", "w1")


def _retired(shell: Shell) -> str:
    shell.good("receipts", "retire", "w2")
    return key_of("w2").key_id


def test_a_file_whose_name_has_an_equals_sign_is_a_file(shell: Shell, root: str) -> None:
    shell.good("receipts", "fetch", "--root", root)
    shell.good("verify", shell.file("r.json", to_file(receipt())), "--against", shell.file("a=b", b"hello\n"))


# --- workers -----------------------------------------------------------------------------------------------


def test_a_worker_is_enrolled_with_the_key_that_it_announces(shell: Shell, root: str) -> None:
    shell.announce("w7", key_of("w7"))
    shell.announce("mute", None)
    assert key_of("w7").public_key.hex() in shell.good("receipts", "enroll", "w7")
    assert "version 3" in shell.good("receipts", "enroll", "w7"), "the second time changes nothing"
    shell.failed("did you mean w7?", "receipts", "enroll", "w77")
    shell.failed("announces no receipt key", "receipts", "enroll", "mute")


def test_a_worker_that_rotates_keeps_its_past(shell: Shell, root: str) -> None:
    new = key_of("w1, later")
    shell.good("receipts", "enroll", "w1", "--key", new.public_key.hex())
    shell.good("receipts", "fetch", "--root", root)
    shell.good("verify", shell.file("r.json", to_file(receipt())))
    rows = json.loads(shell.good("receipts", "list", "--json"))["keys"]
    ours = {one["key_id"]: one for one in rows if one["worker"] == "w1"}
    assert ours[key_of("w1").key_id]["not_after"] is not None
    assert ours[new.key_id]["not_after"] is None
    shell.failed("used once", "receipts", "enroll", "w1", "--key", key_of("w1").public_key.hex())
    shell.failed("another worker", "receipts", "enroll", "w2", "--key", new.public_key.hex())


def test_somebody_who_was_quicker_loses_nothing(shell: Shell, root: str) -> None:
    """Two at once: whoever comes second makes the change to what the first one published."""
    store = shell.api.service.receipt_keys
    publish, once = store.publish, list[bool]()

    async def between(document: Any) -> tuple[KeyList, bool]:
        if not once:
            once.append(True)
            kept = (shell.home / ".config/fumehood/root.key").read_text().strip()
            keys = await store.current()
            assert keys is not None
            theirs = keys.enrolled("quick", key_of("quick").public_key, keys.issued_at)
            await publish(published(theirs, SigningKey.from_seed(bytes.fromhex(kept))))
        return await publish(document)

    shell.monkeypatch.setattr(store, "publish", between)
    shell.good("receipts", "enroll", "slow", "--key", key_of("slow").public_key.hex())
    rows = json.loads(shell.good("receipts", "list", "--root", root, "--json"))
    assert {one["worker"] for one in rows["keys"]} == {"w1", "w2", "quick", "slow"}
    assert rows["version"] == 4


def test_another_root_takes_the_list_over_where_servers_are_told(shell: Shell, root: str) -> None:
    other = str(shell.home / "new.key")
    public = shell.good("receipts", "init", "--out", other).strip()
    shell.failed("by the root", "receipts", "retire", "w1", "--root-key", other)
    shell.failed("receipt_root", "receipts", "adopt", root, "--root-key", other)
    shell.monkeypatch.setattr(shell.api.service.receipt_keys, "_root", bytes.fromhex(public))
    shell.good("receipts", "adopt", root, "--root-key", other)
    assert len(json.loads(shell.good("receipts", "list", "--root", public, "--json"))["keys"]) == 2


def test_before_the_first_list_there_is_none(shell: Shell) -> None:
    shell.failed("published no list of keys yet", "receipts", "list")


def test_an_older_list_does_not_replace_the_one_that_is_kept(shell: Shell, root: str) -> None:
    """A server that brings back an old list would bring back keys that were revoked since."""
    shell.good("receipts", "fetch", "--root", root)
    kept = shell.home / ".config/fumehood/receipt-keys.json"
    newer = KeyList(version=9, issued_at=key_list().issued_at)
    seed = (shell.home / ".config/fumehood/root.key").read_text().strip()
    kept.write_bytes(to_file(published(newer, SigningKey.from_seed(bytes.fromhex(seed)))))
    shell.refused("older_list", "receipts", "fetch")


def test_ones_own_dev_is_relied_on_where_no_other_root_is_pinned(shell: Shell, root: str) -> None:
    state = shell.home / ".local/state/fumehood"
    state.mkdir(parents=True)
    (state / "receipt-root.pub").write_text(f"{OTHER_ROOT.public_key.hex()}\n")
    (state / "receipt-keys.json").write_bytes(to_file(published(key_list(listed("w3")), OTHER_ROOT)))
    theirs, ours = shell.file("3.json", to_file(receipt("w3"))), shell.file("1.json", to_file(receipt("w1")))
    said = shell.good("verify", theirs)
    assert f"the root {OTHER_ROOT.public_key.hex()}" in said
    assert str(state / "receipt-keys.json") in said
    shell.good("receipts", "fetch", "--root", root)
    shell.good("verify", ours)
    shell.refused("unknown_key", "verify", theirs)
    shell.good("verify", theirs, "--root", OTHER_ROOT.public_key.hex())
