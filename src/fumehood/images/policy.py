"""The operator's policy: which rule an image falls under, whose signature it needs, and how anything may be run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, Self, final

from fumehood.images.admission import DenialReason, SignatureStatus, Verdict
from fumehood.images.egress import EgressRules
from fumehood.images.pattern import ImagePattern
from fumehood.images.reference import ImageReference
from fumehood.images.run_rules import RunRules, RunWish
from fumehood.images.signatures import Verification
from fumehood.images.trust import Trust

_SHOWN: Final = 5

_DENIALS: Final[Mapping[SignatureStatus, DenialReason | None]] = {
    SignatureStatus.VERIFIED: None,
    SignatureStatus.MISSING: DenialReason.SIGNATURE_MISSING,
    SignatureStatus.INVALID: DenialReason.SIGNATURE_INVALID,
    SignatureStatus.IDENTITY_MISMATCH: DenialReason.IDENTITY_MISMATCH,
}


class SignatureVerifier(Protocol):
    """What a policy needs of whoever looks at signatures."""

    async def verify(self, reference: ImageReference, digest: str, trust: Trust) -> Verification: ...


@final
@dataclass(frozen=True, slots=True)
class Rule:
    """What counts for the images that match."""

    pattern: ImagePattern
    trust: str | None
    """The name of a trust; `None`: images run without a signature."""


@final
@dataclass(frozen=True, slots=True)
class OperatorPolicy:
    """A policy as a file says it. Images that no rule matches are denied."""

    name: str
    sha256: str
    rules: tuple[Rule, ...]
    trusts: Mapping[str, Trust]
    run_rules: RunRules
    verifier: SignatureVerifier = field(repr=False, compare=False)
    job_repositories: tuple[str, ...] = ()

    def current(self) -> Self:
        return self

    @property
    def trouble(self) -> None:
        return None

    @property
    def egress(self) -> EgressRules:
        return self.run_rules.egress

    def registry_rule(self, reference: ImageReference) -> str | None:
        rule = next((rule for rule in self.rules if rule.pattern.matches(reference)), None)
        return str(rule.pattern) if rule is not None else None

    def refusal(self, reference: ImageReference) -> str:
        shown = ", ".join(str(rule.pattern) for rule in self.rules[:_SHOWN])
        more = f" and {len(self.rules) - _SHOWN} more" if len(self.rules) > _SHOWN else ""
        admitted = f"it has rules for {shown}{more}" if self.rules else "it has no rules, and so admits nothing"
        return f"no rule of the policy {self.name} is for {reference.name}; {admitted}"

    async def judge(self, reference: ImageReference, digest: str, rule: str) -> Verdict:
        trust = next(one.trust for one in self.rules if str(one.pattern) == rule)
        if trust is None:
            detail = f"the rule {rule} lets images run without a signature; none was looked for"
            return Verdict(SignatureStatus.NOT_CHECKED, detail=detail)
        found = await self.verifier.verify(reference, digest, self.trusts[trust])
        return _verdict(found, trust)

    def permits(self, wish: RunWish) -> None:
        self.run_rules.check(wish, self.name)


def _verdict(found: Verification, trust: str) -> Verdict:
    """What a verifier says that is neither yes nor a no of the contract is a no."""
    denial = _DENIALS.get(found.status, DenialReason.SIGNATURE_INVALID)
    detail = found.detail if denial is None else f"the trust {trust} does not hold: {found.detail}"
    return Verdict(
        found.status,
        denial,
        detail,
        verifier=found.verifier,
        identity=found.identity,
        issuer=found.issuer,
        key=found.key,
        form=found.form,
    )
