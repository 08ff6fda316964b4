"""Batch records of similar length: sort each stream's records within a span of steps.

The records that a stream serves in a span anyway are sorted by length and dealt to the steps of the span. The order of
the steps is drawn for the span, the same for all streams, so that every stream gives a global batch records of similar
length. The set of records in a span and the class of each position do not change, so every record still comes exactly
once, balance and equal steps hold, and the order remains a pure function of (seed, epoch, step).

The price: where a window ends within a span, its records are sorted only within their part of the span; and the batches
of a span are no longer independent draws, since one holds short records and the next long ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.pipeline.decode.columns import Columns, views_of
from ringfeed.pipeline.order.epoch_order import EpochOrder
from ringfeed.pipeline.order.windows import Positions, Window
from ringfeed.pipeline.select.sample_columns import EXAMPLES
from ringfeed.sharding.common.validation import integer, text
from ringfeed.sharding.compute.keyed_random import shuffled
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.schema import Schema

from .row_picks import ClassNumbers, Int64, Picks

_MAX_SPAN = 1 << 16  # steps of a span in a shorter epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthBuckets:
    """How to batch records by length."""

    # Feature whose length counts, in Parquet shards. TFRecord records are parsed only later, so there the size of the
    # whole record counts.
    feature: str
    steps: int  # steps of a span, at least 2

    @classmethod
    def from_options(cls, schema: Schema, feature: str, steps: int, epoch_steps: int) -> LengthBuckets:
        """Check the options of a loader.

        Args:
            schema: delivered features.
            feature: see `LengthBuckets`.
            steps: steps of a span; each takes 8 bytes of memory.
            epoch_steps: steps of an epoch.

        Raises:
            ConfigError: the feature is unknown or has a fixed length, or the span is much longer than an epoch.
        """
        if text("bucket_by", feature) not in schema.names:
            raise ConfigError(f"bucket_by names {feature!r}, which is no feature; they are: {', '.join(schema.names)}")
        if schema[feature].elements is not None and (schema[feature].numeric or schema[feature].shape):
            raise ConfigError(f"bucket_by: all values of {feature!r} have one length, {schema[feature].elements}")
        if integer("bucket_steps", steps, 2) > (limit := max(epoch_steps, _MAX_SPAN)):
            raise ConfigError(f"bucket_steps must be at most {limit}, got {steps}: an epoch has {epoch_steps}")
        return cls(feature=feature, steps=int(steps))

    def lengths(self, columns: Columns) -> Int64:
        """Return the length of each record, int64 [records]."""
        values: Any = columns.get(EXAMPLES)
        if values is not None:
            return views_of(values)["length"].astype(np.int64)
        values = columns[self.feature]
        nested = pa.types.is_list(values.type) or pa.types.is_large_list(values.type)
        lengths = pc.list_value_length(values) if nested else pc.binary_length(values)
        return np.asarray(pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False), np.int64)


class BucketedPicks:
    """The picks of a window, sorted by length within each span.

    Args:
        picks: picks to sort; read by whole spans.
        order: order of the epoch.
        window: window of the picks.
        segments: columns of the window's segments.
        buckets: how to batch by length.
        classes_of: returns the class of each of the window's positions ``[start, stop)``; None without a balance.
    """

    def __init__(
        self,
        picks: Picks,
        order: EpochOrder,
        window: Window,
        segments: Sequence[Columns],
        buckets: LengthBuckets,
        classes_of: Callable[[int, int], ClassNumbers] | None,
    ) -> None:
        self._picks = picks
        self._order = order
        self._window = window
        self._steps = buckets.steps
        self._lengths = np.concatenate([buckets.lengths(segment) for segment in segments])
        self._classes_of = classes_of
        self._start, self._rows = 0, np.empty(0, np.int64)  # of the current span

    def at(self, positions: Positions) -> Int64:
        positions = np.asarray(positions)
        parts = []
        start = 0
        while start < len(positions):
            first = int(positions[start])
            if not self._start <= first < self._start + len(self._rows):
                self._sort_span(first)
            stop = int(np.searchsorted(positions, self._start + len(self._rows)))
            parts.append(self._rows[positions[start:stop] - self._start])
            start = stop
        return np.concatenate(parts)

    def _sort_span(self, position: int) -> None:
        """Sort the part of the window that lies in the span of a position."""
        piece, base = self._order.geometry.piece, self._window.start
        span = (base + position) // (piece * self._steps)
        start = max(span * piece * self._steps - base, 0)
        stop = min((span + 1) * piece * self._steps - base, self._window.samples)
        places = np.arange(start, stop)
        ranks = shuffled(self._order.key("lengths", span), self._steps)[(base + places) // piece - span * self._steps]
        rows = self._picks.at(places)
        classes = np.zeros(len(rows), np.int64) if self._classes_of is None else self._classes_of(start, stop)
        self._start, self._rows = start, assign_by_length(rows, self._lengths[rows], ranks, classes)


def assign_by_length(rows: Int64, lengths: Int64, ranks: Int64, classes: ClassNumbers) -> Int64:
    """Assign records in the order of their lengths to positions in the order of their ranks, class by class. Stable.

    Args:
        rows: record at each position, [n].
        classes: class of each record, which its new position must have, too.

    >>> rows, lengths, ranks = np.array([7, 8, 9]), np.array([30, 10, 20]), np.array([1, 1, 0])
    >>> assign_by_length(rows, lengths, ranks, np.zeros(3, np.int64)).tolist()
    [9, 7, 8]
    """
    result = np.empty_like(rows)
    result[np.lexsort((ranks, classes))] = rows[np.lexsort((lengths, classes))]
    return result
