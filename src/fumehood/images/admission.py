"""Admission: from what somebody asked for to the one digest that may run, and the evidence of why.

Drivers take an `AdmittedImage` and nothing else, and only this module makes one. The order is fixed and the first "no"
ends it: the reference parses; its registry is allowed; it names a digest, or the registry resolves it to one; the
policy agrees. Each denial carries the evidence gathered until then, as attribute `evidence` of the error.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass, replace
from enum import StrEnum
from typing import Any, Final, NoReturn, Protocol, final

from fumehood.errors import (
    DigestResolutionError,
    ImageDeniedError,
    ImageError,
    ImageNotFoundError,
    InvalidReferenceError,
    RegistryUnavailableError,
)
from fumehood.images.egress import EgressRules
from fumehood.images.reference import ImageReference, is_digest
from fumehood.images.run_rules import RunWish
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
    SIGNATURE_MISSING = "signature_missing"
    SIGNATURE_INVALID = "signature_invalid"
    IDENTITY_MISMATCH = "identity_mismatch"
    TRUST_NOT_CONFIGURED = "trust_not_configured"


class SignatureStatus(StrEnum):
    """What is known about an image's signature."""

    NOT_CHECKED = "not_checked"
    """Nobody looked: it may be signed or not, by anybody."""
    VERIFIED = "verified"
    MISSING = "missing"
    """There is none for this digest."""
    INVALID = "invalid"
    """There are some, and none holds under the trust that was asked for."""
    IDENTITY_MISMATCH = "identity_mismatch"
    """One holds, and is of somebody else than the trust names."""


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
    """The policy's rule that matched; without one the registry was not allowed, or never looked at."""
    resolved_digest: str | None = None
    signature: SignatureStatus = SignatureStatus.NOT_CHECKED
    denial_reason: DenialReason | None = None
    policy_sha256: str | None = None
    """Of the file that the policy was read from; a policy that is in no file has none."""
    verifier: str | None = None
    identity: str | None = None
    issuer: str | None = None
    key: str | None = None
    """The name that the policy gives the key which the signature was made with, and its fingerprint."""
    form: str | None = None
    """In which form the signature was found."""
    detail: str | None = None
    """For people: why it was denied, or admitted without a signature."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON. What there is none of is left out."""
        found = {name: getattr(self, name) for name in _LEFT_OUT if getattr(self, name) is not None}
        return {
            "image": self.image,
            "policy": self.policy,
            **found,
            "registry_allowed": self.rule is not None,
            "signature": self.signature.value,
            "signature_verified": self.signature is SignatureStatus.VERIFIED,
            "denial_reason": self.denial_reason.value if self.denial_reason is not None else None,
            "decided_at": rfc3339(self.decided_at),
        }


_LEFT_OUT: Final = (
    "policy_sha256",
    "registry",
    "repository",
    "rule",
    "resolved_digest",
    "verifier",
    "identity",
    "issuer",
    "key",
    "form",
    "detail",
)


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
    """A policy's last word on a digest, and who signed it as far as that was looked at."""

    signature: SignatureStatus
    denial_reason: DenialReason | None = None
    detail: str = ""
    verifier: str | None = None
    identity: str | None = None
    issuer: str | None = None
    key: str | None = None
    form: str | None = None


class DigestResolver(Protocol):
    """What admission needs of a registry client."""

    async def resolve(self, reference: ImageReference) -> str: ...


class PolicySource(Protocol):
    """Where the policy comes from that counts now: a file that may be replaced, or a policy that stays as it is."""

    def current(self) -> AdmissionPolicy:
        """What one decision is made by, from its beginning to its end."""
        ...

    @property
    def trouble(self) -> str | None:
        """What was wrong when `current` last looked, for anybody: no path, no reason. `None`: all is well."""
        ...


class AdmissionPolicy(PolicySource, Protocol):
    """Decides twice about an image, before anything is asked of a registry and again once the digest is known, and once
    about how it is to be run. A policy is the source of itself."""

    @property
    def name(self) -> str: ...

    @property
    def sha256(self) -> str | None:
        """Of the file that says it, for the evidence; `None`: it is in no file."""
        ...

    @property
    def egress(self) -> EgressRules:
        """To which names `restricted` leads."""
        ...

    @property
    def job_repositories(self) -> tuple[str, ...]:
        """Where an image is looked for that somebody names by its digest alone, in this order: `HOST/NAME`."""
        ...

    def registry_rule(self, reference: ImageReference) -> str | None:
        """The rule that allows this registry and repository, or `None`: then nothing is sent there."""
        ...

    def refusal(self, reference: ImageReference) -> str:
        """In words, why no rule allows it, and what would be admitted."""
        ...

    async def judge(self, reference: ImageReference, digest: str, rule: str) -> Verdict:
        """The verdict on a digest; may look at signatures, and so raise `DigestResolutionError` where it cannot."""
        ...

    def permits(self, wish: RunWish) -> None:
        """Whether something may be run like this: `PolicyDeniedError` if not."""
        ...


def _utc_now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


