"""Warnings about text that may mean something else: labels of one number, and names of missing values.

Tested in tests/sharding/sources/text/test_csv.py and tests/sharding/sources/records/test_webdataset.py.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.messages import listed

from .csv_parse import MISSING

_logger = logging.getLogger(__name__)
_MOST = 5  # counts to name


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
