"""Which image may run: references, registries, and admission, whose `AdmittedImage` is all that a driver takes."""

from fumehood.images.admission import (
    Admission,
    AdmissionPolicy,
    AdmittedImage,
    DenialReason,
    DigestResolver,
    PolicyEvidence,
    PolicySource,
    SignatureStatus,
    Verdict,
)
from fumehood.images.development import PUBLIC_REGISTRIES, DevelopmentPolicy
from fumehood.images.egress import EgressRule, EgressRules
from fumehood.images.reference import ImageReference
from fumehood.images.registry import RegistryAccess, RegistryClient, RetryPolicy
from fumehood.images.run_rules import RunRules, RunWish

__all__ = [
    "PUBLIC_REGISTRIES",
    "Admission",
    "AdmissionPolicy",
    "AdmittedImage",
    "DenialReason",
    "DevelopmentPolicy",
    "DigestResolver",
    "EgressRule",
    "EgressRules",
    "ImageReference",
    "PolicyEvidence",
    "PolicySource",
    "RegistryAccess",
    "RegistryClient",
    "RetryPolicy",
    "RunRules",
    "RunWish",
    "SignatureStatus",
    "Verdict",
]
