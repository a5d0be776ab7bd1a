"""How much of each candidate is read, when there is more than there is time for."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fumehood.jobs.embedding.minilm import MAX_PIECES as LONGEST
from fumehood.jobs.rerank.terms import PART
from fumehood.jobs.types.retrieval_rerank import RerankCandidate

MAX_CHARACTERS = 4 * 1024 * 1024
"""Of all candidates together, for the words."""
MAX_PIECES = 32 * 1024
"""Of all candidates together, for the model, overlaps included: about ten seconds of a core that has nothing else to
do."""
WINDOW = LONGEST - 2
STEP = WINDOW - 64
"""Windows overlap, so that nothing is only ever seen cut in two."""
ROOM = MAX_PIECES * STEP // WINDOW
"""What that leaves for each piece once."""
_NAME = re.compile(r"[A-Za-z0-9_]+")


def allotted(sizes: Sequence[int], total: int) -> list[int]:
    """What each may have of `total`: all alike, and what the short ones leave goes to the long ones."""
    given = [0] * len(sizes)
    left = total
    for place, at in enumerate(sorted(range(len(sizes)), key=lambda at: sizes[at])):
        given[at] = min(sizes[at], left // (len(sizes) - place))
        left -= given[at]
    return given


def shortened(candidates: Sequence[RerankCandidate]) -> list[str]:
    """What of each content is read at all: its beginning."""
    allowed = allotted([len(one.content) for one in candidates], MAX_CHARACTERS)
    return [one.content[:length] for one, length in zip(candidates, allowed, strict=True)]


def readable(path: str | None, content: str) -> str:
    """For a model that has read more prose than code: `signIn` and `sign_in` are two words."""
    text = f"{path}\n{content}" if path else content
    return _NAME.sub(lambda found: " ".join(PART.findall(found.group())), text)


def windows(pieces: Sequence[int]) -> list[Sequence[int]]:
    """At least one, of at most `WINDOW` pieces; the last one reaches the end."""
    starts = range(0, max(1, len(pieces) - WINDOW + STEP), STEP)
    return [pieces[start : start + WINDOW] for start in starts]
