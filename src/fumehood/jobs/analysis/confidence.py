"""How much of a chunk could be looked at. It is no probability that the findings are right: those are in the tables of
docs/explanation/local-analysis.md."""

from __future__ import annotations

UNKNOWN_LANGUAGE = 0.1
BEST = 0.9
"""Never certain: rules see what is written, not what is meant."""
WITHOUT_ANALYSER = 0.8
"""Only our own rules know the language."""
NOT_READ = 0.6
"""There is an analyser, and it could not read the chunk."""
PART_OF_FILE = 0.9
"""What stands before the chunk was not seen."""
ERROR_WEIGHT = 3.0
"""A tenth of the chunk that the grammar cannot read costs three tenths."""


def confidence(*, known: bool, error_share: float, analyser: bool, analyser_read: bool, whole: bool) -> float:
    if not known:
        return UNKNOWN_LANGUAGE
    value = BEST * max(0.0, 1.0 - ERROR_WEIGHT * error_share)
    if not analyser:
        value *= WITHOUT_ANALYSER
    elif not analyser_read:
        value *= NOT_READ
    if not whole:
        value *= PART_OF_FILE
    return round(max(UNKNOWN_LANGUAGE, value), 3)
