"""Admission: from what somebody asked for to the one digest that may run, and the evidence of why.

Drivers take an `AdmittedImage` and nothing else, and only this module makes one. The order is fixed and the first "no"
ends it: the reference parses; its registry is allowed; it names a digest, or the registry resolves it to one; the
policy agrees. Each denial carries the evidence gathered until then, as attribute `evidence` of the error.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import InitVar, dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar, Final, NoReturn, Protocol, final

from fumehood.errors import (
    ConfigurationError,
    DigestResolutionError,
    ImageDeniedError,
    ImageError,
    InvalidReferenceError,
)
from fumehood.images.reference import ImageReference, check_registry, is_digest
from fumehood.wire.times import rfc3339

_SEAL: Final = object()
"""What proves that a call comes from this module."""

_SHOWN = 256
_WITHHELD = "(not shown: it does not parse, and may hold credentials)"


class DenialReason(StrEnum):
    """Why an image was refused; the values are the contract's."""

    INVALID_IMAGE_REF = "invalid_image_ref"
    REGISTRY_NOT_ALLOWED = "registry_not_allowed"
    DIGEST_RESOLUTION_FAILED = "digest_resolution_failed"
    TRUST_NOT_CONFIGURED = "trust_not_configured"


class SignatureStatus(StrEnum):
    """What is known about an image's signature."""

    NOT_CHECKED = "not_checked"
    """Nobody looked: it may be signed or not, by anybody."""


@dataclass(frozen=True, slots=True)
class PolicyEvidence:
    """What admission decided about one image, and on what ground. A record, not a permission."""

    image: str
    """As it was asked for."""
    policy: str
    decided_at: dt.datetime
    registry: str | None = None
    repository: str | None = None
    rule: str | None = None
    """The policy's rule that matched the registry; without one the registry was not allowed, or never looked at."""
    resolved_digest: str | None = None
    signature: SignatureStatus = SignatureStatus.NOT_CHECKED
    denial_reason: DenialReason | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON. `resolved_digest` and the parts of the name are left out where there are none."""
        found = {
            "registry": self.registry,
            "repository": self.repository,
            "rule": self.rule,
            "resolved_digest": self.resolved_digest,
        }
        return {
            "image": self.image,
            "policy": self.policy,
            **{name: value for name, value in found.items() if value is not None},
            "registry_allowed": self.rule is not None,
            "signature": self.signature.value,
            "signature_verified": False,  # no status of today's means verified
            "denial_reason": self.denial_reason.value if self.denial_reason is not None else None,
            "decided_at": rfc3339(self.decided_at),
        }


@final
@dataclass(frozen=True, slots=True)
class AdmittedImage:
    """An image that passed admission: what a driver takes, and all it takes.

    The constructor wants a seal that only this module has; `dataclasses.replace`, pickling and subclassing fail, and a
    copy is the same object. This keeps honest code, and what it is given, on the one path; code that runs in this
    process and means harm could still forge one (`object.__new__`), as it could do anything else.
    """

    repository: str
    """Registry and name, as the engine must be told: `127.0.0.1:5055/fumehood/base`."""
    digest: str
    evidence: PolicyEvidence
    seal: InitVar[object] = None

    def __post_init__(self, seal: object) -> None:
        if seal is not _SEAL:
            raise TypeError("an AdmittedImage comes from Admission.admit, and from nowhere else")
        if not is_digest(self.digest) or self.evidence.resolved_digest != self.digest:
            raise ValueError("the digest is not the one that was decided on")
        if self.evidence.denial_reason is not None:
            raise ValueError("the evidence is of a denial")

    @property
    def pinned(self) -> str:
        """The only form in which an image is ever run."""
        return f"{self.repository}@{self.digest}"

    def __init_subclass__(cls) -> None:
        raise TypeError("AdmittedImage cannot be subclassed")

    def __copy__(self) -> AdmittedImage:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> AdmittedImage:
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("an AdmittedImage cannot be pickled: admit the image where it is needed")

    def __setstate__(self, state: object) -> NoReturn:
        raise TypeError("an AdmittedImage cannot be changed")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A policy's last word on a digest."""

    signature: SignatureStatus
    denial_reason: DenialReason | None = None
    detail: str = ""


class DigestResolver(Protocol):
    """What admission needs of a registry client."""

    async def resolve(self, reference: ImageReference) -> str: ...


class AdmissionPolicy(Protocol):
    """Decides twice: before anything is asked of a registry, and again once the digest is known."""

    @property
    def name(self) -> str: ...

    @property
    def admits(self) -> str:
        """From where images are admitted, in words; part of every denial, so that it says what to do instead."""
        ...

    def registry_rule(self, reference: ImageReference) -> str | None:
        """The rule that allows this registry, or `None`: then nothing is sent to it."""
        ...

    async def judge(self, reference: ImageReference, digest: str, rule: str) -> Verdict:
        """The verdict on a digest; may look at signatures."""
        ...


