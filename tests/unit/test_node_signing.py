"""The key that receipts are signed with: made once, its owner's alone, rotated without a gap."""

from __future__ import annotations

import datetime as dt
import json
import os
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from fumehood.cli.receipts_rotate import rotate as rotate_command
from fumehood.errors import ConfigurationError
from fumehood.node import signing
from fumehood.node.signing import KEY_FILE, ReceiptKeys, rotate
from fumehood.storage.lock import take_lock


def test_a_key_is_made_once_and_found_again(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    made = ReceiptKeys.load(folder)
    assert (folder / KEY_FILE).stat().st_mode & 0o777 == 0o600
    again = ReceiptKeys.load(folder)
    assert again.public_key_hex == made.public_key_hex == made.current.public_key.hex()
    assert again.since == made.since
    assert sorted(one.name for one in folder.iterdir()) == ["receipt-key.json", "receipt-key.lock"]


def test_the_old_key_stays_known_and_cannot_sign_any_more(tmp_path: Path) -> None:
    keys = ReceiptKeys.load(tmp_path)
    before, began = keys.current, keys.since
    other = ReceiptKeys.load(tmp_path)
    after = keys.rotate()
    assert after.key_id != before.key_id
    assert other.current.key_id == after.key_id, "whoever runs goes on with the new one"
    (retired,) = other.retired
    assert (retired.key_id, retired.since) == (before.key_id, began)
    assert retired.until == other.since >= began
    assert before.seed.hex() not in (tmp_path / KEY_FILE).read_text()
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o777 == 0o600


def test_a_rotated_folder_must_have_a_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        rotate(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_only_so_many_retired_keys_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing, "MOST_RETIRED", 2)
    keys = ReceiptKeys.load(tmp_path)
    ids = [keys.current.key_id, *(keys.rotate().key_id for _ in range(3))]
    assert [one.key_id for one in ReceiptKeys.load(tmp_path).retired] == ids[1:3]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_that_others_could_read_is_refused(tmp_path: Path, mode: int) -> None:
    ReceiptKeys.load(tmp_path)
    (tmp_path / KEY_FILE).chmod(mode)
    with pytest.raises(ConfigurationError, match="accessible to others"):
        ReceiptKeys.load(tmp_path)


@pytest.mark.parametrize("content", ["", "{}", "[]", "nonsense", '{"seed": "00", "since": "2026-01-01T00:00:00Z"}'])
def test_what_is_no_key_is_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / KEY_FILE
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match="is not one that fumehood wrote") as caught:
        ReceiptKeys.load(tmp_path)
    assert content not in caught.value.detail or not content
    assert path.read_text() == content


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    ReceiptKeys.load(tmp_path / "other")
    (tmp_path / KEY_FILE).symlink_to(tmp_path / "other" / KEY_FILE)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        ReceiptKeys.load(tmp_path)


def test_two_rotations_do_not_meet(tmp_path: Path) -> None:
    keys = ReceiptKeys.load(tmp_path)
    before = keys.public_key_hex
    held = take_lock(tmp_path / signing.LOCK_FILE, folder="it", taken="taken")
    try:
        with pytest.raises(ConfigurationError, match="being changed by another process"):
            keys.rotate()
    finally:
        os.close(held)
    assert keys.public_key_hex == before


def test_a_file_that_is_gone_keeps_nobody_from_signing(tmp_path: Path) -> None:
    """A result is not given without its receipt because somebody tidied up."""
    keys = ReceiptKeys.load(tmp_path)
    before = keys.current
    (tmp_path / KEY_FILE).unlink()
    assert keys.current is before
    (tmp_path / KEY_FILE).write_text("nonsense")
    assert keys.current is before


def test_the_private_half_is_in_no_text(tmp_path: Path) -> None:
    keys = ReceiptKeys.load(tmp_path)
    seed = json.loads((tmp_path / KEY_FILE).read_text())["seed"]
    assert seed not in repr(keys) + repr(keys.current) + repr(keys._known)


def test_the_command_tells_the_new_key_and_the_retired_one(tmp_path: Path) -> None:
    before = ReceiptKeys.load(tmp_path).current
    app = typer.Typer()
    app.command()(rotate_command)
    said = CliRunner().invoke(app, ["--state", str(tmp_path)])
    keys = ReceiptKeys.load(tmp_path)
    assert said.exit_code == 0
    assert said.stdout.strip() == keys.public_key_hex != before.public_key.hex()
    assert before.key_id in said.stderr
    assert keys.since <= dt.datetime.now(dt.UTC)
