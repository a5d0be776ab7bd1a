"""The golden receipt and list of keys, which hold for ever; and other people's eyes on them: a few lines of JavaScript
that know DSSE and in-toto, and nothing of ours."""

from __future__ import annotations

import base64
import datetime as dt
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from fumehood.errors import UnverifiedError
from fumehood.verify import receipt as receipts
from fumehood.verify.checking import Output, check_receipt
from fumehood.verify.dsse import from_file, to_file
from fumehood.verify.keylist import published, read_published
from tests.conftest import unavailable
from tests.unit.receipt_world import NOON, ROOT, key_list, listed, receipt

GOLDEN = Path(__file__).parents[2] / "contracts" / "golden" / "receipts"
STDOUT = b"hello\n"
KEYS = key_list(
    listed("w1"),
    listed("w2", not_after=NOON - dt.timedelta(hours=1)),
    listed("w3", revoked_at=NOON, revoked_because="its disk was sold"),
    version=7,
)
FILES = {
    "root.hex": f"{ROOT.public_key.hex()}\n".encode(),
    "keys.json": to_file(published(KEYS, ROOT)),
    "receipt.json": to_file(receipt()),
    "receipt-retired.json": to_file(receipt("w2")),
    "receipt-revoked.json": to_file(receipt("w3")),
    "stdout": STDOUT,
}
"""How they were made, from seeds that never change: Ed25519 has no chance in it, so they are the same each time."""
PROGRAM = "verify.mjs"


def golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


def test_the_golden_files_are_made_again_byte_by_byte() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {*FILES, PROGRAM}
    for name, made in FILES.items():
        assert golden(name) == made, name


def test_the_golden_receipt_holds_for_ever() -> None:
    root = bytes.fromhex(golden("root.hex").decode().strip())
    keys = read_published(from_file(golden("keys.json")), root)
    report = check_receipt(from_file(golden("receipt.json")), keys, [Output.of("stdout", golden("stdout"), "stdout")])
    assert report.ok
    for name, reason in (("receipt-retired.json", "key_not_valid_then"), ("receipt-revoked.json", "revoked_key")):
        with pytest.raises(UnverifiedError) as caught:
            receipts.check(from_file(golden(name)), keys)
        assert caught.value.reason == reason


def test_a_receipt_is_an_in_toto_statement() -> None:
    envelope = from_file(golden("receipt.json"))
    assert envelope.keys() == {"payloadType", "payload", "signatures"}
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    statement = json.loads(base64.b64decode(envelope["payload"]))
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "urn:fumehood:receipt:v1"
    assert all(one.keys() == {"name", "digest"} and one["digest"].keys() == {"sha256"} for one in statement["subject"])


# --- by others ---------------------------------------------------------------------------------------------


def judged(*files: str | Path) -> subprocess.CompletedProcess[str]:
    if shutil.which("node") is None:
        unavailable("no node: run scripts/services up")
    root = golden("root.hex").decode().strip()
    command = ["node", str(GOLDEN / PROGRAM), root, str(GOLDEN / "keys.json"), *(str(GOLDEN / file) for file in files)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_others_read_it_as_we_do() -> None:
    done = judged("receipt.json", "stdout")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(base64.b64decode(from_file(golden("receipt.json"))["payload"]))


def test_others_refuse_what_we_refuse(tmp_path: Path) -> None:
    revoked, strange = judged("receipt-revoked.json"), judged("receipt.json", PROGRAM)
    assert (revoked.returncode, revoked.stderr.strip()) == (1, "revoked_key")
    assert (strange.returncode, strange.stderr.strip()) == (1, "output_mismatch")
    envelope = from_file(golden("receipt.json"))
    payload = base64.b64decode(envelope["payload"]).replace(b'"exit_code":0', b'"exit_code":1')
    envelope["payload"] = base64.b64encode(payload).decode()
    (tmp_path / "changed.json").write_bytes(to_file(envelope))
    changed = judged(tmp_path / "changed.json")
    assert (changed.returncode, changed.stderr.strip()) == (1, "signature_invalid")
