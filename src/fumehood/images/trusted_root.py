"""The trusted root of keyless signatures: which authorities and logs are believed, and for which times."""

from __future__ import annotations

import datetime as dt
import functools

from cryptography.hazmat.primitives.serialization import load_der_public_key
from sigstore.errors import Error as SigstoreError
from sigstore.models import TrustedRoot
from sigstore.verify import Verifier as SigstoreVerifier
from sigstore_models.common.v1 import TimeRange
from sigstore_models.trustroot.v1 import TrustedRoot as RootDocument

from fumehood.errors import ConfigurationError
from fumehood.images.documents import FlawError
from fumehood.images.signer import MALFORMED

_NEEDED = {
    "certificate authority": "certificate_authorities",
    "transparency log": "tlogs",
    "certificate log": "ctlogs",
}


def check_trusted_root(raw: bytes) -> None:
    """`ConfigurationError` for what is not a trusted root, or lacks something that every signature needs."""
    root = _document(raw)
    lacking = [words for words, name in _NEEDED.items() if not getattr(root, name)]
    if lacking:
        raise ConfigurationError(f"the trusted_root names no {', and no '.join(lacking)}")
    try:
        SigstoreVerifier(trusted_root=TrustedRoot(root))
        for log in (*root.tlogs, *root.ctlogs):
            load_der_public_key(log.public_key.raw_bytes or b"")
    except (SigstoreError, *MALFORMED):
        raise ConfigurationError("the trusted_root holds a certificate or a key that is none") from None


def root_at(raw: bytes, times: list[dt.datetime]) -> RootDocument:
    """The root as it was at these times: sigstore would take an authority's word for times beyond its end."""
    root = _document(raw)
    valid = {
        "certificate_authorities": [one for one in root.certificate_authorities if _covers(one.valid_for, times)],
        "tlogs": [one for one in root.tlogs if _covers(one.public_key.valid_for, times)],
        "ctlogs": [one for one in root.ctlogs if _covers(one.public_key.valid_for, times)],
    }
    for words, name in _NEEDED.items():
        if not valid[name]:
            raise FlawError(f"no {words} of the trusted root was valid when it was signed")
    return root.model_copy(update=valid)


@functools.lru_cache(maxsize=8)
def _document(raw: bytes) -> RootDocument:
    try:
        return RootDocument.from_json(raw)
    except (ValueError, RecursionError):
        raise ConfigurationError("the trusted_root is not a Sigstore TrustedRoot in JSON") from None


def _covers(period: TimeRange | None, times: list[dt.datetime]) -> bool:
    if period is None:
        return True
    return all(period.start <= time and (period.end is None or time <= period.end) for time in times)
