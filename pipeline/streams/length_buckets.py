"""Batches of records of like length: within a span of steps, each stream gives its shortest together, and so on.

A stream's records of a span, those that it would serve anyway, are sorted by length and dealt to the steps of the span
in an order that is drawn for the span and the same for all streams, so that all streams give a global batch records of
like length. Which records a span holds, and the class of each place, stay as they are: so do exactly once, balance,
equal steps and resuming, and the order is a pure function of (seed, epoch, step) as before.

What it costs: records of a window that ends within a span are sorted within their part of it; and batches of a span are
no longer independent draws, for one holds short records, the next long ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...sharding.common.option_checks import integer, text
from ...sharding.compute.keyed_random import shuffled
from ...sharding.errors import ConfigError
from ...sharding.schema import Schema
from ..decode.columns import Columns, views_of
from ..order.epoch_order import EpochOrder
from ..order.windows import Positions, Window
from ..select.sample_columns import EXAMPLES

__all__ = ["BucketedPicks", "LengthBuckets", "Picks", "assign_by_length"]

Int64 = npt.NDArray[np.int64]
ClassNumbers = npt.NDArray[np.integer]
_ANY_STEPS = 1 << 16  # of a span, however short the epoch


class Picks(Protocol):
    """Which record of a window serves each of its positions."""

    def at(self, positions: Positions) -> Int64:
        """The records, numbered through the window, at ascending positions; each call goes on from the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthBuckets:
    """How records are put together by length.

    Attributes:
        feature: whose length counts, in Parquet shards. Of records of TFRecord shards, which are parsed only later, it
            is the bytes of the whole record.
        steps: of a span, at least 2.
    """

    feature: str
    steps: int

    @classmethod
    def from_options(cls, schema: Schema, feature: str, steps: int, epoch_steps: int) -> LengthBuckets:
        """With the arguments checked.

        Args:
            schema: of the features delivered.
            feature: see `LengthBuckets`.
            steps: of a span; each takes 8 bytes of memory.
            epoch_steps: of an epoch.

        Raises:
            ConfigError: no such feature, or one whose length does not vary; or a span much longer than an epoch.
        """
        if text("bucket_by", feature) not in schema.names:
            raise ConfigError(f"bucket_by names {feature!r}, which is no feature; they are: {', '.join(schema.names)}")
        if schema[feature].elements is not None and (schema[feature].numeric or schema[feature].shape):
            raise ConfigError(f"bucket_by: all values of {feature!r} have one length, {schema[feature].elements}")
        if integer("bucket_steps", steps, 2) > max(epoch_steps, _ANY_STEPS):
            raise ConfigError(
                f"bucket_steps must be at most {max(epoch_steps, _ANY_STEPS)}, got {steps}: an epoch has {epoch_steps}"
            )
        return cls(feature=feature, steps=int(steps))

    def lengths(self, columns: Columns) -> Int64:
        """Of each record, int64 [records]."""
        values: Any = columns.get(EXAMPLES)
        if values is not None:
            return views_of(values)["length"].astype(np.int64)
        values = columns[self.feature]
        nested = pa.types.is_list(values.type) or pa.types.is_large_list(values.type)
        lengths = pc.list_value_length(values) if nested else pc.binary_length(values)
        return np.asarray(pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False), np.int64)


class BucketedPicks:
    """The picks of a window, put together by length.

    Args:
        picks: to be put together; asked for whole spans.
        order: of the epoch.
        window: that they are of.
        segments: its records.
        buckets: how.
        classes: gives those that the positions ``[start, stop)`` of the window are bound to; None if they are to none.
    """

    def __init__(
        self,
        picks: Picks,
        order: EpochOrder,
        window: Window,
        segments: Sequence[Columns],
        buckets: LengthBuckets,
        classes: Callable[[int, int], ClassNumbers] | None,
    ) -> None:
        self._picks = picks
        self._order = order
        self._window = window
        self._steps = buckets.steps
        self._lengths = np.concatenate([buckets.lengths(segment) for segment in segments])
        self._classes = classes
        self._start, self._rows = 0, np.empty(0, np.int64)  # of the span that is arranged

    def at(self, positions: Positions) -> Int64:
        """See `Picks`."""
        positions = np.asarray(positions)
        parts = []
        start = 0
        while start < len(positions):
            first = int(positions[start])
            if not self._start <= first < self._start + len(self._rows):
                self._arrange(first)
            stop = int(np.searchsorted(positions, self._start + len(self._rows)))
            parts.append(self._rows[positions[start:stop] - self._start])
            start = stop
        return np.concatenate(parts)

    def _arrange(self, position: int) -> None:
        """Take in the part of the window that lies in the span of a position."""
        piece, base = self._order.geometry.piece, self._window.start
        span = (base + position) // (piece * self._steps)
        start = max(span * piece * self._steps - base, 0)
        stop = min((span + 1) * piece * self._steps - base, self._window.samples)
        places = np.arange(start, stop)
        ranks = shuffled(self._order.key("lengths", span), self._steps)[(base + places) // piece - span * self._steps]
        rows = self._picks.at(places)
        classes = np.zeros(len(rows), np.int64) if self._classes is None else self._classes(start, stop)
        self._start, self._rows = start, assign_by_length(rows, self._lengths[rows], ranks, classes)


def assign_by_length(rows: Int64, lengths: Int64, ranks: Int64, classes: ClassNumbers) -> Int64:
    """Records put by length to places by rank, each class to its own places; what is equal stays in order.

    Args:
        rows: the records, [n].
        lengths: of each.
        ranks: of each place.
        classes: of each record, and of the place where it stood.

    >>> rows, lengths, ranks = np.array([7, 8, 9]), np.array([30, 10, 20]), np.array([1, 1, 0])
    >>> assign_by_length(rows, lengths, ranks, np.zeros(3, np.int64)).tolist()
    [9, 7, 8]
    """
    result = np.empty_like(rows)
    result[np.lexsort((ranks, classes))] = rows[np.lexsort((lengths, classes))]
    return result
