"""Whose signatures count, as a policy file says it: its keys and trusted roots, read from where it names them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar, final

from fumehood.errors import ConfigurationError
from fumehood.images.operator_files import OperatorFiles
from fumehood.images.policy_schema import IdentityEntry, KeyEntry, PolicyDocument, TrustEntry
from fumehood.images.trust import MAX_PEM, MAX_TRUSTED_ROOT, Identity, Trust, TrustedKey
from fumehood.wire.yaml_lines import Location, Problem

Made = TypeVar("Made")


def read_trusts(document: PolicyDocument, folder: Path, files: OperatorFiles) -> tuple[dict[str, Trust], list[Problem]]:
    """Every trust by its name, and what is wrong with them; those that are wrong are left out."""
    reader = _Reader(folder, files)
    made = {name: reader.trust(("trust", name), entry) for name, entry in document.trust.items()}
    return {name: trust for name, trust in made.items() if trust is not None}, reader.problems


@final
class _Reader:
    def __init__(self, folder: Path, files: OperatorFiles) -> None:
        self._folder = folder
        self._files = files
        self.problems: list[Problem] = []

    def trust(self, at: Location, entry: TrustEntry) -> Trust | None:
        keys = [self._key((*at, "keys", number), one) for number, one in enumerate(entry.keys)]
        identities = [
            self._made((*at, "identities", number), partial(_identity, one))
            for number, one in enumerate(entry.identities)
        ]
        self._check_names(at, entry)
        root, where = None, at
        if entry.trusted_root is not None:
            where = (*at, "trusted_root")
            root = self._read(where, entry.trusted_root, MAX_TRUSTED_ROOT)
            if root is None:
                return None
        good = tuple(key for key in keys if key is not None), tuple(one for one in identities if one is not None)
        return self._made(where, lambda: Trust(*good, root))

    def _check_names(self, at: Location, entry: TrustEntry) -> None:
        names = [key.name for key in entry.keys]
        for number, name in enumerate(names):
            if name in names[:number]:
                self.problems.append(((*at, "keys", number, "name"), "another key of this trust has the same name"))

    def _key(self, at: Location, entry: KeyEntry) -> TrustedKey | None:
        if entry.file is None:
            return self._made((*at, "pem"), partial(TrustedKey.from_pem, entry.name, entry.pem or ""))
        content = self._read((*at, "file"), entry.file, MAX_PEM)
        if content is None:
            return None
        return self._made((*at, "file"), partial(TrustedKey.from_pem, entry.name, content.decode("ascii", "replace")))

    def _read(self, at: Location, name: str, limit: int) -> bytes | None:
        try:
            return self._files.read(self._folder / name, limit)
        except OSError as error:
            self.problems.append((at, str(error)))
            return None

    def _made(self, at: Location, make: Callable[[], Made]) -> Made | None:
        try:
            return make()
        except ConfigurationError as error:
            self.problems.append((at, error.detail))
            return None


def _identity(entry: IdentityEntry) -> Identity:
    return Identity(entry.subject, entry.subject_pattern, entry.issuer)
