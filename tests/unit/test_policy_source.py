"""The policy file while it is in use: a new one counts at once, a wrong one never, and a half of one never."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fumehood.errors import ConfigurationError
from fumehood.images.admission import Admission
from fumehood.images.policy_source import NOTICE, PolicyFile
from fumehood.images.reference import ImageReference
from tests.unit.policy_world import GOOD, Says, public_key

DIGEST = "sha256:" + "ab" * 32


def named(name: str) -> str:
    return GOOD.replace("name: production", f"name: {name}")


def replace(file: Path, text: str) -> None:
    """As the documentation says: another file, renamed over it."""
    new = file.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.rename(file)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "policy.yaml"
    made.write_text(named("first"), encoding="utf-8")
    return made


def test_a_wrong_file_at_the_start_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("version: 1\nname: p\nruls: []\n")
    with pytest.raises(ConfigurationError, match=r"line 3: ruls: .* did you mean rules\?"):
        PolicyFile(tmp_path / "policy.yaml", Says())


def test_a_replaced_file_counts_at_once(file: Path) -> None:
    source = PolicyFile(file, Says())
    first = source.current()
    replace(file, named("second"))
    assert source.current().name == "second"
    assert source.current().sha256 != first.sha256
    assert first.name == "first", "a decision under way keeps the policy that it began with"
    assert source.counts == {"loaded": 2, "refused": 0}


def test_a_file_that_is_written_over_counts_too(file: Path) -> None:
    source = PolicyFile(file, Says())
    file.write_text(named("another"), encoding="utf-8")
    assert source.current().name == "another"


def test_a_file_that_stays_is_not_read_again(file: Path) -> None:
    source = PolicyFile(file, Says())
    assert source.current() is source.current()
    assert source.counts == {"loaded": 1, "refused": 0}


def test_wrong_then_right(file: Path) -> None:
    """The last good one counts, whole; the trouble is told once, and shown until it is over."""
    source = PolicyFile(file, Says())
    with capture_logs() as logs:
        replace(file, named("second").replace("unsigned: true", "unsigned: yes-please"))
        assert source.current().name == "first"
        assert source.current().name == "first"
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("policy.refused", "error")
    assert "line 7: rules[1].unsigned" in line["reason"]
    assert source.reason == line["reason"]
    assert source.trouble == NOTICE
    assert str(file.parent) not in NOTICE
    assert source.counts == {"loaded": 1, "refused": 1}
    with capture_logs() as logs:
        replace(file, named("third"))
        assert source.current().name == "third"
    assert [line["event"] for line in logs] == ["policy.loaded"]
    assert source.reason is None
    assert source.trouble is None


def test_wrong_then_wrong_in_another_way(file: Path) -> None:
    source = PolicyFile(file, Says())
    for text, reason in (("a", "must be an object"), ("version: 9", "version: must be 1")):
        replace(file, text)
        assert source.current().name == "first"
        assert reason in (source.reason or "")
    assert source.counts == {"loaded": 1, "refused": 2}


def test_wrong_and_then_the_old_one_again(file: Path) -> None:
    source = PolicyFile(file, Says())
    before = source.current().sha256
    replace(file, "")
    assert source.current().sha256 == before
    replace(file, named("first"))
    assert source.current().sha256 == before
    assert source.trouble is None


def test_a_file_that_is_gone_and_comes_back(file: Path) -> None:
    source = PolicyFile(file, Says())
    file.unlink()
    assert source.current().name == "first"
    assert "cannot be read" in (source.reason or "")
    file.write_text(named("back"), encoding="utf-8")
    assert source.current().name == "back"


def test_every_beginning_of_a_file_is_refused_or_a_policy_of_its_own(file: Path) -> None:
    """Rules are never there without their trust, whatever part of a file was written when it was read."""
    source = PolicyFile(file, Says())
    whole = named("second")
    for end in range(0, len(whole), 7):
        file.write_text(whole[:end], encoding="utf-8")
        if source.current().name == "second":
            assert all(rule.trust is None or rule.trust in source.current().trusts for rule in source.current().rules)
    file.write_text(whole, encoding="utf-8")
    assert source.current().egress
    assert source.trouble is None


def test_a_link_that_is_pointed_elsewhere(file: Path) -> None:
    """As Kubernetes replaces a mounted file: the link moves, the file does not."""
    folder = file.parent
    (folder / "v1").mkdir()
    (folder / "v2").mkdir()
    shutil.move(file, folder / "v1" / "policy.yaml")
    (folder / "v2" / "policy.yaml").write_text(named("second"), encoding="utf-8")
    (folder / "data").symlink_to("v1")
    source = PolicyFile(folder / "data" / "policy.yaml", Says())
    assert source.current().name == "first"
    (folder / "next").symlink_to("v2")
    os.replace(folder / "next", folder / "data")  # noqa: PTH105 - it is the call that counts
    assert source.current().name == "second"


def test_a_key_file_is_part_of_the_policy(file: Path) -> None:
    """Replacing a key alone changes whose signature counts; a key that goes makes the whole wrong."""
    key = file.parent / "ci.pub"
    key.write_text(public_key())
    replace(file, "version: 1\nname: p\nrules: []\ntrust: {t: {keys: [{name: ci, file: ci.pub}]}}\n")
    source = PolicyFile(file, Says())
    before = source.current().trusts["t"].keys[0].fingerprint
    replace(key, public_key())
    after = source.current().trusts["t"].keys[0].fingerprint
    assert after != before
    key.unlink()
    assert source.current().trusts["t"].keys[0].fingerprint == after
    assert "line 4: trust.t.keys[0].file" in (source.reason or "")
    key.write_text(public_key())
    assert source.current().trusts["t"].keys[0].fingerprint not in (before, after)
    assert source.trouble is None


async def test_a_decision_is_made_by_one_policy(file: Path) -> None:
    """The file is replaced while the registry is asked: the decision ends under the policy that it began with."""

    class Replaces:
        async def resolve(self, reference: ImageReference) -> str:
            replace(file, named("second").replace("unsigned: true", "trust: release"))
            return DIGEST

    says = Says()
    admission = Admission(PolicyFile(file, says), Replaces())
    first = (await admission.admit("127.0.0.1:1/a:1")).evidence
    assert (first.policy, first.signature.value, says.asked) == ("first", "not_checked", [])
    second = (await admission.admit("127.0.0.1:1/a:1")).evidence
    assert (second.policy, second.signature.value) == ("second", "verified")
    assert first.policy_sha256 != second.policy_sha256


async def test_admission_shows_the_trouble_without_being_asked_for_an_image(file: Path) -> None:
    source = PolicyFile(file, Says())
    admission = Admission(source, Says())  # type: ignore[arg-type]
    assert admission.trouble is None
    replace(file, "nonsense")
    assert admission.trouble == NOTICE
