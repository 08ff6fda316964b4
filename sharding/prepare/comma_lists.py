"""Comma-separated lists of names, and of names with values, as on the command line and in `dataset.json`.

Tested in tests/sharding/prepare/test_text_form.py.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable

ALL = "*"  # all columns, which options hold as an empty tuple


def join_items(items: Iterable[str]) -> str:
    """Join items with commas; quotes an item that would not read back as it is.

    >>> join_items(['a', 'b', 'c,d'])
    'a,b,"c,d"'
    """
    return ",".join(map(_quoted, items))


def _quoted(item: str) -> str:
    plain = item and item == item.strip() and item != ALL and not set(item) & set(',"\r\n')
    return item if plain else '"' + item.replace('"', '""') + '"'


def split_names(text: str) -> tuple[str, ...]:
    """Split comma-separated names.

    Raises:
        ValueError: a name is empty.

    >>> split_names('a, b,"c,d"')
    ('a', 'b', 'c,d')
    """
    names = _items(text)
    if not names or not all(names):
        raise ValueError(f"expected NAME,NAME,..., got {text!r}")
    return names


def split_columns(text: str) -> tuple[str, ...]:
    """Split comma-separated names of columns; ``*``, for all, gives an empty tuple.

    Raises:
        ValueError: a name is empty.

    >>> split_columns("hours,carrier")
    ('hours', 'carrier')
    """
    return () if text == ALL else split_names(text)


def split_pairs(text: str) -> tuple[tuple[str, str], ...]:
    """Split comma-separated names and values.

    Raises:
        ValueError: an item is not NAME=VALUE.

    >>> split_pairs('a=1,"b,c=x=y"')
    (('a', '1'), ('b,c', 'x=y'))
    """
    pairs = [item.partition("=") for item in _items(text)]
    for name, equals, _ in pairs:
        if not name.strip() or not equals:
            raise ValueError(f"expected NAME=VALUE,NAME=VALUE,..., got {text!r}")
    return tuple((name.strip(), value.strip()) for name, _, value in pairs)


def split_texts(text: str) -> tuple[str, ...]:
    """Split comma-separated texts, which may be empty.

    >>> split_texts('NA,""'), split_texts("NA,"), split_texts("")
    (('NA', ''), ('NA', ''), ('',))
    """
    return _items(text) or ("",)


def _items(text: str) -> tuple[str, ...]:
    """Split at commas, except inside double quotes; raises a ValueError if the quotes are unbalanced."""
    try:
        return tuple(item.strip() for item in next(csv.reader([text], strict=True, skipinitialspace=True), []))
    except csv.Error as error:
        raise ValueError(f"{text!r}: {error}; put double quotes around a whole NAME or NAME=VALUE") from error
