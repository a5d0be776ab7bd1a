"""What looks like a secret, and what only looks a little like one."""

from __future__ import annotations

import base64
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.wire.secret_forms import _FORMS, secret_in
from tests.conftest import TimeBounds

PEM = "-----BEGIN {0}-----\nMIIB\n-----END {0}-----"


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


JWT = f"{part({'alg': 'RS256', 'typ': 'JWT'})}.{part({'sub': 'somebody', 'iat': 1700000000})}.c2lnbmF0dXJlLWJ5dGVz"

SECRETS = {
    "a private key": [
        PEM.format("PRIVATE KEY"), PEM.format("RSA PRIVATE KEY"), PEM.format("EC PRIVATE KEY"),
        PEM.format("OPENSSH PRIVATE KEY"), PEM.format("ENCRYPTED PRIVATE KEY"), PEM.format("PGP PRIVATE KEY BLOCK"),
        "AGE-SECRET-KEY-1" + "Q" * 58,
    ],
    "an AWS access key": ["AKIA" + "IOSFODNN7EXAMPLE", "ASIA" + "ABCDEFGH234567AB", "id=AKIA" + "IOSFODNN7EXAMPLE;"],
    "a GitHub token": ["ghp_" + "a1B2" * 9, "gho_" + "x" * 36, "ghs_" + "0" * 36, "github_pat_" + "A" * 22 + "_b"],
    "a GitLab token": ["glpat-" + "x" * 20, "gldt-" + "Ab-_" * 5],
    "a Slack token": ["xox" + "b-123456789012-1234567890123-AbCdEfGhIjKlMnOpQrStUvWx", "xapp-1-A012345678-1234567890"],
    "a Slack webhook": ["https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX"],
    "a Google API key": ["AIza" + "SyA-_0123456789abcdefghijklmnopqrst"],
    "a Google OAuth secret": ["GOCSPX-" + "a" * 28, "ya29.a0AfH6SMBxxxxxxxxxxxxxxxx"],
    "a Stripe key": ["sk_live_" + "a" * 24, "rk_test_" + "B" * 24, "whsec_" + "c" * 32],
    "a model provider's key": ["sk-" + "aB3d" * 12, "sk-proj-" + "a_B-" * 10, "sk-ant-api03-" + "x" * 90],
    "a JSON Web Token": [JWT, f"Bearer {JWT}"],
    "an npm token": ["npm_" + "a" * 36],
    "a PyPI token": ["pypi-AgEIcHlwaS5vcmc" + "a" * 60],
    "a Hugging Face token": ["hf_" + "a" * 34],
    "a Docker token": ["dckr_pat_" + "a" * 27],
    "a Vault token": ["hvs." + "a" * 24],
    "a DigitalOcean token": ["dop_v1_" + "a" * 64],
    "a SendGrid key": ["SG." + "a" * 22 + "." + "b" * 43],
    "an Azure storage key": ["DefaultEndpointsProtocol=https;AccountName=a;AccountKey=" + "a" * 86 + "=="],
    "a key of this system": ["fhk_" + "0123456789abcdef01234_" + "a" * 43, "fha_" + "a" * 40],
    "a password in an address": [
        "postgres://app:hunter2@db.example.com/app", "https://:token@example.com/x.git", "redis://:p%40ss@10.0.0.1:6379",
        "postgres://app:5000@db/x", "https://u:12345@sha256.example/x", "https://u:123456@sha256:abc",
        "postgres://app:${DB_PASSWORD:-hunter2}@db/x", "postgres://app:$ecret@db/x", "postgres://app:a${B}@db/x",
        "postgres://app:${A}b@db/x", "postgres://app:***x@db/x",
    ],
}  # fmt: skip

HARMLESS = [
    "", "debug", "true", "8080", "en_US.UTF-8", "/usr/local/bin:/usr/bin", "a b\tc\nd",
    "da39a3ee5e6b4b0d3255bfef95601890afd80709",  # a commit
    "sha256:" + "ab" * 32, "0d9a8f52-5c0e-4a8e-8f0b-7d1f5d6c3a21", "v1.2.3-rc.1+build.5",
    "https://example.com/path?query=1#part", "http://proxy.example.com:3128", "nats://127.0.0.1:4222",
    "ssh://git@example.com/team/tool.git", "git@github.com:team/tool.git", "user@example.com", "10:00@room", "a:b@c",
    "oci://registry.example:5000@sha256:" + "ab" * 32, "docker://registry:5000@sha256:abc",
    "docker://registry:5000/team/tool@sha256:abc", "postgres://app:${DB_PASSWORD}@db/x", "postgres://app:$DB_PASS@db/x",
    "postgres://app:$(DB_PASSWORD)@db/x", "postgres://app:{{password}}@db/x", "postgres://app:<password>@db/x",
    "postgres://app:****@db/x",
    "task-" + "a" * 40, "risk-proj-" + "a" * 40, "sk-learn-contrib-hdbscan-clustering-v2", "sk-", "sk_test_",
    "flask-app", "disk-" + "x" * 48, "AKIA", "AKIA-not-a-key", "MAKIA" + "A" * 16, "AKIA" + "a" * 16, "AKIA" + "A" * 17,
    "ghp_short", "xghp_" + "a" * 36, "ghpages", "glpat-short", "xoxb", "xox-files", "AIzaShort", "hf_model",
    "npm_config_registry", "npm_config_cache_lock_retries_and_such_things", "eyJhbGciOiJub25lIn0", "eyJ.eyJ.x",
    JWT.rpartition(".")[0] + ".", "one.two.three", "SG.1.2", "dapi", "hvs.short",
    PEM.format("PUBLIC KEY"), PEM.format("CERTIFICATE"), PEM.format("PGP PUBLIC KEY BLOCK"), "BEGIN PRIVATE KEY",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHhVzZ0 someone@host", "AccountKey=none", "hooks.slack.com/services",
    base64.b64encode(b"any bytes at all, as long as you like them to be").decode(),
    json.dumps({"image": "team/tool:1", "args": ["--token-file", "/run/secrets/token"]}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in SECRETS.items() for text in texts])
def test_a_secret_is_recognised_and_called_by_its_name(name: str, text: str) -> None:
    assert secret_in(text) == name
    assert secret_in(f"before {text} behind") == name
    assert secret_in(f'{{"key": "{text}"}}') == name


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_none_passes(text: str) -> None:
    assert secret_in(text) is None


def test_every_form_has_an_example() -> None:
    assert SECRETS.keys() == _FORMS.keys()


@given(st.text(alphabet=st.characters(codec="ascii", categories=["Ll", "Nd", "Zs"]), max_size=200))
def test_plain_words_are_never_secrets(text: str) -> None:
    assert secret_in(text) is None


@pytest.mark.parametrize(
    "piece",
    [
        "eyJ",
        "eyJaaaaaaaa.",
        "a://",
        "a:",
        "a",
        "sk-",
        "-----BEGIN ",
        "A",
        "hooks.slack.com/",
        "@",
        "a://b:${A",
        "aa://:$A",
        "aa://:*",
    ],
)
def test_no_text_takes_long(piece: str, time_bounds: TimeBounds) -> None:
    """All that a request may hold; a form that is looked for again and again would take minutes."""
    text = (piece * 32 * 1024)[: 32 * 1024]
    began = time.process_time()
    secret_in(text)
    time_bounds.check(time.process_time() - began, 2)
