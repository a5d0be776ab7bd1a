"""Cuts text into the word pieces that BERT (uncased) was trained on.

As `BertTokenizer` does it, with one difference that is meant: `[SEP]` in a text is three pieces of text, never the
separator itself: whoever writes the text is not the one who asks.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path

from fumehood.errors import ConfigurationError

MAX_WORD = 100
MAX_VOCABULARY = 1_000_000
PAD, UNKNOWN, BEGIN, END = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
_REMEMBERED = 32_768
_ASCII_PARTS = re.compile(r"[a-z0-9]+|[!-/:-@\[-`{-~]")
_ASCII_CONTROLS = {code: None for code in (*range(32), 127) if chr(code) not in "\t\n\r"}
_LEFT_OUT = ("Cc", "Cf", "Co", "Cs")
"""Controls, formats, private use, halves of pairs."""
_IDEOGRAPHS = re.compile(
    "([\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002b73f"
    "\U0002b740-\U0002b81f\U0002b920-\U0002ceaf\uf900-\ufaff\U0002f800-\U0002fa1f])"
)


class WordPieces:
    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        try:
            self.begin, self.end, self._unknown = (vocabulary[name] for name in (BEGIN, END, UNKNOWN))
        except KeyError as error:
            raise ConfigurationError(f"the vocabulary has no {error.args[0]}") from None
        self._vocabulary = vocabulary
        self._longest = max(map(len, vocabulary))
        self._remembered = functools.lru_cache(maxsize=_REMEMBERED)(self._pieces_of)

    @classmethod
    def read(cls, path: Path) -> WordPieces:
        """From `vocab.txt`: a piece on each line; its number is the line's."""
        lines = path.read_text(encoding="utf-8").split("\n")
        if len(lines) > MAX_VOCABULARY:
            raise ConfigurationError(f"{path} has too many lines for a vocabulary")
        return cls({piece: number for number, piece in enumerate(lines) if piece})

    def ids(self, text: str, limit: int) -> list[int]:
        """The pieces of a text, at most `limit` of them, without those that mark its begin and its end."""
        found: list[int] = []
        for word in words(text):
            found.extend(self._remembered(word))
            if len(found) >= limit:
                return found[:limit]
        return found

    def _pieces_of(self, word: str) -> tuple[int, ...]:
        """Always the longest piece that fits; a word with a rest that no piece fits is unknown as a whole."""
        if len(word) > MAX_WORD:
            return (self._unknown,)
        found, start = [], 0
        while start < len(word):
            stop, piece = self._longest_from(word, start)
            if piece is None:
                return (self._unknown,)
            found.append(piece)
            start = stop
        return tuple(found)

    def _longest_from(self, word: str, start: int) -> tuple[int, int | None]:
        mark = "##" if start else ""
        for stop in range(min(len(word), start + self._longest), start, -1):
            piece = self._vocabulary.get(mark + word[start:stop])
            if piece is not None:
                return stop, piece
        return start, None


def words(text: str) -> Iterator[str]:
    """Lower case, without accents; each punctuation mark and each ideograph is a word of its own."""
    if text.isascii():
        for found in _ASCII_PARTS.finditer(text.translate(_ASCII_CONTROLS).lower()):
            yield found.group()
        return
    for word in _plain(text).split():
        yield from _without_punctuation(word)


def _plain(text: str) -> str:
    cleaned = "".join(" " if char.isspace() else char for char in text if _kept(char))
    apart = unicodedata.normalize("NFD", _IDEOGRAPHS.sub(r" \1 ", cleaned))
    bare = "".join(char for char in apart if unicodedata.category(char) != "Mn")
    return bare.replace("Σ", "σ").lower()  # one letter at a time: no special case for the end of a word


def _kept(char: str) -> bool:
    return char in "\t\n\r" or (char != "\ufffd" and unicodedata.category(char) not in _LEFT_OUT)


def _without_punctuation(word: str) -> Iterator[str]:
    start = 0
    for at, char in enumerate(word):
        if _is_punctuation(char):
            if start < at:
                yield word[start:at]
            yield char
            start = at + 1
    if start < len(word):
        yield word[start:]


def _is_punctuation(char: str) -> bool:
    """All of ASCII that is neither letter nor digit counts, `$` and `^` included."""
    if char.isascii():
        return not char.isalnum()
    return unicodedata.category(char).startswith("P")
