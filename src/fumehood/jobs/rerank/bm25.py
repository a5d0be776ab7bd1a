"""Okapi BM25 over the candidates of one request: a word counts for more the fewer of them have it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

K1 = 1.2
"""How soon a word that comes again counts for nothing more."""
B = 0.75
"""How much a long candidate has to pay for being long."""


@dataclass(frozen=True, slots=True)
class Match:
    score: float
    terms: tuple[str, ...]
    """Of the question that were found, those that count for most first."""


def bm25(question: Mapping[str, float], documents: Sequence[Counter[str]]) -> list[Match]:
    """For each document; `question` has a weight for each of its terms."""
    having = Counter(term for document in documents for term in question if term in document)
    sizes = [document.total() for document in documents]
    mean = sum(sizes) / len(sizes) if sizes else 0.0
    rarity = {term: math.log1p((len(documents) - count + 0.5) / (count + 0.5)) for term, count in having.items()}
    weights = {term: question[term] * rare for term, rare in rarity.items()}
    return [_match(weights, document, size / (mean or 1.0)) for document, size in zip(documents, sizes, strict=True)]


def _match(weights: Mapping[str, float], document: Counter[str], size: float) -> Match:
    parts = {
        term: weight * document[term] * (K1 + 1) / (document[term] + K1 * (1 - B + B * size))
        for term, weight in weights.items()
        if document[term]
    }
    return Match(math.fsum(parts.values()), tuple(sorted(parts, key=lambda term: (-parts[term], term))))
