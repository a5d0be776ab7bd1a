"""Sums of money, in cents."""

from __future__ import annotations


def parse(text: str) -> int:
    """`"12.50"` as 1250. More than two digits behind the point are an error, not something to round."""
    whole, _, cents = text.partition(".")
    if not whole.isdigit() or len(cents) > 2 or (cents and not cents.isdigit()):
        raise ValueError(f"not a sum of money: {text!r}")
    return int(whole) * 100 + int(cents.ljust(2, "0"))


def split(total: int, people: int) -> list[int]:
    """Shares that differ by a cent at most, and add up."""
    share, rest = divmod(total, people)
    return [share + 1] * rest + [share] * (people - rest)
