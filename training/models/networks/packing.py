"""Sequence packing: several short records in one row of tokens, so that little of a batch is padding.

Krell et al., "Efficient Sequence Packing without Cross-contamination", arXiv 2107.02027, whose contamination the
network avoids: attention and positions are confined to a record.
Tested in tests/training/models/networks/test_text.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

Integers = npt.NDArray[np.int64]


def first_fit(lengths: Integers, width: int) -> tuple[Integers, Integers]:
    """Return row and first place of each record: the longest first, each in the first row that has room for it.

    `lengths`, int64 [n], are the tokens of each record, at most `width`, those of a row.

    >>> [places.tolist() for places in first_fit(np.array([3, 5, 2, 4]), 8)]
    [[0, 0, 1, 1], [5, 0, 4, 0]]
    """
    free = np.full(len(lengths), width, np.int64)
    rows, starts = np.zeros(len(lengths), np.int64), np.zeros(len(lengths), np.int64)
    for record in np.argsort(-lengths, kind="stable"):
        row = int(np.argmax(free >= lengths[record]))
        rows[record], starts[record] = row, width - free[row]
        free[row] -= lengths[record]
    return rows, starts


def rows_of(tokens: Any, width: int | None) -> dict[str, Any]:
    """Return records, ragged int32 [batch, None], as rows of tokens: packed, or (width None) one in a row.

    These are `tokens`, int32 [rows, width], 0 for padding; `records`, the number of the record of each token, -1 for
    padding; `positions` within it; and `lengths` of the records, int32 [batch].
    """
    lengths = tokens.row_lengths()
    if width is None:
        rows, starts = tf.range(tokens.nrows()), tf.zeros_like(lengths)
        columns = tf.maximum(tf.reduce_max(lengths), 1)
    else:
        fixed = width
        rows, starts = tf.numpy_function(lambda given: first_fit(given, fixed), [lengths], (tf.int64, tf.int64))
        columns = tf.constant(width, tf.int64)
    owners = tokens.value_rowids()
    inner = tf.range(tf.size(owners, tf.int64)) - tf.gather(tokens.row_starts(), owners)
    places = tf.stack([tf.gather(rows, owners), tf.gather(starts, owners) + inner], 1)
    shape = tf.stack([tf.maximum(tf.reduce_max(rows) + 1, 1), columns])

    def spread(values: Any) -> Any:
        filled = tf.scatter_nd(places, tf.cast(values, tf.int32), shape)
        return tf.ensure_shape(filled, [None, width])

    return {
        "tokens": spread(tokens.flat_values),
        "records": spread(owners + 1) - 1,
        "positions": spread(inner),
        "lengths": tf.cast(lengths, tf.int32),
    }


def padding_of(inputs: Any) -> tuple[Any, int] | None:
    """Return the tokens of padding in a batch, and the number of all; None if its inputs are no rows of tokens."""
    if not isinstance(inputs, Mapping) or "records" not in inputs:
        return None
    records = inputs["records"]
    return tf.reduce_sum(tf.cast(records < 0, tf.int32)), int(np.prod(records.shape))
