"""The policy file while it is in use: looked at whenever it is needed, taken whole or not at all.

A new file counts from the next decision on. One that is wrong changes nothing: the last good policy stays in force, and
the trouble is logged, counted and shown until the file is right. Replace it by renaming another one over it, so that no
half of it is ever read; a half that is read all the same is most likely wrong, and then only logged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, final

import structlog

from fumehood.errors import ConfigurationError
from fumehood.images.operator_files import OperatorFiles
from fumehood.images.policy import OperatorPolicy, SignatureVerifier
from fumehood.images.policy_file import read_policy

NOTICE: Final = "the policy file is wrong since it was changed: the last good one counts, and the log tells more"
"""For whoever may ask; the reason itself names paths, and is the operator's alone."""


@final
class PolicyFile:
    """A `PolicySource`. `ConfigurationError` if the file is wrong at the start: there is nothing to fall back to."""

    def __init__(self, path: Path, verifier: SignatureVerifier) -> None:
        self._path = path
        self._verifier = verifier
        self._log = structlog.get_logger()
        self._files = OperatorFiles()
        self._policy = read_policy(path, verifier, self._files)
        self.reason: str | None = None
        """Why the file as it is now does not count; for the operator alone. As of the last look."""
        self.counts = {"loaded": 1, "refused": 0}

    @property
    def trouble(self) -> str | None:
        return NOTICE if self.reason is not None else None

    def current(self) -> OperatorPolicy:
        if self._files.changed():
            self._reload()
        return self._policy

    def _reload(self) -> None:
        self._files = OperatorFiles()
        try:
            policy = read_policy(self._path, self._verifier, self._files)
        except ConfigurationError as error:
            self.reason = error.detail
            self.counts["refused"] += 1
            self._log.error("policy.refused", reason=error.detail, in_force=self._policy.sha256)
            return
        self._policy, self.reason = policy, None
        self.counts["loaded"] += 1
        self._log.info("policy.loaded", policy=policy.name, sha256=policy.sha256)
