"""Rows chosen from opened shards, not yet copied.

They are copied once, when all rows of a chunk are known, each to its place in the chunk. An intermediate array for each
stream would move large records through memory twice more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ringfeed.sharding.compute import kernels
from ringfeed.sharding.formats.parquet_pages import FileVectors

from .buffer_pool import BufferPool, empty_aligned

Int64 = npt.NDArray[np.int64]
Viewable: TypeAlias = npt.NDArray[Any] | FileVectors


@dataclass(frozen=True, slots=True, kw_only=True)
class RowViews:
    """Rows of equal size, by their addresses in memory."""

    addresses: Int64  # address of each row's first byte, int64 [rows]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]  # shape of each row
    owners: tuple[Viewable, ...]  # owners of the memory, kept alive by the views

    def __len__(self) -> int:
        return len(self.addresses)

    def slice(self, start: int, length: int) -> RowViews:
        """Rows ``[start, start + length)``."""
        return replace(self, addresses=self.addresses[start : start + length])

    def copy(self, pool: BufferPool | None = None) -> npt.NDArray[Any]:
        """A copy of the rows, [rows, *shape], in memory of the pool if there is one."""
        (copied,) = self.fields([(0, prod(self.shape) * self.dtype.itemsize)], pool)
        return copied.reshape(-1).view(self.dtype).reshape(-1, *self.shape)

    def fields(self, spans: Sequence[tuple[int, int]], pool: BufferPool | None) -> list[npt.NDArray[np.uint8]]:
        """A copy of some bytes of each row: for each span, uint8 [rows, width].

        Args:
            spans: first byte and width of each span.
            pool: memory for the copies, or None.
        """
        fields = [empty_aligned((len(self), width), np.uint8, pool) for _, width in spans]
        kernels.gather_fields(self.addresses, [first for first, _ in spans], fields)
        return fields

    @staticmethod
    def side_by_side(values: Sequence[RowViews | npt.NDArray[Any]], steps: int) -> RowViews:
        """The rows of all values, joined step by step; all have the same number of steps."""
        parts = [own if isinstance(own, RowViews) else _all_rows(np.ascontiguousarray(own)) for own in values]
        addresses = np.concatenate([part.addresses.reshape(steps, -1) for part in parts], axis=1).reshape(-1)
        owners = tuple(owner for part in parts for owner in part.owners)
        return RowViews(addresses=addresses, dtype=parts[0].dtype, shape=parts[0].shape, owners=owners)


def has_viewable_rows(values: object) -> bool:
    """Whether rows of a column can be viewed: each lies contiguously in memory, and is more than one number."""
    if not kernels.are_compiled():
        return False
    return isinstance(values, FileVectors) or (
        isinstance(values, np.ndarray) and values.ndim > 1 and values.flags.c_contiguous
    )


def view_rows(
    values: Viewable, rows: Int64, others: Mapping[int, tuple[Int64, Int64]], segments: Sequence[Viewable]
) -> RowViews:
    """View rows from several segments of a column.

    Args:
        values: values of the main segment, which most rows come from.
        rows: row numbers in the main segment; anything where `others` has a place.
        others: by number of another segment, the places among `rows` that it fills, and its row numbers.
        segments: values of all segments.

    Raises:
        IndexError: there is no such row.
    """
    addresses = _addresses(values, rows.clip(0, len(values) - 1) if others else rows)
    for number, (places, own) in others.items():
        addresses[places] = _addresses(segments[number], own)
    dtype, shape = values.dtype, values.shape if isinstance(values, FileVectors) else values.shape[1:]
    return RowViews(addresses=addresses, dtype=dtype, shape=shape, owners=tuple(segments))


def _all_rows(values: npt.NDArray[Any]) -> RowViews:
    return view_rows(values, np.arange(len(values)), {}, [values])


def _addresses(values: Viewable, rows: Int64) -> Int64:
    if isinstance(values, FileVectors):
        places: Int64 = values.starts.take(rows) + values.data.address
        return places
    return kernels.locate_rows(rows, values)
