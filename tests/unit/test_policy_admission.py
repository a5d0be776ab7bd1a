"""Admission under a policy file: every reason to deny, in its order, and the evidence of each."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from fumehood.errors import DigestResolutionError, ImageDeniedError, ImageError, RegistryUnavailableError
from fumehood.images import Admission, ImageReference, SignatureStatus
from fumehood.images.signatures import Verification
from tests.unit.policy_world import GOOD, Says, policy

DIGEST = "sha256:" + "ab" * 32
NOON = dt.datetime(2026, 1, 2, 12, 0, tzinfo=dt.UTC)
SIGNED = "registry.example/team/tool:1"


class Resolver:
    def __init__(self, answer: str | Exception = DIGEST) -> None:
        self.asked: list[str] = []
        self._answer = answer

    async def resolve(self, reference: ImageReference) -> str:
        self.asked.append(str(reference))
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


class World:
    """Admission under the good file, with a registry and a verifier that say what they are told."""

    def __init__(self, folder: Path, says: Says | None = None, resolver: Resolver | None = None) -> None:
        self.says, self.resolver = says or Says(), resolver or Resolver()
        self.policy = policy(folder, GOOD, self.says)
        self.admission = Admission(self.policy, self.resolver, now=lambda: NOON)

    async def denial(self, image: str) -> dict[str, Any]:
        with pytest.raises(ImageError) as caught:
            await self.admission.admit(image)
        assert caught.value.evidence is not None
        assert caught.value.evidence["detail"] == caught.value.detail
        assert caught.value.evidence["policy_sha256"] == self.policy.sha256
        if isinstance(caught.value, ImageDeniedError):
            assert caught.value.reason == caught.value.evidence["denial_reason"]
        json.dumps(caught.value.evidence)
        return dict(caught.value.evidence)


async def test_what_is_signed_is_admitted_and_says_by_whom(tmp_path: Path) -> None:
    says = Says(
        Verification(
            SignatureStatus.VERIFIED, identity="a@example", issuer="https://i.example", form="bundle", detail="it holds"
        )
    )
    world = World(tmp_path, says)
    admitted = await world.admission.admit(SIGNED)
    assert admitted.pinned == f"registry.example/team/tool@{DIGEST}"
    assert admitted.evidence.to_dict() == {
        "image": SIGNED,
        "policy": "production",
        "policy_sha256": world.policy.sha256,
        "registry": "registry.example",
        "repository": "team/tool",
        "rule": "registry.example/team/*",
        "resolved_digest": DIGEST,
        "verifier": "cosign",
        "identity": "a@example",
        "issuer": "https://i.example",
        "form": "bundle",
        "detail": "it holds",
        "registry_allowed": True,
        "signature": "verified",
        "signature_verified": True,
        "denial_reason": None,
        "decided_at": "2026-01-02T12:00:00.000Z",
    }
    assert says.asked == [(SIGNED, DIGEST, world.policy.trusts["release"])]


async def test_a_pinned_image_is_verified_too(tmp_path: Path) -> None:
    """Nobody is asked for the digest, but it must be signed."""
    world = World(tmp_path)
    admitted = await world.admission.admit(f"registry.example/team/tool@{DIGEST}")
    assert admitted.evidence.key == "ci (sha256:ab)"
    assert world.resolver.asked == []
    assert len(world.says.asked) == 1


async def test_an_unsigned_image_is_admitted_where_a_rule_says_so_and_the_evidence_says_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    evidence = (await world.admission.admit("127.0.0.1:5055/a/b")).evidence.to_dict()
    assert evidence["signature_verified"] is False
    assert evidence["signature"] == "not_checked"
    assert evidence["rule"] == "127.0.0.1:*/**"
    assert "without a signature" in evidence["detail"]
    assert world.says.asked == []


# --- every reason, in this order -----------------------------------------------------------------------------------


async def test_invalid_image_ref(tmp_path: Path) -> None:
    world = World(tmp_path)
    evidence = await world.denial("u:hunter2@registry.example/team/tool")
    assert evidence["denial_reason"] == "invalid_image_ref"
    assert "hunter2" not in json.dumps(evidence)
    assert world.resolver.asked == []


@pytest.mark.parametrize(
    "image", ["registry.example/other/tool", "registry.example/team/a/b", "registry.example:5000/team/a", "python"]
)
async def test_registry_not_allowed(tmp_path: Path, image: str) -> None:
    """The registry alone is not enough: the repository must fit too. Nothing is sent."""
    world = World(tmp_path)
    evidence = await world.denial(image)
    assert evidence["denial_reason"] == "registry_not_allowed"
    assert evidence["registry_allowed"] is False
    assert "it has rules for registry.example/team/*, 127.0.0.1:*/**" in evidence["detail"]
    assert world.resolver.asked == []
    assert world.says.asked == []


async def test_a_policy_without_rules_admits_nothing(tmp_path: Path) -> None:
    made = policy(tmp_path, "version: 1\nname: shut\nrules: []\n")
    with pytest.raises(ImageDeniedError, match="it has no rules, and so admits nothing"):
        await Admission(made, Resolver()).admit("python")


async def test_digest_resolution_failed(tmp_path: Path) -> None:
    world = World(tmp_path, resolver=Resolver(DigestResolutionError("cannot resolve it: 404")))
    evidence = await world.denial(SIGNED)
    assert evidence["denial_reason"] == "digest_resolution_failed"
    assert evidence["registry_allowed"] is True
    assert "resolved_digest" not in evidence
    assert world.says.asked == []


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (SignatureStatus.MISSING, "signature_missing"),
        (SignatureStatus.INVALID, "signature_invalid"),
        (SignatureStatus.IDENTITY_MISMATCH, "identity_mismatch"),
        (SignatureStatus.NOT_CHECKED, "signature_invalid"),
    ],
)
async def test_a_signature_that_does_not_hold(tmp_path: Path, status: SignatureStatus, reason: str) -> None:
    """The last one: a verifier that does not say yes has said no."""
    found = Verification(status, identity="b@example", issuer="https://i.example", form="tag", detail="why not")
    evidence = await World(tmp_path, Says(found)).denial(SIGNED)
    assert evidence["denial_reason"] == reason
    assert evidence["signature"] == status.value
    assert evidence["signature_verified"] is False
    assert evidence["resolved_digest"] == DIGEST
    assert evidence["detail"] == "the trust release does not hold: why not"
    assert evidence["identity"] == "b@example"


async def test_every_status_but_one_denies(tmp_path: Path) -> None:
    """Also one that somebody adds later."""
    for status in SignatureStatus:
        verdict = await World(tmp_path, Says(Verification(status))).policy.judge(
            ImageReference.parse(SIGNED), DIGEST, "registry.example/team/*"
        )
        assert (verdict.denial_reason is None) == (status is SignatureStatus.VERIFIED)


async def test_a_registry_that_does_not_give_its_signatures_decides_nothing(tmp_path: Path) -> None:
    cause = RegistryUnavailableError("cannot read the signatures: 503", retry_after_seconds=9)
    world = World(tmp_path, Says(cause))
    with pytest.raises(RegistryUnavailableError) as caught:
        await world.admission.admit(SIGNED)
    assert caught.value is not cause
    assert caught.value.retry_after_seconds == 9
    assert caught.value.retryable
    evidence = caught.value.evidence
    assert evidence is not None
    assert evidence["resolved_digest"] == DIGEST
    assert evidence["denial_reason"] == "digest_resolution_failed"


async def test_the_first_rule_that_matches_is_the_only_one(tmp_path: Path) -> None:
    text = """\
version: 1
name: ordered
rules:
  - {match: registry.example/team/open, unsigned: true}
  - {match: registry.example/team/*, trust: release}
""" + GOOD[GOOD.index("trust:\n") : GOOD.index("users:")]
    says = Says(Verification(SignatureStatus.MISSING))
    admission = Admission(policy(tmp_path, text, says), Resolver())
    assert (await admission.admit("registry.example/team/open")).evidence.rule == "registry.example/team/open"
    with pytest.raises(ImageDeniedError) as caught:
        await admission.admit("registry.example/team/shut")
    assert caught.value.reason == "signature_missing"
