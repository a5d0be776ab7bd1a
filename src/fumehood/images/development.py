"""The policy without a policy file: what a developer's machine admits, and says that it did not look at signatures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, Self, final

from fumehood.errors import ConfigurationError, InvalidReferenceError
from fumehood.images.admission import DenialReason, SignatureStatus, Verdict
from fumehood.images.egress import EgressRules
from fumehood.images.reference import ImageReference, check_registry
from fumehood.images.run_rules import RunRules, RunWish
from fumehood.wire.sandbox import NetworkProfile

PUBLIC_REGISTRIES: Final = frozenset({"docker.io", "ghcr.io", "quay.io", "public.ecr.aws", "registry.k8s.io", "gcr.io"})

OWN_REPOSITORIES: Final = tuple(f"127.0.0.1:5055/fumehood/{name}" for name in ("base", "python", "data"))
"""What `scripts/images` fills."""

_ALWAYS: Final = frozenset({NetworkProfile.DENY_ALL, NetworkProfile.DNS_ONLY, NetworkProfile.LOCALHOST})


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
    egress: EgressRules = field(default_factory=EgressRules)
    """Names for the network profile `restricted`, which is refused without any."""
    job_repositories: tuple[str, ...] = OWN_REPOSITORIES
    """Where images of jobs are looked for, which are named by their digest alone."""

    def __post_init__(self) -> None:
        for registry in self.registries:
            try:
                check_registry(registry)
            except InvalidReferenceError as error:
                raise ConfigurationError(f"allowed registries: {error.detail}") from None

    def current(self) -> Self:
        return self

    @property
    def trouble(self) -> None:
        return None

    @property
    def name(self) -> str:
        return "development"

    @property
    def sha256(self) -> None:
        return None

    @property
    def notice(self) -> str:
        """One line for whoever starts a process under this policy."""
        unsigned = ", and unsigned ones from " + ", ".join(sorted(self.registries)) if self.allow_unsigned else ""
        return f"development policy: signatures are not checked; admits images from loopback registries{unsigned}"

    def registry_rule(self, reference: ImageReference) -> str | None:
        if reference.is_loopback:
            return self.LOOPBACK
        return self.UNSIGNED_PUBLIC if reference.registry in self.registries else None

    def refusal(self, reference: ImageReference) -> str:
        refused = f"the registry {reference.registry} is not allowed by the policy {self.name}"
        return f"{refused}; admitted are images of {self._admits}"

    async def judge(self, reference: ImageReference, digest: str, rule: str) -> Verdict:
        if rule == self.LOOPBACK or (rule == self.UNSIGNED_PUBLIC and self.allow_unsigned):
            return Verdict(SignatureStatus.NOT_CHECKED, detail="the development policy looks at no signatures")
        return Verdict(
            SignatureStatus.NOT_CHECKED,
            DenialReason.TRUST_NOT_CONFIGURED,
            "unsigned_public_images is false, and without a policy file there is no trust to check signatures against; "
            "admitted are images of loopback registries only",
        )

    def permits(self, wish: RunWish) -> None:
        """As root too where the node's operator chose `run_as = "image"`: that is a decision somebody made already."""
        networks = _ALWAYS | {NetworkProfile.RESTRICTED}
        RunRules(frozenset({"sandbox", "image"}), networks, self.egress).check(wish, self.name)

    @property
    def _admits(self) -> str:
        if not self.allow_unsigned:
            return "loopback registries only, since unsigned_public_images is false"
        names = ", ".join(sorted(self.registries))
        return (
            f"loopback registries and {names}; a [[registries]] table in the configuration admits one more, and a "
            "policy file decides it all"
        )
