"""Names that look alike and differ only in their Unicode form, as a Mac and a Linux machine write ``é``.

Tested in tests/sharding/building/test_survey.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from unicodedata import normalize

__all__ = ["unicode_twins"]


def unicode_twins(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return pairs of different names that are equal in Unicode's composed form (NFC), in their order.

    >>> [tuple(map(ascii, pair)) for pair in unicode_twins(["caf\\u00e9", "tea", "cafe\\u0301", "caf\\u00e9"])]
    [("'caf\\\\xe9'", "'cafe\\\\u0301'")]
    """
    first: dict[str, str] = {}
    twins: dict[tuple[str, str], None] = {}
    for name in names:
        if not name.isascii() and (other := first.setdefault(normalize("NFC", name), name)) != name:
            twins[other, name] = None
    return list(twins)