PUBLIC_REGISTRIES: Final = frozenset({"docker.io", "ghcr.io", "quay.io", "public.ecr.aws", "registry.k8s.io", "gcr.io"})


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DevelopmentPolicy:
    """For a developer's machine: loopback registries, and well-known public ones without a look at signatures."""

    LOOPBACK: ClassVar[str] = "loopback"
    UNSIGNED_PUBLIC: ClassVar[str] = "unsigned-public"

    registries: frozenset[str] = PUBLIC_REGISTRIES
    """Allowed besides the loopback, each as it stands in a normalised reference."""
    allow_unsigned: bool = True
    """False: images from these registries are denied, since this policy has no trust to check signatures against."""

    def __post_init__(self) -> None:
        for registry in self.registries:
            try:
                check_registry(registry)
            except InvalidReferenceError as error:
                raise ConfigurationError(f"allowed registries: {error.detail}") from None

    @property
    def name(self) -> str:
        return "development"

    @property
    def notice(self) -> str:
        """One line for whoever starts a process under this policy."""
        unsigned = ", and unsigned ones from " + ", ".join(sorted(self.registries)) if self.allow_unsigned else ""
        return f"development policy: signatures are not checked; admits images from loopback registries{unsigned}"

    @property
    def admits(self) -> str:
        if not self.allow_unsigned:
            return "loopback registries only, since unsigned_public_images is false"
        names = ", ".join(sorted(self.registries))
        return f"loopback registries and {names}; a [[registries]] table in the node's configuration admits one more"

    def registry_rule(self, reference: ImageReference) -> str | None:
        if reference.is_loopback:
            return self.LOOPBACK
        return self.UNSIGNED_PUBLIC if reference.registry in self.registries else None

    async def judge(self, reference: ImageReference, digest: str, rule: str) -> Verdict:
        if rule == self.LOOPBACK or (rule == self.UNSIGNED_PUBLIC and self.allow_unsigned):
            return Verdict(SignatureStatus.NOT_CHECKED)
        return Verdict(
            SignatureStatus.NOT_CHECKED,
            DenialReason.TRUST_NOT_CONFIGURED,
            "unsigned_public_images is false, and this version cannot check signatures; admitted are images of "
            "loopback registries only",
        )


def _utc_now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


class Admission:
    """The one way from a reference to an `AdmittedImage`."""

    def __init__(
        self, policy: AdmissionPolicy, resolver: DigestResolver, *, now: Callable[[], dt.datetime] = _utc_now
    ) -> None:
        self._policy = policy
        self._resolver = resolver
        self._now = now

    async def admit(self, image: str) -> AdmittedImage:
        """Admit, or raise `InvalidReferenceError`, `DigestResolutionError` or `ImageDeniedError` with `evidence`.

        `RegistryUnavailableError`, a kind of the second, says that nothing was decided: ask again later.
        """
        reference = self._parse(image)
        evidence = self._open(image, registry=reference.registry, repository=reference.repository)
        rule = self._policy.registry_rule(reference)
        if rule is None:
            refused = f"the registry {reference.registry} is not allowed by the policy {self._policy.name}"
            detail = f"{refused}; admitted are images of {self._policy.admits}"
            raise self._denied(evidence, DenialReason.REGISTRY_NOT_ALLOWED, detail)
        evidence = replace(evidence, rule=rule)
        digest = await self._digest(reference, evidence)
        evidence = replace(evidence, resolved_digest=digest)
        verdict = await self._policy.judge(reference, digest, rule)
        evidence = replace(evidence, signature=verdict.signature, decided_at=self._now())
        if verdict.denial_reason is not None:
            raise self._denied(evidence, verdict.denial_reason, verdict.detail)
        return AdmittedImage(reference.name, digest, evidence, _SEAL)

    def _open(self, image: str, *, registry: str | None = None, repository: str | None = None) -> PolicyEvidence:
        return PolicyEvidence(image, self._policy.name, self._now(), registry, repository)

    def _parse(self, image: str) -> ImageReference:
        try:
            return ImageReference.parse(image)
        except InvalidReferenceError as error:
            evidence = self._open(_shown(image))
            raise self._with(error, evidence, DenialReason.INVALID_IMAGE_REF) from None

    async def _digest(self, reference: ImageReference, evidence: PolicyEvidence) -> str:
        """A reference that carries a digest needs no registry: the engine checks the digest when it pulls."""
        if reference.digest is not None:
            return reference.digest
        try:
            digest = await self._resolver.resolve(reference)
        except DigestResolutionError as error:
            raise self._unresolved(evidence, error.again()) from error
        if not is_digest(digest):
            nonsense = DigestResolutionError(f"cannot resolve {reference}: the answer is not a digest")
            raise self._unresolved(evidence, nonsense)
        return digest

    def _unresolved(self, evidence: PolicyEvidence, error: DigestResolutionError) -> ImageError:
        return self._with(error, evidence, DenialReason.DIGEST_RESOLUTION_FAILED)

    def _denied(self, evidence: PolicyEvidence, reason: DenialReason, detail: str) -> ImageError:
        return self._with(ImageDeniedError(detail, reason=reason.value), evidence, reason)

    def _with(self, error: ImageError, evidence: PolicyEvidence, reason: DenialReason) -> ImageError:
        decided = replace(evidence, denial_reason=reason, decided_at=self._now())
        error.evidence = decided.to_dict()
        return error


def _shown(image: str) -> str:
    """An image that does not parse, for the evidence: bounded, and not at all where a password could be in it."""
    if "@" in image or "://" in image or not image.isascii() or not image.isprintable():
        return _WITHHELD
    return image[:_SHOWN]
