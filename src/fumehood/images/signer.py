"""Who a signing certificate names: the subject, and the issuer that vouched for it, as Fulcio writes them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

from fumehood.images.documents import FlawError

_ISSUER = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.8")
_OLD_ISSUER = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
_USER_NAME = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.7")
_UTF8_STRING = 0x0C

MALFORMED: Final = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    OSError,
    RecursionError,
    UnsupportedAlgorithm,
    InvalidSignature,
    x509.ExtensionNotFound,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""What the libraries below raise for certificates, times and log entries that are not what they should be."""


@dataclass(frozen=True, slots=True)
class Signer:
    """Who signed. Worth as much as the certificate that it was read from."""

    subject: str
    issuer: str


def signer_of(certificate: x509.Certificate) -> Signer:
    """`FlawError`, or one of `MALFORMED`, where it does not name exactly one."""
    names = list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    if len(names) != 1:
        raise FlawError("the certificate does not name exactly one subject")
    return Signer(_subject(names[0]), _issuer(certificate.extensions))


def _subject(name: x509.GeneralName) -> str:
    if isinstance(name, x509.RFC822Name | x509.UniformResourceIdentifier):
        return name.value
    if isinstance(name, x509.OtherName) and name.type_id == _USER_NAME:
        return _utf8_string(name.value)
    raise FlawError("the certificate names a subject of an unknown kind")


def _issuer(extensions: x509.Extensions) -> str:
    held = {extension.oid: extension.value for extension in extensions}
    newer, older = held.get(_ISSUER), held.get(_OLD_ISSUER)
    if isinstance(newer, x509.UnrecognizedExtension):
        return _utf8_string(newer.value)
    if isinstance(older, x509.UnrecognizedExtension):
        return older.value.decode("utf-8")
    raise FlawError("the certificate names no issuer")


def _utf8_string(der: bytes) -> str:
    """A DER UTF8String of less than 64 KiB."""
    if len(der) < 2 or der[0] != _UTF8_STRING:
        raise ValueError("not a UTF8String")
    header = 2 if der[1] < 0x80 else 2 + (der[1] & 0x7F)
    length = der[1] if der[1] < 0x80 else int.from_bytes(der[2:header], "big")
    if header > 4 or len(der) != header + length:
        raise ValueError("not a UTF8String of this length")
    return der[header:].decode("utf-8")
