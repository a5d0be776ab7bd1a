"""Code and prose as the same kind of words, so that "parse the config" meets `parseConfig` and `config_parser`."""

from __future__ import annotations

import re
from collections.abc import Iterator

_WORD = re.compile(r"[^\W_]+(?:_+[^\W_]+)*")
PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
"""Of a name in ASCII: `parseHTTPHeader` is three, `utf_8` is two."""
_SPELLED = re.compile(r"[^\W_]+")
_ENDINGS = (("ies", "y"), ("ing", ""), ("ed", ""), ("es", ""), ("s", ""))
_LEAST = 3
"""Letters that an ending must leave."""
_COMMON_WORDS = (
    "a about all an and any are as at be because been but by can could did do does each for from get had has have how"
    " i if in into is it its just like may me more most must my no not of on one only or our out over should so some"
    " such than that the their them then there these they this those to too up us use used using very was way we were"
    " what when where which while who why will with would you your"
)
"""Of questions, not of code: `if` and `for` stand in every function and in every sentence."""


def terms(text: str) -> Iterator[str]:
    """Each part of each name, and the whole name as well if it has several parts."""
    for found in _WORD.finditer(text):
        word = found.group()
        parts = PART.findall(word) if word.isascii() else [word]
        for part in parts:
            yield stem(part.lower())
        if len(parts) > 1:
            yield word.replace("_", "").lower()


def asked(text: str) -> list[str]:
    """The terms of a question, each once, without the words that all questions have; with them, if there are no
    others."""
    found = list(dict.fromkeys(terms(text)))
    return [term for term in found if term not in _COMMON_STEMS] or found


def spelled(text: str) -> dict[str, str]:
    """How each term is written there."""
    return {stem(word): word for word in map(str.lower, _SPELLED.findall(text))}


def stem(word: str) -> str:
    """Only endings that code and prose use differently: `caches`, `cached` and `caching` are `cach`, as `cache` is."""
    for ending, instead in _ENDINGS:
        left = word[: -len(ending)]
        if word.endswith(ending) and len(left) >= _LEAST and not (ending == "s" and left.endswith("s")):
            word = left + instead
            break
    if word.endswith("e") and len(word) > _LEAST:
        word = word[:-1]
    if len(word) > _LEAST and word[-1] == word[-2] and word[-1] not in "ls":
        word = word[:-1]
    return word


_COMMON_STEMS = frozenset(_COMMON_WORDS.split()) | {stem(word) for word in _COMMON_WORDS.split()}
