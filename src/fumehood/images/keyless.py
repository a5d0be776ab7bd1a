"""Keyless signatures: a certificate that was valid for minutes, and logs that say when; by Sigstore's own verifier.

Nothing here touches the network: the trusted root is the operator's, and the proofs come with the signature. Checked
are the certificate's chain, its timestamp from the certificate log (SCT), the transparency log's entry with its proof
of inclusion, and that certificate authority and logs were valid, by the trusted root, when the signature was made.
Who signed is only read from a certificate for which all of that holds.

Importing this module takes half a second, so only those import it who need it.
"""

from __future__ import annotations

import datetime as dt

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from sigstore.errors import Error as SigstoreError
from sigstore.errors import VerificationError
from sigstore.models import Bundle, TrustedRoot
from sigstore.verify import Verifier as SigstoreVerifier

from fumehood.images.bundle import STATEMENT_TYPE
from fumehood.images.documents import FlawError, parse_object, part
from fumehood.images.signer import MALFORMED, Signer, signer_of
from fumehood.images.trusted_root import root_at

_LONGEST_REASON = 200


def bundle_signer(raw: bytes, trusted_root: bytes) -> tuple[Signer, bytes]:
    """Who signed this bundle's statement, and the statement's bytes; `FlawError` where that does not hold."""
    try:
        bundle = Bundle.from_json(raw)
        if not isinstance(bundle.signing_certificate.public_key(), ec.EllipticCurvePublicKey):
            raise FlawError("the certificate's key is not an ECDSA key")
        root = TrustedRoot(root_at(trusted_root, _times(raw, bundle)))
        kind, payload = SigstoreVerifier(trusted_root=root).verify_dsse(bundle, _AnyIdentity())
        if kind != STATEMENT_TYPE:  # the verifier leaves this to its caller
            raise FlawError("what was signed is no in-toto statement")
        return signer_of(bundle.signing_certificate), payload
    except VerificationError as error:
        raise FlawError(f"it does not hold under the trusted root: {_plain(error)}") from None
    except (SigstoreError, *MALFORMED):
        raise FlawError("the bundle's certificate or log entry is malformed") from None


class _AnyIdentity:
    """For sigstore everybody is right: whom the policy wants is compared afterwards, to tell "wrong" from "broken"."""

    def verify(self, cert: x509.Certificate) -> None:
        """All that can be said about a certificate without knowing who is wanted has been checked by the caller."""


def _times(raw: bytes, bundle: Bundle) -> list[dt.datetime]:
    """When it was signed, by what it brings along. The verifier proves each of these, or refuses."""
    stamps = bundle.verification_material.timestamp_verification_data
    times = [stamp.tst_info.gen_time for stamp in stamps.rfc3161_timestamps] if stamps is not None else []
    entry = part(parse_object(raw, "the bundle"), "verificationMaterial", "tlogEntries")[0]
    if entry.get("integratedTime"):
        times.append(dt.datetime.fromtimestamp(int(entry["integratedTime"]), tz=dt.UTC))
    if not times:
        raise FlawError("nothing says when it was signed")
    return times


def _plain(error: Exception) -> str:
    """What sigstore says, short and on one line: it may quote the certificate."""
    words = " ".join(str(error).split())
    return "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in words)[:_LONGEST_REASON]
