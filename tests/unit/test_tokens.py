"""Tokens: closed unless a token says otherwise, rotated by replacing a file, and never in doubt."""

from __future__ import annotations

import hmac
import io
import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from fumehood.door.tokens import Posture, TokenSource
from fumehood.errors import ConfigurationError
from fumehood.settings import NodeSettings
from fumehood.settings.token_file import TokenFile


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    """Replace a file as one should: aside, then renamed."""
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    draft.chmod(mode)
    return draft.replace(path)


def source(path: Path, clock: Clock, overlap: float = 300) -> TokenSource:
    settings = NodeSettings(worker_api_token_file=path, token_overlap_seconds=overlap)
    return TokenSource(settings.worker_api, clock=clock)


def accepts(tokens: TokenSource, token: str) -> bool:
    return tokens.accepts(f"Bearer {token}")


def test_no_token_configured_means_closed() -> None:
    tokens = TokenSource(NodeSettings().worker_api)
    assert tokens.posture is Posture.CLOSED
    for header in (None, "", "Bearer", "Bearer ", "Bearer x", "Bearer None", "Bearer  "):
        assert not tokens.accepts(header)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("Bearer abc", True),
        ("bearer abc", True),
        ("BEARER  abc ", True),
        ("Bearer abcd", False),
        ("Bearer ab", False),
        ("Bearer ABC", False),
        ("Bearer", False),
        ("Bearer ", False),
        ("Basic abc", False),
        ("abc", False),
        ("Bearer abc abc", False),
        ("Bearer \N{GRINNING FACE}", False),
        ("", False),
        (None, False),
    ],
)
def test_only_the_token_opens_the_door(header: str | None, expected: bool) -> None:
    tokens = TokenSource(NodeSettings(worker_api_token="abc").worker_api)
    assert tokens.posture is Posture.STATIC
    assert tokens.accepts(header) is expected


def test_replacing_the_file_rotates_and_the_old_token_lives_for_the_overlap(tmp_path: Path, clock: Clock) -> None:
    path = write(tmp_path / "token", "old\n")
    tokens = source(path, clock)
    assert tokens.posture is Posture.FILE
    assert accepts(tokens, "old")
    write(path, "new\n")
    assert accepts(tokens, "new")
    clock.now += 299
    assert accepts(tokens, "old")
    clock.now += 1
    assert not accepts(tokens, "old")
    assert accepts(tokens, "new")


def test_writing_into_the_file_rotates_too(tmp_path: Path, clock: Clock) -> None:
    path = write(tmp_path / "token", "old")
    tokens = source(path, clock)
    path.write_text("newer")
    assert accepts(tokens, "newer")
    assert accepts(tokens, "old")


def test_two_rotations_within_the_overlap_keep_all_three(tmp_path: Path, clock: Clock) -> None:
    path = write(tmp_path / "token", "one")
    tokens = source(path, clock)
    for token in ("two", "three"):
        write(path, token)
        clock.now += 100
        assert accepts(tokens, token)
    assert accepts(tokens, "one")
    clock.now += 200
    assert not accepts(tokens, "one")
    assert accepts(tokens, "two")


def test_an_overlap_of_zero_ends_the_old_token_at_once(tmp_path: Path, clock: Clock) -> None:
    path = write(tmp_path / "token", "old")
    tokens = source(path, clock, overlap=0)
    write(path, "new")
    assert not accepts(tokens, "old")
    assert accepts(tokens, "new")


def test_the_same_token_written_again_never_expires(tmp_path: Path, clock: Clock) -> None:
    path = write(tmp_path / "token", "same")
    tokens = source(path, clock)
    write(path, "same\n\n")
    clock.now += 10_000
    assert accepts(tokens, "same")


def test_going_back_to_the_old_token_revives_it(tmp_path: Path, clock: Clock) -> None:
    path = write(tmp_path / "token", "one")
    tokens = source(path, clock)
    write(path, "two")
    assert accepts(tokens, "two")
    write(path, "one")
    assert accepts(tokens, "one")
    clock.now += 10_000
    assert accepts(tokens, "one")
    assert not accepts(tokens, "two")


@pytest.mark.parametrize(("text", "mode"), [("", 0o600), ("two words", 0o600), ("new", 0o640), ("new", 0o604)])
def test_a_doubtful_file_is_not_taken_and_closes_after_the_overlap(
    tmp_path: Path, clock: Clock, log: io.StringIO, text: str, mode: int
) -> None:
    path = write(tmp_path / "token", "old")
    tokens = source(path, clock)
    write(path, text, mode)
    assert not accepts(tokens, "new")
    assert accepts(tokens, "old")
    clock.now += 301
    assert not accepts(tokens, "old")
    assert [json.loads(line)["event"] for line in log.getvalue().splitlines()] == ["door.token_file_refused"]
    write(path, "good")
    assert accepts(tokens, "good")


