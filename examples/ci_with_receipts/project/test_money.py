"""The tests of money.py, with nothing but the standard library."""

# ruff: noqa: PT009, PT027 - there is no pytest in the image
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import unittest

from money import parse, split


class MoneyTest(unittest.TestCase):
    def test_cents_are_read(self) -> None:
        self.assertEqual([parse("12.50"), parse("3"), parse("0.5")], [1250, 300, 50])

    def test_what_is_no_money_is_refused(self) -> None:
        for text in ("", "1.234", "-1", "1.x"):
            with self.subTest(text), self.assertRaises(ValueError):
                parse(text)

    def test_shares_add_up(self) -> None:
        self.assertEqual(split(1000, 3), [334, 333, 333])
        self.assertEqual(sum(split(99_999, 7)), 99_999)


if __name__ == "__main__":
    unittest.main()
