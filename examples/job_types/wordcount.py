"""A job type of one's own: how many words a text has, and which ones it has most.

FUMEHOOD_JOB_MODULES=wordcount PYTHONPATH=examples/job_types fumehood dev --no-node
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated

from pydantic import Field

from fumehood.jobs.base import Context, JobRequest, JobResponse, JobType, SchemaVersion, Workbench
from fumehood.wire.jobs import U32, Adjudication, JobModel, Mode, Option, Provenance, Verification


class WordCountRequest(JobRequest):
    """A text, and how much of its count is wanted."""

    text: Annotated[str, Field(max_length=1_000_000)]
    """What is counted."""
    most: U32 = 3
    """How many of the most frequent words to name."""
    ignore: Option[Annotated[str, Field(max_length=64)]] = None
    """A word that does not count."""
    verification: Verification = Verification(
        mode=Mode.OBJECTIVE, redundancy=3, adjudication=Adjudication.MAJORITY_VOTE
    )


class Word(JobModel):
    """One of the most frequent."""

    word: str
    count: U32


class WordCountResponse(JobResponse):
    """What was counted."""

    words: U32
    """How many there are."""
    frequent: Annotated[tuple[Word, ...], Field(strict=False)] = ()
    """The most frequent ones; of two that are as frequent, the first in the alphabet."""


class Counting:
    """The handler: counts, and needs nothing but the request."""

    async def run(self, request: WordCountRequest, context: Context) -> WordCountResponse:
        found = [word for word in re.findall(r"\w+", request.text.lower()) if word != request.ignore]
        ranked = sorted(Counter(found).items(), key=lambda counted: (-counted[1], counted[0]))
        return WordCountResponse(
            words=len(found),
            frequent=tuple(Word(word=word, count=count) for word, count in ranked[: request.most]),
            provenance=Provenance(model_id="wordcount/1.0.0"),
        )


def _local(workbench: Workbench) -> Counting:
    return Counting()


JOB_TYPE = JobType(
    name="oa.text_wordcount.v1",
    version=SchemaVersion(1, 0, 0),
    about="Counts the words of a text.",
    request=WordCountRequest,
    response=WordCountResponse,
    handlers={"local": _local},
)
