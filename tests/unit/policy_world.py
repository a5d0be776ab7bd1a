"""What the tests of policies share: a file that is right, a verifier that says what it is told, and a key."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fumehood.images.admission import SignatureStatus
from fumehood.images.operator_files import OperatorFiles
from fumehood.images.policy import OperatorPolicy
from fumehood.images.policy_file import read_policy
from fumehood.images.reference import ImageReference
from fumehood.images.signatures import Verification
from fumehood.images.trust import Trust


def public_key() -> str:
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()


PEM = public_key()
INDENTED = PEM.replace("\n", "\n          ").rstrip()

GOOD = f"""\
version: 1
name: production
rules:
  - match: "registry.example/team/*"
    trust: release
  - match: "127.0.0.1:*/**"
    unsigned: true
trust:
  release:
    keys:
      - name: ci
        pem: |
          {INDENTED}
users: [sandbox]
networks: [deny-all, dns-only, restricted]
egress:
  allow: ["pypi.org:443", "*.example.com:443"]
limits: {{cpu_millis: 4000, memory_mib: 8192, timeout_seconds: 3600}}
"""


class Says:
    """A verifier that says one thing, and remembers what it was asked."""

    def __init__(self, answer: Verification | Exception | None = None) -> None:
        self.answer = answer or Verification(SignatureStatus.VERIFIED, key="ci (sha256:ab)", form="tag")
        self.asked: list[tuple[str, str, Trust]] = []

    async def verify(self, reference: ImageReference, digest: str, trust: Trust) -> Verification:
        self.asked.append((str(reference), digest, trust))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def policy(folder: Path, text: str = GOOD, verifier: Says | None = None) -> OperatorPolicy:
    """The policy of a file with this text."""
    file = folder / "policy.yaml"
    file.write_text(text, encoding="utf-8")
    return read_policy(file, verifier or Says(), OperatorFiles())
