"""Which image may run: references, registries, and admission, whose `AdmittedImage` is all that a driver takes."""

from fumehood.images.admission import (
    PUBLIC_REGISTRIES,
    Admission,
    AdmissionPolicy,
    AdmittedImage,
    DenialReason,
    DevelopmentPolicy,
    DigestResolver,
    PolicyEvidence,
    SignatureStatus,
    Verdict,
)
from fumehood.images.reference import ImageReference
from fumehood.images.registry import RegistryAccess, RegistryClient, RetryPolicy

__all__ = [
    "PUBLIC_REGISTRIES",
    "Admission",
    "AdmissionPolicy",
    "AdmittedImage",
    "DenialReason",
    "DevelopmentPolicy",
    "DigestResolver",
    "ImageReference",
    "PolicyEvidence",
    "RegistryAccess",
    "RegistryClient",
    "RetryPolicy",
    "SignatureStatus",
    "Verdict",
]
