"""Phrases for messages: counts, lists of names, suggestions, and foreign text made fit to print.

Tested in tests/sharding/prepare/test_steps.py and tests/sharding/test_url_secrets.py.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from .url_secrets import without_secrets


def counted(number: int, noun: str, verb: str = "") -> str:
    """A count with its noun and verb; a slash separates singular and plural.

    >>> counted(1, "file"), counted(1200, "file", "is/are"), counted(1, "index/indices", "was/were")
    ('1 file', '1,200 files are', '1 index was')
    """
    one, _, many = noun.partition("/")
    single, _, plural = verb.partition("/")
    words = [f"{number:,}", one if number == 1 else many or f"{one}s", single if number == 1 else plural or single]
    return " ".join(word for word in words if word)


def some_of(number: int, total: int, noun: str, verb: str) -> str:
    """A count out of a total, with noun and verb.

    >>> some_of(1, 20, "shard", "is/are"), some_of(3, 20, "shard", "is/are")
    ('1 of 20 shards is', '3 of 20 shards are')
    """
    single, _, plural = verb.partition("/")
    return f"{number:,} of {counted(total, noun)} {single if number == 1 else plural}"


def listed(names: Sequence[str], most: int = 20) -> str:
    """The first names of a list, separated by commas; an empty one is ''.

    >>> listed(["", "b", "c"]), listed(["a", "b", "c"], 2)
    ("'', b, c", 'a, b, ...')
    """
    return ", ".join(printable(name) or "''" for name in names[:most]) + (", ..." if len(names) > most else "")


def closest(name: object, known: Iterable[str]) -> str | None:
    """The known name that an unknown one is most like, or None if it is like none of them.

    >>> closest("prise", ["price", "size"]), closest("x", ["price", "size"])
    ('price', None)
    """
    return next(iter(difflib.get_close_matches(str(name), list(known), n=1)), None)


def did_you_mean(name: object, known: Iterable[str], otherwise: str) -> str:
    """A hint at the known name that an unknown one is most like, if there is one, before a sentence.

    >>> did_you_mean("prise", ["price", "size"], "they are: price, size")
    "did you mean 'price'? They are: price, size"
    >>> did_you_mean("x", ["price", "size"], "they are: price, size")
    'they are: price, size'
    """
    close = closest(name, known)
    return otherwise if close is None else f"did you mean {close!r}? {otherwise[:1].upper()}{otherwise[1:]}"


def printable(text: str) -> str:
    r"""Text on one line, with escapes in place of line breaks and control characters that a terminal would obey.

    All errors, and all lines that commands print, pass through here: names from data may hold anything.

    >>> printable("a\x1b[31m\nb")
    'a\\x1b[31m\\nb'
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def one_line(text: object) -> str:
    """Text on one line, without control characters that a terminal would obey, nor the secrets of URLs.

    >>> one_line("a\\n  b\\x1b[31m")
    'a b?[31m'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(without_secrets(str(text)).split()))


def brief(error: BaseException, limit: int = 200) -> str:
    """The text of an error on one line, without the secrets of URLs, cut to a length.

    Raises:
        MemoryError: the error is one, as Arrow's is: it says nothing about the data that was to be read.

    >>> brief(ValueError("no\\n  good"), 4)
    'no g'
    """
    if isinstance(error, MemoryError):
        raise error
    return " ".join(without_secrets(str(error)).split())[:limit]
