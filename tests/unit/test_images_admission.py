"""Admission: the order of its questions, the evidence of each answer, and the value that only it can make."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import datetime as dt
import json
import pickle
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.errors import (
    ConfigurationError,
    DigestResolutionError,
    ImageDeniedError,
    ImageError,
    InvalidReferenceError,
    RegistryUnavailableError,
)
from fumehood.images import (
    Admission,
    AdmissionPolicy,
    AdmittedImage,
    DenialReason,
    DevelopmentPolicy,
    EgressRules,
    ImageReference,
    PolicyEvidence,
    RunWish,
    Verdict,
)

DIGEST = "sha256:" + "ab" * 32
OTHER = "sha256:" + "cd" * 32
NOON = dt.datetime(2026, 1, 2, 12, 0, tzinfo=dt.UTC)


class Resolver:
    """A registry client that knows one answer and counts the questions."""

    def __init__(self, answer: str | Exception = DIGEST) -> None:
        self.asked: list[str] = []
        self._answer = answer

    async def resolve(self, reference: ImageReference) -> str:
        self.asked.append(str(reference))
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def admission(resolver: Resolver | None = None, policy: AdmissionPolicy | None = None) -> Admission:
    return Admission(policy or DevelopmentPolicy(), resolver or Resolver(), now=lambda: NOON)


async def denial(image: str, kind: type[ImageError], admission_: Admission) -> dict[str, Any]:
    with pytest.raises(kind) as caught:
        await admission_.admit(image)
    assert type(caught.value) is kind
    assert caught.value.evidence is not None
    json.dumps(caught.value.evidence)
    return dict(caught.value.evidence)


# --- what is admitted ----------------------------------------------------------------------------------------------


async def test_a_loopback_image_is_admitted_by_digest() -> None:
    resolver = Resolver()
    admitted = await admission(resolver).admit("127.0.0.1:5055/fumehood/base:1")
    assert admitted.pinned == f"127.0.0.1:5055/fumehood/base@{DIGEST}"
    assert resolver.asked == ["127.0.0.1:5055/fumehood/base:1"]


async def test_the_evidence_says_what_was_not_done() -> None:
    """A reader sees at once that this was the development policy, and that nobody looked at a signature."""
    admitted = await admission().admit("python:3.12")
    assert admitted.evidence.to_dict() == {
        "image": "python:3.12",
        "policy": "development",
        "registry": "docker.io",
        "repository": "library/python",
        "rule": "unsigned-public",
        "resolved_digest": DIGEST,
        "detail": "the development policy looks at no signatures",
        "registry_allowed": True,
        "signature": "not_checked",
        "signature_verified": False,
        "denial_reason": None,
        "decided_at": "2026-01-02T12:00:00.000Z",
    }


@pytest.mark.parametrize("image", [f"python@{OTHER}", f"localhost:1/app:tag@{OTHER}"])
async def test_a_digest_needs_no_registry(image: str) -> None:
    """What the caller pinned is what runs, whatever a tag next to it means today."""
    resolver = Resolver()
    admitted = await admission(resolver).admit(image)
    assert admitted.digest == OTHER
    assert resolver.asked == []


@pytest.mark.parametrize(
    ("image", "rule"),
    [
        ("localhost/a", "loopback"),
        ("[::1]:5000/a", "loopback"),
        ("a", "unsigned-public"),
        ("ghcr.io/o/a", "unsigned-public"),
        ("quay.io/o/a", "unsigned-public"),
        ("public.ecr.aws/o/a", "unsigned-public"),
        ("registry.k8s.io/pause", "unsigned-public"),
        ("gcr.io/o/a", "unsigned-public"),
    ],
)
async def test_the_development_policy_knows_two_rules(image: str, rule: str) -> None:
    assert (await admission().admit(image)).evidence.rule == rule


# --- what is denied, in this order ---------------------------------------------------------------------------------


async def test_first_the_reference_must_parse() -> None:
    resolver = Resolver()
    evidence = await denial("Python:3.12", InvalidReferenceError, admission(resolver))
    assert evidence["denial_reason"] == "invalid_image_ref"
    assert evidence["image"] == "Python:3.12"
    assert evidence["registry_allowed"] is False
    assert "resolved_digest" not in evidence
    assert "registry" not in evidence
    assert resolver.asked == []


@pytest.mark.parametrize("image", ["u:hunter2@ghcr.io/a", "https://h/?t=hunter2", "hunter2\n", "hunter2\u00e4"])
async def test_what_may_be_a_secret_is_not_evidence(image: str) -> None:
    """Evidence is stored and shown; a reference that does not parse can be anything."""
    evidence = await denial(image, InvalidReferenceError, admission())
    assert "hunter2" not in json.dumps(evidence)


async def test_evidence_is_bounded() -> None:
    evidence = await denial("A" * 100_000, InvalidReferenceError, admission())
    assert len(json.dumps(evidence)) < 1000


@pytest.mark.parametrize(
    "image",
    [
        "registry.example/a",
        f"registry.example/a@{DIGEST}",
        "docker.io.evil.example/a",
        "ghcr.io:444/a",
        "ghcr.io:443/a",
        "registry-1.docker.io/library/python",
        "0.0.0.0:5000/a",
        "127.0.0.1.nip.io/a",
    ],
)
async def test_then_the_registry_must_be_allowed(image: str) -> None:
    """Nothing is sent to one that is not."""
    resolver = Resolver()
    evidence = await denial(image, ImageDeniedError, admission(resolver))
    assert evidence["denial_reason"] == "registry_not_allowed"
    assert evidence["registry_allowed"] is False
    assert "resolved_digest" not in evidence
    assert resolver.asked == []


async def test_then_a_digest_must_be_found() -> None:
    cause = DigestResolutionError("cannot resolve it: 404")
    evidence = await denial("ghcr.io/o/a:1", DigestResolutionError, admission(Resolver(cause)))
    assert evidence["denial_reason"] == "digest_resolution_failed"
    assert evidence["registry_allowed"] is True
    assert "resolved_digest" not in evidence
    assert cause.evidence is None, "an error that others may share is left alone"


async def test_a_registry_that_is_away_decides_nothing() -> None:
    cause = RegistryUnavailableError("cannot resolve it: 503", retry_after_seconds=9)
    with pytest.raises(RegistryUnavailableError) as caught:
        await admission(Resolver(cause)).admit("ghcr.io/o/a:1")
    assert caught.value is not cause
    assert caught.value.retry_after_seconds == 9
    assert caught.value.evidence is not None


@pytest.mark.parametrize("answer", ["", "latest", "sha256:AB", DIGEST + "\n", f"x@{DIGEST}"])
async def test_an_answer_that_is_no_digest_admits_nothing(answer: str) -> None:
    evidence = await denial("ghcr.io/o/a:1", DigestResolutionError, admission(Resolver(answer)))
    assert evidence["denial_reason"] == "digest_resolution_failed"


async def test_then_the_policy_has_the_last_word() -> None:
    """With unsigned images switched off there is no trust to check against; the loopback stays open."""
    strict = DevelopmentPolicy(allow_unsigned=False)
    evidence = await denial("python", ImageDeniedError, admission(policy=strict))
    assert evidence["denial_reason"] == "trust_not_configured"
    assert evidence["resolved_digest"] == DIGEST
    assert evidence["signature"] == "not_checked"
    assert (await admission(policy=strict).admit("localhost/a")).digest == DIGEST


async def test_the_reason_is_on_the_error_too() -> None:
    with pytest.raises(ImageDeniedError) as caught:
        await admission().admit("registry.example/a")
    assert caught.value.reason == "registry_not_allowed"
    assert "the registry registry.example is not allowed" in caught.value.detail


async def test_a_denial_says_what_is_admitted_and_how_to_admit_more() -> None:
    with pytest.raises(ImageDeniedError) as caught:
        await admission().admit("registry.example/a")
    assert "admitted are images of loopback registries and docker.io, " in caught.value.detail
    assert "[[registries]]" in caught.value.detail
    with pytest.raises(ImageDeniedError) as caught:
        await admission(policy=DevelopmentPolicy(allow_unsigned=False)).admit("registry.example/a")
    assert "loopback registries only" in caught.value.detail


class Broken:
    """A policy with a bug."""

    name = "broken"
    sha256 = None
    trouble = None
    egress = EgressRules()
    job_repositories = ()

    def current(self) -> Broken:
        return self

    def refusal(self, reference: ImageReference) -> str:
        return ""

    def permits(self, wish: RunWish) -> None:
        """Anything goes."""

    def registry_rule(self, reference: ImageReference) -> str | None:
        return "any"

    async def judge(self, reference: ImageReference, digest: str, rule: str) -> Verdict:
        raise ZeroDivisionError


async def test_a_policy_that_fails_admits_nothing() -> None:
    with pytest.raises(ZeroDivisionError):
        await admission(policy=Broken()).admit(f"python@{DIGEST}")


async def test_a_cancelled_admission_is_cancelled() -> None:
    """Not renamed into a denial."""

    class Slow(Resolver):
        async def resolve(self, reference: ImageReference) -> str:
            await asyncio.Event().wait()
            return DIGEST

    task = asyncio.create_task(admission(Slow()).admit("python"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_denial_reasons_are_the_contracts() -> None:
    contract = {
        "invalid_image_ref",
        "registry_not_allowed",
        "digest_resolution_failed",
        "signature_missing",
        "signature_invalid",
        "identity_mismatch",
        "trust_not_configured",
    }
    assert {reason.value for reason in DenialReason} == contract


# --- the value that only admission makes ---------------------------------------------------------------------------


def evidence(**changes: Any) -> PolicyEvidence:
    return dataclasses.replace(
        PolicyEvidence("a", "development", NOON, "docker.io", "library/a", "unsigned-public", DIGEST), **changes
    )


@pytest.mark.parametrize("seal", [None, True, object(), "seal"])
def test_the_constructor_wants_the_seal(seal: object) -> None:
    with pytest.raises(TypeError, match=re.escape("Admission.admit")):
        AdmittedImage("docker.io/library/a", DIGEST, evidence(), seal)
    with pytest.raises(TypeError):
        AdmittedImage("docker.io/library/a", DIGEST, evidence())


async def test_an_admitted_image_cannot_become_another() -> None:
    """Neither by replacing, nor by assignment, nor through its state."""
    admitted = await admission().admit("python")
    with pytest.raises(TypeError):
        dataclasses.replace(admitted, digest=OTHER)
    with pytest.raises(TypeError):
        dataclasses.replace(admitted)
    with pytest.raises(dataclasses.FrozenInstanceError):
        admitted.digest = OTHER  # type: ignore[misc]
    with pytest.raises(TypeError):
        admitted.__setstate__(["x", OTHER, admitted.evidence])
    assert admitted.digest == DIGEST


async def test_a_copy_is_the_same_and_a_pickle_does_not_exist() -> None:
    admitted = await admission().admit("python")
    assert copy.copy(admitted) is admitted
    assert copy.deepcopy([admitted])[0] is admitted
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(admitted, protocol)


def test_it_has_no_subclasses() -> None:
    with pytest.raises(TypeError, match="subclassed"):
        type("Forged", (AdmittedImage,), {"__post_init__": lambda self, seal: None})


async def test_equal_images_are_equal_and_hashable() -> None:
    """A pool keys on them."""
    first, second = await admission().admit("python"), await admission().admit("python")
    assert first == second
    assert len({first, second}) == 1


# --- the policy's own configuration --------------------------------------------------------------------------------


async def test_registries_can_be_named() -> None:
    policy = DevelopmentPolicy(registries=frozenset({"registry.example:5000"}))
    assert (await admission(policy=policy).admit("registry.example:5000/a")).evidence.rule == "unsigned-public"
    await denial("python", ImageDeniedError, admission(policy=policy))


@pytest.mark.parametrize("registry", ["", "GHCR.io", "https://ghcr.io", "ghcr.io/org", "index.docker.io", "*"])
def test_a_registry_that_no_reference_can_name_is_a_mistake(registry: str) -> None:
    """It would silently allow nothing."""
    with pytest.raises(ConfigurationError):
        DevelopmentPolicy(registries=frozenset({registry}))


def test_the_notice_says_what_is_open() -> None:
    assert "signatures are not checked" in DevelopmentPolicy().notice
    assert "docker.io" in DevelopmentPolicy().notice
    assert "docker.io" not in DevelopmentPolicy(allow_unsigned=False).notice


@given(st.text())
def test_any_text_is_admitted_by_digest_or_denied_with_evidence(image: str) -> None:
    """There is no third way."""
    denied: ImageError | None = None
    try:
        evidence_ = asyncio.run(admission().admit(image)).evidence.to_dict()
    except ImageError as error:
        denied, evidence_ = error, dict(error.evidence or {})
    assert (denied is None) == (evidence_["denial_reason"] is None)
    assert denied is not None or evidence_["resolved_digest"] == DIGEST
