"""A denial in words for people: which question of admission was answered with "no", why, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fumehood.cli.show import plain

STAGES: Final[Mapping[str, str]] = {
    "reference": "the image's name",
    "rule": "the registry",
    "digest": "what the name means",
    "signature": "the signature",
    "run": "how it is run",
}
"""The questions, in their order."""
_UNASKED: Final[Mapping[str, str]] = {
    "reference": "this is not the name of an image",
    "digest": "the server could not find the image",
}
"""Where it ends before the policy has decided anything."""


@dataclass(frozen=True, slots=True)
class Denial:
    """Where a denial ends it, and what to do."""

    stage: str
    caller: str
    """For somebody who wants a run, under a policy that is not his."""
    operator: str = ""
    """For somebody who can change the policy; nothing where it is the same. `{pinned}`: the image by its digest."""


_SIGN: Final = "cosign sign --key KEY --use-signing-config=false --tlog-upload=false {pinned}"
"""Into no public log, whose entries stay for ever: whoever wants that leaves the options away."""

DENIALS: Final[Mapping[str, Denial]] = {
    "invalid_image_ref": Denial(
        "reference",
        "write it like REGISTRY/REPOSITORY:TAG or REGISTRY/REPOSITORY@sha256:…",
    ),
    "registry_not_allowed": Denial(
        "rule",
        "use an image that the policy has a rule for, or ask its operator for one",
        "use an image that a rule is for, or add a rule for this one to the policy",
    ),
    "digest_resolution_failed": Denial(
        "digest",
        "look whether the image is there, and whether the server may read it",
        "look whether the image is there, and whether the registry wants credentials",
    ),
    "signature_missing": Denial(
        "signature",
        "have this digest signed by somebody whom the policy trusts",
        f"sign this digest: {_SIGN}",
    ),
    "signature_invalid": Denial(
        "signature",
        "have this digest signed with a key that the policy trusts",
        f"sign this digest with a key of the trust: {_SIGN}",
    ),
    "identity_mismatch": Denial(
        "signature",
        "have it signed by somebody whom the policy names",
        "let somebody sign whom the trust names, or add this identity to the trust",
    ),
    "trust_not_configured": Denial(
        "signature",
        "the server's operator gives it a policy that says whom to trust",
        "give a policy file whose rule for this image names a trust, or says unsigned: true",
    ),
    "user_not_allowed": Denial("run", "run it as the sandbox's own user"),
    "network_not_allowed": Denial("run", "take another --network, or ask the policy's operator"),
    "limits_not_allowed": Denial("run", "ask for less with --cpu, --memory or --timeout"),
}


def stage_of(evidence: Mapping[str, Any]) -> str:
    """The stage that was not passed; nothing where all were, or by a reason that only a later server knows. With the
    digest known, a registry can still fail to give the signatures."""
    denial = DENIALS.get(str(evidence.get("denial_reason") or ""))
    if denial is None:
        return ""
    return "signature" if denial.stage == "digest" and evidence.get("resolved_digest") else denial.stage


def advice_to_operator(evidence: Mapping[str, Any]) -> str:
    """Of a denial that `DENIALS` knows."""
    denial = DENIALS[evidence["denial_reason"]]
    pinned = f"{evidence.get('registry')}/{evidence.get('repository')}@{evidence.get('resolved_digest')}"
    return (denial.operator or denial.caller).format(pinned=pinned)


def signer(evidence: Mapping[str, Any]) -> str:
    """Whose signature it is that was verified."""
    if evidence.get("identity"):
        return f"of {evidence['identity']}, says {evidence.get('issuer')}"
    return f"of the key {evidence.get('key')}"


def explained(evidence: Mapping[str, Any], detail: str) -> Iterator[str]:
    """Three lines: what was denied, how far it got and why not further, and what to do. What a later server adds is
    shown in its own words; the whole evidence is in what `fumehood image check --json` prints."""
    reason = str(evidence.get("denial_reason") or "")
    end = stage_of(evidence)
    image, policy = evidence.get("image"), evidence.get("policy")
    by = _UNASKED.get(end) or f"denied by the server's policy{f' {policy}' if policy else ''}"
    yield plain(f"{image or 'this'} was not run: {by} ({reason or 'no reason told'})")
    said = str(evidence.get("detail") or detail)
    passed = "".join(f"✓ {STAGES[stage]} " for stage in _passed(end))
    yield plain(f"  {passed}✗ {STAGES[end]}: {said}" if end else f"  ✗ {said}")
    if reason in DENIALS:
        yield f"  → {DENIALS[reason].caller}"


def _passed(end: str) -> list[str]:
    """The questions that were asked of a registry or a policy before, and answered with "yes"."""
    order = list(STAGES)
    return order[1 : order.index(end)] if end else []