def test_a_file_that_vanishes_closes_after_the_overlap(tmp_path: Path, clock: Clock) -> None:
    path = write(tmp_path / "token", "old")
    tokens = source(path, clock)
    path.unlink()
    assert accepts(tokens, "old")
    clock.now += 301
    assert not accepts(tokens, "old")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_file_that_others_may_touch_is_refused_at_start(tmp_path: Path, clock: Clock, mode: int) -> None:
    path = write(tmp_path / "token", "abc", mode)
    with pytest.raises(ConfigurationError) as caught:
        source(path, clock)
    assert f"(mode {mode:04o}): chmod 600 {path}" in caught.value.detail


@pytest.mark.parametrize("text", ["", " \n", "two words", "tab\tbed", "n\N{LATIN SMALL LETTER O WITH DIAERESIS}"])
def test_a_file_without_a_token_is_refused_at_start(tmp_path: Path, clock: Clock, text: str) -> None:
    with pytest.raises(ConfigurationError, match="holds no token"):
        source(write(tmp_path / "token", text), clock)


def test_a_file_that_is_no_file_is_refused_at_start(tmp_path: Path, clock: Clock) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        source(tmp_path / "absent", clock)
    with pytest.raises(ConfigurationError):
        source(tmp_path, clock)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "binary").chmod(0o600)
    with pytest.raises(ConfigurationError, match="cannot be understood"):
        TokenFile(tmp_path / "binary").read()


def test_a_token_in_the_configuration_file_rotates_with_it(tmp_path: Path, clock: Clock) -> None:
    config = write(tmp_path / "node.toml", "port = 1\nworker_api_token = 'old'\n")
    tokens = TokenSource(NodeSettings.load(env={}, config_file=config).worker_api, clock=clock)
    assert accepts(tokens, "old")
    write(config, "port = 1\nworker_api_token = 'new'\n")
    assert accepts(tokens, "new")
    assert accepts(tokens, "old")
    clock.now += 301
    assert not accepts(tokens, "old")


def test_a_configuration_file_with_a_token_must_be_private_too(tmp_path: Path) -> None:
    config = write(tmp_path / "node.toml", "worker_api_token = 'old'\n", 0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        TokenSource(NodeSettings.load(env={}, config_file=config).worker_api)


def test_insecure_lets_everybody_in_and_says_so(log: io.StringIO) -> None:
    tokens = TokenSource(NodeSettings(insecure=True).worker_api)
    assert tokens.posture is Posture.INSECURE
    assert tokens.accepts(None)
    tokens.announce()
    line = json.loads(log.getvalue())
    assert (line["event"], line["posture"], line["level"]) == ("door.authentication", "insecure", "warning")


def test_a_closed_door_is_a_sentence(log: io.StringIO) -> None:
    TokenSource(NodeSettings().worker_api).announce()
    line = json.loads(log.getvalue())
    assert (line["posture"], line["level"]) == ("closed", "warning")
    assert "every request is refused" in line["notice"]


def test_no_token_ever_reaches_the_log(tmp_path: Path, clock: Clock, log: io.StringIO) -> None:
    path = write(tmp_path / "token", "hush-old")
    tokens = source(path, clock)
    tokens.announce()
    write(path, "hush-new")
    accepts(tokens, "hush-wrong")
    assert "door.token_rotated" in log.getvalue()
    assert "hush" not in log.getvalue()
    assert "hush" not in repr(vars(tokens))


def test_a_file_is_called_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^the password file .* cannot be read"):
        TokenFile(tmp_path / "absent", noun="password").read()
    (tmp_path / "empty").touch(0o600)
    with pytest.raises(ConfigurationError, match=r"holds no password$"):
        TokenFile(tmp_path / "empty", noun="password").read()


@pytest.mark.parametrize("token", ["first", "third", "wrong"])
def test_every_valid_token_is_compared_in_constant_time(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    """Whichever of them fits, if any does."""
    path = write(tmp_path / "token", "first-token-of-three")
    tokens = source(path, clock)
    for name in ("second", "third"):
        clock.now += 1
        write(path, f"{name}-token-of-three")
        assert accepts(tokens, f"{name}-token-of-three")
    compared = Mock(side_effect=hmac.compare_digest)
    monkeypatch.setattr("fumehood.door.tokens.hmac.compare_digest", compared)
    assert accepts(tokens, f"{token}-token-of-three") is (token != "wrong")
    assert compared.call_count == 3