class Admission:
    """The one way from a reference to an `AdmittedImage`."""

    def __init__(
        self, policy: PolicySource, resolver: DigestResolver, *, now: Callable[[], dt.datetime] = _utc_now
    ) -> None:
        self._source = policy
        self._resolver = resolver
        self._now = now

    @property
    def policy(self) -> AdmissionPolicy:
        """The policy that counts now. Whoever asks it twice keeps it, so that both answers are of one policy."""
        return self._source.current()

    @property
    def trouble(self) -> str | None:
        """What whoever asks for readiness should know about the policy; no reason not to be ready."""
        self._source.current()
        return self._source.trouble

    async def admit(self, image: str, policy: AdmissionPolicy | None = None) -> AdmittedImage:
        """Admit, or raise `InvalidReferenceError`, `DigestResolutionError` or `ImageDeniedError` with `evidence`.

        `RegistryUnavailableError`, a kind of the second, says that nothing was decided: ask again later. Whoever also
        asks how the image may be run gives the `policy` that he asks for that: a file may be replaced in between.
        """
        return await _Decision(policy or self.policy, self._resolver, self._now, image).made()

    async def find(self, digest: str, policy: AdmissionPolicy | None = None) -> AdmittedImage:
        """Admit the image of a digest from the first repository for jobs that has it: what that one's rule says is the
        answer. As `admit`; `ImageNotFoundError` where none has it, `RegistryUnavailableError` where one might."""
        policy = policy or self.policy
        unavailable: RegistryUnavailableError | None = None
        for repository in policy.job_repositories:
            decision = _Decision(policy, self._resolver, self._now, f"{repository}@{digest}")
            try:
                if await decision.is_there():
                    return await decision.made()
            except RegistryUnavailableError as error:
                unavailable = unavailable or error
        raise unavailable or _not_found(digest, policy)


class _Decision:
    """One image under one policy; the evidence grows with each question that is answered."""

    def __init__(
        self, policy: AdmissionPolicy, resolver: DigestResolver, now: Callable[[], dt.datetime], image: str
    ) -> None:
        self._policy = policy
        self._resolver = resolver
        self._now = now
        self._evidence = PolicyEvidence(image, policy.name, now(), policy_sha256=policy.sha256)

    async def made(self) -> AdmittedImage:
        reference = self._parsed()
        rule = self._ruled(reference)
        digest = await self._resolved(reference)
        await self._judged(reference, digest, rule)
        return AdmittedImage(reference.name, digest, self._evidence, _SEAL)

    async def is_there(self) -> bool:
        """Whether its registry has it. Nobody is asked whom the policy does not allow: that is a denial, as ever."""
        reference = self._parsed()
        self._ruled(reference)
        try:
            await self._resolver.resolve(reference)
        except RegistryUnavailableError as error:
            raise self._with(error.again(), DenialReason.DIGEST_RESOLUTION_FAILED) from error
        except DigestResolutionError:
            return False
        return True

    def _parsed(self) -> ImageReference:
        try:
            reference = ImageReference.parse(self._evidence.image)
        except InvalidReferenceError as error:
            self._know(image=_shown(self._evidence.image))
            raise self._with(error, DenialReason.INVALID_IMAGE_REF) from None
        self._know(registry=reference.registry, repository=reference.repository)
        return reference

    def _ruled(self, reference: ImageReference) -> str:
        rule = self._policy.registry_rule(reference)
        if rule is None:
            raise self._denied(DenialReason.REGISTRY_NOT_ALLOWED, self._policy.refusal(reference))
        self._know(rule=rule)
        return rule

    async def _resolved(self, reference: ImageReference) -> str:
        """A reference that carries a digest needs no registry: the engine checks the digest when it pulls."""
        digest = reference.digest
        if digest is None:
            with self._asking():
                digest = await self._resolver.resolve(reference)
        if not is_digest(digest):
            nonsense = DigestResolutionError(f"cannot resolve {reference}: the answer is not a digest")
            raise self._with(nonsense, DenialReason.DIGEST_RESOLUTION_FAILED)
        self._know(resolved_digest=digest)
        return digest

    async def _judged(self, reference: ImageReference, digest: str, rule: str) -> None:
        with self._asking():
            verdict = await self._policy.judge(reference, digest, rule)
        self._know(
            signature=verdict.signature,
            verifier=verdict.verifier,
            identity=verdict.identity,
            issuer=verdict.issuer,
            key=verdict.key,
            form=verdict.form,
            detail=verdict.detail or None,
            decided_at=self._now(),
        )
        if verdict.denial_reason is not None:
            raise self._denied(verdict.denial_reason, verdict.detail)

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """A registry that could not be asked, or not be believed, whatever it was asked for."""
        try:
            yield
        except DigestResolutionError as error:
            raise self._with(error.again(), DenialReason.DIGEST_RESOLUTION_FAILED) from error

    def _know(self, **found: Any) -> None:
        self._evidence = replace(self._evidence, **found)

    def _denied(self, reason: DenialReason, detail: str) -> ImageError:
        return self._with(ImageDeniedError(detail, reason=reason.value), reason)

    def _with(self, error: ImageError, reason: DenialReason) -> ImageError:
        self._know(denial_reason=reason, detail=error.detail, decided_at=self._now())
        error.evidence = self._evidence.to_dict()
        return error


def _not_found(digest: str, policy: AdmissionPolicy) -> ImageNotFoundError:
    named = policy.job_repositories
    where = f"none of the repositories that it names for jobs has it: {', '.join(named)}" if named else "it names none"
    return ImageNotFoundError(f"the policy {policy.name} leads to no image {digest}: {where}")


def _shown(image: str) -> str:
    """An image that does not parse, for the evidence: bounded, and not at all where a password could be in it."""
    if "@" in image or "://" in image or not image.isascii() or not image.isprintable():
        return _WITHHELD
    return image[:_SHOWN]
