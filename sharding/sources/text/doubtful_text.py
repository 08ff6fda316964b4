"""Warnings about text that may mean something else: labels of one number, and names of missing values.

Tested in tests/sharding/sources/text/test_csv.py and tests/sharding/sources/records/test_webdataset.py.
"""

from __future__ import annotations

import logging
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.messages import listed

from .csv_parse import MISSING

_logger = logging.getLogger(__name__)
_MOST = 5  # counts, or columns, to name
_FIRST = 1000  # records to look at
_DECIMAL_COMMA = r"^[ \t]*[+-]?[0-9]*,[0-9]+[ \t]*$"
_NUMBER = r"^[ \t]*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[ \t]*$"
_ODD = 2  # other texts in a column of numbers


def warn_of_spellings(path: str, label: str, spellings: Sequence[str]) -> None:
    """Warn that a label of integers is read as text, because one of them is spelled in several ways.

    Args:
        path: URL of the source, or of a file of it.
        label: name of the label.
    """
    _logger.warning(
        "%s: the label %r is read as text, because %s are one number but may be several classes; to make one class of "
        "them, declare it int64 with --schema, or cast it with --cast %s=int64",
        path, label, " and ".join(map(repr, spellings)), label,
    )  # fmt: skip


def count_missing(column: pa.ChunkedArray) -> Counter[str]:
    """Count the texts of a column that mean a missing value in columns of other types.

    >>> count_missing(pa.chunked_array([["NA", "a", "NA", ""]]))
    Counter({'NA': 2, '': 1})
    """
    texts = column.filter(pc.is_in(column, pa.array(MISSING)))
    return Counter(dict(pair.values() for pair in texts.value_counts().to_pylist()))


def first_texts(table: pa.Table, names: Sequence[str]) -> dict[str, pa.Array]:
    """The first records of columns that hold text."""
    kinds = table.schema
    texts = [name for name in table.column_names if name in names and kinds.field(name).type == pa.string()]
    return {name: table.column(name).slice(0, _FIRST).combine_chunks() for name in texts}


def has_decimal_commas(texts: pa.Array) -> bool:
    """Whether most texts are numbers, some with a decimal comma."""
    numbers, fractions, present = _numbers(texts, commas=True)
    return 2 * (pc.sum(numbers).as_py() or 0) > len(present) and bool(pc.any(fractions).as_py())


def _numbers(texts: pa.Array, *, commas: bool) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Which texts are numbers, which have a decimal comma (if they may), and the texts, without missing ones."""
    present = texts.filter(pc.invert(pc.is_in(texts, pa.array([*MISSING, None], pa.string()))))
    fractions = pc.match_substring_regex(present, _DECIMAL_COMMA if commas else "$^")
    return pc.or_(fractions, pc.match_substring_regex(present, _NUMBER)), fractions, present


def warn_of_commas(path: str, first: Mapping[str, pa.Array], delimiter: str, decimal: str) -> dict[str, list[str]]:
    """Warn of columns of text that hold numbers with a decimal comma.

    Args:
        path: URL of the first file.
        first: first texts of columns, by name; missing values and texts such as NA do not count.
        delimiter: character between fields; beside another than a comma, a comma is taken to begin a fraction.
        decimal: character that does begin one.

    Returns:
        For each column that holds numbers but for one or two texts, these texts.
    """
    commas, odd_texts = [], dict[str, list[str]]()
    for name, texts in first.items():
        numbers, fractions, present = _numbers(texts, commas=delimiter != ",")
        if 2 * (pc.sum(numbers).as_py() or 0) <= len(present):
            continue
        odd = present.filter(pc.invert(numbers)).unique().to_pylist()
        if decimal == "." and pc.any(fractions).as_py():
            commas.append(name)
        elif 0 < len(odd) <= _ODD:
            odd_texts[name] = odd
    if commas:
        _logger.warning(
            "%s: numbers with a decimal comma stay text, in %s; to read them as numbers, add --decimal ,",
            path, listed([repr(name) for name in commas], _MOST),
        )  # fmt: skip
    return odd_texts


def warn_of_odd_texts(path: str, odd_texts: Mapping[str, Sequence[str]]) -> None:
    """Warn of columns of numbers that one or two texts, by column, make text."""
    if odd_texts:
        found = [f"{' and '.join(map(repr, odd))} in {name!r}" for name, odd in odd_texts.items()]
        _logger.warning(
            "%s: columns of numbers are text because of %s; if it means a missing value, add --null-values %s",
            path, listed(found, _MOST),
            shlex.quote(",".join(dict.fromkeys(text for odd in odd_texts.values() for text in odd))),
        )  # fmt: skip


def warn_of_missing(
    path: str, counts: Mapping[str, Counter[str]], label: str | None, null_values: Sequence[str]
) -> None:
    """Warn of texts such as NA that stay text; of empty texts only in the label, where they are a class.

    Args:
        path: URL of the first file.
        counts: how often each such text occurs, by column.
        label: name of the label column, or None.
        null_values: texts that are read as missing already.
    """
    doubtful = [
        (text, f"{number:,} {text or 'empty'} in {name!r}")
        for name, texts in counts.items()
        for text, number in texts.items()
        if text or name == label
    ]
    if doubtful:
        _logger.warning(
            "%s: text that may mean a missing value stays text: %s; to read it as missing, add --null-values %s",
            path, listed([count for _, count in doubtful], _MOST),
            ",".join(dict.fromkeys(text or "'\"\"'" for text in (*null_values, *(text for text, _ in doubtful)))),
        )  # fmt: skip
